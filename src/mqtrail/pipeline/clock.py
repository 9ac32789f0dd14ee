"""The pipeline's clock."""

import time


def now_ms() -> int:
    """The time, epoch ms: as_of_ms for a judgement of now."""
    return time.time_ns() // 1_000_000
