"""Search, export and report over a lake's gold tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb

from mqtrail import trail
from mqtrail.lake import LakeDamaged, fetch, lake_errors

from .broker_changes import changes_of_masters, with_broker_changes
from .lakeview import LakeView
from .model import (
    CodeCount,
    LagRow,
    LatencyRow,
    LatencySegment,
    Report,
    SearchAnswer,
    SearchConditions,
    codes_of,
    reasons_of,
)
from .views import PUBLISHED_MS

SEVERITIES = ("error", "warning", "open", "info", "good")
EXPORT_ROWS = 10_000  # rows fetched at once


def between(first_ms: int | None, end_ms: int | None) -> tuple[str, list[Any]]:
    """Return an SQL condition for publication in [first_ms, end_ms), and its values."""
    parts, values = ["true"], []
    if first_ms is not None:
        parts.append(f"{PUBLISHED_MS} >= ?")
        values.append(first_ms)
    if end_ms is not None:
        parts.append(f"{PUBLISHED_MS} < ?")
        values.append(end_ms)
    return " AND ".join(parts), values


def search(view: LakeView, wanted: SearchConditions, now_ms: int) -> SearchAnswer:
    """Return the latest matching messages and the number of all matches."""
    view.define_views(wanted.first_ms, wanted.end_ms)
    where, values = condition(wanted)
    counted = fetch(view.connection, f"SELECT count(*) AS n FROM trajectories AS t WHERE {where}", values)
    tail = f"ORDER BY {PUBLISHED_MS} DESC, t.msg_id, t.cluster LIMIT {wanted.limit} OFFSET {wanted.skip}"
    keys = view.connection.execute(
        f"SELECT t.cluster, t.msg_id, t.publish_hour FROM trajectories AS t WHERE {where} {tail}", values
    )
    found = view.trajectories(keys.fetchall())
    matched = int(counted[0]["n"])
    which = f"{len(found)} after the latest {wanted.skip}" if wanted.skip else f"the latest {len(found)}"
    extra = [f"{matched} messages match, {which} are shown: raise --limit, or narrow the search"]
    return SearchAnswer(view.scope(now_ms, extra if matched > len(found) else ()), matched, tuple(found))


def reason_names(reasons: str) -> str:
    """SQL: the list of the names in a column of reasons, without their parameters."""
    return f"regexp_extract_all(';' || {reasons}, ';([^;(]+)', 1)"


def condition(wanted: SearchConditions) -> tuple[str, list[Any]]:
    """Return SQL for the rows of trajectories t that match, and its values. It reads the views of a LakeView."""
    text, values = between(wanted.first_ms, wanted.end_ms)
    parts = [text]
    if wanted.key:
        of_key = "(t.cluster, t.msg_id) IN (SELECT (cluster, msg_id) FROM key_index WHERE key_token = ?)"
        parts.append(f"(t.msg_id = ? OR {of_key})")
        values += [wanted.key, wanted.key]
    for column, value in (
        ("t.topic = ?", wanted.topic),
        ("t.tags = ?", wanted.tag),
        ("t.broker_name = ?", wanted.broker),
        ("t.queue_id = ?", wanted.queue_id),
        ("t.body_size > ?", wanted.body_size_over),
    ):
        if value not in ("", None):
            parts.append(column)
            values.append(value)
    if wanted.host:
        consumed = "(t.cluster, t.msg_id) IN (SELECT (cluster, msg_id) FROM verdicts WHERE starts_with(client, ?))"
        parts.append(f"(starts_with(t.producer_host, ?) OR {consumed})")
        values += [wanted.host, wanted.host]
    if wanted.handler_ms_min is not None:
        # A handler that still runs has no duration: it ran until the judgement at least.
        took = "coalesce(e.duration_ms, CASE WHEN e.outcome = 'OPEN' THEN t.as_of_ms - nullif(e.at_ms, 0) END) >= ?"
        group = "AND e.group_name = ?" if wanted.group_name else ""
        parts.append(f"len(list_filter(t.events, lambda e: e.kind = 'HANDLED' AND {took} {group})) > 0")
        values += [wanted.handler_ms_min, *filter(None, [wanted.group_name])]
    for column, least in (("delivery_count > ?", wanted.deliveries_over), ("total_ms >= ?", wanted.total_ms_min)):
        if least is not None:
            group = "AND group_name = ?" if wanted.group_name else ""
            parts.append(f"(t.cluster, t.msg_id) IN (SELECT (cluster, msg_id) FROM verdicts WHERE {column} {group})")
            values += [least, *filter(None, [wanted.group_name])]
    _add_results(wanted, parts, values)
    return " AND ".join(parts), values


def _add_results(wanted: SearchConditions, parts: list[str], values: list[Any]) -> None:
    """Add the conditions on groups, verdicts and reasons."""
    mine = "(t.cluster, t.msg_id) IN (SELECT (cluster, msg_id) FROM verdicts WHERE group_name = ?{})"
    if wanted.group_name:
        parts.append(f"(t.producer_group = ? OR {mine.format('')})")
        values += [wanted.group_name, wanted.group_name]
    if wanted.codes:
        codes = list(wanted.codes)
        own = "list_has_any(string_split(concat_ws(',', t.send_codes, t.message_codes, t.knowledge), ','), ?)"
        if wanted.group_name:
            parts.append(f"({own} OR {mine.format(' AND list_has_any(string_split(codes, chr(44)), ?)')})")
            values += [codes, wanted.group_name, codes]
        else:
            parts.append(f"({own} OR list_has_any(string_split(t.group_codes, ','), ?))")
            values += [codes, codes]
    if wanted.reason:
        has = f"list_contains({reason_names('{}reasons')}, ?)"
        group = "AND group_name = ?" if wanted.group_name else ""
        parts.append(
            f"({has.format('t.')} OR (t.cluster, t.msg_id) IN "
            f"(SELECT (cluster, msg_id) FROM verdicts WHERE {has.format('')} {group}))"
        )
        values += [wanted.reason, wanted.reason, *filter(None, [wanted.group_name])]


def export(view: LakeView, first_ms: int | None, end_ms: int | None) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per message, by time of publication. LakeDamaged after the last: files were unreadable."""
    cursor, rows = view.read(lambda read: _export_rows(read, first_ms, end_ms))
    while rows:
        for cluster, msg_id, topic, keys, send, message, knowledge, reasons, as_of_ms, verdicts in rows:
            verdicts = verdicts or []
            why = {*reasons_of(reasons), *(one for verdict in verdicts for one in reasons_of(verdict["reasons"]))}
            yield {
                "msg_id": msg_id,
                "topic": topic,
                "keys": keys.split(),
                "send": list(codes_of(send)),
                "message": list(codes_of(message)),
                "groups": {verdict["g"]: list(codes_of(verdict["codes"])) for verdict in verdicts},
                "knowledge": knowledge,
                "reasons": sorted(why),
                "as_of": as_of_ms,
                "cluster": cluster,
            }
        with lake_errors(view.path):
            rows = cursor.fetchmany(EXPORT_ROWS)
    if view.damage:
        raise LakeDamaged(
            f"{len(view.damage)} files or tables could not be read; the exported messages come from the others; "
            f"the first: {view.damage[0]}"
        )


