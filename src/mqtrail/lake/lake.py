"""The lake: all tables below one folder, and the batches that write to several of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqtrail import trail

from .batches import Batches
from .edge import lake_errors
from .errors import LakeDamaged, LakeMissing, LakeUnsupported, SchemaVersionError
from .indexes import add_indexes, missing_indexes
from .lock import WriteLock
from .marks import MARKS
from .schemas import SCHEMA_VERSION, TABLES
from .tables import VERSION_KEY, LakeTable, create_table, has_log

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Lake:
    """All tables below one folder, by name."""

    def __init__(self, path: Path, tables: dict[str, LakeTable], lock: WriteLock) -> None:
        self.path = path
        self._tables = tables
        self._lock = lock
        self._batches: Batches | None = None

    @classmethod
    def open(cls, path: str | Path, *, is_whole: bool = True) -> Lake:
        """Open the lake at `path`. LakeMissing, SchemaVersionError, LakeUnsupported, LakeUnreadable.

        is_whole: raise LakeDamaged if a table is unreadable; otherwise skip it and list it in `damage`.
        """
        return cls._open(path, WriteLock(local_folder(path)), is_whole=is_whole)

    @classmethod
    def _open(cls, path: str | Path, lock: WriteLock, *, is_whole: bool) -> Lake:
        folder = local_folder(path)
        with lake_errors(folder):
            missing = [name for name in TABLES if not has_log(folder / name)]
        if missing and not _is_begun(folder):
            raise LakeMissing(
                f"no lake at {folder}: found no table {missing[0]!r}, expected {len(TABLES)} of them. "
                "Run `mqtrail pipeline once --namesrv HOST:PORT --lake DIR` first, or name its folder."
            )
        opened: dict[str, LakeTable] = {}
        without = missing_indexes(folder)
        for name in sorted(TABLES, key=lambda name: name in missing):  # a lake of an older version lacks newer tables
            if name in without:
                raise SchemaVersionError(
                    f"{folder}: found a lake without table {name!r}, expected the tables of this version: start its "
                    "pipeline once, or run `mqtrail pipeline migrate --lake DIR`"
                )
            opened[name] = LakeTable(TABLES[name], folder / name, lock, is_whole=is_whole)
            if not opened[name].is_lost:
                opened[name].check_version()
        lake = cls(folder, {name: opened[name] for name in TABLES}, lock)
        if all(table.is_lost for table in lake):
            raise LakeDamaged(lake.damage[0])
        return lake

    @classmethod
    def create(cls, path: str | Path) -> Lake:
        """Open the lake at `path`; create missing tables of a new lake, and indexes that an older one lacks.

        Errors: those of `open`, and LakeBusy. If a lake with commits lacks a table, it is damaged: creating an empty
        table would hide that.
        """
        folder = local_folder(path)
        lock = WriteLock(folder)
        with lake_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            missing = [name for name in TABLES if not has_log(folder / name)]
            if missing and not _is_begun(folder):
                with lock.held():
                    for name in missing:
                        if not has_log(folder / name):
                            create_table(TABLES[name], folder / name)
            elif missing_indexes(folder) and _is_of_this_version(folder, lock):
                with lock.held():
                    add_indexes(folder, lock)
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
        for table in self:
            table.refresh()
            table.readable(table.files())

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
        for table in self:
            table.refresh()


def local_folder(path: str | Path) -> Path:
    """Return `path` as an absolute local folder. LakeUnsupported: it is a URL, of which a Path has only one slash."""
    text = str(path)
    if _URL.match(text):
        raise LakeUnsupported(
            f"found {text!r}, expected a local or mounted path: an object store needs atomic renames for the Delta "
            "log, credentials on every executor and range reads in DuckDB, none of which is supported yet"
        )
    return Path(text).expanduser().absolute()


def _is_of_this_version(folder: Path, lock: WriteLock) -> bool:
    """Return whether the table that a migration changes last has this version."""
    if not has_log(folder / trail.TRACE_EVENTS.name):
        return False
    last = LakeTable(TABLES[trail.TRACE_EVENTS.name], folder / trail.TRACE_EVENTS.name, lock)
    return last.noted(VERSION_KEY) == str(SCHEMA_VERSION)


def _is_begun(folder: Path) -> bool:
    """Return whether a table here has a commit after its creation."""
    return (folder / MARKS).is_dir() or any(
        file.name.removesuffix(".json").isdigit() and int(file.name.removesuffix(".json")) > 0
        for name in TABLES
        if (folder / name / "_delta_log").is_dir()
        for file in (folder / name / "_delta_log").iterdir()
    )
