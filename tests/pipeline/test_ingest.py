"""From queues to bronze and silver, exactly once, for a crash at any point between a write and its commit."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.pipeline.faults import SparkFailed

from mqtrail import trail
from mqtrail.clock import now_ms
from mqtrail.lake import EvidenceWriter, Lake, LakeError, LakeTable, arrow_rows, parquet_of, write_parquet
from mqtrail.lake.batches import Batches
from mqtrail.pipeline import JobConfig, JobFailed, ingest
from mqtrail.pipeline.begin import BORDER_MS
from mqtrail.pipeline.bounds import bounds_of
from mqtrail.pipeline.files import Committer
from mqtrail.pipeline.ingest import Counts, Ingest, ReadCluster
from mqtrail.pipeline.late_workers import WORKER_STARTS_MAX
from mqtrail.pipeline.offsets import QueueRange
from mqtrail.pipeline.positions import APP
from mqtrail.pipeline.pulling import PulledFile, PullTasks, PullWork, SparkPulls, pull
from mqtrail.wire import (
    DELAY_LEVELS_MS,
    MessageQueue,
    MQError,
    Pub,
    SubAfter,
    SubBefore,
    TraceBatch,
    TraceLoss,
    compress,
    encode_trace,
)
from mqtrail.wire.trace_records import OffsetCommit

from .conftest import FolderCluster

T0 = MessageQueue("TRACE", "broker-a", 0)
T1 = MessageQueue("TRACE", "broker-b", 0)
ORDERS = MessageQueue("orders", "broker-a", 0)
HOUR_0_MS = 1_700_000_000_000
STORED_MS = 1_700_000_000_005
"""When the first message of each queue was stored; the next ones 1 ms later each."""
CLUSTER = ReadCluster("c", ("TRACE",), ("orders",), tuple(DELAY_LEVELS_MS))
BRONZE_KEYS = {
    trail.TRACE_EVENTS: ("broker_name", "queue_id", "queue_offset", "record_no", "item_no"),
    trail.TRACE_REJECTS: ("broker_name", "queue_id", "queue_offset", "record_no"),
    trail.MESSAGE_META: ("broker_name", "topic", "queue_id", "queue_offset"),
    trail.GAPS: ("broker_name", "topic", "queue_id", "first_offset"),
}


def msg_id(number: int) -> str:
    return f"C0A8010904D218B4AAC22F1C0A7B{number:04X}"


def trace(numbers: Iterable[int]) -> bytes:
    """One trace message with the send and the only delivery of each message."""
    records: list[Any] = []
    for number in numbers:
        records.append(
            Pub(
                time_stamp=HOUR_0_MS + number,
                region_id="R",
                group_name="PG",
                topic="orders",
                msg_id=msg_id(number),
                tags="T",
                keys=f"k{number}",
                store_host="10.0.0.1:10911",
                body_length=9,
                cost_time=3,
                msg_type=0,
                offset_msg_id="OID",
                is_success=True,
            )
        )
        records.append(
            SubBefore(
                time_stamp=HOUR_0_MS + number + 10,
                region_id="R",
                group_name="CG",
                request_id=f"r{number}",
                msg_id=msg_id(number),
                retry_times=0,
                keys=f"k{number}",
            )
        )
        records.append(
            SubAfter(
                request_id=f"r{number}",
                msg_id=msg_id(number),
                cost_time=2,
                is_success=True,
                keys=f"k{number}",
                context_code=0,
                time_stamp=HOUR_0_MS + number + 12,
                group_name="CG",
            )
        )
    return encode_trace(records).encode()


class LocalPulls:
    """Run two tasks in this process, one after the other."""

    parallelism = 2

    def run(self, work: PullWork, pieces: Sequence[Sequence[QueueRange]]) -> list[PulledFile]:
        return [file for number, piece in enumerate(pieces) for file in pull(work, piece, str(number))]


class Reader:
    """Ingest of a folder cluster into its own lake; a new instance acts as a restarted process."""

    def __init__(self, folder: Path, source: Any, tasks: PullTasks | None = None, **settings: Any) -> None:
        from tests.pipeline.conftest import FolderDataSource

        self.lake = Lake.create(folder / "lake")
        with self.lake.writing():  # as the job does: finishes what a crash left
            pass
        config = JobConfig(namesrv=str(source.folder), lake=folder / "lake", retry_timeout_ms=1_000, **settings)
        self.committer = Committer(self.lake)
        self.ingest = Ingest(tasks or LocalPulls(), self.lake, config, FolderDataSource)

    def run(self, *, fail_on_data_loss: bool = True) -> Counts:
        return self.ingest.run(CLUSTER, fail_on_data_loss=fail_on_data_loss)

    def rows(self, relation: trail.Relation, columns: str = "*") -> list[tuple[Any, ...]]:
        paths = self.lake[relation.name].paths()
        return (
            sorted(duckdb.execute(f"SELECT {columns} FROM {parquet_of(paths)}").fetchall(), key=repr) if paths else []
        )

    def clock_bounds(self) -> list[tuple[Any, ...]]:
        paths = self.lake[trail.CLOCK_BOUNDS.name].paths()
        return sorted(duckdb.execute(trail.folded_clock_bounds_sql(parquet_of(paths))).fetchall())

    def keys(self, relation: trail.Relation) -> list[tuple[Any, ...]]:
        return self.rows(relation, ", ".join(BRONZE_KEYS[relation]))


@pytest.fixture
def reader(tmp_path: Path, cluster: Any) -> Reader:
    return Reader(tmp_path, cluster)


def fill(cluster: Any, first: int = 0, count: int = 6) -> None:
    """Store messages on orders, and trace messages about them on two brokers, two messages in each."""
    numbers = range(first, first + count)
    for number in numbers:
        cluster.append(ORDERS, b"body", properties={"UNIQ_KEY": msg_id(number), "TAGS": "T"})
    for number in numbers[::2]:
        cluster.append(T0 if number % 4 else T1, trace(numbers[number - first : number - first + 2]))


def test_bronze_and_silver(reader: Reader, cluster: Any) -> None:
    """Every record and message has its row in bronze, and its attempt in silver in the publish hour of its id."""
    fill(cluster)
    counts = reader.run()
    assert (counts.trace_messages, counts.of(trail.TRACE_EVENTS), counts.of(trail.MESSAGE_META)) == (3, 18, 6)
    assert len(set(reader.keys(trail.TRACE_EVENTS))) == 18
    assert reader.keys(trail.MESSAGE_META) == [("broker-a", "orders", 0, offset) for offset in range(6)]
    attempts = reader.rows(trail.ATTEMPTS, "msg_id, kind, attempt_key, publish_hour")
    assert len(attempts) == 18  # a send, a delivery of two records, and a stored copy each
    assert {kind for _, kind, _, _ in attempts} == {"SEND", "HANDLED", "STORED"}
    hours = {hour for *_, hour in attempts}
    assert len(hours) == 1


def test_indexes_of_bronze(reader: Reader, cluster: Any) -> None:
    """The tables of clients and of offsets in bronze are written with the data, in bulk and row by row."""
    place: dict[str, Any] = {"group_name": "CG", "topic": "orders", "broker_name": "broker-a", "queue_id": 0}
    commit = OffsetCommit(time_stamp=HOUR_0_MS, **place, consumer_offset=3, client_id="c1")
    for number in (1, 2):
        head = TraceBatch(client_id="c1", start_id="s", sequence=number, time_stamp=HOUR_0_MS, dropped_total=0)
        cluster.append(T0, encode_trace([head, commit]).encode())
        fill(cluster, first=4 * number, count=4)
        reader.run()
    late = TraceLoss(client_id="c1", start_id="s", from_ms=1, to_ms=2, count=7, reason="FULL")
    cluster.append(T0, encode_trace([late]).replace("\x017\x01", "\x01+7\x01").encode())  # read one by one
    reader.run()
    for relation, source, sql in (
        (trail.CLIENT_RECORDS, trail.TRACE_EVENTS, trail.client_records_sql),
        (trail.QUEUE_SPANS, trail.MESSAGE_META, trail.queue_spans_sql),
    ):
        bronze = parquet_of(reader.lake[source.name].paths())
        wanted = duckdb.execute(sql(bronze)).fetchall()
        assert len(wanted) == {trail.CLIENT_RECORDS: 5, trail.QUEUE_SPANS: 1}[relation]
        if relation is trail.CLIENT_RECORDS:
            assert reader.rows(relation) == sorted(wanted, key=repr)
    assert reader.rows(trail.QUEUE_SPANS, "topic, queue_id, first_offset, last_offset") == [
        ("orders", 0, 0, 3),
        ("orders", 0, 4, 7),
    ]


def test_runs_go_on_where_the_last_ended(reader: Reader, cluster: Any) -> None:
    """A second run adds the messages stored since; a third run adds none."""
    fill(cluster)
    reader.run()
    fill(cluster, first=6, count=2)
    counts = reader.run()
    assert (counts.of(trail.TRACE_EVENTS), counts.of(trail.MESSAGE_META)) == (6, 2)
    assert not reader.run().rows
    assert len(set(reader.keys(trail.TRACE_EVENTS))) == len(reader.keys(trail.TRACE_EVENTS)) == 24
    assert reader.ingest.offsets() == {T0: 2, T1: 2, ORDERS: 8}


def fill_all(cluster: Any) -> None:
    """Write rows for every table."""
    fill(cluster)
    cluster.append(T0, b"Unknown\x01x\x02" + trace([50]))


def assert_all_once(reader: Reader) -> None:
    """Each row of fill_all is in the lake once, in files that exist."""
    assert len(reader.keys(trail.TRACE_EVENTS)) == len(set(reader.keys(trail.TRACE_EVENTS))) == 21
    assert len(reader.keys(trail.TRACE_REJECTS)) == 1
    assert len(reader.rows(trail.MESSAGE_META)) == 6
    assert len(reader.rows(trail.ATTEMPTS)) == 20
    assert all(Path(path).exists() for table in reader.lake for path in table.paths())


class Died(BaseException):
    """The process dies: no handler catches this."""


WRITES = (
    (EvidenceWriter, "trace"),
    (EvidenceWriter, "stored"),
    (EvidenceWriter, "finish"),
    (Batches, "commit"),
    (LakeTable, "commit_actions"),
)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("place", "name"), WRITES, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_a_crash_at_every_write(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, when: str
) -> None:
    """A process may die at any call of one write: the next process brings every row once.

    It dies at each call in turn, with a new process each time, until one run succeeds.
    """
    fill_all(cluster)
    plain = getattr(place, name)
    for calls in range(20):
        left = calls

        def dying(self: Any, *arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1 and when == "before":
                raise Died
            result = plain(self, *arguments, **named)
            if left == -1:
                raise Died
            return result

        with monkeypatch.context() as patch:
            patch.setattr(place, name, dying)
            try:
                Reader(tmp_path, cluster).run()
            except Died:
                continue
        break
    else:
        pytest.fail("never got through")
    assert calls > 0 or name == "stored"
    restarted = Reader(tmp_path, cluster)
    assert not restarted.run().rows
    assert_all_once(restarted)


def test_a_process_that_lives_on_finishes_its_batch(
    reader: Reader, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a cycle fails between the record of a batch and its tables, the next cycle finishes it without reading."""
    fill_all(cluster)
    plain = LakeTable.commit_actions

    def failing(self: LakeTable, *arguments: Any, **named: Any) -> Any:
        if self.table.relation is trail.ATTEMPTS:
            raise OSError("disk full")
        return plain(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit_actions", failing)
        with pytest.raises(LakeError, match="disk full"):
            reader.run()
    assert not reader.run().rows
    assert_all_once(reader)


@pytest.mark.slow
def test_tasks_read_the_same(cluster: Any, tmp_path: Path) -> None:
    """A large amount, divided into tasks and batches, gives the rows of a small one."""
    fill_all(cluster)
    spread = Reader(tmp_path / "spread", cluster, driver_messages_max=0, offsets_per_batch_max=4)
    counts = spread.run()
    whole = Reader(tmp_path / "whole", cluster)
    found = whole.run()
    for name in ("queue_spans", "clock_bounds"):  # each task that reads a queue writes its own rows
        assert found.rows.pop(name) < counts.rows.pop(name)
    assert found == counts
    columns = ", ".join(name for name in trail.MESSAGE_META.names if name != "read_ms")
    assert spread.rows(trail.MESSAGE_META, columns) == whole.rows(trail.MESSAGE_META, columns)
    for relation in (trail.TRACE_EVENTS, trail.TRACE_REJECTS):
        assert spread.rows(relation) == whole.rows(relation)
    assert spread.clock_bounds() == whole.clock_bounds()
    assert spread.ingest.offsets() == whole.ingest.offsets()
    last = spread.lake.batches.last(APP)
    assert last is not None
    assert last.number == 3


@pytest.mark.slow
def test_chunks_give_the_same_rows(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the chunks that a task decodes changes files, not rows."""
    fill_all(cluster)
    monkeypatch.setattr("mqtrail.pipeline.pulling.CHUNK_SIZE_MAX", 1)
    monkeypatch.setattr("mqtrail.pipeline.columns.BATCH_ROWS_MAX", 1)
    monkeypatch.setattr("mqtrail.lake.decoding.SILVER_ROWS", 1)
    monkeypatch.setattr("mqtrail.lake.decoding.REST_ROWS_MAX", 1)
    reader = Reader(tmp_path, cluster)
    reader.run()
    assert_all_once(reader)
    assert len(reader.lake[trail.ATTEMPTS.name].paths()) > 5


@pytest.mark.spark
def test_spark_pulls_a_large_amount(spark: SparkSession, cluster: Any, tmp_path: Path) -> None:
    """Spark's tasks pull and write; a task whose worker dies is retried, and no row is in the lake twice."""
    fill_all(cluster)
    cluster.kill("pull")
    reader = Reader(tmp_path, cluster, SparkPulls(spark), driver_messages_max=0)
    reader.run()
    assert_all_once(reader)
    cluster.append(T0, trace([60]))
    cluster.expire(T0, 4)
    cluster.append(T0, trace([61]))
    with pytest.raises(JobFailed, match=r"messages \[\d, \d\) are missing: the broker no longer has them"):
        reader.run()


SPARK_OFFSETS = "v1\n{}\n" + json.dumps({"TRACE": {"broker-a": {"0": 1}, "broker-b": {"0": 2}}})


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [True, False])
def test_a_lake_with_checkpoints_of_spark_continues(cluster: Any, tmp_path: Path, recorded: bool) -> None:
    """A lake that Spark streams filled is continued from their last recorded batch.

    Parts of a later batch, which a crash left in some tables, are replaced.
    """
    fill(cluster)
    first = Reader(tmp_path, cluster)
    spark = tmp_path / "lake" / "_checkpoints" / "trace" / "spark"
    for name, number in (("offsets", 0), ("commits", 0), ("offsets", 1), *((("commits", 1),) if recorded else ())):
        (spark / name).mkdir(parents=True, exist_ok=True)
        (spark / name / str(number)).write_text(SPARK_OFFSETS if number else SPARK_OFFSETS.replace(": 2", ": 1"))
    (spark.parent / "id").write_text("trace-old")
    rows = arrow_rows(trail.TRACE_EVENTS, [{"queue_offset": 77}])
    (file := first.lake[trail.TRACE_EVENTS.name].path / "batch=trace-old-1" / "part.parquet").parent.mkdir()
    write_parquet(rows, file)
    first.lake[trail.TRACE_EVENTS.name].commit([file], app="trace-old", batch=1)
    if recorded:
        first.lake[trail.ATTEMPTS.name].commit([], app="trace-old", batch=1)
    reader = Reader(tmp_path, cluster)
    assert reader.ingest.position("c").offsets == {T0: 1, T1: 2 if recorded else 1}
    reader.run()
    found = {offset for (offset,) in reader.rows(trail.TRACE_EVENTS, "queue_offset")}
    assert (77 in found) is recorded
    assert reader.ingest.offsets() == {T0: 1, T1: 2, ORDERS: 6}


def test_rejects_and_bodies(reader: Reader, cluster: Any) -> None:
    """Unreadable records and bodies become rejects with their reasons, and do not affect others."""
    cluster.append(T0, trace([1]) + b"Recall\x01x\x01R\x01G\x01T\x01M\x01true\x02Pub\x01007\x02" + trace([2]))
    cluster.append(T0, b"no zlib", sys_flag=0x301)
    counts = reader.run()
    assert (counts.of(trail.TRACE_EVENTS), counts.of(trail.TRACE_REJECTS)) == (6, 3)
    reasons = reader.rows(trail.TRACE_REJECTS, "queue_offset, record_no, reason")
    assert [row[:2] for row in reasons] == [(0, 3), (0, 4), (1, -1)]
    assert reasons[0][2] == "timeStamp: found 'x', expected epoch ms of 0 to 99999999999999"
    assert "not of type 3" in reasons[2][2]


def test_bodies_are_expanded_up_to_the_bound(reader: Reader, cluster: Any) -> None:
    """A compressed body is expanded only up to the limit of a trace message."""
    cluster.append(T0, compress(bytes(trail.TRACE_BODY_SIZE_MAX + 1)), sys_flag=0x301)
    assert reader.run().of(trail.TRACE_REJECTS) == 1
    [(reason,)] = reader.rows(trail.TRACE_REJECTS, "reason")
    assert reason.startswith(f"found a body of more than {trail.TRACE_BODY_SIZE_MAX} bytes inside")


def test_data_loss_ends_the_run(reader: Reader, cluster: Any) -> None:
    """By default a run fails if messages are lost, and the error names them."""
    fill(cluster)
    reader.run()
    fill(cluster, first=6)
    cluster.expire(T1, 3)
    with pytest.raises(JobFailed, match=r"messages \[2, 3\) are missing: the broker no longer has them"):
        reader.run()


def test_data_loss_as_gaps(reader: Reader, cluster: Any) -> None:
    """With the option, each lost range of trace or messages becomes a gap, and the messages after it are read."""
    fill(cluster)
    reader.run()
    fill(cluster, first=6)
    cluster.expire(T1, 3)
    cluster.expire(ORDERS, 8)
    counts = reader.run(fail_on_data_loss=False)
    assert counts.of(trail.GAPS) == 2
    trace_gap, message_gap = reader.rows(trail.GAPS, "topic, broker_name, first_offset, end_offset, reason, to_ms")
    assert message_gap == ("orders", "broker-a", 6, 8, "EXPIRED", 1_700_000_000_013)
    assert trace_gap[:5] == ("TRACE", "broker-b", 2, 3, "EXPIRED")
    assert trace_gap[5] > 1_700_000_000_013  # nothing is stored behind it: up to now
    assert len(reader.rows(trail.MESSAGE_META)) == 10


GAP_COLUMNS = "topic, broker_name, first_offset, end_offset, reason, to_ms"


def test_what_was_removed_before_the_first_read(reader: Reader, cluster: Any) -> None:
    """It was stored before every message that its broker still has, so the least of their times ends the gap."""
    fill(cluster)
    cluster.expire(ORDERS, 4)
    cluster.expire(T0, 1)  # it is empty
    reader.run()
    until_ms = STORED_MS + 4 + BORDER_MS
    gaps = [("TRACE", "broker-a", 0, 1, "NOT_READ", until_ms), ("orders", "broker-a", 0, 4, "NOT_READ", until_ms)]
    assert reader.rows(trail.GAPS, GAP_COLUMNS) == gaps
    fill(cluster, first=6, count=2)
    reader.run()
    assert reader.rows(trail.GAPS, GAP_COLUMNS) == gaps
    assert reader.ingest.offsets() == {T0: 2, T1: 2, ORDERS: 8}


def test_what_was_removed_of_queues_that_come_later(reader: Reader, cluster: Any) -> None:
    """It is a gap once, also if there is nothing left to read. Without any message its time is that of the read."""
    fill(cluster)
    reader.run()
    late = replace(ORDERS, broker_name="broker-c")
    cluster.append(late, b"body")
    cluster.expire(late, 1)
    before_ms = now_ms()
    for _ in range(2):
        assert not reader.run().rows
        [(*gap, to_ms)] = reader.rows(trail.GAPS, GAP_COLUMNS)
        assert gap == ["orders", "broker-c", 0, 1, "NOT_READ"]
        assert before_ms <= to_ms <= now_ms()


def test_a_broker_that_does_not_answer(reader: Reader, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queues are not read to their ends, also those that were never read. What they lack then becomes a gap."""
    fill(cluster)
    topic_bounds, bounds = FolderCluster.topic_bounds, FolderCluster.bounds

    def refuse(broker_name: str) -> None:
        if broker_name == "broker-b":
            raise MQError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(
            FolderCluster, "bounds", lambda self, queue: (refuse(queue.broker_name), bounds(self, queue))[1]
        )
        patched.setattr(
            FolderCluster, "topic_bounds", lambda self, topic, name: (refuse(name), topic_bounds(self, topic, name))[1]
        )
        reader.run()
    assert reader.ingest.silent() == reader.ingest.left() == {T1}
    assert T1 not in reader.ingest.offsets()
    cluster.expire(T1, 1)
    reader.run()
    assert not reader.ingest.left()
    assert reader.rows(trail.GAPS, GAP_COLUMNS) == [("TRACE", "broker-b", 0, 1, "NOT_READ", STORED_MS + 1 + BORDER_MS)]


class LatePulls(LocalPulls):
    """Tasks whose Python worker connects too late for Spark, a number of times."""

    def __init__(self, late_count: int, text: str, kind: type[Exception]) -> None:
        self.late_count = late_count
        self.text = text
        self.kind = kind
        self.starts = 0

    def run(self, work: PullWork, pieces: Sequence[Sequence[QueueRange]]) -> list[PulledFile]:
        self.starts += 1
        if self.starts <= self.late_count:
            raise self.kind(self.text)
        return super().run(work, pieces)


@pytest.mark.parametrize("kind", [PySparkException, SparkFailed])
@pytest.mark.parametrize(
    ("late_count", "text", "ends_with", "starts"),
    [
        (2, "Python worker failed to connect back.", None, 3),
        (9, "Timed out while waiting for the Python worker to connect back after 10000 ms", "too busy", None),
        (9, "division by zero", "division by zero", 1),
    ],
)
def test_python_workers_that_start_late(
    cluster: Any,
    tmp_path: Path,
    kind: type[Exception],
    late_count: int,
    text: str,
    ends_with: str | None,
    starts: int | None,
) -> None:
    """Spark limits the start of a worker: a task above it is retried a limited number of times.

    Any other failure ends the cycle at once.
    """
    fill_all(cluster)
    tasks = LatePulls(late_count, text, kind)
    reader = Reader(tmp_path, cluster, tasks, driver_messages_max=0)
    if ends_with is None:
        reader.run()
        assert_all_once(reader)
    else:
        # A failure of Spark itself passes: `run` ends after three of them, because Spark may have ended.
        with pytest.raises(JobFailed if starts is None else (JobFailed, SparkFailed), match=ends_with):
            reader.run()
    assert tasks.starts == (starts or WORKER_STARTS_MAX)


class AskedCluster(FolderCluster):
    """Counts requests; brokers of some names do not report the offsets of a whole topic."""

    def __init__(self, folder: Path, silent: str = "") -> None:
        super().__init__(folder)
        self.silent = silent
        self.asked: list[str] = []

    def topic_bounds(self, topic: str, broker_name: str) -> dict[MessageQueue, tuple[int, int]]:
        self.asked.append(f"{topic}@{broker_name}")
        return {} if broker_name == self.silent else super().topic_bounds(topic, broker_name)

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        self.asked.append(str(queue))
        return super().bounds(queue)


def test_bounds_take_one_request_a_broker(cluster: Any) -> None:
    """One request returns the offsets of all queues of a topic on a broker; brokers without it are asked queue by
    queue."""
    queues = [MessageQueue("orders", broker, number) for broker in ("broker-a", "broker-b") for number in range(4)]
    for number, queue in enumerate(queues):
        cluster.append(queue, *[b"x"] * (number + 1))
    expected = {queue: (0, number + 1) for number, queue in enumerate(queues)}
    asked = AskedCluster(cluster.folder)
    assert bounds_of(asked, ["orders"], 1_000, hold_unreachable=False) == expected
    assert asked.asked == ["orders@broker-a", "orders@broker-b"]
    asked = AskedCluster(cluster.folder, silent="broker-b")
    assert bounds_of(asked, ["orders"], 1_000, hold_unreachable=False) == expected
    assert asked.asked == ["orders@broker-a", "orders@broker-b", *map(str, queues[4:])]


@pytest.mark.parametrize(
    ("report", "is_of_lake", "text"),
    [
        (
            "Job aborted\n  E  mqtrail.lake.errors.LakeUnreadable: found no space left\n at x",
            True,
            "found no space left",
        ),
        ("mqtrail.lake.errors.LakeBusy: a\nmqtrail.pipeline.source.SourceFailed: b", False, "b"),
        ("Python worker failed\nmore", False, "Python worker failed"),
    ],
)
def test_an_error_of_the_lake_in_a_task_stays_one(report: str, text: str, *, is_of_lake: bool) -> None:
    """The error of a task keeps its own exit code."""
    failure = ingest._failure(report)
    assert isinstance(failure, LakeError) is is_of_lake
    assert isinstance(failure, JobFailed) is not is_of_lake
    assert str(failure) == text


def test_an_error_of_the_lake_here_is_one_too(reader: Reader, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write ends the cycle but not the pipeline; the next cycle reads the same range again."""
    fill(cluster)

    def failing(*_: object) -> None:
        raise duckdb.IOException("Could not write file")

    with monkeypatch.context() as patch:
        patch.setattr(ingest, "pull", failing)
        with pytest.raises(LakeError, match="Could not write file"):
            reader.run()
    reader.run()
    assert reader.ingest.offsets() == {T0: 1, T1: 2, ORDERS: 6}
