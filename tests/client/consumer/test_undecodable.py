"""Undecodable messages: no queue stops at one; others are delivered; it becomes a dead letter with a reason."""

import asyncio
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mqtrail.client import (
    Admin,
    Consumer,
    Delivery,
    LitePullConsumer,
    MessageModel,
    OnUndecodable,
    SyncConsumer,
    TraceConfig,
)
from mqtrail.client.delivery.send_back import PROPERTY_UNDECODABLE
from mqtrail.client.pop.calls import handle_of, read_pop_reply
from mqtrail.wire import (
    CompressionType,
    ConsumerRunningInfo,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    SubResult,
    compress,
    decode_trace,
    encode_properties,
)
from tests.waiting import until

from ...loops import run
from ..fake_cluster import FakeBroker, fake_cluster, on_code, refuse
from ..fake_pop import FakePop
from ..pop.test_pop import record
from ..sync.test_sync import cluster_in_a_thread
from .test_consumer import QUICK, committed, consume, put
from .test_lite_pull import LITE

DLQ = "%DLQ%CG"
ZSTD = CompressionType.ZSTD.sys_flag
BOMB = compress(bytes(60_000), CompressionType.ZSTD)
MODES: dict[str, dict[str, Any]] = {
    "concurrent": {},
    "ordered": {"ordered": True},
    "pop": {"client_rebalance": False, "poll_suspend_ms": 20, "pull_interval_ms": 5},
}


def poison(broker: FakeBroker, queue_id: int = 0) -> None:
    """Send good messages around a broken body, an unknown type, a zip bomb, and a record with a damaged length."""
    put(broker, "orders", b"0", queue_id=queue_id, tags="a")
    for number, (body, sys_flag) in enumerate([(b"no zstd", ZSTD), (b"x", 0x701), (BOMB, ZSTD)]):
        properties = encode_properties({"UNIQ_KEY": f"BAD{number}", "TAGS": "a", "KEYS": f"k{number}"})
        broker.store("orders", queue_id, body, properties, sys_flag)
        put(broker, "orders", b"%d" % (number + 1), queue_id=queue_id, tags="a")
    put(broker, "orders", b"damaged", queue_id=queue_id)
    records = broker.queues["orders", queue_id].records
    records[-1] = records[-1][:87] + b"\xff" + records[-1][88:]  # the body's size
    put(broker, "orders", b"4", queue_id=queue_id, tags="a")


def letters(broker: FakeBroker) -> dict[bytes, str]:
    return {letter.body: letter.properties.get(PROPERTY_UNDECODABLE, "") for letter in broker.messages(DLQ)}


