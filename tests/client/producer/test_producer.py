"""Producer: the choice of queues, retries, and errors."""

import asyncio
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client import (
    AttemptFailure,
    ClientClosed,
    InvalidMessage,
    NoNameServer,
    Producer,
    ProducerConfig,
    RouteNotFound,
    SendFailed,
    SendResult,
    TraceConfig,
)
from mqtrail.client.core.composer import Composer
from mqtrail.client.core.outgoing import Outgoing
from mqtrail.wire import (
    BatchItem,
    FrameDecoder,
    Message,
    MessageIllegal,
    MessageQueue,
    Pub,
    PubAttempt,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendStatus,
    decode_command,
    decode_properties,
    decode_trace,
    encode_properties,
    java_string_hash,
)
from tests.waiting import until

from ..fake_cluster import HANG_UP, SILENT, FakeBroker, fake_cluster, on_code, refuse

SEND = RequestCode.SEND_MESSAGE_V2


class Listener:
    """A SendHook that records its calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def send_started(self, out: Outgoing) -> None:
        self.heard.append(("started", out.attempt, out.queue.broker_name if out.queue else None))

    def send_complete(self, out: Outgoing, result: SendResult, cost_ms: int) -> None:
        self.heard.append(("complete", out.attempt, result.status))

    def send_failed(self, out: Outgoing, failure: AttemptFailure, *, final: bool) -> None:
        self.heard.append(("failed", out.attempt, failure.outcome, failure.code, final))

    def send_oneway(self, out: Outgoing, cost_ms: int) -> None:
        self.heard.append(("oneway", out.attempt))


async def test_a_message_arrives_whole() -> None:
    """Body, tags, keys, delay, flag and properties reach the broker, and the result has the message's offset."""
    async with fake_cluster({"orders": 4}) as cluster, Producer("PG", cluster.namesrv) as producer:
        message = Message(
            "orders", b"body", tags="A", keys=["k1", "k2"], delay_level=3, flag=7, properties={"own": "ü"}
        )
        result = await producer.send(message)
        (broker,) = cluster.brokers
        (stored,) = broker.messages("orders")
        assert stored.body == b"body"
        assert stored.tags == "A"
        assert stored.keys == ("k1", "k2")
        assert (stored.properties["DELAY"], stored.properties["own"], stored.properties["WAIT"]) == (
            "3",
            "ü",
            "true",
        )
        assert stored.msg_id == result.msg_id
        assert (result.status, result.queue_offset, result.region_id) == (SendStatus.SEND_OK, 0, "TestRegion")
        assert result.offset_msg_id == stored.offset_msg_id
        (command,) = broker.of(SEND)
        assert (command.ext["a"], command.ext["h"], command.ext["c"]) == ("PG", "7", "TBW102")


async def test_sends_go_round_the_queues() -> None:
    """Without an order key the sends use every queue of every broker in turn."""
    async with fake_cluster({"orders": 2}, 2) as cluster, Producer("PG", cluster.namesrv) as producer:
        queues = [(await producer.send(Message("orders", b"x"))).queue for _ in range(8)]
        assert len(set(queues)) == 4
        assert queues[:4] == queues[4:]


async def test_large_bodies_are_compressed() -> None:
    """A body above the threshold is compressed; the consumer sees the original."""
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv) as producer:
        await producer.send(Message("orders", b"a" * 4095))
        await producer.send(Message("orders", b"a" * 4096))
        small, large = cluster.brokers[0].of(SEND)
        assert (small.ext["f"], len(small.body)) == ("0", 4095)
        assert large.ext["f"] == str(0x301)
        assert len(large.body) < 100
        assert cluster.bodies("orders") == [b"a" * 4095, b"a" * 4096]


async def test_a_batch_is_one_request_of_many_messages() -> None:
    """Every message of a batch has its own id, and the batch as such has none."""
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv) as producer:
        result = await producer.send([Message("orders", b"%d" % number, keys=f"k{number}") for number in range(3)])
        stored = cluster.brokers[0].messages("orders")
        assert [message.msg_id for message in stored] == result.msg_ids
        assert [message.keys for message in stored] == [("k0",), ("k1",), ("k2",)]
        assert len(result.offset_msg_id.split(",")) == 3
        (command,) = cluster.brokers[0].of(RequestCode.SEND_BATCH_MESSAGE)
        assert command.ext["m"] == "true"
        assert "UNIQ_KEY" not in command.ext["i"]


