"""The effect of a failed attempt on the next attempt and on its broker."""

import asyncio
import contextlib
import threading

import pytest

from mqtrail.client import InstanceConfig, Producer, ProducerConfig, SendFailed
from mqtrail.client.core import RouteNotFound
from mqtrail.client.core.faults import FaultTable, QueueChooser
from mqtrail.client.producer import sending
from mqtrail.client.producer.detector import Detector
from mqtrail.wire import (
    BrokerData,
    Message,
    MessageQueue,
    MQError,
    QueueData,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicRouteData,
)
from tests.waiting import until

from ..fake_cluster import HANG_UP, SILENT, FakeBroker, Script, fake_cluster, on_code, refuse
from ..sync.test_sync import cluster_in_a_thread

SEND = RequestCode.SEND_MESSAGE_V2
NOW = 1_000_000


async def test_codes_of_ones_own_are_tried_again() -> None:
    """The application's retry_codes add to the built-in ones."""
    config = ProducerConfig(retry_codes=(int(ResponseCode.MESSAGE_ILLEGAL),))
    async with (
        fake_cluster({"orders": 1}, 2) as cluster,
        Producer("PG", cluster.namesrv, config=config) as producer,
    ):
        cluster.brokers[0].script = on_code(SEND, refuse(ResponseCode.MESSAGE_ILLEGAL))
        for _ in range(2):
            assert (await producer.send(Message("orders", b"x"))).queue.broker_name == "broker-b"


async def test_an_attempt_may_have_less_than_all_the_time() -> None:
    """attempt_timeout_ms limits each attempt but the last, so that a silent broker leaves time for another."""
    config = ProducerConfig(attempt_timeout_ms=200, send_timeout_ms=60_000)
    async with (
        fake_cluster({"orders": 1}, 2) as cluster,
        Producer("PG", cluster.namesrv, config=config) as producer,
    ):
        cluster.brokers[0].script = on_code(SEND, SILENT)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(2):
            assert (await producer.send(Message("orders", b"x"))).queue.broker_name == "broker-b"
        assert loop.time() - begun < 30
        for broker in cluster.brokers:
            broker.script = on_code(SEND, SILENT)
        with pytest.raises(SendFailed) as failed:
            await producer.send(Message("orders", b"x"), timeout_ms=1_600)
        first, second, last = failed.value.attempts
        assert max(first.cost_ms, second.cost_ms) < 700
        assert last.cost_ms >= 800


@pytest.mark.parametrize(
    ("script", "detect", "available", "reachable"),
    [
        (refuse(ResponseCode.SYSTEM_BUSY), False, False, False),  # MQBrokerException: isolated, unreachable
        (HANG_UP, False, False, True),  # RemotingException: isolated
        (HANG_UP, True, False, False),  # and unreachable where a detector will find it again
        (None, False, True, True),  # stored
    ],
)
async def test_what_the_fault_table_notes(
    script: Script | RemotingCommand | None, detect: bool, available: bool, reachable: bool
) -> None:
    """The entries equal those of the Java client's updateFaultItem."""
    config = ProducerConfig(latency_fault=True, latency_detect=detect, retry_count=0, detect_ms=60_000)
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        if script is not None:
            cluster.brokers[0].script = on_code(SEND, script)
        try:
            await producer.send(Message("orders", b"x"))
        except SendFailed:
            assert script is not None
        faults = producer._sender.faults
        assert faults is not None
        from mqtrail.clock import now_ms

        assert faults.is_available("broker-a", now_ms()) is available
        assert faults.is_reachable("broker-a") is reachable


def test_what_is_unreachable_is_tried_last() -> None:
    """Available brokers are tried first, then reachable ones; the last one's broker only if there is no other."""
    queues = [MessageQueue("T", name, 0) for name in ("a", "b", "c")]
    faults = FaultTable()
    faults.update("a", 1, NOW, isolate=True, reachable=False)
    faults.update("b", 1, NOW, isolate=True, reachable=True)
    chooser = QueueChooser(0)
    assert {chooser.next(queues, None, faults, NOW).broker_name for _ in range(9)} == {"c"}
    assert {chooser.next(queues, "c", faults, NOW).broker_name for _ in range(9)} == {"b"}
    faults.update("c", 1, NOW, isolate=True, reachable=False)
    assert {chooser.next(queues, "b", faults, NOW).broker_name for _ in range(60)} == {"a", "b", "c"}


