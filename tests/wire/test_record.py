"""Message records: the reference's vector, recorded records, round trips, damage."""

import contextlib
import struct
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    CompressionError,
    CompressionType,
    Host,
    RecordError,
    RecordHead,
    body_crc,
    check_record,
    compress,
    cut_records,
    decode_head,
    decode_record,
    decode_records,
    encode_properties,
    encode_record,
    open_record,
    open_records,
    read_records,
)
from mqtrail.wire.record_messages import RESYNCS_MAX, split_records

from .conftest import RecordedFrame

VECTOR = bytes.fromhex(
    "00000074 daa320a7 00000000 00000003 00000000 000000000000002a 000000000003a2b1 00000000"
    "0000018bcfe56800 c0a801090000c822 0000018bcfe56805 c0a8010100002a9f 00000000 0000000000000000"
    "00000005 68656c6c6f 09 546f70696354657374 000b 4b455953 01 6b31206b32 02"
)
BORN = Host("192.168.1.9", 51234)
STORE = Host("192.168.1.1", 10911)
PULL_CODES = (11, 361, 12, 33)


def record(topic: str = "T", body: bytes = b"b", born: Host = BORN, store: Host = STORE, sys_flag: int = 0) -> bytes:
    return encode_record(
        topic,
        body,
        b"KEYS\x01k\x02",
        queue_id=3,
        queue_offset=42,
        physical_offset=7,
        born_timestamp_ms=1,
        born_host=born.packed(),
        store_timestamp_ms=2,
        store_host=store.packed(),
        sys_flag=sys_flag,
    )


def test_vector_of_the_reference() -> None:
    """The reference's bytes decode to its values, and are written again; its CRC field was left 0."""
    message, end = decode_record(VECTOR)
    assert end == len(VECTOR) == message.store_size
    assert (message.topic, message.body, message.keys) == ("TopicTest", b"hello", ("k1", "k2"))
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 42, 238257)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1700000000000, 1700000000005)
    assert (message.born_host, message.store_host) == (BORN, STORE)
    assert message.msg_id == "C0A8010100002A9F000000000003A2B1"
    written = encode_record(
        "TopicTest",
        b"hello",
        b"KEYS\x01k1 k2\x02",
        queue_id=3,
        queue_offset=42,
        physical_offset=238257,
        born_timestamp_ms=1700000000000,
        born_host=BORN.packed(),
        store_timestamp_ms=1700000000005,
        store_host=STORE.packed(),
        crc=0,
    )
    assert written == VECTOR
    with pytest.raises(RecordError, match="3610a686"):
        check_record(VECTOR)
    assert check_record(VECTOR, crc=False) == decode_head(VECTOR)


@pytest.mark.parametrize(("body", "crc"), [(b"", 0), (b"hello", 0x3610A686), (b"hi", 0x58932AAC), (b"a", 0x68B7BE43)])
def test_body_crc_vectors(body: bytes, crc: int) -> None:
    assert body_crc(body) == crc


def test_recorded_records_are_whole_and_are_written_again(recorded: list[RecordedFrame]) -> None:
    """Each recorded record has a valid CRC, and encoding its parts gives its bytes."""
    count = 0
    for line in recorded:
        if not line.is_reply or line.request_code not in PULL_CODES or line.facts["code"] != 0:
            continue
        messages = decode_records(line.body)
        for data, message in zip(split_records(line.body), messages, strict=True):
            head = check_record(data)
            written = encode_record(
                message.topic,
                data[head.body_start : head.body_end],
                data[head.properties_start : head.properties_end],
                queue_id=head.queue_id,
                queue_offset=head.queue_offset,
                physical_offset=head.physical_offset,
                born_timestamp_ms=head.born_timestamp_ms,
                born_host=head.born_host,
                store_timestamp_ms=head.store_timestamp_ms,
                store_host=head.store_host,
                sys_flag=head.sys_flag,
                flag=head.flag,
                reconsume_times=head.reconsume_times,
                prepared_transaction_offset=head.prepared_transaction_offset,
            )
            assert written == data
            count += 1
    assert count >= 20


hosts = st.builds(Host, st.ip_addresses().map(str), st.integers(0, 65535))
int64s = st.integers(-(2**63), 2**63 - 1)


