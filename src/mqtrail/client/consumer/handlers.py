"""Handlers: the application's functions, found by topic and tag, with limited concurrency.

    @consumer.handler("orders", "paid || refunded")
    async def bill(m: Delivery) -> None: ...

A coroutine function runs on the event loop, a plain one in a bounded thread pool.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from mqtrail.wire import SUBSCRIBE_ALL, SubscriptionData

from ..core import ClientError, RetryLater
from ..delivery import Batch, Delivery
from .subscriptions import Expression, Sql

HandlerResult = RetryLater | None
Handler = Callable[[Delivery], Awaitable[HandlerResult] | HandlerResult]
BatchHandler = Callable[[Batch], Awaitable[HandlerResult] | HandlerResult]
AnyHandler = Callable[[Any], Awaitable[HandlerResult] | HandlerResult]


@dataclass(slots=True)
class _TopicHandlers:
    """Handlers of one topic: by tag, and one for all other tags."""

    tags: dict[str, AnyHandler] = field(default_factory=dict)
    rest: AnyHandler | None = None
    sql: Sql | None = None

    def expression(self) -> Expression:
        """The expression that covers all of them."""
        if self.sql is not None:
            return self.sql
        return SUBSCRIBE_ALL if self.rest is not None else " || ".join(self.tags)


class Handlers:
    """The handlers of one consumer."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicHandlers] = {}
        self._common: AnyHandler | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._batches = False

    def __bool__(self) -> bool:
        return self._common is not None or bool(self._topics)

    @property
    def batches(self) -> bool:
        """Whether they take batches."""
        return self._batches

    def put(self, handler: AnyHandler, *, batches: bool) -> None:
        """Register the handler of all topics without one. Raises ClientError if handlers of the other kind exist."""
        self._check_kind(batches)
        self._common = handler

    def put_topic(self, topic: str, expression: Expression, handler: AnyHandler, *, batches: bool) -> Expression:
        """Register a topic's handler; returns the expression of all its handlers. Raises ClientError if they clash."""
        self._check_kind(batches)
        known = self._topics.get(topic)
        entry = known or _TopicHandlers()
        if isinstance(expression, Sql):
            if known is not None:
                raise ClientError(f"topic {topic!r} already has a handler: expected no other beside one with Sql")
            entry.sql, entry.rest = expression, handler
        else:
            if entry.sql is not None:
                raise ClientError(f"topic {topic!r} has a handler with Sql: expected no other beside it")
            tags = SubscriptionData.build(topic, expression).tags_set
            if taken := [tag for tag in tags if tag in entry.tags]:
                raise ClientError(f"topic {topic!r}, tag {taken[0]!r} already has a handler: expected one")
            if not tags and entry.rest is not None:
                raise ClientError(f"topic {topic!r} already has a handler of all tags: expected one")
            if batches and known is not None:
                raise ClientError(f"topic {topic!r} already has a handler of batches: expected one")
            entry.tags.update(dict.fromkeys(tags, handler))
            if not tags:
                entry.rest = handler
        self._topics[topic] = entry
        return entry.expression()

    def _check_kind(self, batches: bool) -> None:
        if self and batches is not self._batches:
            raise ClientError("found handlers of single messages and of batches, expected one kind for each consumer")
        self._batches = batches

    def find(self, delivery: Delivery) -> AnyHandler | None:
        """Return a message's handler: of its topic and tag, else of its topic, else the common one, else None."""
        entry = self._topics.get(delivery.topic)
        if entry is None:
            return self._common
        return entry.tags.get(delivery.tags) or entry.rest or self._common

    async def call(self, delivery: Delivery | Batch) -> HandlerResult:
        """Run the handler of a delivery or batch and return its result. Raises ClientError if there is none."""
        first = delivery if isinstance(delivery, Delivery) else delivery[0]
        handler = self.find(first)
        if handler is None:
            raise ClientError(f"found no handler for topic {first.topic!r}, tag {first.tags!r}: register one")
        if is_async(handler):
            answer: Any = handler(delivery)
        elif self._pool is not None:
            answer = await asyncio.get_running_loop().run_in_executor(self._pool, handler, delivery)
        else:
            answer = await asyncio.to_thread(handler, delivery)
        result: HandlerResult = await answer if inspect.isawaitable(answer) else answer
        return result

    async def run(self, items: AsyncIterator[Delivery | Batch], concurrency: int) -> None:
        """Call handlers for the items, `concurrency` at the same time, until the items end.

        After a cancellation, plain functions finish in their threads; their messages are delivered again.
        """
        pool = self._pool = ThreadPoolExecutor(concurrency, "mqtrail-handler")
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(concurrency):
                    workers.create_task(self._work(items))
        finally:
            self._pool = None
            pool.shutdown(wait=False, cancel_futures=True)

    async def _work(self, items: AsyncIterator[Delivery | Batch]) -> None:
        while (item := await anext(items, None)) is not None:
            if isinstance(item, Delivery) and self._batches:
                item = Batch.of(item)
            async with item.process():
                result = await self.call(item)
                if isinstance(result, RetryLater):
                    raise result


def is_async(handler: AnyHandler) -> bool:
    """Whether the handler is a coroutine function, so that it needs no thread."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
