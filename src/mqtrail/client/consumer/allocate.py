"""Which queues of a topic a member of a group consumes: the strategies of RocketMQ's clients.

Every member computes this from the same sorted inputs, so all agree without communication; therefore all members of a
group need the same strategy. A member that is not among the client ids gets no queue.
Source: AllocateMessageQueueAveragely, …ByCircle, …ConsistentHash, …ByMachineRoom, …ByConfig, AllocateMachineRoomNearby
and ConsistentHashRouter, RocketMQ client and common.
"""

import bisect
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from mqtrail.wire import MessageQueue

from ..core import ClientError

VIRTUAL_NODES_DEFAULT = 10


class Allocation(Protocol):
    """A strategy. name: identifies it to a broker that allocates queues itself (QUERY_ASSIGNMENT)."""

    @property
    def name(self) -> str: ...

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """Return the queues of client_id. Both sequences are sorted. Raises ClientError for unusable inputs."""
        ...


@dataclass(frozen=True, slots=True)
class Averagely:
    """Adjacent queues for each member; the first members get one more if the number does not divide evenly."""

    name: ClassVar[str] = "AVG"

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        place = client_ids.index(client_id)
        share, rest = divmod(len(queues), len(client_ids))
        first = place * share + min(place, rest)
        return list(queues[first : first + share + (1 if place < rest else 0)])


@dataclass(frozen=True, slots=True)
class ByCircle:
    """Every n-th queue, for n members, starting at the member's index."""

    name: ClassVar[str] = "AVG_BY_CIRCLE"

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Each queue belongs to the next node after its hash on a ring; few queues move if a member joins or leaves."""

    virtual_nodes: int = VIRTUAL_NODES_DEFAULT

    name: ClassVar[str] = "CONSISTENT_HASH"

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        ring = {_ring_hash(f"{one}-{node}"): one for one in client_ids for node in range(self.virtual_nodes)}
        places = sorted(ring)
        if not places:
            return []

        def owner(queue: MessageQueue) -> str:
            at = bisect.bisect_left(places, _ring_hash(java_text(queue)))
            return ring[places[at % len(places)]]

        return [queue for queue in queues if owner(queue) == client_id]


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Divides evenly the queues of brokers named room@name whose room is in rooms.

    Queues left over by the division go to the first members, as with Averagely, but are taken from the list's end.
    """

    rooms: Collection[str]

    name: ClassVar[str] = "MACHINE_ROOM"

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        near = [queue for queue in queues if _room_of(queue.broker_name) in self.rooms]
        place = client_ids.index(client_id)
        share, rest = divmod(len(near), len(client_ids))
        mine = near[place * share : (place + 1) * share]
        if place < rest:
            mine.append(near[share * len(client_ids) + place])
        return mine


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Divides the queues of each room among its members; those of a room without members among all.

    broker_room, client_room: return the room of a queue's broker and of a client id; must not return "".
    """

    broker_room: Callable[[MessageQueue], str]
    client_room: Callable[[str], str]
    inner: Allocation = field(default_factory=Averagely)

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_in.setdefault(self._known(self.broker_room(queue), queue), []).append(queue)
        clients_in: dict[str, list[str]] = {}
        for one in client_ids:
            clients_in.setdefault(self._known(self.client_room(one), one), []).append(one)
        own = self.client_room(client_id)
        mine = self.inner(client_id, queues_in.pop(own), clients_in[own]) if own in queues_in else []
        for room in sorted(queues_in.keys() - clients_in.keys()):
            mine += self.inner(client_id, queues_in[room], client_ids)
        return mine

    @staticmethod
    def _known(room: str, of: object) -> str:
        if not room:
            raise ClientError(
                f"found no machine room of {of}, expected broker_room and client_room to return one for each"
            )
        return room


@dataclass(frozen=True, slots=True)
class Configured:
    """A fixed list, regardless of other members; queues of other topics are ignored."""

    queues: Collection[MessageQueue]

    name: ClassVar[str] = "CONFIG"

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        return sorted(queue for queue in self.queues if queue.topic in topics)


def java_text(queue: MessageQueue) -> str:
    """Return the text of Java's MessageQueue.toString."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _ring_hash(key: str) -> int:
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _room_of(broker_name: str) -> str | None:
    """The room of room@name, None for a name of another shape (Java's split drops empty parts at the end)."""
    parts = broker_name.split("@")
    while parts and not parts[-1]:
        parts.pop()
    return parts[0] if len(parts) == 2 else None
