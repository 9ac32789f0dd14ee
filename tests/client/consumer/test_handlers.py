"""Handlers by topic and tag, batches, changing subscriptions, and threads."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from mqtrail.client import Batch, ClientError, Consumer, ConsumerConfig, Delivery, LitePullConfig, RetryLater, Sql
from mqtrail.wire import (
    HeartbeatData,
    InvalidParameter,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    SubscriptionParseFailed,
    loads,
)
from tests.waiting import until

from ..fake_cluster import FakeBroker, fake_cluster, on_code, refuse
from .test_consumer import QUICK, committed, put

BATCHES = replace(QUICK, batch_count_max=3)


def wanted(broker: FakeBroker, topic: str) -> tuple[str, str, int]:
    """Return a topic's subscription in the last heartbeat: expression, type, version."""
    beat = HeartbeatData.decode(broker.of(RequestCode.HEART_BEAT)[-1].body)
    (data,) = [one for one in beat.consumer_data_set[0].subscription_data_set if one.topic == topic]
    return data.sub_string, data.expression_type, data.sub_version


async def test_each_message_finds_its_handler() -> None:
    """By topic and tag, then by topic, then the default; the consumer subscribes to the tags of all handlers."""
    async with fake_cluster({"orders": 1, "bills": 1, "notes": 1}) as cluster:
        (broker,) = cluster.brokers
        for tag in ("paid", "refunded", "other"):
            put(broker, "orders", tag.encode(), tags=tag)
        put(broker, "bills", b"bill", tags="x")
        put(broker, "notes", b"note")
        seen: dict[str, list[bytes]] = {"paid": [], "refunded": [], "bills": [], "rest": []}
        consumer = Consumer("CG", cluster.namesrv, {"notes": "*"}, config=QUICK)

        @consumer.handler("orders", "paid")
        async def paid(m: Delivery) -> None:
            seen["paid"].append(m.body)

        @consumer.handler("orders", "refunded || gone")
        def refunded(m: Delivery) -> None:
            seen["refunded"].append(m.body)

        @consumer.handler("bills")
        async def bills(m: Delivery) -> None:
            seen["bills"].append(m.body)

        @consumer.handler
        async def rest(m: Delivery) -> None:
            seen["rest"].append(m.body)

        async with consumer:
            task = asyncio.create_task(consumer.run())
            await until(lambda: all(seen.values()))
        await task
        assert seen == {"paid": [b"paid"], "refunded": [b"refunded"], "bills": [b"bill"], "rest": [b"note"]}
        assert wanted(broker, "orders")[0] == "paid || refunded || gone"


def test_handlers_that_clash_are_refused() -> None:
    """Two handlers for one tag, two for all tags, an Sql filter beside another, single ones beside batches."""
    consumer = Consumer("CG", config=QUICK)

    async def one(m: Delivery) -> None: ...

    async def many(batch: Batch) -> None: ...

    consumer.handler("orders", "a || b")(one)
    consumer.handler("orders")(one)
    consumer.handler("bills", Sql("x > 1"))(one)
    clashes: list[tuple[str, str | Sql]] = [("orders", "b"), ("orders", "*"), ("orders", Sql("x > 1")), ("bills", "a")]
    for topic, expression in clashes:
        with pytest.raises(ClientError, match="handler"):
            consumer.handler(topic, expression)(one)
    with pytest.raises(ClientError, match="one kind for each consumer"):
        consumer.batch_handler("notes")(many)
    with pytest.raises(SubscriptionParseFailed):
        consumer.handler("notes", "||")(one)
    with pytest.raises(ClientError, match="batch_handler"):
        Consumer("CG", config=BATCHES).handler(one)


async def test_batches_are_settled_as_one_or_by_parts() -> None:
    """A batch that raises is redelivered whole, one that fails in part only in that part; messages have both kinds of
    ids."""
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", *(b"%d" % number for number in range(8)))
        seen: list[list[tuple[bytes, int]]] = []

        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=BATCHES) as consumer:

            @consumer.batch_handler
            async def handle(batch: Batch) -> RetryLater | None:
                seen.append([(m.body, m.attempt) for m in batch])
                assert batch.topic == "orders"
                if batch[0].body == b"0" and batch[0].attempt == 1:
                    raise ValueError("all of it")
                if batch[0].body == b"3":
                    batch.retry_from(2, delay_level=4)
                if batch[0].body == b"6" and batch[0].attempt == 1:
                    return RetryLater(5)
                return None

            task = asyncio.create_task(consumer.run())
            await until(lambda: committed(cluster, "%RETRY%CG") == {("broker-a", 0): 6})
            await until(lambda: committed(cluster) == {("broker-a", 0): 8})
        await task
        first = [batch for batch in seen if batch[0][1] == 1]
        assert sorted([body for body, _ in batch] for batch in first) == [
            [b"0", b"1", b"2"],
            [b"3", b"4", b"5"],
            [b"6", b"7"],
        ]
        again = sorted(body for batch in seen for body, attempt in batch if attempt == 2)
        assert again == [b"0", b"1", b"2", b"5", b"6", b"7"]
        given_back = broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert sorted(command.ext["delayLevel"] for command in given_back) == ["0", "0", "0", "4", "5", "5"]


