"""How far the clocks of hosts differ from those of brokers: intervals that the order of events forces.

    trace_events ────────────┐
    trajectories, verdicts ──┴─→ clock_bounds (merge: greatest low_ms, least high_ms) → clocks

Let d be the clock of a host minus that of a broker. What happens first at one of them bounds it:

    a send began before the broker stored it            d >= send_start - stored
    the broker stored it before the answer came         d <= acked - stored
    a message was stored before it was delivered        d <= delivered - visible
    a trace message was made before it was stored       d >= born - stored

Only messages that were sent, stored and delivered once are used. A bound of one window of the broker's time holds in it
alone: clocks are adjusted. Times are whole ms, so a bound is 1 ms wider than their difference.
"""

from __future__ import annotations

from typing import Final

from .context import ip
from .results import CLOCK_BOUNDS

CLOCK_WINDOW_MS: Final = 300_000
_KEY = "cluster, host, broker_name, window_ms"


def host_of(client: str) -> str:
    """SQL: the host of a client id (ip@pid#nanos) or of ip:port."""
    return f"""CASE WHEN instr({client}, '@') > 0 THEN split_part({client}, '@', 1)
      WHEN instr({client}, ':') > 0 THEN {ip(client)} ELSE {client} END"""


def clock_window(at_ms: str) -> str:
    """SQL: the begin of the window of a time."""
    return f"({at_ms} // {CLOCK_WINDOW_MS} * {CLOCK_WINDOW_MS})"


def trace_bounds_sql(trace_events: str) -> str:
    """SQL: rows of CLOCK_BOUNDS of rows of trace_events, by the address of the connection and that in the client id."""
    found = {"window_ms": "of_window_ms", "low_ms": "max(ahead_ms) - 1", "high_ms": "NULL"}
    clients = f"""(SELECT cluster, broker_name, trace_born_host, trace_client_id,
    {clock_window("trace_store_ms")} AS of_window_ms, max(trace_born_ms - trace_store_ms) AS ahead_ms
  FROM {trace_events} AS events WHERE trace_born_ms IS NOT NULL AND trace_store_ms IS NOT NULL GROUP BY ALL)"""
    return f"""
SELECT {CLOCK_BOUNDS.typed(found)} FROM (
  SELECT *, {host_of("trace_born_host")} AS host FROM {clients} AS connections
  UNION ALL SELECT *, {host_of("trace_client_id")} FROM {clients} AS clients) AS hosts
WHERE host <> '' GROUP BY cluster, host, broker_name, of_window_ms"""


def judged_bounds_sql(trajectories: str, verdicts: str) -> str:
    """SQL: rows of CLOCK_BOUNDS of current rows of trajectories and verdicts."""
    once = "t.copy_count = 1 AND t.stored_ms = t.visible_ms AND t.due_ms IS NULL AND instr(t.message_codes, 'TX_') = 0"
    sends = _bounds(
        f"""SELECT t.cluster, t.broker_name, {host_of("t.producer_host")} AS host, t.send_start_ms, t.acked_ms,
    t.stored_ms
  FROM {trajectories} AS t WHERE {once} AND t.send_count = 1 AND coalesce(t.try_count, 0) <= 1""",
        "stored_ms",
        low="send_start_ms - stored_ms",
        high="acked_ms - stored_ms",
    )
    deliveries = _bounds(
        f"""SELECT t.cluster, t.broker_name, {host_of("v.client")} AS host, v.first_delivered_ms, t.visible_ms
  FROM {verdicts} AS v JOIN {trajectories} AS t ON v.cluster = t.cluster AND v.msg_id = t.msg_id
  WHERE {once} AND v.delivery_count = 1 AND coalesce(v.retry_times, 0) = 0""",
        "visible_ms",
        high="first_delivered_ms - visible_ms",
    )
    return f"{sends} UNION ALL {deliveries}"


def _bounds(source: str, stored_ms: str, low: str = "NULL::bigint", high: str = "NULL::bigint") -> str:
    found = {"window_ms": "of_window_ms", "low_ms": f"max({low}) - 1", "high_ms": f"min({high}) + 1"}
    return f"""
SELECT {CLOCK_BOUNDS.typed(found)} FROM (SELECT *, {clock_window(stored_ms)} AS of_window_ms FROM ({source}) AS timed
  WHERE {stored_ms} IS NOT NULL AND host <> '' AND broker_name <> '') AS windows
GROUP BY cluster, host, broker_name, of_window_ms HAVING max({low}) IS NOT NULL OR min({high}) IS NOT NULL"""


def folded_clock_bounds_sql(bounds: str, kept_from_ms: int = 0) -> str:
    """SQL: one row of CLOCK_BOUNDS for each key. kept_from_ms: earlier windows have expired."""
    folded = {"low_ms": "max(low_ms)", "high_ms": "min(high_ms)"}
    return (
        f"SELECT {CLOCK_BOUNDS.typed(folded)} FROM {bounds} AS bounds WHERE window_ms >= {kept_from_ms} GROUP BY {_KEY}"
    )


