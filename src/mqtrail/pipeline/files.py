"""Files of the lake: Spark writes them, one commit makes them visible.

The files of one batch and table are in `<table>/batch=<app>-<number>/`. Files that a crash left there without a commit
are overwritten when the batch is repeated. Committed files are never changed.
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
    """The Parquet files below a folder that Spark wrote; none if the folder does not exist."""
    return sorted(folder.rglob("*.parquet"))


def row_count(files: Iterable[Path]) -> int:
    """The number of rows of files, from their footers."""
    return sum(pq.read_metadata(file).num_rows for file in files)


class Committer:
    """Commits batches to the tables of one lake. Threads commit one at a time; they write files side by side."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._lock = Lock()

    def is_committed(self, relation: Relation, app: str, batch: int) -> bool:
        """Whether the table has this batch of app, or a later one."""
        with self._lock:
            return self._lake[relation.name].is_committed(app, batch)

    def commit(
        self, relation: Relation, files: Sequence[Path], app: str, batch: int, replace_hours: Iterable[int] = ()
    ) -> None:
        """Commit files of a batch; replace_hours: publish hours whose earlier files they replace."""
        with self._lock:
            self._lake[relation.name].commit(files, app=app, batch=batch, replace_hours=replace_hours)

    def note_settings(self, settings: Settings, as_of_ms: int) -> None:
        """Record the settings of verdicts from as_of_ms on."""
        with self._lock:
            note_settings(self._lake[VERDICTS.name], settings, as_of_ms)

    def folder(self, relation: Relation, app: str, batch: int) -> Path:
        """The folder of one batch of a table."""
        return self._lake[relation.name].path / f"batch={app}-{batch}"

    def write_once(self, relation: Relation, app: str, batch: int, write: Callable[[Path], None]) -> list[Path]:
        """Call `write` with the batch's folder and commit its files, unless they are committed; return the files."""
        folder = self.folder(relation, app, batch)
        if not self.is_committed(relation, app, batch):
            write(folder)
            self.commit(relation, parquet_files(folder), app, batch)
        return parquet_files(folder)


def write_rows(rows: DataFrame, folder: Path) -> None:
    """Write rows, one file for each of their partitions."""
    rows.write.mode("overwrite").parquet(str(folder))
