"""The part of the timer store that POP uses."""

from typing import Protocol

from mqtrail.store import PendingRecord


class Timing(Protocol):
    """The timer store (broker.timing). It delivers records in the order of their due times."""

    def divert(self, record: PendingRecord, due_ms: int) -> PendingRecord:
        """Return the record as stored in the timer topic until due_ms. Refusal: the delay is too long."""

    @property
    def kept_ms(self) -> int:
        """Epoch ms. A crash does not repeat records due before it; later ones may be delivered again."""

    def is_behind(self, now_ms: int) -> bool:
        """Return whether a due record is not delivered yet: the store refused it, or there are many."""
