"""Transactions: half messages, their ends, and checks with producers about half messages without an end.

Topics and records are those of Apache RocketMQ 5: docs/design/transactions.md.
"""

from .records import half_record
from .transactions import Transactions

__all__ = [
    "Transactions",
    "half_record",
]
