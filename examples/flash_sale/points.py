"""The points worker: credits points for each payment, once. Inbox, points and outbox are one transaction."""

import asyncio
import sqlite3

from mqtrail.client import Consumer, Delivery, Inbox, Message, Outbox, OutboxRelay, Producer, RelayConfig

from .sale import CONSUMER, PRODUCER, Plant, Sale, order_of

OUTBOX = Outbox()


async def serve(sale: Sale) -> None:
    """Credit points for what is paid, until cancelled."""
    group = f"{sale.name}-points"
    inbox = Inbox(group, sale.open_points, key=order_of)
    inbox.create()
    prepare(sale)

    @inbox
    def credit_once(m: Delivery, connection: sqlite3.Connection) -> None:
        credit(sale, m, connection)

    def credit_each_time(m: Delivery) -> None:
        with sale.points() as connection:
            credit(sale, m, connection)

    async with (
        Producer(group, sale.namesrv, trace=True, config=PRODUCER) as producer,
        Consumer(group, sale.namesrv, {sale.paid_topic: "*"}, trace=True, config=CONSUMER) as consumer,
    ):
        relay = OutboxRelay(OUTBOX, sale.open_points, producer, config=RelayConfig(lease_ms=3_000))
        handler = credit_each_time if Plant.DOUBLE_POINTS in sale.plants else credit_once
        await asyncio.gather(relay.run(), consumer.run(handler))


def prepare(sale: Sale) -> None:
    """Create the tables."""
    OUTBOX.create(sale.open_points)
    with sale.points() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS points (order_id TEXT, points INTEGER)")


def credit(sale: Sale, m: Delivery, connection: sqlite3.Connection) -> None:
    """Credit points, and say so: the message makes the effect visible in the trace."""
    connection.execute("INSERT INTO points VALUES (?, 10)", (order_of(m),))
    OUTBOX.add(connection, Message(sale.credited_topic, m.body, keys=order_of(m)))
