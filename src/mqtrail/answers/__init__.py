"""Answers for the CLI and the console: look-up in lake and cluster, search, report, export, doctor.

Every answer is one frozen value with its `Scope`: the searched range, omissions, and the time it is of. This room
renders nothing and writes nothing to a cluster.
"""

from .cluster import (
    BrokerRow,
    BrokersAnswer,
    ClusterAnswers,
    GroupOnBroker,
    GroupRow,
    GroupsAnswer,
    GroupWait,
    LagAnswer,
    MemberRow,
    MembersAnswer,
    StoredMessage,
    TopicOnBroker,
    TopicRow,
    TopicsAnswer,
)
from .doctor import BrokerHealth, CodeHealth, Diagnosis, GroupTrace, TraceTopicHealth, examine
from .history import SpanCount, VerdictHistory
from .incidents import IncidentsAnswer, ShownIncident
from .lookup import Answers
from .model import (
    CodeCount,
    Event,
    GroupVerdict,
    LagRow,
    LatencyRow,
    Report,
    Scope,
    SearchAnswer,
    SearchConditions,
    Status,
    TraceAnswer,
    Trajectory,
    VerdictThresholds,
    as_json,
    export_line,
    moment_text,
)
from .proving import ClaimProof, ProofAnswer, ProofResult, Shown
from .queries import QueryAnswer, QueryError
from .query_text import FIELDS, QueryTextError, SearchField, parse_query, query_text, search_command
from .row_files import ROW_FORMATS, rows_of, save_export, save_rows
from .views import VIEWS, View, ViewColumn

__all__ = [
    "FIELDS",
    "ROW_FORMATS",
    "VIEWS",
    "Answers",
    "BrokerHealth",
    "BrokerRow",
    "BrokersAnswer",
    "ClaimProof",
    "ClusterAnswers",
    "CodeCount",
    "CodeHealth",
    "Diagnosis",
    "Event",
    "GroupOnBroker",
    "GroupRow",
    "GroupTrace",
    "GroupVerdict",
    "GroupWait",
    "GroupsAnswer",
    "IncidentsAnswer",
    "LagAnswer",
    "LagRow",
    "LatencyRow",
    "MemberRow",
    "MembersAnswer",
    "ProofAnswer",
    "ProofResult",
    "QueryAnswer",
    "QueryError",
    "QueryTextError",
    "Report",
    "Scope",
    "SearchAnswer",
    "SearchConditions",
    "SearchField",
    "Shown",
    "ShownIncident",
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
