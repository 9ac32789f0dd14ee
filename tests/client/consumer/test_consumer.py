"""Consumer: every message reaches a handler, offsets follow processing, failed messages are redelivered."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from mqtrail.client import (
    ClientError,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    InstanceConfig,
    MessageModel,
    RetryLater,
    TraceConfig,
)
from mqtrail.client.consumer import rebalance
from mqtrail.wire import (
    ConsumerRunningInfo,
    DirectConsumeResult,
    Message,
    MessageQueue,
    QueueOffsets,
    RemotingCommand,
    RequestCode,
    SubscriptionParseFailed,
    decode_trace,
    encode_command,
    encode_properties,
)
from tests.waiting import until

from ..fake_cluster import FakeBroker, FakeCluster, fake_cluster, on_code, refuse

QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    rebalance_ms=50,
    offset_persist_ms=20,
    pull_error_ms=10,
    resubmit_ms=10,
    suspend_ms=10,
    lock_ms=50,
    close_wait_ms=200,
    concurrency=4,
    instance=InstanceConfig(route_refresh_ms=50, heartbeat_ms=50),
)


def put(broker: FakeBroker, topic: str, *bodies: bytes, queue_id: int = 0, tags: str = "") -> list[str]:
    """Store messages as a producer would."""
    ids = []
    for body in bodies:
        message = Message(topic, body, tags=tags)
        msg_id = f"ID-{broker.name}-{topic}-{queue_id}-{body.decode()}"
        broker.store(topic, queue_id, body, encode_properties({"UNIQ_KEY": msg_id} | message.wire_properties()))
        ids.append(msg_id)
    return ids


def committed(cluster: FakeCluster, topic: str = "orders") -> dict[tuple[str, int], int]:
    return {
        (broker.name, queue_id): offset
        for broker in cluster.brokers
        for (_, name, queue_id), offset in broker.offsets.items()
        if name == topic
    }


async def consume(consumer: Consumer, count: int) -> list[bytes]:
    """Take count messages and settle them."""
    bodies = []
    async for m in consumer:
        async with m.process():
            bodies.append(m.body)
        if len(bodies) == count:
            break
    return bodies


async def test_messages_of_all_queues_arrive_and_are_committed() -> None:
    """One member consumes every queue of every broker and commits the offsets to the brokers."""
    async with fake_cluster({"orders": 2}, 2) as cluster:
        for broker in cluster.brokers:
            for queue_id in range(2):
                put(broker, "orders", b"1", b"2", queue_id=queue_id)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            assert sorted(await consume(consumer, 8)) == [b"1"] * 4 + [b"2"] * 4
            put(cluster.brokers[0], "orders", b"late")
            assert await consume(consumer, 1) == [b"late"]
            await until(lambda: sum(committed(cluster).values()) == 9)
        assert all("CG" not in broker.groups or not broker.groups["CG"] for broker in cluster.brokers)


async def test_only_processed_messages_are_committed() -> None:
    """The committed offset stays at the lowest unsettled message, whatever was settled above it."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1", b"2")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            first, second, third = [await anext(consumer) for _ in range(3)]
            await third.ack()
            await second.ack()
            for number in (1, 2):  # the second commit of the other queue comes after a whole round of commits
                put(broker, "orders", b"other", queue_id=1)
                await (await anext(consumer)).ack()
                wanted = {("broker-a", 1): number}
                await until(partial(lambda it: it.items() <= committed(cluster).items(), wanted))
            assert committed(cluster).get(("broker-a", 0), 0) == 0
            await first.ack()
            await until(lambda: committed(cluster) == {("broker-a", 0): 3, ("broker-a", 1): 2})
            with pytest.raises(ClientError, match="already settled"):
                await first.ack()


