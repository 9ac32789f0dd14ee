"""Apache's brokers in controller mode under our controllers, and mqadmin's commands at them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop.apache import ApacheBroker, ApacheNameServer, free_port
from interop.mqadmin import MqAdmin
from interop.probe import request, wait_until

from mqtrail.client.sync import SyncProducer
from mqtrail.wire import Message, RequestCode

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

VERSION = "5.3.3"
WAIT_S = 180.0
NAME = "broker-a"
TOPIC = "ControlledTopic"


@contextmanager
def controllers(folder: Path, count: int) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run controllers of ours; yield address -> process."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
    peers = ";".join(f"n{place}-{address}" for place, address in enumerate(addresses))
    command = [sys.executable, "-m", "mqtrail", "controller", "--json", "--peers", peers]
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for place, address in enumerate(addresses):
            own = ["--self-id", f"n{place}", "--data", str(folder / f"n{place}")]
            running[address] = subprocess.Popen([*command, *own], stdout=subprocess.DEVNULL, cwd=folder)
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def leader_of(running: dict[str, subprocess.Popen[bytes]]) -> str | None:
    """Return the address of the controller that leads, None: none does."""
    for address, process in running.items():
        if process.poll() is None:
            try:
                header, _ = request(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            except OSError:
                continue
            if header["extFields"]["isLeader"] == "true":
                return address
    return None


def replicas(running: dict[str, subprocess.Popen[bytes]]) -> tuple[int | None, list[int]]:
    """Return the master's id and the ids in sync."""
    address = leader_of(running)
    if address is None:
        return None, []
    header, body = request(address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([NAME]).encode())
    info = json.loads(body)["replicasInfoTable"].get(NAME) if header["code"] == 0 else None
    if info is None:
        return None, []
    return info.get("masterBrokerId"), [one["brokerId"] for one in info["inSyncReplicas"] if one["alive"]]


def send(namesrv: str, count: int) -> None:
    with SyncProducer("ControllerProducer", namesrv) as producer:
        for number in range(count):
            producer.send(Message(TOPIC, b"%d" % number))


def test_apaches_brokers_run_under_our_controllers(tmp_path: Path) -> None:
    """Ids, SyncStateSet, an election by mqadmin, and fail-over after kill -9 of the master and of a controller."""
    namesrv = ApacheNameServer(VERSION, tmp_path / "namesrv")
    brokers: list[ApacheBroker] = []
    with controllers(tmp_path, 3) as running:
        properties = {
            "enableControllerMode": "true",
            "controllerAddr": ";".join(running),
            "allAckInSyncStateSet": "true",
            "mappedFileSizeCommitLog": str(8 << 20),
        }
        try:
            namesrv.start()
            for place in (1, 2):
                folder = tmp_path / f"broker{place}"
                brokers.append(ApacheBroker(VERSION, folder, namesrv.address, name=NAME, properties=properties))
                brokers[-1].start()
            wait_until(lambda: replicas(running) == (1, [1, 2]), "both brokers in sync", WAIT_S, 0.5)
            send(namesrv.address, 20)
            operate(tmp_path, namesrv.address, running)
            wait_until(lambda: replicas(running) == (2, [1, 2]), "both in sync under the elected one", WAIT_S, 0.5)
            leader = leader_of(running)
            assert leader is not None
            running[leader].kill()
            wait_until(lambda: leader_of(running) not in (None, leader), "another leading controller", WAIT_S, 0.2)
            wait_until(lambda: replicas(running) == (2, [1, 2]), "the same state there", WAIT_S, 0.5)
            brokers[1].kill()
            wait_until(lambda: replicas(running) == (1, [1]), "the other broker as master", WAIT_S, 0.5)
        finally:
            for broker in brokers:
                broker.kill()
            namesrv.kill()


def operate(folder: Path, namesrv: str, running: dict[str, subprocess.Popen[bytes]]) -> None:
    """mqadmin's commands show the state, and let broker 2 become master."""
    leader = leader_of(running)
    assert leader is not None
    mqadmin = MqAdmin(VERSION, folder / "mqadmin", namesrv)
    with mqadmin:
        metadata = mqadmin.run("getControllerMetaData", "-a", leader)
        assert leader in metadata
        assert all(address in metadata for address in running)
        assert NAME in mqadmin.run("getSyncStateSet", "-a", leader, "-b", NAME)
        assert "enableElectUncleanMaster" in mqadmin.run("getControllerConfig", "-a", leader)
        elected = mqadmin.run("electMaster", "-a", leader, "-b", "2", "-bn", NAME, "-c", "DefaultCluster")
        assert "#MasterEpoch" in elected, elected
