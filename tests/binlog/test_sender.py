"""Lanes: order within a queue, failures repeated in place, checkpoints only after all before them; the state file."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqtrail.binlog import BinlogError, BinlogState, is_running, read_state
from mqtrail.binlog.messages import Checkpoint, Outbound
from mqtrail.binlog.model import BinlogPlace
from mqtrail.binlog.run import _different
from mqtrail.binlog.sender import IN_FLIGHT_COUNT, LaneSender
from mqtrail.binlog.state import alone, save_state, with_gtid
from mqtrail.client import InvalidMessage, SendFailed
from mqtrail.wire import Message, MessageQueue

QUEUES = [MessageQueue("cdc", "broker-a", number) for number in range(3)]


class Queues:
    """Keeps what is sent to each queue. fails: how often each of the next sends raises, after it was stored or not."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.found: dict[int, list[bytes]] = defaultdict(list)
        self.refuses = False
        self._chance = chance

    async def send(self, message: Message | Sequence[Message], *, queue: MessageQueue | None = None) -> Any:
        """As a producer."""
        assert queue is not None
        messages = [message] if isinstance(message, Message) else list(message)
        await asyncio.sleep(0)
        if self.refuses:
            raise InvalidMessage("a body of 9 bytes: expected 1 to 8")
        fate = self._chance.random() if self._chance else 1.0
        if fate >= 0.15:
            self.found[queue.queue_id] += [one.body for one in messages]
        if fate < 0.3:
            raise SendFailed("cdc", "id", [])


def outbound(number: int, key: str | None) -> Outbound:
    """A message whose body is its number."""
    return Outbound(Message("cdc", b"%d" % number), key, str(number), "d.t")


