"""Lanes: order within a queue, failures repeated in place, reports in order of add, the first failure told at once."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from mqtrail.client import InvalidMessage, SendFailed, SendResult
from mqtrail.feed import IN_FLIGHT_COUNT, Lanes
from mqtrail.wire import BatchItem, Message, MessageQueue, MQError, SendStatus, decode_properties

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(3)]


class FeedError(MQError):
    """What lanes raise here."""


class Queues:
    """Keeps what is sent to each queue. fates: below 0.15 a send fails before it is stored, below 0.3 after it."""

    def __init__(self, chance: random.Random | None = None, size_max: int = 9_999) -> None:
        self.found: dict[MessageQueue, list[bytes]] = defaultdict(list)
        self.chance = chance
        self.is_away = False
        self._size_max = size_max

    async def send(self, message: Message | Sequence[Message], *, queue: MessageQueue | None = None) -> SendResult:
        """As a producer."""
        assert queue is not None
        messages = [message] if isinstance(message, Message) else list(message)
        await asyncio.sleep(0)
        if (size := sum(len(one.body) for one in messages)) > self._size_max:
            raise InvalidMessage(f"a body of {size} bytes: expected 1 to {self._size_max}")
        fate = 0.0 if self.is_away else self.chance.random() if self.chance else 1.0
        first = len(self.found[queue])
        if fate >= 0.15:
            self.found[queue] += [one.body for one in messages]
        if fate < 0.3:
            raise SendFailed("t", "id", [])
        return SendResult(SendStatus.SEND_OK, "id", "id", queue, first)

    async def send_encoded(self, topic: str, items: Sequence[BatchItem], *, queue: MessageQueue) -> SendResult:
        """As a producer."""
        messages = [Message(topic, one.body, properties=decode_properties(one.properties)) for one in items]
        return await self.send(messages, queue=queue)


class Reports:
    """What lanes passed on: items, and where they were stored."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.offsets: dict[int, int] = {}

    def __call__(self, item: int, queue_offset: int) -> None:
        self.items.append(item)
        self.offsets[item] = queue_offset


def lanes_of(queues: Queues, reports: Reports, retry_s: float = 60) -> Lanes[int]:
    return Lanes(
        queues, QUEUES, reports, error=FeedError, remedy=lambda item: f"item {item}: leave it out", retry_s=retry_s
    )


async def add(lanes: Lanes[int], number: int, *queues: MessageQueue) -> None:
    """An item whose message's body is its number; without queues it has no message."""
    body = b"%d" % number
    await lanes.add(number, Message("t", body) if queues else None, queues, len(body))


@pytest.mark.parametrize("seed", range(5))
async def test_order_under_failures(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each queue has its messages in order, repeats only after themselves; nothing is reported before it is stored."""
    monkeypatch.setattr("mqtrail.feed.lanes.RETRY_S", 0.0)
    chance = random.Random(seed)
    queues, reports = Queues(chance), Reports()
    to: dict[int, Sequence[MessageQueue]] = {}
    async with lanes_of(queues, reports) as lanes:
        for number in range(300):
            to[number] = {7: QUEUES, 19: ()}.get(number % 20, [chance.choice(QUEUES)])
            await add(lanes, number, *to[number])
        await lanes.drain()
    assert reports.items == list(range(300))
    for number, chosen in to.items():
        stored = [queue for queue, bodies in queues.found.items() if b"%d" % number in bodies]
        assert sorted(stored) == sorted(chosen)
        if len(chosen) == 1:
            assert queues.found[chosen[0]][reports.offsets[number]] == b"%d" % number
        elif not chosen:
            assert reports.offsets[number] == -1
    for bodies in queues.found.values():
        firsts = list(dict.fromkeys(map(int, bodies)))
        assert firsts == sorted(firsts)


async def test_what_is_in_flight_is_bounded() -> None:
    """A broker that does not answer stops who adds."""
    hangs, is_waiting = asyncio.Event(), asyncio.Event()

    class Hanging(Queues):
        async def send(self, message: Message | Sequence[Message], **more: Any) -> SendResult:
            await hangs.wait()
            return await super().send(message, **more)

    async with lanes_of(Hanging(), Reports()) as lanes:
        for number in range(IN_FLIGHT_COUNT):
            await add(lanes, number, QUEUES[0])

        async def one_more() -> None:
            is_waiting.set()
            await add(lanes, 0, QUEUES[0])

        waiting = asyncio.create_task(one_more())
        await is_waiting.wait()
        assert not waiting.done()
        hangs.set()
        await waiting
        await lanes.drain()


async def test_a_batch_that_is_too_large_is_sent_in_parts() -> None:
    """Only a message that is too large alone is refused, and named; what was before it is acknowledged."""
    queues, reports = Queues(size_max=4), Reports()
    async with lanes_of(queues, reports) as lanes:
        for number in (1, 2222, 3333, 55555, 6):
            await add(lanes, number, QUEUES[0])
        with pytest.raises(FeedError, match=r"refused.*5 bytes.*item 55555: leave it out; then start it again"):
            await lanes.drain()
    assert queues.found[QUEUES[0]] == [b"1", b"2222", b"3333"]
    assert reports.items == [1, 2222, 3333]


async def test_retries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """When brokers are away for longer than the bound; whoever waits for the failure knows it, though nothing is
    added."""
    monkeypatch.setattr("mqtrail.feed.lanes.RETRY_S", 0.001)
    queues = Queues()
    queues.is_away = True
    async with lanes_of(queues, Reports(), 0.01) as lanes:
        await add(lanes, 1, QUEUES[0])
        with pytest.raises(FeedError, match="could not send to broker-a/0 for 0 s"):
            await lanes.failure
        with pytest.raises(FeedError):
            await add(lanes, 2, QUEUES[1])
