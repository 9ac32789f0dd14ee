"""The store of a DLedger member, as DLedger 0.3.1.2 keeps it: entries, index, term and vote, checkpoint.

`LedgerLog` is what consensus (`mqtrail.raft`) writes to and reads from, `LedgerStore` what a broker reads of it.
docs/design/dledger.md has the files and what a crash on either side of each step leaves.
"""

from .ledger import LedgerLog
from .store import FIRST_TOPIC, LedgerGate, LedgerStore

__all__ = ["FIRST_TOPIC", "LedgerGate", "LedgerLog", "LedgerStore"]
