"""Trace records: Apache's texts byte for byte, every layout of all releases, and one bad record among good ones."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    COUNT_MAX,
    TIME_MS_MAX,
    TRACE_LAYOUTS,
    TRANSACTION_STATES,
    DeadLettered,
    Delivered,
    EndTransaction,
    FieldKind,
    Pub,
    PubAttempt,
    Recall,
    SentBack,
    Stored,
    SubAfter,
    SubBefore,
    SubResult,
    TraceBatch,
    TraceEnd,
    TraceLoss,
    TraceRecord,
    TraceReject,
    decode_trace,
    encode_trace,
    iter_trace,
)
from mqtrail.wire.trace_layouts import KIND_RANGE, RECORD_CLASSES
from mqtrail.wire.trace_records import LocalTransactionState, MessageType, OffsetCommit, StoredKind
from mqtrail.wire.trace_text import trace_keys

ID = "C0A8010904D218B4AAC22F1C0A7B0000"
ID2 = "C0A8010904D218B4AAC22F1C0A7F0001"
REQUEST = "C0A8010A162E18B4AAC22F1C0B100003"
OFFSET_ID = "C0A8010100002A9F000000000003A2B1"

PUB = Pub(
    time_stamp=1700000000123,
    region_id="DefaultRegion",
    group_name="PG_demo",
    topic="TopicTest",
    msg_id=ID,
    tags="TagA",
    keys="order-1 user-9",
    store_host="192.168.1.1:10911",
    body_length=11,
    cost_time=7,
    msg_type=0,
    offset_msg_id=OFFSET_ID,
    is_success=True,
)
SUB_BEFORE = SubBefore(
    time_stamp=1700000000200,
    region_id="DefaultRegion",
    group_name="CG_demo",
    request_id=REQUEST,
    msg_id=ID,
    retry_times=0,
    keys="order-1 user-9",
)
SUB_AFTER = SubAfter(
    request_id=REQUEST,
    msg_id=ID,
    cost_time=15,
    is_success=True,
    keys="order-1 user-9",
    context_code=0,
    time_stamp=1700000000230,
    group_name="CG_demo",
)


def text(shown: str) -> str:
    """Insert the separators: | means U+0001, ; means U+0002."""
    return shown.replace("|", "\x01").replace(";", "\x02")


WRITTEN: list[tuple[list[TraceRecord], str]] = [
    (
        [PUB],
        f"Pub|1700000000123|DefaultRegion|PG_demo|TopicTest|{ID}|TagA|order-1 user-9|192.168.1.1:10911|11|7|0"
        f"|{OFFSET_ID}|true;",
    ),
    (
        [
            Pub(
                time_stamp=1700000000123,
                region_id="DefaultRegion",
                group_name="PG_demo",
                topic="TopicTest",
                msg_id=ID,
                store_host="192.168.1.1:10911",
                body_length=11,
                cost_time=7,
                msg_type=3,
                offset_msg_id=OFFSET_ID,
            )
        ],
        f"Pub|1700000000123|DefaultRegion|PG_demo|TopicTest|{ID}|null|null|192.168.1.1:10911|11|7|3|{OFFSET_ID}|true;",
    ),
    (
        [
            SUB_BEFORE,
            SubBefore(
                time_stamp=1700000000200,
                region_id="DefaultRegion",
                group_name="CG_demo",
                request_id=REQUEST,
                msg_id=ID2,
                retry_times=2,
            ),
        ],
        f"SubBefore|1700000000200|DefaultRegion|CG_demo|{REQUEST}|{ID}|0|order-1 user-9;"
        f"SubBefore|1700000000200|DefaultRegion|CG_demo|{REQUEST}|{ID2}|2|null;",
    ),
    (
        [
            SUB_AFTER,
            SubAfter(
                request_id=REQUEST,
                msg_id=ID2,
                cost_time=15,
                context_code=0,
                time_stamp=1700000000230,
                group_name="CG_demo",
            ),
        ],
        f"SubAfter|{REQUEST}|{ID}|15|true|order-1 user-9|0|1700000000230|CG_demo;"
        f"SubAfter|{REQUEST}|{ID2}|15|true|null|0|1700000000230|CG_demo;",
    ),
    (
        [
            EndTransaction(
                time_stamp=1700000000300,
                region_id="DefaultRegion",
                group_name="TPG_demo",
                topic="TopicTx",
                msg_id=ID,
                tags="TagT",
                keys="tx-77",
                store_host="192.168.1.1:10911",
                transaction_id=ID,
                transaction_state="COMMIT_MESSAGE",
            )
        ],
        f"EndTransaction|1700000000300|DefaultRegion|TPG_demo|TopicTx|{ID}|TagT|tx-77|192.168.1.1:10911|2|{ID}|COMMIT_MESSAGE|false;",
    ),
    (
        [
            Recall(
                time_stamp=1700000000400, region_id="DefaultRegion", group_name="PG_demo", topic="TopicDelay", msg_id=ID
            )
        ],
        f"Recall|1700000000400|DefaultRegion|PG_demo|TopicDelay|{ID}|true;",
    ),
    (
        [TraceBatch(client_id="c@1", start_id="S", sequence=1, time_stamp=5, dropped_total=0)],
        "TraceBatch|1|c@1|S|1|5|0;",
    ),
    (
        [TraceLoss(client_id="c@1", start_id="S", from_ms=1, to_ms=2, count=3, reason="spool full")],
        "TraceLoss|c@1|S|1|2|3|spool full;",
    ),
    (
        [TraceEnd(time_stamp=1, group_name="CG", client_id="c@1", start_id="S")],
        "TraceEnd|1|CG|c@1|S;",
    ),
    (
        [
            PubAttempt(
                time_stamp=1,
                region_id="R",
                group_name="G",
                topic="T",
                msg_id=ID,
                store_host="h:1",
                broker_name="b",
                queue_id=2,
                send_id="X",
                attempt=1,
                attempt_max=3,
                outcome="TIMEOUT",
                cost_time=3000,
                is_final=False,
                client_id="c@1",
                body_length=11,
            )
        ],
        f"PubAttempt|1|R|G|T|{ID}|null|h:1|b|2|X|1|3|TIMEOUT|null|3000|false|c@1|11;",
    ),
    (
        [
            SubResult(
                request_id=REQUEST,
                msg_id=ID,
                group_name="G",
                topic="T",
                broker_name="b",
                queue_id=0,
                queue_offset=9,
                retry_times=0,
                result="EXCEPTION",
                cost_time=4,
                time_stamp=8,
                client_id="c@1",
                detail="ValueError: no stock",
            )
        ],
        f"SubResult|{REQUEST}|{ID}|G|T|b|0|9|0|EXCEPTION|4|8|c@1|ValueError: no stock;",
    ),
    (
        [
            OffsetCommit(
                time_stamp=1, group_name="G", topic="T", broker_name="b", queue_id=0, consumer_offset=5, client_id="c@1"
            )
        ],
        "OffsetCommit|1|G|T|b|0|5|c@1;",
    ),
    (
        [
            Stored(
                time_stamp=1,
                broker_name="b",
                store_host="h:1",
                topic="T",
                queue_id=0,
                queue_offset=5,
                physical_offset=99,
                size=200,
                msg_id=ID,
                keys="k",
                born_timestamp=2,
                born_host="c:3",
                store_timestamp=4,
                kind="NORMAL",
            )
        ],
        f"Stored|1|b|h:1|T|0|5|99|200|{ID}|k|2|c:3|4|NORMAL;",
    ),
    (
        [
            Delivered(
                time_stamp=1,
                broker_name="b",
                group_name="G",
                topic="T",
                queue_id=0,
                offsets="5,6,7",
                client_id="c@1",
            )
        ],
        "Delivered|1|b|G|T|0|5,6,7|c@1;",
    ),
    (
        [
            SentBack(
                time_stamp=1,
                broker_name="b",
                group_name="G",
                topic="T",
                msg_id=ID,
                origin_msg_id=OFFSET_ID,
                reconsume_times=1,
                delay_level=3,
                due_ms=10_001,
                client_id="c@1",
            )
        ],
        f"SentBack|1|b|G|T|{ID}|{OFFSET_ID}|1|3|10001|c@1;",
    ),
    (
        [
            DeadLettered(
                time_stamp=1,
                broker_name="b",
                group_name="G",
                topic="T",
                msg_id=ID,
                reconsume_times=16,
                cause="ATTEMPTS_EXHAUSTED",
            )
        ],
        f"DeadLettered|1|b|G|T|{ID}|null|16|ATTEMPTS_EXHAUSTED|null;",
    ),
]


@pytest.mark.parametrize(("records", "shown"), WRITTEN)
def test_what_is_written(records: list[TraceRecord], shown: str) -> None:
    """The worked examples of the reference and our own records: both directions, as text and as bytes."""
    assert encode_trace(records) == text(shown)
    assert decode_trace(text(shown)) == (records, [])
    assert decode_trace(text(shown).encode()) == (records, [])


def test_sub_after_of_the_cloud_channel() -> None:
    """There is no time and no group, but the separator after contextCode stays; a record read from it is written in the
    short form again."""
    shown = f"SubAfter|{REQUEST}|{ID}|15|false|order-1 user-9|4|;"
    record = SubAfter(
        request_id=REQUEST, msg_id=ID, cost_time=15, is_success=False, keys="order-1 user-9", context_code=4
    )
    assert encode_trace([record], cloud=True) == text(shown)
    assert decode_trace(text(shown)) == ([record], [])
    assert encode_trace([record]) == text(shown.replace("4|;", "4;"))


BEFORE_14 = f"Pub|1|R|G|T|{ID}|TagA|k|h:1|11|7|0"
READ: list[tuple[str, dict[str, Any]]] = [
    (BEFORE_14, {"is_success": True, "offset_msg_id": None, "client_host": None, "msg_type": 0}),
    (f"{BEFORE_14}|false", {"is_success": False, "offset_msg_id": None}),
    (f"{BEFORE_14}|O|true", {"is_success": True, "offset_msg_id": "O", "client_host": None}),
    (f"{BEFORE_14}|O|true|192.168.1.9@1234", {"offset_msg_id": "O", "client_host": "192.168.1.9@1234"}),
    (f"{BEFORE_14}|O|true|c|added|later", {"client_host": "c", "is_success": True}),
    (f"{BEFORE_14}|O|TRUE", {"is_success": True}),
    (f"{BEFORE_14}|O|yes", {"is_success": False}),
    (f"{BEFORE_14}|O|", {"is_success": False}),
    (f"Pub|1|R|G|T|{ID}|||h:1|11|7|0|O|true|10.0.0.1", {"tags": None, "keys": None, "client_host": "10.0.0.1"}),
    (
        f"Pub|+1|null|G|T|{ID},{ID2}|null|null|h:1|-11|007|4|O,P|true",
        {"time_stamp": 1, "region_id": None, "cost_time": 7},
    ),
    ("SubBefore|1|R|G|REQ|M|0|k", {"keys": "k", "client_host": None}),
    ("SubBefore|1|R|G|REQ|M|0|", {"keys": None, "retry_times": 0}),
    ("SubBefore|1|null|G|REQ|M|3|k|10.0.0.1", {"region_id": None, "client_host": "10.0.0.1", "retry_times": 3}),
    ("SubBefore|1|R|G|REQ|M|0|k|c|more", {"client_host": "c"}),
    ("SubAfter|REQ|M|3|true|", {"keys": None, "context_code": None, "time_stamp": None, "group_name": None}),
    ("SubAfter|REQ|M|3|true|k", {"keys": "k", "context_code": None}),
    ("SubAfter|REQ|M|3|true||0", {"keys": None, "context_code": 0, "group_name": None}),
    ("SubAfter|REQ|M|3|true|k|4|", {"context_code": 4, "time_stamp": None}),
    ("SubAfter|REQ|M|3|true|k|4|5", {"context_code": 4, "time_stamp": None}),
    ("SubAfter|REQ|M|3|true|k|4|5|G", {"context_code": 4, "time_stamp": 5, "group_name": "G"}),
    ("SubAfter|REQ|M|3|true|k|4|5|", {"time_stamp": 5, "group_name": None}),
    ("SubAfter|REQ|M|3|true|k|4|5|G|more", {"group_name": "G"}),
    (
        f"EndTransaction|1|R|G|T|M|null|k|h:1|2|{ID}|UNKNOW|TRUE",
        {"transaction_state": "UNKNOW", "from_transaction_check": True},
    ),
    ("Recall|1|R|G|T|M|false", {"is_success": False}),
    ("TraceBatch|1|c|S|null||5|added later", {"sequence": None, "time_stamp": None, "dropped_total": 5}),
    (
        "PubAttempt|1|R|G|T|M|k|h|b|null|X|1|3|OK||null|null|c|",
        {"queue_id": None, "is_final": None, "body_length": None},
    ),
]


@pytest.mark.parametrize(("shown", "expected"), READ)
def test_what_is_read(shown: str, expected: dict[str, Any]) -> None:
    """Each layout of each release, alone and last in its message without a terminator."""
    for ending in ("", ";"):
        (record,), rejects = decode_trace(text(shown + ending))
        assert not rejects
        assert {name: getattr(record, name) for name in expected} == expected
        assert type(record).__name__ == shown.partition("|")[0]


REJECTED = [
    ("Pub|1|R", "fields: found 3, expected at least 12 in Pub"),
    ("SubBefore|1|R|G|REQ|M|0", "fields: found 7, expected at least 8 in SubBefore"),
    ("SubAfter|REQ|M|3|true", "fields: found 5, expected at least 6 in SubAfter"),
    ("EndTransaction|1|R|G|T|M|null|k|h:1|2|X|UNKNOW", "fields: found 12, expected at least 13 in EndTransaction"),
    ("Recall|1|R|G|T|M", "fields: found 6, expected at least 7 in Recall"),
    ("Recall| 1|R|G|T|M|true", "timeStamp: found ' 1', expected epoch ms of 0 to 99999999999999"),
    ("Recall||R|G|T|M|true", "timeStamp: found '', expected epoch ms of 0 to 99999999999999"),
    ("Recall|-1|R|G|T|M|true", "timeStamp: found '-1', expected epoch ms of 0 to 99999999999999"),
    ("Recall|null|R|G|T|M|true", "timeStamp: found 'null', expected epoch ms of 0 to 99999999999999"),
    (
        f"Recall|{2**63}|R|G|T|M|true",
        f"timeStamp: found '{2**63}', expected epoch ms of 0 to 99999999999999",
    ),
    (f"Recall|{'9' * 50}|R|G|T|M|true", f"timeStamp: found '{'9' * 40}', expected epoch ms of 0 to 99999999999999"),
    ("SubBefore|1|R|G|REQ|M|2147483648|k", "retryTimes: found '2147483648', expected a decimal int32"),
    ("SubAfter|REQ|M|1.5|true|k", "costTime: found '1.5', expected a decimal int32"),
    ("SubAfter|REQ|M|3|true|k|0|x|G", "timeStamp: found 'x', expected epoch ms of 0 to 99999999999999"),
    (f"{BEFORE_14[:-1]}5|O|true", "msgType: found '5', expected a message type of 0 to 4"),
    (f"{BEFORE_14[:-1]}-1|O|true", "msgType: found '-1', expected a message type of 0 to 4"),
    (
        "EndTransaction|1|R|G|T|M|null|k|h:1|2|X|UNKNOWN|true",
        "transactionState: found 'UNKNOWN', expected COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW",
    ),
    ("TraceLoss|c|S|1|2|many|r", "count: found 'many', expected a count of 0 to 999999999999999"),
    ("Unknown|x", "record type: found 'Unknown', expected one that is known"),
    ("pub|1", "record type: found 'pub', expected one that is known"),
    ("{json}", "record type: found '{json}', expected one that is known"),
    ("|1", "record type: found '', expected one that is known"),
]


@pytest.mark.parametrize(("shown", "reason"), REJECTED)
def test_one_bad_record_spoils_no_other(shown: str, reason: str) -> None:
    """Apache's decoders drop the whole message; here the others are read and the bad one is a reject with its
    reason."""
    good = encode_trace([PUB])
    records, rejects = decode_trace(good + text(f"{shown};;") + good)
    assert records == [PUB, PUB]
    assert rejects == [TraceReject(1, text(shown), reason)]


def test_record_numbers_count_what_holds_no_record() -> None:
    """A number is the position between terminators, as in the pipeline's SQL."""
    good = encode_trace([PUB])
    found = list(iter_trace(good + text(";;Unknown|x;") + good + text(";")))
    assert [number for number, _ in found] == [0, 3, 4]
    assert isinstance(found[1][1], TraceReject)


