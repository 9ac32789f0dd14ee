"""pmq's own interface, for applications with its 5.5 client: its paths, fields and messages, onto our broker.

`desk` keeps who consumes what; `members` those of broadcast groups, also for the plain interface; `interface` has the
operations; `shapes` has their bodies. A pmq id is our queue offset + 1, and a pmq offset, the last id that is done,
equals our consumer offset, the next one to read.

Source: mq-rest and mq-client of github.com/FinVolution/pmq, commit 86e2d93, and exchanges recorded between them.
"""

from .broker import BROADCAST, FAILURE_TRIES, MODE, RETRY_COUNT, PmqBroker, failure_topic, is_broadcast, tries_of
from .desk import Full, PmqDesk, QueueName
from .interface import PmqInterface
from .members import Members, queues_of

__all__ = [
    "BROADCAST",
    "FAILURE_TRIES",
    "MODE",
    "RETRY_COUNT",
    "Full",
    "Members",
    "PmqBroker",
    "PmqDesk",
    "PmqInterface",
    "QueueName",
    "failure_topic",
    "is_broadcast",
    "queues_of",
    "tries_of",
]
