"""The rows of attempts: what is stored, and what is read of it."""

from __future__ import annotations

from mqtrail import trail
from mqtrail.lake import arrow_rows, connect, define


def test_a_request_id_is_stored_once() -> None:
    """It is empty where attempt_key has it, also if ids look like numbered ones; rows of older lakes have it twice."""
    requests = ["q", "q", "#2", "a#2", "", ""]
    own = {"cluster": "c", "msg_id": "m", "queue_id": 0, "queue_offset": 0, "event_ms": 1}
    rows = [
        own | {"record_type": kind, "request_id": request, "record_no": number}
        for kind in ("SubBefore", "SubAfter")
        for number, request in enumerate(requests)
    ]
    duck = connect(threads=1)
    duck.register("trace_events", arrow_rows(trail.TRACE_EVENTS, rows))
    duck.register("message_meta", arrow_rows(trail.MESSAGE_META, []))
    define(duck, trail.attempts_stage())
    merged = f"({trail.merge_sql()}) AS merged"
    found = dict(duck.execute(f"SELECT attempt_key, request_id FROM {merged}").fetchall())
    assert found == {"q": "", "q#2": "q", "#2": "#2", "a#2": "", "": ""}
    wanted = {("q", "q"), ("q#2", "q"), ("#2", "#2"), ("a#2", "a#2"), ("", "")}
    read = f"SELECT attempt_key, request_id FROM ({trail.with_requests_sql(merged)}) AS whole"
    assert set(duck.execute(read).fetchall()) == wanted
    older = f"(SELECT * REPLACE ('q' AS request_id) FROM {merged} WHERE attempt_key LIKE 'q%')"
    every = f"(SELECT * FROM {older} AS before UNION ALL SELECT * FROM attempts) AS both_versions"
    both = trail.with_requests_sql(f"({trail.merge_sql(every)}) AS merged")
    assert set(duck.execute(f"SELECT attempt_key, request_id FROM ({both}) AS whole").fetchall()) == wanted
    duck.close()
