"""Messages in and out: send, send back, pull, query and reply.

broadcasts keeps the offsets of broadcasting groups. protection refuses requests that have waited too long, and stops
groups that read too far back.
"""

from .broadcasts import BroadcastOffsets
from .protection import FastFailure, SlowGroups, Wait
from .pull import PullMessages
from .query import QueryMessages
from .reply import ReplyMessages
from .send import Admission, SendMessages
from .send_back import SendBack

__all__ = [
    "Admission",
    "BroadcastOffsets",
    "FastFailure",
    "PullMessages",
    "QueryMessages",
    "ReplyMessages",
    "SendBack",
    "SendMessages",
    "SlowGroups",
    "Wait",
]
