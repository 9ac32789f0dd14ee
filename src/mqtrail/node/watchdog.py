"""Counts and logs work that blocks the event loop for long, because all other requests wait meanwhile.

Work is a request code, `tick` or the name of a job. Metrics read the counts.
"""

import time
from collections.abc import Callable
from typing import Final

from mqtrail.net import Log
from mqtrail.wire import RequestCode

STALL_S: Final = 0.05  # work that takes this long is a stall
LOG_EVERY_S: Final = 10.0  # at most one log event in this time, with the number of stalls since the last

log = Log()
_CODES: Final = frozenset(int(code) for code in RequestCode)


def work_of(code: int) -> str:
    """Return the name of a request code in the counts; unknown codes share one name."""
    return str(int(code)) if code in _CODES else "other"


class Watchdog:
    """Measures work. counts: work -> [number of stalls, total ms]."""

    def __init__(self, counts: dict[str, list[int]] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = {} if counts is None else counts
        self.clock = clock
        self.stalls = 0
        self._logged_s = -LOG_EVERY_S
        self._unlogged = 0

    def look(self, began_s: float, work: str, peer: str = "") -> None:
        """Count the work that began at began_s and ends now, if it is a stall."""
        now_s = self.clock()
        took_s = now_s - began_s
        if took_s < STALL_S:
            return
        took_ms = int(took_s * 1000)
        self.stalls += 1
        count = self.counts.setdefault(work, [0, 0])
        count[0] += 1
        count[1] += took_ms
        self._unlogged += 1
        if now_s - self._logged_s >= LOG_EVERY_S:
            log.warning("loop.stalled", work=work, took_ms=took_ms, peer=peer, stalls=self._unlogged)
            self._logged_s, self._unlogged = now_s, 0
