"""Lanes: order within a queue, failures repeated in place, acknowledged in order; the state file."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import InvalidMessage, SendFailed, SendResult
from mqtrail.migrate import BridgeState, KafkaRecord, MigrateError, is_running, read_bridge
from mqtrail.migrate.messages import outbound_of
from mqtrail.migrate.sender import IN_FLIGHT_COUNT, BridgeSender, Transit
from mqtrail.migrate.state import BRIDGE, alone, save_bridge
from mqtrail.wire import Message, MessageQueue, SendStatus

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(3)]


class Queues:
    """Keeps what is sent to each queue. chance: some sends raise, after they were stored or not."""

    def __init__(self, chance: random.Random | None = None, size_max: int = 9_999) -> None:
        self.found: dict[MessageQueue, list[bytes]] = defaultdict(list)
        self._chance = chance
        self._size_max = size_max

    async def send(self, message: Message | Sequence[Message], *, queue: MessageQueue | None = None) -> SendResult:
        """As a producer."""
        assert queue is not None
        messages = [message] if isinstance(message, Message) else list(message)
        await asyncio.sleep(0)
        if (size := sum(len(one.body) for one in messages)) > self._size_max:
            raise InvalidMessage(f"a body of {size} bytes: expected 1 to {self._size_max}")
        fate = self._chance.random() if self._chance else 1.0
        first = len(self.found[queue])
        if fate >= 0.15:
            self.found[queue] += [one.body for one in messages]
        if fate < 0.3:
            raise SendFailed("t", "id", [])
        return SendResult(SendStatus.SEND_OK, "id", "id", queue, first)


def unit(number: int, value: bytes | None = None, *, queue: int = 0) -> Transit:
    """A record whose offset and value are its number."""
    record = KafkaRecord("t", 0, number, 0, b"k", value or b"%d" % number)
    return Transit(record, outbound_of(record, "t"), QUEUES[queue])


@pytest.mark.parametrize("seed", range(5))
async def test_order_under_failures(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is reported is stored where it says, in order of add; repeats come after what they repeat."""
    monkeypatch.setattr("mqtrail.migrate.sender.RETRY_S", 0.0)
    chance = random.Random(seed)
    queues = Queues(chance)
    reported: list[int] = []

    def acknowledged(one: Transit) -> None:
        reported.append(one.record.offset)
        if one.queue is not None:
            assert queues.found[one.queue][one.queue_offset] == one.record.value

    async with BridgeSender(queues, QUEUES, acknowledged, 60) as sender:
        for number in range(300):
            one = unit(number, queue=chance.randrange(3))
            await sender.add(Transit(one.record, None) if number % 20 == 19 else one)
        await sender.drain()
    assert reported == list(range(300))
    for bodies in queues.found.values():
        firsts = list(dict.fromkeys(map(int, bodies)))
        assert firsts == sorted(firsts)


async def test_what_is_in_flight_is_bounded() -> None:
    """A broker that does not answer stops the reader."""
    hangs = asyncio.Event()

    class Hanging(Queues):
        async def send(self, message: Message | Sequence[Message], **more: Any) -> SendResult:
            await hangs.wait()
            return await super().send(message, **more)

    async with BridgeSender(Hanging(), QUEUES, lambda one: None, 60) as sender:
        for number in range(IN_FLIGHT_COUNT):
            await sender.add(unit(number))
        waiting = asyncio.create_task(sender.add(unit(0)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        hangs.set()
        await waiting
        await sender.drain()


async def test_a_batch_that_is_too_large_is_sent_in_parts() -> None:
    """Only a message that is too large alone is refused, by its place; what was before it is acknowledged."""
    queues, reported = Queues(size_max=4), list[int]()
    async with BridgeSender(queues, QUEUES, lambda one: reported.append(one.record.offset), 60) as sender:
        for number in (1, 2222, 3333, 55555, 6):
            await sender.add(unit(number))
        with pytest.raises(MigrateError, match=r"refused.*a value of 5 bytes.*--skip-record t:0:55555"):
            await sender.drain()
    assert queues.found[QUEUES[0]] == [b"1", b"2222", b"3333"]
    assert reported == [1, 2222, 3333]


async def test_retries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """When brokers are away for longer than the bound."""
    monkeypatch.setattr("mqtrail.migrate.sender.RETRY_S", 0.001)
    chance = random.Random(1)
    chance.random = lambda: 0.0  # type: ignore[method-assign]
    async with BridgeSender(Queues(chance), QUEUES, lambda one: None, 0.01) as sender:
        await sender.add(unit(1))
        with pytest.raises(MigrateError, match="could not send to broker-a/0 for 0 s"):
            await sender.drain()


def test_the_state_file(tmp_path: Path) -> None:
    """It comes back as it was; another file, version or process is refused."""
    assert read_bridge(tmp_path) is None
    assert not is_running(tmp_path)
    state = BridgeState(cluster="c", topic="t", target="t", order="key", headers="encode", queues=["b/0"])
    assert state.lag() is None
    state.next_offsets, state.ends, state.ends_ms = {"0": 7}, {"0": 9, "1": 3}, 1
    save_bridge(tmp_path, state)
    assert read_bridge(tmp_path) == state
    assert state.lag() == 5
    with alone(tmp_path):
        assert is_running(tmp_path)
        with pytest.raises(MigrateError, match="found another bridge"), alone(tmp_path):
            pass
    assert not is_running(tmp_path)
    for text, found in (("", "JSONDecodeError"), ("[]", "AttributeError"), ('{"version":1}', "other fields")):
        (tmp_path / BRIDGE).write_text(text)
        with pytest.raises(MigrateError, match=found):
            read_bridge(tmp_path)
    (tmp_path / BRIDGE).write_text('{"version": 9}')
    with pytest.raises(MigrateError, match="version 9"):
        read_bridge(tmp_path)
