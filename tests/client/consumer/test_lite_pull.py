"""LitePullConsumer: polls, iteration, seeks, commits of delivered messages only, subscribed or assigned queues."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client import (
    ClientClosed,
    ClientError,
    ConsumeFromWhere,
    InstanceConfig,
    LitePullConfig,
    LitePullConsumer,
    MessageModel,
    Sql,
    SyncLitePullConsumer,
    TraceConfig,
)
from mqtrail.client.consumer.lite_queue import LiteQueue
from mqtrail.client.core.errors import OffsetUnavailable
from mqtrail.wire import (
    HeartbeatData,
    MessageExt,
    MessageQueue,
    QueueOffsets,
    RemotingCommand,
    RequestCode,
    decode_trace,
    encode_command,
)
from tests.waiting import until

from ..core.test_parts import message
from ..fake_cluster import fake_cluster, on_code, refuse
from ..sync.test_sync import cluster_in_a_thread
from .test_consumer import committed, put

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(2)]
FIRST, SECOND = QUEUES
LITE = LitePullConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    rebalance_ms=50,
    offset_persist_ms=20,
    pull_error_ms=10,
    flow_control_ms=5,
    poll_timeout_ms=5_000,
    instance=InstanceConfig(route_refresh_ms=50, heartbeat_ms=50),
)


def lite(namesrv: str, *arguments: Any, **changes: Any) -> LitePullConsumer:
    return LitePullConsumer("CG", namesrv, *arguments, config=replace(LITE, **changes))


async def bodies_of(consumer: LitePullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [one.body for one in await consumer.poll()]
    return found


async def test_polls_give_what_is_there() -> None:
    """A poll returns each queue's messages in order, at most the requested number, and none after the timeout."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        for queue_id in range(2):
            put(broker, "orders", *(b"%d%d" % (queue_id, number) for number in range(25)), queue_id=queue_id)
        async with lite(cluster.namesrv, {"orders": "*"}) as consumer:
            got: list[MessageExt] = []
            while len(got) < 50:
                messages = await consumer.poll(count_max=7)
                assert 1 <= len(messages) <= 7
                assert len({one.queue_id for one in messages}) == 1
                got += messages
            for queue_id in range(2):
                mine = [one.body for one in got if one.queue_id == queue_id]
                assert mine == [b"%d%d" % (queue_id, number) for number in range(25)]
            assert await consumer.poll(timeout_ms=20) == []
            put(broker, "orders", b"late")
            assert await bodies_of(consumer, 1) == [b"late"]
        ext = broker.of(RequestCode.LITE_PULL_MESSAGE)[0].ext
        assert (ext["sysFlag"], ext["subVersion"], ext["maxMsgNums"]) == ("22", "0", "10")
        assert (ext["suspendTimeoutMillis"], ext["subscription"]) == ("20000", "*")
        beat = HeartbeatData.decode(broker.of(RequestCode.HEART_BEAT)[0].body)
        (data,) = beat.consumer_data_set
        assert (data.consume_type, [one.topic for one in data.subscription_data_set]) == (
            "CONSUME_ACTIVELY",
            ["orders"],
        )
        assert not broker.groups["CG"]


