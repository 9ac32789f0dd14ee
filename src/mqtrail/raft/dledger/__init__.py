"""Consensus over DLedger's own requests, so that a group may have Apache's members too.

`LedgerMember` decides; a `LedgerStorage` that is handed in keeps entries, term and vote. docs/design/dledger.md has the
rules, and what they promise in a mixed group.
"""

from .calls import LedgerAnswer, LedgerCall, LedgerDecided
from .config import LedgerConfig
from .member import LedgerMember
from .port import LedgerCommand, LedgerPort
from .storage import LedgerStorage

__all__ = [
    "LedgerAnswer",
    "LedgerCall",
    "LedgerCommand",
    "LedgerConfig",
    "LedgerDecided",
    "LedgerMember",
    "LedgerPort",
    "LedgerStorage",
]
