"""Figures of lakes that grow: a cycle's cost beside what the lake holds, the bytes of a message, the memory of a cycle.

A lake of millions of messages is one hour made by the pipeline, and copies of that hour: other ids, other times, in
files as compaction leaves them. So a lake of a month is made in minutes. Files of bronze are links to those of the
hour: a cycle reads no rows of them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from bench.cycle import HOUR, HOUR_MS, NEW, Grown, Spans, add, grown, turn
from bench.machine import busy_cores
from bench.ours import OurPeer
from bench.pipeline_bench import SESSION, store
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from bench.trace_rows import CLUSTER, FIRST_MS, write_raw
from bench.tree import ProcessTree
from mqtrail import trail
from mqtrail.lake import Lake, LakeTable, compact, connect, copy, parquet_of
from mqtrail.pipeline import JavaNotFound, JobConfig, PipelineJob, spark_session
from mqtrail.trail import Relation

SIZES_ENV = "BENCH_GROWTH_SIZES"  # comma-separated numbers of messages, instead of SIZES
SIZES, SIZES_QUICK = (1_000_000, 10_000_000), (4_800, 24_000)
HOURS, HOURS_QUICK = 720, 24
BYTES_MESSAGES, BYTES_MESSAGES_QUICK = 200_000, 5_000
BYTES_BEFORE = 391  # of version 0.1 a message: 250 000 messages with 1.28 M records in five hours
MEMORY_ENV = "BENCH_MEMORY_MESSAGES"  # five records each
MEMORY_MESSAGES, MEMORY_MESSAGES_QUICK = 200_000, 5_000
MEMORY_RATIO = 4  # of the two cycles
MEMORY_STEP_S = 0.2
SPREAD = (trail.ATTEMPTS, trail.TRAJECTORIES, trail.VERDICTS, trail.LATENCY_MINUTE, trail.KEY_INDEX)
BYTES_TABLES = (trail.TRACE_EVENTS.name, trail.CLIENT_RECORDS.name, *(relation.name for relation in SPREAD))
INSTANT_MS_MIN = 10**12  # smaller values of columns in ms are durations


@figure("growth", "a cycle of 2 000 messages in lakes of a month, of different sizes", seconds=1_500)
def growth(session: Session) -> Iterator[Row]:
    """All lakes are measured in turn, round by round, as in `cycle`."""
    session.alone()
    folder = session.fresh_folder("growth")
    sizes = [int(size) for size in os.environ.get(SIZES_ENV, "").split(",") if size]
    sizes = sorted(sizes or (SIZES_QUICK if session.quick else SIZES))
    hours = HOURS_QUICK if session.quick else HOURS
    made_s, spent = [], {size: Spans() for size in sizes}
    try:
        with spark_session(SESSION) as spark, OurPeer(folder / "broker") as broker:
            lakes: list[Grown] = []
            for size in sizes:
                began_s = time.monotonic()
                lakes.append(grown(spark, broker, folder / str(size), size // hours))
                closed(lakes[-1].job.lake)
                spread(lakes[-1].job.lake, hours)
                made_s.append(round(time.monotonic() - began_s))
            tree = ProcessTree(broker.pid)
            for number in range(-1, session.rounds):
                raw = folder / f"new{number}.parquet"
                write_raw(raw, NEW, hours=(HOUR + hours - 1, HOUR + hours), network=2 + number)
                asyncio.run(store(broker.namesrv_address, raw))
                for size, lake in list(zip(sizes, lakes, strict=True))[:: 1 if number % 2 else -1]:
                    took = turn(lake.job, tree)
                    if number >= 0:
                        add(spent[size], took)
    except JavaNotFound as error:
        raise CannotMeasure(str(error)) from error
    files = [sum(len(table.files()) for table in lake.job.lake) for lake in lakes]
    about = {"messages": sizes, "hours": hours, "files": files, "made_s": made_s, "load_average": busy_cores()}
    small, large = sizes[0], sizes[-1]
    for size in sizes:
        what = f"core-seconds of a cycle of {NEW:,} new messages in a lake of {size:,} in {hours} hours"
        yield Row(f"growth/{size}", what, "core-s", spent[size].core_s, more=about)
    what = f"a cycle of {NEW:,} new messages in a lake of {large:,} messages of a month"
    peer, bar = f"in one of {small:,}", Bar("<=", 1.3)
    yield Row("growth/cores", what, "core-s", spent[large].core_s, spent[small].core_s, peer, bar, more=about)
    yield Row("growth/wall", what, "s", spent[large].wall_s, spent[small].wall_s, peer, more=about)


def closed(lake: Lake) -> None:
    """Compact the hour of a lake as one that has ended."""
    compact(lake, FIRST_MS // HOUR_MS + HOUR + 1, now_ms=FIRST_MS)


def spread(lake: Lake, hours: int) -> None:
    """Copy the one hour of a lake to the hours after it."""
    lake.refresh()
    duck = connect()
    with lake.writing():
        for relation in SPREAD:
            table = lake[relation.name]
            base = parquet_of(table.paths())
            targets = [table.path / f"compact-copy-{number}" / "part.parquet" for number in range(1, hours)]
            for number, target in enumerate(targets, start=1):
                target.parent.mkdir()
                copy(duck, f"SELECT {shifted(relation, number)} FROM {base}", target, table.table)
            table.swap(targets, [])
        for relation in (trail.TRACE_EVENTS, trail.MESSAGE_META):
            link(lake[relation.name], hours)
    duck.close()


def shifted(relation: Relation, hours: int) -> str:
    """Return SQL of a relation's columns, as they would be `hours` later."""
    later_ms = hours * HOUR_MS
    values = {"publish_hour": f"publish_hour + {hours}"}
    values |= {
        column.name: f"{column.name} + if({column.name} > {INSTANT_MS_MIN}, {later_ms}, 0)"
        for column in relation
        if column.name.endswith("_ms") and column.name != "as_of_ms" and column.type == "bigint"
    }
    if "msg_id" in relation.names:  # the digits of an id from 21 on are ms since the month began
        time_of_id = f"format('{{:08X}}', ('0x' || substr(msg_id, 21, 8))::bigint + {later_ms})"
        values["msg_id"] = f"substr(msg_id, 1, 20) || {time_of_id} || substr(msg_id, 29)"
    return ", ".join(f"{values.get(name, name)} AS {name}" for name in relation.names)


