"""The figure of freshness: from the broker's storing of a record to the commit of the answer that contains it.

`pipeline run` with its defaults beside a broker that gets messages and their trace at a steady rate, on the same cores.
The load is a process of its own: it sends messages, and trace messages about them as clients of two groups would.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import md5
from threading import Event, Thread

from bench.machine import busy_cores
from bench.ours import OurPeer
from bench.pipeline_bench import SESSION
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from bench.tree import ProcessTree
from mqtrail.client import Producer, ProducerConfig
from mqtrail.pipeline import JavaNotFound, JobConfig, JobReport, PipelineJob, StatusFile, freshness
from mqtrail.wire import TRACE_TOPIC, Message

PER_S = 1_000  # messages; each has RECORDS
RECORDS = 5
RECORDS_A_MESSAGE = 40
MINUTES_ENV = "BENCH_FRESHNESS_MINUTES"
MINUTES, MINUTES_QUICK = 3.0, 0.4
WARM_S = 20.0  # before the time that counts
TICK_S = 0.1
START_S_MAX = 120.0
END_S_MAX = 120.0
TOPIC = "FreshOrders"
GROUPS = ("billing", "shipping")


@figure("freshness", "from storing to the committed answer at 1 000 messages/s, 5 records each", seconds=260)
def fresh(session: Session) -> Iterator[Row]:
    """One run: its percentiles are of all rows that were stored and answered in its counted time."""
    session.alone()
    folder = session.fresh_folder("freshness")
    minutes = float(os.environ.get(MINUTES_ENV, MINUTES_QUICK if session.quick else MINUTES))
    setattr(freshness, "WINDOW_MS", round(minutes * 60_000))  # noqa: B010 - a constant elsewhere
    reports: list[JobReport] = []
    with OurPeer(folder / "broker") as broker:
        config = JobConfig(namesrv=broker.namesrv_address, lake=folder / "lake", session=SESSION)
        try:
            with PipelineJob(config) as job:
                stop = Event()
                running = Thread(target=job.run, args=(config.interval_ms, stop), kwargs={"show": reports.append})
                running.start()
                try:
                    load, cores = drive(broker, minutes, reports)
                finally:
                    stop.set()
                    running.join(END_S_MAX)
        except JavaNotFound as error:
            raise CannotMeasure(str(error)) from error
    status = StatusFile(folder / "lake").read()
    fresh = {} if status is None else status.clusters[0].freshness
    if not fresh or fresh["trace"].p95_ms is None:
        raise CannotMeasure("the pipeline answered nothing in the counted time")
    counted = [each for each in reports if each.trace_records]
    more = {
        "minutes": minutes, "cycles": len(counted), "messages_per_s": round(load["sent"] / load["seconds"]),
        "records": sum(each.trace_records for each in reports), "load_average": busy_cores(),
        "cores_of_pipeline": round(cores, 2), "cores_of_load": round(load["cpu_s"] / load["seconds"], 2),
        "cycle_s": [round(at(sorted(each.seconds for each in counted), part), 2) for part in (0.5, 0.95, 1)],
    }  # fmt: skip
    what = f"storing → committed answer, {PER_S:,} messages/s, {RECORDS} records each"
    for source, found in fresh.items():
        bars = (Bar("<=", 3.0, "ours"), Bar("<=", 5.0, "ours"))
        for name, value_ms, bar in zip(("p50", "p95"), (found.p50_ms, found.p95_ms), bars, strict=True):
            if value_ms is not None:
                about = f"{what}, {source}, {name}"
                yield Row(f"freshness/{source}/{name}", about, "s", [value_ms / 1000], bar=bar, more=more)


def at(ordered: list[float], part: float) -> float:
    """The element at a part of a sorted list."""
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def drive(broker: OurPeer, minutes: float, reports: list[JobReport]) -> tuple[dict[str, float], float]:
    """Wait for the first cycle, then run the load; return what it did, and the cores that the pipeline used."""
    begun_s = time.monotonic()
    while not reports:
        if time.monotonic() - begun_s > START_S_MAX:
            raise CannotMeasure(f"the pipeline ended no cycle in {START_S_MAX} s")
        time.sleep(TICK_S)
    seconds = WARM_S + minutes * 60
    order = {"namesrv": broker.namesrv_address, "seconds": seconds}
    command = [sys.executable, "-m", "bench.freshness", json.dumps(order)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    tree = ProcessTree(broker.pid)
    began_s, cores_s = time.monotonic(), tree.seconds()
    out, _ = process.communicate(timeout=seconds + END_S_MAX)
    took_s, used_s = time.monotonic() - began_s, tree.seconds() - cores_s
    if process.returncode:
        raise CannotMeasure(f"the load ended with {process.returncode}; its error is above")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found, (used_s - found["cpu_s"]) / took_s


# -- the load, in its process ------------------------------------------------------------------------------------------


async def load(namesrv: str, seconds: float) -> dict[str, float]:
    """Send PER_S messages a second, and the trace of each some ms later."""
    sent, records = 0, list[str]()
    began_s = time.monotonic()
    async with Producer("FreshShop", namesrv, config=ProducerConfig()) as producer:

        async def send(number: int) -> None:
            begun_ms = time.time_ns() // 1_000_000
            result = await producer.send(Message(TOPIC, b"x" * 200, keys=f"order-{number}"))
            records.extend(trace_of(result.msg_id, result.offset_msg_id, number, begun_ms))

        tick = 0
        while (at_s := began_s + tick * TICK_S) < began_s + seconds:
            await asyncio.sleep(max(0.0, at_s - time.monotonic()))
            count = int(PER_S * TICK_S)
            await asyncio.gather(*(send(sent + number) for number in range(count)))
            sent, tick = sent + count, tick + 1
            while len(records) >= RECORDS_A_MESSAGE:
                body = "".join(records[:RECORDS_A_MESSAGE]).encode()
                del records[:RECORDS_A_MESSAGE]
                await producer.send(Message(TRACE_TOPIC, body))
    return {"sent": sent, "seconds": time.monotonic() - began_s, "cpu_s": time.process_time()}


def trace_of(msg_id: str, offset_msg_id: str, number: int, begun_ms: int) -> Iterator[str]:
    """The trace of one message, as Java clients write it: a Pub, and in each group a SubBefore and a SubAfter."""
    key = f"order-{number}"
    yield record(
        "Pub", begun_ms, "DefaultRegion", "FreshShop", TOPIC, msg_id, "", key, "127.0.0.1:10911", 200, 2, 0,
        offset_msg_id, "true",
    )  # fmt: skip
    for group in GROUPS:
        request = md5(f"{number}{group}".encode()).hexdigest()
        yield record("SubBefore", begun_ms + 3, "DefaultRegion", group, request, msg_id, 0, key)
        yield record("SubAfter", request, msg_id, 4, "true", key, 0, begun_ms + 7, group)


def record(*fields: object) -> str:
    """One record of a trace message."""
    return "\x01".join(map(str, fields)) + "\x02"


if __name__ == "__main__":
    print(json.dumps(asyncio.run(load(**json.loads(sys.argv[1])))))
