"""What a member asks of its log. `mqtrail.store` has the one on a disk."""

from collections.abc import Sequence
from typing import Protocol

from mqtrail.wire import LedgerEntry, LedgerHead


class LedgerStorage(Protocol):
    """Entries by index, and the member's term and vote. An index of -1, and a term of -1: the log is empty."""

    committed_index: int
    """Up to here the log never changes. The member raises it."""

    @property
    def begin_index(self) -> int: ...

    @property
    def end_index(self) -> int: ...

    @property
    def end_term(self) -> int: ...

    @property
    def durable_index(self) -> int:
        """Index of the last entry that survives power loss."""

    @property
    def term(self) -> int: ...

    @property
    def voted(self) -> str | None: ...

    def set_term(self, term: int, voted: str | None) -> None:
        """Keep term and vote, durably."""

    def place(self, size: int) -> int:
        """Return the position of the next entry, which has so many bytes."""

    def head(self, index: int) -> LedgerHead | None: ...

    def term_at(self, index: int) -> int | None: ...

    def entry(self, index: int) -> LedgerEntry | None: ...

    def entries(self, first: int, count_max: int, size_max: int) -> list[LedgerEntry]: ...

    def append(self, entries: Sequence[LedgerEntry]) -> None:
        """Append entries, all or none."""

    @property
    def is_cutting(self) -> bool:
        """Whether another thread cuts off what `truncate` was called for: nothing else may change the log meanwhile."""

    def truncate(self, index: int) -> str | None:
        """Cut off all entries behind one, durably; return the file with what was cut off. None: see is_cutting."""

    def restart_at(self, entry: LedgerEntry) -> None:
        """Drop the whole log, and begin again with this entry."""
