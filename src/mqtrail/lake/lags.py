"""The lag of groups as of a sample, from few files of a lake.

`queue_spans` says when the copies were stored that groups read next; only files of message_meta of these times are
read. So the cost follows the number of groups that are behind, and not what the lake holds.
"""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from mqtrail import trail
from mqtrail.trail import Stage

from .duck import define, run_stages
from .lake import Lake
from .parquet import rows_of
from .samples import sample_files
from .tables import DataFile, LakeTable

_SAMPLED = (trail.GROUP_OFFSETS.name, trail.QUEUE_RANGES.name, trail.SUBSCRIPTIONS.name, trail.SAMPLES.name)
_COPIES = trail.MESSAGE_META.name


def define_lag(duck: duckdb.DuckDBPyConnection, lake: Lake, cluster: str, sampled_ms: int) -> None:
    """Make the relation `lag` of one sample of a cluster in a connection: columns of LAG."""
    files = sample_files(lake, sampled_ms, cluster)
    for name in _SAMPLED:
        define(duck, Stage(name, rows_of(lake[name], files[name], cluster), ()))
    spans = lake[trail.QUEUE_SPANS.name]
    define(duck, Stage(spans.table.name, rows_of(spans, spans.files(), cluster), ()))
    stages = trail.lag_stages(sampled_ms)
    [place] = [number for number, stage in enumerate(stages) if stage.name == "lag_copies"]
    run_stages(duck, stages[:place], also_read=("lag_points",) * 2)
    found = duck.execute("SELECT first_ms, last_ms FROM lag_spans").fetchall()
    copies = lake[_COPIES]
    define(duck, Stage(_COPIES, rows_of(copies, _stored_within(copies, found), cluster), ()))
    run_stages(duck, stages[place:])


def _stored_within(table: LakeTable, spans: Iterable[tuple[int, int]]) -> list[DataFile]:
    """Return the files that may have messages that were stored within one of some spans of time."""
    column = table.table.time_column
    every = list(spans)
    return [
        file
        for file in table.files()
        if any(file.minimum.get(column, low) <= high and file.maximum.get(column, high) >= low for low, high in every)
    ]
