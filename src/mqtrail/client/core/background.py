"""Keep background work running after any error.

Rebalance, pull, heartbeat, commit, route refresh, transaction checks and trace run until their client is closed. Each
of them handles failures of the cluster (MQError, OSError). Any other exception is a bug in the client: it is logged,
and the work continues.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mqtrail.net import Log
from mqtrail.wire import MQError

log = Log()

PAUSE_MS = 1_000  # after the first unexpected error of a task; doubles with each further one in a row
PAUSE_MAX_MS = 30_000


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
