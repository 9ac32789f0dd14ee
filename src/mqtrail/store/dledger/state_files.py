"""The small files of a member: its term and vote, and its checkpoint, in Java's .properties format.

    <folder>/currterm     voteLeader=n0     the member that got this one's vote in the term, or nothing
                          currTerm=1
    <folder>/checkpoint   committedIndex=41
                          endIndex=41
    <folder>/mqtrail-group   the group that the log belongs to; DLedger's files do not say it

DLedger replaces a file by removing it and renaming <name>.tmp; the previous content stays in <name>.bak. A crash
between the two leaves no file: then the vote is in one of the others. Here a file is replaced durably, in one step.

Source: MemberState, DLedgerMmapFileStore.persistCheckPoint, IOUtils, openmessaging/dledger 0.3.1.2.
"""

from __future__ import annotations

from mqtrail.wire import properties_of

from ..disk import Disk
from ..errors import StoreError

TERM_FILE = "currterm"
CHECKPOINT_FILE = "checkpoint"
GROUP_FILE = "mqtrail-group"
NO_ONE = "-"  # got the vote of a term in which this member must not vote: no member has this id


def check_owner(disk: Disk, folder: str, group: str) -> None:
    """StoreError: there is a log of another member, or this one belongs to another group. Note the group of a new one.

    group "": it is not known.
    """
    others = [name for name in disk.list("") if name.startswith("dledger-") and name != folder]
    if others and not disk.list(folder):
        raise StoreError(
            f"found {', '.join(others)}, expected {folder} or no log: correct dLegerSelfId, or choose another folder"
        )
    path = f"{folder}/{GROUP_FILE}"
    found = (disk.read(path) or b"").decode("utf-8", "replace").strip()
    if group and found not in ("", group):
        raise StoreError(
            f"found the log of group {found} in {folder}, expected that of group {group}: correct dLegerGroup, or "
            "choose another folder"
        )
    if group and not found:
        disk.replace(path, group.encode())


class StateFiles:
    """term, voted: as last set."""

    def __init__(self, disk: Disk, folder: str, end_term: int) -> None:
        """end_term: of the last entry of the log; -1: there is none. StoreError: term and vote are lost."""
        self._disk = disk
        self._folder = folder
        found = self._read_term()
        if found is None and end_term > 0:
            raise StoreError(
                f"found no {folder}/{TERM_FILE}, or no currTerm in it, beside a log with entries of term {end_term}, "
                "expected the member's term and vote: restore the file; or write currTerm=N to it, with N larger than "
                "the term of each member of the group"
            )
        self.term, self.voted = found or (-1, None)
        # Apache's member does not sync the file, and writes none before it votes: its vote in that term is not known.
        if self.term < end_term:
            self.term, self.voted = end_term, NO_ONE
        self.term = max(self.term, 0)
        self._checkpoint = (-1, -1)

    def _read_term(self) -> tuple[int, str | None] | None:
        """Return term and vote; None: no file has them."""
        found = self._parsed(TERM_FILE)
        if found is None:
            kept = [one for name in (".tmp", ".bak") if (one := self._parsed(TERM_FILE + name)) is not None]
            found = max(kept, key=lambda one: one[0]) if kept else None
        return found

    def _parsed(self, name: str) -> tuple[int, str | None] | None:
        fields = self._fields(name)
        term = fields.get("currTerm", "").strip()
        return (int(term), fields.get("voteLeader", "").strip() or None) if term.isdigit() else None

    def _fields(self, name: str) -> dict[str, str]:
        data = self._disk.read(f"{self._folder}/{name}")
        return {} if data is None else properties_of(data.decode("utf-8", "replace"))

    def set_term(self, term: int, voted: str | None) -> None:
        """Keep term and vote, durably."""
        if (term, voted) != (self.term, self.voted):
            text = f"voteLeader={voted or ''}\ncurrTerm={term}\n"
            self._disk.replace(f"{self._folder}/{TERM_FILE}", text.encode())
            self.term, self.voted = term, voted

    def read_committed(self) -> int:
        """Return the committed index of the checkpoint; -1: there is none."""
        committed = self._fields(CHECKPOINT_FILE).get("committedIndex", "").strip()
        return int(committed) if committed.isdigit() else -1

    def note_checkpoint(self, committed_index: int, end_index: int) -> None:
        """Keep up to where the log is committed, durably."""
        if (committed_index, end_index) != self._checkpoint:
            text = f"committedIndex={committed_index}\nendIndex={end_index}\n"
            self._disk.replace(f"{self._folder}/{CHECKPOINT_FILE}", text.encode())
            self._checkpoint = (committed_index, end_index)
