"""LiteQueue: one queue of a lite pull consumer: the messages pulled and not taken yet, and three offsets.

    settled <= position <= pull_offset

position: after the last message taken by the application. settled: after the last message that the application has
finished, because it has polled again since; auto-commit commits this offset. pull_offset: of the next pull.
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
    """The messages of one pull, which covered offsets up to end; the first `taken` of them are taken."""

    messages: Sequence[MessageExt]
    end: int
    taken: int = 0


class LiteQueue:
    """State of one assigned queue. offset None: the start offset is not known yet."""

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
        """Highest minus lowest offset of the waiting messages."""
        if not self._pulled:
            return 0
        first = self._pulled[0]
        return self._pulled[-1].messages[-1].queue_offset - first.messages[first.taken].queue_offset

    def put(self, messages: Sequence[MessageExt], end: int) -> None:
        """Add the messages of a pull, which covered [pull_offset, end)."""
        self.pull_offset = end
        if messages:
            self._pulled.append(_Pulled(messages, end))
            self.count += len(messages)
            self.size += sum(len(message.body) for message in messages)
            self.expanded_size += sum(message.expanded_size for message in messages)
        elif self._pulled:
            self._pulled[-1].end = end  # no message in between matches
        else:
            self._skip_to(end)

    def _skip_to(self, end: int) -> None:
        """Move position to end: no message waits or matches. Move settled too if all messages before are settled."""
        if end != self.position:
            if self.settled == self.position or not self.last_taken_ms:
                self.settled = end
            self.position = end

    def take(self, count_max: int) -> Sequence[MessageExt]:
        """Return the next messages, all of one pull; this settles those taken before."""
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
        """Settle all messages that the application has taken."""
        if self.settled is not None or self.last_taken_ms:
            self.settled = self.position

    def seek(self, offset: int) -> None:
        """Continue at offset; waiting messages are dropped."""
        self._pulled.clear()
        self.count = self.size = self.expanded_size = 0
        self.pull_offset = self.position = self.settled = offset
        self.room.set()
