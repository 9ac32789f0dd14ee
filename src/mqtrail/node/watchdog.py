"""What holds the event loop for long is counted and logged: everybody else waits meanwhile.

Work is a request's code, `tick` or the name of a job. Counts are kept where metrics read them.
"""

import time
from collections.abc import Callable
from typing import Final

from mqtrail.net import Log
from mqtrail.wire import RequestCode

STALL_S: Final = 0.05  # what takes longer is a stall
LOG_EVERY_S: Final = 10.0  # stalls in between are told with the next one

log = Log()
_CODES: Final = frozenset(int(code) for code in RequestCode)


def work_of(code: int) -> str:
    """Return a request code's name in counts: codes that are none share one."""
    return str(int(code)) if code in _CODES else "other"


class Watchdog:
    """Times pieces of work. counts: work -> [stalls, ms they took together]."""

    def __init__(self, counts: dict[str, list[int]] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = {} if counts is None else counts
        self.clock = clock
        self.stalls = 0
        self._told_s = -LOG_EVERY_S
        self._untold = 0

    def look(self, began_s: float, work: str, peer: str = "") -> None:
        """Note work that began then and ends now, if it took long."""
        now_s = self.clock()
        took_s = now_s - began_s
        if took_s < STALL_S:
            return
        took_ms = int(took_s * 1000)
        self.stalls += 1
        count = self.counts.setdefault(work, [0, 0])
        count[0] += 1
        count[1] += took_ms
        self._untold += 1
        if now_s - self._told_s >= LOG_EVERY_S:
            log.warning("loop.stalled", work=work, took_ms=took_ms, peer=peer, stalls=self._untold)
            self._told_s, self._untold = now_s, 0
