"""Replication between ours and Apache's: each side's slave has the bytes of the other side's master."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from interop.apache import ApacheBroker, ApacheNameServer
from interop.driver import JavaClient
from interop.ours import OurServer
from interop.probe import request, wait_until

from mqtrail.client.sync import SyncProducer
from mqtrail.wire import Message, RequestCode

from .replicating import killed, log_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

VERSIONS = ["4.9.7", "5.3.3"]
SEGMENT_SIZE = 4 << 20
TOPIC = "ReplicatedTopic"
WAIT_S = 90.0
ROLES = {
    "master": {"brokerRole": "ASYNC_MASTER"},
    "slave": {"brokerId": "1", "brokerRole": "SLAVE", "slaveReadEnable": "true"},
}
OUR_ROLES: dict[str, dict[str, Any]] = {
    "master": {"broker_role": "ASYNC_MASTER"},
    "slave": {"broker_role": "SLAVE", "broker_id": 1, "register_ms": 1_000, "slave_read": True},
}
GROUP = "SlaveReader"
COUNT = 50


def apache(version: str, folder: Path, namesrv: str, role: str) -> ApacheBroker:
    properties = {"mappedFileSizeCommitLog": str(SEGMENT_SIZE), "autoCreateTopicEnable": "true", **ROLES[role]}
    return ApacheBroker(version, folder, namesrv, properties=properties)


def send(namesrv: str, count: int) -> None:
    """Send messages of ten thousand bytes that do not compress: 400 of them fill a file."""
    with SyncProducer("ReplicationProducer", namesrv) as producer:
        for number in range(count):
            producer.send(Message(TOPIC, random.randbytes(10_000 + number)))


def wait_equal(master: Path, slave: Path) -> None:
    wait_until(lambda: log_of(master) == log_of(slave), "equal logs", WAIT_S, 0.5)


def wait_for_topic(address: str) -> None:
    """Wait until a slave has copied the topics: Apache's of 5.3.3 does so after a minute."""
    wait_until(
        lambda: TOPIC.encode() in request(address, RequestCode.GET_ALL_TOPIC_CONFIG)[1], "the topic", WAIT_S, 0.5
    )


def replicate(master: ApacheBroker | OurServer, slave: ApacheBroker | OurServer, namesrv: str) -> None:
    """Start a slave of a running master. It copies several files, and continues after kill -9 of either side."""
    send(namesrv, 1)
    slave.start()
    wait_equal(master.store, slave.store)  # it begins with the last file, so it must be here in the first one
    send(namesrv, 600)
    wait_equal(master.store, slave.store)
    slave.kill()
    send(namesrv, 200)
    slave.start()
    wait_equal(master.store, slave.store)
    master.kill()
    master.start()
    send(namesrv, 200)
    wait_equal(master.store, slave.store)
    assert len(log_of(master.store)) > 2 * SEGMENT_SIZE


@pytest.mark.parametrize("version", VERSIONS)
def test_apaches_slave_follows_our_master(version: str, tmp_path: Path) -> None:
    """Apache's slave copies our log, and its topics."""
    ours = OurServer(tmp_path / "ours", segment_size=SEGMENT_SIZE, broker=OUR_ROLES["master"]).start()
    slave = apache(version, tmp_path / "slave", ours.namesrv_address, "slave")
    with killed(slave, ours):
        replicate(ours, slave, ours.namesrv_address)
        wait_for_topic(slave.address)


@pytest.mark.parametrize("version", VERSIONS)
def test_our_slave_follows_apaches_master(version: str, tmp_path: Path) -> None:
    """Our slave copies Apache's log and topics; its queues are as long as the master's."""
    namesrv = ApacheNameServer("5.3.3", tmp_path / "namesrv").start()
    master = apache(version, tmp_path / "master", namesrv.address, "master")
    slave = OurServer(tmp_path / "ours", segment_size=SEGMENT_SIZE, broker=OUR_ROLES["slave"], join=namesrv.address)
    with killed(slave, master, namesrv):
        master.start()
        replicate(master, slave, namesrv.address)
        wait_for_topic(slave.broker_address)
        for queue_id in range(4):
            ends = [
                request(address, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)})[0]["extFields"]
                for address in (master.address, slave.broker_address)
            ]
            assert ends[0]["offset"] == ends[1]["offset"] != "0"


def bodies(java: JavaClient) -> list[str]:
    return [str(event["body"]) for event in java.events() if event["event"] == "ended" and event["group"] == GROUP]


@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
def test_the_official_client_reads_from_our_slave(version: str, tmp_path: Path) -> None:
    """The client reads from our slave while our master is down, and returns to the master without repeated messages."""
    namesrv = ApacheNameServer("5.3.3", tmp_path / "namesrv").start()
    master = OurServer(
        tmp_path / "master", segment_size=SEGMENT_SIZE, broker=OUR_ROLES["master"], join=namesrv.address
    ).start()
    slave = OurServer(tmp_path / "slave", segment_size=SEGMENT_SIZE, broker=OUR_ROLES["slave"], join=namesrv.address)
    with killed(slave, master, namesrv):
        with SyncProducer("ReplicationProducer", namesrv.address) as producer:
            for number in range(COUNT):
                producer.send(Message(TOPIC, b"first %d" % number))
        slave.start()
        wait_equal(master.store, slave.store)
        wait_for_topic(slave.broker_address)
        master.kill()
        first = {f"first {number}" for number in range(COUNT)}
        with JavaClient(version, tmp_path / "reader", namesrv.address) as java:
            java.consumer("reader", group=GROUP, topics={TOPIC: "*"})
            java.wait(lambda events: first <= set(bodies(java)), "the messages at the slave", WAIT_S)
            java.call("closeConsumer", name="reader")
        master.start()
        with SyncProducer("ReplicationProducer", namesrv.address) as producer:
            for number in range(COUNT):
                producer.send(Message(TOPIC, b"second %d" % number))
        second = {f"second {number}" for number in range(COUNT)}
        with JavaClient(version, tmp_path / "again", namesrv.address) as java:
            java.consumer("reader", group=GROUP, topics={TOPIC: "*"})
            java.wait(lambda events: second <= set(bodies(java)), "the messages at the master", WAIT_S)
            java.call("closeConsumer", name="reader")
            assert set(bodies(java)) == second
