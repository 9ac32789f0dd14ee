"""Sending: the attempts of one message, the broker of each, and the meaning of each failure.

    outcome                                               what follows
    stored, SEND_OK                                       done
    stored, but FLUSH_* or SLAVE_*                        done; with retry_not_stored_ok another attempt
    no address, no connection, no answer, not sent        another attempt
    refused with a code of RETRY_CODES or retry_codes     another attempt
    refused with another code                             raised immediately

The number of attempts (1 + retry_count) and the timeout limit the retries. If a broker with replicas fails, and no
other broker has the topic, the next attempt waits for a master: another replica takes over. If the caller chose the
queue, that is the only reason for another attempt. After the timeout no attempt begins.
Source: DefaultMQProducerImpl.sendDefaultImpl, RocketMQ 5.x client.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from mqtrail.clock import now_ms
from mqtrail.net import ConnectError, NetError, RequestTimeout
from mqtrail.wire import (
    FLAG_ONEWAY,
    MASTER_ID,
    MessageQueue,
    MQError,
    Refusal,
    RemotingCommand,
    ResponseCode,
    SendOutcome,
    SendStatus,
    refusal_for,
)

from ..core import (
    AttemptFailure,
    BrokerUnknown,
    ClientInstance,
    Composer,
    FaultTable,
    Outgoing,
    ProducerConfig,
    QueueChooser,
    RouteNotFound,
    SendFailed,
    SendHook,
    SendResult,
    TooManyInFlight,
    TopicRoute,
    send_result,
)
from .permits import Permits

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
# Codes after which the route may be an old one: the broker is no longer the master, or does not know the topic.
STALE_CODES = frozenset(
    int(code) for code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)
)
SILENT_S = 1.0  # without a reply of a broker with replicas, before the route is requested: it may have a new master
LOOK_S = 0.5  # between two such requests
REFRESH_PAUSE_S = 0.1  # between two requests for the route of a topic whose sends fail
NO_MASTER_IN_TIME = "no other attempt was possible before the timeout: no broker of the topic became master in time"
CHOOSERS_MAX = 65_536  # topics whose round robin is kept; beyond that all are started again
BACK_PRESSURE_COUNT_MIN = 10
BACK_PRESSURE_SIZE_MIN = 1024 * 1024


class Sender:
    """Sends composed messages for one producer. Belongs to one event loop."""

    def __init__(
        self,
        client: ClientInstance,
        composer: Composer,
        config: ProducerConfig,
        hooks: Sequence[SendHook],
        start_hooks: Sequence[SendHook],
    ) -> None:
        self._client = client
        self._prepare = client.pool.prepare
        # Commands with added fields or a signature cannot be written from templates.
        self._by_template = self._prepare is None and not client.pool.signs
        self.composer = composer
        self._config = config
        self._hooks = tuple(hooks)
        self._start_hooks = tuple(start_hooks)  # the hooks that are notified at the start of an attempt
        self._choosers: dict[str, QueueChooser] = {}
        self._refreshed_s: dict[str, float] = {}  # topic -> when its route was requested after a failed send
        self._retry_codes = RETRY_CODES | set(config.retry_codes)
        self._template = (config.default_topic, config.default_topic_queue_nums)
        self.faults = FaultTable() if config.latency_fault else None
        if config.back_pressure:
            count = min(config.in_flight_max, max(BACK_PRESSURE_COUNT_MIN, config.back_pressure_count))
            self.permits = Permits(count, max(BACK_PRESSURE_SIZE_MIN, config.back_pressure_size))
        else:
            self.permits = Permits(config.in_flight_max)

    def any_topic(self) -> str | None:
        """A topic that messages were sent to, for requests that need one; None if there is none."""
        return next(iter(self._choosers), None)

    async def route(self, out: Outgoing, deadline: float) -> TopicRoute:
        """Return the route of the message's topic. A failure is reported to the hooks as a send that was not sent."""
        route = self._client.known_route(out.wire_topic)
        if route is not None:
            return route
        loop = asyncio.get_running_loop()
        begun = loop.time()
        out.started_ms = now_ms()
        try:
            async with asyncio.timeout_at(deadline):
                return await self._client.route(out.wire_topic, self._template)
        except (MQError, TimeoutError) as error:
            cost_ms = int((loop.time() - begun) * 1000)
            text = str(error) or f"no name server answered within {cost_ms} ms"
            failure = AttemptFailure("", "", SendOutcome.NOT_SENT, None, text, cost_ms)
            self._failed(out, failure, final=not out.degradable)
            if isinstance(error, MQError):
                raise
            raise SendFailed(out.topic, out.msg_id, [failure], "the timeout expired") from error

    async def send(self, out: Outgoing, route: TopicRoute, fixed: MessageQueue | None, deadline: float) -> SendResult:
        """Send before deadline (seconds, the loop's clock), to the queue `fixed` if given. Raises as Producer.send."""
        loop = asyncio.get_running_loop()
        may_retry = fixed is None or _has_replicas(route, fixed.broker_name)
        out.attempt_max = out.attempt + 1 + self._config.retry_count * may_retry
        failures: list[AttemptFailure] = []
        stored: SendResult | None = None
        last_broker: str | None = None
        size = out.body_size
        if not self.permits.take_now(size):
            await self._wait_for_turn(out, deadline)
        try:
            while True:
                if fixed is None and not route.publish_queues:
                    route = await self.route_with_queues(out, route, deadline)
                if failures and (loop.time() >= deadline or (fixed is None and not route.publish_queues)):
                    failures.append(self.note_not_sent(out, NO_MASTER_IN_TIME, final=not out.degradable))
                    break
                begun = loop.time()
                queue = fixed or self._choose(route, last_broker)
                last_broker = queue.broker_name
                self._begin(out, queue)
                cause: MQError
                try:
                    reply = await self._exchange(out, queue, route, begun, deadline)
                except asyncio.CancelledError:
                    self._cancelled(out, last_broker, int((loop.time() - begun) * 1000))
                    raise
                except TimeoutError:
                    cause = ConnectError(f"no connection to {out.address} before the send timed out")
                except MQError as error:
                    cause = error
                else:
                    result = send_result(out, queue, reply)
                    if result is not None:
                        now = loop.time()
                        is_last = fixed is not None or now >= deadline
                        if self._stored(out, result, last_broker, int((now - begun) * 1000), is_last=is_last):
                            return result
                        stored = result
                        continue
                    cause = refusal_for(reply.code, reply.remark)
                now = loop.time()
                failures.append(failure_of(out, cause, int((now - begun) * 1000)))
                is_stale = _may_be_stale(cause)
                is_last = now >= deadline or (fixed is not None and not is_stale)
                if self._failed_for_good(out, failures[-1], cause, is_last=is_last):
                    break
                route = self._client.known_route(out.wire_topic) or route
                if is_stale:
                    route = await self._route_with_master(out, route, queue, deadline, cause, only=fixed is not None)
            if stored is not None:
                return stored
            if len(failures) == 1 and self._is_final(cause):
                raise cause
            raise SendFailed(out.topic, out.msg_id, failures) from cause
        finally:
            self.permits.give(size)

    async def _exchange(
        self, out: Outgoing, queue: MessageQueue, route: TopicRoute, begun: float, deadline: float
    ) -> RemotingCommand:
        """Make one attempt and return the broker's reply. Raises MQError, TimeoutError."""
        if not _has_replicas(route, queue.broker_name):
            return await self._ask(out, queue, route, begun, deadline)
        silence = _Silence(partial(self._refresh_soon, out.wire_topic))
        try:
            return await self._ask(out, queue, route, begun, deadline)
        finally:
            silence.end()

    async def _ask(
        self, out: Outgoing, queue: MessageQueue, route: TopicRoute, begun: float, deadline: float
    ) -> RemotingCommand:
        until = deadline
        if self._config.attempt_timeout_ms >= 0 and out.attempt < out.attempt_max:
            until = min(deadline, begun + self._config.attempt_timeout_ms / 1000)
        address = out.address = self._client.master(queue.broker_name, route)
        connection = self._client.pool.connection(address)
        if connection is None:
            async with asyncio.timeout_at(max(until, begun + 0.001)):
                connection = await self._client.pool.connect(address)
        left_ms = max(1, math.ceil((until - asyncio.get_running_loop().time()) * 1000))
        if self._by_template:
            frame = partial(self.composer.frame, out, queue, out.started_ms)
            return await connection.request_frame(frame, left_ms)
        command = self.composer.command(out, queue, out.started_ms)
        if self._prepare is not None:
            self._prepare(command)
        return await connection.request(command, left_ms)

    def _stored(self, out: Outgoing, result: SendResult, broker_name: str, cost_ms: int, *, is_last: bool) -> bool:
        """Note an attempt that the broker stored. Return False if another attempt must follow."""
        done = (
            result.status is SendStatus.SEND_OK
            or not self._config.retry_not_stored_ok
            or out.attempt >= out.attempt_max
            or is_last
        )
        if done:
            out.body = b""
        for hook in self._hooks:
            hook.send_complete(out, result, cost_ms)
        self._note(broker_name, cost_ms, isolate=False, reachable=True)
        return done

    def _cancelled(self, out: Outgoing, broker_name: str, cost_ms: int) -> None:
        """Note an attempt that the caller cancelled: the broker may have stored the message."""
        failure = AttemptFailure(
            broker_name, out.address, SendOutcome.TIMEOUT, None, "cancelled by the caller", cost_ms
        )
        self._failed(out, failure, final=True)
        self._note(broker_name, cost_ms, isolate=False, reachable=True)

    def _failed_for_good(self, out: Outgoing, failure: AttemptFailure, cause: MQError, *, is_last: bool) -> bool:
        """Note a failed attempt. Return whether it was the last one."""
        final = self._is_final(cause) or out.attempt >= out.attempt_max or is_last
        self._failed(out, failure, final=final and (self._is_final(cause) or not out.degradable))
        self._note_failure(failure.broker_name, failure.cost_ms, cause)
        if _may_be_stale(cause):
            self._refresh_soon(out.wire_topic)
        return final

    def _is_final(self, cause: MQError) -> bool:
        """Whether the broker refused the message for a reason that a retry would not change."""
        return isinstance(cause, Refusal) and cause.response_code not in self._retry_codes

    async def oneway(self, out: Outgoing, route: TopicRoute, fixed: MessageQueue | None, deadline: float) -> None:
        """Send without waiting for an acknowledgement. Raises SendFailed."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        queue = fixed or self._choose(route, None)
        self._begin(out, queue)
        command = self.composer.command(out, queue, out.started_ms)
        command.flag = FLAG_ONEWAY
        try:
            address = out.address = self._client.master(queue.broker_name, route)
            await self._client.pool.oneway(address, command, max(1, int((deadline - loop.time()) * 1000)))
        except MQError as error:
            failure = failure_of(out, error, int((loop.time() - begun) * 1000))
            self._failed(out, failure, final=True)
            raise SendFailed(out.topic, out.msg_id, [failure]) from error
        for hook in self._hooks:
            hook.send_oneway(out, int((loop.time() - begun) * 1000))

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _wait_for_turn(self, out: Outgoing, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        out.started_ms = now_ms()
        try:
            await self.permits.take(out.body_size, deadline)
        except TimeoutError:
            cost_ms = int((loop.time() - begun) * 1000)
            text = (
                f"found no permit within {cost_ms} ms: {self.permits.count} sends of {self.permits.size} bytes are in "
            )
            text += "flight; send more slowly, or raise in_flight_max (back_pressure_count, back_pressure_size)"
            failure = AttemptFailure("", "", SendOutcome.NOT_SENT, None, text, cost_ms)
            self._failed(out, failure, final=True)
            raise TooManyInFlight(out.topic, out.msg_id, [failure], "back-pressure") from None

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

    def note_not_sent(self, out: Outgoing, text: str, *, final: bool) -> AttemptFailure:
        """Report to the hooks why no further attempt was made. final: no local file keeps the message either."""
        out.attempt += 1
        out.attempt_max = max(out.attempt, out.attempt_max)
        out.queue, out.address, out.started_ms = None, "", now_ms()
        failure = AttemptFailure("", "", SendOutcome.NOT_SENT, None, text, 0)
        self._failed(out, failure, final=final)
        return failure

    def _note_failure(self, broker_name: str, cost_ms: int, cause: MQError) -> None:
        """Note in the fault table what a failed attempt means for its broker, exactly as the Java client does."""
        if isinstance(cause, Refusal):
            self._note(broker_name, cost_ms, isolate=True, reachable=False)
        elif isinstance(cause, NetError):
            self._note(broker_name, cost_ms, isolate=True, reachable=not self._config.latency_detect)
        else:
            self._note(broker_name, cost_ms, isolate=False, reachable=True)

    def _note(self, broker_name: str, cost_ms: int, *, isolate: bool, reachable: bool) -> None:
        if self.faults is not None:
            self.faults.update(broker_name, cost_ms, now_ms(), isolate=isolate, reachable=reachable)

    def _choose(self, route: TopicRoute, last_broker: str | None) -> MessageQueue:
        queues = route.publish_queues
        if not queues:
            self._refresh_soon(route.topic)
            raise RouteNotFound(
                f"found no writable queue of topic {route.topic!r}: check that its brokers have a master and that the "
                "topic has write permission"
            )
        chooser = self._choosers.get(route.topic)
        if chooser is None:
            if len(self._choosers) >= CHOOSERS_MAX:
                self._choosers.clear()
            chooser = self._choosers[route.topic] = QueueChooser(random.randrange(1 << 20))
        return chooser.next(queues, last_broker, self.faults, now_ms() if self.faults else 0)

    def _refresh_soon(self, topic: str) -> None:
        """Request the route in the background, unless that was done a moment ago: another broker may be master now."""
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_s.get(topic, -math.inf) < REFRESH_PAUSE_S:
            return
        if len(self._refreshed_s) >= CHOOSERS_MAX:
            self._refreshed_s.clear()
        self._refreshed_s[topic] = now
        self._client.spawn(self._refresh(topic))

    async def route_with_queues(self, out: Outgoing, route: TopicRoute, deadline: float) -> TopicRoute:
        """Wait until a topic has a master, if it has replicas. At the deadline the route may have no queue."""
        loop = asyncio.get_running_loop()
        while loop.time() < deadline and _waits_for_master(route, ""):
            await self._refresh_before(out.wire_topic, deadline)
            route = self._client.known_route(out.wire_topic) or route
            if any(route.master(queue.broker_name) for queue in route.publish_queues):
                break
            await _pause(deadline)
        return route

    async def _route_with_master(
        self,
        out: Outgoing,
        route: TopicRoute,
        failed: MessageQueue,
        deadline: float,
        cause: MQError,
        *,
        only: bool,
    ) -> TopicRoute:
        """Wait until another attempt may succeed, if no broker but that of `failed` has the topic, and it has replicas.

        only: wait for this broker, whatever others have; then the same master gets no message again that it may have
        stored and still answer. Return the newest route with queues. At the deadline it may have no master.
        """
        loop = asyncio.get_running_loop()
        name, address = failed.broker_name, out.address
        may_answer = only and isinstance(cause, RequestTimeout)
        may_be_late = isinstance(cause, Refusal)  # the name server, of a broker that is no longer master
        while loop.time() < deadline and (only or _waits_for_master(route, name)):
            await self._refresh_before(out.wire_topic, deadline)
            newest = self._client.known_route(out.wire_topic)
            if newest is not None and newest.publish_queues:
                route = newest
                names = {name} if only else {queue.broker_name for queue in route.publish_queues}
                masters = {master for name in names if (master := route.master(name))}
                if masters - {address}:
                    break
                if masters and not may_answer and not may_be_late and await self._is_reached(address, deadline):
                    break
            may_be_late = False
            await _pause(deadline)
        return route

    async def _is_reached(self, address: str, deadline: float) -> bool:
        """Whether a broker accepts connections again."""
        pool = self._client.pool
        try:
            async with asyncio.timeout_at(deadline):
                return pool.connection(address) is not None or await pool.connect(address) is not None
        except (NetError, TimeoutError):
            return False

    async def _refresh_before(self, topic: str, deadline: float) -> None:
        """Request the route; at the deadline, go on without it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._refresh(topic)

    async def _refresh(self, topic: str) -> None:
        with contextlib.suppress(MQError):  # the next send reports the failure
            await self._client.fetch_route(topic, self._template)