async def test_the_detector_asks_and_forgives() -> None:
    """A broker that answers is reachable again; a silent one is not; one without a route is removed; each has its
    deadline."""

    config = ProducerConfig(latency_fault=True, detect_timeout_ms=400)
    async with (
        fake_cluster({"orders": 1}, 2) as cluster,
        Producer("PG", cluster.namesrv, config=config) as producer,
    ):
        await producer.send(Message("orders", b"x"))
        faults = FaultTable()
        for name in ("broker-a", "broker-b", "gone"):
            faults.update(name, 1, 0, isolate=True, reachable=False)
        cluster.broker("broker-b").script = on_code(RequestCode.GET_MAX_OFFSET, SILENT)
        detector = Detector(producer._client, faults, config, lambda: "orders")
        await detector.round()
        assert [faults.is_reachable(name) for name in ("broker-a", "broker-b")] == [True, False]
        assert faults.is_available("gone", 0)
        asked = len(cluster.broker("broker-b").of(RequestCode.GET_MAX_OFFSET))
        await detector.round()  # its time has not come
        assert len(cluster.broker("broker-b").of(RequestCode.GET_MAX_OFFSET)) == asked == 1


async def test_the_detector_runs_beside_the_sends() -> None:
    """A broker that recovers is found without a send."""
    config = ProducerConfig(latency_fault=True, latency_detect=True, retry_count=0, detect_ms=10, detect_interval_ms=0)
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        (broker,) = cluster.brokers
        down = True

        def script(command: RemotingCommand) -> RemotingCommand | None:
            if down and command.code == RequestCode.GET_MAX_OFFSET:
                return SILENT
            return HANG_UP if down and command.code == SEND else None

        broker.script = script
        with pytest.raises(SendFailed):
            await producer.send(Message("orders", b"x"))
        faults = producer._sender.faults
        assert faults is not None
        assert not faults.is_reachable("broker-a")
        down = False
        await until(lambda: faults.is_reachable("broker-a"))
        assert not cluster.bodies("orders")


async def test_a_route_that_changes_in_flight_is_followed() -> None:
    """If a broker lost the topic (17), the next attempt uses another one, and the route is queried again."""
    async with fake_cluster({"orders": 1}, 2) as cluster, Producer("PG", cluster.namesrv) as producer:
        gone: FakeBroker = cluster.broker("broker-a")
        gone.script = on_code(SEND, refuse(ResponseCode.TOPIC_NOT_EXIST))
        for _ in range(2):
            await producer.send(Message("orders", b"x"))
        cluster.name_server.brokers = [cluster.broker("broker-b")]
        await producer._client.refresh_routes()
        gone.seen.clear()
        for _ in range(4):
            await producer.send(Message("orders", b"x"))
        assert not gone.of(SEND)


@pytest.mark.parametrize(
    "answer", [HANG_UP, refuse(ResponseCode.SYSTEM_BUSY), refuse(ResponseCode.SERVICE_NOT_AVAILABLE)]
)
async def test_a_failed_send_asks_for_the_route(answer: Script) -> None:
    """Another broker may be master now. Nothing else asks in the time of this test."""
    config = ProducerConfig(retry_count=0)
    async with (
        fake_cluster({"orders": 1}, 2) as cluster,
        Producer("PG", cluster.namesrv, config=config) as producer,
    ):
        first, second = cluster.brokers
        cluster.name_server.brokers = [first]
        await producer.send(Message("orders", b"before"))
        first.script, cluster.name_server.brokers = on_code(SEND, answer), [second]
        with pytest.raises(MQError):
            await producer.send(Message("orders", b"failed"))
        await until(lambda: "broker-b" in producer._client.brokers())
        await producer.send(Message("orders", b"after"))
        assert second.stored("orders") == [b"after"]


