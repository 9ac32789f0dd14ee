"""Rows that cannot be sent, in Parquet files: the row's columns, and why it was rejected.

    <rejectPath>/<task>.parquet                      of a task whose write is committed
    <rejectPath>/_attempts/<task>-<random>.parquet   of an attempt whose write is not; Spark ignores the folder

When a write is committed, the driver renames the file of each task that counts. The name is the same if the task runs
again, so a row is there once.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from mqtrail.wire import MQError

from .rowids import TaskIds
from .rows import BadRow, SinkRowError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

ATTEMPTS: Final = "_attempts"
GROUP_ROWS_MAX: Final = 1_000  # rows that are kept in memory

REJECT_COLUMNS: Final = {
    "reject_reason": pa.string(),
    "reject_write": pa.string(),
    "reject_partition": pa.int32(),
}
"""Columns that a reject file has in addition to the row's own."""


class RejectsLost(MQError):
    """The driver does not see the reject file that a task wrote."""


class RejectFile:
    """The rejected rows of one attempt of a task."""

    def __init__(self, folder: Path | None, ids: TaskIds) -> None:
        self._folder = folder
        self._ids = ids
        self._rows: list[BadRow] = []
        self._writer: ParquetWriter | None = None
        self._name = f"{ids.task}-{secrets.token_hex(8)}.parquet"
        self.count = 0

    def add(self, row: BadRow) -> None:
        """Keep a row. Raises SinkRowError if there is no folder for it."""
        if self._folder is None:
            raise SinkRowError(
                f"row {row.number} of a record batch of partition {self._ids.partition} cannot be sent: {row.reason}. "
                "Correct or filter such rows, or set option rejectPath to collect them"
            )
        self.count += 1
        self._rows.append(row)
        if len(self._rows) >= GROUP_ROWS_MAX:
            self._flush()

    def close(self) -> str | None:
        """Complete the file and return its name; None if there is none."""
        self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        return self._name

    def discard(self) -> None:
        """Delete the file of an attempt that failed."""
        if self._writer is not None and self._folder is not None:
            self._writer.close()
            drop_rejects(self._folder, self._name)

    def _flush(self) -> None:
        if not self._rows or self._folder is None:
            return
        table = pa.Table.from_batches([row.batch.slice(row.number, 1) for row in self._rows])
        values = ([row.reason for row in self._rows], self._ids.write, self._ids.partition)
        for (name, kind), value in zip(REJECT_COLUMNS.items(), values, strict=True):
            column = value if isinstance(value, list) else [value] * len(self._rows)
            table = table.append_column(name, pa.array(column, kind))
        if self._writer is None:
            from pyarrow.parquet import ParquetWriter  # slow, and most tasks reject nothing

            folder = self._folder / ATTEMPTS
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = ParquetWriter(folder / self._name, table.schema)
        self._writer.write_table(table)
        self._rows = []


def commit_rejects(folder: Path, name: str) -> Path:
    """Make the rejected rows of an attempt visible, once for its task. It can be repeated."""
    source, target = folder / ATTEMPTS / name, folder / f"{name.partition('-')[0]}.parquet"
    try:
        os.replace(source, target)
    except FileNotFoundError:
        raise RejectsLost(
            f"found no {source} on the driver, expected the file that a task wrote: rejectPath must be a folder that "
            "driver and executors share"
        ) from None
    return target


def drop_rejects(folder: Path, name: str) -> None:
    """Delete the rejected rows of an attempt that does not count."""
    (folder / ATTEMPTS / name).unlink(missing_ok=True)
