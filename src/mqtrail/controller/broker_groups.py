"""The replicated state: groups of brokers, their ids, masters, epochs and SyncStateSets.

Commands come from the log in the same order at each controller, and each decides the same: a command carries all that
its decision needs, also which brokers its leader knew to be alive. Fencing is here: a request that names an old master
epoch or an old number of the set is refused, whenever it is applied.

Source: ReplicasInfoManager, DefaultElectPolicy, SyncStateInfo, apache/rocketmq 5.3.3 controller/.
"""

import json
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from mqtrail.wire import ResponseCode

Code = ResponseCode
FIRST_ID: Final = 1
GROUPS_MAX: Final = 10_000
GROUP_BROKERS_MAX: Final = 64
STATE_SIZE_MAX: Final = 6 * 1024 * 1024  # bytes of names and addresses; consensus takes a snapshot of 8 MiB
FULL: Final = f"found no room for more names and addresses of brokers, expected at most {STATE_SIZE_MAX} bytes"
_encode: Final = msgspec.json.Encoder().encode
SNAPSHOT_SIZE_A_SLICE: Final = 64 * 1024  # bytes of a snapshot's groups that one slice reads
NO_GROUP: Final = "Broker metadata is not existed"


class ElectionReason(StrEnum):
    """Why a group got another master, or lost it."""

    FIRST = "first"
    """It never had one."""
    REQUESTED = "requested"
    """An operator asked for it."""
    CONNECTION_CLOSED = "connection_closed"
    """The connection with the master's heartbeats closed."""
    HEARTBEATS_STOPPED = "heartbeats_stopped"
    """The master's heartbeats stopped, or never came to this leader."""
    NO_MASTER = "no_master"
    """It had none, until one of the SyncStateSet lived again."""
    RESTARTED = "restarted"
    """The master's process was started again, and may have lost the end of its log."""
    CLEANED = "cleaned"
    """An operator removed the master from the group."""


class LastElection(NamedTuple):
    """When and why the present master became it, or the group lost its master. at_ms: the leader's clock."""

    at_ms: int
    reason: str
    master_before: int | None


@dataclass(slots=True)
class ReplicaMember:
    """A broker of a group. check_code: distinguishes it from another that applies for the same id."""

    address: str
    check_code: str


@dataclass(slots=True)
class ReplicaGroup:
    """The brokers of one brokerName. in_sync: ids of the SyncStateSet. election: None: it was not noted."""

    cluster: str
    next_id: int = FIRST_ID
    members: dict[int, ReplicaMember] = field(default_factory=dict)
    master: int | None = None
    master_epoch: int = 0
    in_sync: list[int] = field(default_factory=list)
    in_sync_epoch: int = 0
    election: LastElection | None = None

    @property
    def master_address(self) -> str | None:
        member = None if self.master is None else self.members.get(self.master)
        return None if member is None else member.address

    def set_in_sync(self, ids: Iterable[int]) -> None:
        self.in_sync = sorted(set(ids))
        self.in_sync_epoch += 1

    def set_master(self, master: int | None, command: "Command", reason: str) -> None:
        """Begin a new epoch. None: there is no master; the set stays, and one of it can be elected later."""
        at_ms = command.get("at_ms")  # commands of older versions have no time
        self.election = None if at_ms is None else LastElection(at_ms, reason, self.master)
        self.master = master
        self.master_epoch += 1
        if master is not None:
            self.set_in_sync([master])


@dataclass(frozen=True, slots=True)
class Decision:
    """What a command did. elected: the name of the group that has a new master."""

    code: int = Code.SUCCESS
    remark: str | None = None
    elected: str | None = None


Command = Mapping[str, Any]
DONE: Final = Decision()


