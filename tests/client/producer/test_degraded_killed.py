"""Degraded producers that are killed with kill -9, while they hold and while they send from their files."""

import asyncio
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from mqtrail.client import Producer, ProducerConfig
from mqtrail.wire import PROPERTY_UNIQ_KEY, RequestCode, decode_properties
from tests.waiting import until

from ..fake_cluster import HANG_UP, FakeBroker, fake_cluster

SCRIPT = """
import asyncio, sys
from pathlib import Path
from mqtrail.client import Message, Producer, ProducerConfig, SendStatus

async def main(namesrv, folder, first, count):
    config = ProducerConfig(degrade=True, degrade_dir=Path(folder), degrade_retry_ms=5, degrade_retry_max_ms=20)
    async with Producer("PG", namesrv, config=config) as producer:
        print("ready", flush=True)
        for number in range(int(first), int(first) + int(count)):
            sent = await producer.send(Message("orders", b"%d" % number), order_key="a")
            print(number, sent.msg_id, flush=True)
        await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""
EACH = 25


def has_more(broker: FakeBroker, count: int) -> bool:
    """Whether the broker stored more messages than count."""
    return len(broker.stored("orders")) > count


@pytest.mark.slow
async def test_kills_lose_nothing_and_repeat_one_at_a_time(tmp_path: Path) -> None:
    """What a killed producer was told as kept arrives under its id, in order; a kill repeats at most one message."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    told: dict[str, int] = {}
    kills = 0
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        is_up = False
        broker.script = lambda command: HANG_UP if command.code == RequestCode.SEND_MESSAGE_V2 and not is_up else None
        for turn in range(5):
            is_up = turn % 2 == 1
            command = [sys.executable, "-c", SCRIPT, cluster.namesrv, str(tmp_path), str(turn * EACH), str(EACH)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            before = len(broker.stored("orders"))
            lines = chance.randrange(1, EACH)
            for _ in range(lines + 1):
                line = await asyncio.to_thread(process.stdout.readline)
                if line != "ready\n":
                    number, msg_id = line.split()
                    told[msg_id] = int(number)
            if is_up:
                await until(partial(has_more, broker, before))
            process.kill()
            kills += 1
            for line in (await asyncio.to_thread(process.communicate))[0].splitlines():
                number, msg_id = line.split()
                told[msg_id] = int(number)
        is_up = True
        config = ProducerConfig(degrade=True, degrade_dir=tmp_path, degrade_retry_ms=5)
        async with Producer("PG", cluster.namesrv, config=config) as last:
            await until(lambda: last.degraded.waiting == 0)
        arrived = [message.msg_id for message in broker.messages("orders")]
        sent = {decode_properties(one.ext["i"])[PROPERTY_UNIQ_KEY] for one in broker.of(RequestCode.SEND_MESSAGE_V2)}
    assert set(told) <= set(arrived), f"{seed=}"
    assert set(arrived) <= sent
    assert len(arrived) - len(set(arrived)) <= kills, f"{seed=}"
    order = [told[msg_id] for msg_id in dict.fromkeys(arrived) if msg_id in told]
    assert order == sorted(order), f"{seed=}"
    assert list(tmp_path.rglob("*.spool")) == []
