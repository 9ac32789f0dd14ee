"""Degraded producers: messages go to a local file while the cluster is away, and to the brokers in order afterwards."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mqtrail.client import (
    InvalidMessage,
    Message,
    MessageQueue,
    NoNameServer,
    Producer,
    ProducerConfig,
    SendFailed,
    SendStatus,
    SyncProducer,
    TransactionProducer,
    TransactionState,
    held_messages,
)
from mqtrail.client.core import Outgoing, SpoolError, SpoolFull
from mqtrail.client.producer.degraded_file import DegradedFile, HeldMessage, HeldSend
from mqtrail.wire import (
    PROPERTY_UNIQ_KEY,
    MessageIllegal,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SystemError_,
    decode_properties,
)
from tests.waiting import until

from ..fake_cluster import HANG_UP, FakeBroker, FakeCluster, fake_cluster, refuse

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def down(command: RemotingCommand) -> RemotingCommand | None:
    """A broker that hangs up on every send."""
    return HANG_UP if command.code in SENDS else None


def up(command: RemotingCommand) -> RemotingCommand | None:
    return None


def config_of(folder: Path, **settings: Any) -> ProducerConfig:
    base = ProducerConfig(
        degrade=True, degrade_dir=folder, degrade_retry_ms=5, degrade_retry_max_ms=10, retry_count=1, degrade_sync=False
    )
    return replace(base, **settings)


@asynccontextmanager
async def shop(folder: Path, **settings: Any) -> AsyncIterator[tuple[FakeCluster, FakeBroker, Producer]]:
    """A cluster that is down, and a producer that degrades."""
    async with fake_cluster({"orders": 2, "bills": 1}) as cluster:
        (broker,) = cluster.brokers
        broker.script = down
        async with Producer("PG", cluster.namesrv, config=config_of(folder, **settings)) as producer:
            yield cluster, broker, producer


def files(folder: Path, suffix: str = ".spool") -> list[Path]:
    return sorted(folder.rglob(f"*{suffix}"))


async def test_messages_wait_in_a_file_and_keep_their_order_and_ids(tmp_path: Path) -> None:
    """DEGRADED instead of an error; later messages of the key wait too, others are sent; then all arrive in order."""
    async with shop(tmp_path, degrade_retry_ms=100) as (_, broker, producer):
        first = await producer.send(Message("orders", b"0", tags="new", keys="k"), order_key="a")
        assert (first.status, first.offset_msg_id, first.queue_offset) == (SendStatus.DEGRADED, "", -1)
        attempts = len(broker.of(RequestCode.SEND_MESSAGE_V2))
        ids = [first.msg_id]
        for number in range(1, 5):
            ids.append((await producer.send(Message("orders", b"%d" % number), order_key="a")).msg_id)
        assert len(broker.of(RequestCode.SEND_MESSAGE_V2)) == attempts, "they are not to overtake the first"
        broker.script = up
        assert (await producer.send(Message("orders", b"b"), order_key="b")).status is SendStatus.SEND_OK
        assert (await producer.send(Message("orders", b"free"))).status is SendStatus.SEND_OK
        held = producer.degraded
        assert (held.held, held.waiting > 0, held.size > 0) == (5, True, True)
        await until(lambda: producer.degraded.waiting == 0)
        found = [message for message in broker.messages("orders") if message.body.isdigit()]
        assert [(message.body, message.msg_id) for message in found] == [
            (b"%d" % number, msg_id) for number, msg_id in enumerate(ids)
        ]
        assert (found[0].tags, found[0].keys) == ("new", ("k",))
        assert {decode_properties(one.ext["i"])[PROPERTY_UNIQ_KEY] for one in broker.of(310)[:attempts]} == {ids[0]}
        assert producer.degraded.replayed == 5
        await until(lambda: producer.degraded.size == 0)
        assert (await producer.send(Message("orders", b"5"), order_key="a")).status is SendStatus.SEND_OK
    assert files(tmp_path) == []


async def test_without_the_setting_nothing_changes(tmp_path: Path) -> None:
    """The caller gets the error."""
    async with shop(tmp_path, degrade=False) as (_, _, producer):
        with pytest.raises(SendFailed):
            await producer.send(Message("orders", b"x"))
        assert producer.degraded.held == 0
    assert files(tmp_path) == []


async def test_what_is_held_and_what_is_raised(tmp_path: Path) -> None:
    """No route and no name server are held; wrong messages, refusals, requests and half messages are raised."""
    async with shop(tmp_path) as (cluster, broker, producer):
        cluster.name_server.script = refuse(ResponseCode.SYSTEM_ERROR)
        assert (await producer.send(Message("bills", b"x"), order_key="a")).status is SendStatus.DEGRADED
        with pytest.raises(SystemError_):  # a selector cannot be kept
            await producer.send(Message("notes", b"x"), select=lambda queues, message: queues[0])
        cluster.name_server.script = up
        with pytest.raises(InvalidMessage):
            await producer.send(Message("orders", b""))
        with pytest.raises(InvalidMessage):
            await producer.send(Message("bills", b""), order_key="a")
        with pytest.raises(SendFailed):
            await producer.request(Message("orders", b"x"), 1_000)
        broker.script = refuse(ResponseCode.MESSAGE_ILLEGAL)
        with pytest.raises(MessageIllegal):
            await producer.send(Message("orders", b"x"))
        broker.script = down

        async def look_up(message: object) -> TransactionState:
            return TransactionState.ROLLBACK

        async with TransactionProducer("TG", cluster.namesrv, check=look_up, config=producer.config) as transactions:
            with pytest.raises(SendFailed):
                await transactions.begin(Message("orders", b"x"))
        assert producer.degraded.held == 1
    async with Producer("PG2", "127.0.0.1:1", config=config_of(tmp_path)) as lost:
        assert (await lost.send(Message("orders", b"x"))).status is SendStatus.DEGRADED
    async with Producer("PG3", "127.0.0.1:1", config=config_of(tmp_path, degrade=False)) as lost:
        with pytest.raises(NoNameServer):
            await lost.send(Message("orders", b"x"))


async def test_batches_queues_and_selectors(tmp_path: Path) -> None:
    """A batch is held and sent as one; a chosen queue stays the chosen one, and is a lane of its own."""
    async with shop(tmp_path, degrade_retry_ms=100) as (_, broker, producer):
        batch = await producer.send([Message("orders", b"1"), Message("orders", b"2")])
        assert (batch.status, len(batch.msg_ids)) == (SendStatus.DEGRADED, 2)
        queue = MessageQueue("orders", "broker-a", 1)
        fixed = await producer.send(Message("orders", b"3"), queue=queue)
        assert (fixed.status, fixed.queue) == (SendStatus.DEGRADED, queue)
        attempts = len(broker.of(RequestCode.SEND_MESSAGE_V2))
        chosen = await producer.send(Message("orders", b"4"), select=lambda queues, message: queues[1])
        assert (chosen.status, chosen.queue) == (SendStatus.DEGRADED, queue)
        assert len(broker.of(RequestCode.SEND_MESSAGE_V2)) == attempts
        broker.script = up
        other = await producer.send(Message("orders", b"5"), select=lambda queues, message: queues[0])
        assert other.status is SendStatus.SEND_OK
        (outcome,) = await producer.send_all([Message("orders", b"6")])
        assert outcome.stored
        await until(lambda: producer.degraded.waiting == 0)
        messages = broker.messages("orders")
        assert [one.body for one in messages if one.queue_id == 1 and one.body in b"34"] == [b"3", b"4"]
        assert [one.msg_id for one in messages if one.body in (b"1", b"2")] == batch.msg_ids
        assert len(broker.of(RequestCode.SEND_BATCH_MESSAGE)) >= 2


async def test_automatic_batches_are_held_too(tmp_path: Path) -> None:
    """Each caller gets its own message's id."""
    async with shop(tmp_path, auto_batch=True) as (_, broker, producer):
        results = await asyncio.gather(*(producer.send(Message("orders", b"%d" % number)) for number in range(3)))
        assert [(one.status, one.queue_offset) for one in results] == [(SendStatus.DEGRADED, -1)] * 3
        broker.script = up
        await until(lambda: producer.degraded.waiting == 0)
        assert {one.msg_id for one in broker.messages("orders")} == {one.msg_id for one in results}
        broker.script = down
        (outcome,) = await producer.send_all([Message("orders", b"x")])
        assert not outcome.stored


