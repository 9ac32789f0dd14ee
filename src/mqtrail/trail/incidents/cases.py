"""Units as tables: one row per message (send_units) and per message and group (group_units), with their dimensions.

Inputs, by name: trajectories, verdicts (current rows of the lake's gold), attempts, clients, samples, clock_bounds. A
dimension is a text; '' means unknown, and unknown is never a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..clocks import clock_window, clocks_sql, host_of
from ..context import ip
from ..kinds import literal, quoted
from .settings import IncidentSettings
from .symptoms import Symptom

Ask = Callable[[str], list[tuple[Any, ...]]]
"""Runs one statement of SQL; returns its rows."""

SEND_DIMENSIONS = (
    "broker",
    "queue",
    "producer_host",
    "producer_client",
    "producer_group",
    "topic",
    "tag",
    "key",
    "body_size",
    "hour",
)
"""Dimensions of a send. Of equal ones the first represents all."""
GROUP_DIMENSIONS = (
    "key",
    "group_name",
    "version",
    "started",
    "client_host",
    "client",
    "queue",
    "broker",
    "topic",
    "tag",
    "body_size",
    "producer_host",
    "producer_group",
    "hour",
)
"""Dimensions of a message in a group. Of equal ones the first represents all."""
DIMENSIONS = {"send": SEND_DIMENSIONS, "group": GROUP_DIMENSIONS}

HOUR_RANGE_MS = 36 * 3_600_000  # hours of the day are compared in longer ranges
KEYS_MAX = 50  # tokens of KEYS that are tried
STARTS_APART_MS = 600_000  # clients that start closer to each other started together
_SIZES = ((0, "0"), (1_024, "< 1 KiB"), (4_096, "1-4 KiB"), (16_384, "4-16 KiB"), (65_536, "16-64 KiB"),
          (262_144, "64-256 KiB"), (1_048_576, "256 KiB-1 MiB"))  # fmt: skip


def make_units(ask: Ask, found: Sequence[Symptom], settings: IncidentSettings, from_ms: int, to_ms: int) -> None:
    """Create send_units and group_units of [from_ms, to_ms). symptoms is a bit for each of `found`."""
    _make_masks(ask, found)
    ask(f"CREATE OR REPLACE TEMP TABLE own_clients AS {_own_clients()}")
    ask(f"CREATE OR REPLACE TEMP TABLE clocks AS {clocks_sql('clock_bounds')}")
    hour = "printf('%02d:00', (at_ms // 3600000 % 24)::int)" if to_ms - from_ms > HOUR_RANGE_MS else "''"
    limits = {"clock_ms": settings.clock_ms, "wait_ms": settings.wait_ms}
    sends = ", ".join(("*", f"{hour} AS hour", f"(mask | {_measured('send', found, limits)}) AS symptoms"))
    ask(f"CREATE OR REPLACE TEMP TABLE send_units AS SELECT {sends} FROM ({_sends(from_ms, to_ms)}) AS sends")
    groups = ", ".join(("*", f"{hour} AS hour", f"(mask | {_measured('group', found, limits)}) AS symptoms"))
    ask(f"CREATE OR REPLACE TEMP TABLE group_units AS SELECT {groups} FROM ({_groups(from_ms, to_ms)}) AS groups")
    if any(one.name == "SENDS_FAIL" for one in found):
        _locate_failed_sends(ask)
    for unit in DIMENSIONS:
        _make_keys(ask, unit, settings)


def _make_masks(ask: Ask, found: Sequence[Symptom]) -> None:
    """Create code_masks: each text of codes that occurs -> the symptoms of its codes, as bits."""
    texts = ask(
        """SELECT DISTINCT concat_ws(',', send_codes, message_codes, knowledge) FROM trajectories
        UNION SELECT DISTINCT codes FROM verdicts"""
    )
    bits = {code: 1 << number for number, one in enumerate(found) for code in one.codes}
    rows = []
    for (text,) in texts:
        mask = 0
        for code in (text or "").split(","):
            mask |= bits.get(code, 0)
        rows.append(f"({literal(text)}, {mask}::bigint)")
    ask(
        "CREATE OR REPLACE TEMP TABLE code_masks AS "
        f"SELECT * FROM (VALUES {', '.join(rows) or '(NULL, 0::bigint)'}) AS masks(codes, mask)"
    )


def _measured(unit: str, found: Sequence[Symptom], limits: dict[str, int]) -> str:
    """SQL: the bits of symptoms that are measured."""
    parts = [
        f"CASE WHEN {one.measure.format(**limits)} THEN {1 << number} ELSE 0 END"
        for number, one in enumerate(found)
        if one.measure and one.unit == unit
    ]
    return " | ".join(parts) or "0"


def _size(column: str) -> str:
    parts = " ".join(f"WHEN {column} <= {limit} THEN '{name}'" for limit, name in _SIZES)
    return f"CASE WHEN {column} IS NULL THEN '' {parts} ELSE '> 1 MiB' END"


_QUEUE = """CASE WHEN t.broker_name <> '' AND t.queue_id IS NOT NULL
      THEN t.broker_name || '/' || t.topic || '/' || t.queue_id ELSE '' END"""


def _sends(from_ms: int, to_ms: int) -> str:
    at = "coalesce(t.stored_ms, t.send_start_ms, t.visible_ms, t.last_event_ms)"  # the clock of a producer may be wrong
    return f"""