def _export_rows(
    view: LakeView, first_ms: int | None, end_ms: int | None
) -> tuple[duckdb.DuckDBPyConnection, list[Any]]:
    """Return the cursor of an export and its first rows. The rows are sorted, so all files have been read by then."""
    view.define_views(first_ms, end_ms)
    where, values = between(first_ms, end_ms)
    groups = "list({'g': v.group_name, 'codes': v.codes, 'reasons': v.reasons} ORDER BY v.group_name)"
    cursor = view.connection.execute(
        f"""SELECT t.cluster, t.msg_id, t.topic, t.keys, t.send_codes, t.message_codes, t.knowledge, t.reasons,
          t.as_of_ms, g.groups
        FROM trajectories AS t LEFT JOIN
          (SELECT v.cluster, v.msg_id, {groups} AS groups FROM verdicts AS v GROUP BY v.cluster, v.msg_id) AS g
          ON g.cluster = t.cluster AND g.msg_id = t.msg_id
        WHERE {where} ORDER BY {PUBLISHED_MS}, t.msg_id, t.cluster""",
        values,
    )
    return cursor, cursor.fetchmany(EXPORT_ROWS)


def report(view: LakeView, now_ms: int, first_ms: int | None, end_ms: int | None, worst_count: int) -> Report:
    """Return the summary of messages published in [first_ms, end_ms)."""
    view.define_views(first_ms, end_ms)
    duck = view.connection
    _define_asked(view, first_ms, end_ms)
    counts = "SELECT cluster, as_of_ms, count(*) FROM asked GROUP BY cluster, as_of_ms"
    instants = {(cluster, as_of_ms): count for cluster, as_of_ms, count in duck.execute(counts).fetchall()}
    worst = view.trajectories(duck.execute(_WORST, [worst_count]).fetchall()) if worst_count else []
    return Report(
        scope=view.scope(now_ms, first_ms=first_ms, end_ms=end_ms),
        message_count=sum(instants.values()),
        judged_with=view.judged_with(instants),
        codes=_codes(duck),
        latency=latency_rows(duck, first_ms, end_ms),
        lag=_lag(duck),
        worst=tuple(with_broker_changes(view, worst)),
        rejects=view.rejects,
        gaps=tuple(view.gaps()),
        broker_changes=changes_of_masters(view, first_ms, end_ms),
    )