def clocks_sql(bounds: str) -> str:
    """SQL: one row per host, broker and window: the interval [low_ms, high_ms] of the difference, and what it means.

    The windows beside it narrow it, if they allow a common value. offset_ms: 0 if the interval allows that the clocks
    agree, else its middle; NULL: not known. error_ms: how far it can be wrong. state: KNOWN; PARTLY: one bound is
    missing; CHANGED: no value is possible in the whole window. jump_ms: how far the clock moved at least since the
    last window with both bounds; 0: perhaps not at all.
    """
    own = "PARTITION BY cluster, host, broker_name ORDER BY window_ms"
    before = f"OVER ({own} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    beside = f"OVER ({own} RANGE BETWEEN {CLOCK_WINDOW_MS} PRECEDING AND {CLOCK_WINDOW_MS} FOLLOWING)"
    return f"""
SELECT {_KEY}, low_ms, high_ms, state,
  CASE WHEN state <> 'KNOWN' THEN NULL WHEN low_ms <= 0 AND high_ms >= 0 THEN 0
    ELSE (low_ms + high_ms) // 2 END AS offset_ms,
  CASE WHEN state <> 'KNOWN' THEN NULL WHEN low_ms <= 0 AND high_ms >= 0 THEN greatest(-low_ms, high_ms)
    ELSE (high_ms - low_ms + 1) // 2 END AS error_ms,
  CASE WHEN own_low_ms <= own_high_ms AND before_low_ms IS NOT NULL THEN
    greatest(own_low_ms - before_high_ms, 0) - greatest(before_low_ms - own_high_ms, 0) ELSE 0 END AS jump_ms
FROM (SELECT {_KEY}, own_low_ms, own_high_ms, before_low_ms, before_high_ms,
    CASE WHEN is_joined THEN beside_low_ms ELSE own_low_ms END AS low_ms,
    CASE WHEN is_joined THEN beside_high_ms ELSE own_high_ms END AS high_ms,
    CASE WHEN own_low_ms > own_high_ms THEN 'CHANGED'
      WHEN CASE WHEN is_joined THEN beside_low_ms IS NULL OR beside_high_ms IS NULL
        ELSE own_low_ms IS NULL OR own_high_ms IS NULL END THEN 'PARTLY' ELSE 'KNOWN' END AS state
  FROM (SELECT *, coalesce(beside_low_ms <= beside_high_ms, true) AS is_joined FROM (
    SELECT {_KEY}, low_ms AS own_low_ms, high_ms AS own_high_ms,
      max(low_ms) {beside} AS beside_low_ms, min(high_ms) {beside} AS beside_high_ms,
      last_value(CASE WHEN low_ms <= high_ms THEN low_ms END IGNORE NULLS) {before} AS before_low_ms,
      last_value(CASE WHEN low_ms <= high_ms THEN high_ms END IGNORE NULLS) {before} AS before_high_ms
    FROM ({folded_clock_bounds_sql(bounds)}) AS folded) AS joined) AS windows) AS intervals"""


def corrected_splits_sql(rows: str, clocks: str) -> str:
    """SQL: the rows, with the parts of their latency split by one clock, their sum, and `clocks` and `clock_error_ms`.

    rows: cluster, broker_name, producer_host, client, stored_ms, visible_ms and the parts of VERDICTS. clocks: rows of
    `clocks_sql`. A part between two hosts is corrected by the difference of their clocks. Where that is not known, the
    clocks are taken as equal, but no part is negative. clocks: AGREE, CORRECTED or ASSUMED; '' without such a part.
    """
    known = "p.offset_ms IS NOT NULL OR to_stored_ms IS NULL", "c.offset_ms IS NOT NULL OR to_delivered_ms IS NULL"
    parts = {
        "to_stored_ms": "r.to_stored_ms + coalesce(p.offset_ms, 0)",
        "delay_ms": "r.delay_ms",
        "to_delivered_ms": "r.to_delivered_ms - coalesce(c.offset_ms, 0)",
        "retry_ms": "r.retry_ms",
        "handler_ms": "r.handler_ms",
    }
    replaced = ", ".join(
        f"CASE WHEN r.{name} IS NOT NULL THEN greatest({sql}, 0) END AS {name}" for name, sql in parts.items()
    )
    return f"""
SELECT * REPLACE (CASE WHEN total_ms IS NOT NULL THEN {" + ".join(parts)} END AS total_ms) FROM (
  SELECT r.* REPLACE ({replaced}),
    CASE WHEN r.to_stored_ms IS NULL AND r.to_delivered_ms IS NULL THEN ''
      WHEN NOT (({known[0]}) AND ({known[1]})) THEN 'ASSUMED'
      WHEN coalesce(p.offset_ms, 0) = 0 AND coalesce(c.offset_ms, 0) = 0 THEN 'AGREE' ELSE 'CORRECTED' END AS clocks,
    CASE WHEN ({known[0]}) AND ({known[1]}) THEN coalesce(p.error_ms, 0) + coalesce(c.error_ms, 0) END AS clock_error_ms
  FROM {rows} AS r
  LEFT JOIN {clocks} AS p ON p.cluster = r.cluster AND p.broker_name = r.broker_name
    AND p.host = {host_of("r.producer_host")} AND p.window_ms = {clock_window("r.stored_ms")}
  LEFT JOIN {clocks} AS c ON c.cluster = r.cluster AND c.broker_name = r.broker_name
    AND c.host = {host_of("r.client")} AND c.window_ms = {clock_window("r.visible_ms")}) AS parts"""
