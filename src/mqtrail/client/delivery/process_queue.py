"""ProcessQueue: the pulled and unsettled messages of one queue.

Messages may be settled in any order. The lowest unsettled offset may be committed: everything below it is settled.
Source: ProcessQueue, RocketMQ client.
"""

from collections import deque
from collections.abc import Callable, Iterable

from mqtrail.wire import MessageExt, MessageQueue


def _ignore() -> None:
    return None


class ProcessQueue:
    """Pulled and unsettled messages of one queue, by queue offset. Messages are added in ascending order."""

    def __init__(self, queue: MessageQueue, first_offset: int = -1) -> None:
        self.queue = queue
        self.on_room: Callable[[], None] = _ignore  # called after a message was settled
        self.dropped = False  # no longer assigned to this member: results are ignored
        self.closing = False  # being released: no more deliveries, results still count
        self.out = 0  # ordered: messages offered or delivered; one more while the queue is suspended
        self.locked_until = 0.0  # loop time, ordered consumption
        self.last_lock_ms = 0
        self.last_consume_ms = 0
        self.size = 0  # body bytes
        self.expanded_size = 0  # of these, bytes of bodies that were decompressed
        self.handed: dict[int, float] = {}  # queue offset -> loop time at which the application got it
        self.running: set[int] = set()  # queue offsets whose handlers run
        self._messages: dict[int, MessageExt] = {}
        self._order: deque[int] = deque()
        self._next = first_offset

    def __contains__(self, queue_offset: int) -> bool:
        return queue_offset in self._messages

    @property
    def count(self) -> int:
        """Number of unsettled messages."""
        return len(self._messages)

    @property
    def span(self) -> int:
        """Highest minus lowest unsettled offset; 0 for none."""
        return self._order[-1] - self._order[0] if self._order else 0

    @property
    def commit_offset(self) -> int:
        """The offset that may be committed: the lowest unsettled one, else after the last one seen; -1 if none."""
        return self._order[0] if self._order else self._next

    @property
    def next_offset(self) -> int:
        """The offset of the next pull."""
        return self._next

    @property
    def first_offset(self) -> int | None:
        """The lowest unsettled offset."""
        return self._order[0] if self._order else None

    @property
    def last_offset(self) -> int | None:
        """The highest offset kept. Settled messages below it may still be counted."""
        return self._order[-1] if self._order else None

    def put(self, messages: Iterable[MessageExt], end: int) -> list[MessageExt]:
        """Add the matching messages of a pull, which covered offsets up to end; return those that are new."""
        new: list[MessageExt] = []
        for message in messages:
            offset = message.queue_offset
            if offset < self._next:
                continue
            self._next = offset + 1
            self._messages[offset] = message
            self._order.append(offset)
            self.size += len(message.body)
            self.expanded_size += message.expanded_size
            new.append(message)
        self._next = max(self._next, end)
        return new

    def head(self, count: int) -> list[MessageExt]:
        """Return the first unsettled messages, at most count."""
        found: list[MessageExt] = []
        for offset in self._order:
            if len(found) == count:
                break
            message = self._messages.get(offset)
            if message is not None:
                found.append(message)
        return found

    def replace(self, message: MessageExt) -> None:
        """Replace an unsettled message by another form of it (a local retry increments its count)."""
        if message.queue_offset in self._messages:
            self._messages[message.queue_offset] = message

    def remove(self, queue_offset: int) -> int | None:
        """Settle one message; return the offset that may be committed now, or None if the message was not here."""
        message = self._messages.pop(queue_offset, None)
        if message is None:
            return None
        self.size -= len(message.body)
        self.expanded_size -= message.expanded_size
        self.handed.pop(queue_offset, None)
        self.running.discard(queue_offset)
        order, messages = self._order, self._messages
        while order and order[0] not in messages:
            order.popleft()
        return self.commit_offset

    def returned(self, queue_offset: int) -> None:
        """Note that the application has finished a message, whatever its result."""
        self.handed.pop(queue_offset, None)
        self.running.discard(queue_offset)

    def message(self, queue_offset: int) -> MessageExt | None:
        """The unsettled message at an offset; None if there is none."""
        return self._messages.get(queue_offset)
