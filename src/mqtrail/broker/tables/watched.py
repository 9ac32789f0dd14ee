"""Topics that held pops wait for, including the retry topics of their groups: the writer reports their messages."""

from mqtrail.wire import pop_retry_topic

Waiting = tuple[str, str | None]  # topic; the only group that receives its messages, None: all groups


class HeldPopCounts:
    """Number of held pops, by the topics whose messages end them."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Waiting, int]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self, topic: str) -> list[Waiting]:
        """Return what waits for messages of topic."""
        return list(self._waiting.get(topic, ()))

    def add(self, topic: str, group: str) -> None:
        """Count a held pop of the group for topic."""
        self._count(topic, group, 1)

    def remove(self, topic: str, group: str) -> None:
        """Remove one held pop from the count."""
        self._count(topic, group, -1)

    def _count(self, topic: str, group: str, step: int) -> None:
        for watched, only in (
            (topic, None),
            (pop_retry_topic(topic, group), group),
            (pop_retry_topic(topic, group, v2=True), group),
        ):
            counts = self._waiting.setdefault(watched, {})
            count = counts.get((topic, only), 0) + step
            if count:
                counts[topic, only] = count
            else:
                del counts[topic, only]
                if not counts:
                    del self._waiting[watched]