async def test_a_topic_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    """The rest of its own messages waits in order."""
    async with shop(tmp_path) as (_, broker, producer):
        for number in range(3):
            await producer.send(Message("bills", b"%d" % number), order_key="a")
            await producer.send(Message("orders", b"%d" % number), order_key="a")
        broker.script = lambda command: HANG_UP if command.code in SENDS and command.ext["b"] == "bills" else None
        await until(lambda: len(broker.messages("orders")) == 3)
        assert broker.messages("bills") == []
        broker.script = up
        await until(lambda: producer.degraded.waiting == 0)
        assert broker.stored("bills") == [b"0", b"1", b"2"]
        assert broker.stored("orders") == [b"0", b"1", b"2"]


async def test_a_full_file_and_a_full_disk_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the error of the send, with the file's. An ordered message is not sent past the others."""
    async with shop(tmp_path, degrade_size_max=400) as (_, broker, producer):
        assert (await producer.send(Message("orders", b"0"), order_key="a")).status is SendStatus.DEGRADED
        with pytest.raises(SendFailed) as full:
            await producer.send(Message("orders", bytes(400)))
        assert "at most 400 bytes" in full.value.__notes__[0]
        with pytest.raises(SendFailed, match="degrade_size_max"):
            await producer.send(Message("orders", bytes(400)), order_key="a")
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(SendFailed, match="No space left"):
                await producer.send(Message("orders", b"1"), order_key="a")
        assert producer.degraded.waiting == 1
        broker.script = up
        await until(lambda: producer.degraded.waiting == 0)
        assert (await producer.send(Message("orders", b"2"), order_key="a")).status is SendStatus.SEND_OK
        assert broker.stored("orders") == [b"0", b"2"]


