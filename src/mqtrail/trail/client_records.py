"""Records about clients, in few rows: what was lost of their trace, and the offsets that they committed.

    trace_events → client_records → losses, committed

A traced client of mqtrail numbers its trace messages. What a judgement needs of the numbers is where they stop and go
on, so consecutive ones become one row. Of committed offsets it needs the first of a queue and the last one as of the
instant and as of the horizon; both instants only rise.
"""

from __future__ import annotations

from .packing import packed, padded
from .results import CLIENT_RECORDS
from .stages import Stage

CONTEXT_RECORDS = ("OffsetCommit", "TraceBatch", "TraceEnd", "TraceLoss")
"""Types of the trace records about clients."""

SETTLED_MS = 3_600_000
"""How much older than the last judgement an OffsetCommit is before it is folded: longer than trace_delay_ms."""

_START = "cluster, client_id, start_id"
_QUEUE = "cluster, group_name, topic, store_broker_name, store_queue_id"
_LAST = "struct_pack(sequence := sequence, event_ms := event_ms, dropped_total := dropped_total)"


def client_records_sql(trace_events: str) -> str:
    """SQL: rows of CLIENT_RECORDS of rows of trace_events."""
    is_batch = "CASE WHEN record_type = 'TraceBatch' THEN {} END"
    own = {"first_sequence": is_batch.format("sequence"), "first_ms": is_batch.format("event_ms")}
    return f"SELECT {CLIENT_RECORDS.typed(own)} FROM {trace_events} AS events WHERE record_type IN {CONTEXT_RECORDS}"


def client_records_stage() -> Stage:
    """client_records of trace_events."""
    return Stage(CLIENT_RECORDS.name, client_records_sql("trace_events"), ("trace_events",))


def runs_sql(client_records: str) -> str:
    """SQL: the TraceBatches of each start in the order of their numbers, each with `before`: the last one before it."""
    return f"""
SELECT *, max({_LAST}) OVER (PARTITION BY {_START} ORDER BY first_sequence
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM (SELECT {_START}, first_sequence, last.sequence AS sequence, last.event_ms AS event_ms, first_ms, trace_born_host,
    dropped_total, trace_store_ms
  FROM (SELECT {_START}, first_sequence, max({_LAST}) AS last, max(first_ms) AS first_ms,
      max(trace_born_host) AS trace_born_host, max(dropped_total) AS dropped_total,
      max(trace_store_ms) AS trace_store_ms
    FROM {client_records} AS records WHERE record_type = 'TraceBatch' GROUP BY {_START}, first_sequence) AS runs
  ) AS batches"""


def folded_client_records_sql(client_records: str, settled_ms: int, kept_from_ms: int) -> str:
    """SQL: the same information in fewer rows.

    settled_ms: no judgement will be as of this instant or an earlier one, or look back to it. kept_from_ms: rows of
    earlier trace messages have expired.
    """
    kept = f"(SELECT * FROM {client_records} AS every WHERE coalesce(trace_store_ms, 0) >= {kept_from_ms})"
    at = packed(padded("event_ms"), padded("consumer_offset"))
    ends = f"{at} IN (max({at}) OVER queue, min({at}) OVER queue) OR event_ms = min(event_ms) OVER queue"
    return f"""
SELECT DISTINCT {CLIENT_RECORDS.typed()} FROM {kept} AS others
WHERE record_type IN ('TraceLoss', 'TraceEnd') OR record_type = 'OffsetCommit' AND event_ms > {settled_ms}
UNION ALL
SELECT DISTINCT {CLIENT_RECORDS.typed()} FROM {kept} AS offsets
WHERE record_type = 'OffsetCommit' AND event_ms <= {settled_ms}
WINDOW queue AS (PARTITION BY {_QUEUE}) QUALIFY {ends}
UNION ALL
SELECT {CLIENT_RECORDS.typed(_run_columns())} FROM (
  SELECT {_START}, min(first_sequence) AS first_sequence, max({_LAST}) AS last, min_by(first_ms, first_sequence) AS
      first_ms, min_by(trace_born_host, first_sequence) AS trace_born_host, max(trace_store_ms) AS trace_store_ms
  FROM (SELECT *, count(*) FILTER (is_first) OVER (PARTITION BY {_START} ORDER BY first_sequence) AS run
    FROM (SELECT *, before IS NULL OR first_sequence > before.sequence + 1
        OR dropped_total IS DISTINCT FROM before.dropped_total AS is_first
      FROM ({runs_sql(kept)}) AS numbered) AS marked) AS in_runs
  GROUP BY {_START}, run) AS runs"""


def _run_columns() -> dict[str, str]:
    """SQL of the columns of a row of TraceBatches."""
    empty = {column.name: "''" if column.type == "string" else "NULL" for column in CLIENT_RECORDS}
    own = ("cluster", "client_id", "start_id", "first_sequence", "first_ms", "trace_born_host", "trace_store_ms")
    of_last = {name: f"last.{name}" for name in ("sequence", "event_ms", "dropped_total")}
    return empty | {name: name for name in own} | of_last | {"record_type": "'TraceBatch'"}
