"""The shop: sends orders, payments and reminders, handles them in its groups, and notes what it does.

It uses the client and the plan, but not the trace. The scorer later compares the pipeline's verdicts with the notes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from mqtrail.client import (
    AttemptFailure,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    InstanceConfig,
    Outgoing,
    Producer,
    RetryLater,
    SendFailed,
    SendResult,
)
from mqtrail.clock import now_ms
from mqtrail.wire import Message, MessageQueue, MQError, delay_of_level, parse_delay_levels

from .plan import (
    ATTEMPTS_MAX,
    DELAY_LEVELS,
    LEVEL_HOUR,
    ORDERS,
    PAYMENTS,
    REMINDER_LEVEL,
    REMINDER_LEVEL_LATER,
    REMINDERS,
    GroupPlan,
    PlannedFault,
    ShopOrder,
    order_of,
    planned_fault,
)
from .truth import HandlerResult, SeenOutcome, Sent, TruthLog

SLOW_S = 1.3
REBALANCE_MS = 5_000  # these three are shorter than the defaults, so that clients find a restarted broker soon
HEARTBEAT_MS = 3_000
ROUTE_REFRESH_MS = 3_000
DELAYS_MS = parse_delay_levels(DELAY_LEVELS)


class AttemptCounter:
    """A hook that counts the attempts of each send for the truth."""

    def __init__(self) -> None:
        self.attempts: dict[str, int] = {}

    def send_started(self, out: Outgoing) -> None:
        """An attempt begins."""
        self.attempts[out.msg_id] = self.attempts.get(out.msg_id, 0) + 1

    def send_complete(self, out: Outgoing, result: SendResult, cost_ms: int) -> None:
        """An attempt was acknowledged."""

    def send_failed(self, out: Outgoing, failure: AttemptFailure, *, final: bool) -> None:
        """An attempt failed."""

    def send_oneway(self, out: Outgoing, cost_ms: int) -> None:
        """A one-way attempt was passed to the socket."""

    def take(self, msg_id: str) -> int:
        """Return and remove the number of attempts of a send."""
        return self.attempts.pop(msg_id, 1)


class Seller:
    """Sends the shop's messages by one producer and notes the result of each send."""

    def __init__(self, producer: Producer, counter: AttemptCounter, truth: TruthLog, *, traced: bool) -> None:
        self._producer = producer
        self._counter = counter
        self._truth = truth
        self._traced = traced

    async def sell(self, order: ShopOrder) -> None:
        """Send all messages of one order, its events in order."""
        await self.send(Message(ORDERS, _body(order), tags="CREATED", keys=[order.created, order.name]), order.name)
        await self.send(Message(ORDERS, _body(order), tags="PAID", keys=[order.paid, order.name]), order.name)
        await self.send(Message(PAYMENTS, _body(order), tags="CARD", keys=[order.charge, order.name]))
        if order.is_reminded:
            level = REMINDER_LEVEL_LATER if order.number % 400 == 4 else REMINDER_LEVEL
            await self.send(
                Message(REMINDERS, _body(order), tags="SMS", keys=[order.reminder, order.name], delay_level=level)
            )

    async def send(
        self,
        message: Message,
        order_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        oneway: bool = False,
    ) -> SeenOutcome:
        """Send one message and note the result. A failure is noted, not raised."""
        started_ms = now_ms()
        msg_id = ""
        try:
            if oneway:
                msg_id = await self._producer.send_oneway(message)
                outcome = SeenOutcome.ONEWAY
            else:
                result = await self._producer.send(message, queue=queue, order_key=order_key, timeout_ms=timeout_ms)
                msg_id, outcome = result.msg_id, SeenOutcome.OK
        except SendFailed as error:
            msg_id = error.msg_id
            outcome = SeenOutcome.UNCERTAIN if error.maybe_stored else SeenOutcome.REFUSED
        except MQError:
            outcome = SeenOutcome.REFUSED
        attempts = self._counter.take(msg_id)
        took_ms = now_ms() - started_ms
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        self._truth.add(
            Sent(
                key=keys.split()[0],
                topic=message.topic,
                tag=message.tags,
                outcome=outcome,
                attempts=attempts,
                acknowledged_ms=took_ms if outcome is SeenOutcome.OK else 0,
                traced=self._traced,
                due_ms=started_ms + delay_of_level(message.delay_level, DELAYS_MS) if message.delay_level else 0,
                at_ms=started_ms,
            )
        )
        return outcome


