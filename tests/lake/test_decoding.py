"""Decoding in bulk gives the rows of `trail.trace_rows`, record by record, for any text."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mqtrail import trail
from mqtrail.lake import DecodedTrace, connect
from mqtrail.wire import TRACE_LAYOUTS, FieldKind

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


@dataclass(frozen=True)
class Decoded:
    """Rows by the queue offset of their trace message, as dicts."""

    events: dict[int, list[dict[str, Any]]]
    rejects: dict[int, list[dict[str, Any]]]
    broker_events: dict[int, list[dict[str, Any]]]


def assert_equal(bodies: Iterable[bytes]) -> None:
    """The events and rejects of the bodies equal those of trail.trace_rows."""
    by_offset = dict(enumerate(bodies))
    assert by_offset
    found = decoded(by_offset)
    for queue_offset, body in by_offset.items():
        events, rejected, of_brokers = expected_rows(queue_offset, body)
        assert found.events.get(queue_offset, []) == events, body
        assert found.rejects.get(queue_offset, []) == rejected, body
        assert found.broker_events.get(queue_offset, []) == of_brokers, body


def decoded(bodies: Mapping[int, bytes], problems: Mapping[int, str] | None = None) -> Decoded:
    """Decode all bodies at once."""
    messages = trace_messages({offset: (body.decode("utf-8", "replace"), None) for offset, body in bodies.items()})
    if problems:
        messages = pa.concat_tables(
            [messages, trace_messages({offset: (None, problem) for offset, problem in problems.items()})]
        )
    duck = connect(threads=1)
    decoding = DecodedTrace(duck, messages, "c")
    events = duck.sql(decoding.events_sql).to_arrow_table()
    assert events.schema.names == list(trail.TRACE_EVENTS.names)
    rows = [(trail.TRACE_EVENTS, row) for row in events.to_pylist()]
    rows += decoding.rest()
    return Decoded(
        by_message([row for of, row in rows if of is trail.TRACE_EVENTS], "record_no", "item_no"),
        by_message([row for of, row in rows if of is trail.TRACE_REJECTS], "record_no"),
        by_message([row for of, row in rows if of is trail.BROKER_EVENTS], "record_no"),
    )


def trace_messages(bodies: Mapping[int, tuple[str | None, str | None]]) -> pa.Table:
    """Trace messages of one queue as the source returns them: offset -> text, problem."""
    columns = {
        "topic": "TRACE",
        "broker_name": "broker-a",
        "queue_id": 3,
        "born_timestamp_ms": 50,
        "born_host": "10.0.0.9:5",
        "store_timestamp_ms": 60,
    }
    rows = [
        columns | {"queue_offset": offset, "body_text": text, "body_problem": problem}
        for offset, (text, problem) in bodies.items()
    ]
    types = {"body_text": pa.string(), "body_problem": pa.string(), "queue_offset": pa.int64()}
    names = [*columns, *types]
    return pa.table({name: pa.array([row[name] for row in rows], types.get(name)) for name in names})


def by_message(rows: Iterable[dict[str, Any]], *order: str) -> dict[int, list[dict[str, Any]]]:
    """Rows by their queue offset, in the given order."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: [row[name] for name in order]):
        found.setdefault(row["queue_offset"], []).append(row)
    return found


def expected_rows(
    queue_offset: int, body: bytes
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """The events, the rejects and the events of brokers of a body by trail.trace_rows."""
    rows: dict[str, list[dict[str, Any]]] = {}
    place = trail.TracePlace("c", "broker-a", "TRACE", 3, queue_offset, 50, 60, "10.0.0.9:5")
    for relation, row in trail.trace_rows(place, body):
        rows.setdefault(relation.name, []).append(row)
    relations = (trail.TRACE_EVENTS, trail.TRACE_REJECTS, trail.BROKER_EVENTS)
    events, rejected, of_brokers = (rows.get(relation.name, []) for relation in relations)
    return events, rejected, of_brokers


def record_text(record_type: str, texts: Iterable[str]) -> str:
    return "\x01".join([record_type, *texts]) + "\x02"


def layout_bodies() -> Iterator[bytes]:
    """Every layout with every text that its fields' kinds allow, and each field with each text that it does not."""
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
    "Stored\x01170\x01SubAfter\x01h:1\x01T\x010\x011\x012\x013\x01Pub\x01k\x01170\x01h:2\x01170\x01NORMAL\x02"
    + CLOUD
    + PUB,
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
    """Random texts made of parts of records, and random bytes, new ones in each run."""
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
    """Good messages with characters and fields removed, doubled, swapped and replaced."""
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


def test_every_layout_and_every_field() -> None:
    """All layouts, each field with valid and invalid texts, decode as in wire."""
    assert_equal(layout_bodies())


def test_messages() -> None:
    """Whole messages without, with one or with several records, batches, missing ends, unknown types, our own head; and
    bytes that are not UTF-8, which become U+FFFD."""
    foreign = PUB.encode().replace(b"k1 k2", b"\xc4\xe3 \xed\xa0\x80\xff")
    assert_equal([*map(str.encode, MESSAGES), foreign])


def test_any_text() -> None:
    """Texts made of parts of records decode alike."""
    assert_equal(any_bodies())


def test_mutated_messages() -> None:
    """Damaged messages decode alike."""
    assert_equal(mutated_bodies())


def test_what_writers_write_is_read_in_bulk() -> None:
    """Records of every layout are decoded in bulk, not one by one, but the few BrokerEvents."""
    bodies = [
        record_text(layout.record_type, [KIND_TEXTS[field.kind][0] for field in layout.fields])
        for layouts in TRACE_LAYOUTS.values()
        for layout in layouts
        if layout.record_type != "BrokerEvent"
    ]
    decoding = DecodedTrace(connect(threads=1), trace_messages({0: ("".join(bodies), None)}), "c")
    assert len(decoding.shapes) == len(bodies)
    assert list(decoding.rest()) == []


def test_a_body_with_a_problem() -> None:
    """A body that cannot be decompressed is one reject and does not affect the others."""
    found = decoded({5: PUB.encode()}, {6: "no zlib"})
    assert list(found.events) == [5]
    assert found.rejects == {
        6: [
            {
                "cluster": "c",
                "broker_name": "broker-a",
                "trace_topic": "TRACE",
                "queue_id": 3,
                "queue_offset": 6,
                "record_no": -1,
                "trace_store_ms": 60,
                "trace_born_host": "10.0.0.9:5",
                "reason": "no zlib",
                "record_text": "",
            }
        ]
    }


def test_a_body_with_too_many_parts() -> None:
    """The body is one reject, as in trail.trace_rows, and does not affect the others."""
    many = b"Pub\x01170\x01r\x01G\x01T\x01" + b"," * (trail.TRACE_PARTS_MAX + 1)
    assert_equal([PUB.encode(), many, PUB.encode(), b"\x02" * (trail.TRACE_PARTS_MAX + 1)])


IDS = 30_000  # in time that grows with the square of it: half an hour


@pytest.mark.timeout(280)
def test_a_batch_of_many_messages() -> None:
    """The lists of a batch are split once per record, not once per message."""
    ids = ",".join(f"ID{number}" for number in range(IDS))
    places = ",".join(f"AT{number}" for number in range(IDS))
    body = f"Pub\x011\x01R\x01shop\x01T\x01{ids}\x01A\x01k\x01h:1\x015\x017\x010\x01{places}\x01true\x02".encode()
    assert_equal([body])
