"""`Admin.replicas`: what brokers and controllers answer becomes one row a broker; what they do not tell is unknown."""

from typing import Any

import pytest

from mqtrail.client import Admin, ReplicaInfo, ReplicaReport
from mqtrail.net import RequestTimeout
from mqtrail.wire import (
    BrokerData,
    ClusterInfo,
    ElectionState,
    EpochCache,
    EpochEntry,
    GroupReplicas,
    HaClientInfo,
    HaRuntimeInfo,
    RemotingCommand,
    ReplicaState,
    RequestCode,
    ResponseCode,
    SyncStateData,
    encode_record,
)

MASTER, SLAVE, CONTROLLER = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.9:1"
STORED_MS = 1_700_000_000_000
HOST = bytes(8)
ELECTION = ElectionState(STORED_MS, "connection_closed", 2)


async def report(monkeypatch: pytest.MonkeyPatch, answers: dict[tuple[str, int], Any]) -> ReplicaReport:
    """Ask brokers that answer with these bodies, or time out without one."""

    async def cluster() -> ClusterInfo:
        return ClusterInfo({"broker-a": BrokerData("broker-a", {0: MASTER, 3: SLAVE}, "c")})

    async def request(address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        answer = answers.get((address, command.code))
        if answer is None:
            raise RequestTimeout(f"found no answer of {address} to {command.code}")
        return answer if isinstance(answer, RemotingCommand) else RemotingCommand(ResponseCode.SUCCESS, body=answer)

    async with Admin("10.0.0.8:1") as admin:
        monkeypatch.setattr(admin, "cluster", cluster)
        monkeypatch.setattr(admin._client.pool, "request", request)
        return await admin.replicas()


def states(*, lag: int = 100, **reported: int) -> dict[tuple[str, int], Any]:
    """What a master and a slave that is so many bytes behind answer to 907."""
    code = RequestCode.GET_BROKER_HA_STATUS
    master = HaRuntimeInfo(True, 1_000, 1, ({"addr": "10.0.0.2:5", "inSync": True} | reported,))
    slave = HaRuntimeInfo(False, ha_client_runtime_info=HaClientInfo(max_offset=1_000 - lag))
    return {(MASTER, code): master.encode(), (SLAVE, code): slave.encode()}


def controlled(*, with_controller: bool = True) -> dict[tuple[str, int], Any]:
    """What brokers and the controller of a group answer; broker 2 of it is in no route."""
    found: dict[tuple[str, int], Any] = {
        (address, RequestCode.GET_BROKER_EPOCH_CACHE): EpochCache(
            number, "broker-a", "c", (EpochEntry(0, 4, 0), EpochEntry(0, 5, 900))
        ).encode()
        for address, number in ((MASTER, 1), (SLAVE, 3))
    }
    config = f"enableControllerMode=true\ncontrollerAddr= {CONTROLLER} ; \n".encode()
    found[MASTER, RequestCode.GET_BROKER_CONFIG] = config
    if with_controller:
        leads = RemotingCommand(ResponseCode.SUCCESS, {"controllerLeaderAddress": CONTROLLER})
        found[CONTROLLER, RequestCode.CONTROLLER_GET_METADATA_INFO] = leads
        group = GroupReplicas(
            (ReplicaState(True, MASTER, 1), ReplicaState(True, SLAVE, 3)),
            ELECTION,
            MASTER,
            1,
            5,
            (ReplicaState(False, "10.0.0.3:1", 2),),
        )
        found[CONTROLLER, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA] = SyncStateData({"broker-a": group}).encode()
    return found


async def test_a_group_in_controller_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have the controllers' ids, the lag that the master reports, and also the member that is in no route."""
    found = await report(monkeypatch, states(brokerId=3, lagMs=1_500) | controlled())
    master, slave, missing = found.replicas
    assert master == ReplicaInfo("broker-a", 1, MASTER, True, 1_000, 5, True, 2, 0, 0)
    assert slave == ReplicaInfo("broker-a", 3, SLAVE, False, 900, 5, True, None, 100, 1_500)
    assert (missing.broker_id, missing.address, missing.in_sync) == (2, "10.0.0.3:1", False)
    assert "at no name server" in str(missing.error)
    assert found.groups.found["broker-a"].last_election == ELECTION


async def test_what_nobody_tells_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without controllers the in-sync replicas are unknown, and so is the lag in time of a master that holds back."""
    found = await report(monkeypatch, states() | controlled(with_controller=False))
    assert [(one.in_sync, one.lag_bytes, one.lag_ms) for one in found.replicas] == [(None, 0, 0), (None, 100, None)]
    assert "no leading controller" in str(found.groups.failures["broker-a"])
    alone = states()
    del alone[MASTER, RequestCode.GET_BROKER_HA_STATUS]
    master, slave = (await report(monkeypatch, alone)).replicas
    assert "found no answer" in str(master.error)
    assert (slave.end_offset, slave.lag_bytes, slave.lag_ms) == (900, None, None)


@pytest.mark.parametrize("lag", [0, 100])
async def test_a_slave_in_classic_mode(monkeypatch: pytest.MonkeyPatch, lag: int) -> None:
    """The age of the first message that it lacks is its lag in time; nothing is asked of controllers."""
    monkeypatch.setattr("mqtrail.client.admin.replicas.now_ms", lambda: STORED_MS + 2_500)
    first = encode_record(
        "T",
        b"x",
        queue_id=0,
        queue_offset=0,
        physical_offset=900,
        born_timestamp_ms=STORED_MS,
        born_host=HOST,
        store_timestamp_ms=STORED_MS,
        store_host=HOST,
    )
    found = await report(monkeypatch, states(lag=lag) | {(MASTER, RequestCode.VIEW_MESSAGE_BY_ID): first})
    assert [(one.broker_id, one.lag_bytes, one.lag_ms) for one in found.replicas] == [
        (0, 0, 0),
        (3, lag, 2_500 if lag else 0),
    ]
    assert (len(found.groups.found), len(found.groups.failures)) == (0, 0)
