"""A shop and its billing, each with a SQLite database: no order without a bill, and none billed twice.

python examples/inbox_outbox.py serve &      # relay and billing; kill -9 it whenever you like
python examples/inbox_outbox.py order 3      # three orders, each with its message in one transaction
python examples/inbox_outbox.py bills
"""

import asyncio
import contextlib
import sqlite3
import sys
from pathlib import Path

from mqtrail.client import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    Inbox,
    Message,
    Outbox,
    OutboxRelay,
    Producer,
    RelayConfig,
)

SHOP, BILLING = Path("shop.db"), Path("billing.db")
OUTBOX = Outbox()


def open_shop() -> sqlite3.Connection:
    """Connect to the shop's database."""
    return sqlite3.connect(SHOP, timeout=30)


def open_billing() -> sqlite3.Connection:
    """Connect to the database of the billing."""
    return sqlite3.connect(BILLING, timeout=30)


INBOX = Inbox("billing", open_billing)


def prepare() -> None:
    """Create all tables that do not exist."""
    OUTBOX.create(open_shop)
    INBOX.create()
    for connect, statement in (
        (open_shop, "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)"),
        (open_billing, "CREATE TABLE IF NOT EXISTS bills (order_id INTEGER)"),
    ):
        with contextlib.closing(connect()) as connection, connection:
            connection.execute(statement)


def order(item: str) -> int:
    """Store an order and its message: both, or neither."""
    with contextlib.closing(open_shop()) as connection, connection:  # commits at the end, rolls back if it raises
        order_id = connection.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
        assert order_id is not None
        OUTBOX.add(connection, Message("orders", str(order_id).encode(), keys=f"order-{order_id}"), order_key=item)
    return order_id


@INBOX
def bill(m: Delivery, connection: sqlite3.Connection) -> None:
    """Bill an order. The inbox commits the bill and the message's id together."""
    connection.execute("INSERT INTO bills VALUES (?)", (int(m.body),))


def bills() -> list[int]:
    """Return the orders that were billed."""
    with contextlib.closing(open_billing()) as connection:
        return [row[0] for row in connection.execute("SELECT order_id FROM bills ORDER BY order_id")]


async def serve(namesrv: str, *, config: ConsumerConfig | None = None) -> None:
    """Send what is in the outbox, and bill what arrives, until cancelled."""
    config = config or ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    async with (
        Producer("shop", namesrv, trace=True) as producer,
        Consumer("billing", namesrv, {"orders": "*"}, trace=True, config=config) as consumer,
    ):
        relay = OutboxRelay(OUTBOX, open_shop, producer, config=RelayConfig(lease_ms=10_000))
        await asyncio.gather(relay.run(), consumer.run(bill))


def main(arguments: list[str], namesrv: str = "127.0.0.1:9876") -> None:
    """The program."""
    prepare()
    match arguments:
        case ["serve"]:
            asyncio.run(serve(namesrv))
        case ["order", count]:
            print("orders", [order("socks") for _ in range(int(count))])
        case ["bills"]:
            print("billed", bills())
        case _:
            sys.exit("usage: inbox_outbox.py serve | order COUNT | bills")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
