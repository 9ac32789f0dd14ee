"""Controllers: ids, elections, SyncStateSets, fencing, notifications; over restarts and changes of the leader."""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from mqtrail.controller import Controller, ControllerConfig, ReplicaGroups, live
from mqtrail.controller import controller as controller_module
from mqtrail.controller import requests as requests_module
from mqtrail.controller.broker_groups import ReplicaGroup, ReplicaMember
from mqtrail.controller.requests import encode_entry
from mqtrail.raft import LogEntry, MessageKind, RaftConfig, RaftIdentityError, RaftMessage, encode_message
from mqtrail.raft.journal import SLICE_SIZE
from mqtrail.store import MemoryDisk, MemoryFile
from mqtrail.wire import (
    Host,
    Peer,
    PeerId,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    SyncStateSet,
)

from . import trio as trio_module
from .trio import CLUSTER, GROUP, Trio, address_of

Code = RequestCode


def test_a_broker_joins_and_becomes_the_first_master() -> None:
    """1012, 1013, 1003, 1002: ids from 1; the first that asks is master of epoch 1."""
    trio = Trio()
    registered = trio.join(1)
    assert "masterBrokerId" not in registered.ext
    elected = trio.elect(1)
    assert elected.ext == {
        "masterBrokerId": "1",
        "masterAddress": address_of(1),
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    assert json.loads(elected.body) == {
        "brokerMemberGroup": {"brokerAddrs": {"1": address_of(1)}, "brokerName": GROUP, "cluster": CLUSTER},
        "syncStateSet": [1],
    }
    registered = trio.join(2)
    assert registered.ext["masterAddress"] == address_of(1)
    assert SyncStateSet.decode(registered.body) == SyncStateSet((1,), 1)
    assert trio.info() == ("1", "1", (1,))


def test_an_id_belongs_to_one_broker() -> None:
    """1013: the same broker may ask again, another is refused; a group begins with 1."""
    trio = Trio(1)
    ext = {"clusterName": CLUSTER, "brokerName": GROUP, "appliedBrokerId": "2", "registerCheckCode": "a:1;5"}
    assert trio.ask(Code.CONTROLLER_APPLY_BROKER_ID, ext).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    ext["appliedBrokerId"] = "1"
    assert [trio.ask(Code.CONTROLLER_APPLY_BROKER_ID, ext).code for _ in range(2)] == [0, 0]
    ext["registerCheckCode"] = "b:1;5"
    assert trio.ask(Code.CONTROLLER_APPLY_BROKER_ID, ext).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    assert trio.register(7).code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert trio.register(1, "moved:1").code == 0
    assert trio.controllers["n0"].groups.groups[GROUP].members[1].address == "moved:1"


def test_the_sync_state_set_is_fenced() -> None:
    """1001: only the master of the current epoch changes the set that it knows, to living brokers."""
    trio = Trio(1)
    trio.group_of_two()
    refused = {
        ResponseCode.CONTROLLER_INVALID_MASTER: trio.alter(2, (2,), set_epoch=2),
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH: trio.alter(1, (1,), epoch=0, set_epoch=2),
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH: trio.alter(1, (1,), set_epoch=1),
        ResponseCode.CONTROLLER_INVALID_REPLICAS: trio.alter(1, (1, 9), set_epoch=2),
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED: trio.alter(1, (2,), set_epoch=2),
    }
    assert {code: reply.code for code, reply in refused.items()} == {code: code for code in refused}
    assert trio.alter(1, (1,), set_epoch=2).ext == {"newSyncStateSetEpoch": "3"}
    trio.controllers["n0"].disconnected(PeerId(2))
    assert trio.alter(1, (1, 2), set_epoch=3).code == ResponseCode.CONTROLLER_BROKER_NOT_ALIVE


def test_a_closed_connection_of_the_master_elects_at_once() -> None:
    """The living member in sync becomes master of the next epoch, alone in the set, and 1008 says so."""
    trio = Trio()
    trio.group_of_two()
    for one in trio.controllers.values():
        one.disconnected(PeerId(1))
    trio.settle()
    trio.advance(100)
    assert trio.info() == ("2", "2", (2,))
    (call,) = trio.notified
    assert (call.address, call.command.code) == (address_of(2), Code.NOTIFY_BROKER_ROLE_CHANGED)
    assert call.command.ext == {
        "masterAddress": address_of(2),
        "masterBrokerId": "2",
        "masterEpoch": "2",
        "syncStateSetEpoch": "3",
    }
    assert SyncStateSet.decode(call.command.body) == SyncStateSet((2,), 3)


def test_a_master_that_starts_again_gets_no_second_time_in_its_epoch() -> None:
    """1003 of the master: another one in sync is elected; alone it gets a new epoch, with the set as it is.

    Found by the simulator (members 4770060186): after a power failure it wrote other bytes in the same epoch.
    """
    trio = Trio()
    trio.group_of_two()
    assert trio.register(2).ext["masterEpoch"] == "1", "a slave changes nothing"
    assert trio.info() == ("1", "1", (1, 2))
    registered = trio.register(1)
    assert (registered.ext["masterBrokerId"], registered.ext["masterEpoch"]) == ("2", "2")
    assert trio.info() == ("2", "2", (2,))
    assert last_election(trio)["reason"] == "restarted"
    assert trio.alter(2, (1, 2), epoch=2, set_epoch=3).code == 0
    for broker_id in (1, 2):
        for one in trio.controllers.values():
            one.disconnected(PeerId(broker_id))
    assert trio.register(2).ext["masterEpoch"] == "3"
    assert trio.info() == ("2", "3", (1, 2))
    assert {call.command.code for call in trio.notified} == {Code.NOTIFY_BROKER_ROLE_CHANGED}


def test_registrations_of_an_older_version_elect_nobody() -> None:
    """Each controller decides on an entry of the log as it was decided when it was written."""
    groups = ReplicaGroups()
    known = {"name": GROUP, "alive": {"1": [1, 1, 1], "2": [1, 1, 1]}, "unclean": False, "at_ms": 1}
    for number in (1, 2):
        groups.apply(
            json.dumps({"do": "apply_id", "cluster": "c", "id": number, "check_code": f"a:{number}"} | known).encode()
        )
    groups.apply(json.dumps({"do": "elect", "cluster": "c", "id": 1, "designate": False} | known).encode())
    register = {"do": "register", "id": 1, "address": "a:1"} | known
    assert groups.apply(json.dumps(register).encode()).elected is None
    assert groups.groups[GROUP].master_epoch == 1
    assert groups.apply(json.dumps(register | {"begins": True}).encode()).elected == GROUP
    assert groups.groups[GROUP].master_epoch == 2


def last_election(trio: Trio) -> dict[str, Any]:
    """What 1006 says of the last election of the group."""
    reply = trio.ask(Code.CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([GROUP]).encode())
    found: dict[str, Any] = json.loads(reply.body)["replicasInfoTable"][GROUP]["lastElection"]
    return found


def test_an_election_has_a_time_and_a_reason() -> None:
    """Each kind of election names its cause; the leader's clock dates it, and a snapshot keeps it."""
    trio = Trio(1)
    trio.join(1)
    trio.elect(1)
    assert last_election(trio) == {"timestamp": trio.now_ms, "reason": "first"}
    trio.join(2)
    trio.alter(1, (1, 2), set_epoch=1)
    core = trio.controllers["n0"]
    core.disconnected(PeerId(1))
    assert last_election(trio) == {"timestamp": trio.now_ms, "reason": "connection_closed", "masterBefore": 1}
    for _ in range(20):
        trio.advance(1_000)
        trio.beat(1)
    lost = last_election(trio)
    assert (lost["reason"], lost["masterBefore"], trio.info()[0]) == ("heartbeats_stopped", 2, None)
    trio.beat(2)
    trio.advance(6_000)
    assert last_election(trio)["reason"] == "no_master"
    trio.beat(1)
    assert trio.alter(2, (1, 2), set_epoch=4, epoch=4).code == 0
    trio.elect(1, designate=True)
    restored = ReplicaGroups()
    restored.restore(core.groups.snapshot())
    assert restored.groups[GROUP].election == (trio.now_ms, "requested", 2)


def test_a_master_that_dies_with_the_leading_controller_is_replaced_at_once() -> None:
    """The next leader heard the master before, so it waits for no further heartbeat."""
    trio = Trio()
    trio.group_of_two()
    del trio.controllers[trio.leader]
    for one in trio.controllers.values():
        one.disconnected(PeerId(1))
    trio.advance(6_000)
    assert trio.info() == ("2", "2", (2,))


def test_silence_of_the_master_elects_after_its_time() -> None:
    """A heartbeat's own time-out decides; a new leader first waits for heartbeats."""
    trio = Trio()
    trio.group_of_two()
    for _ in range(30):
        trio.advance(1_000)
        trio.beat(2)
    assert trio.info() == ("2", "2", (2,))


def test_a_broker_out_of_sync_is_elected_only_if_that_is_set() -> None:
    """By default the group has no master until a member in sync returns; enableElectUncleanMaster takes any."""
    for unclean, expected in ((False, (None, "2", (1,))), (True, ("2", "2", (2,)))):
        trio = Trio(1, elect_unclean_master=unclean)
        trio.join(1)
        trio.elect(1)
        trio.join(2)
        trio.advance(10_000)
        trio.beat(1)
        trio.beat(2)
        trio.controllers["n0"].disconnected(PeerId(1))
        trio.advance(6_000)
        assert trio.info() == expected
        trio.beat(1)
        trio.beat(2)
        trio.advance(6_000)
        assert trio.info()[0] == ("2" if unclean else "1")


def test_the_best_replica_is_elected() -> None:
    """Highest epoch, then largest offset, then lowest priority."""
    for beats, best in (
        ({2: {"epoch": 1, "max_offset": 900}, 3: {"epoch": 2, "max_offset": 1}}, "3"),
        ({2: {"max_offset": 50}, 3: {"max_offset": 60}}, "3"),
        ({2: {"electionPriority": "5"}, 3: {"electionPriority": "4"}}, "3"),
        ({2: {}, 3: {}}, "2"),
    ):
        trio = Trio(1)
        trio.group_of_two()
        trio.join(3)
        assert trio.alter(1, (1, 2, 3), set_epoch=2).code == 0
        trio.advance(10_000)
        for broker_id, fields in beats.items():
            trio.beat(broker_id, **fields)
        trio.controllers["n0"].disconnected(PeerId(1))
        trio.advance(6_000)
        assert trio.info()[0] == best


def test_a_controller_that_was_stopped_elects_for_nothing() -> None:
    """Heartbeats came while it did nothing, and wait to be read: this time does not count against their senders."""
    trio = Trio(1)
    trio.group_of_two()
    trio.beat(1)
    trio.beat(2)
    trio.now_ms += 15_000
    trio.beat(2)
    trio.advance(100)
    trio.beat(1)
    trio.advance(1_000)
    assert trio.info() == ("1", "1", (1, 2))
    for _ in range(3):
        trio.advance(4_000)
        trio.beat(2)
    assert trio.info()[0] == "2"


def test_a_second_broker_with_an_id_is_refused_while_the_first_lives() -> None:
    """Its folder was copied: both would be master together. Once the first is gone, an address may change."""
    trio = Trio(1)
    trio.group_of_two()
    trio.beat(1)
    trio.beat(2)
    names = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerId": "2"}
    twin = trio.ask(Code.BROKER_HEARTBEAT, names | {"brokerAddr": "10.0.0.9:1"}, peer=99)
    assert twin.code == ResponseCode.INVALID_PARAMETER
    twin = trio.ask(Code.CONTROLLER_REGISTER_BROKER, names | {"brokerAddress": "10.0.0.9:1"}, peer=99)
    assert "with the id 2 of broker-a, expected none, since the one at" in (twin.remark or "")
    assert trio.ask(Code.CONTROLLER_REGISTER_BROKER, names | {"brokerAddress": "10.0.0.9:1"}, peer=2).code == 0
    trio.controllers["n0"].disconnected(PeerId(2))
    assert trio.ask(Code.CONTROLLER_REGISTER_BROKER, names | {"brokerAddress": "10.0.0.9:1"}, peer=99).code == 0
    assert trio.ask(Code.BROKER_HEARTBEAT, names | {"brokerAddr": "10.0.0.9:1"}, peer=99).code == 0


def test_an_operator_designates_a_master() -> None:
    """1002 with designateElect: this one if it is in sync, else nothing changes; without it a living master stays."""
    trio = Trio(1)
    trio.group_of_two()
    trio.join(3)
    assert trio.elect(3, designate=True).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    still = trio.elect(2)
    assert (still.code, still.ext["masterBrokerId"]) == (ResponseCode.CONTROLLER_MASTER_STILL_EXIST, "1")
    assert trio.elect(2, designate=True).ext["masterEpoch"] == "2"
    assert trio.info() == ("2", "2", (2,))


def test_state_survives_the_leader_and_restarts() -> None:
    """Another controller goes on with the same epochs; one that starts again has the state of its disk."""
    trio = Trio()
    trio.group_of_two()
    old = trio.leader
    del trio.controllers[old]
    trio.advance(5_000)
    assert trio.leader != old
    trio.beat(1)
    trio.beat(2)
    assert trio.info() == ("1", "1", (1, 2))
    assert trio.elect(2, designate=True).code == 0
    trio.start(old)
    trio.advance(2_000)
    assert trio.controllers[old].groups.groups == trio.controllers[trio.leader].groups.groups


def test_a_new_leader_deposes_no_master_that_it_did_not_hear_yet() -> None:
    """It waits for the time of a heartbeat, although other brokers already sent theirs."""
    trio = Trio(1)
    trio.group_of_two()
    trio.start("n0")
    trio.advance(4_000)
    trio.beat(2)
    trio.advance(4_000)
    trio.beat(1)
    trio.beat(2)
    trio.advance(5_000)
    assert trio.info() == ("1", "1", (1, 2))


def test_only_the_leader_serves() -> None:
    """Others answer 2007; all answer 1005 with the leader's address and the peers."""
    trio = Trio()
    follower = next(name for name in trio.controllers if name != trio.leader)
    for code in (Code.CONTROLLER_GET_NEXT_BROKER_ID, Code.CONTROLLER_ELECT_MASTER):
        ext = {"clusterName": CLUSTER, "brokerName": GROUP}
        assert trio.ask(code, ext, at=follower).code == ResponseCode.CONTROLLER_NOT_LEADER
    metadata = trio.ask(Code.CONTROLLER_GET_METADATA_INFO, at=follower).ext
    assert metadata == {
        "group": "controllers",
        "controllerLeaderId": trio.leader,
        "controllerLeaderAddress": trio.configs[follower].addresses[trio.leader],
        "isLeader": "false",
        "peers": "n0:127.0.0.1:27010;n1:127.0.0.1:27011;n2:127.0.0.1:27012;",
    }


def test_a_deposed_leader_answers_what_it_holds() -> None:
    """Requests that no majority confirmed get 2007, when it learns that it does not lead any more."""
    trio = Trio()
    old = trio.leader
    controller = trio.controllers[old]
    others = {name: one for name, one in trio.controllers.items() if name != old}
    trio.controllers = {old: controller}
    ext = {"clusterName": CLUSTER, "brokerName": GROUP}
    with pytest.raises(KeyError):
        trio.ask(Code.CONTROLLER_GET_NEXT_BROKER_ID, ext, at=old)
    trio.advance(3_000)
    assert [reply.code for reply in trio.replies.values()] == [ResponseCode.CONTROLLER_NOT_LEADER]
    assert not others[next(iter(others))].failure


def test_operators_see_and_clean_groups() -> None:
    """1006 lists replicas in and out of sync; 1011 forgets dead brokers, and living ones only on request."""
    trio = Trio(1)
    trio.group_of_two()
    trio.join(3)
    table = json.loads(trio.ask(Code.CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([GROUP, "x"]).encode()).body)
    info = table["replicasInfoTable"][GROUP]
    assert [one["brokerId"] for one in info["inSyncReplicas"]] == [1, 2]
    assert info["notInSyncReplicas"] == [
        {"alive": True, "brokerAddress": address_of(3), "brokerId": 3, "brokerName": GROUP}
    ]
    assert (info["masterBrokerId"], info["masterEpoch"], info["syncStateSetEpoch"]) == (1, 1, 2)
    clean = {"brokerName": GROUP, "brokerControllerIdsToClean": "3"}
    assert trio.ask(Code.CLEAN_BROKER_DATA, clean).code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    trio.controllers["n0"].disconnected(PeerId(3))
    assert trio.ask(Code.CLEAN_BROKER_DATA, clean).code == 0
    assert [*trio.controllers["n0"].groups.groups[GROUP].members] == [1, 2]
    whole = {"brokerName": GROUP}
    assert trio.ask(Code.CLEAN_BROKER_DATA, whole).code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    assert trio.ask(Code.CLEAN_BROKER_DATA, whole | {"isCleanLivingBroker": "true"}).code == 0
    missing = trio.ask(Code.CONTROLLER_GET_REPLICA_INFO, {"brokerName": GROUP})
    assert missing.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


def test_settings_are_shown_and_changed() -> None:
    """1010 and 1009, with RocketMQ's names; what needs a restart is refused."""
    trio = Trio(1)
    assert b"enableElectUncleanMaster=false\n" in trio.ask(Code.GET_CONTROLLER_CONFIG).body
    assert trio.ask(Code.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true\n").code == 0
    assert trio.configs["n0"].elect_unclean_master
    for body, code in (
        (b"controllerDLegerPeers=n0-x:1", ResponseCode.INVALID_PARAMETER),
        (b"rocketmqHome=/", ResponseCode.NO_PERMISSION),
        (b"scanNotActiveBrokerInterval=x", ResponseCode.INVALID_PARAMETER),
    ):
        assert trio.ask(Code.UPDATE_CONTROLLER_CONFIG, body=body).code == code


def test_unknown_and_malformed_requests_get_an_error() -> None:
    """Code 3 for unknown ones, code 1 for a missing field or a body that is too large, and nothing changes."""
    trio = Trio(1)
    assert trio.ask(10).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert trio.ask(Code.CONTROLLER_ELECT_MASTER).code == ResponseCode.SYSTEM_ERROR
    assert trio.ask(Code.CONTROLLER_GET_SYNC_STATE_DATA, body=b"{}").code == ResponseCode.SYSTEM_ERROR
    assert trio.ask(Code.CONTROLLER_ALTER_SYNC_STATE_SET, body=b"x" * 300_000).code == ResponseCode.SYSTEM_BUSY
    clean = {"brokerName": GROUP, "brokerControllerIdsToClean": "1;x"}
    assert trio.ask(Code.CLEAN_BROKER_DATA, clean).code == ResponseCode.INVALID_PARAMETER
    beat = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerAddr": "a:1"}
    assert trio.ask(Code.BROKER_HEARTBEAT, beat).code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert trio.controllers["n0"].groups.groups == {}


def test_a_snapshot_holds_the_whole_state() -> None:
    """What is restored equals what was saved."""
    trio = Trio(1)
    trio.group_of_two()
    groups = trio.controllers["n0"].groups
    restored = type(groups)()
    restored.restore(groups.snapshot())
    assert restored.groups == groups.groups


def test_a_large_snapshot_is_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of the loop reads a part; until the last one the follower keeps its state and serves."""
    groups = ReplicaGroups()
    for number in range(20):
        entry = {"do": "apply_id", "name": f"b{number}", "id": 1, "check_code": "10.0.0.1:1;x"}
        assert groups.apply(encode_entry(entry | OF_LEADER)).code == 0
    monkeypatch.setattr("mqtrail.controller.broker_groups.SNAPSHOT_SIZE_A_SLICE", 2 * len(groups.snapshot()) // 20)
    trio = Trio()
    follower = next(one for one in trio.controllers if one != trio.leader)
    core = trio.controllers[follower]
    message = RaftMessage(
        kind=MessageKind.SNAPSHOT,
        sender=trio.leader,
        target=follower,
        term=core.raft.term,
        group_key=core.raft.config.group_key,
        index=9,
        log_term=1,
        data=groups.snapshot(),
    )
    body = encode_message(message, core.raft.config.members)
    command = RemotingCommand(Code.CONTROLLER_CONSENSUS, {}, body, flag=2)
    turns = 1
    core.handle(Peer(PeerId(1), Host("10.0.0.9", 1)), command, trio.now_ms)
    while core.raft.commit_index < 9:
        assert core.groups.groups == {}
        assert core.next_tick_ms() == trio.now_ms
        core.handle(Peer(PeerId(1), Host("10.0.0.9", 1)), command, trio.now_ms)  # the leader sends it again
        core.tick(trio.now_ms)
        turns += 1
        assert turns <= 20
    assert turns >= 6
    assert core.groups.groups == groups.groups
    assert core.groups.snapshot() == groups.snapshot()
    assert core.groups._size == groups._size
    assert core.next_tick_ms() > trio.now_ms


class CountingDisk(MemoryDisk):
    """Counts the bytes that are written to its files."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        file = super().open(path, size, reserve=reserve)
        write = MemoryFile.write_at

        def counted(offset: int, data: bytes) -> None:
            self.written += len(data)
            write(file, offset, data)

        file.write_at = counted  # type: ignore[method-assign]
        return file


def counting(disk: MemoryDisk) -> CountingDisk:
    assert isinstance(disk, CountingDisk)
    return disk


def most_written(core: Controller, disk: CountingDisk, work: Callable[[], None]) -> int:
    """Return the most bytes that one turn of the loop writes during work."""
    most = 0
    handle, tick = core.handle, core.tick

    def measured(turn: Callable[..., list[Send]]) -> Callable[..., list[Send]]:
        def measure(*values: Any) -> list[Send]:
            nonlocal most
            before = disk.written
            sends = turn(*values)
            most = max(most, disk.written - before)
            return sends

        return measure

    core.handle, core.tick = measured(handle), measured(tick)  # type: ignore[method-assign]
    work()
    core.handle, core.tick = handle, tick  # type: ignore[method-assign]
    return most


def test_a_large_snapshot_is_written_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn of the loop writes all of it: neither where it is made, nor where a leader's arrives."""
    monkeypatch.setattr(trio_module, "MemoryDisk", CountingDisk)
    name = "x" * 16_000
    trio = Trio(1)
    core = trio.controllers["n0"]

    def fill() -> None:
        for number in range(40):
            names = {"clusterName": "c", "brokerName": f"{number}{name}"}
            applied = names | {"appliedBrokerId": "1", "registerCheckCode": name}
            assert trio.ask(Code.CONTROLLER_APPLY_BROKER_ID, applied).code == 0
        trio.advance(1_000)

    assert most_written(core, counting(trio.disks["n0"]), fill) < SLICE_SIZE + 200_000
    assert len(core.raft.journal.snapshot) > 2 * SLICE_SIZE

    others = Trio()
    follower = next(one for one in others.controllers if one != others.leader)
    gets = others.controllers[follower]
    message = RaftMessage(
        kind=MessageKind.SNAPSHOT,
        sender=others.leader,
        target=follower,
        term=gets.raft.term,
        group_key=gets.raft.config.group_key,
        index=99,
        log_term=1,
        data=core.raft.journal.snapshot,
    )
    body = encode_message(message, gets.raft.config.members)

    def install() -> None:
        gets.handle(Peer(PeerId(1), Host("10.0.0.9", 1)), RemotingCommand(1901, {}, body, flag=2), others.now_ms)
        for _ in range(1_000):
            if gets.raft.commit_index < 99:
                gets.tick(others.now_ms)

    assert most_written(gets, counting(others.disks[follower]), install) < SLICE_SIZE + 200_000
    assert gets.groups.snapshot() == core.raft.journal.snapshot
    again = others.start(follower)
    assert again.raft.journal.snapshot == core.raft.journal.snapshot


def test_peers_are_checked() -> None:
    """An own id that is not in the list, a folder of another controller."""
    with pytest.raises(RaftIdentityError, match="own id"):
        ControllerConfig(self_id="n5")
    trio = Trio(3)
    disk: MemoryDisk = trio.disks["n0"]
    trio.disks["n1"] = disk
    with pytest.raises(RaftIdentityError, match="journal of member n0"):
        trio.start("n1")


def test_a_controller_whose_disk_fails_serves_no_more() -> None:
    """It keeps the error for the node, and answers what it holds by 2007."""

    class FailingDisk(MemoryDisk):
        def replace(self, path: str, data: bytes) -> None:
            if failing:
                raise OSError("the disk fails")
            super().replace(path, data)

    failing = False
    trio = Trio(1)
    trio.disks["n0"] = FailingDisk()
    controller = trio.start("n0")
    trio.advance(5_000)
    trio.join(1)
    failing = True
    controller.raft.journal._size = 0
    assert trio.elect(1).code == ResponseCode.CONTROLLER_NOT_LEADER
    assert isinstance(controller.failure, OSError)
    assert controller.tick(trio.now_ms + 10_000) == []


def test_names_cannot_outgrow_a_snapshot() -> None:
    """A state above its maximum could not be compacted: what would exceed it is refused, and the rest is served."""
    trio = Trio(1)
    name = "é" * 8_000
    codes = [
        trio.ask(
            Code.CONTROLLER_APPLY_BROKER_ID,
            {"clusterName": "c", "brokerName": f"{number}{name}", "appliedBrokerId": "1", "registerCheckCode": name},
        ).code
        for number in range(60)
    ]
    assert codes[0] == 0
    assert codes[-1] == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    before = codes.count(0)
    assert trio.ask(Code.CLEAN_BROKER_DATA, {"brokerName": f"0{name}", "isCleanLivingBroker": "true"}).code == 0
    ext = {"clusterName": "c", "brokerName": f"0{name}", "appliedBrokerId": "1", "registerCheckCode": name}
    assert trio.ask(Code.CONTROLLER_APPLY_BROKER_ID, ext).code == 0
    assert len(trio.controllers["n0"].groups.groups) == before
    again = ReplicaGroups()
    again.restore(trio.controllers["n0"].groups.snapshot())
    assert again.apply(
        encode_entry({"do": "apply_id", "name": "x" + name, "id": 1, "check_code": name} | OF_LEADER)
    ).code


OF_LEADER = {"cluster": "c", "alive": {}, "unclean": False}
JUNK: dict[str, Any] = {
    "an entry that is no JSON": {"kind": MessageKind.APPEND, "entries": (LogEntry(2, 1, b"x"),)},
    "an entry without its members": {"kind": MessageKind.APPEND, "entries": (LogEntry(2, 1, b'{"do":"alter"}'),)},
    "an entry of other types": {
        "kind": MessageKind.APPEND,
        "entries": (LogEntry(2, 1, encode_entry({"do": "clean", "name": "b", "ids": 1, "living": True} | OF_LEADER)),),
    },
    "a snapshot that is no JSON": {"kind": MessageKind.SNAPSHOT, "index": 9, "log_term": 1, "data": b"x"},
    "a snapshot with an odd id": {
        "kind": MessageKind.SNAPSHOT,
        "index": 9,
        "log_term": 1,
        "data": b'{"groups":{"b":{"cluster":"c","next_id":1,"members":{"x":["",""]},"master":null,"master_epoch":0,'
        b'"in_sync":[],"in_sync_epoch":0}}}',
    },
    "a snapshot with an odd field": {
        "kind": MessageKind.SNAPSHOT,
        "index": 9,
        "log_term": 1,
        "data": b'{"groups":{"b":{"cluster":"c","next_id":1,"members":{},"master":null,"master_epoch":0,"in_sync":[],'
        b'"in_sync_epoch":0,"more":1}}}',
    },
}


@pytest.mark.parametrize("name", JUNK)
def test_what_no_controller_writes_is_not_taken(name: str) -> None:
    """Each member would fail at it, and again at each start."""
    trio = Trio()
    follower = next(one for one in trio.controllers if one != trio.leader)
    core = trio.controllers[follower]
    config = core.raft.config
    message = RaftMessage(
        sender=trio.leader, target=follower, term=core.raft.term, group_key=config.group_key, commit=9, **JUNK[name]
    )
    before = core.raft.journal.last_index
    command = RemotingCommand(Code.CONTROLLER_CONSENSUS, {}, encode_message(message, config.members), flag=2)
    core.handle(Peer(PeerId(1), Host("10.0.0.9", 1)), command, trio.now_ms)
    assert core.failure is None
    assert core.raft.journal.last_index == before


@pytest.mark.parametrize("ids", ["9" * 5_000, "9" * 19, "x"])
def test_an_id_that_is_no_number_of_a_broker_is_refused(ids: str) -> None:
    trio = Trio(1)
    reply = trio.ask(Code.CLEAN_BROKER_DATA, {"brokerName": "b", "brokerControllerIdsToClean": ids})
    assert reply.code == ResponseCode.INVALID_PARAMETER


TOO_HIGH = (1 << 64) - 1


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": MessageKind.VOTE, "term": TOO_HIGH},
        {"kind": MessageKind.PRE_VOTE_REPLY, "term": TOO_HIGH},
        {"kind": MessageKind.HEARTBEAT, "term": 1 << 40},
        {"kind": MessageKind.SNAPSHOT, "term": 5, "index": TOO_HIGH, "log_term": 1, "data": b'{"groups":{}}'},
        {"kind": MessageKind.SNAPSHOT, "term": 5, "index": 9, "log_term": 6, "data": b'{"groups":{}}'},
        {"kind": MessageKind.APPEND, "term": 5, "entries": (LogEntry(7, 1, b""),)},
        {"kind": MessageKind.APPEND, "term": 5, "entries": (LogEntry(1, 1, b""), LogEntry(1, 1, b""))},
        {"kind": MessageKind.APPEND, "term": 5, "entries": (LogEntry(1, 6, b""),)},
        {"kind": MessageKind.APPEND, "term": 5, "entries": (LogEntry(1, 5, b""),), "commit": 1},
        {"kind": MessageKind.HEARTBEAT_REPLY, "term": 1, "round": TOO_HIGH},
    ],
    ids=lambda fields: f"{fields['kind'].name}-{fields['term']}",
)
def test_false_messages_of_consensus_change_nothing(fields: dict[str, Any]) -> None:
    """Gaps, another entry in the place of a committed one, terms and indexes that no log reaches: each one stopped a
    controller, or its group for good. The reason is kept for the log."""
    trio = Trio()
    leader = trio.leader
    core, members = trio.controllers[leader], sorted(trio.configs)
    before = core.raft.term, core.raft.journal.last_index
    sender = next(name for name in members if name != leader)
    message = RaftMessage(sender=sender, target=leader, group_key=core.raft.config.group_key, **fields)
    request = RemotingCommand(Code.CONTROLLER_CONSENSUS, {}, encode_message(message, members), flag=2)
    assert core.handle(Peer(PeerId(9), Host("10.0.0.6", 1)), request, trio.now_ms) == []
    trio.advance(1_000)
    assert core.failure is None
    assert (trio.leader, core.raft.term, core.raft.journal.last_index) == (leader, *before)
    ((peer, why),) = core.take_refusals()
    assert peer == "10.0.0.6:1"
    assert "false message" in why