@pytest.mark.parametrize("seed", range(5))
async def test_order_and_checkpoints_under_failures(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each queue has its messages in order, repeats only after themselves; nothing is reported before it is stored."""
    monkeypatch.setattr("mqtrail.binlog.sender.RETRY_S", 0.0)
    chance = random.Random(seed)
    queues = Queues(chance)
    reported: list[Outbound | Checkpoint] = []
    added: list[Outbound | Checkpoint] = []

    def acknowledged(item: Outbound | Checkpoint) -> None:
        reported.append(item)
        if isinstance(item, Outbound):
            stored = [number for number, bodies in queues.found.items() if item.message.body in bodies]
            assert len(stored) == (3 if item.key is None else 1)

    async with LaneSender(queues, QUEUES, acknowledged, 60) as sender:
        for number in range(300):
            key = None if number % 50 == 7 else f"k{chance.randrange(9)}"
            item = Checkpoint(BinlogPlace("bin.1", number), "", 0) if number % 20 == 19 else outbound(number, key)
            added.append(item)
            await sender.add(item)
        await sender.drain()
    assert reported == added
    for bodies in queues.found.values():
        firsts = list(dict.fromkeys(map(int, bodies)))
        assert firsts == sorted(firsts)


async def test_what_is_in_flight_is_bounded() -> None:
    """A broker that does not answer stops the reader."""
    hangs = asyncio.Event()

    class Hanging(Queues):
        async def send(self, message: Message | Sequence[Message], *, queue: MessageQueue | None = None) -> Any:
            await hangs.wait()

    async with LaneSender(Hanging(), QUEUES, lambda item: None, 60) as sender:
        for number in range(IN_FLIGHT_COUNT):
            await sender.add(outbound(number, "k"))
        waiting = asyncio.create_task(sender.add(outbound(0, "k")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        hangs.set()
        await waiting
        await sender.drain()


async def test_a_refused_message_is_named() -> None:
    """No retry would change it: the run ends with its table, key, place and size."""
    queues = Queues()
    queues.refuses = True
    async with LaneSender(queues, QUEUES, lambda item: None, 60) as sender:
        await sender.add(outbound(123456789, "d.t:1"))
        with pytest.raises(BinlogError, match=r"of d\.t, key d\.t:1.*9 bytes.*--exclude-column"):
            await sender.drain()


async def test_a_batch_that_is_too_large_is_sent_in_parts() -> None:
    """Only a message that is too large alone is refused, and what was before it is acknowledged."""

    class Small(Queues):
        async def send(self, message: Message | Sequence[Message], *, queue: MessageQueue | None = None) -> Any:
            sent = [message] if isinstance(message, Message) else message
            if sum(len(one.body) for one in sent) > 4:
                raise InvalidMessage("a batch is too large")
            return await super().send(message, queue=queue)

    queues, reported = Small(), list[Outbound | Checkpoint]()
    async with LaneSender(queues, QUEUES, reported.append, 60) as sender:
        for number in (1, 2222, 3333, 55555, 6):
            await sender.add(outbound(number, "k"))
        with pytest.raises(BinlogError, match="order 55555"):
            await sender.drain()
    assert [bodies for bodies in queues.found.values() if bodies] == [[b"1", b"2222", b"3333"]]
    assert [one.message.body for one in reported if isinstance(one, Outbound)] == [b"1", b"2222", b"3333"]


async def test_retries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """When brokers are away for longer than the bound."""
    monkeypatch.setattr("mqtrail.binlog.sender.RETRY_S", 0.001)
    chance = random.Random(1)
    chance.random = lambda: 0.0  # type: ignore[method-assign]
    async with LaneSender(Queues(chance), QUEUES, lambda item: None, 0.01) as sender:
        await sender.add(outbound(1, "k"))
        with pytest.raises(BinlogError, match="could not send to broker-a/"):
            await sender.drain()


def state() -> BinlogState:
    return BinlogState(
        source="7", wish={"topic": "cdc"}, queues=["broker-a/0"], place="bin.000001:4", counts={"insert": 2}
    )


def test_the_state_file(tmp_path: Path) -> None:
    """It comes back as it was; another file, version or process is refused."""
    path = tmp_path / "state.json"
    assert read_state(path) is None
    assert not is_running(path)
    save_state(path, state())
    assert read_state(path) == state()
    with alone(path):
        assert is_running(path)
        with pytest.raises(BinlogError, match="found another run"), alone(path):
            pass
    assert not is_running(path)
    for text, found in (("", "JSONDecodeError"), ("[]", "AttributeError"), ('{"version":1}', "TypeError")):
        path.write_text(text)
        with pytest.raises(BinlogError, match=found):
            read_state(path)
    path.write_text('{"version": 9}')
    with pytest.raises(BinlogError, match="version 9"):
        read_state(path)


def test_lag_is_in_binlog_time() -> None:
    """Unknown before the first change, zero while the server has nothing new, else the age of the last change."""
    found = state()
    assert found.lag_ms(10_000) is None
    found.event_ms, found.saved_ms = 7_000, 9_000
    assert found.lag_ms(10_000) == 3_000
    found.idle_ms = 9_000
    assert found.lag_ms(10_000) == 0
    assert found.lag_ms(60_000) == 51_000, "nobody has looked since"
    found.event_ms = 9_500
    assert found.lag_ms(10_000) == 500


def test_gtids_have_the_last_one_of_each_domain() -> None:
    """As BINLOG_GTID_POS lists them."""
    found = with_gtid(with_gtid(with_gtid("", "0-1-5"), "3-1-9"), "0-2-6")
    assert found == "0-2-6,3-1-9"


def test_more_may_be_left_out_of_a_state_but_not_less() -> None:
    """Less would leave a gap: the rows that were left out before."""
    known = {"topic": "cdc", "tables": ["a.*"], "excluded": ["a.b"], "columns": []}
    assert _different(known | {"excluded": ["a.b", "a.c"]}, known) == ({}, {})
    assert _different(known | {"excluded": []}, known) == ({"excluded": []}, {"excluded": ["a.b"]})
    assert _different(known | {"tables": ["a.*", "b.*"]}, known)[0] == {"tables": ["a.*", "b.*"]}
