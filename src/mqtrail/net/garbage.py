"""How often a process that handles requests or messages collects garbage: they make no cycles, so rarely."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GC_THRESHOLD: Final = 50_000  # allocations between two collections


def collect_rarely() -> None:
    """Collect now; then rarely, and never again what exists now, since it lives until the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Do so for the time of a run."""
    known = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*known)
        gc.unfreeze()
