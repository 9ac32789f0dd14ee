"""The consumers for code without asyncio, on the background loop of facade.py.

with SyncConsumer("billing", "127.0.0.1:9876", {"orders": "*"}) as consumer:
    for m in consumer:
        with m.process():
            bill(m.body)
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from mqtrail.net import NAMESRV_DEFAULT
from mqtrail.wire import SUBSCRIBE_ALL, MessageExt, MessageQueue

from ..consumer import Allocation, BatchHandler, Consumer, Expression, Handler, LitePullConsumer, RebalanceListener
from ..core import ClientError, ConsumerConfig, LitePullConfig
from ..delivery import Batch, ConsumerStats, Delivery
from .facade import Facade, background, entered

D = TypeVar("D", bound=Delivery | Batch)
H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)


class _Settled(Generic[D]):
    """The methods that SyncDelivery and SyncBatch share."""

    def __init__(self, item: D) -> None:
        self._item = item

    @contextmanager
    def process(self, *, reraise: bool = False) -> Iterator[D]:
        """Settle it when the block ends; see Delivery.process."""
        with entered(self._item.process(reraise=reraise)):
            yield self._item

    def ack(self) -> None:
        """Settle it as a success."""
        background().run(self._item.ack())

    def retry(self, delay_level: int = 0, detail: str = "", *, suspend_ms: int | None = None) -> None:
        """Settle it as a failure: it is delivered again. For the arguments see RetryLater."""
        background().run(self._item.retry(delay_level, detail, suspend_ms=suspend_ms))


class SyncDelivery(_Settled[Delivery]):
    """A Delivery for code without asyncio. It also has all attributes of the Delivery."""

    @property
    def delivery(self) -> Delivery:
        return self._item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._item, name)


class SyncBatch(_Settled[Batch]):
    """A Batch for code without asyncio."""

    @property
    def batch(self) -> Batch:
        return self._item

    def __len__(self) -> int:
        return len(self._item)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._item)


class SyncConsumer(Facade[Consumer]):
    """Consumer for code without asyncio; for the arguments see Consumer."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        subscriptions: Mapping[str, Expression] | None = None,
        *,
        trace: bool = False,
        config: ConsumerConfig | None = None,
        allocation: Allocation | None = None,
        on_rebalance: RebalanceListener | None = None,
    ) -> None:
        self._registrations: list[Callable[[Consumer], object]] = []

        def make() -> Consumer:
            consumer = Consumer(
                group,
                namesrv,
                subscriptions,
                trace=trace,
                config=config,
                allocation=allocation,
                on_rebalance=on_rebalance,
            )
            for register in self._registrations:
                register(consumer)
            return consumer

        super().__init__(make)

    @overload
    def handler(self, topic: H, /) -> H: ...

    @overload
    def handler(self, topic: str, expression: Expression = SUBSCRIBE_ALL, /) -> Callable[[H], H]: ...

    def handler(self, topic: Any, expression: Expression = SUBSCRIBE_ALL, /) -> Any:
        """Register a handler for `run`, before the first call that connects; see Consumer.handler."""
        return self._register(lambda consumer: consumer.handler, topic, expression)

    @overload
    def batch_handler(self, topic: B, /) -> B: ...

    @overload
    def batch_handler(self, topic: str, expression: Expression = SUBSCRIBE_ALL, /) -> Callable[[B], B]: ...

    def batch_handler(self, topic: Any, expression: Expression = SUBSCRIBE_ALL, /) -> Any:
        """Register a handler of batches for `run`; see Consumer.batch_handler."""
        return self._register(lambda consumer: consumer.batch_handler, topic, expression)

    def _register(self, of: Callable[[Consumer], Any], topic: Any, expression: Expression) -> Any:
        if self._client is not None:
            raise ClientError("the consumer is already in use: register handlers before the first other call")
        if callable(topic):
            self._registrations.append(lambda consumer: of(consumer)(topic))
            return topic

        def register(handler: Any) -> Any:
            self._registrations.append(lambda consumer: of(consumer)(topic, expression)(handler))
            return handler

        return register

    def __iter__(self) -> Iterator[SyncDelivery]:
        while (delivery := self.receive()) is not None:
            yield delivery

    def receive(self, timeout_ms: int | None = None) -> SyncDelivery | None:
        """Return the next message; None after timeout_ms without one, or once the consumer is closed."""
        delivery = background().run(_next(self._get(), timeout_ms))
        return SyncDelivery(delivery) if delivery is not None else None

    def batches(self) -> Iterator[SyncBatch]:
        """Iterate over batches of at most `batch_count_max` messages of one queue."""
        while (batch := background().run(_next(self._get().batches(), None))) is not None:
            yield SyncBatch(batch)

    def run(self, handler: Handler | BatchHandler | None = None) -> None:
        """Call handler for each message, in a thread of a pool, until the consumer is closed by another thread."""
        background().run(self._get().run(handler))

    def subscribe(self, topic: str, expression: Expression = SUBSCRIBE_ALL) -> None:
        """Subscribe to a topic or change its expression; see Consumer.subscribe."""
        background().run(_call(self._get().subscribe, topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """End the subscription of a topic."""
        background().run(_call(self._get().unsubscribe, topic))

    def suspend(self) -> None:
        """Stop pulling until `resume`; messages already pulled are still delivered."""
        background().run(_call(self._get().suspend))

    def resume(self) -> None:
        """Pull again after `suspend`."""
        background().run(_call(self._get().resume))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this member consumes now, sorted."""
        return self._get().assignment

    @property
    def stats(self) -> ConsumerStats:
        """Counts and rates, topic by topic: pulled, consumed, failed, undecodable."""
        return self._get().stats


class SyncLitePullConsumer(Facade[LitePullConsumer]):
    """LitePullConsumer for code without asyncio; for what each method does and raises, see LitePullConsumer."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        subscriptions: Mapping[str, Expression] | None = None,
        *,
        trace: bool = False,
        config: LitePullConfig | None = None,
        allocation: Allocation | None = None,
        on_rebalance: RebalanceListener | None = None,
    ) -> None:
        super().__init__(
            lambda: LitePullConsumer(
                group,
                namesrv,
                subscriptions,
                trace=trace,
                config=config,
                allocation=allocation,
                on_rebalance=on_rebalance,
            )
        )

    def __iter__(self) -> Iterator[MessageExt]:
        while (message := background().run(_next(self._get(), None))) is not None:
            yield message

    def poll(self, timeout_ms: int | None = None, count_max: int | None = None) -> list[MessageExt]:
        """Return messages of one queue; an empty list after timeout_ms without any."""
        return background().run(self._get().poll(timeout_ms, count_max))

    def assign(self, queues: Iterable[MessageQueue], filters: Mapping[str, Expression] | None = None) -> None:
        """Read exactly these queues."""
        background().run(self._get().assign(list(queues), filters))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's readable queues, sorted."""
        return background().run(self._get().queues(topic))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at offset."""
        background().run(self._get().seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue a queue at the first message that it keeps."""
        background().run(self._get().seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue a queue at its end, with the next message stored."""
        background().run(self._get().seek_to_end(queue))

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling these queues until `resume`; messages already pulled are still delivered."""
        background().run(_call(self._get().pause, *queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Pull these queues again."""
        background().run(_call(self._get().resume, *queues))

    def position(self, queue: MessageQueue) -> int | None:
        """The offset after the last message taken; None while the start is unknown."""
        return self._get().position(queue)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the offsets after all messages taken, or the given ones."""
        background().run(self._get().commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset; None if there is none."""
        return background().run(self._get().committed(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time (epoch ms); else the queue's end."""
        return background().run(self._get().offset_for_timestamp(queue, timestamp_ms))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues assigned to this consumer now, sorted."""
        return self._get().assignment

    @property
    def stats(self) -> ConsumerStats:
        """Counts and rates, topic by topic: pulled, consumed, failed, undecodable."""
        return self._get().stats


async def _call(function: Any, *arguments: Any) -> None:
    """Call a function on the loop: the client's state is changed only there."""
    function(*arguments)


async def _next(items: Any, timeout_ms: int | None) -> Any:
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            return await anext(items)
    except (TimeoutError, StopAsyncIteration):
        return None