@pytest.mark.parametrize(
    ("peers", "self_id", "sender", "target", "why"),
    [
        (("n0", "n1", "n2"), "n1", "n0", "n1", None),
        (("n0", "n1", "n2"), "n1", "n0", "n2", "for member n2, expected one of another member for n1: two members"),
        (("n0", "n1", "n2"), "n1", "n1", "n1", "found a message of member n1 for member n1.*two members have one id"),
        (("n0", "n1", "n5"), "n1", "n0", "n1", "expected key .* of the group 'controllers: n0 n1 n2': its name and"),
        (("n0", "n1", "n2", "n3", "n4"), "n1", "n4", "n1", "number 5 of a list, expected at most 3 .n0, n1, n2."),
    ],
)
def test_controllers_with_other_lists_are_reported(
    peers: tuple[str, ...], self_id: str, sender: str, target: str, why: str | None
) -> None:
    """Two with one id, an address of another one, a list that differs: these messages were dropped without a word."""
    trio = Trio()
    core = trio.controllers[self_id]
    their = RaftConfig(self_id=sender, members=peers, group=core.raft.config.group)
    message = RaftMessage(
        kind=MessageKind.HELLO, sender=sender, target=target, term=core.raft.term, group_key=their.group_key
    )
    command = RemotingCommand(Code.CONTROLLER_CONSENSUS, {}, encode_message(message, peers), flag=2)
    core.handle(Peer(PeerId(9), Host("10.0.0.6", 1)), command, trio.now_ms)
    found = [text for _, text in core.take_refusals()]
    assert (found == []) if why is None else re.search(why, found[0])