async def test_a_send_without_a_master_asks_for_the_route() -> None:
    """Between the death of a master and the next one the route has no queue to send to."""
    async with fake_cluster({"orders": 1}, 1) as cluster, Producer("PG", cluster.namesrv) as producer:
        brokers, cluster.name_server.brokers = cluster.name_server.brokers, []
        with pytest.raises(RouteNotFound, match="no writable queue"):
            await producer.send(Message("orders", b"failed"))
        cluster.name_server.brokers = brokers
        await until(lambda: bool(producer._client.brokers()))
        await producer.send(Message("orders", b"after"))
        assert cluster.bodies("orders") == [b"after"]


def group_route(*stages: dict[int, str], other: str = "", queues: int = 1) -> Script:
    """Answer route requests by these brokers of broker-a, id -> address, one after another; the last one stays.

    other: the address of broker-b, which has the topic too.
    """
    left = list(stages)

    def answer(command: RemotingCommand) -> RemotingCommand:
        found = left.pop(0) if len(left) > 1 else left[0]
        groups = [("broker-a", found)] * bool(found) + [("broker-b", {0: other})] * bool(other)
        body = TopicRouteData(
            tuple(QueueData(name, queues, queues, 6) for name, _ in groups),
            tuple(BrokerData(name, addresses, "C") for name, addresses in groups),
        )
        return RemotingCommand.reply_to(command, 0, body=body.encode(strict=True))

    return on_code(RequestCode.GET_ROUTEINFO_BY_TOPIC, answer)


@pytest.mark.parametrize("failure", [HANG_UP, refuse(ResponseCode.SYSTEM_BUSY)])
async def test_a_send_waits_for_the_next_master(failure: Script) -> None:
    """While a group has replicas and no master, no attempt is made: the next one goes to the broker that takes over."""
    config = ProducerConfig(retry_count=1, send_timeout_ms=60_000)
    async with (
        fake_cluster({}, 2) as cluster,
        Producer("PG", cluster.namesrv, config=config) as producer,
    ):
        first, second = cluster.brokers
        before, between, after = {0: first.address, 2: second.address}, {2: second.address}, {0: second.address}
        cluster.name_server.script = group_route(before, between, between, after)
        first.script = on_code(SEND, failure)
        await producer.send(Message("orders", b"x"))
        assert (len(first.of(SEND)), second.stored("orders")) == (1, [b"x"])


async def test_a_refusal_of_the_last_master_gives_the_route_time() -> None:
    """A broker that is no longer master may refuse before the name server knows: no attempt is wasted on it."""
    config = ProducerConfig(retry_count=1, send_timeout_ms=60_000)
    async with (
        fake_cluster({}, 2) as cluster,
        Producer("PG", cluster.namesrv, config=config) as producer,
    ):
        first, second = cluster.brokers
        before, after = {0: first.address, 2: second.address}, {0: second.address}
        cluster.name_server.script = group_route(before, before, after)
        first.script = on_code(SEND, refuse(ResponseCode.SYSTEM_BUSY))
        await producer.send(Message("orders", b"x"))
        assert (len(first.of(SEND)), second.stored("orders")) == (1, [b"x"])


async def test_a_send_to_a_queue_waits_for_its_next_master() -> None:
    """The queue stays the chosen one; another error than a lost master is final, and so is one without replicas."""
    queue = MessageQueue("orders", "broker-a", 0)
    async with fake_cluster({}, 2) as cluster, Producer("PG", cluster.namesrv) as producer:
        first, second = cluster.brokers
        before, between, after = {0: first.address, 2: second.address}, {2: second.address}, {0: second.address}
        cluster.name_server.script = group_route(before, between, between, after)
        first.script = on_code(SEND, HANG_UP)
        await producer.send(Message("orders", b"x"), queue=queue, timeout_ms=60_000)
        assert (len(first.of(SEND)), second.stored("orders")) == (1, [b"x"])
        second.script = on_code(SEND, HANG_UP)
        with pytest.raises(MQError):
            await producer.send(Message("orders", b"y"), queue=queue, timeout_ms=60_000)
        assert len(second.of(SEND)) == 2
    async with fake_cluster({}, 1) as cluster, Producer("PG", cluster.namesrv) as producer:
        (broker,) = cluster.brokers
        cluster.name_server.script = group_route({0: broker.address, 2: "127.0.0.1:1"})
        broker.script = on_code(SEND, refuse(ResponseCode.SYSTEM_ERROR))
        with pytest.raises(MQError):
            await producer.send(Message("orders", b"x"), queue=queue, timeout_ms=60_000)
        assert len(broker.of(SEND)) == 1