async def test_batches_by_iteration() -> None:
    """Iteration can give batches; a single delivery may be settled by itself, the rest with the batch."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"0", b"1", b"2", b"3")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=BATCHES) as consumer:
            with pytest.raises(ClientError, match=r"batches\(\)"):
                aiter(consumer)
            batches = consumer.batches()
            async for batch in batches:
                assert (len(batch), batch[-1].body) == (3, b"2")
                await batch[1].ack()
                async with batch.process():
                    pass
                assert all(m.settled for m in batch)
                break
            last = await anext(batches)
            assert len(last) == 1
            await last.ack()
            await until(lambda: committed(cluster) == {("broker-a", 0): 4})


async def test_ordered_batches_go_on_from_the_first_failure() -> None:
    """Messages before the failure are settled; the failed one and all after it are redelivered with a higher count."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", *(b"%d" % number for number in range(5)))
        seen: list[list[tuple[bytes, int]]] = []
        config = replace(BATCHES, ordered=True)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            async for batch in consumer.batches():
                seen.append([(m.body, m.attempt) for m in batch])
                async with batch.process():
                    if len(seen) == 1:
                        batch[1].retry_later()
                if seen[-1][-1][0] == b"4":
                    break
            await until(lambda: committed(cluster) == {("broker-a", 0): 5})
        assert seen == [
            [(b"0", 1), (b"1", 1), (b"2", 1)],
            [(b"1", 2), (b"2", 2), (b"3", 1)],
            [(b"4", 1)],
        ]


async def test_single_messages_for_a_handler_of_batches() -> None:
    """With batch_count_max 1 a handler of batches gets batches of one, also for a message from an operator."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1")
        sizes: list[int] = []
        consumer = Consumer("CG", cluster.namesrv, config=QUICK)

        @consumer.batch_handler("orders")
        def handle(batch: Batch) -> None:
            sizes.append(len(batch))

        async with consumer:
            task = asyncio.create_task(consumer.run())
            await until(lambda: sizes == [1, 1])
            command = RemotingCommand(
                RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "CG"}, broker.queues["orders", 0].records[0]
            )
            reply: Any = consumer.serve(command)
            assert b"CR_SUCCESS" in (await reply).body
            assert sizes == [1, 1, 1]
        await task


async def test_subscriptions_change_while_running() -> None:
    """Brokers learn of a new expression, a new topic or a removed topic at once, with a newer version."""
    async with fake_cluster({"orders": 1, "bills": 1}) as cluster:
        (broker,) = cluster.brokers
        config = replace(QUICK, rebalance_ms=60_000)
        async with Consumer("CG", cluster.namesrv, {"orders": "a"}, config=config) as consumer:
            await until(lambda: consumer.assignment)
            before = wanted(broker, "orders")
            consumer.subscribe("orders", "a || b")
            await until(lambda: wanted(broker, "orders")[0] == "a || b")
            assert wanted(broker, "orders")[2] > before[2]
            await until(lambda: broker.of(RequestCode.PULL_MESSAGE)[-1].ext["subscription"] == "a || b")
            broker.held = broker.held[-1:]
            put(broker, "orders", b"b", tags="b")
            m = await anext(consumer)
            assert m.body == b"b"
            await m.ack()
            consumer.subscribe("bills")
            await until(lambda: {queue.topic for queue in consumer.assignment} == {"orders", "bills"})
            consumer.unsubscribe("orders")
            await until(lambda: {queue.topic for queue in consumer.assignment} == {"bills"})
            await until(lambda: committed(cluster) == {("broker-a", 0): 1})  # given up first, committed then


async def test_an_sql_filter_is_checked_by_a_broker() -> None:
    """The expression is part of heartbeats and pulls; if a broker refuses it, the start fails."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        subscriptions = {"orders": Sql("amount > 5")}
        async with Consumer("CG", cluster.namesrv, subscriptions, config=QUICK) as consumer:
            await until(lambda: consumer.assignment and broker.of(RequestCode.PULL_MESSAGE))
            (check,) = broker.of(RequestCode.CHECK_CLIENT_CONFIG)
            body = loads(check.body)
            assert (body["group"], body["clientId"], body["namespace"]) == ("CG", consumer.client_id, "")
            assert body["subscriptionData"]["expressionType"] == "SQL92"
            pull = broker.of(RequestCode.PULL_MESSAGE)[0].ext
            assert (pull["subscription"], pull["expressionType"]) == ("amount > 5", "SQL92")
            assert wanted(broker, "orders")[:2] == ("amount > 5", "SQL92")
        broker.script = on_code(RequestCode.CHECK_CLIENT_CONFIG, refuse(23, "parse error"))
        with pytest.raises(SubscriptionParseFailed):
            await Consumer("CG", cluster.namesrv, subscriptions, config=QUICK).start()


