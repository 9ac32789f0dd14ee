"""Ranges that groups did not read, as found by samples: expired queues, deleted topics, offsets that moved."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.waiting import wait_until

from mqtrail import trail
from mqtrail.client import SyncAdmin, SyncProducer
from mqtrail.lake import Lake
from mqtrail.pipeline.changes import Changes
from mqtrail.pipeline.recording import Recorder
from mqtrail.pipeline.sampling import ClusterSample, sample, survey
from mqtrail.pipeline.spool import SampleSpool
from mqtrail.store import CommitLogConfig
from mqtrail.testing import embedded
from mqtrail.wire import TRACE_TOPIC, Message, MessageQueue, SubscriptionGroupConfig, TopicConfig

Row = dict[str, Any]
Ranges = dict[str, tuple[int, int]]
RETENTION_MS = 10**9


def a_sample(
    sampled_ms: int,
    offset: int | None,
    ranges: Ranges | None = None,
    clients: tuple[str, ...] = (),
    *,
    why: str = "",
    gap: str = "",
    topics: list[str] | None = None,
    status: str = "OFFLINE",
) -> ClusterSample:
    """One broker, one group and its offset in topic t. topics: those of the cluster, by default those with ranges."""
    ranges = {"t": (0, 100)} if ranges is None else ranges
    found = ClusterSample(sampled_ms, gap=gap, topics=[*ranges, "u"] if topics is None else topics)
    found.answers = {("OFFSETS", "a", ""): why, ("GROUPS", "a", ""): why}
    found.answers |= {("RANGES", "a", topic): why for topic in ranges}
    if not why:
        if offset is not None:
            place = {"group_name": "g", "topic": "t", "broker_name": "a", "queue_id": 0}
            found.add(trail.GROUP_OFFSETS, place | {"consumer_offset": offset})
        for topic, (first, end) in ranges.items():
            place = {"topic": topic, "broker_name": "a", "queue_id": 0}
            found.add(trail.QUEUE_RANGES, place | {"min_offset": first, "max_offset": end})
    about = {"group_name": "g", "client_host": "", "language": "", "version": None, "ordered": ""}
    for client in clients:
        found.add(trail.CLIENTS, about | {"status": "OK", "client_id": client})
    if not clients:
        found.add(trail.CLIENTS, about | {"status": "ERROR" if why else status, "client_id": ""})
    return found


def rows(*samples: ClusterSample) -> list[tuple[Any, ...]]:
    """The unread ranges found by consecutive samples: time, kind, group, range, clients."""
    changes = Changes("C", RETENTION_MS)
    made = [row for found in samples for row in changes.add(found).get(trail.UNREAD_RANGES.name, ())]
    assert all(
        (row["cluster"], row["topic"], row["broker_name"], row["queue_id"]) == ("C", "t", "a", 0) for row in made
    )
    names = ("sampled_ms", "kind", "group_name", "first_offset", "end_offset", "live_count")
    return [tuple(row[name] for name in names) for row in made]


EXPIRED: tuple[tuple[str, list[ClusterSample], list[tuple[Any, ...]]], ...] = (
    ("nothing expired", [a_sample(1, 10, clients=("x",)), a_sample(2, 20), a_sample(3, 20)], []),
    ("below the offset", [a_sample(1, 50), a_sample(2, 50, {"t": (30, 100)})], []),
    ("above the offset", [a_sample(1, 10), a_sample(2, 10, {"t": (30, 100)})], [(2, "EXPIRED", "g", 10, 30, 0)]),
    (
        "again, only what is new",
        [a_sample(1, 10), *(a_sample(at, 10, {"t": (first, 100)}) for at, first in ((2, 30), (3, 30), (4, 40)))],
        [(2, "EXPIRED", "g", 10, 30, 0), (4, "EXPIRED", "g", 30, 40, 0)],
    ),
    ("in the first sample", [a_sample(1, 10, {"t": (30, 100)})], [(1, "EXPIRED", "g", 10, 30, 0)]),
    ("below a new group", [a_sample(1, None), a_sample(2, 10, {"t": (30, 100)})], []),
    ("read before the offset was set back", [a_sample(1, 50), a_sample(2, 10, {"t": (30, 100)})], []),
    ("the offset jumped too", [a_sample(1, 10, clients=("x",)), a_sample(2, 30, {"t": (30, 100)}, ("x",))], []),
    (
        "below a consumer",
        [a_sample(1, 10), a_sample(2, 10, {"t": (30, 100)}, ("x", "y"))],
        [(2, "EXPIRED", "g", 10, 30, 2)],
    ),
    (
        "clients not known",
        [a_sample(1, 10), a_sample(2, 10, {"t": (30, 100)}, status="ERROR")],
        [(2, "EXPIRED", "g", 10, 30, None)],
    ),
    (
        "while no sample was taken",
        [a_sample(1, 10, clients=("x",)), a_sample(2, 10, {"t": (30, 100)}, gap="stopped")],
        [(2, "EXPIRED", "g", 10, 30, 0)],
    ),
)
MOVED: tuple[tuple[str, list[ClusterSample], list[tuple[Any, ...]]], ...] = (
    ("without a client", [a_sample(1, 10), a_sample(2, 60)], [(2, "OFFSET_MOVED", "g", 10, 60, 0)]),
    ("above what expired", [a_sample(1, 10), a_sample(2, 60, {"t": (30, 100)})], [(2, "OFFSET_MOVED", "g", 30, 60, 0)]),
    ("back", [a_sample(1, 60), a_sample(2, 10)], []),
    ("the first commit", [a_sample(1, None), a_sample(2, 60)], []),
    ("by a consumer that stopped", [a_sample(1, 10, clients=("x",)), a_sample(2, 60)], []),
    ("by a consumer that started", [a_sample(1, 10), a_sample(2, 60, clients=("x",))], []),
    ("clients not known", [a_sample(1, 10), a_sample(2, 60, status="ERROR")], []),
    ("while no sample was taken", [a_sample(1, 10), a_sample(2, 60, gap="stopped")], []),
    ("while the broker was silent", [a_sample(1, 10), a_sample(2, None, why="timed out"), a_sample(3, 60)], []),
)
DELETED: tuple[tuple[str, list[ClusterSample], list[tuple[Any, ...]]], ...] = (
    (
        "with unread messages",
        [a_sample(1, 10), a_sample(2, 10, {}), a_sample(3, 10, {})],
        [(2, "TOPIC_DELETED", "", 0, None, None), (2, "TOPIC_DELETED", "g", 10, None, 0)],
    ),
    (
        "with its offsets",
        [a_sample(1, 10, {"t": (20, 100)}), a_sample(2, None, {}, ("x",))],
        [
            (1, "EXPIRED", "g", 10, 20, 0),
            (2, "TOPIC_DELETED", "", 20, None, None),
            (2, "TOPIC_DELETED", "g", 20, None, 1),
        ],
    ),
    (
        "while a sample was taken",
        [a_sample(1, 10), a_sample(2, None, {}, topics=["t", "u"]), a_sample(3, None, {}), a_sample(4, None, {})],
        [(3, "TOPIC_DELETED", "", 0, None, None), (3, "TOPIC_DELETED", "g", 10, None, 0)],
    ),
    (
        "at its broker first, under a client",
        [
            a_sample(1, 10, clients=("x",)),
            a_sample(2, 20, {}, topics=["t", "u"]),
            a_sample(3, None, {}, topics=["t", "u"]),
            a_sample(4, None, {}),
        ],
        [(4, "TOPIC_DELETED", "", 0, None, None), (4, "TOPIC_DELETED", "g", 20, None, 1)],
    ),
    (
        "since no sample was taken",
        [a_sample(1, 10), a_sample(2, None, {}, topics=["t", "u"], gap="stopped"), a_sample(3, None, {})],
        [],
    ),
    (
        "and its broker was silent meanwhile",
        [a_sample(1, 10), a_sample(2, None, {}, topics=["t", "u"], why="timed out"), a_sample(3, None, {})],
        [],
    ),
    ("no longer read", [a_sample(1, 10), a_sample(2, 10, {}, topics=["t", "u"])], []),
    ("the broker is silent", [a_sample(1, 10), a_sample(2, None, {}, why="timed out")], []),
    ("topics not known", [a_sample(1, 10), a_sample(2, 10, {}, topics=[])], []),
)

SHORTER: tuple[tuple[str, list[ClusterSample], list[tuple[Any, ...]]], ...] = (
    (
        "a queue",
        [a_sample(1, 10), a_sample(2, 10, {"t": (0, 40)}), a_sample(3, 10, {"t": (0, 90)})],
        [(2, "SHORTENED", "", 40, 100, None), (2, "SHORTENED", "g", 40, 100, 0)],
    ),
    (
        "below the offset of a group",
        [a_sample(1, 70, clients=("x",)), a_sample(2, 0, {"t": (0, 40)}, ("x",))],
        [(2, "SHORTENED", "", 40, 100, None), (2, "SHORTENED", "g", 70, 100, 1)],
    ),
    (
        "read to its end",
        [a_sample(1, 100), a_sample(2, 0, {"t": (0, 0)})],
        [(2, "SHORTENED", "", 0, 100, None)],
    ),
    ("the broker is silent", [a_sample(1, 10), a_sample(2, None, {"t": (0, 40)}, why="timed out")], []),
)
EMPTIED: tuple[tuple[str, Ranges, Ranges, str], ...] = (
    ("with its trace", {"t": (0, 9), TRACE_TOPIC: (0, 7)}, {}, "SHORTENED"),
    ("and has new trace", {"t": (0, 9), TRACE_TOPIC: (0, 7)}, {TRACE_TOPIC: (0, 3)}, "SHORTENED"),
    ("with its retries alone", {"t": (0, 9), "%RETRY%g": (0, 7)}, {}, "TOPIC_DELETED"),
    ("and its trace is there", {"t": (0, 9), TRACE_TOPIC: (0, 7)}, {TRACE_TOPIC: (0, 8)}, "TOPIC_DELETED"),
    ("its trace was empty", {"t": (0, 9), TRACE_TOPIC: (0, 0)}, {TRACE_TOPIC: (0, 0)}, "TOPIC_DELETED"),
)


@pytest.mark.parametrize(("before", "after", "kind"), [each[1:] for each in EMPTIED], ids=[each[0] for each in EMPTIED])
def test_a_topic_is_gone(before: Ranges, after: Ranges, kind: str) -> None:
    """It was not deleted if nothing of its broker is as long as before: then the store of the broker was lost."""
    changes = Changes("C", RETENTION_MS)
    changes.add(a_sample(1, 2, before))
    made = changes.add(a_sample(2, 2, after)).get(trail.UNREAD_RANGES.name, ())
    assert {(row["group_name"], row["kind"], row["end_offset"]) for row in made if row["topic"] == "t"} == {
        ("", kind, None),
        ("g", kind, None),
    }


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param(samples, expected, id=f"{kind}, {name}")
        for kind, cases in (("expired", EXPIRED), ("moved", MOVED), ("deleted", DELETED), ("shorter", SHORTER))
        for name, samples, expected in cases
    ],
)
def test_unread_ranges(samples: list[ClusterSample], expected: list[tuple[Any, ...]]) -> None:
    """Each change between two samples gives its ranges."""
    assert rows(*samples) == expected


def test_a_restart_continues(tmp_path: Path) -> None:
    """A restarted sampler knows the last sample from the lake, and the topics from the spool."""
    lake, spool = Lake.create(tmp_path / "lake"), SampleSpool(tmp_path / "lake")
    with lake.writing():
        for found in (
            a_sample(1, 10),
            a_sample(2, 10, {"t": (30, 100)}),
            a_sample(3, 60, {"t": (30, 100)}),
            a_sample(4, 60, {}),
        ):
            spool.put("C", found)
            [waiting] = spool.waiting()
            Recorder(lake, "C", RETENTION_MS).record([waiting.found])
            spool.delete([waiting])
    lake.refresh()
    table = lake[trail.UNREAD_RANGES.name]
    assert sum(file.row_count for file in table.files()) == 4
    assert {file.minimum["sampled_ms"] for file in table.files()} == {2, 3, 4}


def test_a_broker_shows_them(tmp_path: Path) -> None:
    """For an offline group: an operator moves its offset, retention removes its backlog, its topic is deleted."""
    queue = MessageQueue("orders", "broker-a", 0)
    store = CommitLogConfig(segment_size=64 * 1024, retention_ms=0)
    with (
        embedded(tmp_path / "store", store=store) as running,
        SyncAdmin(running.namesrv_address) as admin,
        SyncProducer("PG", running.namesrv_address) as producer,
    ):
        assert admin.create_topic(TopicConfig("orders", 1, 1)).complete
        assert admin.create_group(SubscriptionGroupConfig("g")).complete
        changes, taken_ms = Changes("C", RETENTION_MS), 0

        def seen() -> list[tuple[Any, ...]]:
            nonlocal taken_ms
            taken_ms += 1
            made = changes.add(sample(admin, survey(admin, TRACE_TOPIC, None), "C", taken_ms))
            names = ("kind", "group_name", "topic", "first_offset", "end_offset", "live_count")
            return [tuple(row[name] for name in names) for row in made.get(trail.UNREAD_RANGES.name, ())]

        def send(count: int) -> None:
            for _ in range(count):
                producer.send(Message("orders", Random(1).randbytes(10_000)))

        send(4)
        admin.set_offset("g", queue, 1)
        assert seen() == []
        assert admin.skip_backlog("g", "orders").complete
        assert seen() == [("OFFSET_MOVED", "g", "orders", 1, 4, 0)]
        send(16)
        assert seen() == []
        wait_until(lambda: admin.delete_expired_logs().complete and admin.min_offset(queue) > 4)
        first = admin.min_offset(queue)
        assert seen() == [("EXPIRED", "g", "orders", 4, first, 0)]
        assert admin.delete_topic("orders").complete
        deleted = [("TOPIC_DELETED", group, "orders", first, None, live) for group, live in (("", None), ("g", 0))]
        assert seen() == deleted
        assert seen() == []
