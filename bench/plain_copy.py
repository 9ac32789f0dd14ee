"""The peer of `mirror run`: pulls the queues of a topic and sends what it finds to the same queue numbers elsewhere.

    python -m bench.plain_copy TOPIC SOURCE TARGET

Nothing is saved, resumed, checked or guarded. It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from mqtrail.client import Admin, Producer
from mqtrail.wire import Message, MessageQueue

PULL_COUNT = 256
PAUSE_S = 0.01


async def copy_queue(source: Admin, producer: Producer, queue: MessageQueue) -> None:
    """Copy one queue, from its first message on."""
    offset = 0
    while True:
        result = await source.pull(queue, offset, PULL_COUNT)
        found = list(result.open(queue, offset))
        if not found:
            await asyncio.sleep(PAUSE_S)
            continue
        copies = [
            Message(
                one.topic,
                one.body,
                tags=one.tags,
                keys=one.keys,
                properties={name: one.properties[name] for name in ("source", "trace")},
            )
            for one in found
        ]
        await producer.send(copies, queue=queue)
        offset = found[-1].queue_offset + 1


async def main(topic: str, source: str, target: str) -> None:
    """Copy all queues at once."""
    async with Admin(source) as admin, Producer("plain-copy", target) as producer, asyncio.TaskGroup() as tasks:
        for queue in await admin.queues(topic):
            tasks.create_task(copy_queue(admin, producer, queue))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