async def test_an_unsettled_message_is_redelivered_to_the_next_member() -> None:
    """A message that a closed consumer did not settle is delivered to the next one."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"0", b"1")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            await (await anext(consumer)).ack()
            assert (await anext(consumer)).body == b"1"
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            assert await consume(consumer, 1) == [b"1"]


async def test_a_failed_message_is_sent_back_and_redelivered() -> None:
    """An exception, a returned and a raised RetryLater each cause a redelivery with the same id and a higher count."""
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        ids = put(cluster.brokers[0], "orders", b"raise", b"return", b"later", b"fine")
        seen: list[tuple[bytes, int, str]] = []

        async def handler(m: Delivery) -> RetryLater | None:
            seen.append((m.body, m.attempt, m.topic))
            if m.attempt == 1 and m.body == b"raise":
                raise ValueError("broken")
            if m.attempt == 1 and m.body == b"return":
                return RetryLater(5)
            if m.attempt == 1 and m.body == b"later":
                raise RetryLater(7, "not yet")
            return None

        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            task = asyncio.create_task(consumer.run(handler))
            await until(lambda: len(seen) == 7)
            await until(lambda: committed(cluster) == {("broker-a", 0): 4})
            await until(lambda: committed(cluster, "%RETRY%CG") == {("broker-a", 0): 3})
        await task
        assert {(body, attempt) for body, attempt, _ in seen} == {
            *((body, attempt) for body in (b"raise", b"return", b"later") for attempt in (1, 2)),
            (b"fine", 1),
        }
        assert {topic for _, _, topic in seen} == {"orders"}, "a retry shows the topic it was sent to"
        commands = cluster.brokers[0].of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert sorted(command.ext["delayLevel"] for command in commands) == ["0", "5", "7"]
        assert {command.ext["originMsgId"] for command in commands} == set(ids[:3])


async def test_a_refused_send_back_is_replaced_by_a_copy() -> None:
    """If the broker refuses the send-back, the client sends the copy itself, with the properties that a broker would
    set."""
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        broker.script = on_code(RequestCode.CONSUMER_SEND_MSG_BACK, refuse(1, "cannot"))
        (msg_id,) = put(broker, "orders", b"x")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            await (await anext(consumer)).retry()
            again = await anext(consumer)
            assert (again.body, again.attempt, again.topic, again.msg_id) == (b"x", 2, "orders", msg_id)
            await again.ack()
        (command,) = broker.of(RequestCode.SEND_MESSAGE_V2)
        assert (command.ext["a"], command.ext["b"], command.ext["j"]) == ("CLIENT_INNER_PRODUCER", "%RETRY%CG", "1")
        assert command.ext["l"] == "16"
        (copy,) = broker.messages("%RETRY%CG")
        assert (copy.properties["RETRY_TOPIC"], copy.properties["DELAY"]) == ("orders", "3")


async def test_without_any_way_back_the_message_is_tried_here() -> None:
    """If send-back and copy both fail, the message stays unsettled and is delivered again from memory."""
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        codes = (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2)
        broker.script = lambda command: refuse(14)(command) if command.code in codes else None
        put(broker, "orders", b"x")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            await (await anext(consumer)).retry()
            again = await anext(consumer)
            assert again.attempt == 2
            assert committed(cluster).get(("broker-a", 0), 0) == 0
            await again.ack()
            await until(lambda: committed(cluster) == {("broker-a", 0): 1})


async def test_tags_are_compared_by_text() -> None:
    """The client distinguishes two tags with one hash, and skips filtered messages."""
    async with fake_cluster({"orders": 1}) as cluster:
        for tag in ("Aa", "BB", "C", "Aa"):  # Aa and BB have one Java hash
            put(cluster.brokers[0], "orders", tag.encode(), tags=tag)
        async with Consumer("CG", cluster.namesrv, {"orders": "BB || C"}, config=QUICK) as consumer:
            assert await consume(consumer, 2) == [b"BB", b"C"]
            await until(lambda: committed(cluster) == {("broker-a", 0): 4})
        with pytest.raises(SubscriptionParseFailed):
            Consumer("CG", cluster.namesrv, {"orders": "||"})


async def test_members_share_the_queues() -> None:
    """Two members split the queues; when one leaves, the other takes all of them."""
    async with fake_cluster({"orders": 4}) as cluster:
        first = Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK)
        second = Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK)
        async with first:
            async with second:
                await until(lambda: (len(first.assignment), len(second.assignment)) == (2, 2))
                assert not set(first.assignment) & set(second.assignment)
            await until(lambda: len(first.assignment) == 4)


async def test_a_notification_rebalances_at_once() -> None:
    """Code 40 does not wait for the next round."""
    async with fake_cluster({"orders": 2}) as cluster:
        config = replace(QUICK, rebalance_ms=60_000)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await until(lambda: len(consumer.assignment) == 2)
            (broker,) = cluster.brokers
            broker.groups["CG"].add("0-first")
            notify = RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "CG"}, flag=2)
            for connection in broker.connections:
                connection.write(encode_command(notify))
            await until(lambda: len(consumer.assignment) == 1)


async def test_flow_control_bounds_what_is_held() -> None:
    """Above the limit of unsettled messages nothing is pulled; pulls continue when some are settled."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", *(b"%d" % number for number in range(100)))
        config = replace(QUICK, queue_count_max=10, pull_batch_count=5, flow_control_ms=5)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            queue = MessageQueue("orders", "broker-a", 0)
            await until(lambda: queue in consumer.assignment and consumer.queue_infos()[queue].cached_msg_count >= 10)
            for _ in range(100):
                assert consumer.queue_infos()[queue].cached_msg_count <= 10 + 5
                await consume(consumer, 1)


