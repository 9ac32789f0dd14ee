"""Messages that a broker has lost: which groups had not read them, and their verdicts. Without Spark."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from tests.loops import run
from tests.pipeline.test_ingest import ORDERS, Reader, fill, reader
from tests.pipeline.test_rewinds import LATER_MS, read_on
from tests.pipeline.test_unread import RETENTION_MS

from mqtrail import trail
from mqtrail.client import Producer, SyncAdmin
from mqtrail.lake import Lake, connect, relation_of
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.pipeline.config import NOT_RUNNING
from mqtrail.pipeline.offsets import QueueRange
from mqtrail.pipeline.recording import Recorder
from mqtrail.pipeline.sampling import ClusterSample
from mqtrail.pipeline.truncated import Truncated, rows_of_truncated
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, MessageQueue, SubscriptionGroupConfig, TopicConfig

__all__ = ["reader"]

NO_SPARK = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))
# Nothing is waited for, and no sampler is missed between two runs, however long a test takes.
SETTINGS = trail.Settings(trace_delay_ms=0, sample_pause_ms_max=600_000)
STORED_MS = 1_700_000_000_005
PLACE = {"topic": "orders", "broker_name": "broker-a", "queue_id": 0}


def sampled(at_ms: int, offsets: dict[str, int], clients: dict[str, str]) -> ClusterSample:
    """A sample of groups' offsets, and of their clients: ids, '' without any."""
    found = ClusterSample(at_ms, answers={("OFFSETS", "broker-a", ""): ""})
    for group, offset in offsets.items():
        found.add(trail.GROUP_OFFSETS, {**PLACE, "group_name": group, "consumer_offset": offset})
    for group, client in clients.items():
        about: dict[str, Any] = {"group_name": group, "client_host": "", "language": "", "version": 1, "ordered": ""}
        found.add(trail.CLIENTS, about | {"status": "OK" if client else "OFFLINE", "client_id": client})
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "physical_offset", "kind"),
    [(3, 90_000, "TRUNCATED"), (0, 90_000, "RECREATED"), (0, 0, "TRUNCATED"), (0, 1, "RECREATED")],
)
def test_what_groups_had_not_read(reader: Reader, cluster: Any, left: int, physical_offset: int, kind: str) -> None:
    """The greatest offset of each group counts, up to when the first new message was stored, and its clients since the
    first lost message was stored. A new message in the place of all lost ones of the CommitLog proves that they are
    lost."""
    fill(cluster)
    reader.run()
    recorder = Recorder(reader.lake, "c", RETENTION_MS)
    clients = {"ahead": "", "behind": "", "here": "x", "left": "y", "before": "z"}
    offsets = {"ahead": 6, "behind": 4, "here": 2, "left": 5, "before": 5}
    recorder.record([sampled(STORED_MS - 2, offsets, clients)])
    recorder.record([sampled(STORED_MS - 1, offsets, clients | {"before": ""})])
    recorder.record([sampled(STORED_MS + 8, offsets | {"behind": 1}, clients | {"before": ""})])
    recorder.record([sampled(STORED_MS + 9, {}, clients | {"before": "", "left": ""})])
    recorder.record([sampled(LATER_MS, {"here": 9}, clients | {"before": "", "left": ""})])
    noted: list[Truncated] = []
    reader.ingest.note_truncated = noted.extend
    first, records = cluster._load(ORDERS)
    cluster._save(ORDERS, first, records[:left])
    assert (read_on(reader), noted) == (0, [])
    cluster.append(ORDERS, b"new", store_timestamp_ms=LATER_MS, physical_offset=physical_offset)
    read_on(reader)
    rows = rows_of_truncated(reader.lake, "c", noted)
    assert {(row["kind"], row["sampled_ms"], row["end_offset"]) for row in rows} == {(kind, LATER_MS - 1, 6)}
    assert {row["group_name"]: (row["first_offset"], row["live_count"]) for row in rows} == {
        "": (left, None),
        "behind": (4, 0),
        "here": (max(left, 2), 1),
        "left": (5, 1),
        "before": (5, 0),
    }