@given(
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=150),
    st.binary(max_size=50),
    st.dictionaries(st.sampled_from(["KEYS", "TAGS", "a"]), st.sampled_from(["1", "x y", "订单"])),
    hosts,
    hosts,
    st.sampled_from(CompressionType) | st.none(),
    int64s,
)
def test_round_trip(
    topic: str, body: bytes, properties: dict[str, str], born: Host, store: Host, kind: CompressionType | None, at: int
) -> None:
    """Any topic length, address family and compression is read back, also between other records."""
    text = encode_properties(properties).encode()
    data = encode_record(
        topic,
        body if kind is None else compress(body, kind),
        text,
        queue_id=3,
        queue_offset=at,
        physical_offset=at,
        born_timestamp_ms=at,
        born_host=born.packed(),
        store_timestamp_ms=at,
        store_host=store.packed(),
        sys_flag=0 if kind is None else kind.sys_flag,
        reconsume_times=2,
        prepared_transaction_offset=at,
        flag=-1,
    )
    head = check_record(data)
    assert head.magic == (MAGIC_V1 if len(topic.encode()) <= 127 else MAGIC_V2)
    message, end = decode_record(b"xx" + data + b"yy", 2, "broker-a")
    assert end == 2 + len(data)
    assert (message.topic, message.body, message.properties) == (topic, body, properties)
    assert (message.born_host, message.store_host, message.broker_name) == (born, store, "broker-a")
    assert {message.queue_offset, message.physical_offset, message.born_timestamp_ms} == {at}
    assert message.prepared_transaction_offset == message.store_timestamp_ms == at
    assert (message.flag, message.reconsume_times, message.queue_id) == (-1, 2, 3)
    assert decode_records(data + data, "broker-a") == [message, message]
    assert split_records(data + data) == [data, data]
    for view in (memoryview(data), bytearray(data)):
        assert decode_head(view) == head


def test_the_writer_sets_the_hosts_bits_itself() -> None:
    """A client's bits 0x10 and 0x20 are ignored: the sizes of the packed hosts decide."""
    wrong = record(sys_flag=0x30 | 0x4)
    assert decode_head(wrong).sys_flag == 0x4
    v6 = Host("fd00::2", 1)
    assert decode_head(record(born=v6)).sys_flag == 0x10
    assert decode_head(record(store=v6)).sys_flag == 0x20
    assert decode_head(record(born=v6, store=v6)).sys_flag == 0x30


@given(st.integers(0, 120), st.integers(0, 255))
def test_a_damaged_byte_is_read_or_refused(at: int, byte: int) -> None:
    """For any wrong byte and any truncation, only documented errors are raised."""
    data = bytearray(record(topic="Topic", born=Host("fd00::2", 1)))
    data[at % len(data)] = byte
    with contextlib.suppress(RecordError, CompressionError):
        decode_record(data)
    for cut in (at % len(data), len(data) - 1):
        with pytest.raises(RecordError):
            decode_head(data[:cut])


@given(st.binary(max_size=150))
def test_garbage_is_refused(data: bytes) -> None:
    with contextlib.suppress(RecordError, CompressionError):
        decode_records(data)
    with contextlib.suppress(RecordError):
        split_records(data)


