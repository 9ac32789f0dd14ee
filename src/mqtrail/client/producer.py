"""Producer: sends messages, again where that is safe, within one time-out for everything.

    async with Producer("orders-group", namesrv="127.0.0.1:9876", trace=True) as producer:
        result = await producer.send(Message("orders", b"...", keys="order-1"))

What is tried again, and where, follows DefaultMQProducerImpl of the RocketMQ 5.x client: a
failed attempt goes to another broker; a queue that was asked for by name or by order key is not left, so such a send
has one attempt.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Self

from mqtrail.client.config import NAMESRV_DEFAULT, ProducerConfig
from mqtrail.client.errors import AttemptFailure, ClientClosed, RouteNotFound, SendFailed
from mqtrail.client.faults import FaultTable, QueueChooser
from mqtrail.client.hooks import SendHook
from mqtrail.client.identity import now_ms, unique_ids
from mqtrail.client.instance import ClientInstance
from mqtrail.client.outgoing import Composer, Outgoing, SendResult, send_result
from mqtrail.client.routes import TopicRoute
from mqtrail.client.trace import ClientTracer
from mqtrail.net import ConnectError, NetError
from mqtrail.wire import (
    FLAG_ONEWAY,
    Message,
    MessageQueue,
    MQError,
    Refusal,
    ResponseCode,
    SendStatus,
    java_string_hash,
    refusal_for,
    validate_group,
)

# Codes after which another attempt, on another broker, may succeed.
RETRY_CODES = frozenset(
    int(code)
    for code in (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    )
)


class Producer:
    """Sends messages of one producer group. Use it with `async with`, from one event loop.

    namesrv: "host:port;host:port". trace: write a trace record of every send to the trace topic. client: share the
    connections of another ClientInstance instead of opening own ones. hooks: further listeners.
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
        self._tracer = ClientTracer(self._client, group, self.config.trace) if trace else None
        self._hooks: list[SendHook] = [*([self._tracer] if self._tracer else []), *hooks]
        self._start_hooks = tuple(hooks)  # the tracer has nothing to do there
        self._composer = Composer(group, self.config, unique_ids().next)
        self._choosers: dict[str, QueueChooser] = {}
        self._faults = FaultTable() if self.config.latency_fault else None
        self._running = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """How this client is known to the brokers."""
        return self._client.client_id

    @property
    def tracer(self) -> ClientTracer | None:
        """The trace of this producer, when trace is on."""
        return self._tracer

    async def start(self) -> None:
        """Begin. No connection is made yet: the first send asks for a route."""
        if self._running:
            return
        await self._client.start()
        self._client.add_producer(self.group)
        if self._tracer is not None:
            self._tracer.start()
        self._running = True

    async def close(self) -> None:
        """Stop sending, bring the trace home, leave the group. Sends that wait for their answer fail."""
        if not self._running:
            return
        self._running = False
        try:
            if self._tracer is not None:
                await self._tracer.close()
            await self._client.remove_producer(self.group)
        finally:
            if self._own_client:
                await self._client.close()

    async def send(
        self,
        message: Message | Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message, or several of one topic as one batch, and return what the broker said.

        queue: exactly there. order_key: to the queue that belongs to this key, as long as the topic keeps its queues.
        timeout_ms: for route, connection and all attempts together (None: send_timeout_ms).
        Raises InvalidMessage, RouteNotFound, NoNameServer, a Refusal that trying again would not change, or SendFailed,
        which tells whether the message may be stored nevertheless. A cancelled send may be stored as well.
        """
        if not self._running:
            raise ClientClosed("the producer is not running: use it within `async with Producer(...)`")
        out = self._composer.message(message) if isinstance(message, Message) else self._composer.batch(message)
        timeout_ms = self.config.send_timeout_ms if timeout_ms is None else timeout_ms
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        route = self._client.known_route(out.topic) or await self._fetch_route(out, deadline)
        if order_key is not None:
            queue = self._queue_of_key(route, order_key)
        return await self._attempts(out, route, queue, deadline)

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, order_key: str | None = None
    ) -> str:
        """Hand a message to the socket and return its id; whether it was stored nobody learns. Raises as `send`."""
        if not self._running:
            raise ClientClosed("the producer is not running: use it within `async with Producer(...)`")
        loop = asyncio.get_running_loop()
        out = self._composer.message(message)
        deadline = loop.time() + self.config.send_timeout_ms / 1000
        route = self._client.known_route(out.topic) or await self._fetch_route(out, deadline)
        if order_key is not None:
            queue = self._queue_of_key(route, order_key)
        begun = loop.time()
        self._begin(out, queue or self._choose(route, None))
        assert out.queue is not None
        command = self._composer.command(out, out.queue, out.started_ms)
        command.flag = FLAG_ONEWAY
        try:
            address = out.address = self._client.master(out.queue.broker_name, route)
            await self._client.pool.oneway(address, command, max(1, int((deadline - loop.time()) * 1000)))
        except MQError as error:
            failure = self._failure(out, error, int((loop.time() - begun) * 1000))
            self._failed(out, failure, final=True)
            raise SendFailed(out.topic, out.msg_id, [failure]) from error
        for hook in self._hooks:
            hook.send_oneway(out, int((loop.time() - begun) * 1000))
        return out.msg_id

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _attempts(
        self, out: Outgoing, route: TopicRoute, fixed: MessageQueue | None, deadline: float
    ) -> SendResult:
        loop = asyncio.get_running_loop()
        out.attempt_max = 1 if fixed is not None else 1 + self.config.retry_count
        failures: list[AttemptFailure] = []
        stored: SendResult | None = None
        last_broker: str | None = None
        while True:
            begun = loop.time()
            queue = fixed or self._choose(route, last_broker)
            self._begin(out, queue)
            cause: MQError
            try:
                address = out.address = self._client.master(queue.broker_name, route)
                connection = self._client.pool.connection(address)
                if connection is None:
                    async with asyncio.timeout_at(max(deadline, begun + 0.001)):
                        connection = await self._client.pool.connect(address)
                frame = partial(self._composer.frame, out, queue, out.started_ms)
                reply = await connection.request_frame(frame, max(1, math.ceil((deadline - loop.time()) * 1000)))
            except asyncio.CancelledError:
                cost_ms = int((loop.time() - begun) * 1000)
                text = "cancelled by the caller"
                self._failed(
                    out, AttemptFailure(queue.broker_name, out.address, "TIMEOUT", None, text, cost_ms), final=True
                )
                raise
            except TimeoutError:
                cause = ConnectError(f"no connection to {out.address} within the time left")
            except MQError as error:
                cause = error
            else:
                cost_ms = int((loop.time() - begun) * 1000)
                result = send_result(out, queue, reply)
                if result is not None:
                    done = (
                        result.status is SendStatus.SEND_OK
                        or not self.config.retry_not_stored_ok
                        or out.attempt >= out.attempt_max
                        or loop.time() >= deadline
                    )
                    if done:
                        out.body = b""
                    for hook in self._hooks:
                        hook.send_complete(out, result, cost_ms)
                    if self._faults is not None:
                        self._faults.update(queue.broker_name, cost_ms, now_ms(), isolate=False, reachable=True)
                    if done:
                        return result
                    stored, last_broker = result, queue.broker_name
                    continue
                cause = refusal_for(reply.code, reply.remark)
            failure = self._failure(out, cause, int((loop.time() - begun) * 1000))
            failures.append(failure)
            hopeless = isinstance(cause, Refusal) and cause.response_code not in RETRY_CODES
            final = hopeless or out.attempt >= out.attempt_max or loop.time() >= deadline
            self._failed(out, failure, final=final)
            if final:
                break
            if failure.code == ResponseCode.TOPIC_NOT_EXIST:
                self._client.spawn(self._refresh(out.topic))
            last_broker = queue.broker_name
            route = self._client.known_route(out.topic) or route
        if stored is not None:
            return stored
        if hopeless and len(failures) == 1:
            raise cause
        raise SendFailed(out.topic, out.msg_id, failures) from cause

    def _begin(self, out: Outgoing, queue: MessageQueue) -> None:
        out.attempt += 1
        out.queue = queue
        out.address = ""
        out.started_ms = now_ms()
        for hook in self._start_hooks:
            hook.send_started(out)

    def _failed(self, out: Outgoing, failure: AttemptFailure, *, final: bool) -> None:
        for hook in self._hooks:
            hook.send_failed(out, failure, final=final)
        if self._faults is not None and failure.broker_name:
            refused = failure.outcome == "ERROR"
            self._faults.update(failure.broker_name, failure.cost_ms, now_ms(), isolate=True, reachable=refused)

    def _failure(self, out: Outgoing, error: Exception, cost_ms: int) -> AttemptFailure:
        """Say what an error means for the message: TIMEOUT for everything after which it may be stored."""
        broker_name = out.queue.broker_name if out.queue is not None else ""
        code: int | None = None
        if isinstance(error, Refusal):
            outcome, code = "ERROR", error.response_code
        elif isinstance(error, ConnectError):
            outcome = "CONNECT"
        elif isinstance(error, NetError) and error.sent:
            outcome = "TIMEOUT"
        else:
            outcome = "NOT_SENT"
        return AttemptFailure(broker_name, out.address, outcome, code, str(error), cost_ms)

    def _choose(self, route: TopicRoute, last_broker: str | None) -> MessageQueue:
        queues = route.publish_queues
        if not queues:
            raise RouteNotFound(
                f"no queue of topic {route.topic!r} can be written: its brokers have no master or no write permission"
            )
        chooser = self._choosers.get(route.topic)
        if chooser is None:
            chooser = self._choosers[route.topic] = QueueChooser(random.randrange(1 << 20))
        return chooser.next(queues, last_broker, self._faults, now_ms() if self._faults else 0)

    def _queue_of_key(self, route: TopicRoute, order_key: str) -> MessageQueue:
        """The key's queue: the one that Java's SelectMessageQueueByHash picks for this string."""
        queues = route.publish_queues
        return queues[abs(java_string_hash(order_key)) % len(queues)] if queues else self._choose(route, None)

    async def _fetch_route(self, out: Outgoing, deadline: float) -> TopicRoute:
        """Ask for the topic's route; a failure is a send that never left the client, and is told to the hooks."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        out.started_ms = now_ms()
        template = (self.config.default_topic, self.config.default_topic_queue_nums)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._client.route(out.topic, template)
        except (MQError, TimeoutError) as error:
            text = str(error) or f"no name server answered within {int((loop.time() - begun) * 1000)} ms"
            cost_ms = int((loop.time() - begun) * 1000)
            failure = AttemptFailure("", "", "NOT_SENT", None, text, cost_ms)
            self._failed(out, failure, final=True)
            if isinstance(error, MQError):
                raise
            raise SendFailed(out.topic, out.msg_id, [failure], "the time-out ran out") from error

    async def _refresh(self, topic: str) -> None:
        with contextlib.suppress(MQError):  # the next send says so
            await self._client.fetch_route(topic, (self.config.default_topic, self.config.default_topic_queue_nums))
