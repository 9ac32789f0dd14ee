"""Texts and bodies of POP consumption: bytes of Apache's own classes, and round trips."""

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    BatchAck,
    BatchAckBody,
    BodyError,
    HeaderError,
    MessageQueue,
    OrderInfoTable,
    PopAck,
    PopCheckPoint,
    PopHandle,
    PopHeader,
    QueryAssignmentBody,
    QueueAssignment,
    QueueAssignments,
    QueueOrderInfo,
    RequestMode,
    RequestModeTable,
    decode_message_offsets,
    decode_order_counts,
    decode_start_offsets,
    encode_message_offsets,
    encode_order_counts,
    encode_start_offsets,
    marker_of,
    pop_retry_topic,
    pop_topic_of,
    topic_of_marker,
)
from mqtrail.wire.body import Body
from mqtrail.wire.pop_info import is_pop_retry_v2

# Each body and what the Java classes of 5.3.3 write for it with fastjson (run, not guessed).
CHECK_POINT = PopCheckPoint(41, 1700000000123, 60000, 0, 3, 2, "orders", "g", diffs=(0, 1, 4), broker_name="broker-a")
ORDER_INFO = QueueOrderInfo(
    1700000001123, 60000, (41, 1, 4), {42: 1700000099000}, {41: 1, 42: 1, 45: 1}, 1795249227301, 1, "att-2"
)
GOLDEN: list[tuple[Body, str]] = [
    (
        CHECK_POINT,
        '{"bm":0,"bn":"broker-a","c":"g","d":[0,1,4],"it":60000,"n":3,"pt":1700000000123,"q":2,'
        '"reviveTime":1700000060123,"ro":0,"so":41,"t":"orders"}',
    ),
    (
        PopAck(42, 41, "g", "orders", 2, 1700000000123, "broker-a"),
        '{"ao":42,"bn":"broker-a","c":"g","pt":1700000000123,"q":2,"so":41,"t":"orders"}',
    ),
    (
        PopAck(-1, 41, "g", "orders", 2, 1700000000123, "broker-a", (41, 45)),
        '{"ao":-1,"aol":[41,45],"bn":"broker-a","c":"g","pt":1700000000123,"q":2,"so":41,"t":"orders"}',
    ),
    (
        BatchAckBody("broker-a", (BatchAck("g", "orders", "0", 41, 2, 3, 1700000000123, 60000, "EQI="),)),
        '{"acks":[{"b":"EQI=","c":"g","it":60000,"pt":1700000000123,"q":2,"r":"0","rq":3,"so":41,"t":"orders"}],'
        '"brokerName":"broker-a"}',
    ),
    (
        QueryAssignmentBody("orders", "g", "c1", "AVG"),
        '{"clientId":"c1","consumerGroup":"g","messageModel":"CLUSTERING","strategyName":"AVG","topic":"orders"}',
    ),
    (
        QueueAssignments((QueueAssignment(MessageQueue("orders", "broker-a", -1), "POP"),)),
        '{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":-1,"topic":"orders"},'
        '"mode":"POP"}]}',
    ),
    (QueueAssignments(None), "{}"),
    (QueueAssignments(()), '{"messageQueueAssignments":[]}'),
    (
        RequestModeTable({"orders": {"g": RequestMode("orders", "g", "POP", 0)}}),
        '{"messageRequestModeMap":{"orders":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":0,'
        '"topic":"orders"}}}}',
    ),
    (
        OrderInfoTable({"orders@g": {2: ORDER_INFO}}),
        '{"table":{"orders@g":{2:{"a":"att-2","cm":1,"i":60000,"l":1795249227301,"o":[41,1,4],'
        '"oc":{41:1,42:1,45:1},"ot":{42:1700000099000},"popTime":1700000001123}}}}',
    ),
]


@pytest.mark.parametrize(("body", "text"), GOLDEN)
def test_bodies_as_java_writes_them(body: Body, text: str) -> None:
    """One table holds both directions: bytes of 5.3.3, and the value read back from them."""
    assert body.encode(strict=False).decode() == text
    assert type(body).decode(text) == body