def _body(order: ShopOrder) -> bytes:
    return f'{{"order":"{order.name}","items":{order.number % 7 + 1},"note":"{"x" * 120}"}}'.encode()


class GroupHandler:
    """The handler of one consumer group: handles each message as planned and notes the result."""

    def __init__(self, plan: GroupPlan, truth: TruthLog, *, seconds: float = 0.0) -> None:
        self._plan = plan
        self._truth = truth
        self._seconds = seconds
        self.handled = 0
        self._hanging: dict[int, int] = {}  # handling -> its start, epoch ms

    def is_hung_for(self, duration_ms: int) -> bool:
        """Return whether all hung handlings have hung for this long; True if none is hanging."""
        return all(now_ms() - since_ms >= duration_ms for since_ms in self._hanging.values())

    async def handle(self, delivery: Delivery) -> None:
        """Handle one delivery; raise if the plan requires a failure."""
        key = delivery.keys[0]
        number = self._truth.start(key, self._plan.name, delivery.attempt - 1)
        begun = time.perf_counter()
        if planned_fault(self._plan.name, order_of(key)) is PlannedFault.HANG:
            self._hanging[number] = now_ms()
        result = HandlerResult.ERROR
        try:
            await self._work(planned_fault(self._plan.name, order_of(key)), delivery)
            result = HandlerResult.SUCCESS
        except RetryLater as later:
            result = HandlerResult.DEAD if later.delay_level < 0 else HandlerResult.LATER
            raise
        except asyncio.CancelledError:
            raise  # the demo ends: note no end of this handling
        finally:
            if not _is_cancelled():
                self._truth.end(number, result, (time.perf_counter() - begun) * 1000)
                self.handled += 1

    async def _work(self, what: PlannedFault, delivery: Delivery) -> None:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        match what:
            case PlannedFault.SLOW:
                await asyncio.sleep(SLOW_S)
            case PlannedFault.FLAKY if delivery.attempt == 1:
                raise ConnectionError("stock service answered 503")
            case PlannedFault.POISON:
                raise ValueError(f"cannot parse {delivery.keys[0]}")
            case PlannedFault.REFUSED:
                raise RetryLater(-1, "customer is unknown")
            case PlannedFault.LATER:
                raise RetryLater(LEVEL_HOUR, "points service is closed for the night")
            case PlannedFault.HANG:
                await asyncio.Event().wait()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def consumer_of(plan: GroupPlan, namesrv: str) -> Consumer:
    """Return the group's consumer, not started: reads from the first message, few retries, with trace."""
    return Consumer(
        plan.name,
        namesrv=namesrv,
        subscriptions=dict(plan.subscriptions),
        trace=True,
        config=ConsumerConfig(
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            concurrency=plan.concurrency,
            attempts_max=ATTEMPTS_MAX,
            rebalance_ms=REBALANCE_MS,
            instance=InstanceConfig(heartbeat_ms=HEARTBEAT_MS, route_refresh_ms=ROUTE_REFRESH_MS),
        ),
    )


async def in_parallel(jobs: Iterable[Callable[[], Awaitable[None]]], count: int) -> None:
    """Run the jobs in order, `count` at a time."""
    pending = iter(jobs)

    async def lane() -> None:
        for job in pending:
            await job()

    async with asyncio.TaskGroup() as lanes:
        for _ in range(count):
            lanes.create_task(lane())
