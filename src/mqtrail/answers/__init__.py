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
    JudgedWith,
    LagRow,
    LatencyRow,
    Report,
    Scope,
    SearchAnswer,
    SearchFor,
    Status,
    TraceAnswer,
    Trajectory,
    as_json,
    export_line,
    moment_text,
)

__all__ = [
    "Answers",
    "BrokerHealth",
    "CodeCount",
    "CodeHealth",
    "Diagnosis",
    "Event",
    "GroupTrace",
    "GroupVerdict",
    "JudgedWith",
    "LagRow",
    "LatencyRow",
    "Report",
    "Scope",
    "SearchAnswer",
    "SearchFor",
    "Status",
    "TraceAnswer",
    "TraceTopicHealth",
    "Trajectory",
    "as_json",
    "examine",
    "export_line",
    "moment_text",
]
