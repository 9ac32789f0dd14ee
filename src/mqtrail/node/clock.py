"""The clock of a broker: the machine's clock without its jumps.

An administrator, NTP or a hypervisor can set a machine's clock, sometimes forward and back again. If a broker
followed it, the effects would be permanent: messages stored in a future hour, timers that wait for that hour. So a jump
is logged within CHECK_MS, but the broker adopts the new time only after it has lasted for SETTLE_MS. Small corrections
are adopted within CHECK_MS.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from mqtrail.clock import now_ms
from mqtrail.net import Log

JUMP_MS: Final = 1_000  # a larger difference means that the clock was set
SETTLE_MS: Final = 60_000  # after this time the broker adopts the new time
CHECK_MS: Final = 10  # how often the machine's clock is read: for each request it would be 1 % of a send
_NS: Final = 1_000_000  # in a ms
# ns since a fixed moment, independent of the machine's clock. BOOTTIME includes time in suspend.
_elapsed_ns: Final = partial(time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

log = Log()


wall_clock_ms: Final = now_ms  # in this room `now_ms` is what a clock returned


class SteadyClock:
    """Returns epoch ms when called.

    wall: the machine's clock, in epoch ns. elapsed: ns since a fixed moment. on_jump: called once
    per jump of the machine's clock, with its size in ms.
    """

    def __init__(
        self,
        name: str,
        *,
        wall: Callable[[], int] = time.time_ns,
        elapsed: Callable[[], int] = _elapsed_ns,
        on_jump: Callable[[int], None] | None = None,
    ) -> None:
        self._name = name
        self._wall = wall
        self._elapsed = elapsed
        self._on_jump = on_jump
        self._offset_ns = wall() - elapsed()
        self._ahead_ns = 0  # difference to the machine's clock at its last jump
        self._since_ns = 0
        self._check_due_ns = 0

    def __call__(self) -> int:
        elapsed_ns = self._elapsed()
        if elapsed_ns >= self._check_due_ns:
            self._check(elapsed_ns)
        return (elapsed_ns + self._offset_ns) // _NS

    def _check(self, elapsed_ns: int) -> None:
        """Compare the machine's clock with the broker's: adopt a small difference, or a large one that has lasted."""
        ahead_ns = self._wall() - elapsed_ns - self._offset_ns
        if self._elapsed() - elapsed_ns > _NS:
            return  # the thread was interrupted, so the two clocks were not read at the same time: the next call checks
        self._check_due_ns = elapsed_ns + CHECK_MS * _NS
        if abs(ahead_ns) <= JUMP_MS * _NS:
            if self._ahead_ns:
                self._jumped(-self._ahead_ns, "none needed: the clock is back in step")
        elif abs(ahead_ns - self._ahead_ns) > JUMP_MS * _NS:
            self._jumped(
                ahead_ns - self._ahead_ns,
                f"check what sets this machine's clock; the broker adopts the new time after {SETTLE_MS // 1000} s",
            )
            self._ahead_ns, self._since_ns = ahead_ns, elapsed_ns
            return
        elif elapsed_ns - self._since_ns < SETTLE_MS * _NS:
            return
        else:
            log.warning("clock.adopted", broker=self._name, by_ms=round(ahead_ns / _NS))
        self._ahead_ns = 0
        self._offset_ns += ahead_ns

    def _jumped(self, by_ns: int, remedy: str) -> None:
        by_ms = round(by_ns / _NS)
        log.warning("clock.jumped", broker=self._name, by_ms=by_ms, remedy=remedy)
        if self._on_jump is not None:
            self._on_jump(by_ms)
