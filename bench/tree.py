"""The CPU time of this process and of all that it started, also of processes that have ended.

Linux adds the time of an ended process to that of its parent, but only if the parent waited for it: processes that
a killed parent had started, or that are not waited for, would be missing, and the time of a span could be negative.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

READS_MAX = 5  # until two readings show the same processes
Key = tuple[int, int]  # pid and start: pids are used again


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of CPU of one process. waited_s: of its ended children that it waited for, and of theirs."""

    parent: int
    own_s: float
    waited_s: float


class ProcessTree:
    """This process and what it started, except one child and what that started."""

    def __init__(self, but_pid: int) -> None:
        self._but_pid = but_pid
        self._last: dict[Key, Spent] = {}
        self._missing_s = 0.0  # of ended processes, which no parent has

    def pids(self) -> list[int]:
        """The processes that there are."""
        return [pid for pid, _ in self._known(every_process())]

    def seconds(self) -> float:
        """The CPU time until now. Of processes that begin and end between two calls it has what their parents have."""
        now = self._known(every_process())
        for _ in range(READS_MAX):
            before, now = now, self._known(every_process())
            if before.keys() == now.keys():
                break
        self.add(now)
        return self._missing_s + sum(each.own_s + each.waited_s for each in now.values())

    def add(self, now: dict[Key, Spent]) -> None:
        """Take a reading: find what ended since the last one, and how much of it is missing in the parents' time."""
        pids = {key[0]: key for key in self._last}
        expected_s: dict[Key | None, float] = {}
        for key, spent in self._last.items():
            if key not in now:
                above = pids.get(spent.parent)
                while above is not None and above not in now:
                    above = pids.get(self._last[above].parent)
                expected_s[above] = expected_s.get(above, 0.0) + spent.own_s + spent.waited_s
        for above, due_s in expected_s.items():
            got_s = 0.0 if above is None else now[above].waited_s - self._last[above].waited_s
            self._missing_s += max(0.0, due_s - got_s)
        self._last = now

    def _known(self, every: dict[Key, Spent]) -> dict[Key, Spent]:
        """Of all processes those of the tree: also children whose parent has ended, if they were seen before."""
        own = {os.getpid(), *(key[0] for key in self._last if key in every)}
        while more := {key[0] for key, spent in every.items() if spent.parent in own} - own - {self._but_pid}:
            own |= more
        return {key: spent for key, spent in every.items() if key[0] in own}


def every_process() -> dict[Key, Spent]:
    """Read the times of all processes."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        user, system, waited_user, waited_system = map(int, fields[11:15])
        key = int(status.parent.name), int(fields[19])
        found[key] = Spent(int(fields[1]), (user + system) / ticks, (waited_user + waited_system) / ticks)
    return found
