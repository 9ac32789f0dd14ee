"""Consumers: join a group, divide the queues, pull them, run the handlers, commit offsets.

`Consumer` serves handlers and `async for`; `LitePullConsumer` lets the application poll. `allocate.py` holds the
strategies that divide the queues, `pull.py` the pull request and its reply.
"""

from .allocate import Allocation, Averagely, ByCircle, Configured, ConsistentHash, MachineRoom, MachineRoomNearby
from .consumer import Consumer
from .handlers import BatchHandler, Handler
from .listening import RebalanceListener
from .lite_pull import LitePullConsumer
from .offsets import in_waves
from .pull import PullResult, PullStatus, read_pull_reply
from .subscriptions import Expression, Sql

__all__ = [
    "Allocation",
    "Averagely",
    "BatchHandler",
    "ByCircle",
    "Configured",
    "ConsistentHash",
    "Consumer",
    "Expression",
    "Handler",
    "LitePullConsumer",
    "MachineRoom",
    "MachineRoomNearby",
    "PullResult",
    "PullStatus",
    "RebalanceListener",
    "Sql",
    "in_waves",
    "read_pull_reply",
]