async def test_suspend_and_resume() -> None:
    """No message is pulled between suspend and resume, and all are pulled afterwards."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        config = replace(QUICK, poll_timeout_ms=50)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await until(lambda: broker.held)
            consumer.suspend()
            broker.held.clear()  # the pull that was out runs into its time-out
            put(broker, "orders", b"x")
            following = asyncio.ensure_future(anext(consumer))
            beats = len(broker.of(RequestCode.HEART_BEAT)) + 5
            await until(lambda: len(broker.of(RequestCode.HEART_BEAT)) >= beats)
            assert not following.done()
            consumer.resume()
            assert (await following).body == b"x"


async def test_bounds_of_a_topic_are_shared_out() -> None:
    """Each of two queues gets half of the topic's limit; a single one gets all of it."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        for queue_id in range(2):
            put(broker, "orders", *(b"%d" % number for number in range(50)), queue_id=queue_id)
        config = replace(QUICK, topic_count_max=10, pull_batch_count=1, topic_size_max=10_000, flow_control_ms=5)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:

            def cached(queue_id: int) -> int:
                info = consumer.queue_infos().get(MessageQueue("orders", "broker-a", queue_id))
                return info.cached_msg_count if info is not None else 0

            await until(lambda: (cached(0), cached(1)) == (6, 6))
            cluster.name_server.topics["orders"] = 1
            await until(lambda: (cached(0), cached(1)) == (11, 0))


async def test_a_cancelled_run_does_not_wait_for_threads() -> None:
    """Plain functions continue in their threads; the loop is free, and their messages are redelivered."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"x")
        entered, leave = threading.Event(), threading.Event()

        def handler(m: Delivery) -> None:
            entered.set()
            leave.wait(20)

        try:
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
                task = asyncio.create_task(consumer.run(handler))
                await asyncio.to_thread(entered.wait, 10)
                task.cancel()
                await asyncio.wait([task])
                m = await anext(consumer)
                assert (m.body, m.attempt) == (b"x", 1)
                await m.ack()
                await until(lambda: committed(cluster) == {("broker-a", 0): 1})
        finally:
            leave.set()


async def test_a_listener_hears_of_the_queues() -> None:
    """The listener gets the topic, all queues and its own queues at each change; its exceptions are logged."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        calls: list[tuple[str, int, int]] = []

        async def listener(topic: str, every: list[MessageQueue], mine: list[MessageQueue]) -> None:
            calls.append((topic, len(every), len(mine)))
            raise ValueError("not our concern")

        consumer = Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK, on_rebalance=listener)
        async with consumer:
            await until(lambda: calls == [("orders", 2, 2)])
            broker.groups["CG"].add("0-first")
            await until(lambda: calls[1:] == [("orders", 2, 1)])


async def test_a_namespace_is_invisible_to_the_application() -> None:
    """Names have the prefix on the wire but not in the application, also for retries."""
    async with fake_cluster({"ns%orders": 1, "%RETRY%ns%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "ns%orders", b"x")
        instance = replace(QUICK.instance, namespace="ns")
        calls: list[str] = []
        consumer = Consumer(
            "CG",
            cluster.namesrv,
            config=replace(QUICK, instance=instance),
            on_rebalance=lambda topic, every, mine: calls.append(topic),
        )
        seen: list[tuple[str, int]] = []

        @consumer.handler("orders")
        async def handle(m: Delivery) -> None:
            seen.append((m.topic, m.attempt))
            if m.attempt == 1:
                raise RetryLater

        async with consumer:
            task = asyncio.create_task(consumer.run())
            await until(lambda: len(seen) == 2)
            await until(lambda: committed(cluster, "%RETRY%ns%CG"))
        await task
        assert seen == [("orders", 1), ("orders", 2)]
        assert set(calls) == {"orders"}
        (back,) = broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert (back.ext["group"], back.ext["originTopic"]) == ("ns%CG", "ns%orders")
        assert broker.groups.keys() == {"ns%CG"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [("concurrency", 0), ("batch_count_max", 2_000), ("pull_batch_count", 0), ("pop_invisible_ms", 1), ("span_max", 0)],
)
def test_settings_that_cannot_work_are_refused(setting: str, value: Any) -> None:
    """As in Java's consumer, the start fails; the error names the setting, the value found and the value expected."""
    with pytest.raises(InvalidParameter, match=rf"{setting} {value}, expected \d+ to \d+"):
        ConsumerConfig(**{setting: value})
    with pytest.raises(InvalidParameter, match="instance_name"):
        LitePullConfig(instance_name="")
