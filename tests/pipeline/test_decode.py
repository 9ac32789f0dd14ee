"""Decoding in Spark gives the rows of `trail.trace_rows`, record by record, whatever the text."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from mqtrail import trail
from mqtrail.pipeline.columns import Stored
from mqtrail.pipeline.decode import (
    EVENTS,
    GAPS,
    HOLDS,
    SUSPECTS,
    TRACE_SCHEMA,
    decoded,
    gaps,
    rejects,
    suspected_events,
)
from mqtrail.wire import (
    TRACE_LAYOUTS,
    FieldKind,
    MessageQueue,
    decode_head,
    encode_record,
)

ID = "C0A8010904D218B4AAC22F1C0A7B0000"
KIND_TEXTS = {
    FieldKind.TEXT: ["text", "null", "", "ü 例", " padded "],
    FieldKind.INT: ["7", "0", "-1", "2147483647", "+5", "007"],
    FieldKind.LONG: ["1700000000123", "0", "-9223372036854775808", "9223372036854775807"],
    FieldKind.TIME: ["1700000000123", "0", "+5", "007", "99999999999999", "000000000000000007"],
    FieldKind.COUNT: ["7", "0", "999999999999999", "-0"],
    FieldKind.BOOL: ["true", "false", "TRUE", "null", "", "maybe"],
    FieldKind.MSG_TYPE: ["0", "4", "+3"],
    FieldKind.TRANSACTION_STATE: ["COMMIT_MESSAGE", "UNKNOW"],
}
WRONG = ["", "null", " 12", "12 ", "1.5", "x", "9" * 20, "2147483648", "-2147483649", "9223372036854775808", "5", "\t1"]
WRONG += ["-1", "100000000000000", "1000000000000000", "9223372036854775807", "-9223372036854775808"]


def body_text(body: bytes) -> str:
    """The body's text as the source makes it."""
    record = encode_record(
        "T",
        body,
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_timestamp_ms=0,
        born_host=bytes(8),
        store_timestamp_ms=0,
        store_host=bytes(8),
    )
    text = Stored(MessageQueue("T", "b", 0), record, decode_head(record), with_body=True).body_text()
    assert text is not None
    return text


def pulled(spark: SparkSession, bodies: Iterable[bytes]) -> DataFrame:
    """Trace messages at offsets 0, 1, … as the source gives them."""
    rows = [
        ("TRACE", "broker-a", 3, offset, None, None, 50, "10.0.0.9:5", 60, body_text(body), None)
        for offset, body in enumerate(bodies)
    ]
    return spark.createDataFrame(rows, TRACE_SCHEMA).coalesce(1)