SELECT t.cluster, t.msg_id, {at} AS at_ms, t.as_of_ms, concat_ws(',', t.send_codes, t.message_codes) AS codes,
  coalesce(m.mask, 0) AS mask, t.stored_ms, t.send_start_ms, t.acked_ms, t.send_ms AS cost_ms, t.topic, t.tags AS tag,
  t.keys AS keys, t.producer_group, {ip("t.producer_host")} AS producer_host, t.producer_host AS producer_client,
  t.broker_name AS broker, {_QUEUE} AS queue, {_size("t.body_size")} AS body_size, '' AS detail
FROM trajectories AS t
LEFT JOIN code_masks AS m ON m.codes = concat_ws(',', t.send_codes, t.message_codes, t.knowledge)
WHERE {at} >= {from_ms} AND {at} < {to_ms}"""


def _groups(from_ms: int, to_ms: int) -> str:
    at = "coalesce(v.first_delivered_ms, t.visible_ms, t.stored_ms, t.send_start_ms, t.last_event_ms)"
    return f"""
SELECT t.cluster, t.msg_id, {at} AS at_ms, v.as_of_ms, v.codes, coalesce(m.mask, 0) AS mask, v.state, v.to_delivered_ms,
  t.visible_ms, coalesce(v.handler_ms, v.handler_cost_ms) AS cost_ms, t.topic, t.tags AS tag, t.keys AS keys,
  t.producer_group, {ip("t.producer_host")} AS producer_host, t.broker_name AS broker, {_QUEUE} AS queue,
  {_size("t.body_size")} AS body_size, v.detail, v.group_name, v.client,
  k.low_ms AS clock_low_ms, k.high_ms AS clock_high_ms, k.offset_ms AS clock_offset_ms,
  CASE WHEN k.state = 'CHANGED' THEN 1 ELSE 0 END AS clock_changed,
  {host_of("v.client")} AS client_host, coalesce(c.version, h.version, '') AS version,
  coalesce(c.started, h.started, '') AS started
FROM verdicts AS v JOIN trajectories AS t ON v.cluster = t.cluster AND v.msg_id = t.msg_id
LEFT JOIN code_masks AS m ON m.codes = v.codes
LEFT JOIN own_clients AS c ON v.cluster = c.cluster AND v.group_name = c.group_name AND v.client = c.client
LEFT JOIN own_clients AS h ON v.cluster = h.cluster AND v.group_name = h.group_name
  AND 'ip:' || {host_of("v.client")} = h.client AND c.client IS NULL
LEFT JOIN clocks AS k ON v.cluster = k.cluster AND t.broker_name = k.broker_name AND k.host = {host_of("v.client")}
  AND k.window_ms = {clock_window("t.visible_ms")}
WHERE {at} >= {from_ms} AND {at} < {to_ms}"""


def _own_clients() -> str:
    """Version and start of each consumer client by its id, and by 'ip:<host>' where a group has one client there.

    started: '' if all clients of the group started together.
    """
    return f"""
WITH seen AS (
  SELECT cluster, group_name, client_id AS client, max({host_of("client_id")}) AS host, max(version) AS version,
    min(coalesce(first_ms, sampled_ms)) AS since_ms
  FROM clients WHERE status = 'OK' AND client_id <> '' AND change <> 'GONE' GROUP BY 1, 2, 3),
cut AS (SELECT *, CASE WHEN since_ms - lag(since_ms) OVER own <= {STARTS_APART_MS} THEN 0 ELSE 1 END AS is_new
  FROM seen WINDOW own AS (PARTITION BY cluster, group_name ORDER BY since_ms)),
