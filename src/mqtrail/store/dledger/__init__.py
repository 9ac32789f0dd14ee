"""The log of a DLedger member on a disk, as DLedger 0.3.1.2 keeps it: entries, index, term and vote, checkpoint.

`LedgerLog` is what consensus (`mqtrail.raft`) writes to and reads from. docs/design/dledger.md has the files and what a
crash on either side of each step leaves.
"""

from .ledger import LedgerLog

__all__ = ["LedgerLog"]
