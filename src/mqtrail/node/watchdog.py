"""Counts and logs work that blocks the event loop for long, because all other requests wait meanwhile.

Work is a request code, `tick` or the name of a job. Metrics read the counts.

If the loop's thread used little CPU in a stall, the work is not the reason: the thread waited for a disk, for another
thread of the process or, on a busy machine, for a CPU. Reading a thread's CPU time takes 0.8 us, so it is read before
work begins, at most once in MARK_S: the CPU time of a stall may include up to MARK_S of earlier work.
"""

import time
from collections.abc import Callable
from typing import Final

from mqtrail.net import Log
from mqtrail.wire import RequestCode

STALL_S: Final = 0.05  # work that takes this long is a stall
MARK_S: Final = 0.005  # between two readings of the thread's CPU time
LOG_EVERY_S: Final = 10.0  # at most one log event in this time, with the number of stalls since the last

log = Log()
_CODES: Final = frozenset(int(code) for code in RequestCode)


def work_of(code: int) -> str:
    """Return the name of a request code in the counts; unknown codes share one name."""
    return str(int(code)) if code in _CODES else "other"


class Watchdog:
    """Measures work. counts: work -> [number of stalls, total ms, ms of these in which the thread used the CPU].

    mark_due_s: from when on the next work begins with `mark`.
    """

    def __init__(
        self,
        counts: dict[str, list[int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.counts = {} if counts is None else counts
        self.clock = clock
        self.stalls = 0
        self.mark_due_s = 0.0
        self._cpu_clock = cpu_clock
        self._marked_cpu_s = cpu_clock()
        self._logged_s = -LOG_EVERY_S
        self._unlogged = 0

    def begin(self) -> float:
        """Return the present time, at which outermost work begins."""
        began_s = self.clock()
        if began_s >= self.mark_due_s:
            self.mark(began_s)
        return began_s

    def mark(self, now_s: float) -> None:
        """Read the CPU time of the loop's thread."""
        self._marked_cpu_s = self._cpu_clock()
        self.mark_due_s = now_s + MARK_S

    def end(self, began_s: float, work: str, peer: str = "") -> None:
        """Count the work that began at began_s and ends now, if it is a stall."""
        now_s = self.clock()
        took_s = now_s - began_s
        if took_s < STALL_S:
            return
        took_ms = int(took_s * 1000)
        cpu_ms = min(took_ms, int((self._cpu_clock() - self._marked_cpu_s) * 1000))
        self.stalls += 1
        count = self.counts.setdefault(work, [0, 0, 0])
        for place, more in enumerate((1, took_ms, cpu_ms)):
            count[place] += more
        self._unlogged += 1
        if now_s - self._logged_s >= LOG_EVERY_S:
            log.warning("loop.stalled", work=work, took_ms=took_ms, cpu_ms=cpu_ms, peer=peer, stalls=self._unlogged)
            self._logged_s, self._unlogged = now_s, 0
