"""Figures of the pipeline: decoding, raw trace to verdicts beside DuckDB, a real broker's trace topic to silver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from interop.driver import JavaClient
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from bench.apache import JVM_BENCH, ApachePeer
from bench.broker import PEER
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import APACHE_VERSION, Session
from bench.trace_rows import AS_OF_MS, CLUSTER, RECORDS_A_MESSAGE, DuckPipeline, codes_of, write_raw
from mqtrail import trail
from mqtrail.client import Producer, ProducerConfig
from mqtrail.lake import Change, DecodedTrace, EvidencePlan, EvidenceWriter, Lake, relation_of
from mqtrail.lake import connect as duck_connect
from mqtrail.pipeline import JavaNotFound, JobConfig, SessionConfig, spark_session
from mqtrail.pipeline.columns import COLUMNS, TRACE_COLUMNS
from mqtrail.pipeline.files import Committer
from mqtrail.pipeline.ingest import Ingest, ReadCluster
from mqtrail.pipeline.judging import Judge
from mqtrail.pipeline.pulling import TABLES, SparkPulls, chunks
from mqtrail.pipeline.tasks import SparkTasks
from mqtrail.wire import TRACE_TOPIC, Message

MESSAGES, MESSAGES_QUICK = 250_000, 5_000  # each has about five records
# Trace messages of a real broker by number of records: clients under load fill them, quiet ones do not.
TRACE_MESSAGES = {RECORDS_A_MESSAGE: 20_000, 2: 100_000}
BARS = {RECORDS_A_MESSAGE: 0.35, 2: 0.5}
TRACE_MESSAGES_QUICK = 500
CORES = 2
DRIVER_MEMORY = "4g"
WARM_ROUNDS = 2
SENDS_AT_ONCE = 64
PULL_COUNT = 32
# One heap, one run of several minutes, both JIT compilers; as in `pipeline run`.
SESSION = SessionConfig(app_name="mqtrail bench", master=f"local[{CORES},4]", driver_memory=DRIVER_MEMORY)


@figure("pipeline", "trace decode, raw trace to verdicts, a real broker's trace to silver", seconds=300)
def pipeline(session: Session) -> Iterator[Row]:
    """One warm Spark session for all rounds. DuckDB and the Java client run in turn with it."""
    session.alone()
    folder = session.fresh_folder("pipeline")
    raw = folder / "raw.parquet"
    records = write_raw(raw, MESSAGES_QUICK if session.quick else MESSAGES)
    try:
        with spark_session(SESSION) as spark:
            yield decoding(session, spark, raw, records)
            yield judging(session, spark, folder, raw, records)
            for density in TRACE_MESSAGES:
                yield pulling(session, spark, folder, density)
    except JavaNotFound as error:
        raise CannotMeasure(str(error)) from error


def decoding(session: Session, spark: SparkSession, raw: Path, records: int) -> Row:
    """Both read the same file and discard the result; a plain read produces columns of the same size."""
    rates: dict[str, list[float]] = {"decode": [], "read": []}
    for number in range(-WARM_ROUNDS, session.rounds):
        for name in session.order(number, ("decode", "read")):
            rows = read_raw(spark, raw)
            if name == "decode":
                rows = rows.mapInArrow(decode, "records bigint")
            began_s = time.perf_counter()
            rows.write.format("noop").mode("overwrite").save()
            if number >= 0:
                rates[name].append(records / (time.perf_counter() - began_s))
    what = f"trace records decoded in tasks, {CORES} cores, thrown away; the peer reads the same rows and no more"
    more = {"records": records, "raw_mib": round(raw.stat().st_size / (1 << 20), 1)}
    return Row("pipeline/decode", what, "records/s", rates["decode"], rates["read"], "plain Parquet read", more=more)


def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode messages as a task of the ingest does, for mapInArrow; give the number of records alone."""
    duck = duck_connect(threads=1, memory_limit="1GB")
    records = 0
    for chunk in chunks(batches):
        decoded = DecodedTrace(duck, chunk, CLUSTER)
        records += sum(map(len, duck.sql(decoded.events_sql).to_arrow_reader()))
        decoded.close()
    yield pa.RecordBatch.from_pylist([{"records": records}])


def judging(session: Session, spark: SparkSession, folder: Path, raw: Path, records: int) -> Row:
    """Both write every intermediate table: trace_events, attempts by hour, trajectories, verdicts, latency, keys."""
    rates: dict[str, list[float]] = {"spark": [], "duckdb": []}
    parts: dict[str, list[float]] = {"bronze_and_silver_s": [], "gold_s": []}
    codes: dict[str, dict[str, int]] = {}
    for number in range(-1, session.rounds):
        for name in session.order(number, ("spark", "duckdb")):
            target = session.fresh_folder(name)
            began_s = time.perf_counter()
            if name == "duckdb":
                peer = DuckPipeline(raw, target, threads=CORES)
                peer.run()
            else:
                lake, split_s = spark_pipeline(spark, raw, target)
            took_s = time.perf_counter() - began_s
            codes[name] = (
                peer.codes() if name == "duckdb" else codes_of(duck_connect(), f"({relation_of(lake['verdicts'])})")
            )
            if number >= 0:
                rates[name].append(records / took_s)
                if name == "spark":
                    parts["bronze_and_silver_s"].append(split_s - began_s)
                    parts["gold_s"].append(began_s + took_s - split_s)
    if codes["spark"] != codes["duckdb"]:
        raise RuntimeError(f"Spark and DuckDB differ in their verdicts: {codes}")
    more = {"records": records, **{name: [round(each, 2) for each in spans] for name, spans in parts.items()}}
    what = f"raw trace to trajectories and verdicts, {CORES} cores, all tables written"
    bar = Bar(">=", 0.5)
    return Row("pipeline/verdicts", what, "records/s", rates["spark"], rates["duckdb"], "DuckDB", bar, more=more)


