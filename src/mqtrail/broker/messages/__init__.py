"""Messages in and out: send, send back, pull, query and reply.

held keeps the pulls that wait for a message, broadcasts the offsets of broadcasting groups. protection refuses requests
that have waited too long, and stops groups that read too far back.
"""

from .broadcasts import BroadcastOffsets
from .held import DUE_A_SLICE, HeldPull, HeldPulls, HeldRoom
from .protection import FastFailure, SlowGroups
from .pull import PullMessages
from .query import QueryMessages
from .reply import ReplyMessages
from .send import Admission, SendMessages
from .send_back import SendBack

__all__ = [
    "DUE_A_SLICE",
    "Admission",
    "BroadcastOffsets",
    "FastFailure",
    "HeldPull",
    "HeldPulls",
    "HeldRoom",
    "PullMessages",
    "QueryMessages",
    "ReplyMessages",
    "SendBack",
    "SendMessages",
    "SlowGroups",
]