@pytest.mark.parametrize("after", ["", *(shown for _, shown in WRITTEN[:6])])
def test_cloud_records_without_terminator_are_separated(after: str) -> None:
    """4.9.5 to 4.9.8 and 5.1.4 to 5.3.0 omit the terminator on the CLOUD channel, so records run together."""
    run = "".join(f"SubAfter|{REQUEST}|{number}|15|true|k|0|" for number in range(3))
    before = encode_trace([SUB_BEFORE])
    records, rejects = decode_trace(before + text(run + after))
    expected = SubAfter(request_id=REQUEST, cost_time=15, is_success=True, keys="k", context_code=0)
    assert not rejects
    assert records[0] == SUB_BEFORE
    assert [getattr(record, "msg_id", None) for record in records[1:4]] == ["0", "1", "2"]
    assert all(
        getattr(record, name) == getattr(expected, name)
        for record in records[1:4]
        for name in SubAfter.__struct_fields__
        if name != "msg_id"
    )
    assert records[4:] == decode_trace(text(after))[0]


def test_names_of_record_types_inside_fields_are_not_records() -> None:
    """A topic or a tag may be named SubAfter or Pub; whole records are never split."""
    pub = Pub(time_stamp=1, topic="SubAfter", tags="Pub", keys="SubAfter", group_name="SubBefore", msg_id="SubAfter")
    after = SubAfter(
        request_id="SubAfter", msg_id="Pub", keys="SubAfter", context_code=0, time_stamp=1, group_name="Pub"
    )
    assert decode_trace(encode_trace([pub, after, pub])) == ([pub, after, pub], [])


