"""Files of the lake: Spark writes them, one commit makes them count.

A batch's files of one table lie under `<table>/batch=<app>-<number>/`. What a crash left there without a commit is
overwritten when the batch runs again; what is committed is never touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from mqtrail.lake import Lake, note_settings
from mqtrail.trail import VERDICTS, Relation, Settings


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files below a folder that Spark wrote; none if it is not there."""
    return sorted(folder.rglob("*.parquet"))


def row_count(files: Iterable[Path]) -> int:
    """How many rows files hold, by their footers."""
    return sum(pq.read_metadata(file).num_rows for file in files)


class Committer:
    """Commits batches to the tables of one lake, from several threads one at a time. Writing goes on side by side."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._lock = Lock()

    def is_committed(self, relation: Relation, app: str, batch: int) -> bool:
        """Whether the table has this batch, or a later one, of app."""
        with self._lock:
            return self._lake[relation.name].is_committed(app, batch)

    def commit(
        self, relation: Relation, files: Sequence[Path], app: str, batch: int, replace_hours: Iterable[int] = ()
    ) -> None:
        """Commit files of a batch; replace_hours: publish hours whose earlier files they replace."""
        with self._lock:
            self._lake[relation.name].commit(files, app=app, batch=batch, replace_hours=replace_hours)

    def note_settings(self, settings: Settings, as_of_ms: int) -> None:
        """Note at the verdicts what they are judged with, as of an instant, from now on."""
        with self._lock:
            note_settings(self._lake[VERDICTS.name], settings, as_of_ms)

    def folder(self, relation: Relation, app: str, batch: int) -> Path:
        """Where the files of one batch of a table lie."""
        return self._lake[relation.name].path / f"batch={app}-{batch}"

    def write_once(self, relation: Relation, app: str, batch: int, write: Callable[[Path], None]) -> list[Path]:
        """Let write fill the batch's folder, and commit what is in it, unless that is done; return its files."""
        folder = self.folder(relation, app, batch)
        if not self.is_committed(relation, app, batch):
            write(folder)
            self.commit(relation, parquet_files(folder), app, batch)
        return parquet_files(folder)


def write_rows(rows: DataFrame, folder: Path) -> None:
    """Write rows as they are spread."""
    rows.write.mode("overwrite").parquet(str(folder))
