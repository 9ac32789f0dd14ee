"""Whole runs against a broker with planted faults: the report has each of them, and its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from mqtrail.client import Admin, ClientError, ConsumerConfig, InstanceConfig, ProducerConfig
from mqtrail.load import (
    Arrivals,
    LoadPlan,
    LoadReport,
    LoadRun,
    LoadUnready,
    LoadVerdict,
    Sizes,
    TopicMissing,
    prepare_topic,
)
from mqtrail.load.ledger import SendFate
from mqtrail.load.marks import MarkKind, mark_of
from mqtrail.wire import (
    MessageQueue,
    Refusal,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicOffset,
    TopicStatsTable,
)
from tests.client.fake_cluster import SILENT, FakeBroker, FakeCluster, fake_cluster
from tests.waiting import until

TOPIC = "T"
QUEUES = 3
COUNT = 60
PLAN = LoadPlan(topic=TOPIC, group="G", rate=480, duration_s=COUNT / 480, keys=4, seed=1)
QUICK = InstanceConfig(request_timeout_ms=2_000)
PRODUCER = ProducerConfig(instance=QUICK, send_timeout_ms=10_000)
CONSUMER = ConsumerConfig(instance=QUICK, rebalance_ms=50)

Fault = Callable[[int, RemotingCommand], RemotingCommand | None]


@pytest.fixture(autouse=True)
def every_message_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that stops the test for a while: the end waits for what is due."""
    monkeypatch.setattr("mqtrail.load.run.GRACE_S", 60.0)


@asynccontextmanager
async def stub() -> AsyncIterator[FakeCluster]:
    """A broker that also serves the offsets of the topic."""
    async with fake_cluster({TOPIC: QUEUES}) as running:
        [broker] = running.brokers
        broker.script = script(broker, lambda number, command: None)
        yield running


def script(broker: FakeBroker, fault: Fault) -> Callable[[RemotingCommand], RemotingCommand | None]:
    """Serve the offsets of a topic, and the fault for each message of the load, by its number."""

    def serve(command: RemotingCommand) -> RemotingCommand | None:
        if command.code == RequestCode.GET_TOPIC_STATS_INFO:
            ends = {
                MessageQueue(TOPIC, broker.name, queue_id): TopicOffset(queue.first, queue.end, 0)
                for (topic, queue_id), queue in broker.queues.items()
                if topic == TOPIC
            }
            return RemotingCommand.reply_to(command, 0, body=TopicStatsTable(ends).encode())
        if command.code == RequestCode.SEND_MESSAGE_V2:
            mark = mark_of(command.body)
            if mark is not None and mark.kind == MarkKind.LOAD:
                return fault(mark.number, command)
        return None

    return serve