async def _pause(deadline: float) -> None:
    """Wait before the next request for a route."""
    await asyncio.sleep(max(0.0, min(REFRESH_PAUSE_S, deadline - asyncio.get_running_loop().time())))


def _may_be_stale(cause: MQError) -> bool:
    """Whether the route may be an old one after this failure."""
    if isinstance(cause, Refusal):
        return cause.response_code in STALE_CODES
    return isinstance(cause, (NetError, BrokerUnknown))


def _waits_for_master(route: TopicRoute, failed: str) -> bool:
    """Whether only the broker `failed` has the topic, and a replica may take over. '': no broker has a master."""
    if any(queue.broker_name != failed for queue in route.publish_queues):
        return False
    return any(_has_replicas(route, name) for name in route.brokers)


class _Silence:
    """Calls a function now and then while a reply is late."""

    __slots__ = ("_look", "_timer")

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._timer = asyncio.get_running_loop().call_later(SILENT_S, self._late)

    def _late(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._late)
        self._look()

    def end(self) -> None:
        """Stop: the reply arrived, or the caller gave up."""
        self._timer.cancel()


def _has_replicas(route: TopicRoute, broker_name: str) -> bool:
    """Whether another broker of this name may take over from its master."""
    return any(broker_id != MASTER_ID for broker_id in route.brokers.get(broker_name, {}))


def failure_of(out: Outgoing, error: Exception, cost_ms: int) -> AttemptFailure:
    """Return the failure that an error means for a send: TIMEOUT if the message may be stored."""
    broker_name = out.queue.broker_name if out.queue is not None else ""
    code: int | None = None
    if isinstance(error, Refusal):
        outcome, code = SendOutcome.ERROR, error.response_code
    elif isinstance(error, ConnectError):
        outcome = SendOutcome.CONNECT
    elif isinstance(error, NetError) and error.sent:
        outcome = SendOutcome.TIMEOUT
    else:
        outcome = SendOutcome.NOT_SENT
    return AttemptFailure(broker_name, out.address, outcome, code, str(error), cost_ms)