def heartbeat_of(name: str, broker_id: int = 1, **more: str) -> dict[str, str]:
    names = {"clusterName": CLUSTER, "brokerName": name, "brokerAddr": "a:1", "brokerId": str(broker_id)}
    return names | {"epoch": "1", "maxOffset": "1"} | more


def test_heartbeats_of_strangers_make_room_for_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They filled the table for good, with times that never end; then no broker was alive any more."""
    monkeypatch.setattr(live, "BROKERS_MAX", 4)
    trio = Trio(1)
    trio.group_of_two()
    core = trio.controllers["n0"]
    for number in range(10):
        ext = heartbeat_of(f"x{number}", heartbeatTimeoutMills=str(1 << 62))
        assert trio.ask(Code.BROKER_HEARTBEAT, ext, peer=40 + number).code == 0
    trio.beat(1)
    trio.beat(2)
    trio.advance(6_000)
    assert trio.info() == ("1", "1", (1, 2))
    assert trio.ask(Code.BROKER_HEARTBEAT, heartbeat_of("x" * 256)).code == ResponseCode.INVALID_PARAMETER
    core._live.expire(trio.now_ms + live.EXPIRE_MS_MAX + 1)
    assert not core._live._brokers
    assert not core._live._by_peer


def test_a_closed_connection_concerns_the_groups_of_its_brokers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that come and go cost the same with many groups as with none."""
    trio = Trio(1)
    trio.group_of_two()
    core, looked_at = trio.controllers["n0"], list[str]()
    alive = core._alive
    monkeypatch.setattr(core, "_alive", lambda name, now_ms: looked_at.append(name) or alive(name, now_ms))
    for number in range(5):
        core.disconnected(PeerId(900 + number))
    assert looked_at == []
    core.disconnected(PeerId(1))
    assert set(looked_at) == {GROUP}