async def test_auto_commit_follows_the_next_call() -> None:
    """Polled messages are committed at the next poll; at the end, only those that were followed by another poll."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", *(b"%d" % number for number in range(25)))
        async with lite(cluster.namesrv, {"orders": "*"}) as consumer:
            assert len(await consumer.poll()) == 10
            # only what is noted is committed, and the application may still be at work on these
            assert consumer.consumer_offsets() == {}
            assert committed(cluster) == {}
            assert len(await consumer.poll()) == 10
        assert committed(cluster) == {("broker-a", 0): 10}
        async with lite(cluster.namesrv, {"orders": "*"}) as consumer:
            bodies = []
            async for one in consumer:
                bodies.append(one.body)
                if len(bodies) == 5:
                    break
            await consumer.commit()
            assert committed(cluster) == {("broker-a", 0): 15}
        assert bodies == [b"%d" % number for number in range(10, 15)]


async def test_commits_by_hand() -> None:
    """Without auto_commit only explicit commits count; they raise on failure."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1", b"2")
        async with lite(cluster.namesrv, {"orders": "*"}, auto_commit=False) as consumer:
            assert await consumer.committed(FIRST) is None
            assert await bodies_of(consumer, 3) == [b"0", b"1", b"2"]
            assert await consumer.poll(timeout_ms=1) == []
            assert committed(cluster) == {}
            await consumer.commit({FIRST: 2})
            assert committed(cluster) == {("broker-a", 0): 2}
            assert await consumer.committed(FIRST) == 2
            assert consumer.position(FIRST) == 3
            await consumer.commit()
            assert committed(cluster) == {("broker-a", 0): 3}
            with pytest.raises(ClientError, match="not assigned"):
                await consumer.commit({MessageQueue("orders", "broker-a", 9): 1})
            broker.script = on_code(RequestCode.UPDATE_CONSUMER_OFFSET, refuse(1, "no"))
            with pytest.raises(Exception, match="no"):
                await consumer.commit({FIRST: 1})
            broker.script = lambda command: None
        assert committed(cluster)["broker-a", 0] in (1, 3)
    with pytest.raises(ClientClosed):
        await consumer.poll()


async def test_places_in_a_queue() -> None:
    """Seek drops pulled messages; begin, end, a time and an offset are valid; an offset outside of the queue is an
    error."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", *(b"%d" % number for number in range(8)))
        kept = broker.queues["orders", 0]
        kept.first, kept.records = 2, kept.records[2:]
        broker.offsets["CG", "orders", 0] = 5
        async with lite(cluster.namesrv, {"orders": "*"}) as consumer:
            assert await bodies_of(consumer, 3) == [b"5", b"6", b"7"]
            await consumer.seek(FIRST, 4)
            assert consumer.position(FIRST) == 4
            assert await bodies_of(consumer, 4) == [b"4", b"5", b"6", b"7"]
            await consumer.seek_to_begin(FIRST)
            assert (await bodies_of(consumer, 6))[0] == b"2"
            await consumer.seek(FIRST, 3)
            await consumer.seek_to_end(FIRST)
            put(broker, "orders", b"8")
            assert await bodies_of(consumer, 1) == [b"8"]
            assert await consumer.begin_offset(FIRST) == 2
            assert await consumer.end_offset(FIRST) == 9
            assert await consumer.offset_for_timestamp(FIRST, 1_000) == 2
            assert await consumer.offset_for_timestamp(FIRST, 3_000) == 9
            for offset in (1, 10):
                with pytest.raises(OffsetUnavailable, match="to seek to"):
                    await consumer.seek(FIRST, offset)
            with pytest.raises(ClientError, match="not assigned"):
                await consumer.seek(SECOND, 0)


async def test_pause_and_resume() -> None:
    """A paused queue is not pulled and keeps its pulled messages; the others continue."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        async with lite(cluster.namesrv, {"orders": "*"}, suspend_timeout_ms=30) as consumer:
            await until(lambda: len(consumer.assignment) == 2)
            consumer.pause(FIRST)
            assert consumer.paused == [FIRST]
            pulls = len(broker.of(RequestCode.LITE_PULL_MESSAGE))
            await until(lambda: len(broker.of(RequestCode.LITE_PULL_MESSAGE)) > pulls + 3)
            broker.held = [pull for pull in broker.held if pull.command.ext["queueId"] == "1"]
            put(broker, "orders", b"first")
            put(broker, "orders", b"second", queue_id=1)
            assert await bodies_of(consumer, 1) == [b"second"]
            assert await consumer.poll(timeout_ms=60) == []
            consumer.resume(FIRST)
            assert await bodies_of(consumer, 1) == [b"first"]


