"""Our client in a separate process, like an application: sends at full speed, or send → handler at a steady rate.

    throughput(namesrv, trace=True, seconds=3) -> {"sendsPerS": …, "sendP99Ms": …, "failures": 0, "clientCpuS": …}

The result has the same keys as that of the official client's driver, so that figures read both alike.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqtrail.client import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    Producer,
    ProducerConfig,
    TraceConfig,
)
from mqtrail.wire import Message, MQError

Json = dict[str, Any]
START_TIMEOUT_S = 60.0
HANDLED_TIMEOUT_S = 30.0
TASKS = 64


def throughput(namesrv: str, *, topic: str, trace: bool, warm_s: float, seconds: float) -> Json:
    """Return the rate of 64 tasks on one producer that send synchronously. With trace: also the trace's counters."""
    return _process("throughput", namesrv=namesrv, topic=topic, trace=trace, warmS=warm_s, seconds=seconds)


def steady(namesrv: str, *, topic: str, trace: bool, per_s: int, warm_s: float, seconds: float) -> Json:
    """Return p50 and p99 of sends at a steady rate, without a consumer."""
    return _process("steady", namesrv=namesrv, topic=topic, trace=trace, perS=per_s, warmS=warm_s, seconds=seconds)


def latency(namesrv: str, *, topic: str, per_s: int, warm_s: float, seconds: float) -> Json:
    """Return p50 and p99 of the send and of send → handler, producer and consumer in one process and loop."""
    return _process("latency", namesrv=namesrv, topic=topic, trace=False, perS=per_s, warmS=warm_s, seconds=seconds)


def _process(do: str, **arguments: Any) -> Json:
    """Run this module as a process with these arguments and return what it prints."""
    with tempfile.TemporaryDirectory(prefix="mqtrail-spool-") as spool:
        task = json.dumps({"do": do, "spool": spool, **arguments})
        timeout_s = arguments["warmS"] + arguments["seconds"] + START_TIMEOUT_S + HANDLED_TIMEOUT_S
        command = [sys.executable, "-m", "bench.our_client", task]
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if run.returncode:
        raise RuntimeError(f"our client failed at {do}: {run.stderr.strip()[-1000:]}")
    found: Json = json.loads(run.stdout.splitlines()[-1])
    return found


class Clock:
    """The counted part: after the warm-up until the end, in seconds of time.perf_counter."""

    def __init__(self, order: Json) -> None:
        self.begin_s = time.perf_counter() + order["warmS"]
        self.end_s = self.begin_s + order["seconds"]
        self.cpu_s = 0.0

    async def watch(self) -> None:
        """Record the CPU time of the counted part."""
        await asyncio.sleep(self.begin_s - time.perf_counter())
        began_s = time.process_time()
        await asyncio.sleep(self.end_s - time.perf_counter())
        self.cpu_s = time.process_time() - began_s


async def _throughput(order: Json) -> Json:
    body, sends_s, failures = b"x" * 500, list[float](), 0
    async with _producer(order) as producer:
        await producer.send(Message(order["topic"], body))
        clock = Clock(order)

        async def work() -> None:
            nonlocal failures
            while (began_s := time.perf_counter()) < clock.end_s:
                try:
                    await producer.send(Message(order["topic"], body))
                except MQError:
                    failures += 1
                else:
                    if began_s >= clock.begin_s:
                        sends_s.append(time.perf_counter() - began_s)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(clock.watch())
            for _ in range(TASKS):
                tasks.create_task(work())
        elapsed_s = time.perf_counter() - clock.begin_s
    return {
        **_percentiles("send", sends_s),
        "sends": len(sends_s),
        "sendsPerS": len(sends_s) / elapsed_s,
        "failures": failures,
        "clientCpuS": clock.cpu_s,
        **_trace_counts(producer),
    }


async def _steady(order: Json) -> Json:
    async with _producer(order) as producer:
        await producer.send(Message(order["topic"], b"first"))
        sends_s, failures = await _pace(producer, order, {})
    return {**_percentiles("send", sends_s), "sent": len(sends_s), "failures": failures, **_trace_counts(producer)}


async def _latency(order: Json) -> Json:
    topic, handled_s, sent_s = order["topic"], dict[str, float](), dict[str, float]()
    config = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    async with _producer(order) as producer:
        await producer.send(Message(topic, b"first", keys="first"))
        async with Consumer(f"G{topic}", order["namesrv"], {topic: "*"}, config=config) as consumer:

            async def handle(delivery: Delivery) -> None:
                handled_s.setdefault(delivery.message.keys[0], time.perf_counter())

            running = asyncio.create_task(consumer.run(handle))
            await _all_in(handled_s, ["first"])
            sends_s, failures = await _pace(producer, order, sent_s)
            await _all_in(handled_s, list(sent_s))
        await running
    spans_s = [handled_s[key] - began_s for key, began_s in sent_s.items() if key in handled_s]
    return {
        **_percentiles("send", sends_s),
        **_percentiles("handled", spans_s),
        "sent": len(sent_s),
        "handled": len(spans_s),
        "failures": failures,
    }


async def _pace(producer: Producer, order: Json, sent_s: dict[str, float]) -> tuple[list[float], int]:
    """Send one after the other at the scheduled times; return the counted latencies and the number of failures."""
    body, sends_s, failures, clock = b"x" * 500, list[float](), 0, Clock(order)
    step_s, due_s, number = 1 / order["perS"], time.perf_counter(), 0
    while due_s < clock.end_s:
        if (rest_s := due_s - time.perf_counter()) > 0:
            await asyncio.sleep(rest_s)
        key, counts, began_s = str(number), due_s >= clock.begin_s, time.perf_counter()
        if counts:
            sent_s[key] = began_s
        try:
            await producer.send(Message(order["topic"], body, keys=key))
        except MQError:
            failures += 1
            sent_s.pop(key, None)
        else:
            if counts:
                sends_s.append(time.perf_counter() - began_s)
        due_s += step_s
        number += 1
    return sends_s, failures


async def _all_in(handled_s: dict[str, float], keys: Sequence[str]) -> None:
    """Wait until all keys are handled, or until the timeout; the result shows missing ones."""
    deadline_s = time.perf_counter() + HANDLED_TIMEOUT_S
    while not handled_s.keys() >= set(keys) and time.perf_counter() < deadline_s:
        await asyncio.sleep(0.02)


def _producer(order: Json) -> Producer:
    config = ProducerConfig(trace=TraceConfig(spool_dir=Path(order["spool"])))
    return Producer("BenchProducer", order["namesrv"], trace=order["trace"], config=config)


def _trace_counts(producer: Producer) -> Json:
    if producer.tracer is None:
        return {}
    counts = producer.tracer.counts
    return {"traceRecorded": counts.recorded, "traceSpooled": counts.spooled, "traceLost": counts.lost}


def _percentiles(name: str, spans_s: list[float]) -> Json:
    """Return p50 and p99 in milliseconds, computed like Figures.java; None without values."""
    if not spans_s:
        return {}
    spans_s.sort()
    places = ((f"{name}P50Ms", 0.50), (f"{name}P99Ms", 0.99))
    return {key: spans_s[int(len(spans_s) * part)] * 1000 for key, part in places}


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    act = {"throughput": _throughput, "steady": _steady, "latency": _latency}[order["do"]]
    print(json.dumps(asyncio.run(act(order))))
