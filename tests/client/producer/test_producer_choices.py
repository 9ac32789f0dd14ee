"""Options of a send: selectors, namespaces, compression, splitting, permits, name servers by HTTP."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client import (
    ClientError,
    ClientInstance,
    InstanceConfig,
    InvalidMessage,
    NoNameServer,
    Producer,
    ProducerConfig,
    QueueReader,
    SendFailed,
    TooManyInFlight,
    by_hash,
    by_machine_room,
    by_random,
)
from mqtrail.client.core.endpoint import endpoint_url
from mqtrail.client.core.namespaces import with_namespace, without_namespace
from mqtrail.client.producer.permits import Permits
from mqtrail.client.producer.selectors import java_hash
from mqtrail.client.producer.splitting import split_batches
from mqtrail.wire import CompressionType, Message, MessageQueue, RequestCode, encode_batch
from tests.waiting import until

from ...loops import run
from ..fake_cluster import SILENT, fake_cluster, on_code, refuse
from ..sync.test_sync import cluster_in_a_thread

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("TagA", 2598919),  # message.md: Java's String.hashCode
        ("订单", 1129459),
        ("", 0),
        (17, 17),
        (-5, -5),
        (2**31, -(2**31)),  # Long.hashCode: low ^ high word
        (2**32 + 1, 0),
        (-(2**31) - 1, -(2**31)),
        (-1, -1),
    ],
)
def test_keys_hash_as_in_java(key: str | int, hashed: int) -> None:
    """Strings, Integers and Longs have Java's hashCode."""
    assert java_hash(key) == hashed


def test_a_key_beyond_a_long_is_refused() -> None:
    """Java's Long has no such number."""
    with pytest.raises(ValueError, match="64 bits"):
        java_hash(2**63)


def test_selectors() -> None:
    """By hash the queue is always the same, at random each one is chosen, by machine room only that room's brokers."""
    queues = [MessageQueue("T", broker, queue_id) for broker in ("r1@a", "r2@b", "c") for queue_id in range(2)]
    message = Message("T", b"x")
    assert by_hash("TagA")(queues, message) == queues[2598919 % 6]
    assert by_hash(-5)(queues, message) == queues[5]
    chance = random.Random(1)
    assert {by_random(chance)(queues, message) for _ in range(100)} == set(queues)
    assert {by_machine_room(["r2"], chance)(queues, message) for _ in range(50)} == set(queues[2:4])
    assert by_machine_room(["c"])(queues, message) is None


async def test_a_selected_queue_is_the_only_one_tried() -> None:
    """A retry does not leave the selected queue; a selector that returns nothing fails the send."""
    async with fake_cluster({"orders": 2}, 2) as cluster, Producer("PG", cluster.namesrv) as producer:
        queues = await producer.queues("orders")
        assert len(queues) == 4
        result = await producer.send(Message("orders", b"x"), select=lambda queues, message: queues[3])
        assert result.queue == queues[3]
        assert (await producer.send(Message("orders", b"x"), order_key=7)).queue == queues[3]
        cluster.broker(queues[3].broker_name).script = on_code(SEND, refuse(14))
        with pytest.raises(SendFailed) as failed:
            await producer.send(Message("orders", b"x"), select=lambda queues, message: queues[3])
        assert len(failed.value.attempts) == 1
        with pytest.raises(InvalidMessage, match="one of its 4 queues"):
            await producer.send(Message("orders", b"x"), select=by_machine_room(["nowhere"]))
        with pytest.raises(ClientError, match="at most one"):
            await producer.send(Message("orders", b"x"), order_key="k", select=by_random())


