"""A feed: it waits for its source, ends in order, and tells at once what its lanes or its state fail with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mqtrail.client import ProducerConfig
from mqtrail.feed import Feed, Lanes
from mqtrail.wire import MQError

from .test_lanes import QUEUES, FeedError, Queues, add


class Away(MQError):
    """The source does not answer."""


class Numbers(Feed):
    """Its work is what a test says. saved: how often the state was saved; fails: that raises."""

    NAME, AWAY, ERROR = "numbers", Away, FeedError

    def __init__(self, queues: Queues, retry_ms: int = 60_000) -> None:
        super().__init__("127.0.0.1:9", ProducerConfig(), retry_ms)
        self.queues = queues
        self.done: list[int] = []
        self.saved = 0
        self.fails = False

    def _state_writer(self) -> Callable[[], None]:
        return self.write

    def write(self) -> None:
        """Count a save, or fail."""
        self.saved += 1
        if self.fails:
            raise OSError("the disk is full")

    def _source_to_check(self) -> str:
        return "the numbers"

    def _progress(self) -> tuple[int, dict[str, Any]]:
        return len(self.done), {}

    async def run(self, work: Callable[[Lanes[int]], Awaitable[None]]) -> None:
        """Do the work."""
        lanes = Lanes[int](
            self.queues,
            QUEUES,
            lambda item, _: self.done.append(item),
            error=FeedError,
            remedy=str,
            retry_s=self._retry_s,
        )
        await self._deliver(lanes, lambda: self._patiently(lambda: work(lanes), lanes))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run.RETRY_S", "run.SAVE_S", "lanes.RETRY_S"):
        monkeypatch.setattr(f"mqtrail.feed.{name}", 0.001)


async def test_a_source_that_comes_back() -> None:
    """It is asked again; what was read before is acknowledged then."""
    feed, asked = Numbers(Queues()), list[list[int]]()

    async def work(lanes: Lanes[int]) -> None:
        asked.append(list(feed.done))
        await add(lanes, len(asked), QUEUES[0])
        if len(asked) < 3:
            raise Away("no answer")

    await feed.run(work)
    assert asked == [[], [1], [1, 2]]
    assert feed.done == [1, 2, 3]
    assert feed.saved


async def test_a_source_that_stays_away() -> None:
    """The run ends when there was no progress for too long."""

    async def work(lanes: Lanes[int]) -> None:
        raise Away("no answer")

    with pytest.raises(FeedError, match="no answer; no progress for 0 s: check the numbers"):
        await Numbers(Queues(), 5).run(work)


async def test_brokers_that_stay_away_while_nothing_is_read() -> None:
    """The run does not wait for the next message."""
    queues = Queues()
    queues.is_away = True

    async def work(lanes: Lanes[int]) -> None:
        await add(lanes, 1, QUEUES[0])
        await asyncio.Event().wait()

    with pytest.raises(FeedError, match="could not send to broker-a/0"):
        await Numbers(queues, 5).run(work)


async def test_a_state_that_cannot_be_saved() -> None:
    """The run ends: what it sends on would be sent again."""
    feed = Numbers(Queues())
    feed.fails = True

    async def work(lanes: Lanes[int]) -> None:
        feed._dirty = True
        await asyncio.Event().wait()

    with pytest.raises(OSError, match="disk is full"):
        await feed.run(work)


async def test_a_slow_disk_does_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save runs in a thread; if its task is cancelled, the last save begins after it has ended."""
    feed, goes_on, begun = Numbers(Queues()), threading.Event(), asyncio.Event()
    loop, writes = asyncio.get_running_loop(), list[str]()

    def write() -> None:
        number = len(writes) // 2
        writes.append(f"{number} begins")
        loop.call_soon_threadsafe(begun.set)
        assert goes_on.wait(10), "the loop is held"
        writes.append(f"{number} ends")

    monkeypatch.setattr(feed, "write", write)

    async def work(lanes: Lanes[int]) -> None:
        feed._dirty = True
        await begun.wait()
        loop.call_later(0.05, goes_on.set)

    await feed.run(work)
    assert writes == ["0 begins", "0 ends", "1 begins", "1 ends"]


async def test_stop() -> None:
    """Work that goes on is cut off after a while, and the state saved; what is acknowledged is in it."""
    feed, is_added = Numbers(Queues()), asyncio.Event()

    async def work(lanes: Lanes[int]) -> None:
        await add(lanes, 1, QUEUES[0])
        is_added.set()
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mqtrail.feed.run.STOP_S", 0.05)
        running = asyncio.create_task(feed.run(work))
        await is_added.wait()
        feed.stop()
        await running
    assert feed.done == [1]
