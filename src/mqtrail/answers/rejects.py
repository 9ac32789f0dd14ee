"""Trace records that did not decode, with their text."""

from __future__ import annotations

from mqtrail.lake import fetch

from .lakeview import LakeView
from .summaries import RejectedRecord, RejectsAnswer


def rejects(view: LakeView, now_ms: int, limit: int, skip: int) -> RejectsAnswer:
    """Return `limit` rejects after the first `skip`, the latest first."""
    scope = view.scope(now_ms)
    if not view.rejects:
        return RejectsAnswer(scope, 0, ())
    source = view.rejected()
    [counted] = fetch(view.connection, f"SELECT count(*) AS n FROM ({source})")
    rows = fetch(
        view.connection,
        f"""SELECT * FROM ({source}) ORDER BY trace_store_ms DESC NULLS LAST, cluster, trace_topic, broker_name,
          queue_id, queue_offset DESC, record_no DESC LIMIT ? OFFSET ?""",
        [limit, skip],
    )
    found = tuple(
        RejectedRecord(
            cluster=row["cluster"],
            broker_name=row["broker_name"] or "",
            trace_topic=row["trace_topic"] or "",
            queue_id=-1 if row["queue_id"] is None else row["queue_id"],
            queue_offset=-1 if row["queue_offset"] is None else row["queue_offset"],
            record_no=-1 if row["record_no"] is None else row["record_no"],
            stored_ms=row["trace_store_ms"],
            host=row["trace_born_host"] or "",
            reason=row["reason"] or "",
            text=row["record_text"] or "",
        )
        for row in rows
    )
    return RejectsAnswer(scope, counted["n"], found)
