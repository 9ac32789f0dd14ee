"""How much work a request does in one slice (wire/jobs): a few milliseconds."""

from typing import Final

ENTRIES_A_SLICE: Final = 500  # table entries encoded as JSON
NAMES_A_SLICE: Final = 5_000  # names encoded as JSON
TOPICS_A_SLICE: Final = 50  # topics read, even if they have few queues
QUEUES_A_SLICE: Final = 200  # queues read or encoded as JSON
ASSIGNED_A_SLICE: Final = 1_000  # queues of an assignment, encoded as JSON
LOCKS_A_SLICE: Final = 1_000  # queues locked or unlocked
BODY_SIZE_A_SLICE: Final = 64 * 1024  # bytes; after a permission check a larger body is decoded in a later slice
NOTIFIED_A_SLICE: Final = 1_000  # members notified of a change of their group (40)
CHANGES_A_SLICE: Final = 200  # topics or groups created or changed


class SliceCounter:
    """Counts the work of a job, which yields after QUEUES_A_SLICE queues or TOPICS_A_SLICE topics."""

    def __init__(self) -> None:
        self._done = 0.0

    def queue_done(self) -> bool:
        """Count a queue; return whether it is time to yield."""
        return self._add(1 / QUEUES_A_SLICE)

    def topic_done(self) -> bool:
        """Count a topic; return whether it is time to yield."""
        return self._add(1 / TOPICS_A_SLICE)

    def _add(self, part: float) -> bool:
        self._done += part
        if self._done < 1:
            return False
        self._done = 0.0
        return True
