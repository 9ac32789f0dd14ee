"""POP consumers: assignment by brokers, acknowledgement, redelivery, and messages whose invisible time is over."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mqtrail.client import Batch, Consumer, Delivery, RetryLater
from mqtrail.client.consumer import consumer as consumer_module
from mqtrail.client.pop.calls import due_ms, handle_of, read_pop_reply
from mqtrail.client.pop.queues import DELAYS_S
from mqtrail.clock import now_ms
from mqtrail.wire import (
    Host,
    MessageQueue,
    PollingFull,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicNotExist,
    encode_command,
    encode_properties,
    encode_record,
)
from tests.waiting import until

from ..consumer.test_consumer import QUICK, committed, consume, put
from ..fake_cluster import FakeBroker, fake_cluster, refuse
from ..fake_pop import FakePop

POP = replace(QUICK, client_rebalance=False, poll_suspend_ms=20, pull_interval_ms=5)
ANY = MessageQueue("orders", "broker-a", -1)


def record(topic: str, queue_id: int, offset: int, **properties: str) -> bytes:
    host = Host("127.0.0.1", 1).packed()
    return encode_record(
        topic,
        b"x",
        encode_properties(properties).encode(),
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=0,
        born_timestamp_ms=1,
        born_host=host,
        store_timestamp_ms=2,
        store_host=host,
    )


def test_a_reply_gives_each_message_its_handle() -> None:
    """Handles are built from the reply's lists; a message that already has a handle of this pop keeps it."""
    kept = "7 1700000000123 60000 1 1 broker-a 0 9"
    body = b"".join(
        [
            record("orders", 2, 41),
            record("orders", 2, 45),
            record("%RETRY%CG_orders", 0, 7),
            record("orders", 5, 9, POP_CK=kept),
        ]
    )
    ext = {
        "popTime": "1700000000123",
        "invisibleTime": "60000",
        "reviveQid": "3",
        "restNum": "17",
        "startOffsetInfo": "0 2 41;1 0 7;0 5 9",
        "msgOffsetInfo": "0 2 41,45;1 0 7;0 5 9",
    }
    result = read_pop_reply(RemotingCommand(0, ext, body), MessageQueue("orders", "broker-a", 0))
    assert (result.rest, {message.topic for message in result.messages}) == (17, {"orders"})
    assert [message.properties["POP_CK"] for message in result.messages] == [
        "41 1700000000123 60000 3 0 broker-a 2 41",
        "41 1700000000123 60000 3 0 broker-a 2 45",
        "7 1700000000123 60000 3 1 broker-a 0 7",
        kept,
    ]
    assert {message.properties["1ST_POP_TIME"] for message in result.messages} == {"1700000000123"}
    assert handle_of(result.messages[1]).queue_offset == 45
    for code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL):
        assert not read_pop_reply(RemotingCommand(code), MessageQueue("orders", "broker-a", 0)).messages
    with pytest.raises(TopicNotExist):
        read_pop_reply(RemotingCommand(ResponseCode.TOPIC_NOT_EXIST), MessageQueue("orders", "broker-a", 0))


async def test_what_is_handled_is_acknowledged() -> None:
    """A broker assigns the queues; messages popped from any of them are acknowledged one by one; no offset is
    committed."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        for queue_id in range(2):
            put(broker, "orders", b"0", b"1", queue_id=queue_id, tags="a")
        put(broker, "orders", b"other", tags="b")
        async with Consumer("CG", cluster.namesrv, {"orders": "a"}, config=POP) as consumer:
            await until(lambda: consumer.assignment == [ANY])
            assert sorted(await consume(consumer, 4)) == [b"0", b"0", b"1", b"1"]
            await until(lambda: len(pop.acked) == 5)
        done = [("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2), ("orders", 1, 0), ("orders", 1, 1)]
        assert sorted(pop.acked) == done, "also what the filter left out"
        (asked, *_) = [one for one in pop.asked if one.topic == "orders"]
        assert (asked.consumer_group, asked.client_id, asked.strategy_name, asked.message_model) == (
            "CG",
            consumer.client_id,
            "AVG",
            "CLUSTERING",
        )
        ext = broker.of(RequestCode.POP_MESSAGE)[0].ext
        assert (ext["queueId"], ext["maxMsgNums"], ext["invisibleTime"], ext["initMode"]) == (
            "-1",
            "32",
            "60000",
            "0",
        )
        assert (ext["exp"], ext["expType"], ext["order"]) == ("a", "TAG", "false")
        assert committed(cluster) == {}
        assert not broker.of(RequestCode.PULL_MESSAGE)


async def test_a_failed_message_is_redelivered_later() -> None:
    """The delay grows with the attempts, or is that of the requested level; the handle identifies the message."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        put(broker, "orders", b"raises", b"level 3")
        broker.store("orders", 0, b"fifth", "", 0, 4)

        async def handler(m: Delivery) -> RetryLater | None:
            if m.body == b"level 3":
                return RetryLater(3)
            raise ValueError("no")

        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            task = asyncio.create_task(consumer.run(handler))
            await until(lambda: len(pop.invisible) == 3)
        await task
        assert sorted(pop.invisible) == [
            ("orders", 0, 0, DELAYS_S[0] * 1000),
            ("orders", 0, 1, DELAYS_S[3] * 1000),
            ("orders", 0, 2, DELAYS_S[4] * 1000),
        ]
        assert pop.acked == []


