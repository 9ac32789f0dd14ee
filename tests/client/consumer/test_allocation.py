"""Allocation: every strategy gives Java's result, and each queue belongs to exactly one member."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client import (
    Allocation,
    Averagely,
    ByCircle,
    ClientError,
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
)
from mqtrail.wire import MessageQueue

MEMBERS = ["10.0.0.1@1#11", "10.0.0.2@7#22", "10.0.0.3@9#33"]
QUEUES = [MessageQueue("orders", broker, number) for broker in ("hz@b1", "hz@b2", "sh@b1") for number in range(5)]


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0]


def room_of_member(member: str) -> str:
    return "bj" if member.startswith("10.0.0.3") else "hz"


NEARBY = MachineRoomNearby(room_of_queue, room_of_member)

# What rocketmq-client 5.3.3 answers for QUEUES and MEMBERS: broker and queue ids, member by member.
JAVA: list[tuple[Allocation, str, list[str]]] = [
    (Averagely(), "AVG", ["hz@b1 01234", "hz@b2 01234", "sh@b1 01234"]),
    (
        ByCircle(),
        "AVG_BY_CIRCLE",
        ["hz@b1 03 hz@b2 14 sh@b1 2", "hz@b1 14 hz@b2 2 sh@b1 03", "hz@b1 2 hz@b2 03 sh@b1 14"],
    ),
    (
        ConsistentHash(),
        "CONSISTENT_HASH",
        ["hz@b1 12 hz@b2 1", "hz@b1 4 hz@b2 24 sh@b1 0", "hz@b1 03 hz@b2 03 sh@b1 1234"],
    ),
    (MachineRoom({"hz"}), "MACHINE_ROOM", ["hz@b1 012 hz@b2 4", "hz@b1 34 hz@b2 0", "hz@b2 123"]),
    (NEARBY, "MACHINE_ROOM_NEARBY-AVG", ["hz@b1 01234 sh@b1 01", "hz@b2 01234 sh@b1 23", "sh@b1 4"]),
]

# The place of the owner of each of 64 queues of a topic named größe on broker-a, as the same client has it.
JAVA_OWNERS = "0316365152101521011453301451013144626664202036525143135331015610"


def expand(text: str) -> list[tuple[str, int]]:
    words = text.split()
    return [(broker, int(digit)) for broker, digits in zip(words[::2], words[1::2], strict=True) for digit in digits]


@pytest.mark.parametrize(("allocation", "name", "expected"), JAVA, ids=[row[1] for row in JAVA])
def test_shares_are_javas(allocation: Allocation, name: str, expected: list[str]) -> None:
    """The members get the same queues as in Java, and the strategy has Java's name."""
    assert allocation.name == name
    for member, text in zip(MEMBERS, expected, strict=True):
        assert [(queue.broker_name, queue.queue_id) for queue in allocation(member, QUEUES, MEMBERS)] == expand(text)
    assert allocation("10.0.0.9@9", QUEUES, MEMBERS) == []


def test_the_ring_is_javas() -> None:
    """Owners on the hash ring equal Java's, with a non-ASCII name among them."""
    members = sorted(f"192.168.1.{number}@{1000 + number}#{number * 7919}" for number in range(7))
    queues = [MessageQueue("größe", "broker-a", number) for number in range(64)]
    owners = {
        queue: place for place, member in enumerate(members) for queue in ConsistentHash()(member, queues, members)
    }
    assert "".join(str(owners[queue]) for queue in queues) == JAVA_OWNERS
    assert ConsistentHash(virtual_nodes=0)(members[0], queues, members) == []


@given(st.integers(0, 40), st.integers(1, 12))
def test_every_queue_has_exactly_one_member(queue_count: int, member_count: int) -> None:
    """With any strategy, no queue is left out and none is read twice."""
    members = sorted(f"10.0.0.{number}@1" for number in range(member_count))
    queues = [MessageQueue("orders", f"r{number % 3}@b", number) for number in range(queue_count)]
    nearby = MachineRoomNearby(room_of_queue, lambda member: f"r{int(member[7:-2]) % 2}", ByCircle())
    for allocation in (Averagely(), ByCircle(), ConsistentHash(), MachineRoom({"r0", "r1", "r2"}), nearby):
        shares = [allocation(member, queues, members) for member in members]
        assert sorted(queue for share in shares for queue in share) == sorted(queues)


def test_a_fixed_list_is_of_the_topic() -> None:
    """Configured queues apply to their own topic only."""
    fixed = Configured([MessageQueue("orders", "b", 3), MessageQueue("bills", "b", 1)])
    assert fixed("anybody", [MessageQueue("orders", "b", 0)], ["x"]) == [MessageQueue("orders", "b", 3)]
    assert fixed.name == "CONFIG"


def test_a_room_must_be_known() -> None:
    """A queue or member without a room is an error, not a queue that no member reads."""
    with pytest.raises(ClientError, match="machine room"):
        MachineRoomNearby(lambda queue: "", room_of_member)(MEMBERS[0], QUEUES, MEMBERS)
    # As Java splits names: an empty part at the end is none, and a third part is one too many.
    odd = [MessageQueue("orders", name, 0) for name in ("hz@", "hz", "hz@a@b", "hz@a@")]
    assert MachineRoom({"hz"})("a", odd, ["a"]) == [odd[3]]
