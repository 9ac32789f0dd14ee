"""Name servers and brokers of both makes together: ours under Apache's, Apache's under ours, official clients above."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from interop.apache import ApacheBroker, ApacheNameServer
from interop.driver import JavaClient
from interop.ours import OurServer
from interop.probe import request, wait_until
from interop.story import SERVER_PROPERTIES

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

UPDATE_TOPIC, ROUTE, NAMESRV_CONFIG = 17, 105, 319
TOPIC = "BothMakes"
Apache = TypeVar("Apache", ApacheNameServer, ApacheBroker)


@contextmanager
def our_broker(folder: Path, *namesrvs: str) -> Iterator[str]:
    """Run `mqtrail up --join`; yield the broker's address."""
    command = [sys.executable, "-m", "mqtrail", "up", "--data", str(folder), "--join", ";".join(namesrvs)]
    command += ["--broker-port", "0", "--broker-name", "ours", "--segment-size", "64MiB", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["brokers"]["ours"]
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def running(server: Apache) -> Iterator[Apache]:
    """Start one of Apache's servers, and stop it."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


def make_topic(*brokers: str) -> None:
    """Make the topic with two queues on each broker."""
    ext = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    ext |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    for broker in brokers:
        header, _ = request(broker, UPDATE_TOPIC, ext)
        assert header["code"] == 0


def send_and_consume(java: JavaClient, brokers: set[str]) -> None:
    """Send to all queues of all brokers with the official client, and consume all of it."""
    java.producer("p", group="BothProducer")
    bodies = [f"m{number}" for number in range(8)]
    results = java.send("p", [{"topic": TOPIC, "body": body} for body in bodies])
    assert {result["queue"]["brokerName"] for result in results} == brokers
    java.consumer("c", group="BothGroup", topics={TOPIC: "*"})
    java.wait(
        lambda events: {event["body"] for event in events if event["event"] == "ended"} == set(bodies), "all consumed"
    )


@pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
def test_our_broker_under_apaches_name_server(tmp_path: Path, version: str) -> None:
    """It registers, its topics have routes, an official client works, and it is gone from the routes when it stops."""
    with running(ApacheNameServer(version, tmp_path / "namesrv")) as namesrv:
        with our_broker(tmp_path / "ours", namesrv.address) as broker:
            make_topic(broker)
            wait_until(lambda: request(namesrv.address, ROUTE, {"topic": TOPIC})[0]["code"] == 0, "the route", 10)
            with JavaClient("5.3.3", tmp_path / "java", namesrv.address) as java:
                send_and_consume(java, {"ours"})
        wait_until(lambda: request(namesrv.address, ROUTE, {"topic": TOPIC})[0]["code"] == 17, "no route", 10)


def test_apaches_broker_under_our_name_server(tmp_path: Path) -> None:
    """A 5.3.3 broker beside ours, both under our name server: one topic, queues on both, all of it consumed."""
    with OurServer(tmp_path / "ours") as server:
        folder, namesrv = tmp_path / "apache", server.namesrv_address
        theirs = ApacheBroker("5.3.3", folder, namesrv, name="theirs", properties=SERVER_PROPERTIES)
        with running(theirs) as apache:
            make_topic(server.broker_address, apache.address)
            wait_until(
                lambda: b"theirs" in request(server.namesrv_address, ROUTE, {"topic": TOPIC})[1],
                "both in the route",
                40,
            )
            with JavaClient("5.3.3", tmp_path / "java", server.namesrv_address) as java:
                send_and_consume(java, {"broker-a", "theirs"})
        wait_until(
            lambda: b"theirs" not in request(server.namesrv_address, ROUTE, {"topic": TOPIC})[1], "only ours left", 20
        )


def test_one_broker_under_both_makes(tmp_path: Path) -> None:
    """Our broker registers with ours and Apache's; a client of either finds it, and each tells its own port."""
    with (
        running(ApacheNameServer("5.3.3", tmp_path / "namesrv")) as theirs,
        OurServer(tmp_path / "other") as other,
        our_broker(tmp_path / "ours", theirs.address, other.namesrv_address) as broker,
    ):
        make_topic(broker)
        for address in (theirs.address, other.namesrv_address):
            wait_until(lambda at=address: request(at, ROUTE, {"topic": TOPIC})[0]["code"] == 0, "the route", 10)  # type: ignore[misc]
            _, body = request(address, NAMESRV_CONFIG)
            assert f"listenPort={address.rpartition(':')[2]}\n".encode() in body
        with JavaClient("4.9.8", tmp_path / "java", f"{theirs.address};{other.namesrv_address}") as java:
            send_and_consume(java, {"ours"})
