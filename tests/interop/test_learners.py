"""Our broker as async learner of a group under Apache's controller: it has the bytes of whichever broker is master."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from interop.apache import ApacheBroker, ApacheController, ApacheNameServer
from interop.ours import OurServer
from interop.probe import request, wait_until

from mqtrail.client.sync import SyncProducer
from mqtrail.wire import ClusterInfo, Message, RequestCode

from .replicating import killed, log_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(500)]

SEGMENT_SIZE = 4 << 20
TOPIC = "LearnedTopic"
WAIT_S = 120.0


def send(namesrv: str, count: int) -> None:
    """Send messages of ten thousand bytes that do not compress: 400 of them fill a file."""
    with SyncProducer("LearnedProducer", namesrv) as producer:
        for number in range(count):
            producer.send(Message(TOPIC, random.randbytes(10_000 + number)))


def route_of(namesrv: str) -> bytes:
    return request(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)[1]


def master_of(namesrv: str) -> str:
    """Return the address of the group's master in the routes; empty: there is none."""
    group = ClusterInfo.decode(route_of(namesrv)).broker_addr_table.get("broker-a")
    return "" if group is None else group.broker_addrs.get(0, "")


def in_sync(controller: str) -> set[str]:
    """Return the addresses of the in-sync replicas."""
    _, body = request(controller, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["broker-a"]')
    found = json.loads(body)["replicasInfoTable"]["broker-a"]["inSyncReplicas"]
    return {replica["brokerAddress"] for replica in found}


def topics_of(address: str) -> bytes:
    return request(address, RequestCode.GET_ALL_TOPIC_CONFIG)[1]


def epochs_of(store: Path) -> list[str]:
    """Return the lines of the epochs."""
    return (store / "epochFileCheckpoint").read_text().splitlines()[2:]


def test_our_learner_follows_each_master(tmp_path: Path) -> None:
    """Over several files, after kill -9 of itself, and when another broker becomes master."""
    namesrv = ApacheNameServer("5.3.3", tmp_path / "namesrv").start()
    controller = ApacheController(tmp_path / "controller")
    properties = {"mappedFileSizeCommitLog": str(SEGMENT_SIZE), **controller.broker_properties}
    brokers = [
        ApacheBroker("5.3.3", tmp_path / name, namesrv.address, properties=properties) for name in ("first", "second")
    ]
    first, second = brokers
    ours = OurServer(
        tmp_path / "ours",
        segment_size=SEGMENT_SIZE,
        join=namesrv.address,
        broker={
            "controller_mode": True,
            "controller_addresses": controller.address,
            "async_learner": True,
            "slave_read": True,
        },
    )
    with killed(ours, second, first, controller, namesrv):
        controller.start()
        first.start()
        ours.start()
        send(namesrv.address, 600)
        wait_until(lambda: log_of(first.store) == log_of(ours.store), "the first master's log", WAIT_S, 0.5)
        assert (ours.store / "brokerIdentity").read_text() == "DefaultCluster#broker-a#2"
        assert ours.broker_address.encode() in route_of(namesrv.address)
        assert epochs_of(ours.store) == epochs_of(first.store)
        ours.kill()
        second.start()
        wait_until(lambda: second.address in in_sync(controller.address), "the second broker in sync", WAIT_S, 0.5)
        wait_until(lambda: TOPIC.encode() in topics_of(second.address), "the topic", WAIT_S, 0.5)
        send(namesrv.address, 100)
        ours.start()
        wait_until(lambda: log_of(first.store) == log_of(ours.store), "the rest of the log", WAIT_S, 0.5)
        first.kill()
        wait_until(lambda: master_of(namesrv.address) == second.address, "the second master", WAIT_S, 0.5)
        send(namesrv.address, 300)
        wait_until(lambda: log_of(second.store) == log_of(ours.store), "the second master's log", WAIT_S, 0.5)
        assert epochs_of(ours.store)[-1] == epochs_of(second.store)[-1]
        assert in_sync(controller.address) == {second.address}