def test_check_point_put_again() -> None:
    """The number of attempts to revive a message is a text, and absent the first time."""
    text = CHECK_POINT.encode().decode().replace('"so"', '"rp":"2","so"')
    assert PopCheckPoint.decode(text).re_puts == "2"


def test_check_point_offsets() -> None:
    """Bits mean offsets: those of the list, or successive ones in an old check point."""
    assert CHECK_POINT.queue_offsets() == (41, 42, 45)
    assert PopCheckPoint(7, count=3).queue_offsets() == (7, 8, 9)
    assert CHECK_POINT.revive_ms == 1700000060123


def test_acks_by_long_names() -> None:
    """Releases before 5.1 wrote the members' whole names."""
    text = (
        '{"ackOffset":42,"brokerName":"broker-a","consumerGroup":"g","popTime":5,"queueId":2,"startOffset":41,'
        '"topic":"t"}'
    )
    assert PopAck.decode(text) == PopAck(42, 41, "g", "t", 2, 5, "broker-a")


def test_bit_set() -> None:
    """Java's BitSet {0, 4, 9} as bytes; it has no more bits than a pop may have messages."""
    ack = BatchAck(start_offset=41, bit_set="EQI=")
    assert ack.queue_offsets(32) == [41, 45, 50]
    assert BatchAck.pack([0, 4, 9]) == "EQI="
    with pytest.raises(BodyError, match="3 acknowledged"):
        ack.queue_offsets(2)
    with pytest.raises(BodyError, match="base64"):
        BatchAck(bit_set="!").queue_offsets(32)


def test_a_long_bit_set_is_read_in_one_pass() -> None:
    """One bit at the end of a megabyte: the cost grows with its bytes, not with their square."""
    began_s = time.process_time()
    text = base64.b64encode(bytes(1 << 20) + b"\x81").decode()
    assert BatchAck(start_offset=1, bit_set=text).queue_offsets(32) == [8 * (1 << 20) + 1, 8 * (1 << 20) + 8]
    assert time.process_time() - began_s < 10  # bit by bit it takes hours


HANDLES = [
    ("41 1700000000123 60000 3 1 broker-a 0 45", PopHandle(41, 1700000000123, 60000, 3, "1", "broker-a", 0, 45)),
    ("41 1700000000123 60000 999 0 broker-a 2", PopHandle(41, 1700000000123, 60000, 999, "0", "broker-a", 2)),
]


@pytest.mark.parametrize(("text", "handle"), HANDLES)
def test_handles(text: str, handle: PopHandle) -> None:
    """ExtraInfoUtil's texts, with and without the message's own offset."""
    assert (handle.encode(), PopHandle.decode(text)) == (text, handle)
    assert handle.is_orderly == (" 999 " in text)


@pytest.mark.parametrize("text", ["", "1 2 3", "1 2 x 4 0 b 6", "1 2 3 4 0 b 6 x"])
def test_broken_handles(text: str) -> None:
    with pytest.raises(HeaderError, match="found"):
        PopHandle.decode(text)


def test_offset_texts_as_java_writes_them() -> None:
    """ExtraInfoUtil's three lists."""
    starts = [("0", 2, 41), ("1", 0, 7)]
    assert encode_start_offsets(starts) == "0 2 41;1 0 7"
    assert decode_start_offsets("0 2 41;1 0 7") == {("0", 2): 41, ("1", 0): 7}
    assert encode_message_offsets([("0", 2, [41, 42, 45]), ("1", 0, [7])]) == "0 2 41,42,45;1 0 7"
    assert decode_message_offsets("0 2 41,42,45;1 0 7") == {("0", 2): [41, 42, 45], ("1", 0): [7]}
    assert encode_order_counts("0", 2, {41: 1, 42: 1}, 1) == "0 qo2%41 1;0 qo2%42 1;0 2 1"
    assert encode_order_counts("0", 2, {}, 0) == "0 2 0"
    counts = decode_order_counts("0 qo2%41 1;0 qo2%42 1;0 2 1")
    assert (counts.queues, counts.messages) == ({("0", 2): 1}, {("0", 2, 41): 1, ("0", 2, 42): 1})
    assert decode_start_offsets("") == {}
    for text in ("0 2", "0 2 1;0 2 1", "0 x 1"):
        with pytest.raises(HeaderError, match="found"):
            decode_start_offsets(text)