_SEVERITY = (
    "CASE code "
    + " ".join(
        f"WHEN '{code.name}' THEN {['good', 'info', 'open', 'warning', 'error'].index(code.severity)}"
        for code in trail.CODES.values()
    )
    + " ELSE 0 END"
)

_ASKED = (
    "cluster, msg_id, publish_hour, as_of_ms, send_codes, message_codes, knowledge, send_start_ms, stored_ms, "
    "last_event_ms"
)
_ASKED_VERDICTS = "cluster, msg_id, group_name, codes"
# A code counts once in each of a message's columns. There are few different texts, so they are counted before they are
# split.
_ASKED_TEXTS = """
SELECT cluster, msg_id, 'send' AS about, send_codes AS texts FROM asked
UNION ALL SELECT cluster, msg_id, 'message', message_codes FROM asked
UNION ALL SELECT cluster, msg_id, 'knowledge', knowledge FROM asked
UNION ALL SELECT cluster, msg_id, group_name, codes FROM asked_verdicts"""

# The worst messages: those with the most severe codes first, then those with the longest path.
_WORST = f"""
WITH weights AS (SELECT texts,
    sum(CASE WHEN {_SEVERITY} >= 4 THEN 100 WHEN {_SEVERITY} = 3 THEN 1 ELSE 0 END) AS weight
  FROM (SELECT texts, unnest(list_distinct(string_split(texts, ','))) AS code
    FROM (SELECT DISTINCT texts FROM ({_ASKED_TEXTS}))) GROUP BY texts HAVING weight > 0)
SELECT cluster, msg_id, publish_hour FROM (SELECT cluster, msg_id, sum(weight) AS weight
  FROM ({_ASKED_TEXTS}) JOIN weights USING (texts) GROUP BY cluster, msg_id) JOIN asked USING (cluster, msg_id)
ORDER BY weight DESC, last_event_ms - coalesce(send_start_ms, stored_ms) DESC NULLS LAST, msg_id, cluster
LIMIT ?"""


def _define_asked(view: LakeView, first_ms: int | None, end_ms: int | None) -> None:
    """Define `asked`, the messages published in [first_ms, end_ms), and `asked_verdicts`.

    They are views: tables of all messages of a day would need gigabytes.
    """
    hours = view.lookup.published_hours(first_ms, end_ms)
    whole = None if hours is None else hours.whole
    asked = [f"SELECT {_ASKED} FROM ({_rows(view, trail.TRAJECTORIES, whole)})"]
    verdicts = [f"SELECT {_ASKED_VERDICTS} FROM ({_rows(view, trail.VERDICTS, whole)})"]
    if hours is not None and hours.partial:
        where = f"{PUBLISHED_MS} >= {first_ms or 0} AND {PUBLISHED_MS} < {1 << 62 if end_ms is None else end_ms}"
        some = f"SELECT {_ASKED} FROM ({_rows(view, trail.TRAJECTORIES, hours.partial)}) AS t WHERE {where}"
        asked.append(some)
        verdicts.append(
            f"SELECT {_ASKED_VERDICTS} FROM ({_rows(view, trail.VERDICTS, hours.partial)}) "
            f"WHERE (cluster, msg_id) IN (SELECT (cluster, msg_id) FROM ({some}))"
        )
    view.connection.execute(f"CREATE OR REPLACE TEMP VIEW asked AS {' UNION ALL '.join(asked)}")
    view.connection.execute(f"CREATE OR REPLACE TEMP VIEW asked_verdicts AS {' UNION ALL '.join(verdicts)}")


def _rows(view: LakeView, relation: trail.Relation, hours: frozenset[int] | None) -> str:
    return view.lookup.relation(relation.name, view.cluster, hours=hours)