def test_ids_that_a_peer_chooses_do_not_cut_records() -> None:
    """A sender chooses the id of its message, and an operator the name of a broker: each record stays whole."""
    stored = Stored(
        time_stamp=1,
        broker_name="SubAfter",
        store_host="h:1",
        topic="T",
        queue_id=0,
        queue_offset=1,
        physical_offset=2,
        size=3,
        msg_id="Pub",
        store_timestamp=1,
        kind=StoredKind.NORMAL,
    )
    end = EndTransaction(
        time_stamp=1,
        group_name="SubAfter",
        msg_id="M",
        msg_type=MessageType.TRANS_COMMIT,
        transaction_id="Recall",
        transaction_state=LocalTransactionState.COMMIT_MESSAGE,
        from_transaction_check=False,
    )
    cut = f"SubAfter|{REQUEST}|M|15|true|SubAfter|0|"
    records, rejects = decode_trace(encode_trace([stored, end]) + text(cut * 2) + encode_trace([PUB, stored]))
    assert not rejects
    assert records[:2] == [stored, end]
    assert [type(record) for record in records[2:4]] == [SubAfter] * 2
    assert records[4:] == [PUB, stored]


@pytest.mark.parametrize("name", sorted(TRACE_LAYOUTS))
def test_a_record_with_names_of_types_in_any_two_fields_is_whole(name: str) -> None:
    """A broker may be named SubAfter, and a client Pub: even six fields apart they are no missing terminator."""
    (layout,) = (layout for layout in TRACE_LAYOUTS[name] if layout.written)
    plain = {field.attribute: WRITTEN_AS[field.kind] for field in layout.fields if field.kind in WRITTEN_AS}
    texts = [field.attribute for field in layout.fields if field.kind is FieldKind.TEXT]
    for first, second in product(texts, repeat=2):
        values: dict[str, Any] = {**dict.fromkeys(texts, "x"), **plain, first: "SubAfter", second: "Pub"}
        record = RECORD_CLASSES[name](**values)
        assert decode_trace(encode_trace([record, PUB])) == ([record, PUB], [])


