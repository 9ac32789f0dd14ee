"""A judgement reads the same facts from samples recorded as changes as from full samples."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from mqtrail import trail
from mqtrail.lake import Lake, arrow_rows, compact, connect, expire, run_stages, sample_files
from mqtrail.pipeline import changes as changes_module
from mqtrail.pipeline.changes import BROKER_SILENT, Changes, Rows
from mqtrail.pipeline.recording import Recorder
from mqtrail.pipeline.sampling import ClusterSample
from mqtrail.trail.context import context_stages, topic_groups_stage

RELATIONS = (
    "topic_groups",
    "offsets_at",
    "client_samples",
    "group_clients",
    "live_clients",
    "vanished_clients",
    "filter_runs",
    "scanned_topics",
)
WHOLE = ("whole_samples", "sample_gaps", "offset_samples")
"""Relations of what full samples do not tell: when a broker answered, also if it had no groups or no offsets."""
SETTINGS = trail.Settings(trace_delay_ms=25)
RETENTION_MS = 10**9
BROKERS = ("a", "b")
TOPICS = ("orders", "stock")
GROUPS = ("g", "h", "i")
Row = dict[str, Any]


@dataclass
class World:
    """A cluster whose groups, clients, queues and silences change at random between samples."""

    chance: random.Random
    cluster: str = "C"
    offsets: dict[tuple[str, str, str, int], int] = field(default_factory=dict)
    ends: dict[tuple[str, str, int], int] = field(default_factory=dict)
    clients: dict[str, set[str]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    expressions: dict[str, str] = field(default_factory=dict)
    sampled_ms: int = 1_000

    def step(self) -> None:
        """Change the cluster at random, or leave it."""
        for _ in range(self.chance.choice((0, 0, 1, 3))):
            group, topic, broker = (self.chance.choice(each) for each in (GROUPS, TOPICS, BROKERS))
            queue = self.chance.randrange(2)
            match self.chance.choice(
                ("commit", "commit", "reset", "forget", "grow", "drop", "join", "leave", "filter")
            ):
                case "commit":
                    self.offsets[group, topic, broker, queue] = self.offsets.get((group, topic, broker, queue), 0) + 3
                case "reset":
                    self.offsets[group, topic, broker, queue] = 1
                case "forget":
                    self.offsets.pop((group, topic, broker, queue), None)
                case "grow":
                    self.ends[topic, broker, queue] = self.ends.get((topic, broker, queue), 0) + 5
                case "drop":
                    self.ends.pop((topic, broker, queue), None)
                case "join":
                    self.clients[group].add(f"client-{self.chance.randrange(3)}")
                case "leave":
                    self.clients[group].clear()
                case "filter":
                    self.expressions[group] = self.chance.choice(("*", "A", "A || B"))

    def sample(self) -> ClusterSample:
        """A full sample in which brokers may be silent and topics may be missing."""
        self.sampled_ms += self.chance.choice((1, 10, 10, 10, 40))
        found = ClusterSample(self.sampled_ms, gap="stopped" if self.sampled_ms % 9 == 0 else "")
        stamp = {"cluster": self.cluster, "sampled_ms": self.sampled_ms}
        silent = {broker for broker in BROKERS if self.chance.random() < 0.15}
        unasked = {topic for topic in TOPICS if self.chance.random() < 0.1}
        for broker in BROKERS:
            found.answers["OFFSETS", broker, ""] = "silent" if broker in silent else ""
            found.answers["GROUPS", broker, ""] = "silent" if broker in silent else ""
            for topic in TOPICS:
                if topic not in unasked:
                    found.answers["RANGES", broker, topic] = "silent" if broker in silent else ""
        for (group, topic, broker, queue), offset in self.offsets.items():
            if broker not in silent:
                row = {"group_name": group, "topic": topic, "broker_name": broker, "queue_id": queue}
                found.add(trail.GROUP_OFFSETS, stamp | row | {"consumer_offset": offset})
        for (topic, broker, queue), end in self.ends.items():
            if broker not in silent and topic not in unasked:
                row = {"topic": topic, "broker_name": broker, "queue_id": queue, "min_offset": 0, "max_offset": end}
                found.add(trail.QUEUE_RANGES, stamp | row)
        for group, clients in self.clients.items():
            about: Row = stamp | {
                "group_name": group,
                "client_host": "",
                "language": "",
                "version": None,
                "ordered": "",
            }
            if len(silent) == len(BROKERS) or not clients:
                status = "ERROR" if len(silent) == len(BROKERS) else "OFFLINE"
                found.add(trail.CLIENTS, about | {"status": status, "client_id": ""})
                continue
            for client in sorted(clients):
                found.add(trail.CLIENTS, about | {"status": "OK", "client_id": client, "client_host": f"{client}:1"})
            row = {"group_name": group, "topic": "orders", "expression_type": "TAG", "consume_type": "P"}
            expression = self.expressions.get(group, "*")
            found.add(trail.SUBSCRIPTIONS, stamp | row | {"expression": expression, "message_model": "CLUSTERING"})
        return found


@dataclass
class History:
    """One history in two forms: as full samples, and as the batches of changes."""

    full: Rows = field(default_factory=dict)
    batches: list[Rows] = field(default_factory=list)
    instants: list[int] = field(default_factory=list)

    def since_keyframe(self, horizon: int) -> Rows:
        """The batches that a reader with this horizon reads."""
        taken = [row for batch in self.batches for row in batch.get("samples", ()) if row["what"] == "SAMPLE"]
        keyframe_ms = max((row["keyframe_ms"] for row in taken if row["sampled_ms"] <= horizon), default=0)
        rows: Rows = {}
        for batch in self.batches:
            for name, some in batch.items():
                if max(row["sampled_ms"] for row in some) >= keyframe_ms:
                    rows.setdefault(name, []).extend(some)
        return rows


def random_history(seed: int, count: int, recorder: Callable[[], Recorder] | None = None) -> History:
    """A random history of `count` samples, with queues read up to some of them. recorder: records it as well."""
    chance = random.Random(seed)
    world, changes, history = World(chance), Changes("C", RETENTION_MS), History()
    for _ in range(count):
        world.step()
        found = world.sample()
        history.batches.append(changes.add(found))
        if recorder is not None:
            recorder().record([found])
        history.instants.append(found.sampled_ms)
        taken = {"cluster": "C", "sampled_ms": found.sampled_ms, "what": "SAMPLE", "status": "OK"}
        history.full.setdefault("samples", []).append(taken)
        is_read = chance.random() < 0.5
        read = {topic for topic in TOPICS if is_read and chance.random() < 0.8}
        for name, rows in found.rows.items():
            for row in rows:
                mark = {"read_offset": 1} if name == "queue_ranges" and row["topic"] in read else {}
                history.full.setdefault(name, []).append(row | mark)
        if is_read:
            seen = {row["topic"] for row in found.rows.get("queue_ranges", ())}
            history.batches.append(changes.read_up_to(found.sampled_ms, read & seen))
            if recorder is not None:
                recorder().read_up_to(found.sampled_ms, read & seen)
    return history


def context(rows: Rows, as_of_ms: int, relations: tuple[str, ...] = RELATIONS) -> dict[str, list[str]]:
    """The relations of the judgement's context over rows, by name."""
    connection = connect(threads=1)
    for relation in trail.EVIDENCE:
        connection.register(relation.name, arrow_rows(relation, rows.get(relation.name, ())))
    connection.register("folds", arrow_rows(trail.GROUP_FOLDS, ()))
    connection.execute("CREATE VIEW traced_groups AS SELECT cluster, group_name FROM folds")
    connection.execute("CREATE VIEW handed_clients AS SELECT cluster, group_name, name AS client_id FROM folds")
    own = topic_groups_stage(as_of_ms, SETTINGS)
    stages = [trail.client_records_stage(), *context_stages(as_of_ms, SETTINGS), own]
    run_stages(connection, stages, also_read=relations)
    return {name: dump(connection, name) for name in relations}


