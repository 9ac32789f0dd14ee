"""Keeps the incidents that a search found in the gold table `incidents`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

from mqtrail.trail.incidents import INCIDENTS, Incident

from .duck import arrow_rows, connect
from .edge import lake_errors
from .lake import Lake
from .parquet import rows_of
from .places import own_folder, write_parquet

ROWS_MAX: Final = 10_000  # kept incidents, the latest ones


def keep_incidents(
    lake: Lake, found: Sequence[Incident], clusters: Sequence[str], from_ms: int, to_ms: int, *, now_ms: int
) -> None:
    """Replace the incidents of these clusters that begin in [from_ms, to_ms) by those found. LakeBusy, LakeDamaged.

    The table is one small file, which is rewritten whole.
    """
    table = lake[INCIDENTS.name]
    with lake.writing(), lake_errors(table.path):
        table.refresh()
        files = table.files()
        duck = connect(threads=1)
        cursor = duck.execute(rows_of(table, table.readable(files)))
        rows: list[dict[str, Any]] = [dict(zip(INCIDENTS.names, row, strict=True)) for row in cursor.fetchall()]
        duck.close()
        kept = [row for row in rows if row["cluster"] not in clusters or not from_ms <= row["begin_ms"] < to_ms]
        kept += [one.row for one in found]
        kept = sorted(kept, key=lambda row: row["begin_ms"])[-ROWS_MAX:]
        kept.sort(key=lambda row: (row["cluster"], row["begin_ms"]))
        if kept == rows:
            return
        target = own_folder(table.path / f"batch=incidents-{uuid4().hex}") / "part.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(arrow_rows(INCIDENTS, kept), target)
        table.swap([target], files, now_ms=now_ms)
