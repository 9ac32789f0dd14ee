"""The event loop of a process: which one it is, and what ends it."""

import asyncio
import signal
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if uvloop is installed; None: use asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call stop at SIGINT and SIGTERM, each time. Call it in the loop of the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
