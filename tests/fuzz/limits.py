"""The allowed cost of one turn of a server, and the meter that measures it.

A turn is the work between two points where other requests are served: one request, one tick, one piece of a connection.
Its cost is CPU time of this thread. A machine with other work makes that longer too: then the limit is as much higher
as a loop takes longer at that moment. Memory is measured without a garbage collection: a server seldom collects
(garbage.GC_THRESHOLD), so memory that only a collection frees counts as kept.
"""

import signal
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tests.machine import slowness

Result = TypeVar("Result")

TURN_S: Final = 0.05
"""CPU time of a turn: no request holds the loop for longer (docs/design/threats.md)."""
HANG_S: Final = 1.0
"""CPU time after which a turn is interrupted: far above TURN_S, so that slow turns end and are reported."""
TRIES: Final = 3
"""A slow turn counts only if it is slow in each of these tries: a busy machine also makes CPU time longer."""
PEAK_SIZE: Final = 8 << 20
"""Bytes that a turn may take beside PEAK_PER_BYTE: a reply to a pull or a list of a slice."""
PEAK_PER_BYTE: Final = 64
"""Bytes that a turn may take for each byte that it reads: JSON of many small values takes the most."""
REFUSED_SIZE: Final = 64 << 10
"""Bytes that a refused request may leave: counters, caches and names that it made known, but not its body."""
GARBAGE_SIZE: Final = 4 << 20
"""Bytes of all frames of a life that only a garbage collection frees."""
LARGE_SIZE: Final = 96 << 10
"""Bytes from which on every second frame's memory is measured: small ones can hide in REFUSED_SIZE."""
MEASURED: Final = 0.03
"""Share of smaller frames whose memory is measured, which is slow."""
LOST_SIZE: Final = 0 if sys.version_info >= (3, 12, 5) else 4 << 10
"""Bytes that CPython may lose at each stop of tracemalloc: its tracebacks, 2 to 4 KiB here (python/cpython#121390)."""


class Bug(Exception):
    """A frame broke a promise."""


class SlowBug(Bug):
    """A turn took more CPU time than allowed. It is tried again before it counts."""


class TooSlow(BaseException):
    """A turn hangs; no core can catch this."""


def _too_slow(*_: object) -> None:
    raise TooSlow


signal.signal(signal.SIGVTALRM, _too_slow)


class Meter:
    """Measures turns. longest_s: of all turns, for reports. lost_size: bytes that this process may have lost so far by
    measuring memory."""

    lost_size = 0

    def __init__(self, turn_s_per_byte: float = 0.0, peak_size: int = PEAK_SIZE) -> None:
        """turn_s_per_byte: for readers without slices, whose time is proportional to the size."""
        self.longest_s = 0.0
        self.kept_size = 0  # bytes that the last measured frame left
        self._turn_s_per_byte = turn_s_per_byte
        self._peak_size = peak_size
        self._is_memory = False

    def turn(self, size: int, act: Callable[..., Result], *args: Any) -> Result:
        """Run one turn, for size bytes. SlowBug: it takes too long. Bug: within `memory`, it takes too much memory."""
        if self._is_memory:
            return self._measured(size, act, *args)
        allowed_s = TURN_S + self._turn_s_per_byte * size
        began_s = time.thread_time()
        result = act(*args)
        took_s = time.thread_time() - began_s
        self.longest_s = max(self.longest_s, took_s)
        if took_s > allowed_s and took_s > (allowed_s := allowed_s * slowness()):
            found, expected = took_s * 1000, allowed_s * 1000
            raise SlowBug(f"{found:.0f} ms of CPU in {_name(act)}, expected at most {expected:.0f}")
        return result

    def _measured(self, size: int, act: Callable[..., Result], *args: Any) -> Result:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        result = act(*args)
        peak = tracemalloc.get_traced_memory()[1] - before
        allowed = self._peak_size + PEAK_PER_BYTE * size
        if peak > allowed:
            raise Bug(f"{peak:,} bytes of memory for {size:,} in {_name(act)}, expected at most {allowed:,}")
        return result

    def memory(self, act: Callable[[], None]) -> None:
        """Run a frame's turns; measure their memory instead of their time."""
        self._is_memory = True
        tracemalloc.start()
        try:
            act()
            self.kept_size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            Meter.lost_size += LOST_SIZE
            self._is_memory = False


def _name(act: object) -> str:
    return getattr(act, "__qualname__", "a call")


def interrupted(act: Callable[[], None], seconds: float) -> None:
    """Run act. SlowBug: it hangs."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        act()
    except TooSlow:
        raise SlowBug(f"more than {seconds:.1f} s of CPU for a frame: it hangs") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
