"""Small lakes of labelled histories. Each message has its own id and key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from mqtrail import trail
from mqtrail.client import SyncConsumer, SyncProducer
from mqtrail.lake import Lake, arrow_rows, define, judge_rows, run_stages, write_parquet
from mqtrail.testing import Embedded
from mqtrail.trail import Stage
from tests.trail.histories import AS_OF_MS, HISTORIES, unique_id

Row = dict[str, Any]

NAMES = (
    "send ok",
    "send slow",
    "send failed",
    "one-way and stored",
    "no consumer",
    "waiting",
    "scheduled",
    "filtered",
    "hung",
    "consumed after retry",
    "dead, attempts exhausted",
    "two groups, one down",
)
BY_NAME = {name: number for number, name in enumerate(NAMES, 1)}
GAP = {
    "cluster": "send ok",
    "broker_name": "broker-a",
    "topic": "RMQ_SYS_TRACE_TOPIC",
    "queue_id": 0,
    "first_offset": 5,
    "end_offset": 9,
    "from_ms": AS_OF_MS - 500_000,
    "to_ms": AS_OF_MS - 400_000,
    "detected_ms": AS_OF_MS - 1_000,
    "reason": "EXPIRED",
}


OTEL_TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{OTEL_TRACE_ID}-00f067aa0ba902b7-01"
"""Context that the copies of "one-way and stored" carry."""


def id_of(name: str) -> str:
    """Return the id of a history's message in the lake."""
    return unique_id(100 + BY_NAME[name])


def key_of(name: str) -> str:
    """Return the key of a history's message."""
    return f"order-{BY_NAME[name]}"


def rows_of(names: Sequence[str] = NAMES) -> dict[str, list[Row]]:
    """Return the evidence of the histories by relation, with unique ids and keys."""
    found: dict[str, list[Row]] = {}
    histories = {history.name: history for history in HISTORIES}
    for name in names:
        for relation, rows in histories[name].rows.items():
            found.setdefault(relation, []).extend(_own(name, row) for row in rows)
    return found


def _own(name: str, row: Row) -> Row:
    own = {key: id_of(name) if value == unique_id(1) else value for key, value in row.items()}
    if own.get("record_type") == "Pub" or "own_unique_key" in own:
        own["keys"] = f"{key_of(name)} shared"
    if name == "one-way and stored" and "own_unique_key" in own:
        own["traceparent"] = TRACEPARENT
    return own


def make_lake(path: Path, rows: dict[str, list[Row]], *, gaps: bool = False, rejects: int = 0) -> Lake:
    """Commit evidence and all rows derived from it, as the pipeline does."""
    lake = Lake.create(path)
    evidence = {**rows, "gaps": [*rows.get("gaps", ()), *([GAP] if gaps else [])]}
    connection = judge_rows(evidence, AS_OF_MS)
    evidence["trace_rejects"] = [{"cluster": "c", "reason": "no", "trace_store_ms": AS_OF_MS}] * rejects
    for relation in trail.EVIDENCE:
        if chosen := evidence.get(relation.name):
            _commit(lake, relation.name, arrow_rows(relation, chosen))
    define(connection, Stage("queue_spans", trail.queue_spans_sql("message_meta"), ("message_meta",)))
    bounds = f"{trail.trace_bounds_sql('trace_events')} UNION ALL {trail.judged_bounds_sql('trajectories', 'verdicts')}"
    define(connection, Stage("clock_bounds", bounds, ("trace_events", "trajectories", "verdicts")))
    run_stages(connection, trail.lag_stages())
    for name in (
        "attempts",
        *(one.name for one in trail.INDEXES),
        "trajectories",
        "verdicts",
        "key_index",
        "latency_minute",
        "lag",
        "open_ids",
    ):
        _commit(lake, name, connection.sql(f"SELECT * FROM {name}").to_arrow_table())
    _commit(lake, "group_folds", connection.sql("SELECT * FROM fold_counts").to_arrow_table())
    return lake


def _commit(lake: Lake, name: str, table: Any) -> None:
    parts = {"all": table}
    if "publish_hour" in table.column_names:
        hours = sorted(set(table["publish_hour"].to_pylist()))
        parts = {str(hour): table.filter(pc.equal(table["publish_hour"], hour)) for hour in hours}
    files = []
    for part, rows in parts.items():
        path = lake[name].path / f"part-{part}" / "0.parquet"
        path.parent.mkdir()
        write_parquet(rows, path)
        files.append(path)
    lake[name].commit(files, app="test", batch=0)


@contextmanager
def producer(broker: Embedded, *, trace: bool) -> Iterator[SyncProducer]:
    """A producer of the group `shop`."""
    with SyncProducer("shop", broker.namesrv_address, trace=trace) as made:
        yield made


__all__ = ["AS_OF_MS", "Row", "SyncConsumer", "id_of", "key_of", "make_lake", "producer", "rows_of"]
