"""Keeps the incidents that searches found in the gold table `incidents`.

    <lake>/_incidents/<found_ms>-<number>.json     a search that waits, because another process was writing the lake

The writer of the lake records such searches after its next cycle. Until then readers take them from the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import uuid4

from mqtrail.trail.incidents import INCIDENTS, Incident

from .duck import arrow_rows, connect
from .edge import lake_errors
from .errors import LakeBusy
from .lake import Lake
from .parquet import rows_of
from .places import LakePath, own_folder, write_parquet, write_whole

ROWS_MAX: Final = 10_000  # kept incidents, the latest ones
WAITING_MAX: Final = 100  # searches that wait
FOLDER: Final = "_incidents"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Search:
    """What a search of [from_ms, to_ms) in these clusters has found."""

    clusters: Sequence[str]
    from_ms: int
    to_ms: int
    rows: list[Row]

    def replaced(self, rows: list[Row]) -> list[Row]:
        """Return the kept rows with those of this search in the place of earlier ones."""
        kept = [
            row
            for row in rows
            if row["cluster"] not in self.clusters or not self.from_ms <= row["begin_ms"] < self.to_ms
        ]
        return kept + self.rows


def keep_incidents(
    lake: Lake, found: Sequence[Incident], clusters: Sequence[str], from_ms: int, to_ms: int, *, now_ms: int
) -> None:
    """Replace the incidents of these clusters that begin in [from_ms, to_ms) by those found.

    While another process writes the lake, the search waits in a file. LakeBusy: too many wait. LakeDamaged.
    """
    search = _Search(tuple(clusters), from_ms, to_ms, [one.row for one in found])
    try:
        with lake.writing():
            record_incidents(lake, now_ms=now_ms)
            _record(lake, [search], now_ms)
    except LakeBusy as error:
        if len(_paths(lake.path)) >= WAITING_MAX:
            raise LakeBusy(f"{error}; {WAITING_MAX} searches wait for it in {lake.path / FOLDER}") from error
        path = lake.path / FOLDER / f"{now_ms:015d}-{uuid4().hex}.json"
        with lake_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(asdict(search)).encode())


def record_incidents(lake: Lake, *, now_ms: int) -> int:
    """Record the searches that wait; return their number. LakeBusy, LakeDamaged."""
    paths = _paths(lake.path)
    searches = list(_read(paths))
    if searches:
        _record(lake, searches, now_ms)
    for path in paths:
        path.unlink(missing_ok=True)
    return len(searches)


def with_waiting(path: LakePath, rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the table `incidents` of a lake as they are when the searches that wait are recorded."""
    kept = list(rows)
    for search in _read(_paths(path)):
        kept = search.replaced(kept)
    return kept


def _record(lake: Lake, searches: Sequence[_Search], now_ms: int) -> None:
    """Apply searches to the table, oldest first. It is one small file, which is rewritten whole."""
    table = lake[INCIDENTS.name]
    with lake.writing(), lake_errors(table.path):
        table.refresh()
        files = table.files()
        duck = connect(threads=1)
        cursor = duck.execute(rows_of(table, table.readable(files)))
        rows: list[Row] = [dict(zip(INCIDENTS.names, row, strict=True)) for row in cursor.fetchall()]
        duck.close()
        kept = rows
        for search in searches:
            kept = search.replaced(kept)
        kept = sorted(kept, key=lambda row: row["begin_ms"])[-ROWS_MAX:]
        kept.sort(key=lambda row: (row["cluster"], row["begin_ms"]))
        if kept == rows:
            return
        target = own_folder(table.path / f"batch=incidents-{uuid4().hex}") / "part.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(arrow_rows(INCIDENTS, kept), target)
        table.swap([target], files, now_ms=now_ms)


def _read(paths: Iterable[LakePath]) -> Iterator[_Search]:
    """Yield the searches in files. Skip a damaged one: its search can be repeated."""
    for path in paths:
        search = None
        with lake_errors(path), suppress(FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            read = _Search(**json.loads(path.read_bytes()))
            arrow_rows(INCIDENTS, read.rows)
            search = read
        if search is not None:
            yield search


def _paths(path: LakePath) -> list[LakePath]:
    folder = path / FOLDER
    with lake_errors(folder):
        if not folder.is_dir():
            return []
        return sorted(each for each in folder.iterdir() if each.name.endswith(".json"))
