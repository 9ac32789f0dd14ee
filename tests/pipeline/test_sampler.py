"""The sampler beside the cycles: its pauses and gaps, its spool, and the recording of waiting samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, cast

import pytest
from tests.lake.test_tables import verdict, write

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.lake import Lake, connect, relation_of
from mqtrail.pipeline import JobConfig, sampler, spool
from mqtrail.pipeline.config import NOT_RUNNING
from mqtrail.pipeline.recording import Recorder, Recorders
from mqtrail.pipeline.sampler import Sampler, TracedGroups, groups_in, sample_alone
from mqtrail.pipeline.sampling import ClusterSample, Topology, sample
from mqtrail.pipeline.spool import SampleSpool, SampleSpoolFull
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import ConsumerOffsetTable, MessageQueue, MQError, SubscriptionGroupTable, TopicConfig

TOPOLOGY = Topology("C", {}, (), (), (), ())


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    Lake.create(tmp_path / "lake")
    return JobConfig(namesrv="127.0.0.1:1", lake=tmp_path / "lake", sample_interval_ms=1_000)


def test_the_spool_keeps_samples_until_they_are_deleted(tmp_path: Path) -> None:
    """Samples are read back unchanged, oldest first; a damaged one becomes a gap before the next."""
    waiting = SampleSpool(tmp_path)
    for sampled_ms in (20, 3, 100):
        row = {"cluster": "C", "sampled_ms": sampled_ms, "topic": "t", "max_offset": 5}
        found = ClusterSample(
            sampled_ms, {"queue_ranges": [row]}, ["slow"], {("OFFSETS", "a", ""): "", ("RANGES", "a", "t"): "no"}
        )
        waiting.put("C", found)
    [torn] = (tmp_path / spool.FOLDER).glob(f"{20:015d}-*.json.gz")
    torn.write_bytes(b"torn")
    first, last = list(waiting.waiting())
    assert (first.found.sampled_ms, first.found.gap, first.cluster) == (3, "", "C")
    assert last.found.answers == {("OFFSETS", "a", ""): "", ("RANGES", "a", "t"): "no"}
    assert last.found.rows == {"queue_ranges": [{"cluster": "C", "sampled_ms": 100, "topic": "t", "max_offset": 5}]}
    assert "damaged" in last.found.gap
    assert (waiting.last_ms("C"), waiting.last_ms("other")) == (100, 0)
    waiting.delete([first, last])
    assert list(waiting.waiting()) == []


def test_samples_of_two_clusters_at_one_time(tmp_path: Path) -> None:
    """Each is kept; a damaged one is a gap of its own cluster."""
    waiting = SampleSpool(tmp_path)
    for cluster in ("east", "west"):
        for sampled_ms in (1, 2):
            waiting.put(cluster, ClusterSample(sampled_ms))
    assert [(each.cluster, each.found.sampled_ms) for each in waiting.waiting()] in (
        [("east", 1), ("west", 1), ("east", 2), ("west", 2)],
        [("west", 1), ("east", 1), ("west", 2), ("east", 2)],
    )
    torn = next(each for each in waiting.waiting() if each.cluster == "west").path
    torn.write_bytes(b"torn")
    gaps = {(each.cluster, each.found.sampled_ms): each.found.gap for each in waiting.waiting()}
    assert "damaged" in gaps.pop(("west", 2))
    assert gaps == {("east", 1): "", ("east", 2): ""}


def test_a_sample_after_the_begin_of_a_cycle_waits_for_the_next_one(tmp_path: Path) -> None:
    """The cycle knows the ends of queues as of its begin, so a later sample may show unread messages."""
    lake, waiting = Lake.create(tmp_path), SampleSpool(tmp_path)
    recorders = Recorders(lake, 1_000_000)
    for sampled_ms in (10, 20, 30):
        waiting.put("C", ClusterSample(sampled_ms))
    recorders.record_spool(waiting)
    assert recorders.of("C").sampled_ms == 30

    def taken(cluster: str, until_ms: int) -> int | None:
        found = recorders.take(cluster, until_ms)
        return None if found is None else found.sampled_ms

    assert (taken("other", 99), taken("C", 5), taken("C", 25), taken("C", 25), taken("C", 30)) == (
        None,
        None,
        20,
        None,
        30,
    )


def test_samplers_that_are_faster_than_the_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that come while others are recorded wait for the next call, so that each call ends."""
    lake, waiting = Lake.create(tmp_path), SampleSpool(tmp_path)
    recorders, record, times = Recorders(lake, 1_000_000), Recorder.record, iter(range(2, 9))

    def slow(self: Recorder, samples: list[ClusterSample]) -> None:
        record(self, samples)
        for sampled_ms in islice(times, 1):
            waiting.put("C", ClusterSample(sampled_ms))

    monkeypatch.setattr(Recorder, "record", slow)
    waiting.put("C", ClusterSample(1))
    for recorded in (1, 2, 3):
        recorders.record_spool(waiting)
        assert recorders.of("C").sampled_ms == recorded


