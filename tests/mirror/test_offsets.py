"""Offsets of a group of the source in the target: each message once, and what is repeated or skipped is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mqtrail.client import Admin, Message, MessageQueue, SyncAdmin
from mqtrail.mirror import MirroredGroup, MirroredOffsets, MirrorError, mirrored_offsets
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import PROPERTY_SHARDING_KEY, SubscriptionGroupConfig

from .test_run import configured, create, numbered, run, send

GROUP = "billing"


@pytest.fixture(scope="module")
def east() -> Iterator[Embedded]:
    with embedded() as running:
        with SyncAdmin(running.namesrv_address) as admin:
            assert admin.create_group(SubscriptionGroupConfig(GROUP)).complete
        yield running


@pytest.fixture(scope="module")
def west() -> Iterator[Embedded]:
    with embedded() as running:
        with SyncAdmin(running.namesrv_address) as admin:
            assert admin.create_group(SubscriptionGroupConfig(GROUP)).complete
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.node.originalname
    return name


def commit(cluster: Embedded, topic: str, *offsets: int) -> None:
    with SyncAdmin(cluster.namesrv_address) as admin:
        for number, offset in enumerate(offsets):
            admin.set_offset(GROUP, MessageQueue(topic, "broker-a", number), offset)


def move(wanted: MirroredOffsets, east: Embedded, west: Embedded) -> MirroredGroup:
    async def moved() -> list[MirroredGroup]:
        async with Admin(east.namesrv_address) as source, Admin(west.namesrv_address) as target:
            return await mirrored_offsets(wanted, source, target)

    (found,) = asyncio.run(moved())
    return found


def wish(folder: Path, topic: str) -> MirroredOffsets:
    return MirroredOffsets(folder=folder, group=GROUP, target_group=GROUP, topics=(topic,))


def places(found: MirroredGroup) -> list[tuple[int | None, int, int]]:
    return [(one.after, one.repeated, one.skipped) for one in found.queues]


def test_queue_by_queue(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """Exact, though the target has other offsets; nothing is repeated; a repeated apply changes nothing."""
    create(east, topic)
    create(west, topic)
    send(west, topic, [(0, Message(topic, b"earlier, of another producer"))] * 2)
    send(east, topic, numbered(topic, 10))
    run(configured(east, tmp_path, topic), west)
    commit(east, topic, 3, 5)
    commit(west, topic, 2, 0)
    wanted = wish(tmp_path, topic)
    planned = move(wanted, east, west)
    assert (places(planned), planned.missing, planned.behind) == ([(5, 0, 0), (5, 0, 0)], 0, 0)
    assert not planned.is_applied
    applied = move(replace(wanted, is_applied=True), east, west)
    assert (applied.is_complete, [one.before for one in applied.queues]) == (True, [2, 0])
    again = move(replace(wanted, is_applied=True), east, west)
    assert [(one.is_kept, one.after) for one in again.queues] == [(True, 5), (True, 5)]
    commit(east, topic, 1, 5)
    kept = move(replace(wanted, is_applied=True), east, west)
    assert (kept.is_complete, "--rewind moves it to 3" in kept.queues[0].error) == (False, True)
    assert move(replace(wanted, is_applied=True, may_rewind=True), east, west).is_complete
    with SyncAdmin(west.namesrv_address) as admin:
        assert admin.consumer_offset(GROUP, MessageQueue(topic, "broker-a", 0)) == 3


def test_an_apply_can_be_repeated(
    topic: str, east: Embedded, west: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the group has consumed further in the target, with members that run: nothing is written, nothing fails."""
    create(east, topic)
    create(west, topic)
    send(east, topic, numbered(topic, 10))
    run(configured(east, tmp_path, topic), west)
    commit(east, topic, 3, 5)
    applied = replace(wish(tmp_path, topic), is_applied=True)
    assert move(applied, east, west).is_complete
    commit(west, topic, 5, 5)

    async def running(*_: object) -> None:
        raise MirrorError("found 1 running members")

    monkeypatch.setattr("mqtrail.mirror.offsets.check_group", running)
    again = move(applied, east, west)
    assert (again.is_complete, again.changes, [one.after for one in again.queues]) == (True, {}, [5, 5])
    assert "has consumed further since the last apply" in again.queues[0].reason
    commit(east, topic, 5, 5)
    commit(west, topic, 4, 5)
    with pytest.raises(MirrorError, match="running members"):
        move(applied, east, west)