async def test_queues_of_ones_own_choice() -> None:
    """Assigned queues are read independently of other members; a second call changes them; subscribing is refused."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        for queue_id in range(2):
            put(broker, "orders", b"a%d" % queue_id, queue_id=queue_id, tags="a")
            put(broker, "orders", b"b%d" % queue_id, queue_id=queue_id, tags="b")
        async with lite(cluster.namesrv) as consumer, lite(cluster.namesrv) as other:
            assert await consumer.queues("orders") == QUEUES
            await consumer.assign([FIRST], {"orders": "a"})
            await other.assign(QUEUES)
            assert await bodies_of(consumer, 1) == [b"a0"]
            assert sorted(await bodies_of(other, 4)) == [b"a0", b"a1", b"b0", b"b1"]
            assert await consumer.poll(timeout_ms=20) == []
            await consumer.commit()
            assert committed(cluster)["broker-a", 0] == 2, "what the filter left out is passed over"
            await consumer.assign([SECOND])
            assert consumer.assignment == [SECOND]
            assert await bodies_of(consumer, 2) == [b"a1", b"b1"]
            with pytest.raises(ClientError, match="not both"):
                consumer.subscribe("orders")
        async with lite(cluster.namesrv, {"orders": "*"}) as consumer:
            with pytest.raises(ClientError, match="not both"):
                await consumer.assign([FIRST])


async def test_members_share_and_listeners_hear() -> None:
    """A second member takes half of the queues; both are notified; the first one commits its processed messages
    before."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        for queue_id in range(2):
            put(broker, "orders", b"0", queue_id=queue_id)
        assigned: list[list[MessageQueue]] = []
        watched: list[int] = []
        consumer = LitePullConsumer(
            "CG",
            cluster.namesrv,
            {"orders": "*"},
            config=replace(LITE, metadata_check_ms=20),
            on_rebalance=lambda topic, every, mine: assigned.append(mine),
        )
        consumer.watch_queues("orders", lambda topic, queues: watched.append(len(queues)))
        async with consumer:
            assert len(await bodies_of(consumer, 2)) == 2
            assert await consumer.poll(timeout_ms=1) == []
            async with lite(cluster.namesrv, {"orders": "*"}) as second:
                await until(lambda: len(consumer.assignment) == len(second.assignment) == 1)
                await until(lambda: [len(mine) for mine in assigned] == [2, 1])
                await until(lambda: committed(cluster).get(("broker-a", second.assignment[0].queue_id)) == 1)
            await until(lambda: len(consumer.assignment) == 2)
            cluster.name_server.topics["orders"] = 3
            await until(lambda: watched == [2, 3] and len(consumer.assignment) == 3)


async def test_bounds_on_what_waits() -> None:
    """Pulled messages stay within the limits per queue and in total, and all messages arrive."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        for queue_id in range(2):
            put(broker, "orders", *(b"%d" % number for number in range(60)), queue_id=queue_id)
        changes = {"queue_count_max": 20, "count_max": 25, "pull_batch_count": 5}
        async with lite(cluster.namesrv, {"orders": "*"}, **changes) as consumer:

            def waiting() -> list[int]:
                return [info.cached_msg_count for info in consumer.queue_infos().values()]

            await until(lambda: sum(waiting()) > 25)
            count = 0
            while count < 120:
                assert max(waiting()) <= 25
                assert sum(waiting()) <= 35
                count += len(await consumer.poll())


async def test_trouble_with_a_broker_passes() -> None:
    """The consumer continues after refusals, offsets out of range and broken connections."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1", b"2")
        kept = broker.queues["orders", 0]
        kept.first, kept.records = 2, kept.records[2:]
        codes = [215, 1]

        def script(command: RemotingCommand) -> RemotingCommand | None:
            if command.code == RequestCode.LITE_PULL_MESSAGE and codes:
                return refuse(codes.pop())(command)
            return None

        broker.script = script
        async with lite(cluster.namesrv, {"orders": "*"}) as consumer:
            assert await bodies_of(consumer, 1) == [b"2"]
            await until(lambda: broker.held)
            for connection in list(broker.connections):
                connection.close()
            put(broker, "orders", b"3")
            assert await bodies_of(consumer, 1) == [b"3"]