@pytest.mark.parametrize("kind", list(CompressionType))
async def test_a_body_is_compressed_as_chosen(kind: CompressionType) -> None:
    """The flag names each format, and the consumer decodes it."""
    config = ProducerConfig(compress_type=kind, compress_over=10)
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        await producer.send(Message("orders", b"a" * 5000))
        (command,) = cluster.brokers[0].of(SEND)
        assert int(command.ext["f"]) == 0x1 | kind << 8
        assert len(command.body) < 200
        assert cluster.bodies("orders") == [b"a" * 5000]


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("orders", "shop%orders"),
        ("shop%orders", "shop%orders"),
        ("%RETRY%billing", "%RETRY%shop%billing"),
        ("%DLQ%shop%billing", "%DLQ%shop%billing"),
        ("TBW102", "TBW102"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
        ("", ""),
    ],
)
def test_namespaces_wrap_names(name: str, wrapped: str) -> None:
    """RocketMQ's own names are not wrapped, a wrapped name is not wrapped twice, and unwrapping returns the name."""
    assert with_namespace("shop", name) == wrapped
    assert with_namespace("", name) == name
    assert without_namespace("shop", wrapped) == name.replace("shop%", "")
    assert without_namespace("other", wrapped) == wrapped


async def test_a_producer_of_a_namespace() -> None:
    """The broker sees wrapped names and INSTANCE_ID; the application sees neither."""
    config = ProducerConfig(instance=InstanceConfig(namespace="shop"))
    async with (
        fake_cluster({"shop%orders": 2}) as cluster,
        Producer("PG", cluster.namesrv, config=config) as producer,
    ):
        seen: list[MessageQueue] = []
        result = await producer.send(Message("orders", b"x"))
        assert result.queue.topic == "orders"
        await producer.send(Message("orders", b"y"), select=lambda queues, _: seen.extend(queues) or queues[0])
        assert {queue.topic for queue in seen} == {"orders"}
        await producer.send([Message("orders", b"z")] * 2)
        (broker,) = cluster.brokers
        commands = [*broker.of(SEND), *broker.of(RequestCode.SEND_BATCH_MESSAGE)]
        assert {(command.ext["a"], command.ext["b"]) for command in commands} == {("shop%PG", "shop%orders")}
        assert all("INSTANCE_ID\x01shop" in command.ext["i"] for command in commands)


async def test_namespaces_of_5x_travel_beside_the_names() -> None:
    """Every request to a broker carries ns and nsd; names are not wrapped."""
    config = ProducerConfig(instance=InstanceConfig(namespace_v2="shop"))
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        await producer.send(Message("orders", b"x"))
        await producer.send_oneway(Message("orders", b"y"))
        await until(lambda: len(cluster.brokers[0].of(SEND)) == 2)
        for command in cluster.brokers[0].seen:
            assert (command.ext["ns"], command.ext["nsd"]) == ("shop", "true"), command
        assert cluster.brokers[0].of(SEND)[0].ext["b"] == "orders"


async def test_many_messages_travel_in_few_batches() -> None:
    """send_all keeps the order, splits by size and topic, sends delayed ones alone, and returns each piece's result."""
    async with fake_cluster({"orders": 1, "bills": 1}) as cluster, Producer("PG", cluster.namesrv) as producer:
        messages = [Message("orders", b"%03d" % number) for number in range(50)]
        messages[20] = replace(messages[20], delay_level=2)
        outcomes = await producer.send_all([*messages, Message("bills", b"b")], size_max=2_000)
        assert all(outcome.stored for outcome in outcomes)
        assert [len(outcome.messages) for outcome in outcomes].count(1) >= 2
        assert cluster.bodies("orders") == [b"%03d" % number for number in range(50)]
        assert cluster.bodies("bills") == [b"b"]
        batches = cluster.brokers[0].of(RequestCode.SEND_BATCH_MESSAGE)
        assert all(len(batch.body) <= 2_000 for batch in batches)
        assert 3 <= len(batches) <= 6
        cluster.brokers[0].script = on_code(SEND, refuse(13))
        outcomes = await producer.send_all([Message(topic, b"x") for topic in ("orders", "bills", "bills")])
        assert [outcome.stored for outcome in outcomes] == [False, True]
        with pytest.raises(InvalidMessage, match="at most"):
            await producer.send_all([Message("orders", b"x" * 101)], size_max=100)


