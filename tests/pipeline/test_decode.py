"""Decoding in Spark gives the rows of `trail.trace_rows`, record by record, whatever the text."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from mqtrail import trail
from mqtrail.pipeline.columns import StoredRecord
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
    BODY_SIZE_MAX,
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
    text = StoredRecord(MessageQueue("T", "b", 0), record, decode_head(record), BODY_SIZE_MAX).body_text()
    assert text is not None
    return text


@dataclass(frozen=True)
class Decoded:
    """Rows by the queue offset of their trace message, as dicts: of all bodies here, which Spark decodes together."""

    events: dict[int, list[dict[str, Any]]]
    rejects: dict[int, list[dict[str, Any]]]
    gaps: list[dict[str, Any]]
    bodies: dict[str, dict[int, bytes]]  # each set of bodies, by queue offset

    def assert_equal(self, bodies_of: str) -> None:
        """Spark's events and rejects of a set of bodies are those of trail.trace_rows."""
        assert self.bodies[bodies_of]
        for queue_offset, body in self.bodies[bodies_of].items():
            events, rejected = expected_rows(queue_offset, body)
            assert self.events.get(queue_offset, []) == events, body
            assert self.rejects.get(queue_offset, []) == rejected, body


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Decoded:
    """All bodies decoded by one query: Spark takes seconds for the code of it, and next to nothing for a body."""
    foreign = PUB.encode().replace(b"k1 k2", b"\xc4\xe3 \xed\xa0\x80\xff")
    sets = {
        "layouts": list(layout_bodies()),
        "messages": [*map(str.encode, MESSAGES), foreign],
        "any": any_bodies(),
        "mutated": mutated_bodies(),
    }
    return decoded_by_spark(spark, sets)


def assert_equal(spark: SparkSession, bodies: list[bytes]) -> None:
    """Spark's events and rejects of the bodies are those of trail.trace_rows."""
    decoded_by_spark(spark, {"all": bodies}).assert_equal("all")


def decoded_by_spark(spark: SparkSession, sets: Mapping[str, list[bytes]]) -> Decoded:
    """Decode PROBLEMS and all sets of bodies."""
    rows: list[tuple[Any, ...]] = list(PROBLEMS)
    bodies: dict[str, dict[int, bytes]] = {}
    for name, texts in sets.items():
        bodies[name] = dict(enumerate(texts, len(rows)))
        rows += [
            ("TRACE", "broker-a", 3, offset, None, None, 50, "10.0.0.9:5", 60, body_text(body), None)
            for offset, body in bodies[name].items()
        ]
    kept = decoded(spark.createDataFrame(rows, TRACE_SCHEMA).coalesce(1), "c").cache()
    try:
        plain = kept.filter(f"{HOLDS} = '{EVENTS}'").drop(HOLDS)
        suspects = kept.filter(f"{HOLDS} = '{SUSPECTS}'").drop(HOLDS)
        return Decoded(
            by_message(plain.unionByName(suspected_events(suspects)), "record_no", "item_no"),
            by_message(rejects(suspects), "record_no"),
            [row.asDict() for row in gaps(kept.filter(f"{HOLDS} = '{GAPS}'"), 99).collect()],
            bodies,
        )
    finally:
        kept.unpersist()


def by_message(rows: DataFrame, *order: str) -> dict[int, list[dict[str, Any]]]:
    """Rows as dicts by their queue offset, in the given order."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in sorted((row.asDict() for row in rows.collect()), key=lambda row: [row[name] for name in order]):
        found.setdefault(row["queue_offset"], []).append(row)
    return found


def expected_rows(queue_offset: int, body: bytes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events and rejects of a body as trail.trace_rows makes them."""
    events: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    place = trail.TracePlace("c", "broker-a", "TRACE", 3, queue_offset, 50, 60, "10.0.0.9:5")
    for relation, row in trail.trace_rows(place, body):
        (rejected if relation is trail.TRACE_REJECTS else events).append(row)
    return events, rejected


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
    BATCH.replace("o1,o2,o3\x01", ""),  # of a client whose Pub has no offset ids
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


def any_bodies() -> list[bytes]:
    """Texts put together from what records are made of, and any bytes: other ones in each run."""
    bodies: list[bytes] = []

    @settings(max_examples=450, phases=[Phase.generate], database=None)
    @given(
        st.one_of(st.lists(st.sampled_from(TOKENS), max_size=40).map("".join).map(str.encode), st.binary(max_size=40))
    )
    def gather(body: bytes) -> None:
        bodies.append(body)

    gather()
    return bodies


def mutated_bodies() -> list[bytes]:
    """Good messages with characters and fields cut, doubled, swapped and replaced."""
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
    return bodies


# By its place: a body that cannot be decompressed, and a range that is gone.
PROBLEMS = (
    ("TRACE", "broker-a", 3, 0, None, None, 50, "10.0.0.9:5", 60, None, "no zlib"),
    ("TRACE", "broker-a", 3, 1, 12, "EXPIRED", None, None, 61, None, None),
)


def test_every_layout_and_every_field(found: Decoded) -> None:
    """All layouts there are, each field with good and bad texts, decode as wire decodes them."""
    found.assert_equal("layouts")


def test_messages(found: Decoded) -> None:
    """Whole messages: none or several records, batches, missing ends, unknown types, our own head; and bytes that are
    no UTF-8, which become U+FFFD."""
    found.assert_equal("messages")


def test_any_text(found: Decoded) -> None:
    """Texts put together from what records are made of decode alike."""
    found.assert_equal("any")


def test_mutated_messages(found: Decoded) -> None:
    """Good messages that were damaged decode alike."""
    found.assert_equal("mutated")


def test_bodies_and_gaps(found: Decoded) -> None:
    """A body that cannot be decompressed is a reject of its own, and a range that is gone is a gap."""
    assert [offset for offset in (0, 1) if offset in found.events] == []
    assert 1 not in found.rejects
    assert found.rejects[0] == [
        {
            "cluster": "c",
            "broker_name": "broker-a",
            "trace_topic": "TRACE",
            "queue_id": 3,
            "queue_offset": 0,
            "record_no": -1,
            "trace_store_ms": 60,
            "trace_born_host": "10.0.0.9:5",
            "reason": "no zlib",
            "record_text": "",
        }
    ]
    assert found.gaps == [
        {
            "cluster": "c",
            "broker_name": "broker-a",
            "topic": "TRACE",
            "queue_id": 3,
            "first_offset": 1,
            "end_offset": 12,
            "from_ms": None,
            "to_ms": 61,
            "detected_ms": 99,
            "reason": "EXPIRED",
        }
    ]