@pytest.mark.parametrize(
    ("gap_ms", "silent_ms", "live"),
    [(STORED_MS + 10, 0, 0), (LATER_MS, 0, None), (STORED_MS + 20, STORED_MS + 20, None), (0, STORED_MS + 20, 0)],
)
def test_a_time_without_a_sampler(reader: Reader, cluster: Any, gap_ms: int, silent_ms: int, live: int | None) -> None:
    """If it is after the last offsets, a group may have had clients then, and have read what was lost."""
    fill(cluster)
    reader.run()
    recorder = Recorder(reader.lake, "c", RETENTION_MS)
    for at_ms in (STORED_MS - 1, STORED_MS + 10, STORED_MS + 20, LATER_MS):
        found = sampled(at_ms, {"g": 4}, {"g": ""})
        found.answers |= dict.fromkeys([("GROUPS", broker, "") for broker in ("broker-a", "broker-b", "")], "")
        if at_ms == silent_ms:
            found.answers = {("GROUPS", "broker-b", ""): "", ("OFFSETS", "broker-a", ""): "no answer"}
        found.gap = NOT_RUNNING if at_ms == gap_ms else ""
        recorder.record([found])
    lost = Truncated(QueueRange(ORDERS, 4, 6), LATER_MS, 0, is_tail=True)
    rows = rows_of_truncated(reader.lake, "c", [lost])
    assert {row["group_name"]: row["live_count"] for row in rows} == {"": None, "g": live}


@pytest.mark.slow
def test_a_broker_that_goes_back_to_an_older_store(tmp_path: Path) -> None:
    """The messages after that are LOST for a group that had not read them, those before still wait for it."""
    config = JobConfig(namesrv="", lake=tmp_path / "lake", cluster="C", fail_on_data_loss=False, settings=SETTINGS)
    queue = MessageQueue("orders", "broker-a", 0)

    def sent(count: int, old: str = "", offset: int | None = None) -> list[str]:
        """Send on a broker on the store, run the pipeline, and keep a copy of the store before that."""
        with embedded(tmp_path / "store") as running, SyncAdmin(running.namesrv_address) as admin:
            assert admin.create_topic(TopicConfig("orders", 1, 1)).complete
            assert admin.create_group(SubscriptionGroupConfig("g")).complete
            if offset is not None:
                admin.set_offset("g", queue, offset)
            ids: list[str] = run(_sent(running.namesrv_address, count))
            if not old:
                PipelineJob(replace(config, namesrv=running.namesrv_address)).use(NO_SPARK).once()
        if old:
            shutil.copytree(tmp_path / "store", tmp_path / old)
        return ids

    before = sent(2, "old", 0)
    lost = sent(3)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "old").rename(tmp_path / "store")
    after = sent(1)
    lake = Lake.open(tmp_path / "lake")
    rows = trail.latest_sql(trail.VERDICTS, f"({relation_of(lake[trail.VERDICTS.name])})")
    found = connect().sql(f"SELECT msg_id, state, reasons FROM ({rows}) AS rows WHERE group_name = 'g'").fetchall()
    states = {msg_id: state for msg_id, state, _ in found}
    assert [states[each] for each in lost] == ["LOST"] * 3, found
    assert [states[each] for each in (*before, *after)] == ["NO_CONSUMER"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("is_topic_there", [True, False])
def test_a_broker_that_starts_with_an_empty_store(tmp_path: Path, is_topic_there: bool) -> None:
    """While nothing is stored in the place of its messages, nothing is claimed of them; then they are LOST."""
    config = JobConfig(namesrv="", lake=tmp_path / "lake", cluster="C", fail_on_data_loss=False, settings=SETTINGS)
    queue = MessageQueue("orders", "broker-a", 0)

    def states(running: Embedded) -> dict[str, str]:
        PipelineJob(replace(config, namesrv=running.namesrv_address)).use(NO_SPARK).once()
        lake = Lake.open(tmp_path / "lake")
        rows = trail.latest_sql(trail.VERDICTS, f"({relation_of(lake[trail.VERDICTS.name])})")
        return dict(connect().sql(f"SELECT msg_id, state FROM ({rows}) AS rows").fetchall())

    def create(admin: SyncAdmin) -> None:
        assert admin.create_topic(TopicConfig("orders", 1, 1)).complete
        assert admin.create_group(SubscriptionGroupConfig("g")).complete
        admin.set_offset("g", queue, 0)

    with embedded(tmp_path / "store") as running, SyncAdmin(running.namesrv_address) as admin:
        create(admin)
        lost: list[str] = run(_sent(running.namesrv_address, 3))
        assert states(running) == dict.fromkeys(lost, "NO_CONSUMER")
    shutil.rmtree(tmp_path / "store")
    with embedded(tmp_path / "store") as running, SyncAdmin(running.namesrv_address) as admin:
        if is_topic_there:
            create(admin)
        assert states(running) == dict.fromkeys(lost, "UNKNOWN")
        create(admin)
        after: list[str] = run(_sent(running.namesrv_address, 2))
        assert states(running) == dict.fromkeys(lost, "LOST") | dict.fromkeys(after, "NO_CONSUMER")


async def _sent(namesrv: str, count: int) -> list[str]:
    async with Producer("PG", namesrv, trace=True) as producer:
        return [(await producer.send(Message("orders", b"body"))).msg_id for _ in range(count)]
