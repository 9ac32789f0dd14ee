"""The tee with our broker and a Kafka in memory: both sides are equal, whatever fails; or the failed copy is known."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import Admin, ClientClosed, NoNameServer, ProducerConfig, ReadFailed, SyncAdmin
from mqtrail.migrate import (
    Bridge,
    BridgeConfig,
    CompareSides,
    Comparison,
    FailedCopy,
    HeaderRule,
    KafkaAway,
    KafkaConfig,
    KafkaRecord,
    MigrateError,
    OrderBy,
    SyncTeeProducer,
    TeeConfig,
    TeeProducer,
    TeeSide,
    compare,
    resend_files,
    waiting_files,
)
from mqtrail.migrate.copies import CopyFile, CopyHead, TeeCopy, ToKafka, ToRocketMQ, read_copies
from mqtrail.migrate.journal import CopyJournal, adopt_journals, read_journal
from mqtrail.migrate.model import SideAway
from mqtrail.migrate.state import alone
from mqtrail.testing import Embedded, embedded
from mqtrail.trail import ProofResult
from mqtrail.wire import MessageExt, MessageQueue, MQError, TopicConfig
from tests.waiting import until

from .fake_kafka import FakeKafka

KAFKA = KafkaConfig("kafka:9092")
tee_module = importlib.import_module("mqtrail.migrate.tee")
Tee = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture
def admin(broker: Embedded) -> Iterator[SyncAdmin]:
    with SyncAdmin(broker.namesrv_address) as one:
        yield one


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    """Three empty partitions."""
    kafka = FakeKafka({0: [], 1: [], 2: []})
    for room in ("bridge", "comparing", "tee"):
        monkeypatch.setattr(f"mqtrail.migrate.{room}.KafkaTopic", kafka.connect)
    for room in ("tee", "left"):
        monkeypatch.setattr(f"mqtrail.migrate.{room}.KafkaWriter", kafka.write)
    monkeypatch.setattr("mqtrail.migrate.copies.RETRY_S", 0.001)
    return kafka


@pytest.fixture
def config(request: pytest.FixtureRequest, admin: SyncAdmin, tmp_path: Path) -> TeeConfig:
    """To a topic of two queues named as the test."""
    target = re.sub(r"\W", "_", request.node.name)
    assert admin.create_topic(TopicConfig(target, 2, 2)).complete
    return TeeConfig(kafka=KAFKA, topic="orders", target=target, folder=tmp_path / "tee", retry_ms=20_000)


@pytest.fixture
def tee(kafka: FakeKafka, broker: Embedded, config: TeeConfig) -> Tee:
    """Opens a tee with changes of the config; its failures are in `failed`."""

    @asynccontextmanager
    async def open_(**changes: Any) -> AsyncIterator[tuple[TeeProducer, list[FailedCopy]]]:
        failed: list[FailedCopy] = []
        changed = replace(config, **changes)
        async with TeeProducer(changed, broker.namesrv_address, on_failed=failed.append) as one:
            yield one, failed

    return open_


async def compared(config: TeeConfig, broker: Embedded, **changes: Any) -> Comparison:
    """Compare both sides, of any age."""
    async with Admin(broker.namesrv_address) as admin:
        wanted = CompareSides(
            kafka=KAFKA, topic="orders", target=config.target, folder=config.folder, grace_ms=0, **changes
        )
        return await compare(wanted, admin)


def read(admin: SyncAdmin, topic: str) -> list[list[MessageExt]]:
    """All messages, by queue."""
    return [list(admin.messages_of_queue(queue, 0, admin.max_offset(queue))) for queue in admin.queues(topic)]


RECORDS: Sequence[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = (
    (b"k 1", b"a", (("trace", b"1"), ("raw", b"\xff"), ("TAGS", b"x"))),
    (b"k 1", None, ()),
    (None, b"b", (("trace", b"2"),)),
    (b"", b"", ()),
    (b"\xff", b"c", ()),
)


@pytest.mark.parametrize("order", OrderBy)
async def test_kafka_decides(
    order: OrderBy, tee: Tee, kafka: FakeKafka, config: TeeConfig, broker: Embedded, tmp_path: Path
) -> None:
    """Each message is the one that the bridge makes of the record, in the same queue and order."""
    async with tee(order=order) as (one, failed):
        for key, value, headers in RECORDS:
            await one.send(value, key=key, headers=headers)
        for number in range(40):
            await one.send(b"v%d" % number, key=b"k%d" % (number % 7))
        counts = await one.drain()
    assert (counts.sent, counts.copied, counts.waiting, failed) == (45, 45, 0, [])
    found = await compared(config, broker)
    assert (found.outcome, found.matched) == (ProofResult.NONE, 45)

    async with Admin(broker.namesrv_address) as admin:
        assert (await admin.create_topic(TopicConfig(f"bridged-{order}", 2, 2))).complete
        target = f"bridged-{order}"
        bridge = BridgeConfig(
            kafka=KAFKA, topic="orders", target=target, folder=tmp_path / "b", order=order, is_once=True
        )
        await Bridge(bridge, broker.namesrv_address, ProducerConfig()).run()
        copies, bridged = [[facts async for facts in _facts(admin, topic)] for topic in (config.target, target)]
    assert sorted(copies) == sorted(bridged)


async def _facts(admin: Admin, topic: str) -> AsyncIterator[tuple[Any, ...]]:
    async for one in admin.messages(topic):
        properties = {name: value for name, value in one.properties.items() if name not in ("UNIQ_KEY", "WAIT")}
        yield one.queue_id, one.body, sorted(properties.items())


@pytest.mark.parametrize("order", OrderBy)
async def test_rocketmq_decides(
    order: OrderBy, tee: Tee, kafka: FakeKafka, config: TeeConfig, broker: Embedded
) -> None:
    """Kafka gets key, value and headers, and the store time of the message; a copy that is dropped is found."""
    async with tee(order=order, decides=TeeSide.ROCKETMQ) as (one, failed):
        for key, value, headers in RECORDS:
            await one.send(value, key=key, headers=headers)
        results = await asyncio.gather(*[one.send(b"v%d" % n, key=b"k%d" % (n % 7)) for n in range(40)])
        await one.drain()
    assert failed == []
    records = [record for partition in kafka.partitions.values() for record in partition if record is not None]
    assert {(one.key, one.value, one.headers) for one in records} >= set(RECORDS)
    async with Admin(broker.namesrv_address) as admin:
        times = {one.body: one.store_timestamp_ms async for one in admin.messages(config.target)}
    assert all(one.timestamp_ms == times[one.value] for one in records if one.value)
    assert all(one.side is TeeSide.ROCKETMQ and one.queue is not None for one in results)
    found = await compared(config, broker)
    assert (found.outcome, found.matched) == (ProofResult.NONE, 45)
    dropped = next(partition for partition in kafka.partitions.values() if partition).pop()
    found = await compared(config, broker)
    assert dropped is not None
    assert (found.outcome, found.counts["extra"]) == (ProofResult.FOUND, 1)


async def test_copies_that_fail(
    tee: Tee, kafka: FakeKafka, config: TeeConfig, broker: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short outage is bridged by retries. After a long one the copies are in the file, and sent again in order."""
    write = ToRocketMQ.write
    failures = 2

    async def failing(self: ToRocketMQ, copies: Sequence[TeeCopy]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise KafkaAway("the broker is away")
        await write(self, copies)

    monkeypatch.setattr(ToRocketMQ, "write", failing)
    async with tee() as (one, failed):
        await one.send(b"v1", key=b"a")
        assert ((await one.drain()).copied, failed) == (1, [])
        failures = 1_000_000
        one.config = replace(one.config, retry_ms=0)
        await one.send(b"v2", key=b"a")
        await one.send(b"other", key=b"b")
        counts = await one.drain()
        assert (counts.copied, counts.failed, counts.lost) == (1, 2, 0)
        assert {(one.place, one.error) for one in failed} >= {("Kafka 1/1", "the broker is away")}
        assert failed[0].path is not None
        with pytest.raises(KafkaAway):
            await one.resend()
        failures = 0
        one.config = config
        monkeypatch.setattr(one, "_down_until_s", 0.0)
        await one.send(b"v3", key=b"a")
        assert (await one.drain()).copied == 1, "it waits behind v2"
        assert failed[-1].error == "an earlier copy of its key failed"
        missing = await compared(config, broker)
        assert (missing.outcome, missing.counts["missing"]) == (ProofResult.FOUND, 3)
        (found,) = waiting_files(config.folder)
        assert (found.count, found.is_open, found.to) == (3, True, TeeSide.ROCKETMQ)
        assert await resend_files(config.folder, None, broker.namesrv_address, ProducerConfig(), 0) == []
        assert (await one.resend()).resent == 3
        assert waiting_files(config.folder) == []
        await one.send(b"v4", key=b"a")
        assert (await one.drain()).copied == 2
    same = await compared(config, broker)
    assert (same.outcome, same.matched) == (ProofResult.NONE, 5)


async def test_copies_to_kafka_that_fail(
    tee: Tee, kafka: FakeKafka, config: TeeConfig, broker: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are sent again with the store time of their message; one whose message has expired has the present time."""
    async with tee(decides=TeeSide.ROCKETMQ, retry_ms=0) as (one, _):
        kafka.errors = [KafkaAway("away")]
        for number in range(3):
            await one.send(b"v%d" % number, key=b"a")
        assert (await one.drain()).failed == 3
    assert kafka.partitions[1] == []
    with pytest.raises(MigrateError, match="expected its address: pass --kafka"):
        await resend_files(config.folder, None, broker.namesrv_address, ProducerConfig(), 0)
    async with Admin(broker.namesrv_address) as admin:
        times = [one.store_timestamp_ms async for one in admin.messages(config.target)]
        queue = next(iter(await admin.queues(config.target)))
        lost = TeeCopy(KafkaRecord("orders", 1, -1, -1, b"k", b"v"), queue, 1_000)
        with pytest.raises(ReadFailed, match="found no message at offset 1000"):
            await ToKafka(kafka.write(KAFKA, "orders"), admin).write([lost])  # type: ignore[arg-type]

        async def later(of: Any) -> int:
            return 2_000

        monkeypatch.setattr(admin, "min_offset", later)
        await ToKafka(kafka.write(KAFKA, "orders"), admin).write([lost])  # type: ignore[arg-type]
    expired = kafka.partitions[1].pop()
    assert expired is not None
    assert expired.timestamp_ms >= max(times)
    (found,) = await resend_files(config.folder, KAFKA, broker.namesrv_address, ProducerConfig(), 0)
    assert (found.sent, found.count) == (3, 0)
    assert [one.timestamp_ms for one in kafka.partitions[1] if one is not None] == times
    assert (await compared(config, broker)).outcome is ProofResult.NONE


async def test_one_that_is_refused(tee: Tee, kafka: FakeKafka, config: TeeConfig, broker: Embedded) -> None:
    """The others are copied; it stays in the file when it is sent again."""
    big = (("h", b"x" * 40_000),)
    async with tee() as (one, failed):
        await asyncio.gather(
            *[one.send(b"v%d" % number, key=b"a", headers=big if number == 3 else ()) for number in range(6)]
        )
        counts = await one.drain()
        assert (counts.copied, counts.failed) == (5, 1)
        assert "found 4" in failed[0].error
        assert (await one.resend()).resent == 0
    (found,) = await resend_files(config.folder, None, broker.namesrv_address, ProducerConfig(), 0)
    assert (found.count, found.sent, "bytes of key and headers" in found.errors[0]) == (1, 0, True)
    compared_ = await compared(config, broker)
    assert {kind: n for kind, n in compared_.counts.items() if n} == {"missing": 1}


async def test_bounds(
    tee: Tee, kafka: FakeKafka, config: TeeConfig, broker: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With copies_max on their way a send waits. A close waits, then keeps the rest in the file, for the command."""
    write, gate = ToRocketMQ.write, asyncio.Event()

    async def slow(self: ToRocketMQ, copies: Sequence[TeeCopy]) -> None:
        await gate.wait()
        await write(self, copies)

    monkeypatch.setattr(ToRocketMQ, "write", slow)
    async with tee(copies_max=2, close_ms=10) as (one, failed):
        await one.send(b"v0", key=b"a")
        cancelled = asyncio.create_task(one.send(b"v1", key=b"a"))
        await until(lambda: len(kafka.partitions[1]) == 2)
        cancelled.cancel()
        third = asyncio.create_task(one.send(b"v2", key=b"a"))
        await until(lambda: one.counts.sent == 2)
        assert (one.counts.waiting, third.done(), len(kafka.partitions[1])) == (2, False, 2)
        gate.set()
        await third
        assert (await one.drain()).copied == 3, "also that of the caller that was cancelled"
        gate.clear()
        await one.send(b"v3", key=b"a")
        await until(lambda: one.counts.sent == 4)
    assert (one.counts.failed, one.counts.waiting) == (1, 0)
    assert [one.error for one in failed] == ["the tee was closed, and had waited 10 ms"]
    with pytest.raises(ClientClosed):
        await one.send(b"v4")
    gate.set()
    (found,) = await resend_files(config.folder, None, broker.namesrv_address, ProducerConfig(), 0)
    assert (found.count, found.sent, list(config.folder.glob("copies-*"))) == (0, 1, [])
    same = await compared(config, broker)
    assert (same.outcome, same.matched) == (ProofResult.NONE, 4)


async def test_the_deciding_side_fails(tee: Tee, kafka: FakeKafka, config: TeeConfig, admin: SyncAdmin) -> None:
    """That is the caller's outcome, and there is no copy."""
    async with tee(copies_max=1) as (one, failed):
        for _ in range(3):
            kafka.errors = [KafkaAway("away")]
            with pytest.raises(KafkaAway):
                await one.send(b"v", key=b"a")
        with pytest.raises(MigrateError, match="without key and value"):
            await one.send(None)
        assert (one.counts.sent, one.counts.waiting) == (0, 0)
    assert (read(admin, config.target), failed) == ([[], []], [])


async def test_a_full_disk(tee: Tee, kafka: FakeKafka, config: TeeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that cannot be kept is counted as lost, and reported so. A callback that fails ends nothing."""
    monkeypatch.setattr("mqtrail.migrate.copies.FILE_SIZE_MAX", 0)

    async def away(self: ToRocketMQ, copies: Sequence[TeeCopy]) -> None:
        raise KafkaAway("away")

    monkeypatch.setattr(ToRocketMQ, "write", away)
    async with tee(retry_ms=0) as (one, failed):
        await one.send(b"v", key=b"a")
        assert ((await one.drain()).lost, one.counts.failed, failed[0].path) == (1, 0, None)
        monkeypatch.setattr(one, "_on_failed", lambda copy: 1 / 0)
        await one.send(b"v", key=b"a")
        assert (await one.drain()).lost == 2


async def test_refused(tee: Tee, kafka: FakeKafka, config: TeeConfig, broker: Embedded, admin: SyncAdmin) -> None:
    """Beside a running bridge, with another order, without a topic: found, expected, remedy."""
    bridge = BridgeConfig(kafka=KAFKA, topic="orders", target=config.target, folder=config.folder, is_once=True)
    await Bridge(bridge, broker.namesrv_address, ProducerConfig()).run()
    with (
        alone(config.folder),
        pytest.raises(MigrateError, match=r"found a running bridge .* stop it when its lag is 0"),
    ):
        async with tee():
            pass
    with pytest.raises(MigrateError, match=r"found cluster, topic, target, order and queues .*expected .*partition"):
        async with tee(order=OrderBy.KEY):
            pass
    with pytest.raises(MigrateError, match="mqtrail topic create none"):
        async with tee(target="none"):
            pass
    async with tee() as (one, _):
        await one.send(b"v", key=b"a")
    assert (await compared(config, broker)).outcome is ProofResult.NONE
    kafka.put("orders", 0, b"k", b"dropped")
    found = await compared(config, broker)
    assert (found.counts["missing"], found.pending) == (1, 0), "the bridge will not send it"


def test_a_damaged_file(config: TeeConfig, tmp_path: Path) -> None:
    """A line that a crash cut is left out; other damage is refused by name."""
    head = CopyHead(topic="t", target="t", to=TeeSide.KAFKA, headers=HeaderRule.REFUSE)
    file = CopyFile(tmp_path, head)
    record = KafkaRecord("t", 1, -1, -1, None, b"\xff", (("h", None), ("h", b"1")))
    copy = TeeCopy(record, MessageQueue("t", "b", 3), 7)
    for _ in range(2):
        file.add(copy, "why")
    file.close()
    assert read_copies(file.path) == (head, [(copy, "why")] * 2)
    file.path.write_bytes(file.path.read_bytes()[:-5])
    assert read_copies(file.path) == (head, [(copy, "why")])
    file.path.write_text('{"version": 2}\n')
    with pytest.raises(MigrateError, match=r"expected a file of `mqtrail.migrate.TeeProducer`"):
        waiting_files(tmp_path)


@pytest.mark.parametrize("is_failed_too", [False, True])
async def test_copies_on_their_way_survive_a_kill(
    is_failed_too: bool,
    tee: Tee,
    kafka: FakeKafka,
    config: TeeConfig,
    broker: Embedded,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The folder as a kill leaves it has each copy that has not arrived: once, in order, and for the command."""
    write, gate, left = ToRocketMQ.write, asyncio.Event(), tmp_path / "left"
    gate.set()
    is_away = is_failed_too

    async def gated(self: ToRocketMQ, copies: Sequence[TeeCopy]) -> None:
        await gate.wait()
        if copies[0].record.value == b"first" and is_away:
            raise KafkaAway("away")
        await write(self, copies)

    monkeypatch.setattr(ToRocketMQ, "write", gated)
    async with tee(retry_ms=0, close_ms=0) as (one, _):
        await one.send(b"arrived", key=b"b")
        await one.send(b"first", key=b"a")
        await one.drain()
        monkeypatch.setattr(one, "_down_until_s", 0.0)
        gate.clear()
        for number in range(3):
            await one.send(b"v%d" % number, key=b"b")
        left.mkdir()
        (journal,) = config.folder.glob("underway-*.jsonl")
        for path in config.folder.glob("*.jsonl"):
            (left / path.name).write_bytes(path.read_bytes())
        with (left / journal.name).open("ab") as file:
            file.write(b'{"n": 9, "p": 1')  # a kill may cut a line
        assert sum(file.count for file in waiting_files(config.folder)) == is_failed_too, "a running tee has the rest"
    assert list(config.folder.glob("underway-*")) == []

    found = waiting_files(left)
    assert [file.count for file in found] == [1, 3] if is_failed_too else [3]
    assert "the process ended before the copy was acknowledged" in found[-1].errors[0]
    adopt_journals(left)
    (left / journal.name).write_bytes(b"")  # as killed while it was created
    gate.set()
    is_away = False
    (sent,) = await resend_files(left, None, broker.namesrv_address, ProducerConfig(), 0)
    assert (sent.sent, sent.count, list(left.iterdir())) == (3 + is_failed_too, 0, [])
    assert (await compared(config, broker)).outcome is ProofResult.NONE


def test_a_journal_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the copies that are not done, in order, whatever it wrote before; a short write spoils one line only."""
    monkeypatch.setattr("mqtrail.migrate.journal.JOURNAL_SIZE", 2_000)
    monkeypatch.setattr("mqtrail.migrate.journal.EMPTY_SIZE", 1_000)
    head = CopyHead(topic="t", target="t", to=TeeSide.ROCKETMQ, headers=HeaderRule.ENCODE)
    journal = CopyJournal(tmp_path, "1-a", head)
    journal.open()
    copies = [TeeCopy(KafkaRecord("t", 1, n, 5, b"k", b"v"), MessageQueue("t", "b", 3)) for n in range(100)]
    numbers = [journal.add(one) for one in copies[:3]]
    for one in copies[3:98]:
        journal.done([journal.add(one)])
    assert journal.path.stat().st_size < 2_500
    journal.done(numbers[:1])
    assert read_journal(journal.path) == (head, copies[1:3])
    with monkeypatch.context() as patched:
        patched.setattr(journal, "_file", Torn(journal._file))
        journal.add(copies[98])
    journal.add(copies[99])
    assert read_journal(journal.path) == (head, [*copies[1:3], copies[99]])
    journal.done(range(100 + 1))
    journal.close()
    assert list(tmp_path.iterdir()) == []


class Torn:
    """A file on a full disk."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return int(self._file.write(data[:7]))


async def test_a_start_after_a_kill(
    tee: Tee, kafka: FakeKafka, config: TeeConfig, broker: Embedded, admin: SyncAdmin
) -> None:
    """Copies of a key that an ended tee left hold later ones back, until they are sent again in order."""
    async with tee(close_ms=0) as (one, _):
        one._down_until_s = float("inf")
        for number in range(2):
            await one.send(b"v%d" % number, key=b"a")
    async with tee() as (one, failed):
        await one.send(b"v2", key=b"a")
        await one.send(b"other", key=b"d")
        assert (await one.drain()).copied == 1
        assert [copy.error for copy in failed] == ["an earlier copy of its key failed"]
        assert (await one.resend()).resent == 3
        await one.send(b"v3", key=b"a")
        await one.drain()
    assert waiting_files(config.folder) == []
    assert [m.body for queue in read(admin, config.target) for m in queue if m.keys[0] == "a"] == [
        b"v0",
        b"v1",
        b"v2",
        b"v3",
    ]


@pytest.mark.parametrize("decides", TeeSide)
async def test_a_start_without_the_other_side(
    decides: TeeSide,
    tee: Tee,
    kafka: FakeKafka,
    config: TeeConfig,
    broker: Embedded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the files of an earlier tee it starts; the copies wait in the file until the other side is back."""
    monkeypatch.setattr("mqtrail.migrate.tee.DOWN_S", 0.001)
    queues_of, is_away = tee_module.queues_of, True

    async def away(*args: Any) -> list[MessageQueue]:
        if is_away:
            raise NoNameServer("found no name server that answers")
        found: list[MessageQueue] = await queues_of(*args)
        return found

    if decides is TeeSide.KAFKA:
        monkeypatch.setattr(tee_module, "queues_of", away)
    else:
        kafka.away = 1_000_000
    with pytest.raises(MQError, match=r"Kafka did not answer|no name server"):
        async with tee(decides=decides):
            pass
    is_away, kafka.away = False, 0
    async with tee(decides=decides) as (one, _):
        await one.send(b"v0", key=b"a")
        await one.drain()
    is_away, kafka.away = True, 1_000_000 if decides is TeeSide.ROCKETMQ else 0
    async with tee(decides=decides) as (one, failed):
        await one.send(b"v1", key=b"a")
        assert (await one.drain()).failed == 1
        assert re.match(r"(kafka|rocketmq) is away: ", failed[0].error)
        with pytest.raises(SideAway, match="the copies stay in"):
            await one.resend()
        is_away, kafka.away = False, 0
        await until(lambda: one._writer is not None)
        await one.send(b"w", key=b"b")
        assert (await one.drain()).copied == 1
        assert (await one.resend()).resent == 1
    found = await compared(config, broker)
    assert (found.outcome, found.matched) == (ProofResult.NONE, 3)


def test_without_asyncio(kafka: FakeKafka, config: TeeConfig, broker: Embedded) -> None:
    """The synchronous tee sends, reports and closes like the asynchronous one."""
    with SyncTeeProducer(config, broker.namesrv_address) as tee:
        assert tee.send(b"v", key=b"a", headers=[("h", b"1")]).side is TeeSide.KAFKA
        with pytest.raises(MigrateError, match="without key and value"):
            tee.send(None)
        assert (tee.drain().copied, tee.counts.sent, tee.resend().resent) == (1, 1, 0)
    with pytest.raises(ClientClosed):
        tee.send(b"v")
    assert asyncio.run(compared(config, broker)).matched == 1
