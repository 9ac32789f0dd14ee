"""Who consumes what: queues are dealt evenly, handed over first, and taken from silent consumers."""

from __future__ import annotations

import pytest

from mqtrail.gateway.pmq import PmqDesk
from mqtrail.gateway.pmq.desk import EXPIRE_MS, GROUP_QUEUES_MAX, HAND_OVER_MS, Full, QueueName

START = 1_000_000_000_000
QUEUES = {"t": [*((QueueName("t", number), False) for number in range(6)), (QueueName("g_t_fail", 0), True)]}


def owned(desk: PmqDesk, consumer: int) -> set[QueueName]:
    return {queue.queue for queue in desk.queues_of(desk.groups["g"], consumer)}


def test_ids_begin_above_those_of_an_earlier_run() -> None:
    """A request with an id of the last run finds nothing."""
    before, after = PmqDesk(START), PmqDesk(START + 1_000)
    old = max(before.register("c", START), before.number_of(QueueName("t", 0)))
    assert min(after.register("c", START), after.number_of(QueueName("t", 0))) > old
    assert not after.knows(old)
    assert after.queue_of(old) is None


def test_queues_that_a_topic_gets_or_loses_later() -> None:
    """They are dealt after a hand-over, with the others, or taken; a group without room is counted."""
    desk = PmqDesk(START)
    first = desk.register("a", START)
    desk.join("g", first, QUEUES, START)
    desk.join("h", first, QUEUES, START)
    desk.tick(START)
    assert desk.groups["g"].counts == {"t": 6}
    version = desk.groups["g"].version
    assert desk.fit("t", 8, START) == (2, 0)
    assert desk.groups["g"].counts == {"t": 8}
    assert desk.groups["g"].version > version
    for queue in desk.queues_of(desk.groups["g"], first):
        desk.hand_over(queue.offset_id, queue.version, has_moved=False)
    desk.tick(START)
    assert {QueueName("t", 6), QueueName("t", 7)} < owned(desk, first)
    assert desk.owners_of(QueueName("t", 7)) == []
    assert desk.fit("t", 8, START) == (0, 0)
    assert desk.fit("t", GROUP_QUEUES_MAX, START) == (0, 2)
    assert desk.fit("other", 8, START) == (0, 0)
    lost = desk.groups["g"].queues[QueueName("t", 1)]
    assert desk.fit("t", 0, START) == (2, 0)
    assert [name for name in desk.groups["g"].queues if name.topic == "t"] == [QueueName("t", 0)]
    assert (desk.group_queue(lost.offset_id), desk.groups["h"].counts) == (None, {"t": 1})
    assert desk.groups["g"].due_ms


def test_a_name_has_one_id() -> None:
    """A client that registers again keeps its id."""
    desk = PmqDesk(START)
    assert desk.register("a", START) == desk.register("a", START) != desk.register("b", START)


def test_queues_are_dealt_evenly() -> None:
    """Three members of a group get two queues each, and the failure queue has one owner."""
    desk = PmqDesk(START)
    members = [desk.register(name, START) for name in "abc"]
    for member in members:
        desk.join("g", member, QUEUES, START)
    assert desk.tick(START)
    shares = [owned(desk, member) for member in members]
    assert sorted(len(share - {QueueName("g_t_fail", 0)}) for share in shares) == [2, 2, 2]
    assert sum(len(share) for share in shares) == 7
    assert not desk.tick(START)


def test_a_member_that_does_not_hand_over_is_waited_for_once() -> None:
    """After HAND_OVER_MS the queues are dealt, and late commits of the former owner are void."""
    desk = PmqDesk(START)
    first, second = desk.register("a", START), desk.register("b", START)
    desk.join("g", first, QUEUES, START)
    desk.tick(START)
    versions = {queue.queue: queue.version for queue in desk.queues_of(desk.groups["g"], first)}
    desk.join("g", second, QUEUES, START)
    assert not desk.tick(START + HAND_OVER_MS - 1)
    assert desk.tick(START + HAND_OVER_MS)
    moved = desk.queues_of(desk.groups["g"], second)
    assert len(moved) == 3
    assert all(queue.version == versions[queue.queue] + 1 for queue in moved)


