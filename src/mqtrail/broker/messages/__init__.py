"""Messages in and out: send, send back, pull, query and reply.

broadcasts keeps the offsets of broadcasting groups. protection refuses requests that waited too long, and stops groups
that are too far behind. retries decides when a message goes to the dead letters.
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
