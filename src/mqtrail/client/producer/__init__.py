"""Producers: check and compose a message, choose a queue, send it with retries, batch it, or send it transactionally.

`Producer` and `TransactionProducer` are the public classes; `Sender` makes the attempts.
"""

from .degraded import DegradedCounts
from .degraded_file import held_messages
from .producer import Producer
from .selectors import Selector, by_hash, by_machine_room, by_random
from .sending import Sender
from .splitting import BatchOutcome, split_batches
from .transactions import (
    CheckHandler,
    LocalHandler,
    Transaction,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)

__all__ = [
    "BatchOutcome",
    "CheckHandler",
    "DegradedCounts",
    "LocalHandler",
    "Producer",
    "Selector",
    "Sender",
    "Transaction",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "by_hash",
    "by_machine_room",
    "by_random",
    "held_messages",
    "split_batches",
]
