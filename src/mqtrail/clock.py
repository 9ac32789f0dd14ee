"""The wall clock of programs. Cores do not read it: they get the time (design: sans-IO)."""

import time


def now_ms() -> int:
    """Return the wall clock as epoch ms."""
    return time.time_ns() // 1_000_000