def dump(connection: duckdb.DuckDBPyConnection, name: str) -> list[str]:
    but = "EXCLUDE since_ms" if name == "topic_groups" else ""  # it depends on WHOLE
    return sorted(map(str, connection.execute(f"SELECT * {but} FROM {name}").fetchall()))


@pytest.fixture
def keyframes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let keyframes be frequent."""
    monkeypatch.setattr(changes_module, "KEYFRAME_ROWS_MIN", 20)
    monkeypatch.setattr(changes_module, "KEYFRAME_FACTOR", 1)


@pytest.mark.usefixtures("keyframes")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(seed, marks=pytest.mark.cycles) for seed in range(1, int(os.environ.get("SEEDS", "2")))),
    ],
)
def test_changes_are_full_samples(seed: int) -> None:
    """The context of any instant is equal from full samples, from all changes, and from the last keyframe on."""
    history = random_history(seed, 40)
    chance = random.Random(seed)
    assert len({row.get("keyframe_ms") for batch in history.batches for row in batch["samples"]} - {None}) > 2
    everything = {name: [row for batch in history.batches for row in batch.get(name, ())] for name in trail.SAMPLED}
    for _ in range(4):
        as_of_ms = chance.choice(history.instants) + chance.choice((0, 0, 1, 9))
        expected = context(history.full, as_of_ms)
        assert context(everything, as_of_ms) == expected, as_of_ms
        last = history.since_keyframe(as_of_ms - SETTINGS.trace_delay_ms)
        assert context(last, as_of_ms) == expected, as_of_ms
        assert context(last, as_of_ms, WHOLE) == context(everything, as_of_ms, WHOLE), as_of_ms


def recorded(lake: Lake, from_ms: int) -> Rows:
    """The rows of the files that a reader from from_ms on reads."""
    lake.refresh()
    found = sample_files(lake, from_ms)
    return {
        name: [row for file in files for row in pq.ParquetFile(str(lake[name].path / file.path)).read().to_pylist()]
        for name, files in found.items()
    }


@pytest.mark.slow
@pytest.mark.usefixtures("keyframes")
def test_a_lake_goes_on_after_restarts(tmp_path: Path) -> None:
    """Each sample is recorded by a new process, files are joined and old ones expire: the context equals that of full
    samples, and the amount read is bounded."""
    lake = Lake.create(tmp_path / "lake")
    history = random_history(7, 14, lambda: Recorder(lake, "C", RETENTION_MS))
    last_ms = history.instants[-1]
    horizon = last_ms - SETTINGS.trace_delay_ms
    expected = context(history.full, last_ms)
    assert context(recorded(lake, horizon), last_ms) == expected
    read = {row["sampled_ms"] for row in recorded(lake, last_ms)["samples"] if row["what"] == "SAMPLE"}
    assert min(read) > history.instants[2]  # not the first keyframe
    assert compact(lake, 0, now_ms=last_ms) >= 1
    assert context(recorded(lake, horizon), last_ms) == expected
    again = Recorder(lake, "C", RETENTION_MS)
    assert again.sampled_ms == last_ms
    expire(lake, last_ms + 10**6, now_ms=last_ms)  # what the latest state needs is kept
    assert context(recorded(lake, horizon), last_ms) == expected


def test_keyframes_tell_when_a_client_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of the last keyframe alone knows the first sample without a client, also after a restart."""
    monkeypatch.setattr(changes_module, "KEYFRAME_FACTOR", 0)
    monkeypatch.setattr(changes_module, "KEYFRAME_ROWS_MIN", 0)
    lake, samples = Lake.create(tmp_path / "lake"), []
    for sampled_ms, clients in ((1_000, ("x", "y")), (2_000, ("x",)), (3_000, ("x",)), (4_000, ("x",))):
        samples.append(ClusterSample(sampled_ms))
        for client in clients:
            row = {"group_name": "g", "status": "OK", "client_id": f"{client}@1#1", "client_host": f"{client}:1"}
            empty = {"language": "", "version": None, "ordered": "", "cluster": "C", "sampled_ms": sampled_ms}
            samples[-1].add(trail.CLIENTS, empty | row)
    Recorder(lake, "C", RETENTION_MS).record(samples[:3])
    Recorder(lake, "C", RETENTION_MS).record(samples[3:])
    rows = recorded(lake, 4_000)
    assert {row["sampled_ms"] for row in rows["samples"]} == {4_000}
    left = context(rows, 4_000, ("vanished_clients",))["vanished_clients"]
    assert left == [str(("C", "g", "y@1#1", "y", 1_000 - SETTINGS.trace_delay_ms, 2_000))]