def test_a_broker_cannot_take_an_id_beyond_the_next_one() -> None:
    """With the highest id that there is, no other broker could ever join."""
    trio = Trio(1)
    trio.group_of_two()
    names = {"clusterName": CLUSTER, "brokerName": GROUP}
    for broker_id, code in ((4, 2014), ((1 << 63) - 1, 2014), (3, 0)):
        ext = names | {"appliedBrokerId": str(broker_id), "registerCheckCode": "z:1;1"}
        assert trio.ask(Code.CONTROLLER_APPLY_BROKER_ID, ext).code == code
    assert trio.ask(Code.CONTROLLER_GET_NEXT_BROKER_ID, names).ext["nextBrokerId"] == "4"


@pytest.mark.parametrize("address", ["junk", "a:b", ":1", "a:99999", "a:1 2", "a:" + "9" * 5_000])
def test_a_broker_registers_with_host_and_port(address: str) -> None:
    """The controller connects to it."""
    trio = Trio(1)
    trio.group_of_two()
    assert trio.register(1, address).code == ResponseCode.INVALID_PARAMETER


def many_groups(trio: Trio, count: int) -> list[str]:
    """Give the only controller groups of two brokers whose masters are dead, as their replicas beat."""
    core = trio.controllers["n0"]
    names = [f"group-{number}" for number in range(count)]
    for name in names:
        members = {1: ReplicaMember("10.0.0.1:1", "a"), 2: ReplicaMember("10.0.0.2:1", "b")}
        core.groups.groups[name] = ReplicaGroup(CLUSTER, 3, members, 1, 1, [1, 2], 1)
        ext = {"clusterName": CLUSTER, "brokerName": name, "brokerAddr": "10.0.0.2:1", "brokerId": "2"}
        assert trio.ask(Code.BROKER_HEARTBEAT, ext | {"epoch": "1", "maxOffset": "1"}, peer=2).code == 0
    return names


