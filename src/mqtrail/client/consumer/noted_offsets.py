"""The offsets of a consumer in memory, whatever stores them."""

from mqtrail.wire import MessageQueue


class NotedOffsets:
    """What all stores of offsets have in common."""

    def __init__(self) -> None:
        self._memory: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int, *, only_up: bool = True) -> None:
        if not only_up or offset > self._memory.get(queue, -1):
            self._memory[queue] = offset

    def noted(self, queue: MessageQueue) -> int | None:
        return self._memory.get(queue)