def test_queues_without_copies(
    topic: str, east: Embedded, west: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say nothing of a group that has an offset; where copies may be further on, its place is unknown, not 0."""
    create(east, topic, 3)
    create(west, topic, 3)
    send(west, topic, [(number, Message(topic, b"of another producer")) for number in (0, 0, 0, 0, 1, 1, 2)])
    send(east, topic, [(0, Message(topic, b"a"))])
    run(configured(east, tmp_path, topic), west)
    commit(east, topic, 1, 0, 0)
    with SyncAdmin(west.namesrv_address) as admin:
        admin.set_offset(GROUP, MessageQueue(topic, "broker-a", 1), 1)
    monkeypatch.setattr("mqtrail.mirror.offsets.PROBE_COUNT", 3)
    planned = move(wish(tmp_path, topic), east, west)
    assert [(one.before, one.after, one.is_kept) for one in planned.queues] == [
        (None, None, True),
        (1, 1, True),
        (None, 0, False),
    ]
    assert "no copy in its first 3 messages, so where the group continues is unknown" in planned.queues[0].error
    assert [one.error for one in planned.queues[1:]] == ["", ""]
    assert planned.missing == 0, "whether it lacks any is unknown"
    applied = move(replace(wish(tmp_path, topic), is_applied=True), east, west)
    assert not applied.is_complete
    with SyncAdmin(west.namesrv_address) as admin:
        assert admin.consumer_offset(GROUP, MessageQueue(topic, "broker-a", 0)) is None


def test_a_copy_beyond_the_search_is_not_skipped(
    topic: str, east: Embedded, west: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a queue has copies of several, and one's first copy is far behind, the group begins before it."""
    create(east, topic, 2)
    create(west, topic, 1)
    for number in (0, 0, 0, 0, 1, 0):
        send(east, topic, [(number, Message(topic, b"x"))])
        run(configured(east, tmp_path, topic), west)
    commit(east, topic, 5, 0)
    monkeypatch.setattr("mqtrail.mirror.offsets.PROBE_COUNT", 3)
    assert places(move(wish(tmp_path, topic), east, west)) == [(4, 1, 0)]


def test_a_group_without_an_offset_may_lack_all(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """What it has consumed of such a queue is unknown: messages without a copy are counted, not taken as consumed."""
    create(east, topic)
    create(west, topic)
    send(east, topic, numbered(topic, 6))
    config = replace(configured(east, tmp_path, topic), start="end")
    run(config, west)
    send(east, topic, numbered(topic, 2))
    run(config, west)
    commit(east, topic, 3)
    found = move(wish(tmp_path, topic), east, west)
    assert (places(found), found.missing) == ([(0, 0, 0), (0, 0, 0)], 3)


def test_queues_that_the_mirror_has_not_seen(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """What it will copy of them is unknown."""
    create(east, topic, 1)
    create(west, topic, 1)
    send(east, topic, [(0, Message(topic, b"a"))])
    run(configured(east, tmp_path, topic), west)
    create(east, topic, 2)
    commit(east, topic, 1, 0)
    with pytest.raises(MirrorError, match=f"on queue {topic}@broker-a/1 of the source, which the mirror has not read"):
        move(wish(tmp_path, topic), east, west)


def test_merged_queues(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """If a queue has copies of several, the group begins at the first one that it lacks; repeats are counted."""
    create(east, topic, 2)
    create(west, topic, 1)
    for number in range(6):
        message = Message(topic, b"v%d" % number, properties={PROPERTY_SHARDING_KEY: "k"})
        send(east, topic, [(number % 2, message)])
        run(configured(east, tmp_path, topic), west)
    commit(east, topic, 3, 1)
    assert places(move(wish(tmp_path, topic), east, west)) == [(3, 1, 0)], "v3 is lacking, v4 is consumed"


def test_what_it_would_never_get(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """Messages of other producers before its place, and messages without a copy, stop an apply until accepted."""
    create(east, topic, 1)
    create(west, topic, 1)
    send(east, topic, [(0, Message(topic, b"before the mirror"))])
    config = replace(configured(east, tmp_path, topic), start="end")
    run(config, west)
    send(east, topic, [(0, Message(topic, b"a"))])
    run(config, west)
    send(west, topic, [(0, Message(topic, b"of another producer"))])
    send(east, topic, [(0, Message(topic, b"b")), (0, Message(topic, b"c"))])
    run(config, west)
    commit(east, topic, 3)
    found = move(wish(tmp_path, topic), east, west)
    assert (places(found), found.missing, found.skipped) == ([(3, 0, 1)], 0, 1)
    applied = replace(wish(tmp_path, topic), is_applied=True)
    with pytest.raises(MirrorError, match="1 messages of other producers before its place"):
        move(applied, east, west)
    commit(east, topic, 0)
    with pytest.raises(MirrorError, match="found about 1 messages without a copy"):
        move(applied, east, west)
    assert move(replace(applied, may_lose=True), east, west).is_complete
    send(east, topic, [(0, Message(topic, b"d"))])
    commit(east, topic, 5)
    assert move(wish(tmp_path, topic), east, west).behind == 1


def test_refused(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    create(east, topic)
    create(west, topic)
    commit(east, topic, 0, 0)
    wanted = wish(tmp_path, topic)
    for change, text in (
        ({}, "found no mirror in"),
        ({"topics": ("other",)}, "found no topic 'other' in the mirror, expected one of"),
        ({"group": "unknown"}, "found no offsets of group 'unknown'"),
        ({"target_group": "unknown", "is_applied": True}, "found no group 'unknown' on each broker"),
    ):
        with pytest.raises(MirrorError, match=text):
            move(replace(wanted, **change), east, west)
        run(configured(east, tmp_path, topic), west)