def test_a_load_makes_one_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new DuckDB connection takes longer than one query of a load."""
    lake = Lake.create(tmp_path / "lake")
    made: list[duckdb.DuckDBPyConnection] = []
    monkeypatch.setattr(changes_module, "connect", lambda **given: (made.append(connect(**given)), made[-1])[1])
    Changes.load(lake, "C", RETENTION_MS)
    assert len(made) == 1


def test_a_silent_broker_a_gap_and_no_change_differ() -> None:
    """An unchanged sample is one row. A broker that stops answering has a row, and so has a time without samples."""
    changes = Changes("C", RETENTION_MS)

    def sample(sampled_ms: int, why: str = "", gap: str = "") -> list[Row]:
        answers = {("OFFSETS", "a", ""): why, ("GROUPS", "a", ""): why}
        found = ClusterSample(sampled_ms, answers=answers, gap=gap)
        if not why:
            row = {"group_name": "g", "topic": "t", "broker_name": "a", "queue_id": 0, "consumer_offset": 5}
            found.add(trail.GROUP_OFFSETS, {"cluster": "C", "sampled_ms": sampled_ms, **row})
        made = changes.add(found)
        assert set(made) <= ({"samples", "group_offsets"} if sampled_ms == 1 else {"samples"})
        wanted = ("what", "status", "seen_ms", "reason")
        return [{name: row.get(name) for name in wanted} for row in made["samples"]]

    taken = {"what": "SAMPLE", "status": "OK", "seen_ms": None, "reason": None}
    offsets = {"what": "OFFSETS", "status": "OK", "seen_ms": None, "reason": ""}
    groups = offsets | {"what": "GROUPS"}
    gap = {"what": "GAP", "status": "FAILED", "seen_ms": None, "reason": BROKER_SILENT}
    assert sample(1) == [taken, gap, groups, offsets]
    assert sample(2) == [taken]
    silent = {"status": "FAILED", "seen_ms": 2, "reason": "timed out"}
    assert sample(3, why="timed out") == [taken, groups | silent, offsets | silent]
    assert sample(4, why="timed out") == [taken]
    assert sample(5) == [taken, gap | {"seen_ms": 2}, groups, offsets]
    assert sample(90, gap="not running") == [taken, gap | {"seen_ms": 5, "reason": "not running"}]


def test_topics_of_a_broker_that_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """How far its queues went is not known until it is back, or until what they had is older than the retention."""
    monkeypatch.setattr(changes_module, "KEYFRAME_AGE_MS_MAX", 100)
    lake = Lake.create(tmp_path / "lake")

    def left_after(sampled_ms: int, *topics_of_b: str) -> frozenset[str]:
        recorder = Recorder(lake, "C", 1_000)
        places = [("a", "orders"), ("a", "stock"), *(("b", topic) for topic in topics_of_b)]
        recorder.record([ClusterSample(sampled_ms, answers={("RANGES", *place): "" for place in places})])
        assert Changes.load(lake, "C", 1_000).left_topics == recorder.left_topics
        return recorder.left_topics

    assert left_after(10, "orders", "stock") == frozenset()
    assert left_after(20, "orders") == {"stock"}
    assert left_after(30) == {"orders", "stock"}
    assert left_after(40, "stock") == {"orders"}
    assert left_after(500, "stock") == {"orders"}, "a keyframe keeps it"
    assert left_after(1_300, "stock") == frozenset()


def test_trace_that_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broker has a row when its trace is not read, is read again, or is gone; keyframes and restarts keep it."""
    monkeypatch.setattr(changes_module, "KEYFRAME_AGE_MS_MAX", 100)
    recorder = Recorder(Lake.create(tmp_path / "lake"), "C", 1_000)
    changes = Changes("C", 1_000)

    def traced(rows: Rows) -> list[tuple[Any, ...]]:
        names = ("broker_name", "status", "seen_ms", "sampled_ms")
        return [tuple(row[name] for name in names) for row in rows.get("samples", ()) if row["what"] == "TRACE"]

    def read(at_ms: int, left: dict[str, bool]) -> list[tuple[Any, ...]]:
        recorder.trace_read(at_ms, left)
        recorder.read_up_to(at_ms, ())
        made = changes.trace_read(at_ms, left)
        changes.read_up_to(at_ms, ())
        return traced(made)

    assert read(10, {}) == []
    assert read(20, {"a": True, "b": False}) == [("a", "FAILED", 10, 20), ("b", "GONE", 10, 20)]
    assert read(30, {"a": True, "b": False}) == []
    assert read(40, {"b": True}) == [("a", "OK", None, 40), ("b", "FAILED", 10, 40)]
    assert read(40, {}) == []
    for_good = [("a", "OK", None, 40), ("b", "FAILED", 10, 40)]
    for each in (changes, Changes.load(recorder._lake, "C", 1_000)):
        assert traced(each.add(ClusterSample(200))) == for_good
        assert traced(each.trace_read(210, {})) == [("b", "OK", None, 210)]


