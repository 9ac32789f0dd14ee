"""The stock, in Redis: one script takes a unit and writes the order, or refuses. All of it, or nothing.

<sale>:stock     units left
<sale>:orders    buyer -> order: who has one. A second click finds it here
<sale>:unsent    orders whose message has no acknowledgement yet: an outbox in Redis
"""

from collections.abc import Awaitable, Sequence
from enum import StrEnum
from typing import Any, cast

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError

from .sale import Sale, SaleError

# Nothing else runs in Redis while a script runs: no other click comes between the question and the taking.
TAKE = """
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 'AGAIN' end
if tonumber(redis.call('GET', KEYS[1]) or '0') < 1 then return 'SOLD_OUT' end
redis.call('DECR', KEYS[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if ARGV[3] == '1' then redis.call('RPUSH', KEYS[3], ARGV[2]) end
return 'TAKEN'
"""

RETRIES, RETRY_S = 200, 0.1  # a Redis that is away may come back for 20 s
EXPECTED = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


class Taken(StrEnum):
    """What a click gets."""

    TAKEN = "TAKEN"
    SOLD_OUT = "SOLD_OUT"
    AGAIN = "AGAIN"  # this buyer has an order already


def connect(sale: Sale, *, retries: int = RETRIES) -> redis.asyncio.Redis:
    """Return a client that waits for a Redis that is away. A repeated TAKE is harmless: it answers AGAIN."""
    retry = Retry(ConstantBackoff(RETRY_S), retries)
    return redis.asyncio.Redis.from_url(sale.redis, decode_responses=True, retry=retry, socket_timeout=5)


async def check_redis(sale: Sale) -> None:
    """Raise SaleError unless a Redis answers, and would keep the stock in a crash."""
    async with connect(sale, retries=0) as client:
        try:
            found = {name: str((await client.config_get(name)).get(name)) for name in EXPECTED}
        except (RedisError, OSError) as error:
            raise SaleError(
                f"found no Redis at {sale.redis} ({error}), expected one: start it with `redis-server --appendonly yes "
                "--appendfsync always`, or pass --redis redis://HOST:PORT"
            ) from error
    for name, value in EXPECTED.items():
        if found[name] != value:
            raise SaleError(
                f"found a Redis with {name} {found[name]!r}, expected {value!r}: a crash would lose stock and orders; "
                f"run `redis-cli config set {name} {value}`"
            )


class Stock:
    """The stock of a sale."""

    def __init__(self, sale: Sale, client: redis.asyncio.Redis) -> None:
        self._keys = [f"{sale.name}:{part}" for part in ("stock", "orders", "unsent")]
        self._stock, self._orders, self._unsent = self._keys
        self._client = client
        self._take = client.register_script(TAKE)

    async def open(self, units: int) -> None:
        """Put units on sale, unless the sale is open."""
        await self._client.set(self._stock, units, nx=True)

    async def take(self, buyer: str, order: str, *, to_send: bool = True) -> Taken:
        """Take a unit for a buyer, and note the order, also as one to send."""
        return Taken(str(await self._take(keys=self._keys, args=[buyer, order, int(to_send)])))

    async def add_unsent(self, order: str) -> None:
        """Note an order to send, without a unit. Only a shop with Plant.OVERSELL does that."""
        await _answer(self._client.rpush(self._unsent, order))

    async def unsent(self, count_max: int) -> list[str]:
        """Return the oldest orders that are to be sent."""
        return list(await _answer(self._client.lrange(self._unsent, 0, count_max - 1)))

    async def mark_sent(self, orders: Sequence[str]) -> None:
        """Note that a broker has these orders."""
        async with self._client.pipeline() as pipeline:
            for order in orders:
                pipeline.lrem(self._unsent, 1, order)
            await pipeline.execute()

    async def left(self) -> int:
        """Return how many units are left."""
        return int(await self._client.get(self._stock) or 0)

    async def orders(self) -> list[str]:
        """Return all orders, one for each unit that was taken."""
        return list(await _answer(self._client.hvals(self._orders)))


async def _answer(answer: Awaitable[Any] | Any) -> Any:
    """Await an answer: redis-py types commands as those of both of its clients."""
    return await cast(Awaitable[Any], answer)