def test_a_scan_of_many_groups_is_done_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn looks at more groups, or proposes more elections, than one may; the next turn comes at once."""
    monkeypatch.setattr(controller_module, "GROUPS_A_TURN", 3)
    monkeypatch.setattr(controller_module, "ELECTIONS_A_TURN", 2)
    trio = Trio(1, scan_ms=1_000)
    trio.advance(12_000)  # masters that this leader never heard count as dead from now on
    names = many_groups(trio, 10)
    core = trio.controllers["n0"]
    core.groups.groups["quiet"] = ReplicaGroup(CLUSTER)
    elected = [core.elections]
    trio.now_ms += 1_000
    trio._note(core.tick(trio.now_ms))
    elected.append(core.elections)
    while core.next_tick_ms() <= trio.now_ms and len(elected) < 20:
        trio._note(core.tick(trio.now_ms))
        elected.append(core.elections)
    assert [after - before for before, after in pairwise(elected)][:5] == [2] * 5
    assert elected[-1] == len(names)
    assert {core.groups.groups[name].master for name in names} == {2}


def test_a_closed_connection_of_many_masters_elects_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones at once, the others in the next turns, before the next scan."""
    monkeypatch.setattr(controller_module, "ELECTIONS_A_TURN", 2)
    trio = Trio(1, scan_ms=1_000_000)
    names = many_groups(trio, 5)
    core = trio.controllers["n0"]
    for name in names:
        ext = {"clusterName": CLUSTER, "brokerName": name, "brokerAddr": "10.0.0.1:1", "brokerId": "1"}
        assert trio.ask(Code.BROKER_HEARTBEAT, ext, peer=1).code == 0
    core.disconnected(PeerId(1))
    assert core.elections == 2
    while core.next_tick_ms() <= trio.now_ms:
        core.tick(trio.now_ms)
    assert core.elections == len(names)


