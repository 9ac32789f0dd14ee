"""What POP asks of the timer store: keep a record until its time."""

from typing import Protocol

from mqtrail.store import PendingRecord


class Timing(Protocol):
    """The timer store (broker.timers). It hands records on in order of their due times."""

    def divert(self, record: PendingRecord, due_ms: int) -> PendingRecord:
        """Return the record as it waits in the timer topic until due_ms. Refusal: it may not wait so long."""

    @property
    def kept_ms(self) -> int:
        """What was due before it has been handed on for good; what was due later may come again after a kill."""

    def is_behind(self, now_ms: int) -> bool:
        """Tell whether a record is here that is due: the store refused it, or there are many."""
