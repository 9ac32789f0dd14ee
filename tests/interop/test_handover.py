"""A broker's directory moves between ours and Apache's, with topics, groups, offsets and delayed messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop.apache import ApacheBroker, ApacheNameServer
from interop.driver import JavaClient
from interop.ours import OurServer
from interop.story import SERVER_PROPERTIES

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

TOPIC, DELAY_TOPIC, GROUP = "HandoverTopic", "HandoverDelayed", "HandoverGroup"
COUNT = 12
DELAY_LEVEL = 14  # 10 s: due when the other side runs
SEGMENT_SIZE = 64 << 20


@contextmanager
def apache_on(store: Path, folder: Path) -> Iterator[str]:
    """Run Apache's broker on a directory; yields its name server's address, and stops it cleanly."""
    namesrv = ApacheNameServer("5.3.3", folder / "namesrv").start()
    broker = ApacheBroker("5.3.3", folder / "broker", namesrv.address, store=store, properties=SERVER_PROPERTIES)
    try:
        broker.start()
        yield namesrv.address
    finally:
        broker.stop()
        namesrv.kill()


@contextmanager
def ours_on(folder: Path) -> Iterator[str]:
    """Run our server on its directory; yields its name server's address, and stops it cleanly."""
    server = OurServer(folder, segment_size=SEGMENT_SIZE).start()
    try:
        yield server.namesrv_address
    finally:
        server.stop()


def send(java: JavaClient, prefix: str) -> set[str]:
    """Send COUNT messages and one that is delayed; return the bodies of the plain ones."""
    java.producer(f"p-{prefix}", group="HandoverProducer")
    bodies = [f"{prefix} {n}" for n in range(COUNT)]
    results = java.send(f"p-{prefix}", [{"topic": TOPIC, "body": body, "keys": body} for body in bodies])
    results += java.send(f"p-{prefix}", [{"topic": DELAY_TOPIC, "body": f"{prefix} delayed", "delay": DELAY_LEVEL}])
    assert {result.get("status") for result in results} == {"SEND_OK"}
    return set(bodies)


def consume(java: JavaClient, group: str, topic: str, wanted: set[str]) -> None:
    """Let a group consume until it has all expected messages, commit, and assert that it got no others."""
    java.consumer(group, group=group, topics={topic: "*"})
    java.wait(lambda events: wanted <= bodies(events, group), f"{len(wanted)} messages at {group}")
    java.call("closeConsumer", name=group)
    assert bodies(java.events(), group) == wanted


def bodies(events: list[dict[str, object]], group: str) -> set[str]:
    """The messages that the group's handlers have completed."""
    return {str(event["body"]) for event in events if event["event"] == "ended" and event["group"] == group}


def test_there_and_back(tmp_path: Path) -> None:
    """Ours, Apache's, ours: each delivers the other's stored messages, once, and the other's delayed messages."""
    ours, folder = OurServer(tmp_path / "ours"), tmp_path / "ours"
    with ours_on(folder) as namesrv, JavaClient("5.3.3", tmp_path / "java1", namesrv) as java:
        first = send(java, "ours")
        consume(java, GROUP, TOPIC, first)
    with (
        apache_on(ours.store, tmp_path / "apache") as namesrv,
        JavaClient("5.3.3", tmp_path / "java2", namesrv) as java,
    ):
        consume(java, "NewAtApache", TOPIC, first)
        consume(java, "DelayedAtApache", DELAY_TOPIC, {"ours delayed"})
        second = send(java, "apache")
        # the old group's offset was kept: it gets only new messages
        consume(java, GROUP, TOPIC, second)
    with ours_on(folder) as namesrv, JavaClient("5.3.3", tmp_path / "java3", namesrv) as java:
        consume(java, "NewAtOurs", TOPIC, first | second)
        consume(java, "DelayedAtOurs", DELAY_TOPIC, {"ours delayed", "apache delayed"})
        third = send(java, "again")
        consume(java, GROUP, TOPIC, third)
        # all three wrote one index: the key 3 finds one message of each
        found = java.call("queryKey", name="p-again", topic=TOPIC, key="3", max=8, beginMs=0, endMs=1 << 60)
        assert {message["body"] for message in found["messages"]} == {"ours 3", "apache 3", "again 3"}