async def test_an_order_key_keeps_its_queue() -> None:
    """All messages of a key go to the queue that Java's hash picks."""
    async with fake_cluster({"orders": 3}, 2) as cluster, Producer("PG", cluster.namesrv) as producer:
        queues = {(await producer.send(Message("orders", b"x"), order_key="user-7")).queue for _ in range(5)}
        names = [
            ("broker-a", 0),
            ("broker-a", 1),
            ("broker-a", 2),
            ("broker-b", 0),
            ("broker-b", 1),
            ("broker-b", 2),
        ]
        assert queues == {MessageQueue("orders", *names[abs(java_string_hash("user-7")) % 6])}


async def test_a_failed_attempt_goes_to_another_broker() -> None:
    """A retry leaves a broker that refuses for now; the hooks are called for both attempts."""
    listener = Listener()
    async with fake_cluster({"orders": 1}, 2) as cluster:
        cluster.broker("broker-a").script = on_code(SEND, refuse(ResponseCode.SYSTEM_BUSY))
        async with Producer("PG", cluster.namesrv, hooks=[listener]) as producer:
            results = [await producer.send(Message("orders", b"x")) for _ in range(2)]
        assert {result.queue.broker_name for result in results} == {"broker-b"}
        assert ("failed", 1, "ERROR", 2, False) in listener.heard
        assert ("complete", 2, SendStatus.SEND_OK) in listener.heard


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
async def test_codes_that_are_tried_again(code: int) -> None:
    """Three attempts are made after these codes, and the error lists each; the message is not stored."""
    async with fake_cluster({"orders": 2}) as cluster, Producer("PG", cluster.namesrv) as producer:
        cluster.brokers[0].script = on_code(SEND, refuse(code, "not now"))
        with pytest.raises(SendFailed, match="it is not stored") as caught:
            await producer.send(Message("orders", b"x"))
        assert [attempt.code for attempt in caught.value.attempts] == [code] * 3
        assert not caught.value.maybe_stored
        assert "not now" in str(caught.value)


async def test_a_hopeless_refusal_is_raised_at_once() -> None:
    """A refusal that every broker would repeat is raised after one attempt, as its own class."""
    listener = Listener()
    async with fake_cluster({"orders": 2}) as cluster:
        cluster.brokers[0].script = on_code(SEND, refuse(ResponseCode.MESSAGE_ILLEGAL, "too large"))
        async with Producer("PG", cluster.namesrv, hooks=[listener]) as producer:
            with pytest.raises(MessageIllegal, match="too large"):
                await producer.send(Message("orders", b"x"))
    assert listener.heard[-1] == ("failed", 1, "ERROR", 13, True)


async def test_a_named_queue_is_not_left() -> None:
    """A send to one queue, or with an order key, has one attempt: another queue would break its order."""
    async with fake_cluster({"orders": 1}, 2) as cluster, Producer("PG", cluster.namesrv) as producer:
        cluster.broker("broker-a").script = on_code(SEND, refuse(ResponseCode.SYSTEM_BUSY))
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("orders", b"x"), queue=MessageQueue("orders", "broker-a", 0))
        assert len(caught.value.attempts) == 1


async def test_a_silent_broker_costs_the_time_out_and_no_more() -> None:
    """The timeout covers all attempts together, and an unanswered message may be stored."""
    config = ProducerConfig(send_timeout_ms=60_000)
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        cluster.brokers[0].script = on_code(SEND, SILENT)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(SendFailed, match="it may be stored") as caught:
            await producer.send(Message("orders", b"x"), timeout_ms=500)
        assert asyncio.get_running_loop().time() - begun < 30
        assert caught.value.maybe_stored
        assert [attempt.outcome for attempt in caught.value.attempts] == ["TIMEOUT"]


async def test_a_broken_connection_is_uncertain_and_tried_again() -> None:
    """A connection that breaks before the reply may have stored the message; the next attempt succeeds."""
    listener = Listener()
    async with fake_cluster({"orders": 1}) as cluster:
        answers = iter([HANG_UP])
        cluster.brokers[0].script = on_code(SEND, lambda command: next(answers, None))
        async with Producer("PG", cluster.namesrv, hooks=[listener]) as producer:
            await producer.send(Message("orders", b"x"))
    assert ("failed", 1, "TIMEOUT", None, False) in listener.heard
    assert listener.heard[-1] == ("complete", 2, SendStatus.SEND_OK)


