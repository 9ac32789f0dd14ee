"""From queues to bronze and silver, exactly once: whatever dies between a write and its commit."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from mqtrail import trail
from mqtrail.lake import Lake, parquet_of
from mqtrail.pipeline import JobConfig, JobFailed
from mqtrail.pipeline.files import Committer
from mqtrail.pipeline.hours import JudgedHours
from mqtrail.pipeline.ingest import WORKER_STARTS_MAX, Counts, Ingest
from mqtrail.wire import (
    DELAY_LEVELS_MS,
    MessageQueue,
    Pub,
    SubAfter,
    SubBefore,
    encode_trace,
)

T0 = MessageQueue("TRACE", "broker-a", 0)
T1 = MessageQueue("TRACE", "broker-b", 0)
ORDERS = MessageQueue("orders", "broker-a", 0)
HOUR_0_MS = 1_700_000_000_000
BRONZE_KEYS = {
    trail.TRACE_EVENTS: ("broker_name", "queue_id", "queue_offset", "record_no", "item_no"),
    trail.TRACE_REJECTS: ("broker_name", "queue_id", "queue_offset", "record_no"),
    trail.MESSAGE_META: ("broker_name", "topic", "queue_id", "queue_offset"),
    trail.GAPS: ("broker_name", "topic", "queue_id", "first_offset"),
}


def msg_id(number: int) -> str:
    return f"C0A8010904D218B4AAC22F1C0A7B{number:04X}"


def trace(numbers: Iterable[int]) -> bytes:
    """One trace message: each message's send and its one delivery."""
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