@pytest.mark.parametrize("mode", MODES)
async def test_poison_goes_to_the_dead_letters(mode: str, tmp_path: Path) -> None:
    """Each dead letter has the stored bytes and compression, the id, the keys, and the reason."""
    async with fake_cluster({"orders": 1, "TRACE": 1, "%RETRY%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker, "POP" if mode == "pop" else "PULL")
        poison(broker)
        config = replace(
            QUICK,
            **MODES[mode],
            body_size_max=50_000,
            trace=TraceConfig(topic="TRACE", linger_ms=5, spool_dir=tmp_path),
        )
        consumer = Consumer("CG", cluster.namesrv, {"orders": "a"}, config=config, trace=True)
        with capture_logs() as logs:
            async with consumer:
                assert await consume(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
                await until(lambda: len(broker.messages(DLQ)) == 4)
                await until(lambda: consumer.stats.totals("orders").undecodable == 4)
                if mode == "pop":
                    await until(lambda: len(pop.acked) == 9)
                else:
                    await until(lambda: committed(cluster) == {("broker-a", 0): 9})
        reported = {line["msg_id"]: line["reason"] for line in logs if line["event"] == "consumer.undecodable"}
        assert "compression type 7" in reported["BAD1"]
        assert len(reported) == 4
        found = letters(broker)
        assert "not of type 2" in found[b"no zstd"]
        assert "compression type 7" in found[b"x"]
        assert "expected at most 50000" in found[bytes(60_000)]
        (damaged,) = [body for body in found if b"damaged" in body]
        assert "body of" in found[damaged]
        by_body = {letter.body: letter for letter in broker.messages(DLQ)}
        assert by_body[bytes(60_000)].sys_flag == ZSTD
        assert (by_body[bytes(60_000)].msg_id, by_body[bytes(60_000)].keys) == ("BAD2", ("k2",))
        assert by_body[bytes(60_000)].properties["RETRY_TOPIC"] == "orders"
        records = [one for message in broker.messages("TRACE") for one in decode_trace(message.body)[0]]
        results = {one.msg_id: one for one in records if isinstance(one, SubResult)}
        assert results["BAD1"].result == "EXCEPTION"
        assert "compression type 7" in str(results["BAD1"].detail)


def test_a_broker_that_takes_no_copy_writes_the_dead_letter_itself() -> None:
    """The broker's dead letter has no reason; while the broker accepts neither, the message waits and is retried."""

    async def main() -> None:
        async with fake_cluster({"orders": 1}) as cluster:
            (broker,) = cluster.brokers
            refusals = 2

            def script(command: RemotingCommand) -> RemotingCommand | None:
                nonlocal refusals
                if command.code == RequestCode.CONSUMER_SEND_MSG_BACK and refusals:
                    refusals -= 1
                    return RemotingCommand.reply_to(command, 1, "no")
                return on_code(RequestCode.SEND_MESSAGE_V2, refuse(1))(command)

            broker.script = script
            broker.store("orders", 0, b"no zstd", encode_properties({"UNIQ_KEY": "BAD"}), ZSTD)
            put(broker, "orders", b"good")
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
                assert await consume(consumer, 1) == [b"good"]
                await until(lambda: broker.stored(DLQ) == [b"no zstd"])
                await until(lambda: committed(cluster) == {("broker-a", 0): 2})

    run(main())


async def test_broadcasting_leaves_poison_out(tmp_path: Path) -> None:
    """Broadcasting has no dead letters: the message is counted and logged, and the next one is delivered."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        poison(broker)
        config = replace(QUICK, model=MessageModel.BROADCASTING, offset_dir=tmp_path, body_size_max=50_000)
        for ordered in (False, True):
            one = replace(config, ordered=ordered, offset_dir=tmp_path / str(ordered))
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=one) as consumer:
                assert await consume(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
                await until(lambda: consumer.stats.totals("orders").undecodable == 4)
        assert not broker.messages(DLQ)


async def test_lite_pull_leaves_poison_out_or_delivers_it() -> None:
    """The offset skips them; with DELIVER the application gets them with the reason."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        poison(broker)
        config = replace(LITE, body_size_max=50_000)
        async with LitePullConsumer("CG", cluster.namesrv, {"orders": "a"}, config=config) as consumer:
            bodies: list[bytes] = []
            while len(bodies) < 5:
                bodies += [message.body for message in await consumer.poll()]
            assert bodies == [b"0", b"1", b"2", b"3", b"4"]
            assert consumer.stats.totals("orders").undecodable == 4
        config = replace(config, on_undecodable=OnUndecodable.DELIVER)
        async with LitePullConsumer("CG2", cluster.namesrv, {"orders": "a"}, config=config) as consumer:
            messages: list[Any] = []
            while len(messages) < 9:
                messages += await consumer.poll()
            assert consumer.stats.totals("orders").undecodable == 4
        assert [message.undecodable is None for message in messages] == [True, False] * 4 + [True]
        assert [message.queue_offset for message in messages] == list(range(9))


@pytest.mark.parametrize("mode", MODES)
async def test_who_asks_for_poison_gets_it(mode: str) -> None:
    """With DELIVER a handler gets the stored body and the reason, and settles it as usual: a failure sends the stored
    bytes back."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        FakePop(broker, "POP" if mode == "pop" else "PULL")
        poison(broker)
        seen: list[tuple[bytes, bool]] = []

        async def handler(m: Delivery) -> None:
            seen.append((m.body, m.undecodable is not None))

        config = replace(QUICK, **MODES[mode], body_size_max=50_000, on_undecodable=OnUndecodable.DELIVER)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            running = asyncio.create_task(consumer.run(handler))
            await until(lambda: len(seen) == 9)
            assert sorted(body for body, bad in seen if not bad) == [b"0", b"1", b"2", b"3", b"4"]
            assert {b"no zstd", b"x", BOMB} < {body for body, bad in seen if bad}
            assert consumer.stats.totals("orders").undecodable == consumer.stats.totals().undecodable == 4
            await consumer.close()
            await running
        assert not broker.messages(DLQ)


@pytest.mark.parametrize("choice", OnUndecodable)
async def test_direct_consumption_follows_the_consumers_choice(choice: OnUndecodable) -> None:
    """CONSUME_MESSAGE_DIRECTLY from an operator reaches the handler only with DELIVER; 307 shows the count."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        broker.store("orders", 0, b"no zstd", encode_properties({"UNIQ_KEY": "BAD"}), ZSTD)
        seen: list[str | None] = []

        async def handler(m: Delivery) -> None:
            seen.append(m.undecodable)

        config = replace(QUICK, on_undecodable=choice)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            running = asyncio.create_task(consumer.run(handler))
            await until(lambda: committed(cluster) == {("broker-a", 0): 1})
            record = broker.queues["orders", 0].records[0]
            command = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "CG"}, record)
            answer: Any = consumer.serve(command)
            reply = await answer
            shown: Any = consumer.serve(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO))
            info = ConsumerRunningInfo.decode((await shown).body)
            assert info.properties["PROP_UNDECODABLE_COUNT"] == "1"
            await consumer.close()
            await running
        if choice is OnUndecodable.DELIVER:
            assert b"CR_SUCCESS" in reply.body
            assert len(seen) == 2
            assert "not of type 2" in str(seen[1])
        else:
            assert (reply.code, seen) == (1, [])
            assert "cannot read the message" in str(reply.remark)