@given(
    st.lists(
        st.builds(Message, st.sampled_from("AB"), st.binary(min_size=1, max_size=60), tags=st.text("ab", max_size=3)),
        max_size=30,
    ),
    st.integers(200, 500),
)
def test_pieces_are_whole_and_small(messages: list[Message], size_max: int) -> None:
    """For any split the order is kept, a piece has one topic, and its batch fits."""
    pieces = list(split_batches(messages, size_max))
    assert [message for piece in pieces for message in piece] == messages
    for piece in pieces:
        assert len({message.topic for message in piece}) == 1
        assert len(piece) == 1 or len(encode_batch(piece)) <= size_max


async def test_batches_that_brokers_would_spoil_are_refused() -> None:
    """Delayed messages, retry topics and different WAITs are not batched."""
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv) as producer:
        good = Message("orders", b"x")
        for bad in (
            replace(good, delay_ms=5),
            replace(good, deliver_at_ms=5),
            replace(good, properties={"TIMER_DELAY_SEC": "1"}),
            replace(good, properties={"WAIT": "false"}),
        ):
            with pytest.raises(InvalidMessage):
                await producer.send([good, bad])
        with pytest.raises(InvalidMessage, match="retry topic"):
            await producer.send([Message("%RETRY%g", b"x")])


def test_delays_by_time() -> None:
    """A delay in ms and a time of delivery become the timer's properties."""
    assert Message("T", b"x", delay_ms=1_500).wire_properties()["TIMER_DELAY_MS"] == "1500"
    assert Message("T", b"x", deliver_at_ms=99).wire_properties()["TIMER_DELIVER_MS"] == "99"


async def test_sends_wait_for_a_permit() -> None:
    """With in_flight_max sends pending, the next one waits, and fails within its timeout if none is answered."""
    config = ProducerConfig(in_flight_max=2, retry_count=0, send_timeout_ms=10_000)
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        (broker,) = cluster.brokers
        await producer.send(Message("orders", b"0"))
        broker.script = on_code(SEND, SILENT)
        held = [asyncio.create_task(producer.send(Message("orders", b"%d" % number))) for number in (1, 2)]
        await until(lambda: len(broker.of(SEND)) == 3)
        with pytest.raises(TooManyInFlight) as late:
            await producer.send(Message("orders", b"3"), timeout_ms=30)
        assert not late.value.maybe_stored
        waiting = asyncio.create_task(producer.send(Message("orders", b"4")))
        await asyncio.sleep(0)
        assert len(broker.of(SEND)) == 3
        broker.script = lambda command: None
        held[0].cancel()
        await waiting
        held[1].cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert cluster.bodies("orders") == [b"0", b"4"]


async def test_back_pressure_by_size() -> None:
    """Bodies above the limit wait for pending ones; a body larger than the limit is sent alone."""
    config = ProducerConfig(back_pressure=True, back_pressure_size=1024 * 1024, compress_over=1 << 30)
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        (broker,) = cluster.brokers
        await producer.send(Message("orders", b"0"))
        broker.script = on_code(SEND, SILENT)
        big = asyncio.create_task(producer.send(Message("orders", b"x" * (2 * 1024 * 1024)), timeout_ms=10_000))
        await until(lambda: len(broker.of(SEND)) == 2)
        with pytest.raises(TooManyInFlight):
            await producer.send(Message("orders", b"x" * 1000), timeout_ms=30)
        big.cancel()
        broker.script = lambda command: None
        await asyncio.gather(big, return_exceptions=True)
        await producer.send(Message("orders", b"x" * 1000))


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=30))
def test_permits_are_never_lost(takers: list[tuple[int, bool]]) -> None:
    """With cancellations in any order the limits hold and all permits are returned."""

    async def main() -> None:
        permits = Permits(3, 10)
        loop = asyncio.get_running_loop()

        async def work(size: int) -> None:
            await permits.take(size, loop.time() + 5)
            assert permits.count <= 3
            assert permits.size <= 10 or permits.count == 1
            try:
                await asyncio.sleep(0)
            finally:
                permits.give(size)

        tasks = [asyncio.create_task(work(size)) for size, _ in takers]
        await asyncio.sleep(0)
        for task, (_, gives_up) in zip(tasks, takers, strict=True):
            if gives_up:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (permits.count, permits.size, permits.waiting_count) == (0, 0, 0)

    run(main())