async def test_an_offset_outside_the_queue_is_mended() -> None:
    """If the committed offset is below the first kept message, consumption continues at that message."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1", b"2")
        queue = broker.queues["orders", 0]
        queue.first, queue.records = 2, queue.records[2:]
        broker.offsets["CG", "orders", 0] = 0
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            assert await consume(consumer, 1) == [b"2"]


@pytest.mark.parametrize(
    ("consume_from", "expected"),
    [
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, [b"old", b"new"]),
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, [b"new"]),
    ],
)
async def test_a_new_group_starts_where_it_is_configured(consume_from: ConsumeFromWhere, expected: list[bytes]) -> None:
    """Without a committed offset, consumption starts at the first or the last offset, as configured."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"old")
        config = replace(QUICK, consume_from=consume_from)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await until(lambda: consumer.assignment)
            put(cluster.brokers[0], "orders", b"new")
            assert await consume(consumer, len(expected)) == expected


async def test_the_first_message_of_a_queue_is_not_passed_over() -> None:
    """A 5.x broker has no offset for an empty queue; a message stored before the client asks for the maximum is
    read."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers

        def first_message(command: RemotingCommand) -> RemotingCommand | None:
            if command.code == RequestCode.GET_MAX_OFFSET and not broker.queue(command.ext).end:
                put(broker, "orders", b"first")
            elif command.code == RequestCode.QUERY_CONSUMER_OFFSET and broker.queue(command.ext).end:
                return RemotingCommand.reply_to(command, 0, ext={"offset": "0"})  # the queue is young
            return None

        broker.script = first_message
        config = replace(QUICK, consume_from=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            assert await consume(consumer, 1) == [b"first"]


async def test_a_topic_that_comes_later_is_found() -> None:
    """A consumer waits for a topic that does not exist yet."""
    async with (
        fake_cluster() as cluster,
        Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer,
    ):
        put(cluster.brokers[0], "orders", b"x")
        cluster.name_server.topics["orders"] = 1
        assert await consume(consumer, 1) == [b"x"]


async def test_a_missing_topic_is_looked_for_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found long before the next rebalance is due, and does not cost a request a second for ever."""
    monkeypatch.setattr(rebalance, "RETRY_MS", 10)
    config = replace(QUICK, rebalance_ms=60_000, instance=InstanceConfig(route_refresh_ms=60_000))
    async with (
        fake_cluster() as cluster,
        Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer,
    ):
        asked = [monotonic()]

        def note(command: RemotingCommand) -> RemotingCommand | None:
            if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and command.ext["topic"] == "orders":
                asked.append(monotonic())
            return None

        cluster.name_server.script = note
        await until(lambda: len(asked) > 5)
        assert asked[5] - asked[1] > 0.01 + 0.02 + 0.04 + 0.08
        put(cluster.brokers[0], "orders", b"x")
        cluster.name_server.topics["orders"] = 1
        assert await consume(consumer, 1) == [b"x"]


async def test_a_broker_that_breaks_connections_is_pulled_again() -> None:
    """After a lost connection the queue continues."""
    async with (
        fake_cluster({"orders": 1}) as cluster,
        Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer,
    ):
        await until(lambda: cluster.brokers[0].held)
        for connection in list(cluster.brokers[0].connections):
            connection.close()
        put(cluster.brokers[0], "orders", b"x")
        assert await consume(consumer, 1) == [b"x"]