async def test_a_send_by_key_keeps_its_queue_without_a_master() -> None:
    """A route without a master has no queue to choose: the key's queue is chosen once there is one."""
    config = ProducerConfig(send_timeout_ms=60_000)
    async with fake_cluster({}, 1) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        (broker,) = cluster.brokers
        for number in range(4):
            stages = {2: "127.0.0.1:1"}, {2: "127.0.0.1:1"}, {0: broker.address}
            cluster.name_server.script = group_route(*stages, queues=64)
            sent = await producer.send(Message(f"orders{number}", b"x"), order_key="k")
            again = await producer.send(Message(f"orders{number}", b"y"), order_key="k")
            assert sent.queue == again.queue
            picked = await producer.send(Message(f"new{number}", b"x"), select=lambda queues, message: queues[-1])
            assert picked.queue.queue_id == 63


async def test_a_send_to_a_queue_waits_while_its_group_is_in_no_route() -> None:
    """The only replica registers anew as master: for a moment the name server has nobody of the group."""
    queue = MessageQueue("orders", "broker-a", 0)
    async with fake_cluster({}, 3) as cluster, Producer("PG", cluster.namesrv) as producer:
        first, second, other = cluster.brokers
        before, after = {0: first.address, 2: second.address}, {0: second.address}
        cluster.name_server.script = group_route(before, {}, {}, after, other=other.address)
        first.script = on_code(SEND, HANG_UP)
        await producer.send(Message("orders", b"x"), queue=queue, timeout_ms=60_000)
        assert (second.stored("orders"), other.stored("orders")) == ([b"x"], [])


async def test_a_send_to_a_queue_is_not_repeated_at_the_same_master() -> None:
    """A master that does not answer an attempt in its time may store the message: only another master gets it again."""
    config = ProducerConfig(attempt_timeout_ms=100)
    queue = MessageQueue("orders", "broker-a", 0)
    async with fake_cluster({}, 1) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        (broker,) = cluster.brokers
        cluster.name_server.script = group_route({0: broker.address, 2: "127.0.0.1:1"})
        broker.script = on_code(SEND, SILENT)
        with pytest.raises(SendFailed) as failed:
            await producer.send(Message("orders", b"x"), queue=queue, timeout_ms=1_500)
        assert failed.value.maybe_stored
        assert len(broker.of(SEND)) == 1


async def test_a_send_that_waited_in_vain_tells_of_its_attempts() -> None:
    """The route lost its master during the first attempt, and there was none until the timeout."""
    async with fake_cluster({}, 1) as cluster, Producer("PG", cluster.namesrv) as producer:
        (broker,) = cluster.brokers
        cluster.name_server.script = group_route({0: broker.address, 2: "127.0.0.1:1"}, {2: "127.0.0.1:1"})
        broker.script = on_code(SEND, SILENT)
        sending = asyncio.create_task(producer.send(Message("orders", b"x"), timeout_ms=1_000))
        await until(lambda: bool(broker.of(SEND)))
        await producer._client.fetch_route("orders")
        for connection in list(broker.connections):
            connection.close()
        with pytest.raises(SendFailed) as failed:
            await sending
        assert failed.value.maybe_stored
        assert len(broker.of(SEND)) == 1


