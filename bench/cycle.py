"""Figures of one cycle of the pipeline: its cost does not grow with the content of the lake or of the hour.

Lakes of several sizes get messages of one hour, as cycles and compaction leave them. Then a real broker gets the trace
of 2 000 messages, of that hour or of an empty one, and a cycle reads, judges and commits them. Core-seconds are those
of this process and all that it started: driver, JVM, Python workers, and not the broker.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.machine import busy_cores
from bench.ours import OurPeer
from bench.pipeline_bench import SESSION, store
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from bench.trace_rows import CLUSTER, FIRST_MS, write_raw
from bench.tree import ProcessTree
from mqtrail import trail
from mqtrail.lake import Change, EvidencePlan, EvidenceWriter, Lake, compact, connect, define_lag
from mqtrail.pipeline import JavaNotFound, JobConfig, PipelineJob, spark_session
from mqtrail.pipeline.files import Committer
from mqtrail.pipeline.judging import Judge
from mqtrail.pipeline.pulling import TABLES
from mqtrail.pipeline.recording import Recorder
from mqtrail.pipeline.sampling import ClusterSample
from mqtrail.pipeline.tasks import SparkTasks

SIZES_ENV = "BENCH_CYCLE_SIZES"  # comma-separated numbers of messages, instead of SIZES
SIZES, SIZES_QUICK = (100_000, 1_000_000), (2_000, 10_000)
NEW = 2_000  # messages of a cycle
PIECE = 100_000  # messages that a lake gets at once
HOUR = 2  # of the month: that of the messages of a lake
EMPTY_HOURS = 100  # of the month: from here on each round has an hour of its own
HOUR_MS = 3_600_000
QUEUES = 160  # queues of the stored messages, on which groups are behind
APP = "ingest"
STORED = "Stored"  # cluster of the stored messages that groups have not read


@dataclass(slots=True)
class Spans:
    """Wall and core-seconds of the rounds of one kind of cycle."""

    wall_s: list[float] = field(default_factory=list)
    core_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Grown:
    """A lake with messages, and what was measured on it."""

    size: int
    job: PipelineJob
    lag_ms: int
    """The sample whose lag is measured."""
    kinds: dict[str, Spans] = field(
        default_factory=lambda: {name: Spans() for name in ("idle", "full", "empty", "lag")}
    )


@figure("cycle", "a cycle with nothing new, and of 2 000 messages in lakes and hours of different sizes", seconds=420)
def cycle(session: Session) -> Iterator[Row]:
    """All lakes are measured in turn, round by round; the order of each second round is reversed."""
    session.alone()
    folder = session.fresh_folder("cycle")
    sizes = [int(size) for size in os.environ.get(SIZES_ENV, "").split(",") if size]
    sizes = sorted(sizes or (SIZES_QUICK if session.quick else SIZES))
    try:
        with ExitStack() as stack:
            spark = stack.enter_context(spark_session(SESSION))
            broker = stack.enter_context(OurPeer(folder / "broker"))
            lakes = [grown(spark, broker, folder / str(size), size) for size in sizes]
            for lake in lakes:  # as a pipeline that runs
                stack.enter_context(lake.job.lake.writing())
            tree = ProcessTree(broker.pid)
            for number in range(-1, session.rounds):
                measure(session, broker, folder, lakes, number, tree)
    except JavaNotFound as error:
        raise CannotMeasure(str(error)) from error
    yield from rows(lakes)


def measure(
    session: Session, broker: OurPeer, folder: Path, lakes: list[Grown], number: int, tree: ProcessTree
) -> None:
    """One round; the first one, number -1, warms up and is not counted."""
    names = session.order(number, ("full", "empty"))
    for name in names:
        hour = HOUR if name == "full" else EMPTY_HOURS + 2 * number
        send_new(broker, folder / f"{name}{number}.parquet", hour, 2 * (number + 2) + (name == "full"))
        for lake in lakes[:: 1 if number % 2 else -1]:
            took = turn(lake.job, tree)
            if number >= 0:
                add(lake.kinds[name], took)
    for lake in lakes:
        took = turn(lake.job, tree)
        lag = lag_turn(lake)
        if number >= 0:
            add(lake.kinds["idle"], took)
            add(lake.kinds["lag"], lag)


def add(spans: Spans, took: tuple[float, float]) -> None:
    """Add one measurement."""
    spans.wall_s.append(took[0])
    spans.core_s.append(took[1])


def turn(job: PipelineJob, tree: ProcessTree) -> tuple[float, float]:
    """Run one cycle; return its wall and core-seconds."""
    cores_s, began_s = tree.seconds(), time.perf_counter()
    job.once()
    took_s = time.perf_counter() - began_s
    return took_s, tree.seconds() - cores_s


def lag_turn(lake: Grown) -> tuple[float, float]:
    """Compute the lag of the sample in which every queue has a group that is behind."""
    cores_s, began_s = time.process_time(), time.perf_counter()
    duck = connect()
    define_lag(duck, lake.job.lake, STORED, lake.lag_ms)
    [(count,)] = duck.execute("SELECT count(lag_ms) FROM lag").fetchall()
    duck.close()
    if count != QUEUES:
        raise RuntimeError(f"found the lag of {count} queues, expected {QUEUES}")
    return time.perf_counter() - began_s, time.process_time() - cores_s


def rows(lakes: list[Grown]) -> Iterator[Row]:
    """The figures of all lakes."""
    small, large = lakes[0], lakes[-1]
    full, empty, idle = (large.kinds[name] for name in ("full", "empty", "idle"))
    about = {"lakes": [lake.size for lake in lakes], "load_average": busy_cores()}
    what = f"a cycle with nothing new, a lake of {large.size:,} messages"
    bar = Bar("<=", 0.3, "ours")
    of_small = f"the same, a lake of {small.size:,}"
    yield Row("cycle/idle", what, "s", idle.wall_s, small.kinds["idle"].wall_s, of_small, bar, more=about)
    yield Row("cycle/idle/cores", what, "core-s", idle.core_s, small.kinds["idle"].core_s, of_small, more=about)
    what = f"a cycle of {NEW:,} new messages in an hour that has {large.size:,}"
    yield Row("cycle/full-hour", what, "s", full.wall_s, empty.wall_s, "in an empty hour", Bar("<=", 1.3), more=about)
    yield Row("cycle/wall", what, "s", full.wall_s, bar=Bar("<=", 1.5, "ours"), more=about)
    yield Row("cycle/cores", what, "core-s", full.core_s, bar=Bar("<=", 2.5, "ours"), more=about)
    peer = f"in a lake and hour of {small.size:,}"
    yield Row("cycle/flat", what, "core-s", full.core_s, small.kinds["full"].core_s, peer, Bar("<=", 1.3), more=about)
    what = f"the lag of {QUEUES} queues, all behind, in a lake of {large.size:,} messages"
    lag, small_lag = large.kinds["lag"].core_s, small.kinds["lag"].core_s
    yield Row("cycle/lag", what, "core-s", lag, small_lag, f"in a lake of {small.size:,}", Bar("<=", 1.3), more=about)


# -- lakes and messages ------------------------------------------------------------------------------------------------


def grown(spark: SparkSession, broker: OurPeer, folder: Path, size: int) -> Grown:
    """A lake whose hour has `size` messages, in the files that cycles and compaction leave; and a job on it."""
    lake = Lake.create(folder)
    committer = Committer(lake)
    pieces = max(1, size // PIECE)
    for number in range(pieces):
        raw = folder / "raw.parquet"
        within = (HOUR + number / pieces, HOUR + (number + 1) / pieces)
        write_raw(raw, size // pieces, hours=within, network=100 + number)
        grow(lake, raw, number + 1, size // pieces, within)
        raw.unlink()
        judge = Judge(SparkTasks(spark), lake, committer, trail.Settings())
        judge.run(CLUSTER, FIRST_MS + EMPTY_HOURS * HOUR_MS + number)
        compact(lake, HOUR, now_ms=FIRST_MS)
    lag_ms = record_lag(lake, size)
    config = JobConfig(namesrv=broker.namesrv_address, cluster=CLUSTER, lake=folder, topics=(), retention_ms=1 << 50)
    return Grown(size, PipelineJob(config).use(spark), lag_ms)


def grow(lake: Lake, raw: Path, number: int, count: int, hours: tuple[float, float]) -> None:
    """Commit the trace of some messages, and their stored copies."""
    folders = {relation.name: str(lake[relation.name].path / f"batch={APP}-{number}") for relation in TABLES}
    plan = EvidencePlan(cluster=CLUSTER, folders=folders, delay_levels_ms=(), read_ms=FIRST_MS)
    duck = connect(memory_limit="1GB")
    writer = EvidenceWriter(duck, plan)
    with pq.ParquetFile(raw) as parquet:
        for batch in parquet.iter_batches(4096):
            writer.trace(pa.Table.from_batches([batch]))
    writer.finish()
    changes = {name: [path for of, path, _ in writer.files() if of == name] for name in folders}
    stored = lake[trail.MESSAGE_META.name].path / f"batch={APP}-{number}" / "part.parquet"
    spans = lake[trail.QUEUE_SPANS.name].path / f"batch={APP}-{number}" / "part.parquet"
    for path in (stored, spans):
        path.parent.mkdir(parents=True, exist_ok=True)
    first = (number - 1) * count
    at_ms = f"{FIRST_MS + round(hours[0] * HOUR_MS)} + range * {round((hours[1] - hours[0]) * HOUR_MS)} // {count}"
    values = {c.name: "''" if c.type == "string" else "NULL" for c in trail.MESSAGE_META} | {
        "cluster": f"'{STORED}'", "topic": "'orders'", "broker_name": "'broker-a'", "queue_id": f"range % {QUEUES}",
        "queue_offset": f"({first} + range) // {QUEUES}", "store_ms": at_ms, "last_unique_key": "md5(range::string)",
    }  # fmt: skip
    duck.execute(
        f"COPY (SELECT {trail.MESSAGE_META.typed(values)} FROM range({count})) TO '{stored}' (COMPRESSION zstd)"
    )
    spans_sql = trail.queue_spans_sql(f"read_parquet('{stored}')")
    duck.execute(f"COPY ({spans_sql}) TO '{spans}'")
    duck.close()
    changes[trail.MESSAGE_META.name] = [stored]
    changes[trail.QUEUE_SPANS.name] = [spans]
    lake.batches.commit(APP, number, {name: Change(paths) for name, paths in changes.items() if paths}, {"offsets": {}})


def record_lag(lake: Lake, size: int) -> int:
    """Record a sample in which a group is behind in every queue, by a tenth of what the queue has; return its time."""
    end = size // QUEUES
    queues = [{"topic": "orders", "broker_name": "broker-a", "queue_id": queue_id} for queue_id in range(QUEUES)]
    found = ClusterSample(FIRST_MS + (EMPTY_HOURS + 1) * HOUR_MS)
    for queue in queues:
        found.add(trail.GROUP_OFFSETS, {**queue, "group_name": "late", "consumer_offset": end - end // 10 - 1})
        found.add(trail.QUEUE_RANGES, {**queue, "min_offset": 0, "max_offset": end})
    found.answers = {("OFFSETS", "broker-a", ""): "", ("RANGES", "broker-a", "orders"): ""}
    Recorder(lake, STORED, 1 << 50).record([found])
    return found.sampled_ms


def send_new(broker: OurPeer, raw: Path, hour: int, network: int) -> None:
    """Send the trace of NEW messages of an hour."""
    write_raw(raw, NEW, hours=(hour, hour + 1), network=network)
    asyncio.run(store(broker.namesrv_address, raw))
    raw.unlink()