async def test_an_ordered_queue_has_one_message_out_and_waits_for_it() -> None:
    """One message at a time: a failed one is retried before the next one is delivered."""
    async with fake_cluster({"orders": 2}) as cluster:
        for queue_id in range(2):
            put(cluster.brokers[0], "orders", *(b"%d" % number for number in range(20)), queue_id=queue_id)
        seen: dict[int, list[bytes]] = {0: [], 1: []}
        running: set[int] = set()

        async def handler(m: Delivery) -> None:
            assert m.queue.queue_id not in running
            running.add(m.queue.queue_id)
            await asyncio.sleep(0)
            running.discard(m.queue.queue_id)
            if m.body == b"7" and m.attempt < 3:
                raise ValueError("not yet")
            seen[m.queue.queue_id].append(m.body)

        config = replace(QUICK, ordered=True)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            task = asyncio.create_task(consumer.run(handler))
            await until(lambda: all(len(bodies) == 20 for bodies in seen.values()))
            await until(lambda: sum(committed(cluster).values()) == 40)
        await task
        assert seen == {queue_id: [b"%d" % number for number in range(20)] for queue_id in range(2)}
        assert cluster.brokers[0].locks == {}, "closing lets the queues go"
        assert not cluster.brokers[0].of(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_an_ordered_consumer_leaves_locked_queues_alone() -> None:
    """A queue that another client has locked is not pulled until the lock is released."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        broker.locks["orders", 1] = "somebody else"
        put(broker, "orders", b"x", queue_id=1)
        config = replace(QUICK, ordered=True)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await until(lambda: [queue.queue_id for queue in consumer.assignment] == [0])
            del broker.locks["orders", 1]
            assert await consume(consumer, 1) == [b"x"]


async def test_ordered_attempts_end_in_the_retry_topic() -> None:
    """After its last attempt an ordered message is sent back to the broker, and the queue continues."""
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"poison", b"next")
        config = replace(QUICK, ordered=True, attempts_max=2)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            attempts = 0
            async for m in consumer:
                if m.body == b"next":
                    break
                if m.queue.topic == "orders":
                    attempts += 1
                    await m.retry()
                else:
                    await m.ack()
            assert attempts == 3
        (command,) = broker.of(RequestCode.SEND_MESSAGE_V2)
        assert (command.ext["b"], command.ext["j"], command.ext["l"]) == ("%RETRY%CG", "3", "2")


async def test_broadcasting_gives_each_member_everything(tmp_path: Path) -> None:
    """Offsets are local, failures are dropped, nothing is sent back."""
    async with fake_cluster({"orders": 2}) as cluster:
        put(cluster.brokers[0], "orders", b"0")
        put(cluster.brokers[0], "orders", b"1", queue_id=1)
        for folder in ("one", "two"):
            config = replace(QUICK, model=MessageModel.BROADCASTING, offset_dir=tmp_path / folder)
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
                deliveries = [await anext(consumer) for _ in range(2)]
                await deliveries[0].ack()
                await deliveries[1].retry()
            put(cluster.brokers[0], "orders", folder.encode())
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
                assert await consume(consumer, 1) == [folder.encode()], "a restart continues where it was"
        assert committed(cluster) == {}
        assert not cluster.brokers[0].of(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_a_handler_that_hangs_is_given_back() -> None:
    """After consume_timeout its message is sent back, and the handler's later result is ignored."""
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"x")
        config = replace(QUICK, consume_timeout_ms=60)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            stuck = await anext(consumer)
            stuck.begin()
            again = await anext(consumer)
            assert (again.body, again.attempt) == (b"x", 2)
            await again.ack()
            await stuck.retry()
            await until(lambda: committed(cluster) == {("broker-a", 0): 1})
        assert len(cluster.brokers[0].of(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1


async def test_close_waits_for_running_handlers() -> None:
    """The message of a handler that ends within the wait is committed; others are redelivered."""
    async with fake_cluster({"orders": 2}) as cluster:
        put(cluster.brokers[0], "orders", b"quick")
        put(cluster.brokers[0], "orders", b"slow", queue_id=1)
        started: set[bytes] = set()
        ends = {b"quick": asyncio.Event(), b"slow": asyncio.Event()}

        async def handler(m: Delivery) -> None:
            started.add(m.body)
            await ends[m.body].wait()

        consumer = Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK)
        await consumer.start()
        running = asyncio.create_task(consumer.run(handler))
        await until(lambda: len(started) == 2)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        ends[b"quick"].set()
        await closing
        assert committed(cluster) == {("broker-a", 0): 1}
        ends[b"slow"].set()
        await running
        assert committed(cluster) == {("broker-a", 0): 1}


async def test_plain_functions_run_in_threads() -> None:
    """A handler without async does not block the loop."""
    import threading

    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"0", b"1")
        threads: list[str] = []

        def handler(m: Delivery) -> None:
            threads.append(threading.current_thread().name)

        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            consumer.handler(handler)
            task = asyncio.create_task(consumer.run())
            await until(lambda: committed(cluster) == {("broker-a", 0): 2})
        await task
        assert all(name.startswith("mqtrail-handler") for name in threads)