def test_keyframes_repeat_gaps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keyframes repeat gaps with their end times. Those beyond the retention, or above the limit, are joined with the
    first."""
    monkeypatch.setattr(changes_module, "KEYFRAME_AGE_MS_MAX", 100)
    monkeypatch.setattr(changes_module, "GAPS_MAX", 2)

    def gaps(rows: Rows) -> list[tuple[int | None, int]]:
        return [(row["seen_ms"], row["sampled_ms"]) for row in rows["samples"] if row["what"] == "GAP"]

    lake = Lake.create(tmp_path / "lake")
    recorder = Recorder(lake, "C", 1_000)
    changes = Changes("C", 1_000)
    for sampled_ms, gap, wanted in (
        (10, "", [(None, 10)]),
        (20, "stopped", [(10, 20)]),
        (30, "", []),
        (110, "", [(None, 10), (10, 20)]),
        (120, "stopped", [(110, 120)]),
        (210, "", [(None, 10), (10, 20), (110, 120)]),
        (1_119, "", [(None, 20), (110, 120)]),
        (2_300, "", [(None, 120)]),
    ):
        found = ClusterSample(sampled_ms, answers={("GROUPS", "a", ""): ""}, gap=gap)
        recorder.record([found])
        assert gaps(changes.add(found)) == wanted, sampled_ms
        loaded = Changes.load(lake, "C", 1_000)
        assert loaded._gaps == changes._gaps