class Reader:
    """Ingest of a folder cluster into a lake of its own; a new one is what a restarted process is."""

    def __init__(self, spark: SparkSession, folder: Path, source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from tests.pipeline.conftest import FolderDataSource

        self.lake = Lake.create(folder / "lake")
        config = JobConfig(namesrv=str(source.folder), lake=folder / "lake", retry_timeout_ms=1_000)
        self.committer = Committer(self.lake)
        self.judged = JudgedHours(folder / "lake" / "hours.json")
        self.ingest = Ingest(spark, self.committer, self.judged, config, FolderDataSource)

    def run(self, *, fail_on_data_loss: bool = True) -> Counts:
        return self.ingest.run(
            "c", ("TRACE",), ("orders",), tuple(DELAY_LEVELS_MS), fail_on_data_loss=fail_on_data_loss
        )

    def rows(self, relation: trail.Relation, columns: str = "*") -> list[tuple[Any, ...]]:
        paths = self.lake[relation.name].paths()
        return (
            sorted(duckdb.execute(f"SELECT {columns} FROM {parquet_of(paths)}").fetchall(), key=repr) if paths else []
        )

    def keys(self, relation: trail.Relation) -> list[tuple[Any, ...]]:
        return self.rows(relation, ", ".join(BRONZE_KEYS[relation]))


@pytest.fixture
def reader(spark: SparkSession, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Reader:
    return Reader(spark, tmp_path, cluster, monkeypatch)


def fill(cluster: Any, first: int = 0, count: int = 6) -> None:
    """Messages on orders, and trace messages about them on two brokers, two a message."""
    numbers = range(first, first + count)
    for number in numbers:
        cluster.append(ORDERS, b"body", properties={"UNIQ_KEY": msg_id(number), "TAGS": "T"})
    for number in numbers[::2]:
        cluster.append(T0 if number % 4 else T1, trace(numbers[number - first : number - first + 2]))


def test_bronze_and_silver(reader: Reader, cluster: Any) -> None:
    """Every record and message has its row in bronze, and its attempt in silver under the hour of its id."""
    fill(cluster)
    counts = reader.run()
    assert (counts.trace_messages, counts.of(trail.TRACE_EVENTS), counts.of(trail.MESSAGE_META)) == (3, 18, 6)
    assert len(set(reader.keys(trail.TRACE_EVENTS))) == 18
    assert reader.keys(trail.MESSAGE_META) == [("broker-a", "orders", 0, offset) for offset in range(6)]
    attempts = reader.rows(trail.ATTEMPTS, "msg_id, kind, attempt_key, publish_hour")
    assert len(attempts) == 24  # a send, two halves of a delivery and a stored copy each
    assert {kind for _, kind, _, _ in attempts} == {"SEND", "HANDLED", "STORED"}
    hours = {hour for *_, hour in attempts}
    assert len(hours) == 1
    assert reader.judged.due == hours


def test_runs_go_on_where_the_last_ended(reader: Reader, cluster: Any) -> None:
    """A second run brings what came since, a third nothing."""
    fill(cluster)
    reader.run()
    fill(cluster, first=6, count=2)
    counts = reader.run()
    assert (counts.of(trail.TRACE_EVENTS), counts.of(trail.MESSAGE_META)) == (6, 2)
    assert reader.run().rows == {}
    assert len(set(reader.keys(trail.TRACE_EVENTS))) == len(reader.keys(trail.TRACE_EVENTS)) == 24
    assert reader.ingest.offsets() == {T0: 2, T1: 2, ORDERS: 8}


def crashing(when: str, relation: trail.Relation) -> Callable[..., None]:
    """Committer.commit, dying before or after the commit of one table."""
    commit = Committer.commit

    def crash(self: Committer, table: trail.Relation, *arguments: Any) -> None:
        if table is not relation or when == "after":
            commit(self, table, *arguments)
        if table is relation:
            raise RuntimeError("crashed on purpose")

    return crash


def test_crashes_around_commits(
    spark: SparkSession, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written and not committed is written again, what was committed is not: every row is there once.

    One batch dies at each of its commits in turn, in a new process each time, before it gets through.
    """
    fill(cluster)
    cluster.append(T0, b"Unknown\x01x\x02" + trace([50]))
    for when, relation in (
        ("before", trail.TRACE_REJECTS),
        ("before", trail.TRACE_EVENTS),
        ("before", trail.ATTEMPTS),
        ("after", trail.ATTEMPTS),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Committer, "commit", crashing(when, relation))
            with pytest.raises(JobFailed):
                Reader(spark, tmp_path, cluster, monkeypatch).run()
    restarted = Reader(spark, tmp_path, cluster, monkeypatch)
    restarted.run()
    assert len(restarted.keys(trail.TRACE_EVENTS)) == len(set(restarted.keys(trail.TRACE_EVENTS))) == 21
    assert len(restarted.keys(trail.TRACE_REJECTS)) == 1
    assert len(restarted.rows(trail.MESSAGE_META)) == 6
    assert len(restarted.rows(trail.ATTEMPTS)) == 27
    assert all(Path(path).exists() for table in restarted.lake for path in table.paths())


def test_a_new_checkpoint_is_not_taken_for_the_old(
    reader: Reader, cluster: Any, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its checkpoint the job reads anew, under another id: nothing is passed over, and silver merges to the
    same.
    """
    import shutil

    fill(cluster)
    reader.run()
    shutil.rmtree(tmp_path / "lake" / "_checkpoints")
    again = Reader(spark, tmp_path, cluster, monkeypatch)
    assert again.run().of(trail.TRACE_EVENTS) == 18
    merged = f"SELECT count(*) FROM ({trail.merge_sql(parquet_of(again.lake['attempts'].paths()))})"
    assert duckdb.execute(merged).fetchall() == [(18,)]  # a send, a delivery and a stored copy each


def test_rejects_and_bodies(reader: Reader, cluster: Any) -> None:
    """Records and bodies that cannot be read stand aside with their reasons, and spoil nothing."""
    cluster.append(T0, trace([1]) + b"Recall\x01x\x01R\x01G\x01T\x01M\x01true\x02Pub\x01007\x02" + trace([2]))
    cluster.append(T0, b"no zlib", sys_flag=0x301)
    counts = reader.run()
    assert (counts.of(trail.TRACE_EVENTS), counts.of(trail.TRACE_REJECTS)) == (6, 3)
    reasons = reader.rows(trail.TRACE_REJECTS, "queue_offset, record_no, reason")
    assert [row[:2] for row in reasons] == [(0, 3), (0, 4), (1, -1)]
    assert reasons[0][2] == "timeStamp: found 'x', expected epoch ms of 0 to 99999999999999"
    assert "not of type 3" in reasons[2][2]


def test_data_loss_ends_the_run(reader: Reader, cluster: Any) -> None:
    """By default a run fails where messages are gone, and says which."""
    fill(cluster)
    reader.run()
    fill(cluster, first=6)
    cluster.expire(T1, 3)
    with pytest.raises(JobFailed, match=r"messages \[2, 3\) are missing: the broker no longer has them"):
        reader.run()


def test_data_loss_as_gaps(reader: Reader, cluster: Any) -> None:
    """Else each range that is gone is a gap, of trace and messages alike, and what is behind it is read."""
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


class LateQuery:
    """A streaming query whose Python worker comes too late for Spark."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.recentProgress: list[Any] = []
        self._text = text

    def awaitTermination(self) -> None:
        if self._text:
            raise StreamingQueryException(self._text)

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("late_count", "text", "ends_with", "starts"),
    [
        (2, "Python worker failed to connect back.", None, 3),
        (9, "Timed out while waiting for the Python worker to connect back after 10000 ms", "too busy", None),
        (9, "division by zero", "division by zero", 1),
    ],
)
def test_python_workers_that_start_late(
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    late_count: int,
    text: str,
    ends_with: str | None,
    starts: int | None,
) -> None:
    """Spark's fixed limit on a worker's start is no failure of the cycle: it is tried again, a bounded number of times.

    Any other failure ends the cycle at once.
    """
    began: list[str] = []

    def start(name: str, *_: object) -> LateQuery:
        began.append(name)
        return LateQuery(name, text if began.count(name) <= late_count else "")

    monkeypatch.setattr(reader.ingest, "_start", start)
    if ends_with is None:
        reader.run()
    else:
        with pytest.raises(JobFailed, match=ends_with):
            reader.run()
    assert began.count("trace") == (starts or WORKER_STARTS_MAX)
