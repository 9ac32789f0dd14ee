"""Popped queues: a broker delivers single messages, and delivers them again unless they are acknowledged.

There are no offsets: a success acknowledges a message, a failure sets when it is delivered again. If the invisible time
of a message ends before its handler does, the broker delivers it again.
Source: ConsumeMessagePopConcurrentlyService, PopProcessQueue, DefaultMQPushConsumerImpl, RocketMQ 5.x client.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mqtrail.clock import now_ms
from mqtrail.net import Log, NetError
from mqtrail.wire import PROPERTY_POP_CK, FlowControl, MessageExt, MessageQueue, MQError, SubscriptionData

from ..core import (
    ClientInstance,
    ConsumerConfig,
    EmptyAnswers,
    Names,
    OnUndecodable,
    keep_going,
    queue_name,
    report,
)
from ..delivery import (
    ATTEMPTS_MAX_DEFAULT,
    Batch,
    ConsumerStats,
    Delivery,
    Flow,
    Outcome,
    Ready,
    RunningHandlers,
    SendBackCalls,
)
from .calls import PopCalls, PopStatus, due_ms, handle_of

log = Log()

# Seconds until a failed message is delivered again, by its attempts or by delay_level (popDelayLevel).
DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
ACK_RETRY_MS = 100
HAND_BACK_S = 1  # seconds until a popped message that is not processed is delivered again


class PopQueue:
    """One popped assignment. waiting: number of messages popped and not settled."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.dropped = False
        self.waiting = 0
        self.expanded_size = 0  # bytes of bodies that were decompressed
        self.unread: dict[Delivery, int] = {}  # popped and not passed to the application yet -> ms when it was popped
        self.last_pop_ms = 0
        self.room = asyncio.Event()
        self.answers = EmptyAnswers()

    def popped(self, messages: Sequence[MessageExt]) -> None:
        """Note messages that were popped."""
        self.waiting += len(messages)
        self.expanded_size += sum(message.expanded_size for message in messages)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Note messages that were settled, or whose invisible time ended."""
        self.waiting -= len(deliveries)
        self.expanded_size -= sum(delivery.message.expanded_size for delivery in deliveries)
        self.room.set()


class PoppedQueues:
    """The assignments that one consumer pops; it also settles their deliveries."""

    def __init__(
        self,
        client: ClientInstance,
        names: Names,
        subscriptions: Mapping[str, SubscriptionData],
        ready: Ready,
        running_handlers: RunningHandlers,
        flow: Flow,
        stats: ConsumerStats,
        config: ConsumerConfig,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._client = client
        self._names = names
        self._subscriptions = subscriptions
        self._ready = ready
        self._running_handlers = running_handlers
        self._flow = flow
        self._stats = stats
        self._config = config
        self._clock = clock
        self._rejects = config.on_undecodable is OnUndecodable.REJECT
        self._calls = PopCalls(client, names.group)
        self._send_back = SendBackCalls(client, names, config)
        self._queues: dict[MessageQueue, tuple[PopQueue, asyncio.Task[None]]] = {}
        self._renewals: dict[Delivery, asyncio.Task[None]] = {}
        self._attempts_max = ATTEMPTS_MAX_DEFAULT if config.attempts_max is None else config.attempts_max

    @property
    def queues(self) -> list[MessageQueue]:
        """The assignments popped now, sorted. A queue id of -1: any queue of the broker."""
        return sorted(self._queues)

    def infos(self) -> dict[MessageQueue, PopQueue]:
        """The state of each assignment."""
        return {queue: popped for queue, (popped, _) in self._queues.items()}

    def take_queue(self, queue: MessageQueue) -> None:
        """Start to pop an assignment."""
        popped = PopQueue(queue)
        self._queues[queue] = popped, self._client.spawn(self._run(popped))

    def drop_queue(self, queue: MessageQueue) -> None:
        """Stop popping an assignment. Messages that handlers are processing may still be acknowledged."""
        found = self._queues.pop(queue, None)
        if found is not None:
            found[0].dropped = True
            self._ready.discard(found[0])
            found[1].cancel()
            self._client.spawn(self._hand_back(found[0]))

    async def stop(self) -> None:
        """Stop popping all assignments; make messages not yet started visible, so that other members get them."""
        ended = list(self._queues.values())
        self._queues.clear()
        for popped, task in ended:
            popped.dropped = True
            task.cancel()
        if ended:
            await asyncio.wait([task for _, task in ended])
        backs = [self._client.spawn(self._hand_back(popped)) for popped, _ in ended]
        if backs:
            await asyncio.wait(backs, timeout=self._config.close_wait_ms / 1000)

    async def _hand_back(self, popped: PopQueue) -> None:
        unread, popped.unread = popped.unread, {}
        await asyncio.gather(*(self._hand_back_one(delivery) for delivery in unread))

    async def _hand_back_one(self, delivery: Delivery) -> None:
        await self._renewed(delivery)
        await self._redeliver_after(delivery.message, HAND_BACK_S)

    # -- popping ---------------------------------------------------------------------------------------------------

    async def _run(self, popped: PopQueue) -> None:
        group, name = self._names.group, queue_name(popped.queue)
        await keep_going("pop", partial(self._turn, popped), lambda: popped.dropped, group=group, queue=name)

    async def _turn(self, popped: PopQueue) -> None:
        config = self._config
        await self._flow.opened()
        if popped.waiting > config.pop_queue_count_max or (popped.waiting and self._room() <= 0):
            await self._wait_for_room(popped)
            return
        wait_ms = config.pull_error_ms
        try:
            begun_ms = self._clock()
            status = await self._pop(popped)
            if status is not PopStatus.FULL:
                is_empty, took_ms = status is not PopStatus.FOUND, self._clock() - begun_ms
                wait_ms = max(config.pull_interval_ms, popped.answers.wait_ms(is_empty=is_empty, took_ms=took_ms))
        except FlowControl:
            wait_ms = config.broker_flow_control_ms
        except (MQError, OSError) as error:
            if not popped.dropped:
                name = queue_name(popped.queue)
                log.sparse.warning("consumer.pop_failed", group=self._names.group, queue=name, error=str(error))
        await asyncio.sleep(wait_ms / 1000)

    async def _wait_for_room(self, popped: PopQueue) -> None:
        popped.room.clear()
        try:
            async with asyncio.timeout(self._config.flow_control_ms / 1000):
                await popped.room.wait()
        except TimeoutError:
            pass

    async def _pop(self, popped: PopQueue) -> PopStatus:
        queue, config = popped.queue, self._config
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            return PopStatus.FULL
        begun_ms = popped.last_pop_ms = self._clock()
        result = await self._calls.pop(
            queue,
            subscription,
            count_max=config.pop_batch_count,
            invisible_ms=self._config.pop_invisible_ms,
            poll_ms=config.poll_suspend_ms,
            consume_from=config.consume_from,
            body_size_max=config.body_size_max,
            room=self._room,
        )
        for message in result.beyond:
            self._client.spawn(self._redeliver_after(message, HAND_BACK_S))
        if result.status is PopStatus.FOUND:
            self._stats.pulled(queue.topic, len(result.messages), self._clock() - begun_ms)
            self._offer(popped, result.messages, subscription)
            if not result.messages and not result.beyond:
                return PopStatus.NOT_FOUND
        return result.status

    def _room(self) -> int:
        """Bytes left for decompressed bodies."""
        return self._config.expanded_size_max - sum(popped.expanded_size for popped, _ in self._queues.values())

    def _offer(self, popped: PopQueue, messages: Sequence[MessageExt], subscription: SubscriptionData) -> None:
        wanted = []
        for message in messages:
            if message.undecodable is not None:
                self._stats.undecodable(self._names.restored(message).topic)
            if message.undecodable is not None and self._rejects:
                popped.popped((message,))
                self._client.spawn(self._reject(popped, message))
            elif message.undecodable is not None or (
                subscription.matches_tag(message.tags) and message.reconsume_times <= self._attempts_max
            ):
                wanted.append(message)
            else:
                self._client.spawn(self._ack(message))
        popped.popped(wanted)
        deliveries = [Delivery(self._names.restored(message), popped, self) for message in wanted]
        popped.unread.update(dict.fromkeys(deliveries, self._clock()))
        count = self._config.batch_count_max
        if count == 1:
            for delivery in deliveries:
                self._ready.put(delivery)
            return
        for first in range(0, len(deliveries), count):
            self._ready.put(Batch(deliveries[first : first + count], self))

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def renew_waiting(self) -> None:
        """Renew the invisible time of messages that wait for a limit and have used half of it, up to consume_timeout.

        Without this the broker would deliver them again, each time as a further attempt.
        """
        now = self._clock()
        due_before_ms = now + self._config.pop_invisible_ms // 2
        popped_after_ms = now - self._config.consume_timeout_ms
        for popped, _ in self._queues.values():
            for delivery, popped_ms in popped.unread.items():
                if (
                    popped_ms > popped_after_ms
                    and due_ms(delivery.message) <= due_before_ms
                    and delivery not in self._renewals
                ):
                    self._renewals[delivery] = self._client.spawn(self._renew(delivery))

    async def _renew(self, delivery: Delivery) -> None:
        message = delivery.message
        try:
            topic = self._names.topic(message.topic)
            handle = await self._calls.renew(topic, handle_of(message), self._config.pop_invisible_ms)
            delivery.message = replace(message, properties={**message.properties, PROPERTY_POP_CK: handle.encode()})
        except Exception as error:
            report("consumer.pop_renewal_failed", error, group=self._names.group, msg_id=message.msg_id)
        finally:
            del self._renewals[delivery]

    async def _renewed(self, delivery: Delivery) -> None:
        """Wait for a renewal in flight: it changes the message's handle."""
        if (renewal := self._renewals.get(delivery)) is not None:
            await asyncio.wait([renewal])

    # -- settling --------------------------------------------------------------------------------------------------

    def startable(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return those whose invisible time has not ended."""
        popped = deliveries[0].process_queue
        assert isinstance(popped, PopQueue)
        for one in deliveries:
            popped.unread.pop(one, None)
        now = self._clock()
        left = [one for one in deliveries if not popped.dropped and now < due_ms(one.message)]
        popped.settled([one for one in deliveries if one not in left])
        return left

    def begun(self, deliveries: Sequence[Delivery]) -> None:
        self._running_handlers.begun(deliveries)

    def abandon(self, deliveries: Sequence[Delivery]) -> None:
        """Drop the messages of a cancelled handler: they are delivered again when their invisible time ends."""
        popped = deliveries[0].process_queue
        assert isinstance(popped, PopQueue)
        if any(delivery.started_ms for delivery in deliveries):
            self._running_handlers.abandoned(deliveries)
        self._ready.ended(deliveries, succeeded=None)
        popped.settled(deliveries)

    async def settle(self, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        popped = deliveries[0].process_queue
        assert isinstance(popped, PopQueue)
        self._running_handlers.ended(deliveries, outcomes, self._config.pop_invisible_ms)
        if self._ready.is_limited:
            self._ready.ended(deliveries, succeeded=all(outcome.result == "SUCCESS" for outcome in outcomes))
        popped.settled(deliveries)
        await self._running_handlers.finish(self._answer(deliveries, outcomes))

    async def _answer(self, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        await asyncio.gather(*(self._answer_one(*pair) for pair in zip(deliveries, outcomes, strict=True)))

    async def _answer_one(self, delivery: Delivery, outcome: Outcome) -> None:
        await self._renewed(delivery)
        message = delivery.message
        if self._clock() >= due_ms(message):
            log.sparse.warning("consumer.pop_too_late", group=self._names.group, msg_id=message.msg_id)
        elif outcome.result == "SUCCESS":
            await self._ack(message)
        elif message.undecodable is not None and self._rejects:
            if await self._send_back.dead_letter(message):
                await self._ack(message)
            else:
                await self._redeliver_after(message, DELAYS_S[0])
        elif message.reconsume_times < self._attempts_max:
            if outcome.delay_level < 0 and await self._send_back.give_back(message, outcome.delay_level):
                await self._ack(message)  # the dead letter was written
                return
            level = outcome.delay_level or message.reconsume_times
            await self._redeliver_after(message, DELAYS_S[min(max(level, 0), len(DELAYS_S) - 1)])
        else:
            await self._give_up(message)

    async def _reject(self, popped: PopQueue, message: MessageExt) -> None:
        """Settle an undecodable message without the application."""
        delivery = Delivery(self._names.restored(message), popped, self)
        if delivery.taken() is not None:
            self._running_handlers.undecodable(delivery, self._names.group)
            await delivery.reject(message.undecodable or "")

    async def _give_up(self, message: MessageExt) -> None:
        """After the last attempt: acknowledge a message that is old enough; have a younger one delivered again."""
        age_s = (self._clock() - message.born_timestamp_ms) / 1000
        if age_s > 2 * DELAYS_S[-1]:
            log.sparse.warning("consumer.pop_given_up", group=self._names.group, msg_id=message.msg_id)
            await self._ack(message)
            return
        await self._redeliver_after(message, next((delay for delay in DELAYS_S if age_s < delay), DELAYS_S[-1]))

    async def _ack(self, message: MessageExt) -> None:
        handle = handle_of(message)
        await self._retrying(message, lambda: self._calls.ack(self._names.topic(message.topic), handle))

    async def _redeliver_after(self, message: MessageExt, delay_s: int) -> None:
        handle = handle_of(message)
        topic = self._names.topic(message.topic)
        await self._retrying(message, lambda: self._calls.change_invisible(topic, handle, delay_s * 1000))

    async def _retrying(self, message: MessageExt, call: Callable[[], Awaitable[None]]) -> None:
        """Send a request about a message; retry after connection failures until its invisible time ends."""
        for left in range(self._config.ack_retry_count, -1, -1):
            try:
                await call()
                return
            except Exception as error:
                again = left and isinstance(error, NetError | OSError) and self._clock() < due_ms(message)
                if not again:
                    report("consumer.pop_answer_failed", error, group=self._names.group, msg_id=message.msg_id)
                    return
            await asyncio.sleep(ACK_RETRY_MS / 1000)
