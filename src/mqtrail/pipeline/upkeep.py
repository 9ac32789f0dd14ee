"""Upkeep of the lake between cycles: compaction, retention, deletion of files without a commit, incidents that wait.

Each part is bounded, so that no cycle waits for it: compaction writes its files in a thread, and the writer of the lake
commits them between two cycles; retention and deletion run for SLICE_MS at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Final

import duckdb

from mqtrail.lake import (
    DataFile,
    Join,
    Lake,
    LakeError,
    LakeTable,
    connect,
    expire,
    joins_due,
    lake_errors,
    record_incidents,
    settled_ms,
    sweeping,
)
from mqtrail.trail import HOUR_MS

SLICE_MS: Final = 100  # of deletion after one cycle
COMPACT_INTERVAL_MS: Final = 10_000  # interval of the search for files to compact
TIDY_INTERVAL_MS: Final = 600_000  # interval of the search for expired rows and for files without a commit
END_MS_MAX: Final = 10_000  # how long the end waits for the file that is being written


class LakeUpkeep:
    """The upkeep of one lake, by its writer."""

    def __init__(
        self, lake: Lake, retention_ms: int, memory: str, judge_again: Callable[[], None] = lambda: None
    ) -> None:
        """memory: of DuckDB, which writes compacted files with one thread. judge_again: is called in each slice."""
        self._judge_again = judge_again
        self._lake = lake
        self._retention_ms = retention_ms
        self._memory = memory
        self._due: Iterator[tuple[LakeTable, list[DataFile]]] = iter(())
        self._writing: _Writing | None = None
        self._refused: set[tuple[str, int | None]] = set()  # tables and hours whose files could not be written
        self._tidying: Iterator[tuple[str, int]] = iter(())
        self._looked_ms = self._tidied_ms = 0

    def slice(self, at_ms: int) -> dict[str, int]:
        """Record incidents, commit the file written, start the next one, delete for a slice.

        Return the number of files by kind of work.
        LakeError: raised once per cause.
        """
        done: Counter[str] = Counter()
        with self._lake.writing(), lake_errors(self._lake.path):
            self._judge_again()
            record_incidents(self._lake, now_ms=at_ms)
            self._compact(at_ms, done)
            self._tidy(at_ms, done)
        return dict(done)

    def end(self) -> None:
        """Stop writing the current file."""
        if self._writing is not None:
            self._writing.stop()
            self._writing = None

    def _compact(self, at_ms: int, done: Counter[str]) -> None:
        if self._writing is not None:
            if self._writing.is_alive:
                return
            writing, self._writing = self._writing, None
            writing.check()
            self._refused.discard(_place(writing.join))
            done["compacted"] += writing.join.commit(at_ms)
        join = self._next()
        if join is None and at_ms - self._looked_ms >= COMPACT_INTERVAL_MS:
            self._looked_ms = at_ms
            self._due = iter(list(joins_due(self._lake, at_ms // HOUR_MS - 1)))
            join = self._next()
        if join is not None:
            self._refused.add(_place(join))  # until it was written well
            self._writing = _Writing(join, self._memory)

    def _next(self) -> Join | None:
        """The next files to write as one; None if none of those found are left."""
        for table, files in self._due:
            if table.has(files) and (table.table.name, files[0].hour) not in self._refused:
                return Join.of(table, table.readable(files), settled_ms(self._lake, files))
        return None

    def _tidy(self, at_ms: int, done: Counter[str]) -> None:
        end_s = time.monotonic() + SLICE_MS / 1000
        for work, count in self._tidying:
            done[work] += count
            if time.monotonic() >= end_s:
                return
        if at_ms - self._tidied_ms >= TIDY_INTERVAL_MS:
            self._tidied_ms = at_ms
            self._tidying = self._tidy_steps(at_ms)

    def _tidy_steps(self, at_ms: int) -> Iterator[tuple[str, int]]:
        yield "expired", expire(self._lake, at_ms - self._retention_ms, now_ms=at_ms)
        for path in sweeping(self._lake, now_ms=at_ms):
            yield "swept", int(path is not None)


class _Writing:
    """Writes one compacted file in a thread."""

    def __init__(self, join: Join, memory: str) -> None:
        self.join = join
        self._error: BaseException | None = None
        self._duck = connect(threads=1, memory_limit=memory)
        self._thread = Thread(target=self._write, name="mqtrail-compaction", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it is still writing."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise the error of the thread, if it had one."""
        self._thread.join()
        self._duck.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End it."""
        self._duck.interrupt()
        self._thread.join(END_MS_MAX / 1000)
        if not self.is_alive:
            self._duck.close()

    def _write(self) -> None:
        try:
            with lake_errors(self.join.table.path):
                self.join.write(self._duck)
        except (LakeError, duckdb.Error, OSError) as error:
            self._error = error


def _place(join: Join) -> tuple[str, int | None]:
    return join.table.table.name, join.files[0].hour