def test_separators_in_values_are_taken_out() -> None:
    """There is no escaping, and an empty last field would make Java's decoders fail."""
    record = SubBefore(time_stamp=1, group_name="a\x01b\x02", request_id="", msg_id="M", keys="\x02")
    assert encode_trace([record]) == text("SubBefore|1|null|ab||M|0|null;")


def test_bytes_that_are_no_utf8_are_still_read() -> None:
    """4.x clients write in their machine's charset: ids stay readable, other text becomes U+FFFD."""
    (record,), rejects = decode_trace(
        text("Recall|1|R|G|T|M|true;").encode().replace(b"|", b"").replace(b"T\x01", b"\xb6\xa9\x01")
    )
    assert not rejects
    assert isinstance(record, Recall)
    assert (record.msg_id, record.topic) == ("M", "\ufffd\ufffd")


WRITTEN_AS = {kind: 1 for kind in FieldKind if kind in KIND_RANGE} | {
    FieldKind.BOOL: True,
    FieldKind.TRANSACTION_STATE: TRANSACTION_STATES[0],
}
VALUES: dict[FieldKind, st.SearchStrategy[Any]] = {
    FieldKind.TEXT: st.text(
        st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=6
    ),
    FieldKind.INT: st.integers(-(2**31), 2**31 - 1),
    FieldKind.LONG: st.integers(-(2**63), 2**63 - 1),
    FieldKind.TIME: st.integers(0, TIME_MS_MAX),
    FieldKind.COUNT: st.integers(0, COUNT_MAX),
    FieldKind.BOOL: st.booleans(),
    FieldKind.MSG_TYPE: st.integers(0, 4),
    FieldKind.TRANSACTION_STATE: st.sampled_from(TRANSACTION_STATES),
}


