"""How slow this machine is now: limits of CPU time hold for a machine that does nothing else."""

import statistics
import time
from collections.abc import Callable

IDLE_S = 0.012
"""CPU time of the loop on two idle cores of an Intel Xeon with Python 3.11: 11.5 ms, the median of 15."""


def cpu_s(act: Callable[[], object]) -> float:
    """Return the CPU time of this thread for one call."""
    began_s = time.thread_time()
    act()
    return time.thread_time() - began_s


def slowness() -> float:
    """Return how many times longer than IDLE_S a loop takes now, at least 1.

    Neighbours on the same core and a full cache make the CPU time of everything longer, not only its wall time.
    """
    return max(1.0, statistics.median(cpu_s(_loop) for _ in range(3)) / IDLE_S)


def _loop() -> None:
    total = 0
    for number in range(200_000):
        total += number