def test_retry_topics() -> None:
    """KeyBuilder's names, and their markers."""
    first, second = pop_retry_topic("orders", "g"), pop_retry_topic("orders", "g", v2=True)
    assert (first, second) == ("%RETRY%g_orders", "%RETRY%g+orders")
    assert [marker_of(topic) for topic in ("orders", first, second)] == ["0", "1", "2"]
    assert [pop_topic_of(topic, "g") for topic in ("orders", first, second)] == ["orders"] * 3
    assert [topic_of_marker(marker, "orders", "g") for marker in "012"] == ["orders", first, second]
    assert [is_pop_retry_v2(topic) for topic in ("a+b", first, second)] == [False, False, True]
    with pytest.raises(HeaderError, match="marker"):
        topic_of_marker("3", "orders", "g")


OFFSETS = st.integers(0, 2**63 - 1)
QUEUES = st.tuples(st.sampled_from(["0", "1", "2"]), st.integers(-1, 65_535))
NAMES = st.text("abcXYZ09_-", min_size=1, max_size=20)


@given(
    st.builds(
        PopHandle,
        OFFSETS,
        OFFSETS,
        OFFSETS,
        st.integers(0, 999),
        st.sampled_from(["0", "1", "2"]),
        NAMES,
        st.integers(0, 65_535),
        st.none() | OFFSETS,
    )
)
def test_handles_round(handle: PopHandle) -> None:
    assert PopHandle.decode(handle.encode()) == handle


@given(st.dictionaries(QUEUES, OFFSETS))
def test_start_offsets_round(starts: dict[tuple[str, int], int]) -> None:
    assert decode_start_offsets(encode_start_offsets((*queue, offset) for queue, offset in starts.items())) == starts


@given(st.dictionaries(QUEUES, st.lists(OFFSETS, min_size=1, max_size=32)))
def test_message_offsets_round(queues: dict[tuple[str, int], list[int]]) -> None:
    text = encode_message_offsets((*queue, offsets) for queue, offsets in queues.items())
    assert decode_message_offsets(text) == queues


@given(QUEUES, st.dictionaries(OFFSETS, st.integers(1, 100), max_size=32), st.integers(0, 100))
def test_order_counts_round(queue: tuple[str, int], messages: dict[int, int], least: int) -> None:
    counts = decode_order_counts(encode_order_counts(*queue, messages, least))
    assert counts.queues == {queue: least}
    assert counts.messages == {(*queue, offset): count for offset, count in messages.items()}


@given(st.sets(st.integers(0, 500), max_size=32), st.integers(0, 2**40))
def test_bit_sets_round(diffs: set[int], start: int) -> None:
    ack = BatchAck(start_offset=start, bit_set=BatchAck.pack(diffs))
    assert ack.queue_offsets(32) == [start + diff for diff in sorted(diffs)]


@given(st.text(max_size=60))
def test_garbage_gives_only_documented_errors(text: str) -> None:
    for decode in (PopHandle.decode, decode_start_offsets, decode_message_offsets, decode_order_counts):
        try:
            decode(text)
        except HeaderError:
            continue


def test_pop_header() -> None:
    """The ext fields of a 5.3.3 client's pop."""
    ext = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "15000",
        "bornTime": "1700000000000",
        "initMode": "1",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    header = PopHeader.from_ext(ext)
    assert header == PopHeader("g", "orders", -1, 32, 60000, 15000, 1700000000000, 1, "TAG", "*")
    assert header.to_ext() == ext
