"""The outbox on real PostgreSQL and MariaDB."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from mqtrail.client import Message, Outbox, OutboxRelay, RelayConfig
from tests.client.outbox.helpers import Sink

from .servers import DatabaseServer

pytestmark = pytest.mark.databases


async def test_relays_share_the_work_in_order(database: DatabaseServer) -> None:
    """Three relays run, each lets go in turn: every committed message once, each key in order, then deleted."""
    url = database.new_database().replace(f"{database.scheme}://", f"{database.driver}://")
    engine = create_engine(url)
    outbox = Outbox()
    outbox.create(engine.connect)
    outbox.create(engine.connect)
    body = bytes(range(256))
    sink = Sink()
    producer: Any = sink
    failed: set[bytes] = set()

    def fails(message: Message) -> bool:
        first = message.body not in failed and message.body.endswith(b"7")
        failed.add(message.body)
        return first

    sink.fails = fails
    config = RelayConfig(poll_ms=5, retry_ms=20, batch_count_max=8, keep_ms=-1, prune_ms=0)
    relays = [OutboxRelay(outbox, engine.connect, producer, config=config) for _ in range(3)]
    running = [asyncio.create_task(relay.run()) for relay in relays]

    def place(number: int) -> None:
        with engine.begin() as connection:
            key = ["a", "A", "中", None][number % 4]
            outbox.add(connection, Message("orders", body + str(number).encode(), tags="é"), order_key=key)

    for number in range(60):
        await asyncio.to_thread(place, number)
        if number % 20 == 19:
            await asyncio.wait_for(_none_waits(relays[-1]), 60)
            relays.pop(0).close()
            await running.pop(0)
            if not relays:
                break
    numbers = [(key, int(sent.removeprefix(body))) for _, sent, key in sink.sent]
    assert sorted(number for _, number in numbers) == list(range(60))
    for key in ("a", "A", "中"):
        own = [number for one, number in numbers if one == key]
        assert own == sorted(own)
    assert len({msg_id for msg_id, _, _ in sink.sent}) == 60
    rest = OutboxRelay(outbox, engine.connect, producer, config=config)
    await rest._turn()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM mqtrail_outbox")).scalar() == 0
    await rest._let_go()
    engine.dispose()


async def _none_waits(relay: OutboxRelay) -> None:
    while await relay.waiting():
        await asyncio.sleep(0.01)


async def test_a_lease_ends_by_the_clock_of_the_database(database: DatabaseServer) -> None:
    """A relay that died is followed by another one after its lease, whatever the clocks of their machines say."""
    url = database.new_database().replace(f"{database.scheme}://", f"{database.driver}://")
    engine = create_engine(url)
    outbox = Outbox()
    outbox.create(engine.connect)
    with engine.begin() as connection:
        outbox.add(connection, Message("orders", b"1"))
    sink: Any = Sink()
    dead = OutboxRelay(outbox, engine.connect, sink, config=RelayConfig(lease_ms=6_000))
    heir = OutboxRelay(outbox, engine.connect, sink, config=RelayConfig(lease_ms=6_000))
    assert await dead._database(dead._read) != []
    assert await heir.step() == 0
    with engine.begin() as connection:
        connection.execute(text("UPDATE mqtrail_outbox_lease SET until_ms = until_ms - 6000"))
    assert await heir.step() == 1
    engine.dispose()