def ask(cluster: FakeCluster, command: RemotingCommand) -> FakeBroker:
    """Let the broker send a request to its clients."""
    (broker,) = cluster.brokers
    for connection in broker.connections:
        connection.write(encode_command(command))
    return broker


async def test_operators_can_look_and_reset() -> None:
    """307 shows the consumer, 309 runs its handler once, 221 returns its offsets, 220 resets them."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1", b"2")
        seen: list[bytes] = []

        async def handler(m: Delivery) -> None:
            seen.append(m.body)
            if m.body == b"2" and len(seen) > 3:
                raise ValueError("odd")

        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            task = asyncio.create_task(consumer.run(handler))
            await until(lambda: committed(cluster) == {("broker-a", 0): 3})
            group: Mapping[str, str] = {"consumerGroup": "CG", "clientId": consumer.client_id}

            async def answer(code: int, ext: Mapping[str, str], opaque: int, body: bytes = b"") -> Any:
                ask(cluster, RemotingCommand(code, dict(ext), body, opaque=opaque))
                await until(lambda: any(one.is_response and one.opaque == opaque for one in broker.seen))
                return next(one for one in broker.seen if one.is_response and one.opaque == opaque)

            reply = await answer(RequestCode.GET_CONSUMER_RUNNING_INFO, group, 9_001)
            info = ConsumerRunningInfo.decode(reply.body)
            assert info.mq_table[MessageQueue("orders", "broker-a", 0)].commit_offset == 3
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"

            record = broker.queues["orders", 0].records[2]
            reply = await answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, group, 9_002, record)
            result = DirectConsumeResult.decode(reply.body)
            assert (result.consume_result, "odd" in (result.remark or "")) == ("CR_THROW_EXCEPTION", True)

            reply = await answer(
                RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "nobody", "clientId": "x"}, 9_003
            )
            assert reply.code == 1

            body = QueueOffsets({MessageQueue("orders", "broker-a", 0): 1}).encode(strict=False)
            ext = {"topic": "orders", "group": "CG", "timestamp": "0", "isForce": "true"}
            seen.clear()
            ask(cluster, RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body, flag=2))
            await until(lambda: seen == [b"1", b"2"])
        await task


async def test_trace_tells_of_every_delivery(tmp_path: Path) -> None:
    """There are two Sub records and a SubResult per attempt, and an OffsetCommit per commit, with the keys of Apache's
    client."""
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1, "RMQ_SYS_TRACE_TOPIC": 1}) as cluster:
        (broker,) = cluster.brokers
        ids = put(broker, "orders", b"fine", b"fails")
        config = replace(QUICK, trace=TraceConfig(spool_dir=tmp_path, linger_ms=10))
        consumer = Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config, trace=True)
        async with consumer:
            for _ in range(3):
                m = await anext(consumer)
                async with m.process():
                    if m.body == b"fails" and m.attempt == 1:
                        raise ValueError("bad\x01\x02luck")
            await until(lambda: committed(cluster, "%RETRY%CG"))
        records: list[Any] = []
        for message in broker.messages("RMQ_SYS_TRACE_TOPIC"):
            found, rejects = decode_trace(message.body)
            assert not rejects
            records += found
        before = [one for one in records if type(one).__name__ == "SubBefore"]
        after = {one.request_id: one for one in records if type(one).__name__ == "SubAfter"}
        results = {one.request_id: one for one in records if type(one).__name__ == "SubResult"}
        assert len(before) == len(after) == len(results) == 3
        assert sorted((one.msg_id, one.retry_times) for one in before) == sorted(
            [(ids[0], 0), (ids[1], 0), (ids[1], 1)]
        )
        by_attempt = {(results[one.request_id].msg_id, one.retry_times): results[one.request_id] for one in before}
        assert by_attempt[ids[0], 0].result == by_attempt[ids[1], 1].result == "SUCCESS"
        failed = by_attempt[ids[1], 0]
        assert (failed.result, failed.detail) == ("EXCEPTION", "ValueError: badluck")
        assert (failed.topic, failed.client_id) == ("orders", consumer.client_id)
        assert after[failed.request_id].context_code == 2
        assert not after[failed.request_id].is_success
        commits = {(one.topic, one.consumer_offset) for one in records if type(one).__name__ == "OffsetCommit"}
        assert ("orders", 2) in commits
        keys = {key for message in broker.messages("RMQ_SYS_TRACE_TOPIC") for key in message.keys}
        assert keys == set(ids)
