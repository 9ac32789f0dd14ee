"""Tasks that run until the server stops."""

import asyncio
from contextlib import suppress


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait for its end; None: it was not started. An error that ended it before is raised."""
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