async def test_old_and_refused_messages_are_kept_for_people(tmp_path: Path) -> None:
    """They are never dropped: a file has them, and the others go on."""
    async with shop(tmp_path, degrade_age_max_ms=-1) as (_, broker, producer):
        with capture_logs() as logs:
            old = await producer.send(Message("orders", b"old", tags="t"), order_key="a")
            await until(lambda: producer.degraded.kept == 1 and producer.degraded.waiting == 0)
        assert "producer.gave_up" in {entry["event"] for entry in logs}
    (kept,) = files(tmp_path, ".kept")
    (message,) = held_messages(kept)
    assert (message.topic, message.body) == ("orders", b"old")
    assert message.properties[PROPERTY_UNIQ_KEY] == old.msg_id
    async with shop(tmp_path / "two") as (_, broker, producer):
        await producer.send(Message("orders", b"bad"), order_key="a")
        await producer.send(Message("orders", b"good"), order_key="a")
        illegal = refuse(ResponseCode.MESSAGE_ILLEGAL)
        broker.script = lambda command: illegal(command) if command.body == b"bad" else None
        await until(lambda: producer.degraded.waiting == 0)
        assert (producer.degraded.kept, producer.degraded.replayed) == (1, 1)
        assert broker.stored("orders") == [b"good"]
    assert [message.body for message in held_messages(files(tmp_path / "two", ".kept")[0])] == [b"bad"]


async def test_a_failure_in_an_old_file_holds_a_newer_one_up(tmp_path: Path) -> None:
    """A cluster that is back between two sends of one round lets none of them overtake."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        broker.script = down
        config = config_of(tmp_path, degrade_retry_ms=200, degrade_retry_max_ms=200)
        async with Producer("PG", cluster.namesrv, config=config) as producer:
            await producer.send(Message("orders", b"0"), order_key="a")
        before = len(broker.of(RequestCode.SEND_MESSAGE_V2))
        async with Producer("PG", cluster.namesrv, config=config) as producer:
            await until(lambda: len(broker.of(RequestCode.SEND_MESSAGE_V2)) == before + 2)
            assert (await producer.send(Message("orders", b"9"), order_key="a")).status is SendStatus.DEGRADED
            tries = iter(range(2))  # of the first message, which both fail in one round
            broker.script = lambda command: HANG_UP if command.body == b"0" and next(tries, None) is not None else None
            await until(lambda: producer.degraded.waiting == 0)
        assert broker.stored("orders") == [b"0", b"9"]


async def test_the_next_start_sends_what_is_left_first(tmp_path: Path) -> None:
    """A torn tail costs itself only; keys of the old file are not overtaken; another group's files stay."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        broker.script = down
        config = config_of(tmp_path)
        async with Producer("PG", cluster.namesrv, config=config) as producer:
            for number in range(3):
                await producer.send(Message("orders", b"%d" % number), order_key="a")
        (path,) = files(tmp_path)
        os.truncate(path, path.stat().st_size - 3)
        async with Producer("other", cluster.namesrv, config=config) as producer:
            assert producer.degraded.waiting == 0
        with capture_logs() as logs:
            async with Producer("PG", cluster.namesrv, config=config) as producer:
                assert producer.degraded.waiting == 2
                result = await producer.send(Message("orders", b"9"), order_key="a")
                assert result.status is SendStatus.DEGRADED
                broker.script = up
                await until(lambda: producer.degraded.waiting == 0)
        assert "producer.spool_damaged" in {entry["event"] for entry in logs}
        assert broker.stored("orders") == [b"0", b"1", b"9"]
    assert files(tmp_path) == []