def link(table: LakeTable, hours: int) -> None:
    """Add the files of a table again, once for each further hour."""
    files = table.files()
    targets = []
    for number in range(1, hours):
        folder = table.path / f"compact-copy-{number}"
        folder.mkdir()
        for index, file in enumerate(files):
            targets.append(folder / f"part-{index}.parquet")
            os.link(str(table.path / file.path), str(targets[-1]))
    table.swap(targets, [])


# -- bytes -------------------------------------------------------------------------------------------------------------


@figure("lake-bytes", "bytes of lake a message, after compaction", seconds=120)
def lake_bytes(session: Session) -> Iterator[Row]:
    """The trace of a message, as in `pipeline`; without stored copies, as in the measurement of version 0.1."""
    session.alone()
    folder = session.fresh_folder("bytes")
    size = BYTES_MESSAGES_QUICK if session.quick else BYTES_MESSAGES
    try:
        with spark_session(SESSION) as spark, OurPeer(folder / "broker") as broker:
            lake = grown(spark, broker, folder / "lake", size).job.lake
    except JavaNotFound as error:
        raise CannotMeasure(str(error)) from error
    closed(lake)
    lake.refresh()
    tables = {name: sum(f.size for f in lake[name].files()) / size for name in BYTES_TABLES}
    more = {"messages": size, "tables": {name: round(value, 1) for name, value in tables.items()}}
    what = "bytes of bronze, silver and gold a message of five trace records, after compaction"
    peer = "version 0.1, before compaction"
    yield Row("lake-bytes", what, "bytes", [sum(tables.values())], [BYTES_BEFORE], peer, Bar("<=", 0.5), more=more)


# -- memory ------------------------------------------------------------------------------------------------------------


@figure("memory", "memory of driver, JVM and Python workers in one cycle, beside a cycle of a quarter", seconds=300)
def memory(session: Session) -> Iterator[Row]:
    """One cycle on a new lake for each size, in one Spark session; the smaller one first."""
    session.alone()
    folder = session.fresh_folder("memory")
    count = int(os.environ.get(MEMORY_ENV, 0)) or (MEMORY_MESSAGES_QUICK if session.quick else MEMORY_MESSAGES)
    peaks: dict[int, dict[str, float]] = {}
    records: dict[int, int] = {}
    try:
        with spark_session(SESSION) as spark, OurPeer(folder / "broker") as broker:
            sent = 0
            for size in (count // MEMORY_RATIO, count):
                raw, lake = folder / f"{size}.parquet", folder / f"lake-{size}"
                write_raw(raw, size - sent, network=size % 250)
                asyncio.run(store(broker.namesrv_address, raw))
                raw.unlink()
                sent = size
                settings = JobConfig(namesrv=broker.namesrv_address, cluster=CLUSTER, lake=lake, topics=())
                with peak_memory(broker.pid) as peaks[size]:
                    records[size] = PipelineJob(settings).use(spark).once().trace_records
                shutil.rmtree(lake)
    except JavaNotFound as error:
        raise CannotMeasure(str(error)) from error
    small, large = sorted(peaks)
    config = JobConfig(namesrv="", lake=folder)
    about = {
        "records": [records[small], records[large]], "task_memory": config.task_memory,
        "driver_memory": SESSION.driver_memory, "offsets_per_batch_max": config.offsets_per_batch_max,
    }  # fmt: skip
    for role, peak in peaks[large].items():
        what = f"greatest memory of {role} in a cycle of {records[large]:,} records"
        peer = f"in one of {records[small]:,}"
        yield Row(f"memory/{role}", what, "MiB", [peak], [peaks[small][role]], peer, more=about)


@contextmanager
def peak_memory(but_pid: int) -> Iterator[dict[str, float]]:
    """Yield the greatest memory of the driver, the JVM and all Python workers while the block runs, in MiB.

    Pages that processes share count once (Pss).
    """
    peaks = dict.fromkeys(("driver", "jvm", "workers"), 0.0)
    tree, ended = ProcessTree(but_pid), Event()

    def look() -> None:
        while not ended.wait(MEMORY_STEP_S):
            now = dict.fromkeys(peaks, 0.0)
            for pid in tree.pids():
                role = "driver" if pid == os.getpid() else "jvm" if is_java(pid) else "workers"
                now[role] += pss_mib(pid)
            for role, mib in now.items():
                peaks[role] = max(peaks[role], mib)

    thread = Thread(target=look, name="bench-memory", daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def is_java(pid: int) -> bool:
    """Whether a process is a JVM; False: it has ended."""
    try:
        return "java" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False


def pss_mib(pid: int) -> float:
    """Memory of a process, its part of shared pages included; 0: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