def spark_pipeline(spark: SparkSession, raw: Path, target: Path) -> tuple[Lake, float]:
    """Run a cycle of the job on existing rows; return the lake and the time when silver was done."""
    lake = Lake.create(target)
    committer = Committer(lake)
    folders = {relation.name: str(lake[relation.name].path / "batch=ingest-1") for relation in TABLES}
    written = read_raw(spark, raw).mapInArrow(write_files(folders), "relation string, path string").collect()
    files = {name: [Path(path) for relation, path in written if relation == name] for name in folders}
    lake.batches.commit("ingest", 1, {name: Change(added=paths) for name, paths in files.items() if paths}, {})
    silver_s = time.perf_counter()
    Judge(SparkTasks(spark), lake, committer, trail.Settings()).run(CLUSTER, AS_OF_MS)
    lake.refresh()
    return lake, silver_s


def write_files(folders: dict[str, str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function by which a task of the ingest writes its messages, for mapInArrow."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        own = {name: f"{folder}/{context.taskAttemptId()}" for name, folder in folders.items()}
        plan = EvidencePlan(cluster=CLUSTER, folders=own, delay_levels_ms=(), read_ms=AS_OF_MS)
        writer = EvidenceWriter(duck_connect(threads=1, memory_limit="1GB"), plan)
        for chunk in chunks(batches):
            writer.trace(chunk)
        writer.finish()
        names, paths = zip(*((name, str(path)) for name, path, _ in writer.files()), strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(names), pa.array(paths)], ["relation", "path"])

    return write


def read_raw(spark: SparkSession, raw: Path) -> DataFrame:
    """Return the trace messages in as many partitions as cores, as the source does."""
    types = {column.name: column.type for column in COLUMNS}
    schema = ", ".join(f"{name} {types[name]}" for name in TRACE_COLUMNS)
    return spark.read.schema(schema).parquet(str(raw))


def pulling(session: Session, spark: SparkSession, folder: Path, density: int) -> Row:
    """The trace topic of a real broker: our job's ingest, to the commit of bronze and silver, beside a loop that only
    counts."""
    count = TRACE_MESSAGES_QUICK if session.quick else TRACE_MESSAGES[density]
    bodies = folder / "bodies.parquet"
    write_raw(bodies, count * density // 5, density)
    rates: dict[str, list[float]] = {"ours": [], "java": []}
    with (
        ApachePeer(APACHE_VERSION, session.fresh_folder("apache")) as apache,
        JavaClient(APACHE_VERSION, folder / "java", apache.namesrv_address, binary_headers=True, jvm=JVM_BENCH) as java,
    ):
        stored = asyncio.run(store(apache.namesrv_address, bodies))
        for number in range(-1, session.rounds):
            for name in session.order(number, ("ours", "java")):
                if name == "java":
                    reported = java.call(
                        "pullAll",
                        namesrv=apache.namesrv_address,
                        group="BenchPull",
                        topic=TRACE_TOPIC,
                        count=PULL_COUNT,
                        timeout_s=600,
                    )
                    pulled, took_s = int(reported["messages"]), float(reported["seconds"])
                else:
                    pulled, took_s = ingest_all(spark, session.fresh_folder("bronze"), apache.namesrv_address)
                if pulled != stored:
                    raise RuntimeError(f"{name} read {pulled} trace messages of {stored}")
                if number >= 0:
                    rates[name].append(pulled / took_s)
    more = {"trace_messages": stored, "records_a_message": density}
    what = f"trace messages of a real broker, {density} records each, to silver, committed; the peer pulls and counts"
    peer = f"{PEER}: Java client's pull loop"
    figure_name = f"pipeline/ingest/{density}-records"
    return Row(figure_name, what, "messages/s", rates["ours"], rates["java"], peer, Bar(">=", BARS[density]), more=more)


def ingest_all(spark: SparkSession, lake: Path, namesrv: str) -> tuple[int, float]:
    """Read the whole trace topic into bronze and silver of a new lake; return its message count and the seconds."""
    config = JobConfig(namesrv=namesrv, lake=lake)
    ingest = Ingest(SparkPulls(spark), Lake.create(lake), config)
    began_s = time.perf_counter()
    counts = ingest.run(ReadCluster(CLUSTER, (TRACE_TOPIC,), (), ()), fail_on_data_loss=True)
    return counts.trace_messages, time.perf_counter() - began_s


async def store(namesrv: str, bodies: Path) -> int:
    """Send every body of the file to the trace topic, compressed like clients do; return the count."""
    texts: list[Any] = pq.read_table(bodies, columns=["body_text"])["body_text"].to_pylist()
    waiting = iter(texts)

    async def work(producer: Producer) -> None:
        for text in waiting:
            await producer.send(Message(TRACE_TOPIC, text.encode()))

    async with Producer("BenchTrace", namesrv, config=ProducerConfig()) as producer, asyncio.TaskGroup() as tasks:
        for _ in range(SENDS_AT_ONCE):
            tasks.create_task(work(producer))
    return len(texts)
