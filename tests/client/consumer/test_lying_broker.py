"""Consumers of brokers with impossible replies: they do not spin, do not grow, and lose no message."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from mqtrail.client import Consumer, LitePullConsumer
from mqtrail.client.consumer import PullStatus
from mqtrail.client.consumer.locks import QueueLocks
from mqtrail.client.core import ClientInstance, EmptyAnswers, TopicRoute
from mqtrail.client.core.empty_answers import AT_ONCE_MS, FREE_COUNT, WAIT_MAX_MS, WAIT_MS
from mqtrail.wire import (
    ConsumerIdList,
    LockedQueues,
    MessageQueue,
    QueryAssignmentBody,
    QueueAssignment,
    QueueAssignments,
    QueueOffsets,
    RemotingCommand,
    RequestCode,
    TopicRouteData,
    encode_command,
)
from tests.waiting import until

from ..fake_cluster import FakeBroker, fake_cluster, on_code
from ..fake_pop import FakePop
from .test_consumer import QUICK, committed, put
from .test_lite_pull import LITE
from .test_pull import CODES

QUEUE = MessageQueue("orders", "broker-a", 0)
AT_ONCE_COUNT = FREE_COUNT + 5  # the waits between these answers are longer than AT_ONCE_MS together
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def test_empty_answers_make_pulls_less_frequent() -> None:
    """A few in a row are free; then the wait doubles up to its limit, until a reply has messages or was held."""
    answers = EmptyAnswers()
    waits = [answers.wait_ms(is_empty=True, took_ms=0) for _ in range(FREE_COUNT + 9)]
    assert waits == [0] * FREE_COUNT + [min(WAIT_MS << turn, WAIT_MAX_MS) for turn in range(9)]
    assert answers.wait_ms(is_empty=True, took_ms=AT_ONCE_MS) == 0
    assert [answers.wait_ms(is_empty=True, took_ms=0) for _ in range(FREE_COUNT + 1)][-1] == WAIT_MS
    assert answers.wait_ms(is_empty=False, took_ms=0) == 0
    assert answers.wait_ms(is_empty=True, took_ms=0) == 0


def empty_at_once(status: PullStatus, command: RemotingCommand) -> RemotingCommand:
    offset = command.ext["queueOffset"]
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": offset, "minOffset": "0", "maxOffset": offset}
    return RemotingCommand.reply_to(command, CODES[status], "at once", ext)


@pytest.mark.parametrize(
    ("kind", "status"),
    [*((kind, status) for kind in ("push", "lite") for status in PullStatus), ("pop", PullStatus.NO_NEW_MESSAGE)],
)
async def test_a_broker_that_holds_nothing_is_not_asked_without_end(kind: str, status: PullStatus) -> None:
    """The broker answers eight pulls at once without messages: they take time, and later messages are consumed."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        asked: list[float] = []
        loop = asyncio.get_running_loop()
        pop = FakePop(broker) if kind == "pop" else None

        def script(command: RemotingCommand) -> RemotingCommand | None:
            is_pull = command.code in PULLS and command.ext["topic"] == "orders"
            if (is_pull or command.code == RequestCode.POP_MESSAGE) and len(asked) < AT_ONCE_COUNT:
                asked.append(loop.time())
                if pop is not None:
                    return RemotingCommand.reply_to(command, CODES[status], "at once")
                return empty_at_once(status, command)
            return None if pop is None else pop.script(command)

        broker.script = script
        if kind == "lite":
            async with LitePullConsumer("CG", cluster.namesrv, {"orders": "*"}, config=LITE) as lite:
                await until(lambda: len(asked) == AT_ONCE_COUNT)
                put(broker, "orders", b"x")
                assert [m.body for m in await lite.poll(60_000)] == [b"x"]
        else:
            config = replace(QUICK, client_rebalance=kind == "push", pull_interval_ms=0)
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
                await until(lambda: len(asked) == AT_ONCE_COUNT)
                put(broker, "orders", b"x")
                m = await anext(consumer)
                assert m.body == b"x"
                await m.ack()
        assert asked[-1] - asked[0] >= AT_ONCE_MS / 1000