def test_a_silent_consumer_is_removed() -> None:
    """Its queues go to the others; a heartbeat keeps a consumer."""
    desk = PmqDesk(START)
    first, second = desk.register("a", START), desk.register("b", START)
    for member in (first, second):
        desk.join("g", member, QUEUES, START)
    desk.tick(START)
    assert desk.beat(second, START + EXPIRE_MS - 1)
    assert desk.tick(START + EXPIRE_MS)
    assert not desk.knows(first)
    assert not desk.beat(first, START + EXPIRE_MS)
    assert desk.tick(START + EXPIRE_MS + HAND_OVER_MS)
    assert len(owned(desk, second)) == 7


@pytest.mark.parametrize("has_moved", [True, False])
def test_a_hand_over_raises_the_version(has_moved: bool) -> None:
    """The version of the queue only if its offset has moved, that of the group in any case."""
    desk = PmqDesk(START)
    consumer = desk.register("a", START)
    desk.join("g", consumer, QUEUES, START)
    desk.tick(START)
    group = desk.groups["g"]
    queue = desk.queues_of(group, consumer)[0]
    before = queue.version, group.meta_version
    desk.hand_over(queue.offset_id, queue.version, has_moved=has_moved)
    assert (queue.version, group.meta_version) == (before[0] + has_moved, before[1] + 1)


def test_what_comes_too_late_changes_nothing() -> None:
    """A hand-over of an earlier owner, and what concerns a queue that the group has lost, or a consumer that left."""
    desk = PmqDesk(START)
    first, second = desk.register("a", START), desk.register("b", START)
    desk.join("g", first, QUEUES, START)
    desk.tick(START)
    group = desk.groups["g"]
    queue = group.queues[QueueName("t", 1)]
    old = queue.version
    desk.join("g", second, QUEUES, START)
    desk.tick(START + HAND_OVER_MS)
    assert queue.owner == second
    desk.deregister(first, START)
    before = group.version
    desk.hand_over(queue.offset_id, old, has_moved=True)
    assert (group.version, group.handing_over, desk.name_of(first)) == (before, {second}, None)
    desk.drop("g")
    desk.hand_over(queue.offset_id, queue.version, has_moved=True)
    desk.moved_by_operator(queue.offset_id, 7)
    assert (group.version, queue.committed) == (before, None)


def test_a_group_has_a_bounded_number_of_queues() -> None:
    """More are refused, and a refused member leaves nothing behind."""
    desk = PmqDesk(START)
    consumer = desk.register("a", START)
    many = {"t": [(QueueName("t", number), False) for number in range(GROUP_QUEUES_MAX + 1)]}
    with pytest.raises(Full, match=f"expected at most {GROUP_QUEUES_MAX}"):
        desk.join("g", consumer, many, START)
    assert not desk.groups
    assert not desk.groups_of(consumer)
    desk.join("g", consumer, {"t": many["t"][:-1]}, START)
    with pytest.raises(Full):
        desk.join("g", consumer, {"u": [(QueueName("u", 0), False)]}, START)
    assert len(desk.groups["g"].queues) == GROUP_QUEUES_MAX


@pytest.mark.parametrize(
    ("name", "found"), [("QUEUES_MAX", "of all groups"), ("CONSUMER_GROUPS_MAX", "of one consumer")]
)
def test_all_groups_have_a_bound_together(monkeypatch: pytest.MonkeyPatch, name: str, found: str) -> None:
    """Of their queues, and of the groups of one consumer."""
    monkeypatch.setattr(f"mqtrail.gateway.pmq.desk.{name}", {"QUEUES_MAX": 10, "CONSUMER_GROUPS_MAX": 1}[name])
    desk = PmqDesk(START)
    consumer = desk.register("a", START)
    desk.join("g", consumer, QUEUES, START)
    desk.join("g", consumer, QUEUES, START)
    with pytest.raises(Full, match=found):
        desk.join("h", consumer, QUEUES, START)


def test_many_silent_consumers_leave_in_several_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do groups whose queues are dealt: a tick looks at a bounded number of queues."""
    monkeypatch.setattr("mqtrail.gateway.pmq.desk.QUEUES_A_TICK", 20)
    desk = PmqDesk(START)
    for number in range(12):
        desk.join(f"g{number}", desk.register(f"c{number}", START), QUEUES, START)
    ticks = 1
    while desk.tick(START) and desk.is_behind:
        ticks += 1
    assert ticks == 4
    assert not any(group.due_ms for group in desk.groups.values())
    late_ms, ticks = START + EXPIRE_MS, 1
    while desk.tick(late_ms) and desk.is_behind:
        ticks += 1
    assert ticks >= 4
    assert not any(group.members for group in desk.groups.values())
    assert not any(queue.owner for group in desk.groups.values() for queue in group.queues.values())