class ReplicaGroups:
    """All groups by brokerName."""

    def __init__(self) -> None:
        self.groups: dict[str, ReplicaGroup] = {}
        self._size = 0  # of all groups
        self._encoded: dict[str, bytes] = {}  # groups as in a snapshot; one that is not here is encoded when needed
        self._acts = {
            "alter": self._alter,
            "elect": self._elect,
            "register": self._register,
            "apply_id": self._apply_id,
            "clean": self._clean,
        }

    def snapshot(self) -> bytes:
        """Return the whole state."""
        for name, group in self.groups.items():
            if name not in self._encoded:
                self._encoded[name] = _member(name, group)
        return b"".join([b'{"version":1,"groups":{', b",".join(map(self._encoded.__getitem__, self.groups)), b"}}"])

    def restore(self, data: bytes) -> None:
        """Replace the state by a snapshot. Errors: those of read_snapshot."""
        slices = read_snapshot(data)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return self.take(end.value)

    def take(self, found: "SnapshotGroups") -> None:
        """Replace the state by that of a snapshot that was read."""
        self.groups, self._encoded, self._size = found

    def apply(self, data: bytes) -> Decision:
        """Carry out one command of the log."""
        command = json.loads(data)
        act = self._acts.get(command["do"])
        if act is None:  # of a newer version
            return Decision(
                Code.REQUEST_CODE_NOT_SUPPORTED, f"found the command {command['do']}, which is unknown here"
            )
        before = self._size_of(command["name"])
        decision = act(command)
        self._size += self._size_of(command["name"]) - before
        self._encoded.pop(command["name"], None)
        if (group := self.groups.get(command["name"])) is not None:
            self._encoded[command["name"]] = _member(command["name"], group)
        return decision

    def _size_of(self, name: str) -> int:
        """Return about how many bytes of a snapshot a group takes; 0: there is none."""
        group = self.groups.get(name)
        return 0 if group is None else _group_size(name, group)

    def _has_room(self, *texts: str) -> bool:
        return self._size + _size(*texts) <= STATE_SIZE_MAX

    def _alter(self, command: Command) -> Decision:
        """Replace the SyncStateSet, as its master asks."""
        failed = Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        group = self.groups.get(command["name"])
        if group is None:
            return Decision(failed, NO_GROUP)
        wanted = sorted(set(command["in_sync"]))
        refused = "Rejecting alter syncStateSet request because "
        if wanted == group.in_sync:
            return Decision(
                failed, "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet"
            )
        if group.master is None or group.master != command["master"]:
            remark = f"{refused}the current leader is:{{{group.master}}}, not {{{command['master']}}}"
            return Decision(Code.CONTROLLER_INVALID_MASTER, remark)
        if command["master_epoch"] != group.master_epoch:
            remark = f"{refused}the current master epoch is:{{{group.master_epoch}}}, not {{{command['master_epoch']}}}"
            return Decision(Code.CONTROLLER_FENCED_MASTER_EPOCH, remark)
        if command["in_sync_epoch"] != group.in_sync_epoch:
            remark = (
                f"{refused}the current syncStateSet epoch is:{{{group.in_sync_epoch}}}, "
                f"not {{{command['in_sync_epoch']}}}"
            )
            return Decision(Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, remark)
        for broker_id in wanted:
            if broker_id not in group.members:
                return Decision(Code.CONTROLLER_INVALID_REPLICAS, f"{refused}the replicas {{{broker_id}}} don't exist")
            if str(broker_id) not in command["alive"]:
                return Decision(Code.CONTROLLER_BROKER_NOT_ALIVE, f"{refused}the replicas {{{broker_id}}} don't alive")
        if group.master not in wanted:
            return Decision(failed, f"{refused}the newSyncStateSet don't contains origin leader {{{group.master}}}")
        group.set_in_sync(wanted)
        return DONE

    def _elect(self, command: Command) -> Decision:
        """Elect a master. id -1: any; designate: this one or none."""
        name, wanted = command["name"], command["id"]
        group = self.groups.get(name)
        if group is None or (wanted != -1 and wanted not in group.members):
            return Decision(Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered")
        if group.master_epoch == 0 and wanted != -1:
            master: int | None = wanted
        else:
            master = choose(group, command["alive"], wanted if command["designate"] else None, command["unclean"])
        if master is not None and master == group.master:
            return Decision(
                Code.CONTROLLER_MASTER_STILL_EXIST,
                f"The old master {master} is still alive, not need to elect new master for broker {name}",
            )
        if master is not None:
            group.set_master(master, command, _reason(group, command))
            return Decision(elected=name)
        if wanted != -1:
            return Decision(Code.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master")
        if group.master is not None:
            group.set_master(None, command, _reason(group, command))
        return Decision(
            Code.CONTROLLER_MASTER_NOT_AVAILABLE, "Old master has down and failed to elect a new broker master"
        )

    def _register(self, command: Command) -> Decision:
        """A broker with an id starts; keep its address.

        A master that starts again does not go on in its epoch. After a power failure it lacks bytes that slaves may
        have; what it wrote instead would be of the same epoch, and no comparison of epochs would find the difference.
        Another one of the SyncStateSet has all of them; else this one gets a new epoch, with the set as it is, since
        each one of it has what was acknowledged. Apache's controller lets it go on.
        """
        name, broker_id = command["name"], command["id"]
        group = self.groups.get(name)
        if group is None or broker_id not in group.members:
            what = f"Broker-set: {name}" if group is None else f"BrokerId: {broker_id} of broker-set: {name}"
            return Decision(
                Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, f"{what} hasn't been registered in controller"
            )
        if not self._has_room(command["address"]):
            return Decision(Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, FULL)
        group.members[broker_id].address = command["address"]
        if group.master != broker_id or not command.get("begins"):
            return DONE
        others = {one: live for one, live in command["alive"].items() if one != str(broker_id)}
        master, in_sync = choose(group, others, None, unclean=False) or broker_id, group.in_sync
        group.set_master(master, command, ElectionReason.RESTARTED)
        if master == broker_id:
            group.set_in_sync(in_sync)
        return Decision(elected=name)

    def _apply_id(self, command: Command) -> Decision:
        """Give an id to a broker; the same broker may ask again."""
        name, broker_id, check_code = command["name"], command["id"], command["check_code"]
        invalid = Code.CONTROLLER_BROKER_ID_INVALID
        group = self.groups.get(name)
        if not self._has_room(name, command["cluster"], check_code, check_code):
            return Decision(invalid, FULL)
        if group is None:
            if broker_id != FIRST_ID:
                remark = f"Broker-set: {name} hasn't been registered in controller, but broker try to apply brokerId: "
                return Decision(invalid, f"{remark}{broker_id}")
            if len(self.groups) >= GROUPS_MAX:
                return Decision(invalid, f"found {GROUPS_MAX} groups of brokers, expected fewer")
            group = self.groups[name] = ReplicaGroup(command["cluster"])
        member = group.members.get(broker_id)
        if member is not None:
            if member.check_code == check_code:
                return DONE
            return Decision(invalid, f"Fail to apply brokerId: {broker_id} in broker-set: {name}")
        if not FIRST_ID <= broker_id <= group.next_id or len(group.members) >= GROUP_BROKERS_MAX:
            return Decision(invalid, f"Fail to apply brokerId: {broker_id} in broker-set: {name}")
        group.members[broker_id] = ReplicaMember(check_code.split(";")[0], check_code)
        group.next_id = max(group.next_id, broker_id) + 1
        return DONE

    def _clean(self, command: Command) -> Decision:
        """Forget a group, or some of its brokers, which an operator took away."""
        name, ids = command["name"], command["ids"]
        group = self.groups.get(name)
        invalid = Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        if group is None:
            return Decision(invalid, f"Broker {name} is not existed,clean broker data failure.")
        if not command["living"]:
            if not ids and group.master is not None:
                return Decision(invalid, f"Broker {name} is still alive, clean up failure")
            for broker_id in ids:
                if str(broker_id) in command["alive"]:
                    return Decision(invalid, f"Broker [{name},  {broker_id}] is still alive, clean up failure")
        for broker_id in ids:
            group.members.pop(broker_id, None)
            if group.master == broker_id:
                group.set_master(None, command, ElectionReason.CLEANED)
            if broker_id in group.in_sync:
                group.set_in_sync(one for one in group.in_sync if one != broker_id)
        if not ids or not group.members:
            del self.groups[name]
        return DONE


def _reason(group: ReplicaGroup, command: Command) -> str:
    """Return why a group is getting another master. A broker asks (id) only if it knows none."""
    if group.master_epoch == 0:
        return ElectionReason.FIRST
    if not command["designate"] and command["id"] != -1:
        return ElectionReason.NO_MASTER
    reason = command.get("reason", ElectionReason.REQUESTED)
    assert isinstance(reason, str)
    return reason


def _member(name: str, group: ReplicaGroup) -> bytes:
    """Return a group as a member of a snapshot's JSON."""
    values = {
        "cluster": group.cluster,
        "next_id": group.next_id,
        "members": {str(key): [one.address, one.check_code] for key, one in group.members.items()},
        "master": group.master,
        "master_epoch": group.master_epoch,
        "in_sync": group.in_sync,
        "in_sync_epoch": group.in_sync_epoch,
        "election": group.election,
    }
    return b"%b:%b" % (_encode(name), _encode(values))


class _Group(msgspec.Struct, forbid_unknown_fields=True):
    cluster: str
    next_id: int
    members: dict[str, tuple[str, str]]
    master: int | None
    master_epoch: int
    in_sync: list[int]
    in_sync_epoch: int
    election: tuple[int, str, int | None] | None = None


class _Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    groups: dict[str, msgspec.Raw]
    version: int = 1


class SnapshotGroups(NamedTuple):
    """The state in a snapshot. encoded: its groups as in a snapshot. size: of all groups."""

    groups: dict[str, ReplicaGroup]
    encoded: dict[str, bytes]
    size: int


def read_snapshot(data: bytes) -> Generator[None, None, SnapshotGroups]:
    """Read a snapshot in slices of milliseconds. MsgspecError, ValueError, RecursionError: it is not a snapshot."""
    raw_groups = msgspec.json.decode(data, type=_Snapshot).groups
    groups: dict[str, ReplicaGroup] = {}
    encoded: dict[str, bytes] = {}
    size = done = 0
    for name, raw in raw_groups.items():
        if done >= SNAPSHOT_SIZE_A_SLICE:
            yield
            done = 0
        done += len(name) + len(raw)
        group = groups[name] = _restored(msgspec.json.decode(raw, type=_Group))
        encoded[name] = _member(name, group)
        size += _group_size(name, group)
    return SnapshotGroups(groups, encoded, size)


def _restored(values: _Group) -> ReplicaGroup:
    return ReplicaGroup(
        values.cluster,
        values.next_id,
        {int(key): ReplicaMember(*one) for key, one in values.members.items()},
        values.master,
        values.master_epoch,
        values.in_sync,
        values.in_sync_epoch,
        None if values.election is None else LastElection(*values.election),
    )


def _group_size(name: str, group: ReplicaGroup) -> int:
    texts = (text for one in group.members.values() for text in (one.address, one.check_code))
    return _size(name, group.cluster, *texts)


def _size(*texts: str) -> int:
    """Return how many bytes texts take in a snapshot, with their numbers."""
    return sum(len(json.dumps(text)) + 60 for text in texts)


def choose(group: ReplicaGroup, alive: Mapping[str, list[int]], wanted: int | None, unclean: bool) -> int | None:
    """Return the best master: of the SyncStateSet, and only if unclean of all. None: there is none.

    alive: id -> epoch, largest offset and priority of its last heartbeat. The best has the highest epoch, then the
    largest offset, then the lowest priority.
    """
    for ids in (group.in_sync, [*group.members]) if unclean else (group.in_sync,):
        candidates = [one for one in ids if str(one) in alive and one in group.members]
        if group.master in candidates and wanted in (None, group.master):
            return group.master
        if wanted is not None:
            if wanted in candidates:
                return wanted
        elif candidates:
            return min(candidates, key=lambda one: _rank(one, alive[str(one)]))
    return None


def _rank(broker_id: int, live: list[int]) -> tuple[int, int, int, int]:
    epoch, max_offset, priority = live
    return -epoch, -max_offset, priority, broker_id
