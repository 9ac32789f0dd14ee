"""The lake: all tables below one folder, and the batches that write to several of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqtrail import trail

from .batches import Batches
from .edge import lake_errors
from .errors import LakeDamaged, LakeMissing, SchemaVersionError
from .indexes import ADDED, add_indexes, missing_indexes
from .lock import WriteLock
from .marks import MARKS
from .places import LakePath, is_remote, place_of, side_by_side
from .schemas import SCHEMA_VERSION, TABLES
from .tables import VERSION_KEY, LakeTable, create_table, has_log


class Lake:
    """All tables below one folder, by name."""

    def __init__(self, path: LakePath, tables: dict[str, LakeTable], lock: WriteLock) -> None:
        self.path = path
        self._tables = tables
        self._lock = lock
        self._batches: Batches | None = None

    @classmethod
    def open(cls, path: str | LakePath, *, is_whole: bool = True) -> Lake:
        """Open the lake at `path`. LakeMissing, SchemaVersionError, LakeUnsupported, LakeUnreadable.

        is_whole: raise LakeDamaged if a table is unreadable; otherwise skip it and list it in `damage`.
        """
        return cls._open(path, WriteLock(place_of(path)), is_whole=is_whole)

    @classmethod
    def _open(cls, path: str | LakePath, lock: WriteLock, *, is_whole: bool) -> Lake:
        folder = place_of(path)
        with lake_errors(folder):
            missing = _without_log(folder)
        if missing and not _is_begun(folder):
            raise LakeMissing(
                f"no lake at {folder}: found no table {missing[0]!r}, expected {len(TABLES)} of them. "
                "Run `mqtrail pipeline once --namesrv HOST:PORT --lake DIR` first, or name its folder."
            )
        if len(missing) == len(TABLES):
            raise LakeDamaged(
                f"{folder}: found no Delta log of any table, expected {len(TABLES)}: restore the folder from a copy"
            )
        without = missing_indexes(folder) if missing else []

        def opened_table(name: str) -> LakeTable:
            if name in without:
                raise SchemaVersionError(
                    f"{folder}: found a lake without table {name!r}, expected the tables of this version: start its "
                    "pipeline once, or run `mqtrail pipeline migrate --lake DIR`"
                )
            table = LakeTable(TABLES[name], folder / name, lock, is_whole=is_whole)
            if not table.is_lost:
                table.check_version()
            return table

        names = sorted(TABLES, key=lambda name: name in missing)  # a lake of an older version lacks newer tables
        opened = dict(zip(names, side_by_side(folder, opened_table, names), strict=True))
        lake = cls(folder, {name: opened[name] for name in TABLES}, lock)
        if all(table.is_lost for table in lake):
            raise LakeDamaged(lake.damage[0])
        return lake

    @classmethod
    def create(cls, path: str | LakePath) -> Lake:
        """Open the lake at `path`; create missing tables of a new lake, and indexes that an older one lacks.

        Errors: those of `open`, and LakeBusy. If a lake with commits lacks a table, it is damaged: creating an empty
        table would hide that.
        """
        folder = place_of(path)
        lock = WriteLock(folder)
        with lake_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            missing = _without_log(folder)
            if missing and not _is_begun(folder):
                with lock.held():
                    side_by_side(folder, lambda name: create_table(TABLES[name], folder / name), _without_log(folder))
            elif missing and (without := missing_indexes(folder)):
                with lock.held():
                    if isinstance(folder, Path):
                        if _is_of_this_version(folder, lock):
                            add_indexes(folder, lock)
                    else:  # no lake in an object store lacks an index
                        for name in set(without) & set(ADDED):
                            create_table(TABLES[name], folder / name)
        return cls._open(folder, lock, is_whole=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock while the block runs, after finishing batches that a crash left half done. LakeBusy."""
        with lake_errors(self.path), self._lock.held() as is_new:
            if is_new:
                self.batches.recover()
            yield

    @property
    def batches(self) -> Batches:
        """The record of batches, for a writer. LakeBusy, LakeDamaged."""
        if self._batches is None:
            self._batches = Batches(self.path, self._lock, self._tables)
        return self._batches

    @property
    def damage(self) -> list[str]:
        """A sentence for each unreadable table and file. Tables are checked at open, files when they are used."""
        return [text for table in self for text in table.damage.values()]

    def check(self) -> None:
        """Find committed files that are missing or have another size. LakeDamaged, or entries in `damage`."""

        def check(table: LakeTable) -> None:
            if is_remote(self.path):
                table.refresh()  # requests: a store loses no commits
            else:
                table.reread()
            table.readable(table.files())

        side_by_side(self.path, check, self)

    def probe(self) -> None:
        """Read all committed files completely, to find damage. LakeDamaged, or entries in `damage`."""
        for table in self:
            table.probe()

    def __getitem__(self, name: str) -> LakeTable:
        return self._tables[name]

    def __iter__(self) -> Iterator[LakeTable]:
        return iter(self._tables.values())

    def refresh(self) -> None:
        """Read newer commits of every table."""
        side_by_side(self.path, LakeTable.refresh, self)


def _without_log(folder: LakePath) -> list[str]:
    """The tables that were not created here."""
    found = side_by_side(folder, lambda name: has_log(folder / name), TABLES)
    return [name for name, has in zip(TABLES, found, strict=True) if not has]


def _is_of_this_version(folder: Path, lock: WriteLock) -> bool:
    """Return whether the table that a migration changes last has this version."""
    if not has_log(folder / trail.TRACE_EVENTS.name):
        return False
    last = LakeTable(TABLES[trail.TRACE_EVENTS.name], folder / trail.TRACE_EVENTS.name, lock)
    return last.noted(VERSION_KEY) == str(SCHEMA_VERSION)


def _is_begun(folder: LakePath) -> bool:
    """Return whether a table here has a commit after its creation."""
    return (folder / MARKS).is_dir() or any(
        file.name.removesuffix(".json").isdigit() and int(file.name.removesuffix(".json")) > 0
        for name in TABLES
        if (folder / name / "_delta_log").is_dir()
        for file in (folder / name / "_delta_log").iterdir()
    )
