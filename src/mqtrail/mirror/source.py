"""Reads the queues of the source, and changes nothing there: it joins no group and commits no offset."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from mqtrail.client import Admin, MessageExt, MessageQueue, PullStatus, RouteNotFound
from mqtrail.wire import MQError, Refusal

from .model import ClusterAway, MirrorError

READERS: Final = 8  # pulls under way or not yet taken, each of at most PULL_COUNT messages
EXPANDED_SIZE: Final = 8 * 1024 * 1024  # bytes of decompressed bodies of one pull; the first body may be larger
PULL_COUNT: Final = 256  # messages of one pull; Apache's brokers return 32, or 8 from disk


class QueuePart(NamedTuple):
    """The messages of a queue at [start, next_offset). end: of the queue, as of then."""

    queue: MessageQueue
    messages: list[MessageExt]
    next_offset: int
    end: int


class SourceRanges(NamedTuple):
    """By queue, the first offset that is kept, and the end. away: brokers that did not answer."""

    found: dict[MessageQueue, tuple[int, int]]
    away: list[str]


@contextmanager
def answers(what: str) -> Iterator[None]:
    """Convert errors of the source. ClusterAway, MirrorError."""
    try:
        yield
    except (MirrorError, ClusterAway):
        raise
    except RouteNotFound as error:
        raise MirrorError(f"found no {what} in the source, expected it: check its name: {error}") from error
    except Refusal as error:
        if error.retryable:
            raise ClusterAway(f"the source refused a request for the {what}: {error}") from error
        raise MirrorError(
            f"the source refused a request for the {what}: {error}: expected the right to read it: check "
            "--source-config"
        ) from error
    except (MQError, OSError, TimeoutError) as error:
        why = error or type(error).__name__
        raise ClusterAway(f"the source did not answer a request for the {what}: {why}") from error


class MirrorSource:
    """The topics of the source."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def ranges(self, topics: list[str]) -> SourceRanges:
        """Return what the readable queues keep. ClusterAway: no broker answers; MirrorError: there is no such topic."""
        found: dict[MessageQueue, tuple[int, int]] = {}
        away: set[str] = set()
        for topic in topics:
            with answers(f"topic {topic!r}"):
                stats = await self._admin.topic_stats(topic)
                if stats.failures and not stats.found:
                    raise next(iter(stats.failures.values()))
                readable = set(await self._admin.queues(topic))
            away |= set(stats.failures)
            for broker, table in stats.found.items():
                for one, ends in table.offset_table.items():
                    queue = MessageQueue(topic, broker, one.queue_id)
                    if queue in readable:
                        found[queue] = max(0, ends.min_offset), max(0, ends.max_offset)
        return SourceRanges(dict(sorted(found.items())), sorted(away))

    async def at_time(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message stored then or later, else the end. ClusterAway, MirrorError."""
        with answers(f"topic {queue.topic!r}"):
            return await self._admin.offset_by_time(queue, time_ms)

    async def read(
        self,
        positions: Mapping[MessageQueue, int],
        ends: Mapping[MessageQueue, int],
        until_s: float,
        *,
        follows: bool,
    ) -> AsyncGenerator[QueuePart]:
        """Yield the messages up to the ends, each queue in order, the queues by turns. ClusterAway, MirrorError.

        The next pull of a queue is under way while a part is used; so at most READERS parts wait in memory. until_s: of
        time.monotonic; afterwards only what is under way is yielded. follows: read on to what queues get meanwhile.
        """
        ends = dict(ends)
        waiting = deque((queue, at) for queue, at in positions.items() if at < ends[queue])
        pulls: deque[asyncio.Task[QueuePart]] = deque()

        def fill() -> None:
            while waiting and len(pulls) < READERS and time.monotonic() < until_s:
                queue, at = waiting.popleft()
                pulls.append(asyncio.create_task(self._pull(queue, at, ends[queue])))

        try:
            fill()
            while pulls:
                part = await pulls[0]
                pulls.popleft()
                if follows:
                    ends[part.queue] = max(ends[part.queue], part.end)
                if part.next_offset < ends[part.queue]:
                    waiting.append((part.queue, part.next_offset))
                fill()
                yield part
        finally:
            for task in pulls:
                task.cancel()
            await asyncio.gather(*pulls, return_exceptions=True)

    async def _pull(self, queue: MessageQueue, offset: int, end: int) -> QueuePart:
        with answers(f"topic {queue.topic!r}"):
            result = await self._admin.pull(queue, offset, min(PULL_COUNT, end - offset))
            opened = list(result.open(queue, offset, expanded_size_max=EXPANDED_SIZE))
        is_whole = len(opened) == len(result.records)  # else the others are pulled again
        next_offset = result.next_offset if is_whole else opened[-1].queue_offset + 1
        is_moved = result.status is PullStatus.OFFSET_MOVED  # the queue lost messages since its range was read
        if is_moved or next_offset <= offset:
            raise ClusterAway(
                f"found {result.status} and the next offset {result.next_offset} for a pull at {offset} of {queue}, "
                f"expected messages up to {end}"
            )
        messages = [one for one in opened if one.queue_offset < end]
        return QueuePart(queue, messages, min(end, next_offset), result.max_offset)
