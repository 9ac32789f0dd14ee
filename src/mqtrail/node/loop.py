"""The event loop and the garbage collector's threshold of a server process."""

import asyncio
from collections.abc import Callable

GC_THRESHOLD = 50_000  # allocations between two collections; serving requests creates no cyclic garbage


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if uvloop is installed; None: use asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
