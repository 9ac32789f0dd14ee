"""Tables that a lake of an earlier version of mqtrail lacks: indexes of bronze, and tables that begin empty.

Indexes are small tables that say what a cycle needs to know of all that was ever read:

    client_records    of trace_events: what was lost of clients' trace, committed offsets
    queue_spans       of message_meta: when the messages of a queue were stored
    clock_bounds      of trace_events: how far clocks differ; judgements add rows

The ingest writes their rows with those of bronze. A lake that an earlier version of mqtrail filled gets all of these
tables once, when a writer opens it:

    <lake>/_indexes/<table>/     a new index, until it is complete and takes its place
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import duckdb

from mqtrail import trail
from mqtrail.trail.incidents import INCIDENTS

from .duck import connect
from .lock import WriteLock
from .marks import MARKS, CommitMark
from .parquet import copy, rows_of
from .places import LakePath
from .schemas import TABLES
from .tables import DataFile, LakeTable, create_table, has_log

FOLDER: Final = "_indexes"
MEMORY_LIMIT: Final = "1GB"

SOURCES: Final[dict[str, tuple[trail.Relation, Callable[[str], str]]]] = {
    trail.CLIENT_RECORDS.name: (trail.TRACE_EVENTS, trail.client_records_sql),
    trail.QUEUE_SPANS.name: (trail.MESSAGE_META, trail.queue_spans_sql),
    trail.CLOCK_BOUNDS.name: (trail.TRACE_EVENTS, trail.trace_bounds_sql),
}
"""Index -> the table of bronze that it is made of, and SQL: its rows, from rows of that table."""


ADDED: Final = (trail.UNREAD_RANGES.name, trail.PROBLEMS.name, trail.BROKER_EVENTS.name, INCIDENTS.name)
"""Tables that begin empty."""


def missing_indexes(folder: LakePath) -> list[str]:
    """Return the tables of SOURCES and ADDED that a lake has never had."""
    return [name for name in (*SOURCES, *ADDED) if not has_log(folder / name) and not CommitMark(folder / name).exists]


def write_index(
    duck: duckdb.DuckDBPyConnection,
    name: str,
    bronze: LakeTable,
    files: Iterable[DataFile],
    target: LakePath,
    cluster: str | None = None,
) -> LakePath:
    """Write the rows of an index that come from some files of bronze, of one cluster or of all; return the file."""
    _, sql = SOURCES[name]
    target.parent.mkdir(parents=True, exist_ok=True)
    copy(duck, sql(f"({rows_of(bronze, bronze.readable(files), cluster)})"), target, TABLES[name])
    return target


def add_indexes(folder: Path, lock: WriteLock) -> None:
    """Make the tables that a lake has never had, while the lock is held. A crash leaves the lake without them."""
    new = folder / FOLDER
    for name in missing_indexes(folder):
        shutil.rmtree(new, ignore_errors=True)
        create_table(TABLES[name], new / name)
        if name in SOURCES:
            _fill(folder, lock, name, new)
        for path in [*new.rglob("*"), new]:
            sync(path)
        mark = folder / MARKS / f"{name}.json"
        mark.parent.mkdir(exist_ok=True)
        shutil.rmtree(folder / name, ignore_errors=True)
        os.rename(new / name, folder / name)
        if (new / MARKS / mark.name).exists():
            os.replace(new / MARKS / mark.name, mark)
        sync(folder)
    shutil.rmtree(new, ignore_errors=True)


def _fill(folder: Path, lock: WriteLock, name: str, new: Path) -> None:
    """Write the rows of a new index."""
    source, _ = SOURCES[name]
    bronze = LakeTable(TABLES[source.name], folder / source.name, lock)
    made = LakeTable(TABLES[name], new / name, WriteLock(new))
    duck = connect(memory_limit=MEMORY_LIMIT)
    duck.execute("SET temp_directory = ?", [str(new / "spilled")])
    files = bronze.files()
    if files:
        made.swap([write_index(duck, name, bronze, files, made.path / "batch=index-0" / "part-0.parquet")], [])
    duck.close()


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
