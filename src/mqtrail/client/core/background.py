"""Keep background work running after any error, and the event loop free of long computations.

Rebalance, pull, heartbeat, commit, route refresh, transaction checks and trace run until their client is closed. Each
of them handles failures of the cluster (MQError, OSError). Any other exception is a bug in the client: it is logged,
and the work continues.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from mqtrail.net import Log
from mqtrail.wire import MQError

log = Log()

T = TypeVar("T")

PAUSE_MS = 1_000  # after the first unexpected error of a task; doubles with each further one in a row
PAUSE_MAX_MS = 30_000
AT_ONCE_MAX: Final = 4_096  # queues that the event loop itself goes through: some milliseconds


async def keep_going(
    task: str, turn: Callable[[], Awaitable[object]], done: Callable[[], bool] = lambda: False, **keys: Any
) -> None:
    """Call turn repeatedly until done() is true or until cancelled; turn must wait for something.

    If a turn raises, the exception is logged with its traceback, and the next turn waits PAUSE_MS or longer. task,
    keys: for the log.
    """
    pause_ms = PAUSE_MS
    while not done():
        try:
            await turn()
        except Exception:
            log.exception("client.task_failed", task=task, pause_ms=pause_ms, **keys)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MAX_MS)
        else:
            pause_ms = PAUSE_MS


def report(event: str, error: Exception, **keys: Any) -> None:
    """Log a failure that the caller recovers from: a line for a failure of the cluster, else the traceback too."""
    if isinstance(error, MQError | OSError):
        log.sparse.warning(event, error=str(error), **keys)
    else:
        log.sparse.error(event, error=repr(error), exc_info=error, **keys)


async def off_loop(count: int, act: Callable[..., T], *args: Any) -> T:
    """Return act(*args), which goes through count queues; many of them in a thread, so that the loop serves others.

    A name server can claim 131,072 queues in a few bytes.
    """
    return act(*args) if count <= AT_ONCE_MAX else await asyncio.to_thread(act, *args)
