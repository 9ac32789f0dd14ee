"""The event loop of a process of ours, and what its collector is told."""

import asyncio
from collections.abc import Callable

GC_THRESHOLD = 50_000  # allocations between two looks for garbage; the path makes none that is cyclic


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes uvloop's loop where it is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
