"""What processes use, from /proc (Linux). Elsewhere, and of a process that is gone, nothing is known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")


class Use(NamedTuple):
    """CPU seconds since the start of a process, and its resident memory in bytes."""

    cpu_s: float
    memory_size: int


def use_of(process_id: int, proc: Path = PROC) -> Use | None:
    """Return what a process uses; None: unknown."""
    try:
        stat = (proc / str(process_id) / "stat").read_text()
        pages = (proc / str(process_id) / "statm").read_text().split()[1]
        fields = stat.rpartition(")")[2].split()  # the name before may contain blanks and parentheses
        ticks = int(fields[11]) + int(fields[12])  # utime, stime
    except (OSError, ValueError, IndexError):
        return None
    return Use(ticks / os.sysconf("SC_CLK_TCK"), int(pages) * os.sysconf("SC_PAGE_SIZE"))


class ProcessWatch:
    """The use of one process over a time."""

    def __init__(self, process_id: int, proc: Path = PROC) -> None:
        self.process_id = process_id
        self._proc = proc
        self._first_s: float | None = None
        self._last_s = 0.0
        self.memory_size_most: int | None = None

    def sample(self) -> float | None:
        """Read it; return the CPU seconds since the last sample, None if unknown."""
        found = use_of(self.process_id, self._proc)
        if found is None:
            return None
        before_s = found.cpu_s if self._first_s is None else self._last_s
        if self._first_s is None:
            self._first_s = found.cpu_s
        self._last_s = found.cpu_s
        self.memory_size_most = max(self.memory_size_most or 0, found.memory_size)
        return found.cpu_s - before_s

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds between the first and the last sample; None if unknown."""
        return None if self._first_s is None else self._last_s - self._first_s
