"""LiteQueue: one queue of a lite pull consumer: what was pulled and not taken yet, and three offsets.

    settled <= position <= pull_offset

position: behind what the application has taken. settled: behind what it had taken before it came for more, hence has
done with; this is what auto-commit commits. pull_offset: where pulling goes on.
Source: AssignedMessageQueue and ProcessQueue as DefaultLitePullConsumerImpl uses them, RocketMQ client.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mqtrail.wire import MASTER_ID, MessageExt, MessageQueue

from ..core import EmptyAnswers


@dataclass(slots=True)
class _Pulled:
    """What one pull brought of [.., end), taken up to `taken`."""

    messages: Sequence[MessageExt]
    end: int
    taken: int = 0


class LiteQueue:
    """State of one assigned queue. offset None: where to begin is not known yet."""

    def __init__(self, queue: MessageQueue, offset: int | None = None) -> None:
        self.queue = queue
        self.dropped = False
        self.broker_id = MASTER_ID  # where the next pull goes
        self.last_pull_ms = 0
        self.last_taken_ms = 0
        self.open = asyncio.Event()  # not paused
        self.open.set()
        self.room = asyncio.Event()
        self.pull_offset = offset
        self.position = offset
        self.settled: int | None = None
        self.count = 0
        self.size = 0  # body bytes
        self.expanded_size = 0  # of these, bytes of bodies that were decompressed
        self.answers = EmptyAnswers()
        self._pulled: deque[_Pulled] = deque()

    @property
    def span(self) -> int:
        """Highest minus lowest offset that waits."""
        if not self._pulled:
            return 0
        first = self._pulled[0]
        return self._pulled[-1].messages[-1].queue_offset - first.messages[first.taken].queue_offset

    def put(self, messages: Sequence[MessageExt], end: int) -> None:
        """Take what a pull brought of [pull_offset, end)."""
        self.pull_offset = end
        if messages:
            self._pulled.append(_Pulled(messages, end))
            self.count += len(messages)
            self.size += sum(len(message.body) for message in messages)
            self.expanded_size += sum(message.expanded_size for message in messages)
        elif self._pulled:
            self._pulled[-1].end = end  # nothing of what lies between is wanted
        else:
            self._pass_over(end)

    def _pass_over(self, end: int) -> None:
        """Nothing waits, and nothing up to end is wanted: it counts as taken; as done, if all before is."""
        if end != self.position:
            if self.settled == self.position or not self.last_taken_ms:
                self.settled = end
            self.position = end

    def take(self, count_max: int) -> Sequence[MessageExt]:
        """Return the next messages, of one pull; what was taken before counts as done from now on."""
        self.settle()
        if not self._pulled:
            return ()
        pulled = self._pulled[0]
        messages = pulled.messages[pulled.taken : pulled.taken + count_max]
        pulled.taken += len(messages)
        if pulled.taken == len(pulled.messages):
            self._pulled.popleft()
            self.position = pulled.end
        else:
            self.position = messages[-1].queue_offset + 1
        self.count -= len(messages)
        self.size -= sum(len(message.body) for message in messages)
        self.expanded_size -= sum(message.expanded_size for message in messages)
        self.room.set()
        return messages

    def settle(self) -> None:
        """Note that the application is done with all it has taken."""
        if self.settled is not None or self.last_taken_ms:
            self.settled = self.position

    def seek(self, offset: int) -> None:
        """Go on at offset; what waits is forgotten."""
        self._pulled.clear()
        self.count = self.size = self.expanded_size = 0
        self.pull_offset = self.position = self.settled = offset
        self.room.set()
