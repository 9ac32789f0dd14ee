"""The outbox with a real broker: relays are killed with kill -9, and each order has one effect."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    Inbox,
    OutboxRelay,
    Producer,
    RelayConfig,
)
from mqtrail.testing import embedded_async
from tests.waiting import until

from .helpers import Shop

QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    rebalance_ms=50,
    offset_persist_ms=20,
    close_wait_ms=500,
    ordered=True,
)

RELAY = """
import asyncio, sqlite3, sys
from mqtrail.client import Outbox, OutboxRelay, Producer, ProducerConfig, RelayConfig

async def main(path, namesrv):
    async with Producer("shop", namesrv, config=ProducerConfig(send_timeout_ms=150)) as producer:
        config = RelayConfig(poll_ms=5, lease_ms=300, batch_count_max=10, retry_ms=10)
        relay = OutboxRelay(Outbox(), lambda: sqlite3.connect(path, timeout=60), producer, config=config)
        print("ready", flush=True)
        await relay.run()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_an_order_and_its_message_are_one(tmp_path: Path) -> None:
    """From the business transaction to the consumer's, with one id."""
    shop = Shop(tmp_path / "shop.db")
    async with embedded_async() as broker, Producer("shop", broker.namesrv_address) as producer:
        relay = OutboxRelay(shop.outbox, shop.connect, producer, config=RelayConfig(poll_ms=5))
        running = asyncio.create_task(relay.run())
        ids = [shop.place(number, "customer-1") for number in range(5)]
        shop.place(99, "customer-1", commit=False)
        async with Consumer("CG", broker.namesrv_address, {"orders": "*"}, config=QUICK) as consumer:
            found: list[tuple[str, bytes]] = []
            while len(found) < 5:
                delivery = await anext(consumer)
                await delivery.ack()
                found.append((delivery.msg_id, delivery.body))
        assert found == [(msg_id, str(number).encode()) for number, msg_id in enumerate(ids)]
        relay.close()
        await running


@pytest.mark.slow
async def test_killed_relays_have_one_effect_for_each_order(tmp_path: Path) -> None:
    """Two relays, one killed and replaced again and again, while orders are placed: every order once, in order."""
    shop = Shop(tmp_path / "shop.db")
    shop.run("CREATE TABLE bills (number INT, customer TEXT)")
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    inbox = Inbox("billing", lambda: sqlite3.connect(shop.path, timeout=60))
    inbox.create()
    async with embedded_async() as broker:
        consumer = Consumer("billing", broker.namesrv_address, config=QUICK)

        @consumer.handler("orders")
        @inbox
        def bill(m: Delivery, connection: Any) -> None:
            connection.execute("INSERT INTO bills VALUES (?, ?)", (int(m.body), m.keys[0]))

        def start() -> subprocess.Popen[str]:
            command = [sys.executable, "-c", RELAY, str(shop.path), broker.namesrv_address]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        relays = [start(), start()]
        try:
            async with consumer:
                running = asyncio.create_task(consumer.run())
                for number in range(120):
                    customer = f"c{number % 3}"
                    await asyncio.to_thread(shop.place, number, customer, keys=customer)
                    if number % 30 == 29:
                        victim = relays.pop(0)
                        assert victim.stdout is not None
                        assert await asyncio.to_thread(victim.stdout.readline) == "ready\n"
                        await asyncio.to_thread(time.sleep, chance.random() * 0.2)
                        victim.kill()
                        victim.communicate()
                        relays.append(start())
                await until(lambda: shop.run("SELECT count(*) FROM bills") == [(120,)], 120)
            await running
        finally:
            for relay in relays:
                relay.kill()
                relay.communicate()
    for one in range(3):
        rows = shop.run("SELECT number FROM bills WHERE customer = ? ORDER BY rowid", f"c{one}")
        assert [row[0] for row in rows] == list(range(one, 120, 3)), f"{seed=}"
    assert shop.run("SELECT count(*) FROM mqtrail_outbox WHERE sent_ms = 0") == [(0,)]
