"""Answers for the CLI and the console: look-up in lake and cluster, search, report, export, doctor.

Every answer is one frozen value with its `Scope`: the searched range, omissions, and the time it is of. This room
renders nothing; only `answers.changes` and `answers.backlog` write to a cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .cluster import (
    BrokerRow,
    BrokersAnswer,
    BrokerSettingsAnswer,
    ClusterAnswers,
    GroupOnBroker,
    GroupRow,
    GroupsAnswer,
    GroupWait,
    InvalidPlace,
    LagAnswer,
    MemberRow,
    MembersAnswer,
    StoredMessage,
    TopicOnBroker,
    TopicRow,
    TopicsAnswer,
)
from .doctor import BrokerHealth, CodeHealth, Diagnosis, GroupTrace, TraceTopicHealth, examine
from .evidence import EvidencePlace, evidence_place
from .model import (
    CodeCount,
    CoverageTime,
    Event,
    GroupVerdict,
    LagRow,
    LatencyRow,
    LatencySegment,
    Report,
    Scope,
    SearchAnswer,
    SearchConditions,
    Status,
    TraceAnswer,
    Trajectory,
    VerdictThresholds,
    as_json,
    duration_text,
    export_line,
    moment_text,
)
from .operations import (
    ELECTION_REASONS,
    BrokerAccessAnswer,
    BrokerPolicy,
    BrokerUser,
    ElectedGroup,
    NameServersAnswer,
    ReplicaRow,
    ReplicationAnswer,
)
from .query_text import FIELDS, QueryTextError, SearchField, parse_query, query_text, search_command
from .sources import NoSource, Sources
from .summaries import (
    ClaimProof,
    ClocksAnswer,
    DeadLetter,
    DeadLetterConditions,
    DeadLetterError,
    DeadLettersAnswer,
    HostClock,
    IncidentsAnswer,
    LatencyHistory,
    LatencySpan,
    NeighbourMessage,
    NeighbourRelation,
    NeighboursAnswer,
    ProofAnswer,
    ProofResult,
    Shown,
    ShownIncident,
    SpanCount,
    VerdictHistory,
)
from .views import VIEWS, View, ViewColumn

if TYPE_CHECKING:
    from .lookup import Answers
    from .queries import QueryAnswer, QueryError
    from .row_files import ROW_FORMATS, rows_of, save_export, save_rows

_LATE: Final = {
    "Answers": ".lookup",
    "QueryAnswer": ".queries",
    "QueryError": ".queries",
    "ROW_FORMATS": ".row_files",
    "rows_of": ".row_files",
    "save_export": ".row_files",
    "save_rows": ".row_files",
}
"""Name -> its module. They need DuckDB and Arrow, which take a third of a second to import: at their first use."""

__all__ = [
    "ELECTION_REASONS",
    "FIELDS",
    "ROW_FORMATS",
    "VIEWS",
    "Answers",
    "BrokerAccessAnswer",
    "BrokerHealth",
    "BrokerPolicy",
    "BrokerRow",
    "BrokerSettingsAnswer",
    "BrokerUser",
    "BrokersAnswer",
    "ClaimProof",
    "ClocksAnswer",
    "ClusterAnswers",
    "CodeCount",
    "CodeHealth",
    "CoverageTime",
    "DeadLetter",
    "DeadLetterConditions",
    "DeadLetterError",
    "DeadLettersAnswer",
    "Diagnosis",
    "ElectedGroup",
    "Event",
    "EvidencePlace",
    "GroupOnBroker",
    "GroupRow",
    "GroupTrace",
    "GroupVerdict",
    "GroupWait",
    "GroupsAnswer",
    "HostClock",
    "IncidentsAnswer",
    "InvalidPlace",
    "LagAnswer",
    "LagRow",
    "LatencyHistory",
    "LatencyRow",
    "LatencySegment",
    "LatencySpan",
    "MemberRow",
    "MembersAnswer",
    "NameServersAnswer",
    "NeighbourMessage",
    "NeighbourRelation",
    "NeighboursAnswer",
    "NoSource",
    "ProofAnswer",
    "ProofResult",
    "QueryAnswer",
    "QueryError",
    "QueryTextError",
    "ReplicaRow",
    "ReplicationAnswer",
    "Report",
    "Scope",
    "SearchAnswer",
    "SearchConditions",
    "SearchField",
    "Shown",
    "ShownIncident",
    "Sources",
    "SpanCount",
    "Status",
    "StoredMessage",
    "TopicOnBroker",
    "TopicRow",
    "TopicsAnswer",
    "TraceAnswer",
    "TraceTopicHealth",
    "Trajectory",
    "VerdictHistory",
    "VerdictThresholds",
    "View",
    "ViewColumn",
    "as_json",
    "duration_text",
    "evidence_place",
    "examine",
    "export_line",
    "moment_text",
    "parse_query",
    "query_text",
    "rows_of",
    "save_export",
    "save_rows",
    "search_command",
]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name], __name__), name)