@st.composite
def any_record(draw: st.DrawFn) -> TraceRecord:
    """A record of any type in the written layout; each nullable field may be null."""
    name = draw(st.sampled_from(sorted(TRACE_LAYOUTS)))
    (layout,) = (layout for layout in TRACE_LAYOUTS[name] if layout.written)
    values: dict[str, Any] = {}
    for field in layout.fields:
        strategy = VALUES[field.kind].filter(lambda value: value != "null")
        nullable = field.nullable or field.kind is FieldKind.TEXT
        values[field.attribute] = draw(st.none() | strategy if nullable else strategy)
    return RECORD_CLASSES[name](**values)


@given(st.lists(any_record(), max_size=6))
def test_round_trip(records: list[TraceRecord]) -> None:
    """Written records are read back, in any combination in a message."""
    assert decode_trace(encode_trace(records)) == (records, [])


TOKENS = ["Pub", "SubBefore", "SubAfter", "Recall", "\x01", "\x01", "\x01", "\x02", "1", "null", "x", "true", "é"]


@given(st.lists(st.sampled_from(TOKENS), max_size=60).map("".join) | st.binary(max_size=60))
def test_reading_never_fails_and_never_forgets(garbage: str | bytes) -> None:
    """Every piece that is not empty is a record or a reject."""
    as_text = garbage if isinstance(garbage, str) else garbage.decode("utf-8", "replace")
    found = list(iter_trace(garbage))
    assert len(found) >= sum(1 for piece in as_text.split("\x02") if piece)
    rejected = [record.text for _, record in found if isinstance(record, TraceReject)]
    assert all(piece in as_text for piece in rejected)