def expected_rows(bodies: Iterable[bytes]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events and rejects of the bodies as trail.trace_rows makes them."""
    events: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    for offset, body in enumerate(bodies):
        place = trail.TracePlace("c", "broker-a", "TRACE", 3, offset, 50, 60, "10.0.0.9:5")
        for relation, row in trail.trace_rows(place, body):
            (rejected if relation is trail.TRACE_REJECTS else events).append(row)
    return events, rejected


def assert_equal(spark: SparkSession, bodies: list[bytes]) -> None:
    """Spark's events and rejects of the bodies are those of trail.trace_rows."""
    rows = decoded(pulled(spark, bodies), "c").cache()
    try:
        plain = rows.filter(f"{HOLDS} = '{EVENTS}'").drop(HOLDS)
        suspects = rows.filter(f"{HOLDS} = '{SUSPECTS}'").drop(HOLDS)
        events = [row.asDict() for row in plain.unionByName(suspected_events(suspects)).collect()]
        rejected = [row.asDict() for row in rejects(suspects).collect()]
    finally:
        rows.unpersist()
    wanted_events, wanted_rejects = expected_rows(bodies)
    order = ("queue_offset", "record_no", "item_no")
    events.sort(key=lambda row: [row[name] for name in order])
    rejected.sort(key=lambda row: [row[name] for name in order[:2]])
    for found, wanted in zip(events, wanted_events, strict=False):
        assert found == wanted, bodies[wanted["queue_offset"]]
    for found, wanted in zip(rejected, wanted_rejects, strict=False):
        assert found == wanted, bodies[wanted["queue_offset"]]
    assert (len(events), len(rejected)) == (len(wanted_events), len(wanted_rejects))


def record_text(record_type: str, texts: Iterable[str]) -> str:
    return "\x01".join([record_type, *texts]) + "\x02"


def layout_bodies() -> Iterator[bytes]:
    """Every layout with every text its fields' kinds may have; and each field with each text it may not."""
    for layouts in TRACE_LAYOUTS.values():
        for layout in layouts:
            plain = [KIND_TEXTS[field.kind][0] for field in layout.fields]
            counts = {layout.count_min, layout.count_max or layout.count_min + 2}
            for count in counts:
                more = [""] * (count - layout.count_min)
                yield record_text(layout.record_type, plain + more).encode()
                for place, field in enumerate(layout.fields):
                    for text in KIND_TEXTS[field.kind] + WRONG:
                        changed = [*plain[:place], text, *plain[place + 1 :], *more]
                        yield record_text(layout.record_type, changed).encode()
        for count in range(layouts[0].count_min):
            yield record_text(layouts[0].record_type, ["1"] * max(count - 1, 0)).encode()


def test_every_layout_and_every_field(spark: SparkSession) -> None:
    """All layouts there are, each field with good and bad texts, decode as wire decodes them."""
    assert_equal(spark, list(layout_bodies()))


PUB = f"Pub\x01170\x01R\x01PG\x01T\x01{ID}\x01A\x01k1 k2\x0110.0.0.1:1\x0111\x017\x010\x01OID\x01true\x02"
BATCH = "Pub\x01170\x01R\x01PG\x01T\x01id1,id2,id3\x01null\x01null\x01h:1\x0111\x017\x010\x01o1,o2,o3\x01true\x02"
CLOUD = f"SubAfter\x01REQ\x01{ID}\x0115\x01true\x01k\x010\x01"


MESSAGES = [
    "",
    "\x02\x02",
    PUB * 3,
    PUB.rstrip("\x02"),
    BATCH,
    BATCH.replace("o1,o2,o3", "o1"),
    BATCH.replace("id1,id2,id3", "id1,,id3,"),
    BATCH.replace("Pub\x01170\x01R", "Pub\x01x\x01R"),
    "TraceBatch\x011\x01client@1\x01start\x013\x01170\x010\x02" + PUB,
    "TraceBatch\x011\x02" + PUB,
    PUB + "TraceBatch\x011\x01client@1\x01start\x013\x01170\x010\x02",
    "Delivered\x01170\x01b\x01G\x01T\x013\x01 5,6 ,1_0,5.7,+5,007,٣,1e2,9223372036854775808,-1,,5\x01c\x02",
    "Delivered\x01170\x01b\x01G\x01T\x013\x014,5,x,7\x01null\x02Delivered\x01170\x01b\x01G\x01T\x013\x01null\x01c\x02",
    "PubAttempt\x01170\x01R\x01PG\x01T\x01a,b\x01null\x01null\x01null\x01null\x01s1\x011\x013\x01NOT_SENT\x01null"
    "\x01null\x01null\x01c@1\x0111\x02",
    CLOUD + "\x02" + PUB,
    CLOUD + CLOUD + PUB,
    CLOUD + PUB + PUB,
    PUB + CLOUD + "SubBefore\x01170\x01R\x01G\x01REQ\x01M\x010\x01null\x02",
    "Unknown\x01x\x02" + PUB,
    "\x01\x01\x02" + PUB,
    "x" * 3_000 + "\x02",
    "Pub\x01" + "y" * 100 + "\x02",
    b"Pub\x01\xff\xfe\x02\xc3".decode("latin-1"),
]


def test_messages(spark: SparkSession) -> None:
    """Whole messages: none or several records, batches, missing ends, unknown types, our own head; and bytes that are
    no UTF-8, which become U+FFFD."""
    foreign = PUB.encode().replace(b"k1 k2", b"\xc4\xe3 \xed\xa0\x80\xff")
    assert_equal(spark, [*map(str.encode, MESSAGES), foreign])


TOKENS = [
    *TRACE_LAYOUTS,
    "\x01",
    "\x01",
    "\x01",
    "\x01",
    "\x02",
    "1",
    "170",
    "null",
    "true",
    "id,id",
    " 1",
    "é",
    "-5",
    "x",
]


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_text(spark: SparkSession, data: st.DataObject) -> None:
    """Texts put together from what records are made of decode alike, many in one job."""
    body = st.one_of(
        st.lists(st.sampled_from(TOKENS), max_size=40).map("".join).map(str.encode), st.binary(max_size=40)
    )
    assert_equal(spark, data.draw(st.lists(body, min_size=100, max_size=200)))


def test_mutated_messages(spark: SparkSession) -> None:
    """Good messages with characters and fields cut, doubled, swapped and replaced decode alike."""
    chance = random.Random(20_261_121)
    good = [body.decode() for body in layout_bodies()]
    bodies: list[bytes] = []
    for _ in range(2_500):
        records = "".join(chance.choices(good, k=chance.randint(1, 4)))
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(records) + 1)
            match chance.randrange(5):
                case 0:
                    records = records[:at] + records[at + chance.randint(1, 3) :]
                case 1:
                    records = records[:at] + chance.choice(TOKENS) + records[at:]
                case 2:
                    records = records.replace("\x02", "", 1)
                case 3:
                    pieces = records.split("\x01")
                    chance.shuffle(pieces)
                    records = "\x01".join(pieces)
                case 4:
                    records = records[:at] + records[:at]
        bodies.append(records.encode())
    assert_equal(spark, bodies)


def test_bodies_and_gaps(spark: SparkSession) -> None:
    """A body that cannot be decompressed is a reject of its own, and a range that is gone is a gap."""
    rows = [
        ("TRACE", "broker-a", 3, 7, None, None, 50, "10.0.0.9:5", 60, None, "no zlib"),
        ("TRACE", "broker-a", 3, 8, 12, "EXPIRED", None, None, 61, None, None),
    ]
    found = decoded(spark.createDataFrame(rows, TRACE_SCHEMA), "c")
    suspects = found.filter(f"{HOLDS} = '{SUSPECTS}'")
    assert suspected_events(suspects).collect() == []
    assert [row.asDict() for row in rejects(suspects).collect()] == [
        {
            "cluster": "c",
            "broker_name": "broker-a",
            "trace_topic": "TRACE",
            "queue_id": 3,
            "queue_offset": 7,
            "record_no": -1,
            "trace_store_ms": 60,
            "trace_born_host": "10.0.0.9:5",
            "reason": "no zlib",
            "record_text": "",
        }
    ]
    assert [row.asDict() for row in gaps(found.filter(f"{HOLDS} = '{GAPS}'"), 99).collect()] == [
        {
            "cluster": "c",
            "broker_name": "broker-a",
            "topic": "TRACE",
            "queue_id": 3,
            "first_offset": 8,
            "end_offset": 12,
            "from_ms": None,
            "to_ms": 61,
            "detected_ms": 99,
            "reason": "EXPIRED",
        }
    ]
