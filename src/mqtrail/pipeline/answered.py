"""What the answers of a lake say now, for Prometheus: messages of the last hour by code, and the lag of groups.

Only files of the last hours are read. A value that is not known is absent. The number of groups is limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import duckdb

from mqtrail import trail
from mqtrail.lake import Lake, connect, lake_errors, relation_of

Sample = tuple[str, tuple[str, ...], float]
"""Name of a metric, values of its labels, and its value."""
WINDOW_MS: Final = trail.HOUR_MS
"""Messages that were sent in this time before are counted."""
LAG_AGE_MS_MAX: Final = 600_000
"""The lag of an older sample is not known to be that of now."""
GROUPS_MAX: Final = 500
"""Number of groups and topics of a cluster with the greatest lag whose lag is served."""
_SENT_MS = "coalesce(send_start_ms, stored_ms, visible_ms)"
_CODES = "string_split(concat_ws(',', send_codes, message_codes, group_codes, knowledge), ',')"


@dataclass(frozen=True, slots=True)
class Answered:
    """messages: (cluster, code) -> number. lags: (cluster, group, topic) -> messages, and s that the first waited."""

    messages: dict[tuple[str, str], int] = field(default_factory=dict)
    lags: dict[tuple[str, str, str], tuple[int | None, float | None]] = field(default_factory=dict)


NOTHING: Final = Answered()
"""The counts before the first one: all unknown."""


def answered(lake: Lake, at_ms: int) -> Answered:
    """Count what a lake says as of at_ms. A code of a cluster that has messages, but none with the code, counts 0."""
    lake.refresh()
    duck = connect(threads=1)
    try:
        with lake_errors(lake.path):
            return Answered(_messages(duck, lake, at_ms), _lags(duck, lake, at_ms))
    finally:
        duck.close()


def _messages(duck: duckdb.DuckDBPyConnection, lake: Lake, at_ms: int) -> dict[tuple[str, str], int]:
    table, first_ms = lake[trail.TRAJECTORIES.name], at_ms - WINDOW_MS
    hours = range((first_ms - trail.ZONE_MS) // trail.HOUR_MS, (at_ms + trail.ZONE_MS) // trail.HOUR_MS + 1)
    files = [file for file in table.files() if file.hour in hours or file.hour == trail.UNKNOWN_HOUR]
    rows = duck.execute(
        f"""SELECT cluster, unnest(list_distinct({_CODES})) AS code, count(*) FROM ({relation_of(table, files)}) AS rows
        WHERE {_SENT_MS} > ? AND {_SENT_MS} <= ? GROUP BY cluster, code""",
        [first_ms, at_ms],
    ).fetchall()
    counted = {(cluster, code): count for cluster, code, count in rows if code}
    return dict.fromkeys(((cluster, code) for cluster, _ in counted for code in trail.CODES), 0) | counted


def _lags(
    duck: duckdb.DuckDBPyConnection, lake: Lake, at_ms: int
) -> dict[tuple[str, str, str], tuple[int | None, float | None]]:
    table = lake[trail.LAG.name]
    files = [file for file in table.files() if file.maximum.get("sampled_ms", at_ms) >= at_ms - LAG_AGE_MS_MAX]
    rows = duck.execute(
        f"""WITH latest AS (SELECT * FROM ({relation_of(table, files)}) AS rows WHERE sampled_ms >= ?
          QUALIFY sampled_ms = max(sampled_ms) OVER (PARTITION BY cluster)),
        lags AS (SELECT cluster, group_name, topic,
            CASE WHEN count(*) = count(lag_count) THEN sum(lag_count)::bigint END AS messages,
            CASE WHEN count(*) = count(lag_ms) THEN max(lag_ms) / 1000 END AS seconds
          FROM latest GROUP BY cluster, group_name, topic)
        SELECT * FROM lags
        QUALIFY row_number() OVER (PARTITION BY cluster ORDER BY messages DESC NULLS LAST, group_name, topic) <= ?""",
        [at_ms - LAG_AGE_MS_MAX, GROUPS_MAX],
    ).fetchall()
    return {(cluster, group, topic): (messages, seconds) for cluster, group, topic, messages, seconds in rows}


def samples_of(found: Answered) -> Iterator[Sample]:
    """Yield the samples of the metrics `mqtrail_answered_messages` and `mqtrail_group_lag_…`."""
    for (cluster, code), count in sorted(found.messages.items()):
        yield "mqtrail_answered_messages", (cluster, code), count
    for key, (messages, seconds) in sorted(found.lags.items()):
        if messages is not None:
            yield "mqtrail_group_lag_messages", key, messages
        if seconds is not None:
            yield "mqtrail_group_lag_seconds", key, seconds