async def test_an_old_broker_is_pulled_plainly() -> None:
    """Brokers of 4.9 refuse lite pulls: the consumer sends ordinary pulls instead."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        broker.script = on_code(RequestCode.LITE_PULL_MESSAGE, refuse(3, "request type 361 not supported"))
        put(broker, "orders", b"0", b"1")
        async with lite(cluster.namesrv, {"orders": "*"}, pull_batch_count=1) as consumer:
            assert await bodies_of(consumer, 2) == [b"0", b"1"]
        assert len(broker.of(RequestCode.LITE_PULL_MESSAGE)) == 1


async def test_close_ends_iteration() -> None:
    """A waiting poll ends with an error."""
    async with fake_cluster({"orders": 1}) as cluster:
        consumer = lite(cluster.namesrv, {"orders": "*"})
        await consumer.start()

        async def read() -> list[bytes]:
            return [one.body async for one in consumer]

        task = asyncio.create_task(read())
        await until(lambda: consumer.assignment)
        await consumer.close()
        assert await task == []


async def test_operators_see_and_reset() -> None:
    """307, 221 and 220 work as for any consumer; a notification starts a rebalance."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1", b"2")
        async with lite(cluster.namesrv, {"orders": "*"}) as consumer:
            assert len(await bodies_of(consumer, 3)) == 3
            await consumer.commit()

            async def answer(code: int, **ext: str) -> bytes:
                command = RemotingCommand(code, {"consumerGroup": "CG", "group": "CG", **ext}, opaque=code + 10_000)
                for connection in broker.connections:
                    connection.write(encode_command(command))
                await until(lambda: any(one.opaque == code + 10_000 for one in broker.seen))
                return next(one.body for one in broker.seen if one.opaque == code + 10_000)

            shown = await answer(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
            assert b"CONSUME_ACTIVELY" in shown
            assert b"tests/loops.py" in shown, "the stacks of tasks"
            assert b"thread MainThread " in shown, "and of threads"
            assert b":3" in await answer(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, topic="orders")
            body = QueueOffsets({FIRST: 1}).encode(strict=False)
            ext = {"topic": "orders", "group": "CG", "timestamp": "0", "isForce": "true"}
            reset = RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body, flag=2)
            for connection in broker.connections:
                connection.write(encode_command(reset))
            assert await bodies_of(consumer, 2) == [b"1", b"2"]


async def test_an_sql_filter_and_a_changed_subscription() -> None:
    """Each pull has the expression and its version; after a change the queues are pulled again."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers

        def asked() -> tuple[str, str]:
            ext = broker.of(RequestCode.LITE_PULL_MESSAGE)[-1].ext
            return ext["subscription"], ext["subVersion"]

        async with lite(cluster.namesrv, {"orders": Sql("a > 1")}) as consumer:
            await until(lambda: broker.held)
            assert asked()[0] == "a > 1"
            assert int(asked()[1]) > 0
            consumer.subscribe("orders", "x")
            await until(lambda: asked() == ("x", "0"))
            consumer.unsubscribe("orders")
            await until(lambda: consumer.assignment == [])


async def test_broadcasting_keeps_its_offsets_locally(tmp_path: Path) -> None:
    """The consumer reads all queues and keeps the offsets in the local file."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0")
        changes: dict[str, Any] = {"model": MessageModel.BROADCASTING, "offset_dir": tmp_path}
        async with lite(cluster.namesrv, {"orders": "*"}, **changes) as consumer:
            assert await bodies_of(consumer, 1) == [b"0"]
            await consumer.commit()
        put(broker, "orders", b"1")
        async with lite(cluster.namesrv, {"orders": "*"}, **changes) as consumer:
            assert await bodies_of(consumer, 1) == [b"1"]
            assert len(consumer.assignment) == 2
        assert committed(cluster) == {}


