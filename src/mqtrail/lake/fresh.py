"""Judges single messages again, from the lake's rows and newer rows of the cluster, with the same SQL.

`answers` reads the newer rows from the broker and passes them in. Facts about a whole group (how slow its handlers are,
whether it traces, how many attempts it makes) come from the verdicts of the message's own hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa

from mqtrail import trail
from mqtrail.trail import Settings, Stage

from .duck import Row, arrow_rows, define, run_stages
from .lake import Lake
from .lookup import relation_of
from .samples import sample_files
from .tables import DataFile


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
    for relation in trail.EVIDENCE:
        connection.register(f"extra_{relation.name}", arrow_rows(relation, extra.get(relation.name, ())))
    connection.register("asked_ids", pa.table({"msg_id": pa.array(list(msg_ids), pa.string())}))
    horizon = as_of_ms - (settings or Settings()).trace_delay_ms
    sampled = {} if lake is None else sample_files(lake, horizon)
    for relation in trail.EVIDENCE:
        evidence = _evidence(lake, relation.name, sampled.get(relation.name))
        define(connection, Stage(relation.name, evidence, (f"extra_{relation.name}",)))
    extra_attempts = trail.attempts_sql("extra_trace_events", "extra_message_meta")
    attempts = f"{_attempts(lake, msg_ids)} UNION ALL {extra_attempts}"
    define(connection, Stage("all_attempts", attempts, ("extra_trace_events", "extra_message_meta")))
    define(connection, Stage("batch_ids", _BATCH_IDS, ("all_attempts", "asked_ids")), table=True)
    define(connection, Stage("attempts", _ATTEMPTS, ("all_attempts", "asked_ids", "batch_ids")), table=True)
    define(connection, Stage(trail.GROUP_FOLDS.name, _group_folds(lake), ()))
    run_stages(connection, trail.judge(as_of_ms, settings))


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


def _group_folds(lake: Lake | None) -> str:
    """Return SQL for what the lake's judgements show of groups."""
    if lake is not None:
        return relation_of(lake[trail.GROUP_FOLDS.name])
    nothing = dict.fromkeys(trail.GROUP_FOLDS.names, "NULL")
    return f"SELECT {trail.GROUP_FOLDS.typed(nothing)} WHERE false"


def _evidence(lake: Lake | None, name: str, files: Sequence[DataFile] | None) -> str:
    """Return SQL for the extra rows and, of sampled or small relations, the lake's rows. files: default all."""
    extra = f"SELECT * FROM extra_{name}"
    if lake is None or name in ("message_meta", "trace_rejects"):
        return extra
    where = "record_type IN ('TraceBatch', 'TraceLoss', 'OffsetCommit')" if name == "trace_events" else "true"
    return f"SELECT * FROM ({relation_of(lake[name], files)}) AS committed_rows WHERE {where} UNION ALL {extra}"