def test_the_synchronous_consumer_continues() -> None:
    with cluster_in_a_thread({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        poison(broker)
        config = replace(QUICK, body_size_max=50_000)
        with SyncConsumer("CG", cluster.namesrv, {"orders": "a"}, config=config) as consumer:
            bodies = []
            for m in consumer:
                with m.process():
                    bodies.append(m.body)
                if len(bodies) == 5:
                    break
            assert consumer.stats.totals("orders").undecodable == 4
        assert bodies == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("mode", [*MODES, "lite"])
async def test_bodies_that_expand_are_held_within_a_bound(mode: str) -> None:
    """32 small records that expand 600 times are all delivered, a few at a time: the rest is pulled or popped again."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker, "POP" if mode == "pop" else "PULL")
        for number in range(32):
            broker.store("orders", number % 2, BOMB, encode_properties({"UNIQ_KEY": f"B{number}"}), ZSTD)
        ids: set[str] = set()
        held = 0
        if mode == "lite":
            lite_config = replace(LITE, expanded_size_max=200_000)
            async with LitePullConsumer("CG", cluster.namesrv, {"orders": "*"}, config=lite_config) as lite:
                while len(ids) < 32:
                    held = max(held, sum(one.expanded_size for one, _ in lite._queues._queues.values()))
                    ids |= {message.msg_id for message in await lite.poll(count_max=1)}
        else:
            config = replace(QUICK, **MODES[mode], expanded_size_max=200_000, pop_invisible_ms=5_000)
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
                async for m in consumer:
                    queues = [one.process_queue for one in consumer._queues._held.values()]
                    held = max(held, sum(one.expanded_size for one in queues))
                    held = max(held, sum(one.expanded_size for one in consumer._popped.infos().values()))
                    assert len(m.body) == 60_000
                    ids.add(m.msg_id)
                    await m.ack()
                    if len(ids) + len(pop.invisible) == 32:
                        break
        assert (mode == "pop") is bool(pop.invisible), "a broker keeps what it is given back"
        assert 0 < held <= 200_000 + 2 * 60_000, "the bound, and one message a queue"


async def test_printing_goes_past_poison() -> None:
    """An admin that reads a topic gets every message, one by one."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        poison(broker)
        async with Admin(cluster.namesrv) as admin:
            found = [message async for message in admin.messages("orders")]
            assert [message.queue_offset for message in found] == list(range(9))
            assert [message.undecodable is not None for message in found].count(True) == 3
            queue = MessageQueue("orders", "broker-a", 0)
            assert (await admin.message_at_offset(queue, 7)).undecodable


async def test_printing_holds_one_body_at_a_time() -> None:
    """A pull of small records that expand to 64 MB takes an admin little memory, because it keeps none of them."""
    body = compress(bytes(4_000_000), CompressionType.ZSTD)
    async with fake_cluster({"orders": 1}) as cluster:
        for number in range(16):
            cluster.brokers[0].store("orders", 0, body, encode_properties({"UNIQ_KEY": f"B{number}"}), ZSTD)
        async with Admin(cluster.namesrv) as admin:
            tracemalloc.start()
            try:
                sizes = [len(message.body) async for message in admin.messages("orders")]
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert sizes == [4_000_000] * 16
        assert peak < 30_000_000


async def test_a_record_with_a_place_behind_its_pull() -> None:
    """No CRC covers a record's head: an impossible queue offset does not advance the queue and loses no message."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        for body in (b"0", b"1", b"2"):
            put(broker, "orders", body)
        records = broker.queues["orders", 0].records
        records[1] = records[1][:20] + b"\x10" + records[1][21:]
        for ordered in (False, True):
            group = f"CG{ordered}"
            config = replace(QUICK, ordered=ordered)
            async with Consumer(group, cluster.namesrv, {"orders": "*"}, config=config) as consumer:
                assert await consume(consumer, 3) == [b"0", b"1", b"2"]
                place = (group, "orders", 0)
                await until(partial(lambda it: broker.offsets.get(it) == 3, place))


@pytest.mark.parametrize("offset", [None, "x", "9" * 5_000, str(1 << 63)])
def test_a_query_without_an_offset_in_its_answer_is_repeated(offset: str | None) -> None:
    """Such a reply must not end the task that assigns queues to a consumer."""

    async def main() -> None:
        async with fake_cluster({"orders": 1}) as cluster:
            (broker,) = cluster.brokers
            put(broker, "orders", b"0")
            lies = 3

            def script(command: RemotingCommand) -> RemotingCommand | None:
                nonlocal lies
                if command.code != RequestCode.QUERY_CONSUMER_OFFSET or not lies:
                    return None
                lies -= 1
                return RemotingCommand.reply_to(command, 0, ext={} if offset is None else {"offset": offset})

            broker.script = script
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
                assert await consume(consumer, 1) == [b"0"]
            assert lies == 0

    run(main())


def test_handles_of_popped_damage_and_of_forgers() -> None:
    """A damaged record has an offset that no other record has; a handle that a sender forged does not count."""
    forged = "0 1 1 1 0 broker-z 9 9"
    body = record("orders", 2, 41, POP_CK="no handle") + b"\xff" * 120 + record("orders", 2, 45, POP_CK=forged)
    ext = {
        "popTime": "1700000000123",
        "invisibleTime": "60000",
        "reviveQid": "3",
        "restNum": "0",
        "startOffsetInfo": "0 2 41",
        "msgOffsetInfo": "0 2 41,43,45",
    }
    result = read_pop_reply(RemotingCommand(0, ext, body), MessageQueue("orders", "broker-a", 0))
    assert [handle_of(one).queue_offset for one in result.messages] == [41, 45, 43]
    assert {handle_of(one).broker_name for one in result.messages} == {"broker-a"}
    assert [one.undecodable is None for one in result.messages] == [True, True, False]
