"""Producer: sends messages, with retries where that is safe, within one total timeout.

    async with Producer("orders-group", namesrv="127.0.0.1:9876", trace=True) as producer:
        result = await producer.send(Message("orders", b"...", keys="order-1"))

Retries follow DefaultMQProducerImpl of the RocketMQ 5.x client (see `sending`): after a failed attempt the next one
goes to another broker. A send to a queue chosen by name, order key or selector is tried again only when its broker gets
another master, because another queue would not be the one chosen.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from mqtrail.clock import now_ms
from mqtrail.net import NAMESRV_DEFAULT
from mqtrail.wire import (
    EXT_MSG_REGION,
    PROPERTY_CORRELATION_ID,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TTL,
    REGION_DEFAULT,
    BatchItem,
    Message,
    MessageExt,
    MessageQueue,
    MQError,
    Recall,
    RecallHandle,
    RequestCode,
    group_of,
    validate_group,
    validate_topic,
)

from ..core import (
    BrokerUnknown,
    ClientClosed,
    ClientError,
    ClientInstance,
    Composer,
    InvalidMessage,
    NoReply,
    Outgoing,
    ProducerConfig,
    SendFailed,
    SendHook,
    SendResult,
    TopicRoute,
    TransactionChecker,
    make_reply,
    unique_ids,
    with_namespace,
)
from ..trace import ClientTracer
from .accumulator import Accumulator
from .degraded import Degraded, DegradedCounts, Journey, Target
from .detector import Detector
from .selectors import Selector, queue_of_hash
from .sending import RETRY_CODES, Sender
from .splitting import BatchOutcome, split_batches

if TYPE_CHECKING:
    from ..delivery import Delivery

__all__ = ["RETRY_CODES", "Producer"]

GREETING_WAIT_MS = 500  # how long a request waits for this client's registration at the brokers of a new topic


class Producer:
    """Sends messages of one producer group. Use it with `async with`, from one event loop.

    namesrv: "host:port;host:port". trace: write a trace record of every send to the trace topic. client: share the
    connections of another ClientInstance instead of opening new ones. hooks: further listeners.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        *,
        trace: bool = False,
        config: ProducerConfig | None = None,
        client: ClientInstance | None = None,
        hooks: Sequence[SendHook] = (),
    ) -> None:
        validate_group(group)
        self.group = group
        self.config = config or ProducerConfig()
        self._own_client = client is None
        self._client = client or ClientInstance(namesrv, self.config.instance)
        self._namespace = self._client.config.namespace
        self._wire_group = with_namespace(self._namespace, group)
        self._tracer = ClientTracer(self._client, group, self.config.trace) if trace else None
        self._composer = Composer(group, self.config, unique_ids().next, self._namespace)
        # The tracer does nothing at the start of an attempt.
        self._sender = Sender(
            self._client, self._composer, self.config, [*([self._tracer] if self._tracer else []), *hooks], hooks
        )
        self._accumulator = (
            Accumulator(self._send_now, self._client.spawn, self.config) if self.config.auto_batch else None
        )
        self._degraded = (
            Degraded(
                self._client,
                self._wire_group,
                self.config,
                self._compose,
                self._send_directly,
                self._sender.note_not_sent,
            )
            if self.config.degrade
            else None
        )
        self._detecting: asyncio.Task[None] | None = None
        self._running = False

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
        """The trace of this producer, when trace is on."""
        return self._tracer

    @property
    def degraded(self) -> DegradedCounts:
        """What a local file keeps, with `degrade` on; else zeros."""
        return DegradedCounts() if self._degraded is None else self._degraded.counts

    async def start(self) -> None:
        """Start the producer. Connections are opened by the first send."""
        if self._running:
            return
        await self._client.start()
        self._client.add_producer(self._wire_group, self._checker())
        if self._tracer is not None:
            self._tracer.start()
        if self._sender.faults is not None and self.config.latency_detect:
            detector = Detector(self._client, self._sender.faults, self.config, self._sender.any_topic)
            self._detecting = self._client.spawn(detector.run())
        self._running = True
        if self._degraded is not None:
            await self._degraded.start()

    async def close(self) -> None:
        """Stop sending, flush the trace, leave the group. Sends in flight fail; collected messages are sent first."""
        if not self._running:
            return
        if self._accumulator is not None:
            await self._accumulator.drain()
        self._running = False
        if self._detecting is not None:
            self._detecting.cancel()
        try:
            if self._degraded is not None:
                await self._degraded.close()
            if self._tracer is not None:
                await self._tracer.close()
            await self._client.remove_producer(self._wire_group)
        finally:
            if self._own_client:
                await self._client.close()

    # -- sending ---------------------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message | Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | int | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message, or several of one topic as one batch, and return the broker's answer.

        queue: send to this queue. order_key: send to the queue of this key, always the same one while the topic's
        queues do not change. select: send to the queue that this function chooses (see `selectors`). Pass at most one
        of the three. timeout_ms: for permit, route, connection and all attempts together (None: send_timeout_ms). With
        auto_batch, a single message without order_key, select and timeout_ms is sent in a batch.

        Raises InvalidMessage, RouteNotFound, NoNameServer, a Refusal that a retry would not change, or SendFailed,
        whose `maybe_stored` says whether the message may be stored. The message of a cancelled send may be stored too.
        With `degrade`, RouteNotFound, NoNameServer and SendFailed (not TooManyInFlight) become a result with the status
        DEGRADED: a local file keeps the message, and this or a later producer of the group sends it under its msg_id.
        """
        if not self._running:
            raise self._closed()
        plain = timeout_ms is None and order_key is None and select is None
        if plain and self._accumulator is not None and isinstance(message, Message):
            self._composer.check(message)  # an invalid message must not fail the rest of its batch
            return await self._accumulator.send(message, queue)
        target = Target(queue, order_key, select, timeout_ms)
        if self._degraded is not None:
            return await self._degraded.send(message, target)
        return await self._send_directly(message, target)

    async def _send_directly(
        self, message: Message | Sequence[Message], target: Target, journey: Journey | None = None
    ) -> SendResult:
        queue, order_key, select, timeout_ms = target
        out = self._compose(message)
        if journey is not None:
            journey.begin(out)
        timeout_ms = self.config.send_timeout_ms if timeout_ms is None else timeout_ms
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        route = self._client.known_route(out.wire_topic) or await self._sender.route(out, deadline)
        if order_key is not None or select is not None:
            if not route.publish_queues:
                route = await self._sender.route_with_queues(out, route, deadline)
            first = message if isinstance(message, Message) else message[0]
            queue = self._chosen(route, out, first, queue, order_key, select)
        return await self._sender.send(out, route, queue, deadline)

    def _compose(self, message: Message | Sequence[Message]) -> Outgoing:
        return self._composer.message(message) if isinstance(message, Message) else self._composer.batch(message)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | int | None = None,
        select: Selector | None = None,
    ) -> str:
        """Send a message without waiting for an acknowledgement, and return its id. Raises as `send`."""
        if not self._running:
            raise self._closed()
        out = self._composer.message(message)
        deadline = asyncio.get_running_loop().time() + self.config.send_timeout_ms / 1000
        route = self._client.known_route(out.wire_topic) or await self._sender.route(out, deadline)
        if order_key is not None or select is not None:
            queue = self._chosen(route, out, message, queue, order_key, select)
        await self._sender.oneway(out, route, queue, deadline)
        return out.msg_id

    async def send_encoded(self, topic: str, items: Sequence[BatchItem], *, queue: MessageQueue) -> SendResult:
        """Send messages whose properties are encoded already, as one batch; for feeds of many messages.

        items: properties with WAIT=true, without UNIQ_KEY, which this adds, and without a delay; they are not checked.
        Raises as `send`. With `degrade`, no file keeps them.
        """
        if not self._running:
            raise self._closed()
        out = self._composer.encoded(topic, items)
        deadline = asyncio.get_running_loop().time() + self.config.send_timeout_ms / 1000
        route = self._client.known_route(out.wire_topic) or await self._sender.route(out, deadline)
        return await self._sender.send(out, route, queue, deadline)

    async def send_all(
        self, messages: Iterable[Message], *, size_max: int | None = None, timeout_ms: int | None = None
    ) -> list[BatchOutcome]:
        """Send any number of messages, in order, in as few batches as possible; return the outcome of each batch.

        size_max: maximum bytes of a batch (None: body_size_max). timeout_ms: of each batch. Messages that cannot be
        batched, such as delayed ones, are sent alone. A failed batch does not stop the others. Raises InvalidMessage
        before anything is sent.
        """
        pieces = list(split_batches(messages, min(size_max or self.config.body_size_max, self.config.body_size_max)))
        outcomes = []
        for piece in pieces:
            try:
                result = await self.send(piece if len(piece) > 1 else piece[0], timeout_ms=timeout_ms)
            except InvalidMessage:
                raise
            except MQError as error:
                outcomes.append(BatchOutcome(piece, None, error))
            else:
                outcomes.append(BatchOutcome(piece, result, None))
        return outcomes

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic, for `queue` and selectors. Raises RouteNotFound, NoNameServer."""
        route = await self._client.route(with_namespace(self._namespace, topic))
        return self._plain(route, topic)

    # -- request and reply -----------------------------------------------------------------------------------------

    async def request(
        self,
        message: Message,
        timeout_ms: int | None = None,
        *,
        queue: MessageQueue | None = None,
        order_key: str | int | None = None,
        select: Selector | None = None,
    ) -> MessageExt:
        """Send a message, wait for a consumer's reply to it (see `reply`), and return the reply.

        timeout_ms: for the send and the reply together (None: send_timeout_ms). Raises as `send`, and NoReply if the
        request was stored and no reply arrived in time.
        """
        loop = asyncio.get_running_loop()
        timeout_ms = self.config.send_timeout_ms if timeout_ms is None else timeout_ms
        deadline = loop.time() + timeout_ms / 1000
        correlation_id, reply = self._client.replies.expect(self.config.requests_max)
        properties = {
            PROPERTY_CORRELATION_ID: correlation_id,
            PROPERTY_REPLY_TO_CLIENT: self.client_id,
            PROPERTY_TTL: str(timeout_ms),
        }
        message = replace(message, properties={**message.properties, **properties})
        try:
            await self._greet(message.topic, deadline)
            left_ms = max(1, int((deadline - loop.time()) * 1000))
            sent = await self.send(message, queue=queue, order_key=order_key, select=select, timeout_ms=left_ms)
            try:
                async with asyncio.timeout_at(deadline):
                    return await reply
            except TimeoutError:
                raise NoReply(
                    f"request {sent.msg_id} to topic {message.topic!r} was stored, but no reply arrived within "
                    f"{timeout_ms} ms: check that a consumer replies and is connected to broker "
                    f"{sent.queue.broker_name}"
                ) from None
        finally:
            self._client.replies.forget(correlation_id)

    async def reply(
        self, request: "MessageExt | Delivery", body: bytes, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Reply to a message that was sent by `request`.

        Raises NotARequest, and as `send`: the broker refuses a reply that it cannot deliver to the waiting client.
        """
        return await self.send(make_reply(request, body), timeout_ms=timeout_ms)

    async def _greet(self, topic: str, deadline: float) -> None:
        """Register with the brokers of a topic not used before, so that a reply can reach this client."""
        wire_topic = with_namespace(self._namespace, topic)
        if self._client.known_route(wire_topic) is None:
            template = (self.config.default_topic, self.config.default_topic_queue_nums)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._client.route(wire_topic, template)
            except TimeoutError:
                raise SendFailed(topic, "", [], "the timeout expired before the request was sent") from None
            # A broker that is down must not delay a request to another one.
            await asyncio.wait([self._client.spawn(self._client.heartbeat())], timeout=GREETING_WAIT_MS / 1000)

    # -- delayed messages ------------------------------------------------------------------------------------------

    async def recall(self, topic: str, handle: str, *, timeout_ms: int | None = None) -> str:
        """Recall a delayed message before it is delivered, and return its id.

        handle: `recall_handle` of the send's result (of messages with delay_ms or deliver_at_ms, at brokers >= 5.3.2).
        Raises InvalidParameter for an invalid handle, BrokerUnknown, and the broker's Refusal.
        """
        if not self._running:
            raise self._closed()
        validate_topic(topic)
        if group_of(topic) is not None:
            raise InvalidMessage(
                f"found topic {topic!r} in a recall, expected the topic the message was sent to, not a retry or "
                "dead-letter topic"
            )
        parts = RecallHandle.decode(handle)
        wire_topic = with_namespace(self._namespace, topic)
        template = (self.config.default_topic, self.config.default_topic_queue_nums)
        route = await self._client.route(wire_topic, template)
        try:
            address = self._client.master(parts.broker_name, route)
        except BrokerUnknown:
            if not route.publish_queues:
                raise
            address = self._client.master(route.publish_queues[0].broker_name, route)
        ext = {
            "producerGroup": self._wire_group,
            "topic": wire_topic,
            "recallHandle": handle,
            "bname": parts.broker_name,
        }
        timeout_ms = self.config.send_timeout_ms if timeout_ms is None else timeout_ms
        done, region = False, REGION_DEFAULT
        try:
            reply = await self._client.call(address, RequestCode.RECALL_MESSAGE, ext, timeout_ms=timeout_ms)
            done, region = True, reply.ext.get(EXT_MSG_REGION) or REGION_DEFAULT
            return reply.ext.get("msgId") or parts.msg_id
        finally:
            if self._tracer is not None:
                self._tracer.record_seldom(
                    Recall(
                        time_stamp=now_ms(),
                        region_id=region,
                        group_name=self.group,
                        topic=topic,
                        msg_id=parts.msg_id,
                        is_success=done,
                    )
                )

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _send_now(self, message: Message | Sequence[Message], queue: MessageQueue | None) -> SendResult:
        return await self.send(message, queue=queue, timeout_ms=self.config.send_timeout_ms)

    def _checker(self) -> TransactionChecker | None:
        """Answers the checks of this group's transactions; None if the group has no transactions."""
        return None

    def _closed(self) -> ClientClosed:
        return ClientClosed("the producer is not running: use it within `async with Producer(...)`")

    def _plain(self, route: TopicRoute, topic: str) -> list[MessageQueue]:
        if route.topic == topic:
            return list(route.publish_queues)
        return [replace(queue, topic=topic) for queue in route.publish_queues]

    def _chosen(
        self,
        route: TopicRoute,
        out: Outgoing,
        message: Message,
        queue: MessageQueue | None,
        order_key: str | int | None,
        select: Selector | None,
    ) -> MessageQueue | None:
        """The queue of an order key or a selector; None if the topic has no queue, which the send reports."""
        if sum(one is not None for one in (queue, order_key, select)) > 1:
            raise ClientError("found more than one of queue, order_key and select, expected at most one")
        queues = self._plain(route, out.topic)
        if not queues:
            return None
        if order_key is not None:
            return queue_of_hash(queues, order_key)
        assert select is not None
        chosen = select(queues, message)
        if chosen is None:
            raise InvalidMessage(
                f"the selector chose no queue of topic {out.topic!r}, expected one of its {len(queues)} queues"
            )
        return chosen