async def test_two_producers_of_a_group_have_a_file_each(tmp_path: Path) -> None:
    """A file is locked while its owner lives; then the other takes it over."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        broker.script = down
        config = config_of(tmp_path)
        async with Producer("PG", cluster.namesrv, config=config) as survivor:
            assert survivor._degraded is not None
            async with Producer("PG", cluster.namesrv, config=config) as gone:
                await survivor.send(Message("orders", b"1"))
                await gone.send(Message("orders", b"2"))
                assert len(files(tmp_path)) == 2
                await survivor._degraded._adopt()
                assert survivor.degraded.waiting == 1
            await survivor._degraded._adopt()
            assert survivor.degraded.waiting == 2
            broker.script = up
            await until(lambda: survivor.degraded.waiting == 0)
            assert sorted(broker.stored("orders")) == [b"1", b"2"]


class Heard:
    """A hook that notes attempts."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, str, bool]] = []
        self.send_ids: set[str] = set()

    def send_started(self, out: Outgoing) -> None:
        return None

    def send_complete(self, out: Outgoing, result: Any, cost_ms: int) -> None:
        self.heard.append((out.msg_id, out.attempt, "OK", True))
        self.send_ids.add(out.send_id)

    def send_failed(self, out: Outgoing, failure: Any, *, final: bool) -> None:
        self.heard.append((out.msg_id, out.attempt, failure.outcome, final))

    def send_oneway(self, out: Outgoing, cost_ms: int) -> None:
        return None


async def test_the_trace_shows_the_detour(tmp_path: Path) -> None:
    """One send with rising attempts: failures, the stay in the file (NOT_SENT, not final), and the success."""
    heard = Heard()
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        broker.script = down
        config = config_of(tmp_path, degrade_retry_ms=50)
        async with Producer("PG", cluster.namesrv, config=config, hooks=[heard]) as producer:
            sent = await producer.send(Message("orders", b"x"), order_key="a")
            await until(lambda: len(heard.heard) >= 4)
            broker.script = up
            await until(lambda: producer.degraded.waiting == 0)
    assert {msg_id for msg_id, *_ in heard.heard} == {sent.msg_id}
    outcomes = [(outcome, final) for _, _, outcome, final in heard.heard]
    assert outcomes[:2] == [("TIMEOUT", False), ("NOT_SENT", False)]
    assert outcomes[-1] == ("OK", True)
    assert not any(final for _, final in outcomes[:-1])
    attempts = [attempt for _, attempt, _, _ in heard.heard]
    assert attempts == sorted(set(attempts)), "each attempt has a number of its own"
    assert heard.send_ids != {""}


def test_from_synchronous_code(tmp_path: Path) -> None:
    """The same, without an event loop."""
    with SyncProducer("PG", "127.0.0.1:1", config=config_of(tmp_path)) as producer:
        assert producer.send(Message("orders", b"x")).status is SendStatus.DEGRADED
        assert producer.degraded.waiting == 1


def numbered(number: int) -> HeldSend:
    message = HeldMessage("orders", b"%d" % number, 0, {PROPERTY_UNIQ_KEY: str(number)})
    return HeldSend((message,), False, "", None, None, "", 0, 0)


@given(
    st.lists(st.sampled_from(["add", "add", "take first", "take any", "crash", "tear"]), max_size=40),
    st.randoms(use_true_random=False),
)
def test_any_history_of_a_file_loses_and_repeats_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], chance: random.Random
) -> None:
    """Entries are taken in any order, the process dies, garbage follows the last entry: what is not taken is there."""
    path = tmp_path_factory.mktemp("spool") / "a.spool"
    file = DegradedFile(path, 100_000)
    expected: list[HeldSend] = []
    for number, step in enumerate(steps):
        if step == "add":
            file.add(numbered(number))
            expected.append(numbered(number))
        elif step.startswith("take") and expected:
            wanted = expected[0] if step == "take first" else chance.choice(expected)
            position = 0
            while (found := file.first(position)) is not None:
                held, start, position = found
                if held == wanted:
                    file.remove(held, start, position)
                    expected.remove(wanted)
                    break
        elif path.exists():
            file.abandon()
            if step == "tear":
                with path.open("ab") as end:
                    end.write(chance.randbytes(chance.randrange(1, 30)))
            adopted = DegradedFile.adopt(path, 100_000)
            assert adopted is not None
            file = adopted
        assert file.message_count == len(expected)
    left, position = [], 0
    while (found := file.first(position)) is not None:
        left.append(found[0])
        position = found[2]
    assert left == expected
    file.abandon()


def test_the_bounds_of_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that no reader would take is refused, and a foreign file is left alone."""
    file = DegradedFile(tmp_path / "a.spool", 1_000)
    monkeypatch.setattr(DegradedFile, "entry_size_max", 10)
    with pytest.raises(SpoolError, match="at most 10"):
        file.add(numbered(1))
    monkeypatch.setattr(DegradedFile, "entry_size_max", 10_000)
    while file.size < 950:
        file.add(numbered(1))
    with pytest.raises(SpoolFull):
        file.add(numbered(1))
    file.abandon()
    (tmp_path / "b.spool").write_bytes(b"something else entirely")
    with capture_logs() as logs:
        assert DegradedFile.adopt(tmp_path / "b.spool", 1_000) is None
    assert [entry["event"] for entry in logs] == ["producer.spool_unusable"]