async def test_retries_come_from_their_own_topic() -> None:
    """A message of the pop retry topic shows its original topic, and is acknowledged in the retry topic."""
    async with fake_cluster({"orders": 1}) as cluster:
        pop = FakePop(cluster.brokers[0])
        pop.retries.append(record("%RETRY%CG_orders", 0, 7))
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            m = await anext(consumer)
            assert (m.topic, m.queue) == ("orders", ANY)
            await m.ack()
        assert pop.acked == [("%RETRY%CG_orders", 0, 7)]


@pytest.mark.parametrize(("born_ms_ago", "acked"), [(0, False), (15_000_000, True)])
async def test_after_the_last_attempt(born_ms_ago: int, acked: bool) -> None:
    """After the last attempt a message is given up once it is old; until then it waits longer."""
    async with fake_cluster({"orders": 1}) as cluster:
        pop = FakePop(cluster.brokers[0])
        config = replace(POP, attempts_max=2)
        host = Host("127.0.0.1", 1).packed()
        for times in (2, 3):
            pop.retries.append(
                encode_record(
                    "orders",
                    b"%d" % times,
                    b"",
                    queue_id=0,
                    queue_offset=times,
                    physical_offset=0,
                    born_timestamp_ms=now_ms() - born_ms_ago,
                    born_host=host,
                    store_timestamp_ms=2,
                    store_host=host,
                    reconsume_times=times,
                )
            )
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            m = await anext(consumer)
            assert m.body == b"2", "one with more attempts than allowed is not handed out"
            await m.retry()
            await until(lambda: len(pop.acked) + len(pop.invisible) == 2)
        assert ("orders", 0, 3) in pop.acked
        assert (("orders", 0, 2) in pop.acked) is acked


async def test_a_dead_letter_at_once() -> None:
    """RetryLater(-1) makes the broker write the dead letter, then the message is acknowledged."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        put(broker, "orders", b"x")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            await (await anext(consumer)).retry(-1)
        assert pop.acked == [("orders", 0, 0)]
        assert broker.stored("%DLQ%CG") == [b"x"]


async def test_what_came_too_late_is_left_to_the_broker() -> None:
    """A message whose invisible time is over is not delivered; a result after it is not acknowledged."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        pop.age_ms = 61_000
        put(broker, "orders", b"stale")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            await until(lambda: len(broker.of(RequestCode.POP_MESSAGE)) > 1)
            pop.age_ms = 59_900
            put(broker, "orders", b"slow")
            m = await anext(consumer)
            assert m.body == b"slow"
            m.begin()
            await until(lambda: now_ms() > due_ms(m.message))
            await m.ack()
        assert not pop.acked
        assert not pop.invisible


