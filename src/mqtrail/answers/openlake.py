"""A lake that a program keeps open between questions: the console, the HTTP API and the MCP server ask many.

Opening a lake reads the logs of all its tables, and a database of its own for each question would have memory of its
own. Here all questions share one database, with a bound on its memory, and a question takes over the tables of an
earlier one after reading the commits since.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb

from mqtrail.lake import TABLES, Lake, LakeError, LakePath, LookUp, connect

from .lakeview import LakeView

MEMORY_MB: Final = 1_000  # of all questions together; DuckDB spills what is larger to the folder for temporary files
MEMORY_MB_LEAST: Final = 250  # of one of several lakes
SPILL_LIMIT: Final = "10GB"
IDLE_MAX: Final = 4  # opened lakes that wait for a question: as many as questions run at once
SHARED_S: Final = 5.0  # an answer about many messages is given again for so long, though the lake has newer commits
SHARED_MAX: Final = 32  # answers that are kept

_FREES_AT_ONCE: Final = (
    "allocator_flush_threshold = '1MB'",
    "allocator_bulk_deallocation_flush_threshold = '1MB'",
    "allocator_background_threads = true",
)
"""DuckDB keeps what it frees, up to 512 MB, for its next query: a third of a console's memory between two questions."""

T = TypeVar("T")
_Identity = tuple[tuple[int, int], ...]  # device and inode of each table's log


@dataclass(slots=True)
class _Shared:
    """An answer, the state of the lake that it is from, and when it was given. lock: held to find it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    state: tuple[_Identity, tuple[int, ...]] | None = None  # the tables and their versions
    given_s: float = 0.0
    answer: Any = None


class OpenLake:
    """Views of one lake, for questions in several threads. Close it at the end."""

    def __init__(self, path: LakePath, lake_count: int = 1) -> None:
        """path: nothing is read yet. lake_count: of lakes that share the memory."""
        self.path = path
        self._memory_mb = max(MEMORY_MB_LEAST, MEMORY_MB // lake_count)
        self._lock = threading.Lock()
        self._idle: list[tuple[Lake, _Identity]] = []
        self._duck: duckdb.DuckDBPyConnection | None = None
        self._shared: OrderedDict[Hashable, _Shared] = OrderedDict()

    @contextmanager
    def view(self, cluster: str = "") -> Iterator[LakeView]:
        """Lend a view of the lake as it is now. LakeError and UnknownCluster as of LakeView."""
        lake, identity = self._taken()
        connection = self._database().cursor()  # its views and tables end with it
        try:
            yield LakeView(self.path, cluster, LookUp(lake, connection))
        finally:
            connection.close()
            self._give_back(lake, identity)

    def shared(
        self, question: Hashable, view: LakeView, ask: Callable[[LakeView], T], recent_s: float | None = None
    ) -> T:
        """Return ask(view), or the answer that others got to the same question from these commits, or just now.

        recent_s: how old an answer from earlier commits may be; None: SHARED_S.
        """
        if view.damage:
            return view.read(ask)
        with self._lock:
            shared = self._shared.pop(question, None) or _Shared()
            self._shared[question] = shared
            if len(self._shared) > SHARED_MAX:
                self._shared.popitem(last=False)
        state = _identity(self.path), tuple(table.version for table in view.lookup.lake)
        with shared.lock:
            is_same = shared.state is not None and shared.state[0] == state[0]
            is_recent = is_same and time.monotonic() - shared.given_s <= (SHARED_S if recent_s is None else recent_s)
            if shared.state != state and not is_recent:
                answer = view.read(ask)
                if view.damage:  # it may be repaired by the next question
                    return answer
                shared.answer, shared.state, shared.given_s = answer, state, time.monotonic()
            found: T = shared.answer
            return found

    def _taken(self) -> tuple[Lake, _Identity]:
        """Return an idle lake that is still the one at the path, with the latest commits; else open it."""
        with self._lock:
            found = self._idle.pop() if self._idle else None
        identity = _identity(self.path)
        if found is not None and found[1] == identity:
            lake = found[0]
            try:
                lake.refresh()
            except LakeError:
                pass  # opening it says what is wrong
            else:
                if not lake.damage:
                    return lake, identity
        return Lake.open(self.path, is_whole=False), identity

    def _give_back(self, lake: Lake, identity: _Identity) -> None:
        """Keep a lake for the next question, unless damage was found: it may be repaired by then."""
        with self._lock:
            if not lake.damage and len(self._idle) < IDLE_MAX:
                self._idle.append((lake, identity))

    def _database(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._duck is None:
                spill = tempfile.mkdtemp(prefix="mqtrail-answers-")
                self._remove_spill = weakref.finalize(self, shutil.rmtree, spill, ignore_errors=True)
                self._duck = connect(memory_limit=f"{self._memory_mb}MB")
                self._duck.execute("SET temp_directory = ?", [spill])
                self._duck.execute("SET max_temp_directory_size = ?", [SPILL_LIMIT])
                for setting in _FREES_AT_ONCE:
                    self._duck.execute(f"SET {setting}")
            return self._duck

    def close(self) -> None:
        """Close the database, and remove its temporary files."""
        with self._lock:
            self._idle.clear()
            if self._duck is not None:
                self._duck.close()
                self._duck = None
                self._remove_spill()


def _identity(path: LakePath) -> _Identity:
    """Return what differs when a table was replaced by another one. In an object store: nothing.

    There the marks of the commits show it, as damage of the lake.
    """
    if not isinstance(path, Path):
        return ()
    try:
        found = [(path / name / "_delta_log").stat() for name in TABLES]
    except OSError:
        return ((0, 0),)  # opening it says what is wrong
    return tuple((one.st_dev, one.st_ino) for one in found)
