"""Outbox: write a message in the transaction of the business, and let a relay send it.

`Outbox` adds messages through a connection of the application. `OutboxRelay` sends them in order and marks them.
"""

from .relay import OutboxRelay, RelayConfig, RelayCounts
from .table import OUTBOX_TABLE, Outbox, OutboxEntry, outbox_ddl

__all__ = [
    "OUTBOX_TABLE",
    "Outbox",
    "OutboxEntry",
    "OutboxRelay",
    "RelayConfig",
    "RelayCounts",
    "outbox_ddl",
]
