"""The time of the door."""

import time


def now_ms() -> int:
    """Return the current time, epoch ms."""
    return time.time_ns() // 1_000_000