def test_samplers_of_one_process_share_the_spool(tmp_path: Path) -> None:
    """Those of several clusters work at the same time."""
    shared = SampleSpool(tmp_path)
    with shared.sampling() as one, shared.sampling() as other, SampleSpool(tmp_path).sampling() as foreign:
        assert (one, other, foreign) == (True, True, False)


def test_the_spool_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full spool refuses a sample and names the remedy."""
    monkeypatch.setattr(spool, "COUNT_MAX", 2)
    waiting = SampleSpool(tmp_path)
    for sampled_ms in (1, 2):
        waiting.put("C", ClusterSample(sampled_ms))
    with pytest.raises(SampleSpoolFull, match=r"2 samples wait.*pipeline run"):
        waiting.put("C", ClusterSample(3))


def test_samples_that_are_recorded_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lake's writer deletes samples between the listing of files and the read of their sizes: this is no failed
    sample."""
    spool = SampleSpool(tmp_path)
    spool.put("C", ClusterSample(1))
    listed = spool._paths()
    spool.delete(list(spool.waiting()))
    monkeypatch.setattr(spool, "_paths", lambda: listed)
    spool.put("C", ClusterSample(2))


def test_groups_of_recent_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of one cluster, in the latest hours. A file is read once."""
    lake = Lake.create(tmp_path)
    verdicts = lake["verdicts"]
    rows = {
        5: [verdict("old", 5) | {"group_name": "of-old"}],
        6: [verdict("m", 6), verdict("n", 6) | {"group_name": "%RETRY%g"}, verdict("o", 6) | {"cluster": "other"}],
        7: [verdict("p", 7) | {"group_name": "late"}],
    }
    reads: list[str] = []
    monkeypatch.setattr(sampler, "groups_in", lambda path: reads.append(path.parent.name) or groups_in(path))
    for hour, some in rows.items():
        assert verdicts.commit([write(verdicts, f"h{hour}", some)], app="a", batch=hour)
    traced = TracedGroups()
    assert traced.of(lake, "c") == {"g", "late"}
    assert traced.of(lake, "other") == {"g"}
    assert sorted(reads) == ["h6", "h7"]
    assert verdicts.commit([write(verdicts, "h8", [verdict("q", 8)])], app="a", batch=8)
    assert traced.of(lake, "c") == {"g", "late"}
    assert sorted(reads) == ["h6", "h7", "h8"]


def test_one_sampler_for_a_lake(tmp_path: Path) -> None:
    """A second sampler gets an error until the first one ends."""
    with SampleSpool(tmp_path).sampling() as first, SampleSpool(tmp_path).sampling() as second:
        assert (first, second) == (True, False)
    with SampleSpool(tmp_path).sampling() as again:
        assert again


def test_a_failure_becomes_a_gap(config: JobConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sample records that none preceded it; one after a failure or a long pause records the reason. Times
    rise, also when the clock is set back."""
    clock = iter((10_000, 10_000, 11_000, 12_000, 12_000, 5_000, 5_000, 90_000, 90_000))
    failures = iter((None, MQError("no name server"), None, None, None))

    def survey(*_: Any) -> Topology:
        if (error := next(failures)) is not None:
            next(clock)
            raise error
        return TOPOLOGY

    monkeypatch.setattr(sampler, "survey", survey)
    lines: list[str] = []
    one = Sampler(config, lines.append, now_ms=lambda: next(clock))
    taken = [one.take(cast(SyncAdmin, None)) for _ in range(5)]
    assert taken == [True, False, True, True, True]
    found = [each.found for each in SampleSpool(config.lake).waiting()]
    assert [each.sampled_ms for each in found] == [10_000, 12_000, 12_001, 90_000]
    assert [each.gap for each in found] == [
        NOT_RUNNING,
        "no name server",
        "",
        "samples took longer than their interval",
    ]
    assert lines == ["no sample was taken: no name server"]