async def test_assignments_of_other_queues_are_ignored() -> None:
    """Queues of another topic, and of brokers that no route names, start neither a task nor a pull."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"x")
        pop = FakePop(broker, "PULL")
        foreign = [
            MessageQueue("payments", "broker-a", 0),
            MessageQueue("orders", "elsewhere", 0),
            MessageQueue("orders", "broker-a", -7),
            MessageQueue("orders", "broker-a", 1 << 40),
        ]

        def script(command: RemotingCommand) -> RemotingCommand | None:
            if command.code != RequestCode.QUERY_ASSIGNMENT:
                return None
            topic = QueryAssignmentBody.decode(command.body).topic
            mine = [] if topic.startswith("%RETRY%") else [MessageQueue(topic, "broker-a", 0)]
            found = tuple(QueueAssignment(queue, mode) for queue in foreign for mode in ("PULL", "POP"))
            found += tuple(QueueAssignment(queue, "PULL") for queue in mine)
            return RemotingCommand.reply_to(command, 0, body=QueueAssignments(found).encode())

        pop.broker.script = script
        config = replace(QUICK, client_rebalance=False)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            m = await anext(consumer)
            await m.ack()
            await until(lambda: broker.codes().count(RequestCode.QUERY_ASSIGNMENT) > 6)
            assert consumer.assignment == [QUEUE]
        topics = {(command.ext["topic"], command.ext["queueId"]) for command in broker.of(RequestCode.PULL_MESSAGE)}
        assert topics == {("orders", "0")}


@pytest.mark.parametrize("mode", ["PULL", "POP", "client"])
async def test_a_member_takes_a_bounded_number_of_queues(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an assignment or a route of many queues it takes the first ones, keeps them, and reports the others."""
    monkeypatch.setattr("mqtrail.net.log.bursts", {})
    async with fake_cluster({"orders": 4}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker, mode)
        count = 2

        def script(command: RemotingCommand) -> RemotingCommand | None:
            if command.code != RequestCode.QUERY_ASSIGNMENT:
                return pop.script(command)
            topic = QueryAssignmentBody.decode(command.body).topic
            if topic != "orders":
                return RemotingCommand.reply_to(command, 0, body=QueueAssignments(()).encode())
            ids = range(count)[:: -1 if count > 2 else 1]
            found = tuple(QueueAssignment(MessageQueue(topic, "broker-a", number), mode) for number in ids)
            return RemotingCommand.reply_to(command, 0, body=QueueAssignments(found).encode())

        broker.script = script if mode != "client" else lambda command: None
        config = replace(QUICK, client_rebalance=mode == "client", assigned_count_max=3)
        with capture_logs() as logs:
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
                if mode != "client":
                    await until(lambda: len(consumer.assignment) == 2)
                    count = 9
                await until(lambda: [one for one in logs if one["event"] == "consumer.too_many_queues"] != [])
                await until(lambda: len(consumer.assignment) == 3)
                before = broker.codes().count(RequestCode.QUERY_ASSIGNMENT)
                await until(lambda: mode == "client" or broker.codes().count(RequestCode.QUERY_ASSIGNMENT) > before + 2)
                assert consumer.assignment == [replace(QUEUE, queue_id=number) for number in range(3)]
        assert next(one for one in logs if one["event"] == "consumer.too_many_queues")["expected_at_most"] == 3


@pytest.mark.parametrize(("count", "is_loop"), [(2_000, True), (60_000, False)])
async def test_routes_that_claim_many_queues_do_not_hold_the_loop(
    monkeypatch: pytest.MonkeyPatch, count: int, is_loop: bool
) -> None:
    """A few bytes claim them: the route and the shares are computed in a thread, those of usual topics at once."""
    threads: dict[str, set[int]] = {"build": set(), "allocate": set()}
    build = TopicRoute.build

    def noted(topic: str, data: TopicRouteData) -> TopicRoute:
        if topic == "orders":
            threads["build"].add(threading.get_ident())
        return build(topic, data)

    class FirstOnes:
        """Takes two queues, however many there are."""

        name = "FIRST"

        def __call__(
            self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
        ) -> list[MessageQueue]:
            if queues[0].topic == "orders":
                threads["allocate"].add(threading.get_ident())
            return list(queues[:2])

    monkeypatch.setattr(TopicRoute, "build", noted)
    async with fake_cluster({"orders": count}) as cluster:
        put(cluster.brokers[0], "orders", b"x", queue_id=1)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK, allocation=FirstOnes()) as consumer:
            m = await anext(consumer)
            assert m.body == b"x"
            await m.ack()
            assert consumer.assignment == [QUEUE, replace(QUEUE, queue_id=1)]
    for found in threads.values():
        assert {found_in == threading.get_ident() for found_in in found} == {is_loop}


async def test_a_member_that_is_listed_twice_gets_one_share() -> None:
    """No member would consume the share of its second entry."""
    async with fake_cluster({"orders": 4}) as cluster:
        (broker,) = cluster.brokers
        for queue_id in range(4):
            put(broker, "orders", b"%d" % queue_id, queue_id=queue_id)

        def members(command: RemotingCommand) -> RemotingCommand:
            listed = tuple(sorted(broker.groups["CG"])) * 2
            return RemotingCommand.reply_to(command, 0, body=ConsumerIdList(listed).encode())

        broker.script = on_code(RequestCode.GET_CONSUMER_LIST_BY_GROUP, members)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            found: set[bytes] = set()
            while len(found) < 4:
                async with asyncio.timeout(60):
                    m = await anext(consumer)
                found.add(m.body)
                await m.ack()


async def test_locks_that_were_not_requested_are_not_kept() -> None:
    """A lock reply with queues that were not requested leaves nothing in memory."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        others = tuple(MessageQueue("orders", "broker-a", number) for number in range(1_000))

        def lock(command: RemotingCommand) -> RemotingCommand:
            return RemotingCommand.reply_to(command, 0, body=LockedQueues(others).encode())

        broker.script = on_code(RequestCode.LOCK_BATCH_MQ, lock)
        client = ClientInstance(cluster.namesrv)
        await client.route("orders")
        locks = QueueLocks(client, "CG", QUICK)
        assert await locks.lock([QUEUE]) == {QUEUE}
        assert list(locks._locked_until) == [QUEUE]
        await client.close()


async def test_a_reset_to_an_impossible_offset_changes_nothing() -> None:
    """A request to reset (220) ignores offsets below 0 and applies the others."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"a", b"b")
        put(broker, "orders", b"c", b"d", queue_id=1)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            for _ in range(4):
                await (await anext(consumer)).ack()
            await until(lambda: committed(cluster) == {("broker-a", 0): 2, ("broker-a", 1): 2})
            wanted = {QUEUE: -5, MessageQueue("orders", "broker-a", 1): 1}
            reset = RemotingCommand(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                {"topic": "orders", "group": "CG"},
                QueueOffsets(wanted).encode(),
            )
            _write(broker, reset)
            m = await anext(consumer)
            assert m.body == b"d"
            await m.ack()
        commits = {command.ext["commitOffset"] for command in broker.of(RequestCode.UPDATE_CONSUMER_OFFSET)}
        assert "-5" not in commits


def _write(broker: FakeBroker, command: RemotingCommand) -> None:
    for connection in broker.connections:
        connection.write(encode_command(command))
