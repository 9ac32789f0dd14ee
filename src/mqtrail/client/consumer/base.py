"""ConsumerBase: what Consumer and LitePullConsumer share: joining a group, leaving it, answering brokers.

Source: DefaultMQPushConsumerImpl.start and shutdown, DefaultLitePullConsumerImpl, RocketMQ client.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, Self

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import RETRY_PREFIX, SUBSCRIBE_ALL, ConsumerData, MQError, RemotingCommand, validate_group

from ..core import (
    ClientInstance,
    ConsumeHook,
    ConsumerConfig,
    LitePullConfig,
    Names,
    OnUndecodable,
    RouteNotFound,
)
from ..delivery import SAMPLE_MS, ConsumerStats
from ..trace import ClientTracer
from .listening import RebalanceListener, notify
from .offsets import open_offsets
from .rebalance import Share
from .serving import ConsumerServices, ServedConsumer
from .subscriptions import Expression, Subscriptions

log = Log()


class ConsumerBase(ServedConsumer, ABC):
    """One member of a consumer group. Use it with `async with`, from one event loop."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        subscriptions: Mapping[str, Expression] | None,
        trace: bool,
        config: ConsumerConfig | LitePullConfig,
        client: ClientInstance | None,
        hooks: Sequence[ConsumeHook],
        on_rebalance: RebalanceListener | None,
    ) -> None:
        validate_group(group)
        self._own_client = client is None
        self._client = client or ClientInstance(namesrv, config.instance)
        self._names = Names(group, self._client.config.namespace)
        self.group = self._names.group
        self._on_rebalance = on_rebalance
        self._subscriptions = Subscriptions(self._names)
        for topic, expression in (subscriptions or {}).items():
            self._subscriptions.put(topic, expression)
        self._tracer = ClientTracer(self._client, group, config.trace, "CONSUME") if trace else None
        self._hooks = (*((self._tracer,) if self._tracer is not None else ()), *hooks)
        self._offsets = open_offsets(self._client, self.group, self._hooks, config)
        self._stats = ConsumerStats()
        self._delivers_undecodable = config.on_undecodable is OnUndecodable.DELIVER
        self._services = ConsumerServices(self)
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False
        self.started_ms = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """The client id, as brokers know it."""
        return self._client.client_id

    @property
    def tracer(self) -> ClientTracer | None:
        """The trace of this consumer, when trace is on."""
        return self._tracer

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and start pulling. A topic that does not exist yet is consumed once it is created.

        Raises NoNameServer, a Refusal for an Sql filter that a broker rejects, and ClientError if there is no
        subscription (Consumer) or if another consumer of this host has the offset file open (broadcasting).
        """
        if self._running:
            return
        self._prepare()
        self.started_ms = now_ms()
        await self._client.start()
        try:
            await self._offsets.open()
            self._client.add_consumer(self)
            self._running = True
            for topic in self._subscriptions:
                try:
                    await self._client.route(topic)
                except RouteNotFound:
                    log.sparse.info("consumer.topic_missing", group=self.group, topic=topic)
            await self._subscriptions.check(self._client)
            await self._client.heartbeat()
        except BaseException:
            self._running = False
            await self._client.remove_consumer(self.group)
            await self._offsets.close()
            if self._own_client:
                await self._client.close()
            raise
        if self._tracer is not None:
            self._tracer.start()
        work = [*self._periodic_work(), self._client.every(SAMPLE_MS, self._sample)]
        self._tasks = [self._client.spawn(one) for one in work]

    async def close(self) -> None:
        """Stop pulling, wait for handlers, commit, leave the group, flush the trace.

        A handler that closes its consumer must start this in a separate task, because it waits for handlers.
        """
        if not self._running:
            return
        self._running = False
        self._ending()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        try:
            await self._end()
            await self._offsets.close()
            if self._tracer is not None:
                await self._tracer.close()
            await self._client.remove_consumer(self.group)
        finally:
            if self._own_client:
                await self._client.close()

    @abstractmethod
    def _prepare(self) -> None:
        """Prepare the start. Raises ClientError."""

    @abstractmethod
    def _periodic_work(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The work that runs until close."""

    @abstractmethod
    def _ending(self) -> None:
        """Wake all callers that wait for messages: the consumer is closing."""

    @abstractmethod
    async def _end(self) -> None:
        """Stop pulling, wait for handlers, commit."""

    @abstractmethod
    def _wake(self) -> None:
        """Rebalance soon."""

    @abstractmethod
    def _restart_pulls(self, topic: str) -> None:
        """The subscription of a topic changed."""

    async def _sample(self) -> None:
        self._stats.sample()

    # -- subscriptions ---------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: Expression = SUBSCRIBE_ALL) -> None:
        """Subscribe to a topic or change its expression, also while running; brokers are notified immediately.

        Raises InvalidParameter for a bad name, SubscriptionParseFailed for tags that are only separators.
        """
        self._subscriptions.put(topic, expression)
        if self._running:
            self._client.spawn(self._resubscribed(self._names.topic(topic)))

    def unsubscribe(self, topic: str) -> None:
        """End the subscription of a topic, also while running: its queues are released, settled offsets committed."""
        if self._subscriptions.remove(self._names.topic(topic)) and self._running:
            self._client.spawn(self._resubscribed(self._names.topic(topic)))

    async def _resubscribed(self, topic: str) -> None:
        try:
            await self._subscriptions.check(self._client, [topic])
        except (MQError, OSError) as error:
            log.error("consumer.subscription_refused", group=self.group, topic=topic, error=str(error))
        await self._client.heartbeat()
        self._restart_pulls(topic)
        self._wake()

    async def _shared_out(self, topic: str, share: Share) -> None:
        """The queues of a topic changed: notify brokers and the application."""
        self._subscriptions.renew(topic)
        await self._client.heartbeat()
        if self._on_rebalance is not None and not topic.startswith(RETRY_PREFIX):
            mine = sorted(share.pulled | share.popped)
            await notify(self._on_rebalance, self._names.plain(topic), list(share.all), mine)

    # -- for operators and the instance ----------------------------------------------------------------------------

    @property
    def names(self) -> Names:
        """Converts the names of its topics and group."""
        return self._names

    @property
    def delivers_undecodable(self) -> bool:
        """Whether messages that cannot be read go to the application."""
        return self._delivers_undecodable

    @property
    def stats(self) -> ConsumerStats:
        """Counts and rates, topic by topic: pulled, consumed, failed, undecodable."""
        return self._stats

    @property
    def namesrv_addresses(self) -> tuple[str, ...]:
        """The addresses of its name servers, host:port."""
        return self._client.name_servers.addresses

    @abstractmethod
    def heartbeat_data(self) -> ConsumerData:
        """This member's entry in heartbeats."""

    def topics(self) -> Sequence[str]:
        """The topics whose routes this consumer needs."""
        return self._subscriptions.topics()

    def on_route_changed(self) -> None:
        """Rebalance: queues may have been added or removed."""
        if self._running:
            self._wake()

    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Answer a broker's request to this group."""
        return self._services.serve(command)