async def test_a_dead_broker_is_surely_not_reached() -> None:
    """A refused connection proves that nothing was stored."""
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv) as producer:
        await cluster.brokers[0].server.stop()
        with pytest.raises(SendFailed, match="it is not stored") as caught:
            await producer.send(Message("orders", b"x"))
        assert {attempt.outcome for attempt in caught.value.attempts} == {"CONNECT"}


async def test_a_status_other_than_ok_is_success_unless_asked_otherwise() -> None:
    """FLUSH_DISK_TIMEOUT means stored; with retry_not_stored_ok another attempt is made, and the best result is
    returned."""

    def slow(command: Any) -> Any:
        reply = FakeBroker.send(broker, command)
        reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
        return reply

    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        broker.script = on_code(SEND, slow)
        async with Producer("PG", cluster.namesrv) as producer:
            assert (await producer.send(Message("orders", b"x"))).status is SendStatus.FLUSH_DISK_TIMEOUT
        config = ProducerConfig(retry_not_stored_ok=True)
        async with Producer("PG", cluster.namesrv, config=config) as producer:
            assert (await producer.send(Message("orders", b"x"))).status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(cluster.bodies("orders")) == 1 + 3


async def test_an_unknown_topic_uses_the_template() -> None:
    """A topic without a route is sent to the template's brokers, with the number of queues that a broker would
    create."""
    async with fake_cluster() as cluster, Producer("PG", cluster.namesrv) as producer:
        queues = {(await producer.send(Message("young", b"x"))).queue.queue_id for _ in range(8)}
        assert queues == {0, 1, 2, 3}


async def test_no_route_at_all_says_what_to_do() -> None:
    """A topic that cannot be created raises RouteNotFound; the hooks learn that nothing was sent."""
    listener = Listener()
    async with fake_cluster() as cluster:
        cluster.name_server.topics.clear()
        async with Producer("PG", cluster.namesrv, hooks=[listener]) as producer:
            with pytest.raises(RouteNotFound, match="create it"):
                await producer.send(Message("orders", b"x"))
    assert listener.heard == [("failed", 0, "NOT_SENT", None, True)]


def answer(body: bytes, command: RemotingCommand) -> RemotingCommand:
    return command.reply_to(command, 0, body=body)


async def test_a_name_server_that_is_down_or_lies_is_passed_over() -> None:
    """After refused connections, silence, errors or invalid replies the next name server is used; if all fail,
    NoNameServer."""
    async with fake_cluster({"orders": 1}) as good, fake_cluster() as liar, fake_cluster() as dead:
        await dead.name_server.server.stop()
        route = RequestCode.GET_ROUTEINFO_BY_TOPIC
        for body in (b"", b"not json", b'{"queueDatas":7}', b"[]"):
            liar.name_server.script = on_code(
                route, partial(lambda body, command: command.reply_to(command, 0, body=body), body)
            )
            addresses = f"{dead.namesrv};{liar.namesrv};{good.namesrv}"
            async with Producer("PG", addresses) as producer:
                await producer.send(Message("orders", b"x"))
            async with Producer("PG", f"{dead.namesrv};{liar.namesrv}") as producer:
                with pytest.raises(NoNameServer) as caught:
                    await producer.send(Message("orders", b"x"))
                assert dead.namesrv in str(caught.value)
                assert liar.namesrv in str(caught.value)


async def test_oneway_is_sent_once_and_not_answered() -> None:
    """A one-way send has its flag, and the hooks get ONEWAY."""
    listener = Listener()
    async with fake_cluster({"orders": 1}) as cluster:
        async with Producer("PG", cluster.namesrv, hooks=[listener]) as producer:
            msg_id = await producer.send_oneway(Message("orders", b"x"))
            await until(lambda: cluster.bodies("orders"))
        (command,) = cluster.brokers[0].of(SEND)
        assert command.is_oneway
        assert cluster.brokers[0].messages("orders")[0].msg_id == msg_id
    assert listener.heard[-1] == ("oneway", 1)


