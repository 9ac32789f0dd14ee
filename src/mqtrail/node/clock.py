"""The clock of a broker: the machine's clock without its jumps.

An administrator, NTP or a hypervisor can set a machine's clock, sometimes forward and back again. If a broker
followed it, the effects would be permanent: messages stored in a future hour, timers that wait for that hour. So a jump
is logged at once, but the broker adopts the new time only after it has lasted for SETTLE_MS. Small corrections are
adopted at once.
"""

import time
from collections.abc import Callable
from typing import Final

from mqtrail.net import Log

JUMP_MS: Final = 1_000  # a larger difference means that the clock was set
SETTLE_MS: Final = 60_000  # after this time the broker adopts the new time
_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # BOOTTIME includes time in suspend

log = Log()


def wall_clock_ms() -> int:
    """Return the machine's clock as epoch ms."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Return ms since a fixed moment, independent of the machine's clock."""
    return time.clock_gettime_ns(_ELAPSED) // 1_000_000


class SteadyClock:
    """Returns epoch ms when called. on_jump: called once per jump of the machine's clock, with its size in ms."""

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
        self._ahead_ms = 0  # difference to the machine's clock at its last jump
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
            log.warning("clock.adopted", broker=self._name, by_ms=ahead_ms)
            self._ahead_ms = 0
        self._offset_ms += ahead_ms
        return now_ms + ahead_ms

    def _jumped(self, by_ms: int, remedy: str) -> None:
        log.warning("clock.jumped", broker=self._name, by_ms=by_ms, remedy=remedy)
        if self._on_jump is not None:
            self._on_jump(by_ms)
