"""A client in a process of its own, with a clock of its own: `python -m tests.pipeline.labelled.worker VALUES`.

VALUES is JSON: namesrv, folder, topic, group, clock_ms (how much its clock is ahead), and either `sends`, bodies to
send with a producer, or nothing: then it consumes, by the plans of the bodies. It prints one JSON line for each sent id
and for each begin and end of a handler, and ends in good order when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from mqtrail import clock


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


async def work(values: dict[str, Any]) -> None:
    from tests.pipeline.labelled.scene import SLOW_S, plans

    from mqtrail.client import (
        ConsumeFromWhere,
        Consumer,
        ConsumerConfig,
        Delivery,
        InstanceConfig,
        Producer,
        ProducerConfig,
        RetryLater,
        TraceConfig,
    )
    from mqtrail.wire import Message

    trace = TraceConfig(spool_dir=Path(values["folder"]), linger_ms=values.get("linger_ms", 20), retry_ms=50)
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    if "sends" in values:
        config = ProducerConfig(trace=trace)
        async with Producer(values["group"], values["namesrv"], trace=True, config=config) as producer:
            for body in values["sends"]:
                sent = await producer.send(Message(values["topic"], body.encode(), keys=f"k-{body}"))
                say(what="sent", msg_id=sent.msg_id)
            await over
        return

    async def handle(delivery: Delivery) -> None:
        say(what="begun", msg_id=delivery.msg_id)
        plan, _, count = plans(delivery.body).get(values["short"], "ok").partition(":")
        if plan == "hang":
            await asyncio.Event().wait()
        if plan == "slow":
            await asyncio.sleep(SLOW_S)
        say(what="handled", msg_id=delivery.msg_id)
        if plan == "fail" and (not count or delivery.attempt <= int(count)):
            raise RetryLater()

    settings = ConsumerConfig(
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        rebalance_ms=200,
        offset_persist_ms=100,
        close_wait_ms=300,
        poll_suspend_ms=1_000,
        instance=InstanceConfig(route_refresh_ms=500, heartbeat_ms=1_000),
        trace=trace,
    )
    subscriptions = {values["topic"]: "*"}
    async with Consumer(values["group"], values["namesrv"], subscriptions, config=settings, trace=True) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await over
        running.cancel()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    ahead_ms = given.get("clock_ms", 0)
    real = clock.now_ms
    clock.now_ms = lambda: real() + ahead_ms  # before the client's modules import it
    if ahead_ms:
        real_time = time.time
        time.time = lambda: real_time() + ahead_ms / 1_000
    asyncio.run(work(given))
