"""Judges single messages again, from the lake's rows and newer rows of the cluster, with the same SQL.

`answers` reads the newer rows from the broker and passes them in. Facts about a whole group (how slow its handlers are,
whether it traces, how many attempts it makes) come from the verdicts of the message's own hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import duckdb
import pyarrow as pa

from mqtrail import trail
from mqtrail.trail import Settings, Stage

from .duck import Row, arrow_rows, define, run_stages
from .lookup import relation_of
from .tables import Lake

SAMPLE_WINDOW_MS = 3_600_000
"""Older samples of the lake are used only to find when a group was first seen."""

_GROUP_STAGES = {
    # stage of trail.judge -> rows that the lake's verdicts add to it
    "traced_groups": """SELECT cluster, group_name, min(first_delivered_ms) AS traced_from_ms,
        max(last_delivered_ms) AS traced_to_ms FROM known_verdicts WHERE delivery_count > 0
        GROUP BY cluster, group_name""",
    "group_limits": """SELECT cluster, group_name, max(retry_times) AS handed_times_max FROM known_verdicts
        GROUP BY cluster, group_name""",
    "hung_limits": """SELECT cluster, group_name, cast(floor({factor} * percentile_cont(0.99)
        WITHIN GROUP (ORDER BY handler_ms)) AS bigint) AS hung_ms FROM known_verdicts WHERE handler_ms >= 0
        GROUP BY cluster, group_name HAVING count(*) >= {samples}""",
}


def judge_messages(
    lake: Lake | None,
    msg_ids: Sequence[str],
    as_of_ms: int,
    extra: Mapping[str, Sequence[Row]],
    connection: duckdb.DuckDBPyConnection,
    settings: Settings | None = None,
) -> None:
    """Judge `msg_ids` as of as_of_ms. The results are `trajectories` and `verdicts` in `connection`.

    extra: relation name -> rows of bronze relations that are newer than the lake. lake None: use only `extra`.
    """
    limits = settings or Settings()
    for relation in trail.EVIDENCE:
        connection.register(f"extra_{relation.name}", arrow_rows(relation, extra.get(relation.name, ())))
    connection.register("asked_ids", pa.table({"msg_id": pa.array(list(msg_ids), pa.string())}))
    for relation in trail.EVIDENCE:
        evidence = _evidence(lake, relation.name, as_of_ms)
        define(connection, Stage(relation.name, evidence, (f"extra_{relation.name}",)))
    extra_attempts = trail.attempts_sql("extra_trace_events", "extra_message_meta")
    attempts = f"{_attempts(lake, msg_ids)} UNION ALL {extra_attempts}"
    define(connection, Stage("all_attempts", attempts, ("extra_trace_events", "extra_message_meta")))
    define(connection, Stage("batch_ids", _BATCH_IDS, ("all_attempts", "asked_ids")), table=True)
    define(connection, Stage("attempts", _ATTEMPTS, ("all_attempts", "asked_ids", "batch_ids")), table=True)
    define(connection, Stage("known_verdicts", _known_verdicts(lake, msg_ids), ()), table=True)
    stages = [
        _with_lake(stage, limits) if stage.name in _GROUP_STAGES else stage for stage in trail.judge(as_of_ms, limits)
    ]
    run_stages(connection, stages, also_read=_GROUP_STAGES)


def _with_lake(stage: Stage, settings: Settings) -> Stage:
    """Return the stage over this message's rows, joined with the lake's facts about the group."""
    known = _GROUP_STAGES[stage.name].format(factor=settings.hung_p99_factor, samples=settings.hung_p99_samples)
    folds = {
        "traced_groups": "min(traced_from_ms) AS traced_from_ms, max(traced_to_ms) AS traced_to_ms",
        "group_limits": "max(handed_times_max) AS handed_times_max",
        "hung_limits": "max(hung_ms) AS hung_ms",
    }[stage.name]
    sql = f"""SELECT cluster, group_name, {folds} FROM ({stage.sql} UNION ALL {known}) AS both_sides
      GROUP BY cluster, group_name"""
    return replace(stage, sql=sql, reads=(*stage.reads, "known_verdicts"))


_BATCH_IDS = """
SELECT batch_id FROM all_attempts WHERE batch_id <> '' AND (msg_id IN (SELECT msg_id FROM asked_ids)
  OR batch_id IN (SELECT msg_id FROM asked_ids))"""

_ATTEMPTS = """
SELECT * FROM all_attempts WHERE msg_id IN (SELECT msg_id FROM asked_ids)
  OR msg_id IN (SELECT batch_id FROM batch_ids) OR batch_id IN (SELECT batch_id FROM batch_ids)"""


def _hours(lake: Lake, name: str, msg_ids: Sequence[str]) -> set[int]:
    """Return the hours that may contain the ids, and adjacent ones: a batch may be an hour newer than its items."""
    hours = lake[name].hours()
    if not hours:
        return set()
    own = {h for msg_id in msg_ids for h in trail.publish_hours(msg_id, hours[0], hours[-1] + 1)}
    return own | {h + step for h in own for step in (-1, 1)}


def _attempts(lake: Lake | None, msg_ids: Sequence[str]) -> str:
    columns = ", ".join(trail.ATTEMPTS.names)
    if lake is None:
        typed = trail.attempts_sql("extra_trace_events", "extra_message_meta")
        return f"SELECT {columns} FROM ({typed}) AS nothing WHERE false"
    table = lake["attempts"]
    return relation_of(table, table.files(_hours(lake, "attempts", msg_ids)))


def _known_verdicts(lake: Lake | None, msg_ids: Sequence[str]) -> str:
    wanted = "cluster, group_name, first_delivered_ms, last_delivered_ms, delivery_count, retry_times, handler_ms"
    if lake is None:
        typed = ", ".join(f"cast(NULL AS bigint) AS {name}" for name in wanted.split(", ")[2:])
        return f"SELECT '' AS cluster, '' AS group_name, {typed} WHERE false"
    table = lake["verdicts"]
    return f"SELECT {wanted} FROM ({relation_of(table, table.files(_hours(lake, 'verdicts', msg_ids)))}) AS known"


def _evidence(lake: Lake | None, name: str, as_of_ms: int) -> str:
    """Return SQL for the extra rows and, of sampled or small relations, the lake's rows."""
    extra = f"SELECT * FROM extra_{name}"
    if lake is None or name in ("message_meta", "trace_rejects"):
        return extra
    where = "record_type IN ('TraceBatch', 'TraceLoss', 'OffsetCommit')" if name == "trace_events" else "true"
    committed = f"SELECT * FROM ({relation_of(lake[name])}) AS committed_rows WHERE {where}"
    if name == "queue_ranges":
        committed += f" AND sampled_ms >= {as_of_ms - SAMPLE_WINDOW_MS}"
    return f"{committed} UNION ALL {extra}"