def test_the_state_of_many_groups_is_answered_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is the same, and is forgotten with its connection."""
    trio = Trio(1)
    names = many_groups(trio, 9)
    body = json.dumps([*names, "unknown", 7]).encode()
    whole = trio.ask(Code.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
    assert [*json.loads(whole.body)["replicasInfoTable"]] == names
    monkeypatch.setattr(requests_module, "MEMBERS_A_SLICE", 4)
    core = trio.controllers["n0"]
    request = RemotingCommand(Code.CONTROLLER_GET_SYNC_STATE_DATA, {}, body, opaque=7)
    peer = Peer(PeerId(5), Host("127.0.0.1", 5))
    core.handle(peer, request, trio.now_ms)
    sends: list[Send] = []
    turns = 0
    while not sends:
        assert core.next_tick_ms() <= trio.now_ms
        turns += 1
        sends = core.tick(trio.now_ms)
    assert (sends[0].command.body, turns) == (whole.body, 4)
    core.handle(peer, request, trio.now_ms)
    core.disconnected(peer.id)
    assert core.next_tick_ms() > trio.now_ms


def test_a_snapshot_has_the_last_change_of_each_group() -> None:
    """Groups are encoded as they change; a state that was restored gives the same bytes."""
    trio = Trio(1)
    trio.group_of_two()
    groups = trio.controllers["n0"].groups
    restored = ReplicaGroups()
    restored.restore(groups.snapshot())
    assert restored.snapshot() == groups.snapshot()
    assert json.loads(groups.snapshot())["groups"][GROUP]["in_sync"] == [1, 2]
