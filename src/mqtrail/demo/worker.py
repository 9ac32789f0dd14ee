"""A consumer process of the `ledger` group that the demo kills: `python -m mqtrail.demo.worker NAMESRV FOLDER`.

It handles payments until kill -9, before it has committed its offsets, so the broker delivers the payments again.
"""

import asyncio
import sys
from pathlib import Path

from .plan import LEDGER
from .shop import GroupHandler, consumer_of
from .truth import TruthLog

HANDLE_S = 0.1  # so that the kill comes during a handling


async def work(namesrv: str, folder: Path) -> None:
    """Consume until killed; print the count after each hundred messages."""
    with TruthLog(folder) as truth:
        handler = GroupHandler(LEDGER, truth, seconds=HANDLE_S)
        async with consumer_of(LEDGER, namesrv) as consumer:
            running = asyncio.create_task(consumer.run(handler.handle))
            printed = -1
            while not running.done():
                if handler.handled // 100 != printed:
                    printed = handler.handled // 100
                    print(handler.handled, flush=True)
                await asyncio.wait({running}, timeout=0.1)
            await running


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2])))
