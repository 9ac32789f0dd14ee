"""The clock of a broker: the machine's, without its jumps.

A machine's clock is set: by hand, by NTP, by a hypervisor, and sometimes forward and back again. What a broker does on
such a time stays: messages stored in a future hour, timers that wait for it. So a jump is told at once, but followed
only when it has lasted for SETTLE_MS; until then time goes on as it passes. Small corrections are followed at once.
"""

import time
from collections.abc import Callable
from typing import Final

from mqtrail.net import Log

JUMP_MS: Final = 1_000  # a clock that is off by more than that was set
SETTLE_MS: Final = 60_000  # a jump that lasts so long is the time now
_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first goes on while the machine sleeps

log = Log()


def wall_clock_ms() -> int:
    """Epoch ms, as the machine's clock says."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Ms since some moment, whatever the clock is set to."""
    return time.clock_gettime_ns(_ELAPSED) // 1_000_000


class SteadyClock:
    """Epoch ms when it is called. on_jump: told by how many ms the machine's clock was set, once each time."""

    def __init__(
        self,
        name: str,
        *,
        wall: Callable[[], int] = wall_clock_ms,
        elapsed: Callable[[], int] = elapsed_ms,
        on_jump: Callable[[int], None] | None = None,
    ) -> None:
        self._name = name
        self._wall = wall
        self._elapsed = elapsed
        self._on_jump = on_jump
        self._offset_ms = wall() - elapsed()
        self._ahead_ms = 0  # how far the machine's clock was off when it was last seen to jump
        self._since_ms = 0

    def __call__(self) -> int:
        elapsed_ms = self._elapsed()
        now_ms = elapsed_ms + self._offset_ms
        ahead_ms = self._wall() - now_ms
        if not ahead_ms and not self._ahead_ms:
            return now_ms
        if -JUMP_MS <= ahead_ms <= JUMP_MS:
            if self._ahead_ms:
                self._jumped(-self._ahead_ms, "none needed: the clock is back in step")
            self._ahead_ms = 0
        elif abs(ahead_ms - self._ahead_ms) > JUMP_MS:
            self._jumped(
                ahead_ms - self._ahead_ms,
                f"check what sets this machine's clock; the broker adopts the new time after {SETTLE_MS // 1000} s",
            )
            self._ahead_ms, self._since_ms = ahead_ms, elapsed_ms
            return now_ms
        elif elapsed_ms - self._since_ms < SETTLE_MS:
            return now_ms
        else:
            log.warning("clock.followed", broker=self._name, by_ms=ahead_ms)
            self._ahead_ms = 0
        self._offset_ms += ahead_ms
        return now_ms + ahead_ms

    def _jumped(self, by_ms: int, remedy: str) -> None:
        log.warning("clock.jumped", broker=self._name, by_ms=by_ms, remedy=remedy)
        if self._on_jump is not None:
            self._on_jump(by_ms)
