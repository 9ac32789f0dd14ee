"""Batches: commits of several tables that count as one, and what their writer noted with them.

A batch has an app (its writer: a stream of the pipeline, the judgement, the sampler) and a number that rises with each
batch of the app. Its tables are committed one after the other, so a crash could leave it in some of them. Therefore the
whole batch is recorded first, by one commit of a separate small table:

    <lake>/_batches/     a Delta table, one row for the last batch of each app: number, notes, files of each table

That commit decides: before it, the batch does not exist; after it, `Batches.recover` commits missing files to the
tables. So each batch is in all of its tables or in none, and its notes (how far the writer has read, what it has
judged) agree with the tables. Readers do not need this table.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import duckdb
from deltalake import Transaction
from deltalake.transaction import AddAction, RemoveAction

from mqtrail import clock
from mqtrail.trail import Column, Relation

from .duck import connect, fetch
from .edge import RESTORE
from .errors import LakeBusy, LakeDamaged
from .lock import WriteLock
from .marks import CommitMark
from .places import LakePath, emptied, is_remote, parquet_source, remove_tree, side_by_side, size_of, write_parquet
from .schemas import Table, arrow_schema
from .tables import DataFile, LakeTable, create_table, has_log

FOLDER: Final = "_batches"

_BATCHES: Final = Table(
    Relation(
        "batches",
        "One row an app: its last batch.",
        (
            Column("app", "string", "who wrote the batch"),
            Column("number", "bigint", "number of the batch, rising within the app"),
            Column("committed_ms", "bigint", "when it was recorded"),
            Column("notes", "string", "JSON object: what the writer noted"),
            Column(
                "changes",
                "string",
                "JSON object: table -> {added, removed}: files, relative to its folder; version: its last one before",
            ),
        ),
    ),
    "bronze",
    sort_by=("app",),
)


@dataclass(frozen=True, slots=True)
class Change:
    """What a batch does to one table: files to add (absolute, or below the table's folder), and to remove."""

    added: Sequence[str | LakePath] = ()
    removed: Sequence[DataFile] = ()
    data_change: bool = True
    """False: the same rows in other files."""


@dataclass(frozen=True, slots=True)
class LakeBatch:
    """A recorded batch."""

    app: str
    number: int
    notes: Mapping[str, Any]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Batches:
    """The batches of one lake, for its writer."""

    def __init__(self, folder: LakePath, lock: WriteLock, tables: Mapping[str, LakeTable]) -> None:
        """Open the record of a lake; create it if there is none. tables: by name. LakeBusy, LakeDamaged."""
        self._lock = lock
        self._tables = tables
        path = folder / FOLDER
        if not has_log(path) and not CommitMark(path).exists:
            with lock.held():
                create_table(_BATCHES, path)
        self._record = LakeTable(_BATCHES, path, lock)
        self._last: dict[str, tuple[LakeBatch, DataFile]] | None = None
        self._parsed: dict[str, LakeBatch] = {}  # by path, of committed files, which do not change
        self._is_partial = False

    def refresh(self) -> None:
        """Read newer records."""
        version = self._record.version
        self._record.refresh()
        if not is_remote(self._record.path) or self._record.version != version:
            self._last = None

    def last(self, app: str) -> LakeBatch | None:
        """Return the last batch of an app, None if it has none."""
        found = self._read().get(app)
        return found[0] if found else None

    def commit(
        self,
        app: str,
        number: int,
        changes: Mapping[str, Change],
        notes: Mapping[str, Any],
        now_ms: int | None = None,
    ) -> bool:
        """Commit files of several tables as one batch. Return False, and do nothing, if it or a later one is committed.

        FileRefused: a file does not fit its table; nothing is committed. Any other error: `recover` finishes the batch
        if it was recorded, and so does the next commit.
        """
        with self._lock.held():
            if self._is_partial:
                self.recover()
            before = self.last(app)
            if before is not None and before.number >= number:
                return False
            at_ms = clock.now_ms() if now_ms is None else now_ms

            def actions(name: str) -> list[AddAction | RemoveAction]:
                one = changes[name]
                return self._tables[name].actions(one.added, one.removed, data_change=one.data_change, now_ms=at_ms)

            prepared = dict(zip(changes, side_by_side(self._record.path, actions, changes), strict=True))
            batch = LakeBatch(app, number, notes, {name: self._noted(name, one) for name, one in changes.items()})
            self._is_partial = True
            self._write(batch, at_ms)
            side_by_side(
                self._record.path,
                lambda name: self._tables[name].commit_actions(prepared[name], Transaction(app, number)),
                prepared,
            )
            self._is_partial = False
            return True

    def recover(self) -> list[str]:
        """Finish batches that a crash left in some of their tables; return the tables that were completed.

        LakeDamaged: a table has a later batch than the record, or lacks commits from before the last batch: one of them
        was replaced by an older copy.
        """
        with self._lock.held():
            self.refresh()
            mended = [name for batch, _ in list(self._read().values()) for name in self._finish(batch)]
            self._is_partial = False
            return mended

    def _finish(self, batch: LakeBatch) -> Iterator[str]:
        """Commit the batch to those of its tables that lack it."""
        for table in self._tables.values():  # also of those that it does not change
            self._check_not_later(table, batch)
        for name, change in batch.changes.items():
            table = self._tables[name]
            table.refresh()
            self._check_not_later(table, batch)
            if table.version < change.get("version", 0):
                raise LakeDamaged(
                    f"{table.path}: found a log that ends at version {table.version}, expected at least "
                    f"{change['version']}, as batch {batch.number} of {batch.app!r} was recorded then: {RESTORE}"
                )
            if table.last_batch(batch.app) != batch.number:
                gone = set(change["removed"])
                removed = [file for file in table.files() if file.path in gone]
                actions = table.actions(change["added"], removed, data_change=change["data_change"])
                table.commit_actions(actions, Transaction(batch.app, batch.number))
                yield name

    def _check_not_later(self, table: LakeTable, batch: LakeBatch) -> None:
        reached = table.last_batch(batch.app)
        if reached is not None and reached > batch.number:
            raise LakeDamaged(
                f"{table.path}: found batch {reached} of {batch.app!r}, expected at most {batch.number}, the last "
                f"one in {self._record.path}: {RESTORE}"
            )

    # -- the record ------------------------------------------------------------------------------------------------

    def _noted(self, name: str, change: Change) -> dict[str, Any]:
        """One table's change as JSON."""
        table = self._tables[name]
        return {
            "added": [table.relative(file) for file in change.added],
            "removed": [file.path for file in change.removed],
            "data_change": change.data_change,
            "version": table.version,
        }

    def _write(self, batch: LakeBatch, at_ms: int) -> None:
        """Record the batch in place of the app's last one: from here on it is committed."""
        folder = emptied(self._record.path / f"batch={batch.app}-{batch.number}")
        folder.mkdir(parents=True)
        import pyarrow as pa

        row = {
            "app": batch.app,
            "number": batch.number,
            "committed_ms": at_ms,
            "notes": json.dumps(batch.notes, separators=(",", ":")),
            "changes": json.dumps(batch.changes, separators=(",", ":")),
        }
        rows = pa.Table.from_pylist([row], schema=arrow_schema(_BATCHES.relation))
        write_parquet(rows, folder / "batch.parquet")
        before = self._read().get(batch.app)
        removed = [before[1]] if before else []
        actions = self._record.actions([folder / "batch.parquet"], removed, now_ms=at_ms)
        self._record.commit_actions(actions, Transaction(batch.app, batch.number))
        self._last = None
        for file in removed:
            remove_tree((self._record.path / file.path).parent)

    def _read(self) -> dict[str, tuple[LakeBatch, DataFile]]:
        if self._last is None:
            version = self._record.version
            try:
                self._last = {batch.app: (batch, file) for batch, file in self._rows()}
            except (LakeDamaged, FileNotFoundError) as error:
                self._record.refresh()
                if self._record.version == version:
                    raise
                raise LakeBusy(
                    f"{self._record.path}: found a batch of another writer, expected one writer per lake: stop one of "
                    "them and run the other again"
                ) from error
        return self._last

    def _rows(self) -> Iterator[tuple[LakeBatch, DataFile]]:
        files = self._record.readable(self._record.files())
        self._parsed = {file.path: self._parsed.get(file.path) or self._batch(file) for file in files}
        for file in files:
            yield self._parsed[file.path], file

    def _batch(self, file: DataFile) -> LakeBatch:
        path = self._record.path / file.path
        [row] = _rows_of(path)
        try:
            return LakeBatch(row["app"], row["number"], json.loads(row["notes"]), json.loads(row["changes"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LakeDamaged(
                f"{path}: found no batch ({error}), expected one with notes and changes as JSON: {RESTORE}"
            ) from None


def _rows_of(path: LakePath) -> list[dict[str, Any]]:
    """Return the rows of a small file. FileNotFoundError; the errors of the library that reads it.

    DuckDB reads local ones: Arrow takes 30 MB, which a process that only looks up spares.
    """
    if is_remote(path):
        import pyarrow.parquet as pq

        found: list[dict[str, Any]] = pq.read_table(parquet_source(path), partitioning=None).to_pylist()
        return found
    with _small_files().cursor() as duck:
        try:
            return fetch(duck, "SELECT * FROM read_parquet(?, hive_partitioning = false)", [str(path)])
        except duckdb.IOException:
            size_of(path)  # raises FileNotFoundError
            raise


@cache
def _small_files() -> duckdb.DuckDBPyConnection:
    """Return the database that reads them. To make one takes 20 ms, to read a file less than one."""
    return connect(threads=1)


atexit.register(_small_files.cache_clear)  # as the parsed statements of duck.py
