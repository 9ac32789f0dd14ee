"""Judges single messages again, from the lake's rows and newer rows of the cluster, with the same SQL.

`answers` reads the newer rows from the broker and passes them in. Facts about a whole group (how slow its handlers are,
whether it traces, how many attempts it makes) come from `group_folds`, without what the last judgement counted there of
the messages that are judged again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from mqtrail import trail
from mqtrail.trail import Settings, Stage

from .duck import Row, arrow_rows, define, run_stages
from .judged import last_judgement
from .lake import Lake
from .lookup import relation_of
from .parquet import empty_rows, of_cluster, rows_of
from .samples import sample_files
from .tables import DataFile


def judge_messages(
    lake: Lake | None,
    msg_ids: Sequence[str],
    as_of_ms: int,
    extra: Mapping[str, Sequence[Row]],
    connection: duckdb.DuckDBPyConnection,
    settings: Settings | None = None,
    *,
    cluster: str,
) -> None:
    """Judge `msg_ids` of a cluster as of as_of_ms. The results are `trajectories` and `verdicts` in `connection`.

    extra: relation name -> rows of bronze relations that are newer than the lake, of this cluster. lake None: use only
    `extra`.
    """
    import pyarrow as pa

    for relation in trail.EVIDENCE:
        connection.register(f"extra_{relation.name}", arrow_rows(relation, extra.get(relation.name, ())))
    connection.register("asked_ids", pa.table({"msg_id": pa.array(list(msg_ids), pa.string())}))
    horizon = as_of_ms - (settings or Settings()).trace_delay_ms
    sampled = {} if lake is None else sample_files(lake, horizon, cluster)
    for relation in trail.EVIDENCE:
        evidence = _evidence(lake, cluster, relation.name, sampled.get(relation.name))
        define(connection, Stage(relation.name, evidence, (f"extra_{relation.name}",)))
    extra_attempts = trail.attempts_sql("extra_trace_events", "extra_message_meta")
    attempts = f"{_attempts(lake, cluster, msg_ids)} UNION ALL SELECT *, false FROM ({extra_attempts}) AS extra"
    define(connection, Stage("all_attempts", attempts, ("extra_trace_events", "extra_message_meta")))
    define(connection, Stage("batch_ids", _BATCH_IDS, ("all_attempts", "asked_ids")), table=True)
    _define_client_records(lake, cluster, connection)
    _define_group_folds(lake, cluster, connection)
    define(connection, Stage("attempts", _ATTEMPTS, ("all_attempts", "asked_ids", "batch_ids")), table=True)
    define(connection, Stage(trail.SENT_BEFORE.name, _sent_before(lake, cluster, msg_ids), ("asked_ids",)), table=True)
    define(connection, Stage(trail.OVERTAKEN.name, _overtaken(lake, cluster, msg_ids), ("asked_ids",)), table=True)
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


def _attempts(lake: Lake | None, cluster: str, msg_ids: Sequence[str]) -> str:
    """Return SQL for attempts of the lake, each with `is_counted`: whether the last judgement has seen it."""
    if lake is None:
        return f"SELECT *, false AS is_counted FROM ({empty_rows(trail.ATTEMPTS)}) AS nothing"
    table = lake["attempts"]
    files = table.readable(of_cluster(table.files(_hours(lake, "attempts", msg_ids)), cluster))
    last = last_judgement(lake, cluster)
    judged = [] if last is None else [file for file in files if last.has_seen(file.path)]
    others = [file for file in files if file not in judged]
    return " UNION ALL ".join(
        f"SELECT *, {counted} AS is_counted FROM ({rows_of(table, some, cluster)}) AS committed_rows"
        for some, counted in ((judged, "true"), (others, "false"))
    )


def _sent_before(lake: Lake | None, cluster: str, msg_ids: Sequence[str]) -> str:
    """Return SQL for what the last judgement found of the ids: rows newer than the lake are of these ids alone."""
    if lake is None:
        return empty_rows(trail.SENT_BEFORE)
    asked = _judged_of(lake, trail.TRAJECTORIES, cluster, msg_ids)
    return trail.sent_before_sql(f"({trail.alike_known_sql(asked)}) AS known")


def _overtaken(lake: Lake | None, cluster: str, msg_ids: Sequence[str]) -> str:
    """Return SQL for the same of messages that were overtaken."""
    if lake is None:
        return empty_rows(trail.OVERTAKEN)
    asked = _judged_of(lake, trail.VERDICTS, cluster, msg_ids)
    return trail.overtaken_sql(f"({trail.overtaken_known_sql(asked)}) AS known")


def _judged_of(lake: Lake, relation: trail.Relation, cluster: str, msg_ids: Sequence[str]) -> str:
    """Return SQL, for a FROM, for the results of the asked messages; outdated rows are among them."""
    table = lake[relation.name]
    files = table.readable(of_cluster(table.files(_hours(lake, relation.name, msg_ids)), cluster))
    return f"(SELECT * FROM ({rows_of(table, files, cluster)}) WHERE msg_id IN (SELECT msg_id FROM asked_ids)) AS asked"


def _define_client_records(lake: Lake | None, cluster: str, connection: duckdb.DuckDBPyConnection) -> None:
    name = trail.CLIENT_RECORDS.name
    committed = empty_rows(trail.CLIENT_RECORDS) if lake is None else _committed(lake, cluster, name)
    extra = trail.client_records_sql("extra_trace_events")
    define(connection, Stage(name, f"{committed} UNION ALL {extra}", ("extra_trace_events",)))


def _define_group_folds(lake: Lake | None, cluster: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Define what the last judgement counted of groups, of all messages but the asked ones."""
    name = trail.GROUP_FOLDS.name
    last = None if lake is None else last_judgement(lake, cluster)
    if lake is None or last is None:
        rows = empty_rows(trail.GROUP_FOLDS) if lake is None else _committed(lake, cluster, name)
        define(connection, Stage(name, rows, ()))
        return
    columns = ", ".join(trail.ATTEMPTS.names)
    counted = f"SELECT {columns} FROM ({_ATTEMPTS}) AS asked WHERE is_counted"
    define(connection, Stage("attempts", counted, ("all_attempts", "asked_ids", "batch_ids")), table=True)
    until_ms = last.as_of_ms if last.only_until else None
    run_stages(connection, trail.fact_stages(until_ms, batches=True))
    *key, count = trail.GROUP_FOLDS.names
    less = f"SELECT {', '.join(key)}, -{count} AS {count} FROM fold_counts"
    others = f"{_committed(lake, cluster, name)} UNION ALL {less}"
    define(connection, Stage(name, trail.latest_sql(trail.GROUP_FOLDS, f"({others})"), ("fold_counts",)), table=True)


def _evidence(lake: Lake | None, cluster: str, name: str, files: Sequence[DataFile] | None) -> str:
    """Return SQL for the extra rows and, of sampled or small relations, the lake's rows. files: default all."""
    extra = f"SELECT * FROM extra_{name}"
    if lake is None or name in ("trace_events", "message_meta", "trace_rejects"):
        return extra
    return f"SELECT * FROM ({_committed(lake, cluster, name, files)}) AS committed_rows UNION ALL {extra}"


def _committed(lake: Lake, cluster: str, name: str, files: Sequence[DataFile] | None = None) -> str:
    """Return SQL for the rows of a table that hold, of a cluster. files: default all."""
    return relation_of(lake[name], files, cluster)
