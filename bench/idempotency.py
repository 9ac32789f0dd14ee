"""The figure of an idempotent handler with Redis: what it adds to a message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from statistics import median
from typing import Any

import redis.asyncio
from tests.client.idempotency.helpers import delivered
from tests.databases.redis_server import redis_server

from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from mqtrail.client import Delivery, Idempotent, RedisClaims

MESSAGES, MESSAGES_QUICK = 5_000, 500  # of a round
WARM_MESSAGES = 500
BAR_US = 150.0


@figure("idempotency", "what an idempotent handler with Redis adds to a message", seconds=30)
def idempotency(session: Session) -> Iterator[Row]:
    """One connection; a message through the handler and two bare round trips take turns."""
    session.alone()
    count = MESSAGES_QUICK if session.quick else MESSAGES
    handled, bare = [], []
    try:
        with redis_server() as server:
            for number in range(session.rounds):
                found = asyncio.run(timed(server.port, count, f"{number}"))
                handled.append(found[0])
                bare.append(found[1])
    except AssertionError as error:
        raise CannotMeasure(str(error)) from error
    yield Row(
        "idempotency/redis",
        "what an idempotent handler with Redis takes beyond two bare round trips on its connection, p50 of messages",
        "µs",
        [ours - two for ours, two in zip(handled, bare, strict=True)],
        bar=Bar("<=", BAR_US, of="ours"),
        more={"messages": count},
    )
    yield Row(
        "idempotency/handled",
        "a message through an idempotent handler that does nothing, p50 of messages",
        "µs",
        handled,
        bare,
        "two bare round trips (PING)",
        more={"messages": count},
    )


async def timed(port: int, count: int, name: str) -> tuple[float, float]:
    """Return the µs of a message, and of two round trips, p50."""
    client: Any = redis.asyncio.Redis(port=port)
    once = Idempotent("bench", RedisClaims(client))

    @once
    async def handle(delivery: Delivery) -> None:
        return None

    async def twice() -> None:
        await client.ping()
        await client.ping()

    handled, bare = [], []
    try:
        for number in range(-WARM_MESSAGES, count):
            message = delivered(f"{name}-{number}")
            took_us = await _took_us(handle(message)), await _took_us(twice())
            if number >= 0:
                handled.append(took_us[0])
                bare.append(took_us[1])
    finally:
        await client.aclose()
    assert once.counts.effects == count + WARM_MESSAGES, "each message is new"
    return median(handled), median(bare)


async def _took_us(act: Awaitable[object]) -> float:
    begun = time.perf_counter_ns()
    await act
    return (time.perf_counter_ns() - begun) / 1000
