"""Messages, queues and hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import Host, IdError, Message, MessageExt, MessageQueue


def message_ext(**properties: str) -> MessageExt:
    return MessageExt(
        topic="T",
        body=b"b",
        flag=0,
        properties=properties,
        queue_id=3,
        queue_offset=42,
        physical_offset=238257,
        sys_flag=0,
        born_timestamp_ms=1,
        born_host=Host("10.0.0.9", 5),
        store_timestamp_ms=2,
        store_host=Host("192.168.1.1", 10911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=0,
        store_size=100,
        broker_name="b",
    )


@given(st.ip_addresses(), st.integers(0, 65535))
def test_hosts_survive_packing(ip: object, port: int) -> None:
    """8 bytes for IPv4, 20 for IPv6, and back."""
    host = Host(str(ip), port)
    assert len(host.packed()) in (8, 20)
    assert Host.unpack(host.packed()) == host
    assert Host.unpack(memoryview(host.packed())) == host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("127.0.0.1:10911", Host("127.0.0.1", 10911)),
        ("/127.0.0.1:10911", Host("127.0.0.1", 10911)),
        ("[fd00::2]:9876", Host("fd00::2", 9876)),
        ("fd00::2:9876", Host("fd00::2", 9876)),
    ],
)
def test_hosts_are_parsed(text: str, host: Host) -> None:
    assert Host.parse(text) == host


def test_host_text() -> None:
    assert str(Host("127.0.0.1", 10911)) == "127.0.0.1:10911"


@pytest.mark.parametrize(
    "text", ["", "localhost", ":1", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:²", "10.0.0.1:" + "9" * 5_000]
)
def test_texts_that_are_no_hosts(text: str) -> None:
    with pytest.raises(IdError, match="ip:port"):
        Host.parse(text)


def test_what_cannot_be_packed_is_named() -> None:
    with pytest.raises(IdError, match="localhost:1"):
        Host("localhost", 1).packed()
    with pytest.raises(IdError, match="9 bytes"):
        Host.unpack(bytes(9))


def test_wire_properties_of_a_message() -> None:
    """Tags, keys and delay become properties, WAIT is always there, and the caller may change the returned map."""
    message = Message("T", b"b", tags="TagA", keys=("k1", "k2"), delay_level=3, properties={"a": "1"})
    properties = message.wire_properties()
    assert properties == {"WAIT": "true", "TAGS": "TagA", "KEYS": "k1 k2", "DELAY": "3", "a": "1"}
    properties["UNIQ_KEY"] = "X"
    assert "UNIQ_KEY" not in message.wire_properties()
    assert Message("T", b"b").wire_properties() == {"WAIT": "true"}
    assert Message("T", b"b", keys="k1 k2", properties={"WAIT": "false"}).wire_properties() == {
        "WAIT": "false",
        "KEYS": "k1 k2",
    }


def test_what_a_consumer_asks_of_a_message() -> None:
    """The client's id and the broker's, keys, tag, delay level and queue come out of the record."""
    message = message_ext(KEYS="k1  k2", TAGS="TagA", DELAY="3", UNIQ_KEY="ID")
    assert message.msg_id == "ID"
    assert message.offset_msg_id == "C0A8010100002A9F000000000003A2B1"
    assert message.keys == ("k1", "k2")
    assert (message.tags, message.delay_level) == ("TagA", 3)
    assert message.queue == MessageQueue("T", "b", 3)


@pytest.mark.parametrize(("text", "level"), [("", 0), ("x", 0), ("-1", -1), ("--1", 0), ("²", 0), ("18", 18)])
def test_delay_levels_of_any_text(text: str, level: int) -> None:
    """A property that is not a number means no delay; ordered consumers write -1 when they give up."""
    assert message_ext(DELAY=text).delay_level == level


def test_a_message_without_a_client_id_goes_by_the_brokers() -> None:
    message = message_ext()
    assert message.msg_id == message.offset_msg_id


def test_queues_are_ordered_by_topic_broker_and_id() -> None:
    queues = [MessageQueue("T", "b", 1), MessageQueue("T", "a", 2), MessageQueue("S", "z", 9)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]


def test_a_place_names_a_queue() -> None:
    """BROKER/QUEUE, both ways; a broker's name may have a slash."""
    for broker in ("broker-a", "a/b"):
        queue = MessageQueue("orders", broker, 3)
        assert queue.place == f"{broker}/3"
        assert MessageQueue.at("orders", queue.place) == queue


@pytest.mark.parametrize("place", ["", "broker-a", "broker-a/", "/1", "broker-a/x", "broker-a/-1"])
def test_what_is_no_place_is_refused(place: str) -> None:
    """The error says what is expected."""
    with pytest.raises(IdError, match=r"expected BROKER/QUEUE, for example broker-a/0"):
        MessageQueue.at("orders", place)