numbered AS (SELECT *, sum(is_new) OVER (PARTITION BY cluster, group_name ORDER BY since_ms) AS start_no FROM cut),
named AS (SELECT *, CASE WHEN max(start_no) OVER (PARTITION BY cluster, group_name) > 1
    THEN strftime(epoch_ms(min(since_ms) OVER (PARTITION BY cluster, group_name, start_no)), '%Y-%m-%d %H:%M:%S')
    ELSE '' END AS started FROM numbered)
SELECT cluster, group_name, client, coalesce(version::varchar, '') AS version, started FROM named
UNION ALL
SELECT cluster, group_name, 'ip:' || host, max(coalesce(version::varchar, '')), max(started) FROM named
GROUP BY cluster, group_name, host HAVING count(*) = 1"""


def _locate_failed_sends(ask: Ask) -> None:
    """Give sends with failed tries the broker of the last one, and its result as their error."""
    ask(
        """CREATE OR REPLACE TEMP TABLE failed_tries AS
        SELECT cluster, msg_id, max_by(CASE WHEN broker_name <> '' THEN broker_name ELSE store_host END,
            coalesce(attempt_no, 0)) AS broker,
          max_by(outcome || coalesce(' ' || response_code, ''), coalesce(attempt_no, 0)) AS detail
        FROM attempts WHERE kind = 'SEND_TRY' AND failed = 1
          AND (cluster, msg_id) IN (SELECT (cluster, msg_id) FROM send_units WHERE symptoms <> 0)
        GROUP BY cluster, msg_id"""
    )
    ask(
        """UPDATE send_units SET queue = CASE WHEN f.broker = send_units.broker THEN queue ELSE '' END,
          broker = CASE WHEN f.broker <> '' THEN f.broker ELSE send_units.broker END, detail = f.detail
        FROM failed_tries AS f WHERE send_units.cluster = f.cluster AND send_units.msg_id = f.msg_id"""
    )


def _make_keys(ask: Ask, unit: str, settings: IncidentSettings) -> None:
    """Add the column key: a token of KEYS whose units are more often bad than the others; of several the one most have.

    Units are compared over all groups, and within each: what other groups do with the same messages is not its fault.
    """
    own, place = f"{unit}_units", "cluster, group_name" if unit == "group" else "cluster"
    ask(f"ALTER TABLE {own} ADD COLUMN key VARCHAR DEFAULT ''")
    tokens = ask(
        f"""WITH often AS (SELECT token FROM ({_tokens(own, place, "symptoms <> 0")}) AS tokens GROUP BY token
          HAVING count(*) >= {settings.bad_count_min}),
        counted AS (SELECT token, {place}, {_COUNTS} FROM ({_tokens(own, place, "exists (FROM often)")}) AS tokens
          WHERE token IN (FROM often) GROUP BY GROUPING SETS ((token), (token, {place}))
          HAVING bad >= {settings.bad_count_min}),
        totals AS (SELECT {place}, {_COUNTS} FROM {own} GROUP BY GROUPING SETS ((), ({place})))
        SELECT token, max(c.bad) AS bad FROM counted AS c JOIN totals AS t
          ON ({", ".join(f"c.{name}" for name in place.split(", "))})
            IS NOT DISTINCT FROM ({", ".join(f"t.{name}" for name in place.split(", "))})
        WHERE c.bad / c.every >= {settings.lift_min} * (t.bad - c.bad + 1) / (t.every - c.every + 1)
        GROUP BY token ORDER BY bad DESC, token LIMIT {KEYS_MAX}"""
    )
    if tokens:
        names = quoted([token for token, _ in tokens])
        ask(
            f"UPDATE {own} SET key = list_filter([{names}], lambda k: list_contains(string_split(keys, ' '), k))[1] "
            f"WHERE list_has_any(string_split(keys, ' '), [{names}])"
        )


_COUNTS = "count(*) AS every, count(*) FILTER (symptoms <> 0) AS bad"


def _tokens(units: str, place: str, where: str) -> str:
    return (
        f"SELECT {place}, symptoms, unnest(string_split(keys, ' ')) AS token FROM {units} WHERE keys <> '' AND {where}"
    )


def error_text(column: str) -> str:
    """SQL: an error text without what differs from message to message: quoted parts, hexadecimal numbers, digits."""
    text = f"substr({column}, 1, 200)"
    for pattern, placed in (("'[^']*'|\"[^\"]*\"", "''"), (r"\b(0x)?[0-9a-fA-F]{8,}\b", "#"), (r"\d+", "#")):
        text = f"regexp_replace({text}, {literal(pattern)}, {literal(placed)}, 'g')"
    return f"substr({text}, 1, 100)"
