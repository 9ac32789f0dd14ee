"""The HTTP door of a broker: JSON <-> the same requests as those of RocketMQ clients. It decides nothing itself.

Groups, offsets, retries, dead letters and the trace topic are the broker's. The door reaches it by a `Caller`, which
the node gives it. Also here: what every HTTP server of mqtrail needs (problem details, the guard, the bounds of
connections).
"""

from .app import make_door
from .caller import Caller
from .config import DoorConfig
from .gate import Gate, GateRules, new_token, read_rules
from .guard import HOSTS, LocalGuard
from .http_server import http_settings
from .mail_server import Deadline, MailServer, send_mail
from .operator import DoorDatabase, Facts, QueueKeeper
from .problems import (
    RESPONSES,
    DescribedApi,
    Problem,
    ProblemDetails,
    VisibleJson,
    add_problems,
    described,
    problem_response,
)

__all__ = [
    "HOSTS",
    "RESPONSES",
    "Caller",
    "Deadline",
    "DescribedApi",
    "DoorConfig",
    "DoorDatabase",
    "Facts",
    "Gate",
    "GateRules",
    "LocalGuard",
    "MailServer",
    "Problem",
    "ProblemDetails",
    "QueueKeeper",
    "VisibleJson",
    "add_problems",
    "described",
    "http_settings",
    "make_door",
    "new_token",
    "problem_response",
    "read_rules",
    "send_mail",
]
