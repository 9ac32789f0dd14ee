"""Topics that popping clients wait for, the retry topics of their groups too: what the writer tells POP of."""

from mqtrail.wire import pop_retry_topic

Waiting = tuple[str, str | None]  # topic waited for; the one group that what arrives is for, None: it is for all


class Watched:
    """Counts who waits, by the topics whose messages end the wait."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Waiting, int]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self, topic: str) -> list[Waiting]:
        """Return who waits for what arrives in topic."""
        return list(self._waiting.get(topic, ()))

    def add(self, topic: str, group: str) -> None:
        """Note one more request of the group that waits for topic."""
        self._count(topic, group, 1)

    def remove(self, topic: str, group: str) -> None:
        """Note that one of them no longer waits."""
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