async def test_a_cancelled_send_is_reported_as_uncertain() -> None:
    """Cancelling ends only the wait; the trace must not claim that the message is not stored."""
    listener = Listener()
    async with fake_cluster({"orders": 1}) as cluster:
        cluster.brokers[0].script = on_code(SEND, SILENT)
        async with Producer("PG", cluster.namesrv, hooks=[listener]) as producer:
            task = asyncio.create_task(producer.send(Message("orders", b"x")))
            await until(lambda: cluster.brokers[0].of(SEND))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            cluster.brokers[0].script = lambda command: None
            await producer.send(Message("orders", b"y"))
    assert ("failed", 1, "TIMEOUT", None, True) in listener.heard


async def test_a_closed_producer_says_so() -> None:
    """Sends before the start and after the close are refused without network access."""
    producer = Producer("PG", "127.0.0.1:1")
    with pytest.raises(ClientClosed, match="async with"):
        await producer.send(Message("orders", b"x"))
    await producer.close()


BAD: list[tuple[Message, str]] = [
    (Message("", b"x"), "expected one or more of"),
    (Message("no blanks", b"x"), "no blanks"),
    (Message("t" * 128, b"x"), "128"),
    (Message("SCHEDULE_TOPIC_XXXX", b"x"), "system topic of the broker"),
    (Message("orders", b""), "1 to 4194304"),
    (Message("orders", b"x" * 4_194_305), "4194305 bytes"),
    (Message("orders", cast(bytes, "text")), "encode text first"),
    (Message("orders", b"x", tags="a\x02b"), "x02"),
    (Message("orders", b"x", properties={"a\x01": "b"}), "property name"),
    (Message("orders", b"x", properties={"a": "b" * 32_768}), "at most 32767"),
]


@pytest.mark.parametrize(("message", "text"), BAD, ids=[text for _, text in BAD])
def test_a_message_that_cannot_be_sent_says_why(message: Message, text: str) -> None:
    """Invalid messages are refused before they are sent, with the value found and the values allowed."""
    composer = Composer("PG", ProducerConfig(), lambda: "id")
    with pytest.raises(InvalidMessage, match=text):
        composer.message(message)


def test_keys_may_hold_what_separates_trace_fields() -> None:
    """Java's client sends them too. The message keeps them; its trace records have the keys without separators."""
    composer = Composer("PG", ProducerConfig(), lambda: "id")
    out = composer.message(Message("orders", b"x", keys="a\x01b", tags="\x01t"))
    assert (out.keys, out.tags) == ("ab", "t")
    assert decode_properties(out.properties)["KEYS"] == "a\x01b"
    composer.check(Message("orders", b"x", keys="a\x01b"))
    composer.batch([Message("orders", b"x", keys="a\x01b")])


def test_a_batch_that_cannot_be_sent_says_why() -> None:
    """Mixed topics, delays, empty and too large batches are each refused with their reason."""
    composer = Composer("PG", ProducerConfig(body_size_max=100), lambda: "id")
    for messages, text in [
        ([], "at least one"),
        ([Message("a", b"x"), Message("b", b"x")], "one topic"),
        ([Message("a", b"x", delay_level=1)], "delayed"),
        ([Message("a", b"x" * 60)] * 2, "smaller batches"),
    ]:
        with pytest.raises(InvalidMessage, match=text):
            composer.batch(messages)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.text("aé1", min_size=1, max_size=9)), min_size=1))
def test_an_encoded_batch_equals_one_of_messages(of: list[tuple[bytes, str]]) -> None:
    """The same items, ids and properties, with and without a namespace."""
    for namespace in ("", "NS"):
        first, second = (
            Composer("PG", ProducerConfig(), partial(next, map(str, count())), namespace) for _ in range(2)
        )
        messages = [Message("orders", body, keys=keys, properties={"p": keys}) for body, keys in of]
        items = [BatchItem(one.body, encode_properties(one.wire_properties()).encode()) for one in messages]
        general, encoded = first.batch(messages), second.encoded("orders", items)
        assert {name: getattr(general, name) for name in general.__slots__} == {
            name: getattr(encoded, name) for name in general.__slots__
        }


