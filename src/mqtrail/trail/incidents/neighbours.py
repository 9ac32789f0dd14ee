"""What happened beside an incident: changes of clients, brokers, offsets and subscriptions around its begin.

    neighbours    temporary table: cluster, at_ms, kind, dimension, value (of what the change concerns), detail

Inputs, by name: clients, samples, group_offsets, subscriptions, queue_ranges, gaps, client_records, broker_events.
Keyframes repeat what is known; repeated rows are no changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..broker_events import BROKER_EVENTS, MASTER_EVENTS, distinct_events_sql
from ..clocks import host_of
from ..kinds import literal, quoted
from .cases import Ask
from .contrast import Condition
from .settings import MINUTE_MS

BEFORE_MS = 2 * MINUTE_MS
"""How long before the begin of an incident a change can explain it."""
_KIND_TEXTS = {
    "CLIENT_CAME": "clients came",
    "CLIENT_LEFT": "clients left",
    "CLIENT_STARTED": "clients started",
    "BROKER_SILENT": "samples without an answer",
    "MASTER_CHANGED": "changes of the master",
    "QUEUE_RECREATED": "queues began again at a lower offset",
    "OFFSET_MOVED_BACK": "offsets were moved back",
    "SUBSCRIPTION_CHANGED": "subscriptions changed",
}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Changes of one kind and place during an incident. before_count: in the same length of time before it."""

    kind: str
    about: Condition
    count: int
    before_count: int
    first_ms: int
    example: str

    @property
    def is_many(self) -> bool:
        """Whether there were many more changes than before."""
        return self.count >= 3 and self.count >= 3 * self.before_count

    def __str__(self) -> str:
        text = f"{self.about}: {self.count} {_KIND_TEXTS[self.kind]}"
        return f"{text} ({self.before_count} in the same time before)"


def make_neighbours(ask: Ask, from_ms: int, to_ms: int) -> None:
    """Create the table neighbours of [from_ms, to_ms)."""
    parts = " UNION ALL ".join((_CAME, _LEFT, _STARTED, _SILENT, _MASTER, _RECREATED, _MOVED_BACK, _SUBSCRIBED))
    ask(
        f"""CREATE OR REPLACE TEMP TABLE neighbours AS
        WITH keyframes AS (SELECT cluster, sampled_ms FROM samples WHERE what = 'SAMPLE' AND keyframe_ms = sampled_ms),
        firsts AS (SELECT cluster, min(sampled_ms) AS first_ms FROM samples WHERE what = 'SAMPLE' GROUP BY cluster)
        SELECT * FROM ({parts}) AS every WHERE at_ms >= {from_ms} AND at_ms < {to_ms}"""
    )


_NOT_REPEATED = "(c.cluster, c.sampled_ms) NOT IN (SELECT (k.cluster, k.sampled_ms) FROM keyframes k)"
_CAME = f"""
SELECT DISTINCT c.cluster, c.sampled_ms AS at_ms, 'CLIENT_CAME' AS kind, 'group_name' AS dimension,
  c.group_name AS value, c.client_id AS detail
FROM clients c JOIN firsts f ON c.cluster = f.cluster AND c.sampled_ms > f.first_ms
WHERE c.change = 'SEEN' AND c.client_id <> '' AND (c.first_ms = c.sampled_ms OR {_NOT_REPEATED})"""
_LEFT = """
SELECT cluster, min(sampled_ms), 'CLIENT_LEFT', 'group_name', group_name, client_id
FROM clients WHERE change = 'GONE' AND client_id <> '' GROUP BY cluster, group_name, client_id, seen_ms"""
_STARTED = f"""
SELECT cluster, min(coalesce(first_ms, event_ms)), 'CLIENT_STARTED', side, {host_of("client_id")}, client_id
FROM client_records, (VALUES ('client_host'), ('producer_host')) AS sides(side)
WHERE record_type = 'TraceBatch' AND client_id <> '' GROUP BY cluster, client_id, start_id, side"""
_SILENT = """
SELECT cluster, min(sampled_ms), 'BROKER_SILENT', 'broker', broker_name, any_value(reason)
FROM samples WHERE what IN ('OFFSETS', 'GROUPS') AND status = 'FAILED' AND broker_name <> ''
GROUP BY cluster, broker_name, what, seen_ms"""
_MASTER = f"""
SELECT cluster, event_ms, 'MASTER_CHANGED', 'broker', event_broker_name, address
FROM ({distinct_events_sql(BROKER_EVENTS.name)}) AS of_brokers
WHERE event IN ({quoted(MASTER_EVENTS)}) AND (before_id <> '' OR before_address <> '')"""
_RECREATED = """
SELECT cluster, detected_ms, 'QUEUE_RECREATED', 'broker', broker_name, topic || '/' || queue_id
FROM gaps WHERE reason = 'RECREATED'
UNION ALL
SELECT cluster, sampled_ms, 'QUEUE_RECREATED', 'broker', broker_name, topic || '/' || queue_id
FROM (SELECT *, lag(max_offset) OVER (PARTITION BY cluster, broker_name, topic, queue_id ORDER BY sampled_ms) AS before
  FROM queue_ranges WHERE change <> 'GONE') AS moved WHERE max_offset < before"""
_MOVED_BACK = """
SELECT cluster, sampled_ms, 'OFFSET_MOVED_BACK', 'group_name', group_name,
  broker_name || '/' || topic || '/' || queue_id
FROM (SELECT *, lag(consumer_offset) OVER (PARTITION BY cluster, group_name, topic, broker_name, queue_id
    ORDER BY sampled_ms) AS before FROM group_offsets WHERE change <> 'GONE') AS moved WHERE consumer_offset < before"""
_SUBSCRIBED = f"""
SELECT c.cluster, c.sampled_ms, 'SUBSCRIPTION_CHANGED', 'group_name', c.group_name, c.topic || ' ' || c.expression
FROM subscriptions c JOIN firsts f ON c.cluster = f.cluster AND c.sampled_ms > f.first_ms
WHERE c.change = 'SEEN' AND (c.first_ms = c.sampled_ms OR {_NOT_REPEATED})"""


def neighbours_of(
    ask: Ask, cluster: str, about: Sequence[Condition], begin_ms: int, end_ms: int
) -> tuple[Neighbour, ...]:
    """Return the changes of these hosts, groups and brokers from shortly before the begin until the end, and changes of
    any master: where all messages are of one broker, nothing names it."""
    from_ms = begin_ms - BEFORE_MS
    earlier_ms = from_ms - (end_ms - from_ms)
    places = ", ".join(f"({literal(one.dimension)}, {literal(one.value)})" for one in about) or "('', '')"
    rows = ask(
        f"""SELECT kind, dimension, value, count(*) FILTER (at_ms >= {from_ms}) AS n,
          count(*) FILTER (at_ms < {from_ms}), min(at_ms) FILTER (at_ms >= {from_ms}),
          min_by(detail, at_ms) FILTER (at_ms >= {from_ms})
        FROM neighbours WHERE cluster = {literal(cluster)}
          AND ((dimension, value) IN (VALUES {places}) OR kind = 'MASTER_CHANGED')
          AND at_ms >= {earlier_ms} AND at_ms < {end_ms}
        GROUP BY kind, dimension, value HAVING n > 0 ORDER BY n DESC, kind, value"""
    )
    return tuple(
        Neighbour(kind, Condition(dimension, value), count, before, first_ms, detail or "")
        for kind, dimension, value, count, before, first_ms, detail in rows
    )