@pytest.mark.parametrize(
    ("patch_at", "patch", "what"),
    [
        (0, "00000001", "record size of 1 "),
        (0, "7fffffff", "record size"),
        (4, f"{MAGIC_BLANK:08x}", "magic 0xcbd43194"),
        (36, "00000030", "IPv6|body of"),
        (84, "ffffffff", "body of -1"),
        (84, "00000fff", "body of 4095"),
        (93, "80", "topic of 128"),
        (93, "7f", "topic of 127"),
        (103, "7fff", "properties of 32767"),
        (103, "0000", "properties of 0"),
    ],
)
def test_damage_is_named(patch_at: int, patch: str, what: str) -> None:
    """Each length is checked against the record's size, and the error has the value found."""
    data = bytearray(VECTOR)
    data[patch_at : patch_at + len(patch) // 2] = bytes.fromhex(patch)
    with pytest.raises(RecordError, match=what):
        decode_head(data)


def test_a_broken_body_does_not_hide_its_record() -> None:
    """A body that cannot be decompressed and bytes that are not a record are different errors."""
    data = record(body=b"no zlib", sys_flag=0x301)
    assert check_record(data).topic == "T"
    with pytest.raises(CompressionError, match="type 3"):
        decode_record(data)


def test_an_undecodable_message_says_why() -> None:
    """Its body is as stored; the other fields are read."""
    message = open_record(record(body=b"no zlib", sys_flag=0x301), "broker-a")
    assert (message.topic, message.keys, message.body, message.broker_name) == ("T", ("k",), b"no zlib", "broker-a")
    assert "type 3" in str(message.undecodable)
    large = record(body=compress(bytes(5_000), CompressionType.ZSTD), sys_flag=0x201)
    assert (open_record(large).undecodable, open_record(large).expanded_size) == (None, 5_000)
    assert "declares 5000 bytes" in str(open_record(large, body_size_max=4_999).undecodable)
    damaged = VECTOR[:93] + b"\x7f" + VECTOR[94:]
    message = open_record(damaged)
    assert (message.topic, message.body, message.queue_offset) == ("", damaged, 42)
    assert "topic of 127" in str(message.undecodable)


def test_the_bodies_of_a_reply_are_bounded_together() -> None:
    """Decoding stops at the limit, but after the first message at the earliest; the others are undecodable."""
    body = compress(bytes(40_000_000), CompressionType.ZSTD)
    records = [record(body=body, sys_flag=0x201)] * 5
    bounds: dict[str, Any] = {"body_size_max": 50_000_000, "expanded_size_max": 100_000_000}
    assert len(list(open_records(records, **bounds))) == 2
    assert len(list(open_records(records, **{**bounds, "expanded_size_max": -5}))) == 1
    broken = record(body=b"no zstd", sys_flag=0x201)
    assert [one.undecodable is None for one in open_records([broken, record()], **bounds)] == [False, True]
    body = compress(bytes(30_000_000), CompressionType.ZSTD)
    read = read_records(b"".join([record(body=body, sys_flag=0x201)] * 5 + [record()]))
    assert [one.undecodable is None for one in read] == [True] * 4 + [False, True]
    assert "pull this message alone" in str(read[4].undecodable)


@given(st.lists(st.one_of(st.just(record()), st.binary(min_size=1, max_size=150)), max_size=5))
def test_records_between_damage_are_found(pieces: list[bytes]) -> None:
    """Cutting loses no byte and no whole record, and decoding the pieces never raises."""
    good = record()
    data = b"".join(pieces)
    cut = cut_records(data)
    assert b"".join(cut) == data
    for one in cut:
        open_record(one)
    if all(piece == good or int.from_bytes(piece[:4].ljust(4, b"\xff"), "big") > 1 << 20 for piece in pieces):
        assert cut.count(good) == pieces.count(good)


@pytest.mark.parametrize("size", [92, 116, 117, 200, 349])
def test_a_damaged_size_takes_no_neighbour(size: int) -> None:
    """The records behind one whose size is plausible and wrong are found."""
    good = [record(body=b"%d" % number * 20) for number in range(4)]
    assert len(good[0]) != size < 4 * len(good[0])
    bad = size.to_bytes(4, "big") + good[1][4:]
    assert cut_records(b"".join([good[0], bad, *good[2:]])) == [good[0], bad, *good[2:]]


def test_cutting_many_damaged_pieces_is_linear() -> None:
    """A reply full of almost valid records is read once, not once per record."""
    data = (record() + b"\x00") * 20_000
    begun = time.process_time()
    assert len(cut_records(data)) == 40_000
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("almost", [b"\xda\xa3\x20\xa7", struct.pack(">iI", 100, 0xDAA320A7)])
def test_what_looks_like_records_all_over_is_not_tried_all_over(almost: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of such bytes after damage costs a limited number of tries; records before the damage are found."""
    looks = 0

    def counted(*arguments: Any) -> RecordHead:
        nonlocal looks
        looks += 1
        return decode_head(*arguments)

    monkeypatch.setattr("mqtrail.wire.record_messages.decode_head", counted)
    data = b"\xff" * 4 + almost * 100_000
    assert cut_records(record() + data) == [record(), data]
    assert looks <= RESYNCS_MAX + 1  # one for the good record, which no other follows


def test_what_cannot_be_written() -> None:
    """Limits are checked before anything is stored."""
    with pytest.raises(RecordError, match="topic of 0 bytes"):
        record(topic="")
    with pytest.raises(RecordError, match="host of 0 bytes"):
        encode_record(
            "T",
            b"",
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            born_timestamp_ms=0,
            born_host=b"",
            store_timestamp_ms=0,
            store_host=b"",
        )
    arguments: dict[str, Any] = {
        "queue_id": 0,
        "queue_offset": 0,
        "physical_offset": 0,
        "born_timestamp_ms": 0,
        "born_host": BORN.packed(),
        "store_timestamp_ms": 0,
        "store_host": STORE.packed(),
    }
    with pytest.raises(RecordError, match="properties of 32768 bytes"):
        encode_record("T", b"", bytes(32768), **arguments)
    with pytest.raises(RecordError, match="out of its field's range"):
        encode_record("T", b"", **{**arguments, "queue_id": 2**31})


def test_messages_are_values() -> None:
    message = decode_record(VECTOR)[0]
    assert message == decode_record(VECTOR)[0]
    assert message != replace(message, queue_offset=43)