@pytest.mark.slow
async def test_no_name_server_makes_a_send_wait_longer_than_its_timeout() -> None:
    """One that does not answer while the next master is looked for; nor is an attempt made after the timeout."""
    config = ProducerConfig(instance=InstanceConfig(request_timeout_ms=60_000))
    async with fake_cluster({}, 1) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        (broker,) = cluster.brokers
        cluster.name_server.script = group_route({0: broker.address, 2: "127.0.0.1:1"})
        await producer.send(Message("orders", b"x"))
        cluster.name_server.script = lambda command: SILENT
        broker.script = on_code(SEND, HANG_UP)
        for queue in (None, MessageQueue("orders", "broker-a", 0)):
            broker.seen.clear()
            async with asyncio.timeout(30):
                with pytest.raises(SendFailed) as failed:
                    await producer.send(Message("orders", b"x"), queue=queue, timeout_ms=1_000)
            assert [one.outcome for one in failed.value.attempts] == ["TIMEOUT", "NOT_SENT"]
            assert len(broker.of(SEND)) == 1


async def test_the_send_after_a_silent_master_goes_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The route is requested while the first send waits in vain: the next one does not wait for the old master too."""
    monkeypatch.setattr(sending, "SILENT_S", 0.02)
    monkeypatch.setattr(sending, "LOOK_S", 0.02)
    config = ProducerConfig(retry_count=0)
    async with fake_cluster({}, 2) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        first, second = cluster.brokers
        before, after = {0: first.address, 2: second.address}, {0: second.address}
        cluster.name_server.script = group_route(before, before, after)
        first.script = on_code(SEND, SILENT)
        with pytest.raises(MQError):
            await producer.send(Message("orders", b"x"), timeout_ms=1_500)
        await producer.send(Message("orders", b"y"), timeout_ms=60_000)
        assert (len(first.of(SEND)), second.stored("orders")) == (1, [b"y"])


async def test_a_send_begins_when_there_is_a_master() -> None:
    """A route without a master is no error at once, if it has replicas; at the timeout it is."""
    async with fake_cluster({}, 1) as cluster, Producer("PG", cluster.namesrv) as producer:
        (broker,) = cluster.brokers
        cluster.name_server.script = group_route({2: "127.0.0.1:1"})
        with pytest.raises(RouteNotFound, match="no writable queue"):
            await producer.send(Message("orders", b"late"), timeout_ms=1_000)
        cluster.name_server.script = group_route({2: "127.0.0.1:1"}, {2: "127.0.0.1:1"}, {0: broker.address})
        await producer.send(Message("orders", b"x"), timeout_ms=60_000)
        assert broker.stored("orders") == [b"x"]


async def test_a_master_that_is_busy_is_tried_again() -> None:
    """It has replicas, and stays master: the attempts follow each other as without replicas."""
    async with fake_cluster({}, 1) as cluster, Producer("PG", cluster.namesrv) as producer:
        (broker,) = cluster.brokers
        cluster.name_server.script = group_route({0: broker.address, 2: "127.0.0.1:1"})
        broker.script = on_code(SEND, refuse(ResponseCode.SYSTEM_BUSY))
        with pytest.raises(SendFailed):
            await producer.send(Message("orders", b"x"), timeout_ms=60_000)
        assert len(broker.of(SEND)) == 3


@pytest.mark.parametrize("turns", range(12))
async def test_a_send_may_be_cancelled_anywhere(turns: int) -> None:
    """A cancellation at any stage returns the permits, and the producer continues to send."""
    config = ProducerConfig(in_flight_max=1)
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        sending = asyncio.create_task(producer.send(Message("orders", b"cancelled")))
        for _ in range(turns):
            await asyncio.sleep(0)
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        result = await producer.send(Message("orders", b"after it"))
        assert result.queue_offset in (0, 1)
        permits = producer._sender.permits
        assert (permits.count, permits.waiting_count) == (0, 0)
        assert cluster.bodies("orders")[-1] == b"after it"


def test_every_loop_has_its_own_producer() -> None:
    """Event loops in several threads at once, each with a producer of one group."""
    with cluster_in_a_thread({"orders": 2}) as cluster:

        async def work(name: int) -> None:
            async with Producer("PG", cluster.namesrv) as producer:
                sends = [producer.send(Message("orders", b"%d-%d" % (name, number))) for number in range(20)]
                assert len({result.msg_id for result in await asyncio.gather(*sends)}) == 20

        threads = [threading.Thread(target=asyncio.run, args=(work(name),)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(cluster.bodies("orders"))) == 60
