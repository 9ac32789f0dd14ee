"""Answers for the CLI and the console: look-up in lake and cluster, search, report, export, doctor.

Every answer is one frozen value with its `Scope`: the searched range, omissions, and the time it is of. This room
renders nothing and writes nothing to a cluster.
"""

from .doctor import BrokerHealth, CodeHealth, Diagnosis, GroupTrace, TraceTopicHealth, examine
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
from .row_files import ROW_FORMATS, rows_of, save_export, save_rows
from .views import VIEWS, View, ViewColumn

__all__ = [
    "ROW_FORMATS",
    "VIEWS",
    "Answers",
    "BrokerHealth",
    "ClaimProof",
    "CodeCount",
    "CodeHealth",
    "Diagnosis",
    "Event",
    "GroupTrace",
    "GroupVerdict",
    "LagRow",
    "LatencyRow",
    "ProofAnswer",
    "ProofResult",
    "QueryAnswer",
    "QueryError",
    "Report",
    "Scope",
    "SearchAnswer",
    "SearchConditions",
    "Shown",
    "Status",
    "TraceAnswer",
    "TraceTopicHealth",
    "Trajectory",
    "VerdictThresholds",
    "View",
    "ViewColumn",
    "as_json",
    "examine",
    "export_line",
    "moment_text",
    "rows_of",
    "save_export",
    "save_rows",
]