async def test_the_trace_has_no_local_offsets(tmp_path: Path) -> None:
    """An OffsetCommit is the group's offset at a broker; each member of a broadcasting group has offsets of its own."""
    async with fake_cluster({"orders": 1, "RMQ_SYS_TRACE_TOPIC": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0")
        trace = TraceConfig(spool_dir=tmp_path, linger_ms=10)
        config = replace(LITE, model=MessageModel.BROADCASTING, offset_dir=tmp_path, trace=trace)
        async with LitePullConsumer("CG", cluster.namesrv, {"orders": "*"}, config=config, trace=True) as consumer:
            assert await bodies_of(consumer, 1) == [b"0"]
            await consumer.commit()
        records = [one for each in broker.messages("RMQ_SYS_TRACE_TOPIC") for one in decode_trace(each.body)[0]]
        assert {type(one).__name__ for one in records} >= {"SubBefore", "SubAfter"}
        assert not any(type(one).__name__ == "OffsetCommit" for one in records)


async def test_the_trace_tells_what_was_polled(tmp_path: Path) -> None:
    """There are two Sub records per message with context code 0, as Java's poll writes them."""
    async with fake_cluster({"orders": 1, "RMQ_SYS_TRACE_TOPIC": 1}) as cluster:
        (broker,) = cluster.brokers
        ids = put(broker, "orders", b"0", b"1")
        config = replace(LITE, trace=TraceConfig(spool_dir=tmp_path, linger_ms=10))
        consumer = LitePullConsumer("CG", cluster.namesrv, {"orders": "*"}, config=config, trace=True)
        async with consumer:
            assert len(await bodies_of(consumer, 2)) == 2
            await consumer.commit()
        records: list[Any] = []
        for one in broker.messages("RMQ_SYS_TRACE_TOPIC"):
            found, rejects = decode_trace(one.body)
            assert not rejects
            records += found
        before = {one.msg_id: one for one in records if type(one).__name__ == "SubBefore"}
        after = {one.msg_id: one for one in records if type(one).__name__ == "SubAfter"}
        assert list(before) == list(after) == ids
        assert {one.request_id for one in before.values()} == {one.request_id for one in after.values()}
        assert all(one.is_success and one.context_code == 0 for one in after.values())
        assert any(type(one).__name__ == "OffsetCommit" and one.consumer_offset == 2 for one in records)


@given(st.lists(st.tuples(st.sampled_from("pppptttts"), st.integers(0, 4)), max_size=40))
def test_settled_never_runs_ahead(steps: list[tuple[str, int]]) -> None:
    """Always: settled <= position <= pull_offset, and settled covers only messages delivered before the last call."""
    queue = LiteQueue(FIRST, 0)
    for step, number in steps:
        at = queue.pull_offset
        assert at is not None
        if step == "p":
            queue.put([message(offset) for offset in range(at, at + number)], at + number + 1)
        elif step == "t":
            messages = queue.take(number + 1)
            queue.last_taken_ms = 1
            if queue.settled is not None and messages:
                assert queue.settled <= messages[0].queue_offset
        else:
            queue.seek(number)
        assert queue.position is not None
        assert queue.pull_offset is not None
        assert (queue.settled or 0) <= queue.position <= queue.pull_offset
        assert queue.count == sum(1 for _ in waiting(queue))


def waiting(queue: LiteQueue) -> Iterator[object]:
    for pulled in queue._pulled:
        yield from pulled.messages[pulled.taken :]


def test_without_asyncio() -> None:
    """The synchronous API behaves the same."""
    with cluster_in_a_thread() as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1", b"2")
        with SyncLitePullConsumer("CG", cluster.namesrv, config=LITE) as consumer:
            (queue,) = consumer.queues("orders")
            consumer.assign([queue])
            assert consumer.assignment == [queue]
            assert [one.body for one in consumer.poll()] == [b"0", b"1", b"2"]
            assert consumer.poll(timeout_ms=1) == []
            assert (consumer.position(queue), consumer.committed(queue)) == (3, None)
            consumer.seek(queue, 1)
            consumer.commit()
            assert consumer.committed(queue) == 1
            consumer.seek_to_end(queue)
            consumer.seek_to_begin(queue)
            consumer.pause(queue)
            consumer.resume(queue)
            assert consumer.offset_for_timestamp(queue, 9_999) == 3
            for one in consumer:
                assert one.body == b"0"
                break