def test_layouts_and_classes_agree() -> None:
    """The table for the pipeline's SQL has exactly the attributes of the classes, in writing order."""
    assert set(RECORD_CLASSES) == set(TRACE_LAYOUTS)
    for name, layouts in TRACE_LAYOUTS.items():
        longest = layouts[-1]
        assert tuple(field.attribute for field in longest.fields) == RECORD_CLASSES[name].__struct_fields__, name
        counts = [count for layout in layouts for count in (layout.count_min, layout.count_max)]
        assert counts[-1] is None
        assert counts[:-1] == sorted(count for count in counts[:-1] if count is not None)
        assert all(re.fullmatch("[a-z_]+", field.attribute) for field in longest.fields)


def test_the_design_page_names_every_field() -> None:
    """docs/design/trace-text.md shows the layouts that are written, field by field."""
    page = (Path(__file__).parents[2] / "docs" / "design" / "trace-text.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    shown = {row[0]: row[1].split() for row in rows if len(row) in (2, 3) and row[0] in TRACE_LAYOUTS}
    assert shown == {
        name: [field.name for field in layout.fields]
        for name, layouts in TRACE_LAYOUTS.items()
        for layout in layouts
        if layout.written
    }


def test_keys_of_a_trace_message() -> None:
    """Ids and key tokens occur once each; a batch's ids are joined like Apache's, and single; our broker's records add
    none."""
    batch = Pub(time_stamp=1, msg_id=f"{ID},{ID2}")
    stored = Stored(msg_id="S", keys="x")
    assert trace_keys([PUB, SUB_BEFORE, SUB_AFTER]) == [ID, "order-1", "user-9"]
    assert trace_keys([batch, stored, TraceBatch()]) == [f"{ID},{ID2}", ID, ID2]
    assert trace_keys([SubResult(msg_id="R"), PubAttempt(msg_id="A", keys="k k")]) == ["R", "A", "k"]
