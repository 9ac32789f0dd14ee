"""The client without an event loop: blocking twins of producer, consumers and admin, and `QueueReader`.

`facade.py` runs the asyncio client in a background thread. `QueueReader` uses blocking sockets and joins no group.
"""

from .admin import SyncAdmin
from .consumers import SyncBatch, SyncConsumer, SyncDelivery, SyncLitePullConsumer
from .facade import Facade, background, entered, waiting
from .producer import SyncProducer, SyncTransaction, SyncTransactionProducer
from .reader import QueueReader, RateLimit, ReaderConfig

__all__ = [
    "Facade",
    "QueueReader",
    "RateLimit",
    "ReaderConfig",
    "SyncAdmin",
    "SyncBatch",
    "SyncConsumer",
    "SyncDelivery",
    "SyncLitePullConsumer",
    "SyncProducer",
    "SyncTransaction",
    "SyncTransactionProducer",
    "background",
    "entered",
    "waiting",
]