def not_stored(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    """An acknowledgement for a message that is not there."""
    ext = {"msgId": "7F" * 16, "queueId": command.ext["e"], "queueOffset": "0"}
    return RemotingCommand.reply_to(command, 0, ext=ext)


async def load(cluster: FakeCluster, plan: LoadPlan = PLAN, **more: Any) -> LoadReport:
    return await LoadRun(plan, cluster.namesrv, producer=PRODUCER, consumer=CONSUMER, **more).run()


def codes(report: LoadReport) -> set[str]:
    """The reasons, except that a busy test machine may miss the rate."""
    return {reason.code for reason in report.reasons} - {"RATE_MISSED"}


async def test_all_is_well() -> None:
    """Every message is counted on each side, with its latency; the brokers' processes are not on this machine."""
    async with stub() as cluster:
        report = await load(
            cluster, replace(PLAN, warm_up_s=0.0625, producers=2, consumers=2, sizes=Sizes((100, 3_000)), keys=0)
        )
        counts, latency = report.counts, report.latency
        assert codes(report) == set()
        assert counts.sent == counts.acknowledged == counts.consumed > COUNT
        assert (counts.unread, counts.repeated, counts.damaged, counts.foreign, counts.unsent_read) == (0, 0, 0, 0, 0)
        assert report.statuses == {"SEND_OK": counts.acknowledged}
        assert report.pace.due == COUNT
        assert {one.count for one in latency.values()} == {COUNT - report.pace.not_sent}
        for name in ("p50_ms", "p99_ms", "max_ms"):
            start, store, whole = (getattr(latency[part], name) for part in ("start", "store", "acknowledged"))
            assert max(start, store) <= whole * 1.01 <= (start + store) * 1.03 + 0.1 or name != "max_ms"
        assert sum(one.sent for one in report.by_second) == sum(one.consumed for one in report.by_second) == counts.sent
        assert report.topic_growth == counts.sent
        assert [(one.name, one.process_id is None) for one in report.processes] == [
            ("generator", False),
            ("broker-a", True),
        ]
        [broker] = report.brokers
        assert (broker.stored, broker.read) == (None, None), "it refused to say"


async def test_planted_faults() -> None:
    """One lost, one twice, one damaged, one refused; each is counted exactly, and no other."""
    async with stub() as cluster:
        [broker] = cluster.brokers

        def fault(number: int, command: RemotingCommand) -> RemotingCommand | None:
            if number == 3:
                return not_stored(broker, command)
            if number == 7:
                broker.send(command)  # and the usual code stores it again
            if number == 11:
                broker.send(RemotingCommand(command.code, command.ext, command.body[:-1] + b"?"))
                return not_stored(broker, command)
            if number == 13:
                return RemotingCommand.reply_to(command, ResponseCode.MESSAGE_ILLEGAL, "too large")
            return None

        broker.script = script(broker, fault)
        report = await load(cluster)
        assert report.seconds_run < PLAN.drain_s, "the group has read everything: nothing is waited for"
        assert report.verdict is LoadVerdict.FAILED
        assert codes(report) == {"LOST", "DUPLICATES", "DAMAGED", "NOT_ACKNOWLEDGED"}
        counts = report.counts
        sent = counts.sent
        assert (counts.acknowledged, counts.not_stored, counts.uncertain) == (sent - 1, 1, 0)
        assert (counts.consumed, counts.unread, counts.repeated, counts.damaged) == (sent - 2, 1, 1, 1)
        assert [one.number for one in report.unread] == [3]
        assert report.repeated == (7,)
        assert len(report.unread[0].msg_id) == 32
        [error] = report.errors
        assert (error.kind, error.count) == ("REFUSED 13 MessageIllegal", 1)
        assert "too large" in error.example
        assert report.is_read_to_end is True


async def test_order_by_key() -> None:
    """Two messages of one key that the broker stores in the wrong order are found."""
    async with stub() as cluster:
        [broker] = cluster.brokers
        held: list[RemotingCommand] = []

        def fault(number: int, command: RemotingCommand) -> RemotingCommand | None:
            if number == 20:
                held.append(command)
                return not_stored(broker, command)
            if number == 30:  # stored now, and 20 after it; all messages have one key
                reply = broker.send(command)
                broker.send(held.pop())
                return reply
            return None

        plan = replace(PLAN, keys=1, ordered=True)
        broker.script = script(broker, fault)
        report = await load(cluster, replace(plan, group="G2"))
        assert codes(report) == {"OUT_OF_ORDER"}
        assert report.counts.out_of_order == 1
        loose = await load(cluster, replace(plan, group="G3", ordered=False, consumers=1))
        assert codes(loose) == set(), "without --ordered it is no fault"


async def test_a_key_waits_for_its_answer() -> None:
    """A broker may store two sends of one connection in either order, so a key has one send without an answer."""
    async with stub() as cluster:
        [broker] = cluster.brokers
        run = LoadRun(
            replace(PLAN, keys=1, ordered=True, rate=20_000, duration_s=0.003, producers=2),
            cluster.namesrv,
            producer=PRODUCER,
            consumer=CONSUMER,
        )
        before: list[int] = []

        def fault(number: int, command: RemotingCommand) -> RemotingCommand | None:
            if number:
                before.append(run._ledger._fates[number - 1])
            return None

        broker.script = script(broker, fault)
        report = await run.run()
        assert report.counts.sent == report.counts.consumed == COUNT
        assert before == [SendFate.ACKNOWLEDGED] * (COUNT - 1)
        assert not run._last_of_key


async def test_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send without an answer may be stored: it is neither lost nor a failure of the consumer."""
    monkeypatch.setattr("mqtrail.load.run.UNCERTAIN_QUIET_S", 0.2)
    async with stub() as cluster:
        [broker] = cluster.brokers

        def fault(number: int, command: RemotingCommand) -> RemotingCommand | None:
            if number in (5, 6):
                if number == 5:
                    broker.send(command)
                return SILENT
            return None

        broker.script = script(broker, fault)
        hasty = replace(PRODUCER, send_timeout_ms=400, retry_count=0)
        report = await LoadRun(PLAN, cluster.namesrv, producer=hasty, consumer=CONSUMER).run()
        assert codes(report) == {"NOT_ACKNOWLEDGED"}
        counts = report.counts
        assert (counts.not_stored, counts.unread) == (0, 0)
        assert counts.uncertain >= 2, "a busy machine may time out more"
        assert counts.uncertain - counts.unsettled_read == counts.sent - counts.consumed == 1
        assert [(one.kind, one.count) for one in report.errors] == [("TIMEOUT", counts.uncertain)]


async def test_a_slow_broker_is_waited_for_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound of 2 in flight and no answers, the rate is missed because of the bound, and nothing hangs."""
    monkeypatch.setattr("mqtrail.load.run.GRACE_S", 0.1)
    async with stub() as cluster:
        [broker] = cluster.brokers
        broker.script = script(broker, lambda number, command: SILENT)
        hasty = replace(PRODUCER, send_timeout_ms=300, retry_count=0)
        plan = replace(PLAN, in_flight=2, duration_s=0.25, consumers=0)
        report = await LoadRun(plan, cluster.namesrv, producer=hasty).run()
        [missed] = [reason for reason in report.reasons if reason.code == "RATE_MISSED"]
        assert "2 sends had no answer" in missed.text or "too busy" in missed.text
        assert report.pace.in_flight_most == 2
        assert report.pace.due == report.pace.not_sent + report.counts.sent == 120
        assert report.counts.uncertain == report.counts.sent <= 4
        assert report.verdict is LoadVerdict.FAILED


@pytest.mark.parametrize("is_refused", [True, False])
async def test_what_cannot_be_known(is_refused: bool) -> None:
    """A broker that does not say what it has at the end, or is gone: nobody knows whether a message is lost."""
    async with stub() as cluster:
        [broker] = cluster.brokers
        acknowledged: list[int] = []

        def fault(number: int, command: RemotingCommand) -> RemotingCommand | None:
            acknowledged.append(number)
            return not_stored(broker, command) if number == 1 else None

        usual = script(broker, fault)

        def unread(command: RemotingCommand) -> RemotingCommand | None:
            if command.code == RequestCode.GET_TOPIC_STATS_INFO and acknowledged:
                code = ResponseCode.SYSTEM_ERROR if is_refused else 0
                return RemotingCommand.reply_to(command, code, "scripted", body=TopicStatsTable({}).encode())
            return usual(command)

        broker.script = unread
        report = await load(cluster, replace(PLAN, drain_s=0.7))
        assert (report.is_read_to_end, report.topic_growth) == (None, None)
        assert codes(report) == {"NOT_CONSUMED"}
        assert [one.number for one in report.unread][:1] == [1]


async def test_stopped_early() -> None:
    """The report is that of what was done; what was not due yet is neither late nor missing."""
    async with stub() as cluster:
        run = LoadRun(replace(PLAN, duration_s=600), cluster.namesrv, producer=PRODUCER, consumer=CONSUMER)
        running = asyncio.create_task(run.run())
        await until(lambda: run.pacer.lateness.started >= 10)
        run.stop()
        report = await running
        assert report.is_ended_early
        assert codes(report) == set()
        assert report.counts.sent == report.counts.consumed >= 10
        assert report.pace.due == report.counts.sent + report.pace.not_sent < 100_000
        assert report.seconds_run < 300

        early = LoadRun(PLAN, cluster.namesrv, producer=PRODUCER, consumer=replace(CONSUMER, rebalance_ms=60_000))
        early.stop()
        nothing = await early.run()
        assert (nothing.verdict, codes(nothing)) == (LoadVerdict.UNKNOWN, {"NOTHING_SENT"})


async def test_batches_and_poisson() -> None:
    """A batch has one time; each of its messages has its number."""
    async with stub() as cluster:
        report = await load(cluster, replace(PLAN, batch=10, arrivals=Arrivals.POISSON, duration_s=0.2))
        assert codes(report) == set()
        assert report.counts.sent == report.counts.consumed
        assert report.counts.sent % 10 == 0
        [broker] = cluster.brokers
        assert len(broker.of(RequestCode.SEND_BATCH_MESSAGE)) == report.counts.sent // 10


async def test_a_broker_that_does_not_say_what_it_has() -> None:
    """What is not known about a topic is said; a broker without the topic does not matter."""
    async with fake_cluster({TOPIC: QUEUES}) as cluster, Admin(cluster.namesrv, config=QUICK) as admin:
        found = await prepare_topic(admin, TOPIC, "G", create=False, queues=1)
        assert [text.partition(" on broker-a (")[0] for text in found.unknown] == [
            "its messages",
            "its groups",
            "the members of 'G'",
        ]
        with pytest.raises(TopicMissing, match="--create"):
            await prepare_topic(admin, "other", "G", create=False, queues=1)
        with pytest.raises(ClientError, match="did not create"):
            await prepare_topic(admin, "other", "G", create=True, queues=1)


async def test_nothing_begins_without_a_way_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first probe has the largest size, so a refusal comes before the load; so do queues that are not read."""
    async with stub() as cluster:
        [broker] = cluster.brokers

        def refused(command: RemotingCommand) -> RemotingCommand | None:
            if command.code == RequestCode.SEND_MESSAGE_V2 and len(command.body) > 1_000:
                return RemotingCommand.reply_to(command, ResponseCode.MESSAGE_ILLEGAL, "body of 2000")
            return None

        broker.script = refused
        with pytest.raises(Refusal, match="2000"):
            await load(cluster, replace(PLAN, sizes=Sizes((100, 2_000))))
        monkeypatch.setattr("mqtrail.load.probing.READY_S", 0.1)
        broker.script = lambda command: SILENT if command.code == RequestCode.PULL_MESSAGE else None
        with pytest.raises(LoadUnready, match=f"0 of {QUEUES} queues"):
            await load(cluster, replace(PLAN, group="G4"))
