"""Requests of brokers and operators: into commands for the log, and into answers from the applied state.

One row per code: how it is served, and the account that it needs with access control on. Rows of requests that the
controller itself answers at once are in `controller`.

Source: ControllerRequestProcessor, ReplicasInfoManager, apache/rocketmq 5.3.3 controller/.
"""

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

from mqtrail.wire import (
    AlterSyncStateSetHeader,
    AlterSyncStateSetReply,
    ApplyBrokerIdHeader,
    BodyError,
    BrokerIdReply,
    BrokerNameHeader,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    InvalidParameter,
    Level,
    MasterReply,
    RegisterAtControllerHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SyncStateSet,
    dumps,
    loads_request,
)

from .broker_groups import FIRST_ID, NO_GROUP, Decision, ReplicaGroup, ReplicaGroups

Code = RequestCode
NAMES_MAX: Final = 1_000  # groups that one request 1006 may name
MEMBERS_A_SLICE: Final = 2_000  # brokers in one slice of its answer
PORT_MAX: Final = 65_535
PORT_DIGITS: Final = 5
AliveIds = Callable[[str], Mapping[str, list[int]]]


class ReplyParts(NamedTuple):
    """The parts of a reply."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes = b""


class Written(NamedTuple):
    """A request that changes something. command: makes it, without what the leader knows of brokers that are alive.
    answer: after it was applied."""

    level: Level
    command: Callable[[RemotingCommand], dict[str, Any]]
    answer: Callable[[RemotingCommand, ReplicaGroup | None, Decision], ReplyParts]


class ReadRequest(NamedTuple):
    """A request that is answered from the applied state, once the leader is sure that it leads. answer: in slices."""

    level: Level
    answer: Callable[[RemotingCommand, ReplicaGroups, AliveIds], Generator[None, None, ReplyParts]]


def _alter(request: RemotingCommand) -> dict[str, Any]:
    header = AlterSyncStateSetHeader.from_ext(request.ext)
    body = SyncStateSet.decode_request(request.body)
    return {
        "do": "alter",
        "name": header.broker_name,
        "master": header.master_broker_id,
        "master_epoch": header.master_epoch,
        "in_sync": [*body.sync_state_set],
        "in_sync_epoch": body.sync_state_set_epoch,
    }


def _altered(request: RemotingCommand, group: ReplicaGroup | None, outcome: Decision) -> ReplyParts:
    if outcome.code or group is None:
        return ReplyParts(outcome.code, outcome.remark, AlterSyncStateSetReply().to_ext())
    return ReplyParts(ext=AlterSyncStateSetReply(group.in_sync_epoch).to_ext(), body=in_sync_body(group))


def elect_command(cluster: str, name: str, broker_id: int = -1, *, designate: bool = False) -> dict[str, Any]:
    """Return the command that elects a master. -1: any."""
    return {"do": "elect", "cluster": cluster, "name": name, "id": broker_id, "designate": designate}


def _elect(request: RemotingCommand) -> dict[str, Any]:
    header = ElectMasterHeader.from_ext(request.ext)
    return elect_command(header.cluster_name, header.broker_name, header.broker_id, designate=header.designate_elect)


def _elected(request: RemotingCommand, group: ReplicaGroup | None, outcome: Decision) -> ReplyParts:
    with_master = (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    if outcome.code not in with_master or group is None:
        return ReplyParts(outcome.code, outcome.remark, {})
    body: dict[str, Any] = {"syncStateSet": group.in_sync}
    if outcome.elected is not None:
        name = ElectMasterHeader.from_ext(request.ext).broker_name
        addresses = {str(one): member.address for one, member in group.members.items()}
        body["brokerMemberGroup"] = {"brokerAddrs": addresses, "brokerName": name, "cluster": group.cluster}
    return ReplyParts(outcome.code, outcome.remark, master_reply(group).to_ext(), dumps(body))


def _register(request: RemotingCommand) -> dict[str, Any]:
    header = RegisterAtControllerHeader.from_ext(request.ext)
    host, _, port = header.broker_address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < len(port) <= PORT_DIGITS and int(port) <= PORT_MAX):
        raise InvalidParameter(f"found the address {header.broker_address[:60]!r} of a broker, expected host:port")
    return {
        "do": "register",
        "name": header.broker_name,
        "id": header.broker_id,
        "address": header.broker_address,
        "begins": True,  # without it, as in entries of older versions, no master is elected
    }


def _registered(request: RemotingCommand, group: ReplicaGroup | None, outcome: Decision) -> ReplyParts:
    header = RegisterAtControllerHeader.from_ext(request.ext)
    ext = {"clusterName": header.cluster_name, "brokerName": header.broker_name}
    if outcome.code or group is None:
        return ReplyParts(outcome.code, outcome.remark, ext)
    return ReplyParts(ext=ext | master_reply(group).to_ext(), body=in_sync_body(group))


def _apply_id(request: RemotingCommand) -> dict[str, Any]:
    header = ApplyBrokerIdHeader.from_ext(request.ext)
    return {
        "do": "apply_id",
        "cluster": header.cluster_name,
        "name": header.broker_name,
        "id": header.applied_broker_id,
        "check_code": header.register_check_code,
    }


def _applied_id(request: RemotingCommand, group: ReplicaGroup | None, outcome: Decision) -> ReplyParts:
    header = ApplyBrokerIdHeader.from_ext(request.ext)
    ext = BrokerIdReply(header.cluster_name, header.broker_name).to_ext()
    return ReplyParts(outcome.code, outcome.remark, ext)


def _clean(request: RemotingCommand) -> dict[str, Any]:
    header = CleanBrokerDataHeader.from_ext(request.ext)
    text = header.broker_controller_ids_to_clean or ""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise InvalidParameter(f"found the ids {text[:60]!r}, expected numbers joined by ';'")
    return {
        "do": "clean",
        "name": header.broker_name,
        "ids": [int(part) for part in parts],
        "living": header.is_clean_living_broker,
    }


def _cleaned(request: RemotingCommand, group: ReplicaGroup | None, outcome: Decision) -> ReplyParts:
    return ReplyParts(outcome.code, outcome.remark)


WRITTEN: Final[Mapping[int, Written]] = {
    Code.CONTROLLER_ALTER_SYNC_STATE_SET: Written(Level.BROKER, _alter, _altered),
    # To elect a given master needs Level.ADMIN (access).
    Code.CONTROLLER_ELECT_MASTER: Written(Level.BROKER, _elect, _elected),
    Code.CONTROLLER_REGISTER_BROKER: Written(Level.BROKER, _register, _registered),
    Code.CONTROLLER_APPLY_BROKER_ID: Written(Level.BROKER, _apply_id, _applied_id),
    Code.CLEAN_BROKER_DATA: Written(Level.ADMIN, _clean, _cleaned),
}
"""Requests that go through the log."""


def _at_once(
    answer: Callable[[RemotingCommand, ReplicaGroups], ReplyParts],
) -> Callable[[RemotingCommand, ReplicaGroups, AliveIds], Generator[None, None, ReplyParts]]:
    """Return the answer of a request about one group, as one slice."""

    def whole(request: RemotingCommand, groups: ReplicaGroups, alive: AliveIds) -> Generator[None, None, ReplyParts]:
        yield from ()
        return answer(request, groups)

    return whole


def _replica_info(request: RemotingCommand, groups: ReplicaGroups) -> ReplyParts:
    group = groups.groups.get(BrokerNameHeader.from_ext(request.ext).broker_name)
    if group is None:
        return ReplyParts(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, NO_GROUP, {})
    reply = MasterReply(group.master, group.master_address, group.master_epoch)
    return ReplyParts(ext=reply.to_ext(), body=in_sync_body(group))


def _sync_state_data(
    request: RemotingCommand, groups: ReplicaGroups, alive: AliveIds
) -> Generator[None, None, ReplyParts]:
    names = loads_request(request.body) if request.body else []
    if not isinstance(names, list) or len(names) > NAMES_MAX:
        raise BodyError(
            f"found a body of {len(request.body)} bytes, expected a list of at most {NAMES_MAX} brokerNames"
        )
    parts: list[bytes] = []
    left = MEMBERS_A_SLICE
    for name in sorted({name for name in names if isinstance(name, str)}):
        group = groups.groups.get(name)
        if group is None:
            continue
        if left <= 0:
            yield
            left = MEMBERS_A_SLICE
        left -= len(group.members)
        parts.append(dumps(name) + b":" + dumps(_sync_state(name, group, alive(name))))
    return ReplyParts(body=b"".join([b'{"replicasInfoTable":{', b",".join(parts), b"}}"]))


def _sync_state(name: str, group: ReplicaGroup, living: Mapping[str, list[int]]) -> dict[str, Any]:
    replicas: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    in_sync = set(group.in_sync)
    for broker_id, member in sorted(group.members.items()):
        replicas[broker_id in in_sync].append(
            {
                "alive": str(broker_id) in living,
                "brokerAddress": member.address,
                "brokerId": broker_id,
                "brokerName": name,
            }
        )
    values: dict[str, Any] = {
        "inSyncReplicas": replicas[True],
        "masterAddress": group.master_address,
        "masterBrokerId": group.master,
        "masterEpoch": group.master_epoch,
        "notInSyncReplicas": replicas[False],
        "syncStateSetEpoch": group.in_sync_epoch,
    }
    if group.election is not None:
        at_ms, reason, before = group.election
        values["lastElection"] = {"timestamp": at_ms, "reason": reason} | (
            {} if before is None else {"masterBefore": before}
        )
    return {key: value for key, value in values.items() if value is not None}


def _next_id(request: RemotingCommand, groups: ReplicaGroups) -> ReplyParts:
    header = BrokerIdReply.from_ext(request.ext)
    group = groups.groups.get(header.broker_name or "")
    next_id = FIRST_ID if group is None else group.next_id
    return ReplyParts(ext=BrokerIdReply(header.cluster_name, header.broker_name, next_id).to_ext())


READ: Final[Mapping[int, ReadRequest]] = {
    Code.CONTROLLER_GET_REPLICA_INFO: ReadRequest(Level.NONE, _at_once(_replica_info)),
    Code.CONTROLLER_GET_SYNC_STATE_DATA: ReadRequest(Level.NONE, _sync_state_data),
    Code.CONTROLLER_GET_NEXT_BROKER_ID: ReadRequest(Level.NONE, _at_once(_next_id)),
}


def master_reply(group: ReplicaGroup) -> MasterReply:
    """Return the master of a group with its epochs; without a master no field."""
    if group.master is None:
        return MasterReply()
    return MasterReply(group.master, group.master_address, group.master_epoch, group.in_sync_epoch)


def in_sync_body(group: ReplicaGroup) -> bytes:
    return SyncStateSet(tuple(group.in_sync), group.in_sync_epoch).encode()


def encode_entry(command: Mapping[str, Any]) -> bytes:
    """Return the bytes of a command in the log."""
    return json.dumps(command, separators=(",", ":"), sort_keys=True).encode()
