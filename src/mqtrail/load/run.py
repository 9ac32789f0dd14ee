"""Runs a load: probes the queues, sends by the schedule, waits for the consumers, and reports.

Producers and consumers are in this process and in one event loop, so that one clock measures from the intended time of
a message to its handler. Every wait has an end: READY_S before the begin, the timeout of a send after the last one, the
plan's drain for the consumers.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from mqtrail.client import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    Gathered,
    MessageModel,
    Producer,
    ProducerConfig,
)
from mqtrail.clock import now_ms
from mqtrail.wire import Message, MQError, TopicStatsTable

from .ledger import Ledger, SendFate
from .marks import RUN_ID_SIZE, Bodies, MarkKind
from .plan import LoadPlan
from .probing import POLL_S, Probing
from .recorder import LoadRecorder
from .report import BrokerCounts, LoadCounts, LoadPace, LoadReport, ProcessUse, decided
from .resources import ProcessWatch
from .schedule import INFINITE, LATE_S, Pacer, arrival_times

SECONDS_MARGIN: Final = 1.0  # beyond the timeout of a send, for its answer to be processed
QUIET_S: Final = 0.2  # without a delivery at the end: repeated ones would come after the first
UNCERTAIN_QUIET_S: Final = 1.0  # the same, if messages without an acknowledgement may be stored
STARTS_MAX: Final = 64  # sends that begin before other work gets its turn
END_CHECK_S: Final = 0.5  # between two looks whether the group has read all queues, while messages are missing
GRACE_S: Final = LATE_S  # what is due at the end may begin this much later
GENERATOR: Final = "generator"


def tag_of(run_id: str) -> str:
    """Return the tag of all messages of a run, except its probes."""
    return f"load-{run_id}"


class LoadRun:
    """One load; use it once. find_processes: host:port -> process id of the brokers on this machine."""

    def __init__(
        self,
        plan: LoadPlan,
        namesrv: str,
        *,
        producer: ProducerConfig | None = None,
        consumer: ConsumerConfig | None = None,
        trace: bool = False,
        find_processes: Callable[[Iterable[str]], Mapping[str, int]] = lambda addresses: {},
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.plan = plan
        self.run_id = secrets.token_bytes(RUN_ID_SIZE)
        self._tag = tag_of(self.run_id.hex())
        self._namesrv = namesrv
        # A message in a local file, or in a batch of its own time, would hide what the cluster does.
        self._producing = replace(producer or ProducerConfig(), degrade=False, auto_batch=False)
        self._consuming = replace(
            consumer or ConsumerConfig(),
            model=MessageModel.CLUSTERING,
            ordered=plan.ordered,
            consume_from=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            batch_count_max=1,
        )
        self._trace = trace
        self._find_processes = find_processes
        self._note = note
        self._bodies = Bodies(self.run_id, plan.seed, plan.sizes.largest)
        self._ledger = Ledger(plan.keys)
        self.recorder = LoadRecorder(self._ledger, self._bodies, plan.warm_up_s)
        times = arrival_times(plan.arrivals, plan.rate / plan.batch, plan.end_s, self._chance("times"))
        self.pacer = Pacer(times, plan.in_flight, plan.warm_up_s)
        self._next_size = plan.sizes.draw(self._chance("sizes"))
        self._keys = self._chance("keys")
        self._stops = 0
        self._wake = asyncio.Event()
        self._known_queues: set[tuple[str, int]] | None = None  # of the topic, before the load
        self._sends: set[asyncio.Task[None]] = set()
        self._last_of_key: dict[int, asyncio.Task[None]] = {}  # ordered: the latest send without an answer
        self._begin_s = time.perf_counter()
        self._watches: dict[str, ProcessWatch] = {}
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []

    def stop(self) -> None:
        """End the load early; at the second call, also the wait for the consumers."""
        self._stops += 1
        self._wake.set()

    async def run(self) -> LoadReport:
        """Run it and return the report. LoadFailed, or the error of a probe: nothing was measured."""
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(self._namesrv, config=self._producing.instance))
            for _ in range(self.plan.producers):
                producer = Producer(self.plan.group, self._namesrv, trace=self._trace, config=self._producing)
                self._producers.append(await stack.enter_async_context(producer))
            for _ in range(self.plan.consumers):
                self._consumers.append(await stack.enter_async_context(self._consumer()))
            handling = [asyncio.create_task(one.run(self._handle)) for one in self._consumers]
            try:
                probing = Probing(self.plan, self._producers, self._consumers, self._bodies, self.recorder.probes)
                if self._consumers:
                    self._note("waiting until each queue is consumed")
                await probing.run(lambda: bool(self._stops))
                return await self._measured(admin)
            finally:
                for task in handling:
                    task.cancel()
                await asyncio.gather(*handling, return_exceptions=True)

    def _consumer(self) -> Consumer:
        plan = self.plan
        return Consumer(plan.group, self._namesrv, {plan.topic: "*"}, trace=self._trace, config=self._consuming)

    def _chance(self, what: str) -> random.Random:
        return random.Random(f"{self.plan.seed} {what}")

    def _now_s(self) -> float:
        return time.perf_counter() - self._begin_s

    # -- the load --------------------------------------------------------------------------------------------------

    async def _measured(self, admin: Admin) -> LoadReport:
        plan = self.plan
        route = await admin.route(plan.topic)
        masters = {one.broker_name: one.broker_addrs[0] for one in route.broker_datas if 0 in one.broker_addrs}
        self._find_brokers(masters)
        before, stats_before = await self._broker_totals(admin, masters), await self._stats(admin)
        if stats_before is not None and stats_before.complete:
            self._known_queues = set(_ends(stats_before))
        self._note(f"sending {plan.rate:g} messages a second for {plan.end_s:g} s")
        self._begin_s, begin_ms = time.perf_counter(), now_ms()
        for watch in self._watches.values():
            watch.sample()
        watching = asyncio.create_task(self._watch())
        await self._send_all()
        seconds_run = self._now_s()
        await self._settle()
        self._note("waiting for the consumers")
        await self._drain(admin)
        watching.cancel()
        self._end_second()
        after, stats = await self._broker_totals(admin, masters), await self._stats(admin)
        report = self._report(begin_ms, seconds_run, stats_before, stats)
        return decided(replace(report, brokers=_differences(masters, before, after)))

    def _find_brokers(self, masters: Mapping[str, str]) -> None:
        self._watches[GENERATOR] = ProcessWatch(os.getpid())
        found = self._find_processes(masters.values())
        for name, address in sorted(masters.items()):
            if address in found and found[address] != os.getpid():
                self._watches[name] = ProcessWatch(found[address])
        self._broker_names = sorted(masters)

    async def _send_all(self) -> None:
        pacer, loop = self.pacer, asyncio.get_running_loop()
        end_s = self.plan.end_s + GRACE_S
        while not self._stops:
            now_s = self._now_s()
            if now_s >= end_s:
                break
            for _ in range(STARTS_MAX):
                taken = pacer.take(now_s)
                if taken is None:
                    break
                self._begin(*taken)
            else:
                await asyncio.sleep(0)
                continue
            if pacer.next_s == INFINITE:
                break
            self._wake.clear()
            until_s = end_s if pacer.is_full else min(end_s, pacer.next_s)
            timer = loop.call_later(max(0.0, until_s - self._now_s()), self._wake.set)
            await self._wake.wait()
            timer.cancel()
        # At an early end, what was due just before is not counted as missed: it had no time to begin.
        pacer.stop(min(self._now_s() - (GRACE_S if self._stops else 0.0), self.plan.end_s))

    def _begin(self, send_number: int, at_s: float) -> None:
        """Begin a send: make its messages, and start it as a task."""
        plan = self.plan
        numbers = range(send_number * plan.batch, (send_number + 1) * plan.batch)
        key = self._keys.randrange(plan.keys) if plan.keys else 0
        messages = [self._message(number, at_s, key) for number in numbers]
        producer = self._producers[(key if plan.ordered else send_number) % len(self._producers)]
        if plan.ordered:
            # Brokers may store two sends of one connection in either order: the next of a key waits for the answer.
            before = self._last_of_key.get(key)
            task = asyncio.create_task(self._send(producer, messages, numbers, at_s, f"key-{key}", before))
            self._last_of_key[key] = task
            task.add_done_callback(partial(self._forget, key))
        else:
            task = asyncio.create_task(self._send(producer, messages, numbers, at_s))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    def _forget(self, key: int, task: asyncio.Task[None]) -> None:
        if self._last_of_key.get(key) is task:
            del self._last_of_key[key]

    def _message(self, number: int, at_s: float, key: int) -> Message:
        plan = self.plan
        if plan.keys and not plan.ordered and number % plan.batch:
            key = self._keys.randrange(plan.keys)
        body = self._bodies.make(MarkKind.LOAD, self._next_size(), number, round(at_s * 1e6), key)
        keys = f"key-{key}" if plan.keys else ()
        return Message(plan.topic, body, tags=self._tag, keys=keys, delay_level=plan.delay_level)

    async def _send(
        self,
        producer: Producer,
        messages: list[Message],
        numbers: range,
        at_s: float,
        order_key: str | None = None,
        before: asyncio.Task[None] | None = None,
    ) -> None:
        recorder = self.recorder
        recorder.begun(numbers)
        try:
            if before is not None:
                await asyncio.wait((before,))
            began_s = self._now_s()
            recorder.started(at_s, began_s)
            result = await producer.send(messages if len(messages) > 1 else messages[0], order_key=order_key)
        except MQError as error:
            recorder.failed(numbers, self._now_s(), error)
        except asyncio.CancelledError:
            recorder.failed(numbers, self._now_s(), None)
        else:
            recorder.stored(numbers, at_s, began_s, self._now_s(), result)
        finally:
            if self.pacer.is_full:
                self._wake.set()
            self.pacer.done()

    async def _handle(self, delivery: Delivery) -> None:
        self.recorder.delivered(delivery.body, self._now_s())

    async def _watch(self) -> None:
        """Close a row at each full second."""
        second = 1
        while True:
            await asyncio.sleep(max(0.0, second - self._now_s()))
            self._end_second()
            second = max(second + 1, int(self._now_s()) + 1)

    def _end_second(self) -> None:
        used = {name: watch.sample() for name, watch in self._watches.items()}
        self.recorder.end_second(self._now_s(), self.pacer.in_flight, used)

    # -- after -----------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait for the answers of sends in flight. A message without an answer after its timeout may be stored."""
        if self._sends:
            timeout_s = self._producing.send_timeout_ms / 1000 + SECONDS_MARGIN
            _, late = await asyncio.wait(set(self._sends), timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _drain(self, admin: Admin) -> None:
        """Wait until all acknowledged messages are consumed, and then for repeated ones; at most drain_s.

        If the group has read all queues to their ends, what is missing does not come.
        """
        if not self._consumers:
            return
        begun_s, ledger, recorder = self._now_s(), self._ledger, self.recorder
        is_uncertain = ledger.counts[SendFate.UNCERTAIN] > ledger.unsettled_read()
        quiet_s = UNCERTAIN_QUIET_S if is_uncertain else QUIET_S
        check_s = begun_s + END_CHECK_S
        while self._now_s() < begun_s + self.plan.drain_s and self._stops < 2:
            if self._now_s() - max(begun_s, recorder.last_delivery_s) >= quiet_s:
                if not ledger.unread_count:
                    break
                if self._now_s() >= check_s:
                    if self._is_read_to_end(await self._stats(admin)):
                        break
                    check_s = self._now_s() + END_CHECK_S
            await asyncio.sleep(POLL_S)

    async def _stats(self, admin: Admin) -> Gathered[TopicStatsTable] | None:
        try:
            return await admin.topic_stats(self.plan.topic)
        except MQError:
            return None

    async def _broker_totals(self, admin: Admin, masters: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """The counters of the brokers that answer."""
        answers = await asyncio.gather(*map(admin.runtime_info, masters.values()), return_exceptions=True)
        found: dict[str, dict[str, str]] = {}
        for name, answer in zip(masters, answers, strict=True):
            if isinstance(answer, dict):
                found[name] = answer
            elif not isinstance(answer, MQError):
                raise answer
        return found

    def _is_read_to_end(self, stats: Gathered[TopicStatsTable] | None) -> bool | None:
        """Whether the group's offsets are at the ends of all queues; None: unknown."""
        if stats is None or stats.failures or self.plan.delay_level or self._known_queues is None:
            return None
        ends = _ends(stats)
        if self._known_queues - ends.keys():  # a broker that has left the name servers does not count as read
            return None
        places: dict[tuple[str, int], int] = {}
        for consumer in self._consumers:
            for queue, offset in consumer.consumer_offsets().items():
                if queue.topic == self.plan.topic:
                    places[queue.broker_name, queue.queue_id] = offset
        if ends.keys() - places.keys():
            return None
        return all(places[place] >= end for place, end in ends.items())

    def _report(
        self,
        begin_ms: int,
        seconds_run: float,
        before: Gathered[TopicStatsTable] | None,
        after: Gathered[TopicStatsTable] | None,
    ) -> LoadReport:
        plan, recorder = self.plan, self.recorder
        growth = None
        if before is not None and after is not None and before.complete and after.complete:
            first, last = _ends(before), _ends(after)
            growth = sum(last.values()) - sum(first.values()) if first.keys() == last.keys() else None
        return LoadReport(
            run_id=self.run_id.hex(),
            topic=plan.topic,
            group=plan.group,
            begin_ms=begin_ms,
            wanted={**asdict(plan), "sizes": str(plan.sizes)},
            seconds_run=round(seconds_run, 3),
            is_ended_early=bool(self._stops),
            pace=self._pace(),
            counts=self._counts(),
            latency=recorder.latencies(),
            statuses=dict(recorder.statuses),
            errors=recorder.errors,
            unread=self._ledger.unread() if self._consumers else (),
            repeated=self._ledger.repeated_numbers(),
            topic_growth=growth,
            is_read_to_end=self._is_read_to_end(after) if self._consumers else None,
            processes=self._uses(),
            brokers=(),
            by_second=tuple(recorder.by_second),
            is_consumed=bool(self._consumers),
            is_ordered=plan.ordered,
        )

    def _uses(self) -> tuple[ProcessUse, ...]:
        whole_s = self.recorder.watched_s
        found = []
        for name in (GENERATOR, *self._broker_names):
            watch = self._watches.get(name)
            if watch is None:
                found.append(ProcessUse(name=name, process_id=None, cores=None, memory_size_most=None))
                continue
            cores = None if watch.cpu_s is None or not whole_s else round(watch.cpu_s / whole_s, 3)
            found.append(
                ProcessUse(name=name, process_id=watch.process_id, cores=cores, memory_size_most=watch.memory_size_most)
            )
        return tuple(found)

    def _pace(self) -> LoadPace:
        plan, recorder, counts = self.plan, self.recorder, self.pacer.lateness
        # The last acknowledgement may be later than the end: then the rate is lower.
        span_s = max(min(self._now_s(), plan.end_s), recorder.last_acknowledged_s) - plan.warm_up_s
        if self._stops:
            span_s = recorder.last_acknowledged_s - plan.warm_up_s
        acknowledged = recorder.acknowledged_counted
        return LoadPace(
            due=counts.due * plan.batch,
            late_by_bound=counts.by_bound * plan.batch,
            late_by_generator=counts.by_generator * plan.batch,
            not_sent=counts.not_sent * plan.batch,
            acknowledged=acknowledged,
            acknowledged_a_second=round(acknowledged / span_s, 1) if acknowledged and span_s > 0 else None,
            in_flight_most=self.pacer.in_flight_most,
        )

    def _counts(self) -> LoadCounts:
        recorder, ledger = self.recorder, self._ledger
        fates = ledger.counts
        sends = LoadCounts(
            sent=sum(fates),
            acknowledged=fates[SendFate.ACKNOWLEDGED],
            not_stored=fates[SendFate.NOT_STORED],
            uncertain=fates[SendFate.UNCERTAIN],
        )
        if not self._consumers:
            return sends
        return replace(
            sends,
            consumed=ledger.consumed,
            unread=ledger.unread_count,
            unsettled_read=ledger.unsettled_read(),
            repeated=ledger.repeated,
            out_of_order=ledger.out_of_order,
            damaged=recorder.damaged,
            unsent_read=ledger.unsent_seen,
            foreign=recorder.foreign,
        )


def _ends(stats: Gathered[TopicStatsTable]) -> dict[tuple[str, int], int]:
    """Return broker and queue id -> offset behind the last message."""
    return {
        (queue.broker_name or name, queue.queue_id): reach.max_offset
        for name, found in stats.found.items()
        for queue, reach in found.offset_table.items()
    }


def _differences(
    names: Iterable[str], before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> tuple[BrokerCounts, ...]:
    def grown(name: str, counter: str) -> int | None:
        try:
            return int(after[name][counter]) - int(before[name][counter])
        except (KeyError, ValueError):
            return None

    return tuple(
        BrokerCounts(name=name, stored=grown(name, "msgPutTotalTodayNow"), read=grown(name, "msgGetTotalTodayNow"))
        for name in sorted(names)
    )
