"""The whole job with the embedded broker: actions of clients, and their verdicts."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from tests.loops import run

from mqtrail import trail
from mqtrail.client import Consumer, Producer
from mqtrail.clock import now_ms
from mqtrail.lake import parquet_of
from mqtrail.pipeline import (
    Backfill,
    BackfillFiles,
    JobConfig,
    JobReport,
    PipelineJob,
    StartingOffsets,
    StatusFile,
)
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import TRACE_TOPIC, Message

TOPIC, GROUP = "orders", "points"

# Some forty Spark jobs each: seconds on a quiet machine, minutes on one that others load.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture(scope="module")
def job(spark: SparkSession, broker: Embedded, tmp_path_factory: pytest.TempPathFactory) -> PipelineJob:
    """One lake for all tests here: a judgement takes seconds, and one without work none."""
    return PipelineJob(JobConfig(namesrv=broker.namesrv_address, lake=tmp_path_factory.mktemp("job") / "lake")).use(
        spark
    )


def trade(namesrv: str, count: int) -> None:
    """Send count messages and consume them all, traced on both sides."""

    async def main() -> None:
        done = asyncio.Event()
        consumed = 0

        async def handler(delivery: Any) -> None:
            nonlocal consumed
            consumed += 1
            if consumed == count:
                done.set()

        async with (
            Producer("shop", namesrv, trace=True) as producer,
            Consumer(GROUP, namesrv, {TOPIC: "*"}, trace=True) as consumer,
        ):
            consuming = asyncio.create_task(consumer.run(handler))
            for number in range(count):
                await producer.send(Message(TOPIC, b"body", keys=f"order-{number}", tags="T"))
            await asyncio.wait_for(done.wait(), 60)
            consuming.cancel()

    run(main())


def rows(job: PipelineJob, relation: trail.Relation, columns: str) -> list[tuple[Any, ...]]:
    paths = job.lake[relation.name].paths()
    return sorted(duckdb.execute(f"SELECT {columns} FROM {parquet_of(paths)}").fetchall(), key=repr) if paths else []


def test_from_clients_to_verdicts(job: PipelineJob, broker: Embedded) -> None:
    """Every sent and consumed message has this verdict; a second cycle finds no work, a third only new messages."""
    trade(broker.namesrv_address, 8)
    report = job.once()
    assert report.problems == ()
    assert (report.messages, report.trajectories, report.rejects, report.gaps) == (8, 8, 0, 0)
    assert report.trace_messages >= 2
    assert len(rows(job, trail.TRACE_EVENTS, "record_no")) == report.trace_records
    assert len(rows(job, trail.TRAJECTORIES, "msg_id")) == report.trajectories
    codes = rows(job, trail.VERDICTS, "group_name, state")
    assert codes == [(GROUP, "CONSUMED")] * 8
    sends = rows(job, trail.TRAJECTORIES, "send_codes, keys")
    assert sends == [("SEND_OK", f"order-{number}") for number in range(8)]
    assert len(rows(job, trail.KEY_INDEX, "key_token")) == 8
    assert {group for (group,) in rows(job, trail.GROUP_OFFSETS, "group_name")} == {GROUP}
    assert {lag for (lag,) in rows(job, trail.LAG, "lag_count")} == {0}
    read = {topic for what, topic in rows(job, trail.SAMPLES, "what, topic") if what == "READ"}
    assert {"", TOPIC} <= read
    assert TRACE_TOPIC not in read  # a range of it that is not read is lost trace, not lost messages

    idle = job.once()
    assert (idle.messages, idle.trace_records) == (0, 0)

    trade(broker.namesrv_address, 3)
    assert job.once().messages == 3
    assert len(rows(job, trail.VERDICTS, "msg_id")) == 11
    assert len(set(rows(job, trail.TRAJECTORIES, "msg_id"))) == 11


def test_run_continues_until_it_is_stopped(job: PipelineJob, broker: Embedded) -> None:
    """The loop runs cycles, reports each of them, and ends soon after the stop."""
    lines: list[str] = []
    stop = Event()
    running = PipelineJob(job.config, lambda text: (lines.append(text), stop.set() if "judged" in text else None)[0])
    worker = Thread(target=running.use(job.spark).run, args=(50, stop))
    worker.start()
    worker.join(60)
    assert not worker.is_alive()
    assert any("judged" in text for text in lines)
    status = StatusFile(job.config.lake).read()
    assert status is not None
    [one] = status.clusters
    assert (status.is_running, one.cycles, one.failures) == (False, 1, 0)


def test_a_cycle_reads_a_part_and_the_next_one_the_rest(job: PipelineJob, broker: Embedded) -> None:
    """The messages that a cycle leaves are counted, partly read topics are not claimed as read, and answers show their
    age."""
    trade(broker.namesrv_address, 6)
    reports: list[JobReport] = []
    stop = Event()
    running = PipelineJob(dataclasses.replace(job.config, messages_per_cycle_max=2, sample_interval_ms=1_000))

    def show(report: JobReport) -> None:
        reports.append(report)
        if not report.behind and sum(each.messages for each in reports) == 6:
            stop.set()

    worker = Thread(target=running.use(job.spark).run, args=(50, stop), kwargs={"show": show})
    worker.start()
    worker.join(120)
    assert not worker.is_alive()
    assert reports[0].behind > 0
    assert all(each.messages + each.trace_messages <= 2 for each in reports)
    assert reports[-1].behind == 0
    assert sum(each.messages for each in reports) == 6


def test_answers_do_not_wait_for_samples(job: PipelineJob, broker: Embedded, tmp_path: Path) -> None:
    """A cycle judges what it reads even if the only sample is older; after that, nothing is judged until the next
    sample."""
    reports: list[JobReport] = []
    stop = Event()
    running = PipelineJob(dataclasses.replace(job.config, lake=tmp_path / "lake", sample_interval_ms=3_600_000))

    def show(report: JobReport) -> None:
        reports.append(report)
        if len(reports) == 1:
            trade(broker.namesrv_address, 3)
        read = [each.messages + each.trace_messages for each in reports]
        if sum(each.messages for each in reports[1:]) == 3 and not any(read[-2:]):
            stop.set()

    worker = Thread(target=running.use(job.spark).run, args=(200, stop), kwargs={"show": show})
    worker.start()
    worker.join(120)
    assert not worker.is_alive()
    judged = [each for each in reports[1:] if each.trajectories]
    assert sum(each.trajectories for each in judged) >= 3
    assert [each.as_of_ms for each in judged] == sorted({each.as_of_ms for each in judged} - {0})
    assert reports[-1].as_of_ms == 0
    assert rows(running, trail.SAMPLES, "what").count(("SAMPLE",)) == 1


def test_backfills_give_what_one_read_gives(job: PipelineJob, broker: Embedded, tmp_path: Path) -> None:
    """Beside a running pipeline and alone: a lake that started at the latest messages gets the verdicts of one that
    read all."""
    trade(broker.namesrv_address, 3)
    job.once()
    latest = dataclasses.replace(
        job.config, starting_offsets=StartingOffsets.LATEST, backfill_messages_max=5, sample_interval_ms=1_000
    )
    beside = PipelineJob(dataclasses.replace(latest, lake=tmp_path / "beside"))
    files, stop = BackfillFiles(beside.config.lake), Event()
    reports: list[JobReport] = []

    def show(report: JobReport) -> None:
        reports.append(report)
        if len(reports) == 1:
            files.add(0, now_ms())
        elif all(not one.is_open for one in files.all()) and not report.behind and not report.trajectories:
            stop.set()

    worker = Thread(target=beside.use(job.spark).run, args=(50, stop), kwargs={"show": show})
    worker.start()
    worker.join(200)
    assert not worker.is_alive()
    assert not any("backfill" in problem for report in reports for problem in report.problems)

    alone = PipelineJob(dataclasses.replace(latest, lake=tmp_path / "alone")).use(job.spark)
    BackfillFiles(alone.config.lake).add(0, now_ms())
    progress: list[Backfill] = []
    assert alone.backfill(Event(), progress.append) == []
    assert progress[-1].state == "done"
    for filled in (beside, alone):
        for relation, columns in ((trail.TRACE_EVENTS, "msg_id, record_type"), (trail.MESSAGE_META, "queue_offset")):
            assert rows(filled, relation, columns) == rows(job, relation, columns)
        assert judged(filled) == judged(job)
        assert rows(filled, trail.GAPS, "reason") == []


def judged(job: PipelineJob) -> list[tuple[Any, ...]]:
    """The latest verdict of each message."""
    state = "max_by(state, as_of_ms)"
    grouped = f"SELECT group_name, {state} FROM {parquet_of(job.lake['verdicts'].paths())} GROUP BY msg_id, group_name"
    return sorted(duckdb.execute(grouped).fetchall())


def test_a_cluster_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    """Without a name server `once` fails with its address, and `run` reports it and tries again."""
    config = JobConfig(namesrv="127.0.0.1:1", lake=tmp_path / "lake")
    with pytest.raises(Exception, match=r"127.0.0.1:1"):
        PipelineJob(config).use(spark).once()
    lines: list[str] = []
    stop = Event()

    def say(text: str) -> None:
        lines.append(text)
        if sum("failed" in each for each in lines) == 2:
            stop.set()

    PipelineJob(config, say).use(spark).run(1, stop)
    assert "127.0.0.1:1" in lines[-1]


def test_a_stop_takes_spark_along(job: PipelineJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal to the whole process group ends Spark's JVM within a cycle: the run stops without an error."""
    lines: list[str] = []
    stop = Event()
    running = PipelineJob(job.config, lines.append).use(job.spark)

    def cycle(*_: object, **__: object) -> JobReport:
        raise ConnectionResetError("the JVM is gone")

    [one] = running.jobs
    monkeypatch.setattr(one, "begin", lambda: cycle)
    with pytest.raises(ConnectionResetError):
        running.run(1, stop)
    monkeypatch.setattr(one, "begin", lambda: lambda: (stop.set(), cycle()))
    running.run(1, stop)
    assert lines == ["stopped within a cycle: committed data is kept, and the next run continues from there"]
