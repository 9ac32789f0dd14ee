"""Request and reply, and recall: requests on the wire, and the receiver of each reply."""

import asyncio
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import (
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoReply,
    NotARequest,
    Producer,
    ProducerConfig,
    SendFailed,
    TraceConfig,
    make_reply,
)
from mqtrail.wire import (
    CompressionType,
    InvalidParameter,
    Message,
    MessageExt,
    Recall,
    RecallHandle,
    RemotingCommand,
    RequestCode,
    SystemError_,
    compress,
    decode_properties,
    decode_trace,
    encode_command,
    encode_properties,
)
from tests.waiting import until

from ..fake_cluster import FakeBroker, fake_cluster, on_code, refuse

SEND = RequestCode.SEND_MESSAGE_V2
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def push(broker: FakeBroker, properties: dict[str, str], body: bytes, sys_flag: int = 0, **more: str) -> None:
    """Send a reply to the client over its connection, as a broker does."""
    ext = {"producerGroup": "RG", "topic": "C_REPLY_TOPIC", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    ext |= {"queueId": "0", "sysFlag": str(sys_flag), "bornTimestamp": "5", "flag": "3", "storeTimestamp": "6"}
    ext |= {"bornHost": "/127.0.0.1:7", "storeHost": "127.0.0.1:8", "properties": encode_properties(properties)}
    command = RemotingCommand(PUSH, ext | more, body)
    command.opaque = 77
    for connection in broker.connections:
        connection.write(encode_command(command))


async def request_of(broker: FakeBroker, count: int = 1) -> dict[str, str]:
    """Return the properties of the latest request, once there are count of them."""
    await until(lambda: len(broker.of(SEND)) >= count)
    return decode_properties(broker.of(SEND)[-1].ext["i"])


async def test_a_request_gets_its_reply() -> None:
    """The request has the client id and the time; the reply is matched by correlation id, compressed or not."""
    async with fake_cluster({"asks": 1}) as cluster, Producer("PG", cluster.namesrv) as producer:
        (broker,) = cluster.brokers
        asking = asyncio.create_task(producer.request(Message("asks", b"what?", properties={"own": "1"}), 8_000))
        sent = await request_of(broker)
        assert sent["REPLY_TO_CLIENT"] == producer.client_id
        assert sent["TTL"] == "8000"
        assert sent["own"] == "1"
        assert broker.codes().index(RequestCode.HEART_BEAT) < broker.codes().index(SEND)
        back = {"CORRELATION_ID": sent["CORRELATION_ID"], "MSG_TYPE": "reply", "UNIQ_KEY": "R1"}
        push(broker, back | {"CORRELATION_ID": "another"}, b"wrong")
        push(broker, back, compress(b"that" * 100), CompressionType.ZLIB.sys_flag)
        reply = await asking
        assert reply.body == b"that" * 100
        assert (reply.topic, reply.flag, reply.msg_id) == ("C_REPLY_TOPIC", 3, "R1")
        assert (str(reply.born_host), reply.store_timestamp_ms) == ("127.0.0.1:7", 6)
        assert int(reply.properties["ARRIVE_TIME"]) > 0
        await until(lambda: sum(command.is_response and command.opaque == 77 for command in broker.seen) >= 2)
        assert {command.code for command in broker.seen if command.is_response} == {0}


async def test_a_request_without_a_reply() -> None:
    """A stored request without a reply raises NoReply, one that is not stored the error of the send."""
    config = ProducerConfig(retry_count=0)
    async with fake_cluster({"asks": 1}) as cluster, Producer("PG", cluster.namesrv, config=config) as producer:
        with pytest.raises(NoReply, match="no reply arrived within 400 ms"):
            await producer.request(Message("asks", b"what?"), 400)
        cluster.brokers[0].script = on_code(SEND, refuse(14))
        with pytest.raises(SendFailed):
            await producer.request(Message("asks", b"what?"), 3_000)
        assert not producer._client.replies._waiting


async def test_requests_are_bounded_and_end_with_the_producer() -> None:
    """At most requests_max wait; requests that wait at the close get an error."""
    config = ProducerConfig(requests_max=1)
    async with fake_cluster({"asks": 1}) as cluster:
        async with Producer("PG", cluster.namesrv, config=config) as producer:
            asking = asyncio.create_task(producer.request(Message("asks", b"what?"), 60_000))
            await request_of(cluster.brokers[0])
            with pytest.raises(ClientError, match="requests_max"):
                await producer.request(Message("asks", b"what?"))
        with pytest.raises(ClientClosed):
            await asking


async def test_a_reply_that_cannot_be_read_is_refused() -> None:
    """The broker gets code 1."""
    async with fake_cluster({"asks": 1}) as cluster, Producer("PG", cluster.namesrv) as producer:
        (broker,) = cluster.brokers
        await producer.send(Message("asks", b"x"))
        push(broker, {}, b"not zlib", CompressionType.ZLIB.sys_flag)
        await until(lambda: any(command.is_response for command in broker.seen))
        (answer,) = [command for command in broker.seen if command.is_response]
        assert answer.code == 1


def asked(properties: dict[str, str]) -> MessageExt:
    """Return a message as a consumer gets it."""
    from mqtrail.wire import Host

    host = Host("127.0.0.1", 1)
    return MessageExt("asks", b"what?", 0, properties, 0, 0, 0, 0, 0, host, 0, host, 0, 0, 0, 0)


async def test_a_reply_goes_to_the_clusters_reply_topic() -> None:
    """It is sent with code 325 and the properties of the requester; a namespace does not change the reply topic."""
    request = asked({"CLUSTER": "C", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "me", "TTL": "9", "own": "x"})
    async with fake_cluster({"C_REPLY_TOPIC": 1}) as cluster, Producer("RG", cluster.namesrv) as producer:
        (broker,) = cluster.brokers
        broker.script = on_code(REPLY, broker.send)
        await producer.reply(request, b"that")
        (command,) = broker.of(REPLY)
        assert command.ext["b"] == "C_REPLY_TOPIC"
        properties = decode_properties(command.ext["i"])
        assert properties.pop("UNIQ_KEY")
        assert properties == {
            "MSG_TYPE": "reply", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "me", "TTL": "9", "WAIT": "true",
        }  # fmt: skip


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_what_is_no_request_cannot_be_replied_to(missing: str) -> None:
    """The error names the missing property."""
    properties = {"CLUSTER": "C", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "me"}
    del properties[missing]
    with pytest.raises(NotARequest, match=r"CLUSTER|CORRELATION_ID"):
        make_reply(asked(properties), b"that")


HANDLE = RecallHandle("orders", "broker-b", 1_700_000_000_000, "ID1")


async def test_a_recall_goes_to_the_broker_of_the_handle(tmp_path: Path) -> None:
    """The request has the group, topic and handle unchanged; the reply is the id; the trace has a Recall record."""
    config = ProducerConfig(trace=TraceConfig(spool_dir=tmp_path, linger_ms=10))
    topics = {"orders": 1, "RMQ_SYS_TRACE_TOPIC": 1}
    async with fake_cluster(topics, 2) as cluster:
        broker = cluster.broker("broker-b")
        broker.script = on_code(
            RequestCode.RECALL_MESSAGE,
            lambda command: RemotingCommand.reply_to(command, 0, ext={"msgId": "ID1", "MSG_REGION": "R"}),
        )
        async with Producer("PG", cluster.namesrv, config=config, trace=True) as producer:
            assert await producer.recall("orders", HANDLE.encode()) == "ID1"
            (command,) = broker.of(RequestCode.RECALL_MESSAGE)
            assert command.ext == {
                "producerGroup": "PG", "topic": "orders", "recallHandle": HANDLE.encode(), "bname": "broker-b",
            }  # fmt: skip
            broker.script = on_code(RequestCode.RECALL_MESSAGE, refuse(1, "too late"))
            with pytest.raises(SystemError_, match="too late"):
                await producer.recall("orders", HANDLE.encode())
        records: list[Any] = []
        for one in cluster.brokers:
            for message in one.messages("RMQ_SYS_TRACE_TOPIC"):
                records += decode_trace(message.body)[0]
        recalls = {(one.msg_id, one.is_success, one.region_id) for one in records if isinstance(one, Recall)}
        assert recalls == {("ID1", True, "R"), ("ID1", False, "DefaultRegion")}  # either broker may hold either


async def test_a_recall_from_a_broker_that_is_not_known_asks_another() -> None:
    """Any broker of the topic is asked, as behind a proxy, and its reply counts."""
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv) as producer:
        with pytest.raises(Exception, match="fake"):
            await producer.recall("orders", HANDLE.encode())
        assert cluster.brokers[0].of(RequestCode.RECALL_MESSAGE)


async def test_what_cannot_be_recalled() -> None:
    """Retry and dead-letter topics, and texts that are no handle, are refused."""
    async with Producer("PG", "127.0.0.1:1") as producer:
        for topic in ("%RETRY%g", "%DLQ%g"):
            with pytest.raises(InvalidMessage, match="recall"):
                await producer.recall(topic, HANDLE.encode())
        for text in ("", "abc", "djEgdCBi", "ünsinn", HANDLE.encode()[:-1], "djIgdCBiIDUgeA=="):
            with pytest.raises(InvalidParameter, match="recall handle"):
                await producer.recall("orders", text)


def test_the_handles_text() -> None:
    """The text equals that of RecallMessageHandle."""
    assert RecallHandle("t", "b", 5, "x").encode() == "djEgdCBiIDUgeA=="
    assert RecallHandle.decode("djEgdCBiIDUgeA==") == RecallHandle("t", "b", 5, "x")
    with pytest.raises(InvalidParameter, match="recall handle"):
        RecallHandle.decode(urlsafe_b64encode(f"v1 t b {'9' * 5_000} x".encode()).decode())