def test_samples_of_another_cluster_end_no_gap(config: JobConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of the cluster that was read before wait in the spool: they do not count for this one."""
    SampleSpool(config.lake).put("other", ClusterSample(9_000))
    monkeypatch.setattr(sampler, "survey", lambda *_: TOPOLOGY)
    one = Sampler(config, now_ms=lambda: 10_000)
    assert one.take(cast(SyncAdmin, None))
    assert [(each.cluster, each.found.gap) for each in SampleSpool(config.lake).waiting()] == [
        ("other", ""),
        ("C", NOT_RUNNING),
    ]


def test_half_of_the_time_is_free(config: JobConfig) -> None:
    """The pause fills the interval, give or take a tenth, and is never shorter than the sample took."""
    one = Sampler(config, chance=Random(1))
    pauses = [one._pause_s(0.2) for _ in range(100)]
    assert 0.7 <= min(pauses) < 0.75 < 0.85 < max(pauses) <= 0.9
    assert one._pause_s(7.0) == 7.0


class Silent:
    """Two masters, one of which never answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _answer(self, address: str) -> None:
        self.asked.append(address)
        if address == "silent":
            raise MQError("timed out")

    def committed_offsets(self, address: str) -> ConsumerOffsetTable:
        self._answer(address)
        return ConsumerOffsetTable({"orders@g": {0: 7}, "orders@h": {0: 7}})

    def groups(self, address: str) -> SubscriptionGroupTable:
        self._answer(address)
        return SubscriptionGroupTable()

    def consumer_connections(self, group: str, address: str) -> Any:
        self._answer(address)
        raise MQError("timed out")

    def master_epoch(self, address: str) -> None:
        self._answer(address)

    def topic_stats(self, topic: str, *, without: set[str]) -> Any:
        assert without >= {"a"}
        raise MQError("no route")


def test_a_silent_broker_is_asked_once() -> None:
    """A silent broker costs one timeout, not one for each group and topic."""
    admin = Silent()
    topology = Topology("C", {"a": "silent", "b": "there"}, (), ("orders", "stock"), (), ())
    found = sample(cast(SyncAdmin, admin), topology, "C", 1)
    assert admin.asked.count("silent") == 1
    groups = {("GROUPS", name, ""): "timed out" for name in ("", "a", "b")}  # b answers no question about clients
    assert found.answers == groups | {("OFFSETS", "a", ""): "timed out", ("OFFSETS", "b", ""): ""}
    assert {row["status"] for row in found.rows["clients"]} == {"ERROR"}


def test_read_topics() -> None:
    """A topic counts as read if all its queues were read to their ends and no broker of it was silent."""

    def read(*reached: int, why: str = "", offsets_why: str = "", left: tuple[str, ...] = ()) -> set[str]:
        found = ClusterSample(1)
        for broker in ("a", "b")[: 1 if why or offsets_why else 2]:
            place = {"topic": "orders", "broker_name": broker, "queue_id": 0}
            found.add(trail.QUEUE_RANGES, {**place, "min_offset": 0, "max_offset": 5})
        found.answers |= {("OFFSETS", "b", ""): offsets_why, ("RANGES", "b", "orders"): why}
        queues = (MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0), MessageQueue("orders", "gone", 0))
        return found.read_topics(dict(zip(queues, reached, strict=False)), left)

    assert read(5, 5) == {"orders"}
    assert read(5, 4) == set()
    assert read(5, 5, 9, left=("orders",)) == set(), "the broker left, and may have stored more before"
    assert read(5, 5, 9) == {"orders"}, "it left before the messages that the lake keeps"
    assert read(5, 5, why="timed out") == set()
    assert read(5, 5, offsets_why="timed out") == set()
    assert read(5, why="timed out") == {"orders"}, "nothing of the topic was read there, as far as is known"


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with embedded() as running:
        with SyncAdmin(running.namesrv_address) as admin:
            assert admin.create_topic(TopicConfig("orders", 2, 2)).complete
        yield running


def times(lake: Lake) -> list[int]:
    """The times of the recorded samples."""
    lake.refresh()
    recorded = f"SELECT sampled_ms FROM ({relation_of(lake[trail.SAMPLES.name])}) AS s WHERE what = 'SAMPLE' ORDER BY 1"
    return [at_ms for (at_ms,) in connect().execute(recorded).fetchall()]


@pytest.mark.slow
def test_alone_and_beside_a_writer(broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, the sampler records its samples; while a writer holds the lake they wait, and the writer records them.
    None is lost or recorded twice."""
    config = JobConfig(namesrv=broker.namesrv_address, lake=tmp_path / "lake", sample_interval_ms=1)
    monkeypatch.setattr(sampler, "RECORD_INTERVAL_MS", 0)

    def take(count: int) -> None:
        stop, left = Event(), iter(range(count - 1))
        put = SampleSpool.put

        def counted(self: SampleSpool, cluster: str, found: ClusterSample) -> None:
            put(self, cluster, found)
            if next(left, None) is None:
                stop.set()

        with monkeypatch.context() as patched:
            patched.setattr(SampleSpool, "put", counted)
            sample_alone(config, stop)

    take(2)
    lake = Lake.open(config.lake)
    assert len(times(lake)) == 2
    with lake.writing():
        take(2)
        assert len(times(lake)) == 2
        Recorders(lake, config.retention_ms).record_spool(SampleSpool(config.lake))
        assert len(times(lake)) == 4
    take(1)
    assert len(times(lake)) == len(set(times(lake))) == 5
    assert list(SampleSpool(config.lake).waiting()) == []
