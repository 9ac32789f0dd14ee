"""Our name servers with Apache's brokers and the reverse, used by official clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from interop.apache import ApacheBroker, ApacheNameServer
from interop.driver import JavaClient
from interop.mqadmin import MqAdmin
from interop.ours import OurServer
from interop.probe import request, wait_until
from interop.story import SERVER_PROPERTIES

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

UPDATE_TOPIC, ROUTE, CLUSTER, NAMESRV_CONFIG = 17, 105, 106, 319
USERS_PROVIDER = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
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
    """Send to all queues of all brokers with the official client, and consume all messages."""
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
    """It registers, its topics have routes, an official client works, and its routes are removed when it stops."""
    with running(ApacheNameServer(version, tmp_path / "namesrv")) as namesrv:
        with our_broker(tmp_path / "ours", namesrv.address) as broker:
            make_topic(broker)
            wait_until(lambda: request(namesrv.address, ROUTE, {"topic": TOPIC})[0]["code"] == 0, "the route", 120)
            with JavaClient("5.3.3", tmp_path / "java", namesrv.address) as java:
                send_and_consume(java, {"ours"})
        wait_until(lambda: request(namesrv.address, ROUTE, {"topic": TOPIC})[0]["code"] == 17, "no route", 60)


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
            lambda: b"theirs" not in request(server.namesrv_address, ROUTE, {"topic": TOPIC})[1], "only ours left", 60
        )


@pytest.mark.timeout(300)
def test_apaches_broker_signs_towards_our_name_server(tmp_path: Path) -> None:
    """A 5.3.3 broker with the right innerClientAuthenticationCredentials may register; one with none or others may not.
    Only a Super user may make changes with mqadmin.
    """
    inner = '{"accessKey":"inner-broker","secretKey":"inner-secret"}'
    root = '{"username":"root","password":"rootpass"}'
    broker = {"authentication": True, "authorization": True, "init_user": root, "inner_credentials": inner}
    wrong = inner.replace("inner-secret", "other-secret")
    with ExitStack() as stack:
        server = stack.enter_context(OurServer(tmp_path / "ours", broker=broker))

        def launch(name: str, **settings: str) -> None:
            properties = {**SERVER_PROPERTIES, "registerNameServerPeriod": "10000", **settings}
            if settings:  # a 5.3.3 broker with credentials does not start without it
                properties["authenticationMetadataProvider"] = USERS_PROVIDER
            found = ApacheBroker("5.3.3", tmp_path / name, server.namesrv_address, name=name, properties=properties)
            stack.callback(found.kill)
            found.launch()

        launch("signed", innerClientAuthenticationCredentials=inner)
        cluster = partial(request, server.namesrv_address, CLUSTER)
        wait_until(lambda: b'"signed"' in cluster()[1], "the registration", 90)
        launch("unsigned")
        launch("wrong", innerClientAuthenticationCredentials=wrong)
        for name, words in (("unsigned", "needs a signature"), ("wrong", "check signature failed")):
            # The answer is in the broker's log, so that its absence from the cluster is a refusal.
            log = tmp_path / name / "broker.log"
            wait_until(partial(has_words, log, words), f"a refusal of {name}", 90)
        assert b'"broker-a"' in cluster()[1]
        assert b'"unsigned"' not in cluster()[1]
        assert b'"wrong"' not in cluster()[1]
        for who, secret, answer in (("root", "rootpass", "success"), ("inner-broker", "wrong-one", "signature failed")):
            tools = tmp_path / who / "conf"
            tools.mkdir(parents=True)
            (tools / "tools.yml").write_text(f"accessKey: {who}\nsecretKey: {secret}\n")
            with MqAdmin("5.3.3", tools.parent, server.namesrv_address) as mqadmin:
                assert answer in mqadmin.run("updateKvConfig", "-s", "N", "-k", "k", "-v", "v")


def has_route(namesrv_address: str) -> bool:
    return bool(request(namesrv_address, ROUTE, {"topic": TOPIC})[0]["code"] == 0)


def has_words(log: Path, words: str) -> bool:
    return words in read_log(log)


def read_log(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def test_one_broker_under_both_makes(tmp_path: Path) -> None:
    """Our broker registers with ours and Apache's; a client of either finds it, each with its own port."""
    with (
        running(ApacheNameServer("5.3.3", tmp_path / "namesrv")) as theirs,
        OurServer(tmp_path / "other") as other,
        our_broker(tmp_path / "ours", theirs.address, other.namesrv_address) as broker,
    ):
        make_topic(broker)
        for address in (theirs.address, other.namesrv_address):
            wait_until(partial(has_route, address), "the route", 120)
            _, body = request(address, NAMESRV_CONFIG)
            assert f"listenPort={address.rpartition(':')[2]}\n".encode() in body
        with JavaClient("4.9.8", tmp_path / "java", f"{theirs.address};{other.namesrv_address}") as java:
            send_and_consume(java, {"ours"})
