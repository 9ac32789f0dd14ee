"""Trace messages as rows: whole rows, several items, rejects, and invalid offsets."""

from dataclasses import replace

import pytest

from mqtrail import trail
from mqtrail.lake import judge_rows
from mqtrail.wire import KIND_RANGE, TIME_MS_MAX, TRACE_LAYOUTS, FieldKind, TraceField

PLACE = trail.TracePlace("c", "broker-a", "TRACE", 3, 7, 50, 60, "10.0.0.9:5")
BATCH = "Pub\x01170\x01R\x01PG\x01T\x01id1,null,id3\x01null\x01k\x01h:1\x0111\x017\x010\x01o1,o2\x01true\x02"
HEAD = "TraceBatch\x011\x01client@1\x01start\x013\x01170\x010\x02"


def test_a_row_has_every_column() -> None:
    """Missing texts are '', missing numbers None; each row has the position and the head's client id."""
    (_, head), *events = trail.trace_rows(PLACE, (HEAD + BATCH).encode())
    assert [relation for relation, _ in events] == [trail.TRACE_EVENTS] * 3
    rows = [head, *(row for _, row in events)]
    assert all(tuple(row) == trail.TRACE_EVENTS.names for row in rows)
    assert {row["trace_client_id"] for row in rows} == {"client@1"}
    assert [(row["msg_id"], row["offset_msg_id"], row["item_no"], row["item_count"]) for row in rows[1:]] == [
        ("id1", "o1", 0, 3),
        ("", "o2", 1, 3),
        ("id3", "", 2, 3),
    ]
    assert (rows[1]["cost_ms"], rows[1]["attempt"], rows[1]["reason"], rows[1]["success"]) == (7, None, "", True)


def test_offsets_that_are_none_are_unknown() -> None:
    """An invalid offset is unknown and does not affect the others; null is one unknown offset."""
    for offsets, expected in [
        ("4,5", [4, 5]),
        ("4,,x, 5,1_0,٣,9223372036854775808,-1", [4, None, None, None, None, None, None, -1]),
        ("null", [None]),
        ("", [None]),
    ]:
        text = f"Delivered\x01170\x01b\x01G\x01T\x013\x01{offsets}\x01c\x02"
        assert [row["store_queue_offset"] for _, row in trail.trace_rows(PLACE, text)] == expected


def test_rejects_have_a_reason() -> None:
    """A record that does not decode is a row of trace_rejects; its text is cut."""
    [(relation, row)] = trail.trace_rows(PLACE, "Nobody\x01" + "x" * 5_000)
    assert relation is trail.TRACE_REJECTS
    assert tuple(sorted(row)) == tuple(sorted(trail.TRACE_REJECTS.names))
    assert row["reason"] == "record type: found 'Nobody', expected one that is known"
    assert len(row["record_text"]) == trail.RECORD_TEXT_LENGTH_MAX


def test_a_body_that_is_too_large() -> None:
    """A few KB of zstd could expand to millions of rows: such a body is rejected as a whole."""
    record = f"Delivered\x01170\x01b\x01G\x01T\x013\x01{'1,' * (trail.TRACE_BODY_SIZE_MAX // 2)}\x01c\x02"
    for body in (record, record.encode()):
        [(relation, row)] = trail.trace_rows(PLACE, body)
        assert relation is trail.TRACE_REJECTS
        assert (row["record_no"], row["record_text"]) == (trail.BODY_RECORD_NO, "")
        assert row["reason"].endswith("bytes, expected at most 4194304")


@pytest.mark.parametrize("part", [",", "\x02"])
def test_a_body_with_too_many_parts(part: str) -> None:
    """Each separator or comma could become a row: 4 KB of zstd would give four million rows of one key."""
    record = f"Pub\x01170\x01r\x01G\x01T\x01{part * (trail.TRACE_PARTS_MAX - 1)}\x01\x01K\x02"
    for body in (record, record.encode()):
        assert len(list(trail.trace_rows(PLACE, body))) > 0
    for body in (record + part * 2, (record + part * 2).encode()):
        [(relation, row)] = trail.trace_rows(PLACE, body)
        assert relation is trail.TRACE_REJECTS
        assert row["reason"] == "body: found 131074 records, ids and offsets, expected at most 131072"


EXTREMES = (-(1 << 63), -(1 << 53), -1, 0, TIME_MS_MAX, TIME_MS_MAX + 1, 1 << 62, (1 << 63) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("extreme", EXTREMES)
def test_no_number_stops_a_judgement(extreme: int) -> None:
    """A client may write any number into trace records and messages: it is rejected or unknown, never an error."""
    now_ms = 1_790_000_000_000
    body = "".join(
        "\x01".join((name, *(_text(field, extreme) for field in layouts[-1].fields))) + "\x02"
        for name, layouts in TRACE_LAYOUTS.items()
    )
    place = replace(PLACE, trace_born_ms=extreme, trace_store_ms=now_ms)
    rows = list(trail.trace_rows(place, body))
    events = [row for relation, row in rows if relation is trail.TRACE_EVENTS]
    meta = dict.fromkeys(("born_ms", "due_ms", "store_ms", "delay_level", "sys_flag", "store_size"), extreme)
    copy = {"cluster": "c", "topic": "T", "broker_name": "b", "own_unique_key": "other", "stored_kind": "DELAY_WAIT"}
    judged = judge_rows({trail.TRACE_EVENTS.name: events, trail.MESSAGE_META.name: [copy | meta]}, now_ms)
    found = judged.execute("SELECT send_start_ms, publish_hour FROM trajectories").fetchall()
    assert found
    for start_ms, hour in found:
        assert -(1 << 32) < (start_ms or 0) < TIME_MS_MAX + (1 << 32)
        assert hour < TIME_MS_MAX // 3_600_000 + 10_000
    assert len(rows) >= len(TRACE_LAYOUTS)


def _text(field: TraceField, extreme: int) -> str:
    if field.kind in (FieldKind.INT, FieldKind.MSG_TYPE):
        least, greatest = KIND_RANGE[field.kind]
        return str(max(least, min(extreme, greatest)))
    if field.kind in KIND_RANGE:
        return str(extreme)
    return {"msg_id": "7F" * 16, "offsets": str(extreme), "transaction_state": "UNKNOW"}.get(field.attribute, "g")
