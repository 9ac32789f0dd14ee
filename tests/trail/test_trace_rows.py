"""Trace messages as rows: whole rows, several items, rejects, and offsets that are none."""

from mqtrail import trail

PLACE = trail.TracePlace("c", "broker-a", "TRACE", 3, 7, 50, 60, "10.0.0.9:5")
BATCH = "Pub\x01170\x01R\x01PG\x01T\x01id1,null,id3\x01null\x01k\x01h:1\x0111\x017\x010\x01o1,o2\x01true\x02"
HEAD = "TraceBatch\x011\x01client@1\x01start\x013\x01170\x010\x02"


def test_a_row_has_every_column() -> None:
    """Texts that are absent are \'\', numbers None; the place and the head's client id are in each row."""
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
    """They cost the others nothing; null is one unknown offset."""
    for offsets, expected in [
        ("4,5", [4, 5]),
        ("4,,x, 5,1_0,٣,9223372036854775808,-1", [4, None, None, None, None, None, None, -1]),
        ("null", [None]),
        ("", [None]),
    ]:
        text = f"Delivered\x01170\x01b\x01G\x01T\x013\x01{offsets}\x01c\x02"
        assert [row["store_queue_offset"] for _, row in trail.trace_rows(PLACE, text)] == expected


def test_rejects_have_a_reason() -> None:
    """A record that does not decode is a row of its own relation; its text is cut."""
    [(relation, row)] = trail.trace_rows(PLACE, "Nobody\x01" + "x" * 5_000)
    assert relation is trail.TRACE_REJECTS
    assert tuple(sorted(row)) == tuple(sorted(trail.TRACE_REJECTS.names))
    assert row["reason"] == "record type: found 'Nobody', expected one that is known"
    assert len(row["record_text"]) == trail.RECORD_TEXT_LENGTH_MAX