def _codes(duck: duckdb.DuckDBPyConnection) -> tuple[CodeCount, ...]:
    """Return the codes of the messages asked for, the most severe first, then the most frequent."""
    rows = fetch(
        duck,
        f"""SELECT cluster, about, code, sum(n)::bigint AS n, min(example) AS example
        FROM (SELECT cluster, about, n, example, unnest(list_distinct(string_split(texts, ','))) AS code
          FROM (SELECT cluster, about, texts, count(*) AS n, min(msg_id) AS example FROM ({_ASKED_TEXTS})
            WHERE texts <> '' GROUP BY cluster, about, texts))
        WHERE code <> '' GROUP BY cluster, about, code""",
    )
    rank = {name: number for number, name in enumerate(SEVERITIES)}
    rows.sort(
        key=lambda row: (rank[trail.CODES[row["code"]].severity], -row["n"], row["code"], row["about"], row["cluster"])
    )
    return tuple(
        CodeCount(
            cluster=row["cluster"],
            code=row["code"],
            about=row["about"],
            severity=trail.CODES[row["code"]].severity,
            message_count=int(row["n"]),
            example=row["example"],
            explanation=trail.CODES[row["code"]].explanation,
        )
        for row in rows
    )


def percentiles_sql(by: str, where: str, at: str = "0") -> str:
    """SQL: percentiles of latency_minute for each of the columns `by`, and of at_ms, for which `at` is the expression.

    They come from summed log histograms: the upper bound of the bucket that contains the percentile.
    """
    top = f"greatest(pow(2, (bucket + 1) / {trail.BUCKETS_A_DOUBLING}.0) - 1, 0)"
    return f"""
SELECT {by}, at_ms, max(total) AS n,
  min(CASE WHEN so_far >= 0.5 * total THEN upper END) AS p50,
  min(CASE WHEN so_far >= 0.99 * total THEN upper END) AS p99,
  max(upper) AS highest
FROM (SELECT {by}, at_ms, {top} AS upper,
    sum(n) OVER (PARTITION BY {by}, at_ms ORDER BY bucket) AS so_far,
    sum(n) OVER (PARTITION BY {by}, at_ms) AS total
  FROM (SELECT {by}, {at} AS at_ms, bucket, sum(message_count) AS n FROM latency_minute
    WHERE {where} GROUP BY {by}, at_ms, bucket HAVING n > 0) AS summed) AS ranked
GROUP BY {by}, at_ms"""


def latency_rows(duck: duckdb.DuckDBPyConnection, first_ms: int | None, end_ms: int | None) -> tuple[LatencyRow, ...]:
    """Return percentiles of every segment, topic and group, of what began in the minutes of [first_ms, end_ms)."""
    text = percentiles_sql("cluster, topic, group_name, segment", "minute_ms >= ? AND minute_ms < ?")
    rows = fetch(duck, text, [(first_ms or 0) // 60_000 * 60_000, end_ms or 1 << 62])
    places = {name: number for number, name in enumerate(LatencySegment)}
    rows.sort(key=lambda row: (row["cluster"], row["topic"], row["group_name"], places.get(row["segment"], 99)))
    return tuple(
        LatencyRow(
            cluster=row["cluster"],
            topic=row["topic"],
            group_name=row["group_name"],
            segment=row["segment"],
            message_count=int(row["n"]),
            p50_ms=float(row["p50"]),
            p99_ms=float(row["p99"]),
            max_ms=float(row["highest"]),
        )
        for row in rows
    )


def _lag(duck: duckdb.DuckDBPyConnection) -> tuple[LagRow, ...]:
    text = """
SELECT cluster, group_name, topic, sampled_ms, sum(lag_count) AS behind, count(*) AS queues,
  count(*) FILTER (lag_count IS NULL) AS unknown, CASE WHEN count(*) = count(lag_ms) THEN max(lag_ms) END AS oldest
FROM lag JOIN (SELECT cluster, group_name, topic, max(sampled_ms) AS sampled_ms FROM lag GROUP BY ALL) AS latest
  USING (cluster, group_name, topic, sampled_ms) GROUP BY cluster, group_name, topic, sampled_ms
ORDER BY behind DESC NULLS FIRST, cluster, group_name, topic"""
    return tuple(
        LagRow(
            cluster=row["cluster"],
            group_name=row["group_name"],
            topic=row["topic"],
            sampled_ms=row["sampled_ms"],
            lag_count=None if row["behind"] is None else int(row["behind"]),
            unknown_count=row["unknown"],
            lag_ms=None if row["oldest"] is None else int(row["oldest"]),
            queue_count=int(row["queues"]),
        )
        for row in fetch(duck, text)
    )
