"""A broker of ours and one of Apache's in a group under Apache's controller: each is master after the other."""

import random
from pathlib import Path

import pytest
from interop.apache import ApacheBroker, ApacheController, ApacheNameServer
from interop.ours import OurServer
from interop.probe import wait_until

from mqtrail.client.sync import SyncProducer
from mqtrail.wire import Message

from .replicating import killed, log_of
from .test_learners import TOPIC, epochs_of, in_sync, master_of, topics_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SEGMENT_SIZE = 8 << 20
WAIT_S = 180.0


def send(namesrv: str, count: int) -> None:
    """Send messages, each acknowledged by all in-sync replicas."""
    with SyncProducer("MemberProducer", namesrv) as producer:
        for number in range(count):
            producer.send(Message(TOPIC, random.randbytes(10_000 + number)))


def test_brokers_of_both_take_over_from_each_other(tmp_path: Path) -> None:
    """kill -9 of the master, twice: the next one has every byte, and the old one follows it when it returns."""
    namesrv = ApacheNameServer("5.3.3", tmp_path / "namesrv").start()
    controller = ApacheController(tmp_path / "controller")
    properties = {
        "mappedFileSizeCommitLog": str(SEGMENT_SIZE),
        "allAckInSyncStateSet": "true",
        **controller.broker_properties,
    }
    theirs = ApacheBroker("5.3.3", tmp_path / "theirs", namesrv.address, properties=properties)
    settings = {"controller_mode": True, "controller_addresses": controller.address, "all_in_sync": True}
    ours = OurServer(tmp_path / "ours", segment_size=SEGMENT_SIZE, join=namesrv.address, broker=settings)

    def are_both_in_sync() -> bool:
        return in_sync(controller.address) == {theirs.address, ours.broker_address}

    with killed(ours, theirs, controller, namesrv):
        controller.start()
        theirs.start()
        send(namesrv.address, 100)
        ours.start()
        wait_until(are_both_in_sync, "ours in sync under Apache's", WAIT_S, 0.5)
        send(namesrv.address, 900)
        wait_until(lambda: TOPIC.encode() in topics_of(ours.broker_address), "the topic", WAIT_S, 0.5)
        log = log_of(theirs.store)
        theirs.kill()
        wait_until(lambda: master_of(namesrv.address) == ours.broker_address, "ours as master", WAIT_S, 0.2)
        assert log_of(ours.store).startswith(log)  # behind it, ours writes that it is master
        send(namesrv.address, 100)
        theirs.start()
        wait_until(are_both_in_sync, "Apache's in sync under ours", WAIT_S, 0.5)
        send(namesrv.address, 900)
        wait_until(lambda: log_of(theirs.store) == log_of(ours.store), "the same log", WAIT_S, 0.5)
        ours.kill()
        wait_until(lambda: master_of(namesrv.address) == theirs.address, "Apache's as master", WAIT_S, 0.2)
        send(namesrv.address, 10)
        ours.start()
        wait_until(are_both_in_sync, "ours in sync again", WAIT_S, 0.5)
        send(namesrv.address, 10)
        wait_until(lambda: log_of(theirs.store) == log_of(ours.store), "the same log at the end", WAIT_S, 0.5)
        assert epochs_of(ours.store) == epochs_of(theirs.store)