async def test_flow_control_counts_what_is_not_settled() -> None:
    """Above the limit nothing is popped; each settled message makes room."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        FakePop(broker)
        put(broker, "orders", *(b"%d" % number for number in range(50)))
        config = replace(POP, pop_batch_count=4, pop_queue_count_max=9, flow_control_ms=5)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await until(lambda: consumer.pop_infos() and consumer.pop_infos()[ANY].waiting == 12)
            assert len(await consume(consumer, 50)) == 50
            await until(lambda: consumer.pop_infos()[ANY].waiting == 0)


async def test_batches_of_popped_messages() -> None:
    """Each message of a batch can be acknowledged or failed separately."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        put(broker, "orders", b"0", b"1", b"2", b"3")

        async def handle(batch: Batch) -> None:
            if len(batch) == 3:
                batch.retry_from(1)

        config = replace(POP, batch_count_max=3)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            task = asyncio.create_task(consumer.run(handle))
            await until(lambda: len(pop.acked) + len(pop.invisible) == 4)
        await task
        assert sorted(pop.acked) == [("orders", 0, 0), ("orders", 0, 3)]


async def test_messages_that_no_handler_started_are_returned() -> None:
    """At the end, or when an assignment is withdrawn, other members get the messages after a second instead of a
    minute."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        put(broker, "orders", b"0", b"1", b"2")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            first = await anext(consumer)
            first.begin()
            pop.assigned = []
            await until(lambda: len(pop.invisible) == 2)
            pop.assigned = [-1]
            put(broker, "orders", b"3")
            await until(lambda: consumer.pop_infos() and consumer.pop_infos()[ANY].waiting)
            await first.ack()
        assert sorted(pop.invisible) == [("orders", 0, offset, 1_000) for offset in (1, 2, 3)]
        assert pop.acked == [("orders", 0, 0)]


async def test_a_group_is_switched_between_pull_and_pop() -> None:
    """The next reply changes the mode: pulls end where pops begin, and the retries of pops are pulled afterwards."""
    async with fake_cluster({"orders": 2, "%RETRY%CG_orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker, "PULL")
        pop.assigned = [0, 1]
        put(broker, "orders", b"pulled")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            assert await consume(consumer, 1) == [b"pulled"]
            await until(lambda: committed(cluster) == {("broker-a", 0): 1})
            await until(lambda: "%RETRY%CG_orders" in consumer.topics())
            pop.mode, pop.assigned = "POP", [-1]
            await until(lambda: consumer.assignment == [ANY])
            assert "%RETRY%CG_orders" not in consumer.topics()
            assert await consume(consumer, 1) == [b"pulled"], "the fake keeps pops and offsets apart"
            pop.mode, pop.assigned = "PULL", [0, 1]
            await until(lambda: len(consumer.assignment) == 2 and ANY not in consumer.assignment)


async def test_a_broker_that_cannot_tell_changes_nothing() -> None:
    """An answer without a list changes nothing; an empty list removes all queues."""
    async with fake_cluster({"orders": 1}) as cluster:
        pop = FakePop(cluster.brokers[0])
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            await until(lambda: consumer.assignment == [ANY])
            pop.assigned = None
            asked = len(pop.asked)
            await until(lambda: len(pop.asked) > asked + 2)
            assert consumer.assignment == [ANY]
            pop.assigned = []
            await until(lambda: consumer.assignment == [])


async def test_an_old_broker_has_its_queues_pulled() -> None:
    """Brokers of 4.x do not know the request: the member runs its own rebalance."""
    async with fake_cluster({"orders": 2}) as cluster:
        put(cluster.brokers[0], "orders", b"x")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            await until(lambda: len(consumer.assignment) == 2)
            assert await consume(consumer, 1) == [b"x"]


async def test_an_answer_that_is_lost_is_given_again() -> None:
    """A broken connection does not redeliver a handled message; a refused ack is not repeated."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        put(broker, "orders", b"0", b"1")
        fails = 1

        def script(command: RemotingCommand) -> RemotingCommand | None:
            nonlocal fails
            if command.code == RequestCode.ACK_MESSAGE and fails:
                fails -= 1
                for connection in list(broker.connections):
                    connection.close()
            return pop.script(command)

        broker.script = script
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            await (await anext(consumer)).ack()
            assert pop.acked == [("orders", 0, 0)] * 2
            broker.script = lambda command: (
                refuse(13)(command) if command.code == RequestCode.ACK_MESSAGE else pop.script(command)
            )
            count = len(broker.of(RequestCode.ACK_MESSAGE))
            await (await anext(consumer)).ack()
            assert len(broker.of(RequestCode.ACK_MESSAGE)) == count + 1


