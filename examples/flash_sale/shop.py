"""The shop: takes a unit for each buyer, and sends the orders."""

import asyncio
import contextlib

from mqtrail.client import Message, Producer
from mqtrail.wire import MQError, SendStatus

from .sale import PRODUCER, Plant, Sale
from .stock import Stock, Taken, connect

PAUSE_S = 0.01  # between two buyers who get a unit: the sale shall last long enough for a kill in its middle
POLL_S, AWAY_S, COLLECT_S = 0.02, 0.5, 2.0
BATCH = 100


async def serve(sale: Sale) -> None:
    """Sell to all buyers and send their orders, until cancelled. A restarted shop meets all buyers again."""
    async with connect(sale) as client, Producer(f"{sale.name}-shop", sale.namesrv, trace=True, config=PRODUCER) as p:
        stock = Stock(sale, client)
        await stock.open(sale.stock)
        await asyncio.gather(sell(sale, stock), send_orders(sale, stock, p))


MEMORY: list[str] = []  # the unsent orders of a shop with Plant.LOST_ORDERS


async def sell(sale: Sale, stock: Stock) -> None:
    """Let each buyer click twice at the same time."""
    for number in range(sale.buyers):
        clicks = await asyncio.gather(*(click(sale, stock, f"buyer-{number}") for _ in range(2)))
        if Taken.TAKEN in clicks:
            await asyncio.sleep(PAUSE_S)
    print(f"all buyers were served, {await stock.left()} units are left")


async def click(sale: Sale, stock: Stock, buyer: str) -> Taken:
    """Take a unit, if there is one and this buyer has none."""
    order = f"{sale.name}-{buyer}"
    if Plant.OVERSELL in sale.plants:  # sent first; when the stock says no it cannot be called back
        await stock.add_unsent(order)
        return await stock.take(buyer, order, to_send=False)
    if Plant.LOST_ORDERS in sale.plants:  # taken in Redis, but to be sent only in this process
        taken = await stock.take(buyer, order, to_send=False)
        if taken is Taken.TAKEN:
            MEMORY.append(order)
        return taken
    return await stock.take(buyer, order)


async def send_orders(sale: Sale, stock: Stock, producer: Producer) -> None:
    """Send the orders that Redis holds, and strike out those that a broker has. After a kill between, send again."""
    while True:
        if Plant.LOST_ORDERS in sale.plants:
            await asyncio.sleep(COLLECT_S)  # "in batches, for speed"
            orders, MEMORY[:] = MEMORY[:], []
        else:
            orders = await stock.unsent(BATCH)
        stored = await asyncio.gather(*(send(sale, producer, order) for order in orders))
        await stock.mark_sent([order for order, done in zip(orders, stored, strict=True) if done])
        if not any(stored):
            await asyncio.sleep(AWAY_S if stored else POLL_S)


async def send(sale: Sale, producer: Producer, order: str) -> bool:
    """Send an order; return whether it is stored for sure."""
    with contextlib.suppress(MQError):  # the client logs it, and the order stays in Redis
        result = await producer.send(Message(sale.orders_topic, order.encode(), keys=order))
        return result.status is SendStatus.SEND_OK
    return False
