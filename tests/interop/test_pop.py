"""The official client 5.3.3 pops: mqadmin switches a group, and its messages are delivered, redelivered and
dead-lettered.

Each test runs on both servers, so that Apache's server confirms every expectation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interop.driver import JavaClient, Json
from interop.mqadmin import MqAdmin
from interop.ours import OurServer
from interop.probe import request, wait_until

from mqtrail.client import HandedOut, SyncAdmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

INVISIBLE_MS = 10_000
FIRST_RETRY_MS = 10_000  # the client's first step: invisible time after a failure of its handler
SETTLED_MS = 6_000  # Apache's broker redelivers a message up to this long after its time
WAIT_S = 60.0
GET_MAX_OFFSET = 30


@dataclass
class Stage:
    """A server, the admin tool, and where clients' logs go."""

    namesrv: str
    broker: str
    mqadmin: MqAdmin
    folder: Path

    def client(self, name: str) -> JavaClient:
        return JavaClient("5.3.3", self.folder / name, self.namesrv)

    def switch(self, topic: str, group: str) -> None:
        """Create the topic and let the group pop it."""
        self.mqadmin.run("updateTopic", "-b", self.broker, "-t", topic, "-r", "4", "-w", "4")
        self.mqadmin.run("updateSubGroup", "-b", self.broker, "-g", group)
        output = self.mqadmin.run("setConsumeMode", "-b", self.broker, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
        assert f"topic[{topic}] group[{group}] consume mode[POP]" in output


@pytest.fixture(scope="module", params=["mqtrail", "apache-5.3.3"])
def stage(
    request: pytest.FixtureRequest,
    server: Callable[[str], Any],
    mqadmin: Callable[[Any], MqAdmin],
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    running = server(request.param)
    return Stage(running.namesrv_address, running.broker_address, mqadmin(running), tmp_path_factory.mktemp("clients"))


def send(java: JavaClient, topic: str, *behaviours: str) -> list[Json]:
    """Send a message for each behaviour of the handler, with its label."""
    java.producer("p", group="PopProducer")
    messages = [
        {"topic": topic, "body": behaviour, "keys": behaviour, "properties": {"behave": behaviour}}
        for behaviour in behaviours
    ]
    return java.send("p", messages)


def ended(body: str, count: int) -> Callable[[list[Json]], bool]:
    """Return whether the message's handler has ended this number of times."""
    return lambda events: sum(one["event"] == "ended" and one["body"] == body for one in events) >= count


def handed_out(stage: Stage, group: str) -> list[HandedOut]:
    """Return what members of a group hold, as our admin reads it."""
    with SyncAdmin(stage.namesrv) as admin:
        brokers, problems = admin.pops()
    assert problems == ()
    return [one for broker in brokers for one in broker.handed_out or () if one.group == group]


def test_acknowledged_once(stage: Stage) -> None:
    """Consumed messages are acknowledged and not redelivered, and the group's offsets are at the queues' ends."""
    topic, group = "PopOnce", "pop_once"
    stage.switch(topic, group)
    with stage.client("once") as java:
        send(java, topic, *["ok"] * 40)
        java.consumer("c", group=group, topics={topic: "*"}, popInvisibleMs=INVISIBLE_MS)
        java.wait(ended("ok", 40), "all 40 consumed", WAIT_S)
        send(java, topic, "slow:100")
        java.wait(ended("slow:100", 1), "one that came while the pop waited", WAIT_S)
        with pytest.raises(TimeoutError):
            java.wait(ended("ok", 41), "one again", (INVISIBLE_MS + SETTLED_MS) / 1000)
        assert {event["reconsumeTimes"] for event in java.events("ended")} == {0}
    rows = [line.split() for line in stage.mqadmin.run("consumerProgress", "-g", group, "-t", topic).splitlines()]
    queues = [row for row in rows if row and row[0] == topic]
    assert len(queues) == 4
    assert sum(int(row[3]) for row in queues) == sum(int(row[4]) for row in queues) == 41
    assert handed_out(stage, group) == []


def test_failures_come_again(stage: Stage) -> None:
    """After a failure, an exception or null a message is redelivered every ten seconds, counted, until it succeeds."""
    topic, group = "PopAgain", "pop_again"
    behaviours = ["fail:1", "exception:1", "null:1", "fail:2"]
    stage.switch(topic, group)
    with stage.client("again") as java:
        sent = send(java, topic, *behaviours)
        java.consumer("c", group=group, topics={topic: "*"}, popInvisibleMs=60_000)
        for behaviour in behaviours:
            java.wait(ended(behaviour, int(behaviour[-1]) + 1), f"{behaviour} until it is ok", WAIT_S)
        for behaviour, result in zip(behaviours, sent, strict=True):
            attempts = java.events("ended", body=behaviour)
            count = int(behaviour[-1]) + 1
            assert [one["reconsumeTimes"] for one in attempts] == list(range(count))
            assert {(one["topic"], one["keys"], one["msgId"]) for one in attempts} == {
                (topic, behaviour, result["msgId"])
            }
            assert attempts[1]["beginMs"] - attempts[0]["endMs"] >= FIRST_RETRY_MS
            assert "1ST_POP_TIME" in attempts[1]["properties"]


def test_killed_consumer(stage: Stage) -> None:
    """Messages of a killed consumer are delivered to another one after their invisible time."""
    topic, group = "PopKilled", "pop_killed"
    stage.switch(topic, group)
    with stage.client("victim") as victim:
        send(victim, topic, "slow:600000")
        victim.consumer("c", group=group, topics={topic: "*"}, popInvisibleMs=INVISIBLE_MS)
        victim.wait(lambda events: any(event["event"] == "began" for event in events), "it began", WAIT_S)
        [began] = victim.events("began")
        [held] = handed_out(stage, group)
        victim.kill()
    assert (held.topic, len(held.offsets), held.visible_ms - held.popped_ms) == (topic, 1, INVISIBLE_MS)
    with stage.client("heir") as heir:
        heir.consumer("c", group=group, topics={topic: "*"}, popInvisibleMs=INVISIBLE_MS)
        heir.wait(lambda events: any(event["event"] == "began" for event in events), "it came again", WAIT_S)
        [again] = heir.events("began")
        assert (again["msgId"], again["reconsumeTimes"]) == (began["msgId"], 1)
        heir.kill()


def test_tags(stage: Stage) -> None:
    """The pop sends the tag expression."""
    topic, group = "PopTags", "pop_tags"
    stage.switch(topic, group)
    with stage.client("tags") as java:
        java.producer("p", group="PopProducer")
        java.send("p", [{"topic": topic, "body": tag, "tags": tag} for tag in ("red", "blue", "red", "green")])
        java.consumer("c", group=group, topics={topic: "red || green"}, popInvisibleMs=INVISIBLE_MS)
        java.wait(lambda events: sum(event["event"] == "ended" for event in events) == 3, "three consumed", WAIT_S)
        assert sorted(event["body"] for event in java.events("ended")) == ["green", "red", "red"]


def _timed(broker: str) -> int:
    """Return how many records the timer topic has."""
    header, _ = request(broker, GET_MAX_OFFSET, {"topic": "rmq_sys_wheel_timer", "queueId": "0"})
    return int(header["extFields"]["offset"])


def _is_same(counts: list[int], count: int) -> bool:
    """Append count to counts; return whether it equals the last one."""
    counts.append(count)
    return counts[-2] == count


def test_our_broker_killed(tmp_path: Path, mqadmin: Callable[[OurServer], MqAdmin]) -> None:
    """After kill -9 of our broker acknowledged messages stay acknowledged, and the others are redelivered."""
    topic, group = "PopBroker", "pop_broker"
    with OurServer(tmp_path / "server") as server:
        stage = Stage(server.namesrv_address, server.broker_address, mqadmin(server), tmp_path)
        stage.switch(topic, group)
        with stage.client("one") as java:
            send(java, topic, *["ok"] * 20, "fail:1")
            java.consumer("c", group=group, topics={topic: "*"}, popInvisibleMs=INVISIBLE_MS)
            java.wait(ended("ok", 20), "all consumed", WAIT_S)
            java.wait(ended("fail:1", 1), "one failed", WAIT_S)
            # acks leave the client after its handler: each is a record of the timer topic, as each check point is
            counts = [-1]
            wait_until(lambda: _is_same(counts, _timed(server.broker_address)), "the last ack", WAIT_S, 1.0)
            server.kill()
            server.start()
            java.wait(ended("fail:1", 2), "it came again", WAIT_S)
            with pytest.raises(TimeoutError):
                java.wait(ended("ok", 21), "one that was acknowledged", (INVISIBLE_MS + SETTLED_MS) / 1000)