@contextlib.contextmanager
def http_end_point() -> Iterator[tuple[str, list[bytes], list[str]]]:
    """An HTTP server: its URL without a path, its answer (the last of the list), the requested paths."""
    answers, asked = [b""], []

    class EndPoint(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if answers[-1] else 404)
            self.end_headers()
            self.wfile.write(answers[-1])

        def log_message(self, *arguments: object) -> None:
            """Do not log."""

    server = HTTPServer(("127.0.0.1", 0), EndPoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", answers, asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_name_servers_by_http() -> None:
    """The end point returns the name servers and is asked again; while it fails, the old ones are used."""
    async with fake_cluster({"orders": 1}) as cluster:
        with http_end_point() as (url, answers, asked):
            answers.append(f"  {cluster.namesrv};127.0.0.1:1\n ignored".encode())
            config = ProducerConfig(instance=InstanceConfig(namesrv_refresh_ms=20))
            async with Producer("PG", f"{url}/rocketmq/nsaddr", config=config) as producer:
                await producer.send(Message("orders", b"x"))
                answers.append(b"")
                seen = len(asked)
                await until(lambda: len(asked) > seen + 1)
                await producer.send(Message("orders", b"y"))
                assert set(asked) == {"/rocketmq/nsaddr"}


def test_a_reader_asks_the_end_point_too() -> None:
    """A reader asks it again once no name server answers."""
    with cluster_in_a_thread({"orders": 2}) as cluster, http_end_point() as (url, answers, asked):
        answers.append(b"127.0.0.1:1")
        with QueueReader(f"{url}/rocketmq/nsaddr") as reader:
            with pytest.raises(NoNameServer):
                reader.queues("orders")
            answers.append(cluster.namesrv.encode())
            assert len(reader.queues("orders")) == 2
            assert len(asked) == 2


async def test_an_end_point_that_names_nothing() -> None:
    """For no reply or an invalid one, the error has the URL and what was expected."""
    with http_end_point() as (url, answers, _):
        for answer in (b"", b"<html>"):
            answers.append(answer)
            async with Producer("PG", f"{url}/nsaddr") as producer:
                with pytest.raises(NoNameServer, match="host:port;host:port"):
                    await producer.send(Message("orders", b"x"))


@pytest.mark.parametrize(
    ("namesrv", "config", "url"),
    [
        ("127.0.0.1:9876", InstanceConfig(), None),
        ("http://127.0.0.1:9876", InstanceConfig(), None),
        ("http://a/rocketmq/nsaddr", InstanceConfig(), "http://a/rocketmq/nsaddr"),
        ("", InstanceConfig(namesrv_domain="jmenv.tbsite.net"), "http://jmenv.tbsite.net:8080/rocketmq/nsaddr"),
        ("", InstanceConfig(namesrv_domain="a:1", namesrv_subgroup="x"), "http://a:1/rocketmq/x"),
        ("", InstanceConfig(namesrv_domain="a", unit_name="u"), "http://a:8080/rocketmq/nsaddr-u?nofix=1"),
        ("h:1", InstanceConfig(namesrv_domain="a"), None),
    ],
)
def test_the_end_points_url(namesrv: str, config: InstanceConfig, url: str | None) -> None:
    """The URL equals that of MixAll.getWSAddr and DefaultTopAddressing; addresses override the domain."""
    assert endpoint_url(namesrv, config) == url


def test_a_client_without_name_servers_is_refused() -> None:
    """Neither addresses nor a domain are configured."""
    with pytest.raises(ValueError, match="host:port"):
        ClientInstance("")