async def test_full_brokers_are_left_alone_for_a_while() -> None:
    """After 209 and errors the consumer waits; the running info shows the assignment with the number of waiting
    messages."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        codes = [PollingFull.code, ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_ERROR]

        def script(command: RemotingCommand) -> RemotingCommand | None:
            if command.code == RequestCode.POP_MESSAGE and codes:
                return refuse(codes.pop())(command)
            return pop.script(command)

        broker.script = script
        put(broker, "orders", b"x")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=POP) as consumer:
            m = await anext(consumer)
            shown = await running_info(broker)
            assert b'"mqPopTable":{{"brokerName":"broker-a","queueId":-1,"topic":"orders"}:{"droped":false' in shown
            assert b'"waitAckCount":1' in shown
            await m.ack()


async def running_info(broker: FakeBroker, **ext: str) -> bytes:
    command = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "CG"} | ext, opaque=9_001)
    for connection in broker.connections:
        connection.write(encode_command(command))
    await until(lambda: any(one.is_response and one.opaque == 9_001 for one in broker.seen))
    return next(one.body for one in broker.seen if one.is_response and one.opaque == 9_001)


async def test_what_waits_for_a_limit_stays_invisible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its invisible time is renewed while it waits, and it is acknowledged with the new handle."""
    monkeypatch.setattr(consumer_module, "RENEWAL_CHECKS", 50)
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        pop.age_ms = 3_000
        put(broker, "orders", b"0", b"1")
        gate = asyncio.Event()
        bodies = []

        async def handle(m: Delivery) -> None:
            bodies.append(m.body)
            await gate.wait()

        config = replace(POP, pop_invisible_ms=5_000, topic_concurrency_max={"orders": 1})
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            task = asyncio.create_task(consumer.run(handle))
            await until(lambda: ("orders", 0, 1, 5_000) in pop.invisible)
            assert bodies == [b"0"]
            gate.set()
            await until(lambda: len(pop.acked) == 2)
        await task
        assert pop.invisible == [("orders", 0, 1, 5_000)], "once; a running handler is not renewed"
        first, second = (handle.split() for handle in pop.acked_handles)
        assert (first[0], *first[2:]) == ("0", "5000", "3", "0", "broker-a", "0", "0")
        assert (second[0], *second[2:]) == ("1", "5000", "5", "0", "broker-a", "0", "1")
        assert int(second[1]) > int(first[1]) + 2_000


async def test_a_renewal_in_flight_ends_before_the_answer() -> None:
    """A message taken during its renewal is acknowledged with the new handle; one not renewed is left to its time."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        pop.age_ms = 40_000
        put(broker, "orders", b"0", b"1")
        config = replace(POP, key_concurrency_max=1, consume_timeout_ms=900_000)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await until(lambda: consumer.limits.waiting == 2)
            popped: Any = consumer._popped
            renew, gate = popped._calls.renew, asyncio.Event()

            async def later(*arguments: Any) -> Any:
                await gate.wait()
                return await renew(*arguments)

            popped._calls.renew = later
            await popped.renew_waiting()
            await popped.renew_waiting()
            first, second = await anext(consumer), await anext(consumer)
            settling = asyncio.create_task(first.ack())
            await until(lambda: consumer.limits.running == 1)
            assert not pop.acked
            gate.set()
            await settling
            assert [handle.split()[3] for handle in pop.acked_handles] == ["5"]
            assert [offset for _, _, offset, _ in pop.invisible] == [0, 1]
            await second.ack()
            put(broker, "orders", b"2")
            await until(lambda: consumer.limits.waiting)
            popped._clock = lambda: now_ms() + 2_000_000
            await popped.renew_waiting()
            popped._clock = now_ms
        assert [offset for _, _, offset, _ in pop.invisible] == [0, 1, 2], "the last is handed back at the end"
        assert pop.invisible[-1][3] == 1_000


async def test_a_popped_message_gives_its_place_back() -> None:
    """When its handler is cancelled, and when its assignment is withdrawn while it waits."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        put(broker, "orders", b"0", b"1", b"2")
        config = replace(POP, topic_concurrency_max={"orders": 1})
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            with pytest.raises(asyncio.CancelledError):
                async with (await anext(consumer)).process():
                    raise asyncio.CancelledError
            second = await anext(consumer)
            assert consumer.limits[1:3] == (1, 1)
            pop.assigned = []
            await until(lambda: consumer.limits.waiting == 0)
            await second.ack()
            assert consumer.limits.running == 0