def test_an_encoded_batch_that_cannot_be_sent_says_why() -> None:
    """As one of messages."""
    composer = Composer("PG", ProducerConfig(body_size_max=100), lambda: "id")
    for topic, items, text in [
        ("a", [], "at least one"),
        ("%RETRY%g", [BatchItem(b"x")], "one by one"),
        ("a b", [BatchItem(b"x")], "topic"),
        ("a", [BatchItem(b"")], "body"),
        ("a", [BatchItem(b"x", b"p" * 32_767)], "at most 32767"),
        ("a", [BatchItem(b"x" * 60)] * 2, "smaller batches"),
    ]:
        with pytest.raises(InvalidMessage, match=text):
            composer.encoded(topic, items)


@given(
    st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=20),
    st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=20),
    st.binary(min_size=1, max_size=50),
    st.booleans(),
)
def test_the_template_writes_what_the_wire_writes(tags: str, keys: str, body: bytes, batch: bool) -> None:
    """The hot path's frame decodes to the same command as the general path's."""
    composer = Composer("PG-ü", ProducerConfig(), lambda: "id")
    message = Message("%DLQ%orders", body, tags=tags, keys=keys)
    out = composer.batch([message]) if batch else composer.message(message)
    queue = MessageQueue("%DLQ%orders", 'broker"a%d', 3)
    decoder = FrameDecoder()
    decoder.feed(composer.frame(out, queue, 1_234, 77))
    frame = decoder.next_frame()
    assert frame is not None
    expected = composer.command(out, queue, 1_234)
    expected.opaque = 77
    assert decode_command(frame) == expected


async def test_trace_tells_every_attempt(tmp_path: Path) -> None:
    """A Pub for each stored message, a PubAttempt for each failed, repeated and one-way attempt; keys as Apache's."""
    async with fake_cluster({"orders": 1, "RMQ_SYS_TRACE_TOPIC": 1}, 2) as cluster:
        config = ProducerConfig(trace=TraceConfig(spool_dir=tmp_path, linger_ms=10))
        cluster.broker("broker-a").script = on_code(
            SEND, lambda command: refuse(2)(command) if command.ext["b"] == "orders" else None
        )
        async with Producer("PG", cluster.namesrv, trace=True, config=config) as producer:
            results = [await producer.send(Message("orders", b"x", keys="k1 k2")) for _ in range(2)]
            one_way = await producer.send_oneway(Message("orders", b"y"), queue=MessageQueue("orders", "broker-b", 0))
        messages = [m for broker in cluster.brokers for m in broker.messages("RMQ_SYS_TRACE_TOPIC")]
        records = [record for message in messages for record in decode_trace(message.body)[0]]
        pubs = {record.msg_id: record for record in records if isinstance(record, Pub)}
        attempts = [record for record in records if isinstance(record, PubAttempt)]
        assert set(pubs) == {result.msg_id for result in results}
        pub = pubs[results[0].msg_id]
        assert (pub.group_name, pub.topic, pub.keys, pub.region_id) == ("PG", "orders", "k1 k2", "TestRegion")
        assert pub.store_host == cluster.broker("broker-b").address
        assert pub.offset_msg_id == results[0].offset_msg_id
        failed = [record for record in attempts if record.outcome == "ERROR"]
        repeated = [record for record in attempts if record.outcome == "OK"]
        assert {record.send_id for record in failed} == {record.send_id for record in repeated} != set()
        assert (failed[0].attempt, failed[0].is_final, failed[0].response_code) == (1, False, 2)
        assert (repeated[0].attempt, repeated[0].is_final) == (2, True)
        assert [record.msg_id for record in attempts if record.outcome == "ONEWAY"] == [one_way]
        keys = {key for message in messages for key in message.keys}
        assert keys == {"k1", "k2", one_way} | set(pubs)


async def test_trace_is_silent_where_the_broker_says_so(tmp_path: Path) -> None:
    """TRACE_ON=false in the reply suppresses the Pub record."""
    async with fake_cluster({"orders": 1, "RMQ_SYS_TRACE_TOPIC": 1}) as cluster:
        cluster.brokers[0].trace_on = "false"
        config = ProducerConfig(trace=TraceConfig(spool_dir=tmp_path))
        async with Producer("PG", cluster.namesrv, trace=True, config=config) as producer:
            await producer.send(Message("orders", b"x"))
        assert cluster.bodies("RMQ_SYS_TRACE_TOPIC") == []
