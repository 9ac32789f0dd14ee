"""`mqtrail backlog reshard` on our own broker: every message once, in order by key, also after failures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtrail.answers.backlog import COPIED_FROM, ReshardRun
from mqtrail.client import (
    ConsumeFromWhere,
    ConsumerConfig,
    MessageExt,
    MessageQueue,
    Producer,
    SendResult,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    by_hash,
)
from mqtrail.net import NetError
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, SubscriptionGroupConfig, TopicConfig
from tests.cli.conftest import Command, CommandResult, commands_at
from tests.waiting import wait_until

KEYS = 7
COUNT = 40
GROUP = "CG"
CONSUMED = 5  # of queue 0


@pytest.fixture(scope="module")
def server() -> Iterator[Embedded]:
    with embedded() as running:
        with SyncAdmin(running.namesrv_address) as admin:
            assert admin.create_group(SubscriptionGroupConfig(GROUP)).complete
        yield running


@pytest.fixture
def admin(server: Embedded) -> Iterator[SyncAdmin]:
    with SyncAdmin(server.namesrv_address) as one:
        yield one


@pytest.fixture
def topic(request: pytest.FixtureRequest, server: Embedded, admin: SyncAdmin) -> str:
    """A topic of two queues whose messages have order keys; the group has consumed the first of queue 0."""
    name: str = re.sub(r"[^A-Za-z0-9_]", "_", request.node.name)
    assert admin.create_topic(TopicConfig(name, 2, 2)).complete
    with SyncProducer("PG", server.namesrv_address) as producer:
        for number in range(COUNT):
            key = f"k{number % KEYS}"
            producer.send(Message(name, b"%d" % number, properties={"__SHARDINGKEY": key}, tags="A"), order_key=key)
    for queue, offset in zip(admin.queues(name), (CONSUMED, 0), strict=True):
        admin.set_offset(GROUP, queue, offset)
    return name


@pytest.fixture
def mqtrail(
    server: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return commands_at(server, capsys, monkeypatch, tmp_path)


def reshard(mqtrail: Command, topic: str, *more: str) -> CommandResult:
    words = ("--topic", topic, "--to", f"{topic}-4", "--queues", "4", "--progress", "state.json")
    return mqtrail("backlog", "reshard", GROUP, *words, *more)


def check_copies(admin: SyncAdmin, topic: str) -> list[MessageExt]:
    """Check that each message is there once, in its key's queue and in order by key; return the copies."""
    sources = {
        (one.queue_id, one.queue_offset): one
        for one in admin.messages(topic)
        if one.queue_id != 0 or one.queue_offset >= CONSUMED
    }
    copies = list(admin.messages(f"{topic}-4"))
    places = {f"broker-a/{topic}/{queue_id}@{offset}": one for (queue_id, offset), one in sources.items()}
    assert sorted(one.properties[COPIED_FROM] for one in copies) == sorted(places)
    by_key: dict[str, list[int]] = defaultdict(list)
    queues = [MessageQueue(f"{topic}-4", "broker-a", number) for number in range(4)]
    for copy in copies:
        source = places[copy.properties[COPIED_FROM]]
        assert (copy.body, copy.tags, copy.msg_id) == (source.body, source.tags, source.msg_id)
        key = copy.properties["__SHARDINGKEY"]
        assert copy.queue == by_hash(key)(queues, Message("t", b""))
        by_key[key].append(int(copy.body))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    return copies


def test_all_that_waits_is_copied_once(mqtrail: Command, server: Embedded, admin: SyncAdmin, topic: str) -> None:
    """In order by key; a further run copies what came since; the group starts at the first copy."""
    done = reshard(mqtrail, topic, "--yes", "--json")
    assert (done.code, done.json["copied_count"], done.json["is_new"]) == (0, COUNT - CONSUMED, True)
    assert len(check_copies(admin, topic)) == COUNT - CONSUMED
    assert [admin.consumer_offset(GROUP, queue) for queue in admin.queues(f"{topic}-4")] == [0] * 4
    again = reshard(mqtrail, topic, "--yes", "--json")
    assert (again.code, again.json["count"], again.json["copied_count"]) == (0, 0, COUNT - CONSUMED)
    with SyncProducer("PG", server.namesrv_address) as producer:
        producer.send(Message(topic, b"40", properties={"__SHARDINGKEY": "k5"}, tags="A"), order_key="k5")
    text = reshard(mqtrail, topic, "--yes")
    assert f"{COUNT - CONSUMED + 1} messages of" in text.out
    assert f"mqtrail offset set CG {topic} broker-a/0=" in text.out
    check_copies(admin, topic)


def test_a_dry_run_copies_nothing(mqtrail: Command, admin: SyncAdmin, topic: str) -> None:
    """It shows what waits and where the order keys come from; no topic and no file is created."""
    found = reshard(mqtrail, topic, "--dry-run", "--json")
    assert (found.code, found.json["count"]) == (0, COUNT - CONSUMED)
    assert found.json["keys"]["by_property"] == {"__SHARDINGKEY": COUNT - CONSUMED}
    assert found.json["keys"]["distinct"] == KEYS
    text = reshard(mqtrail, topic, "--dry-run", "--key", "customer")
    assert "none, 35 without" in text.out
    assert "keep no order" in text.err
    assert f"{topic}-4" not in admin.topics()
    assert list(Path().iterdir()) == []
    assert reshard(mqtrail, topic).code == 2, "without a terminal it needs --yes"


def failing_send(failing: int) -> Any:
    """Return a send whose answers are lost from a number of calls on: the messages are stored."""
    send, calls = Producer.send, []

    async def send_some(producer: Producer, message: Message, **how: Any) -> SendResult:
        sent = await send(producer, message, **how)
        calls.append(message)
        if len(calls) >= failing:
            raise NetError("found no answer", sent=True)
        return sent

    return send_some


@pytest.mark.parametrize("failing", [1, 20, 34])
def test_a_run_that_failed_goes_on(
    mqtrail: Command, admin: SyncAdmin, topic: str, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """A send that was stored without an answer, and all sends after the last save, are not repeated."""
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "send", failing_send(failing))
        failed = reshard(mqtrail, topic, "--yes")
    assert failed.code == 1
    assert json.loads(Path("state.json").read_text())["copied_count"] == 0
    assert len(list(admin.messages(f"{topic}-4"))) >= failing
    done = reshard(mqtrail, topic, "--yes", "--json")
    assert (done.code, done.json["copied_count"]) == (0, COUNT - CONSUMED)
    check_copies(admin, topic)


def test_several_failures(mqtrail: Command, admin: SyncAdmin, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one run left in doubt of both queues stays so for the third, after a second has saved one of them."""
    monkeypatch.setattr("mqtrail.answers.backlog.reshard.CHUNK_COUNT", 7)
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "send", failing_send(10))
        assert reshard(mqtrail, topic, "--yes").code == 1
    go, rounds = ReshardRun._round, []

    async def one_round(run: ReshardRun, *places: Any) -> None:
        await go(run, *places)
        rounds.append(places)
        raise NetError("found no answer", sent=True)

    monkeypatch.setattr("mqtrail.answers.backlog.reshard.READERS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(ReshardRun, "_round", one_round)
        assert reshard(mqtrail, topic, "--yes").code == 1
    assert [len(places) for places, _ in rounds] == [1]
    assert json.loads(Path("state.json").read_text())["copied_count"] == 7
    assert reshard(mqtrail, topic, "--yes").code == 0
    check_copies(admin, topic)


def test_what_is_refused(mqtrail: Command, server: Embedded, admin: SyncAdmin, topic: str) -> None:
    """Members that read the source, a target that is not empty or has other queues, another group, unknown offsets."""
    config = ConsumerConfig(
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=50, offset_persist_ms=20, close_wait_ms=10
    )
    with SyncConsumer(GROUP, server.namesrv_address, {topic: "*"}, config=config) as consumer:
        wait_until(lambda: any(one.topic == topic for one in consumer.assignment))
        online = reshard(mqtrail, topic, "--yes")
        assert (online.code, "Stop them" in online.err) == (1, True)
    wait_until(lambda: not any(one.connection_set for one in admin.group_connections(GROUP).values()))
    assert (
        "expected another one"
        in mqtrail(*("backlog", "reshard", GROUP, "--topic", topic, "--to", topic, "--queues", "4", "--yes")).err
    )
    assert admin.create_topic(TopicConfig(f"{topic}-4", 3, 3)).complete
    wait_until(lambda: f"{topic}-4" in admin.topics())
    assert "with queues" in reshard(mqtrail, topic, "--yes").err
    assert admin.create_topic(TopicConfig(f"{topic}-4", 4, 4)).complete
    with SyncProducer("PG", server.namesrv_address) as producer:
        wait_until(lambda: len(admin.queues(f"{topic}-4")) == 4)
        producer.send(Message(f"{topic}-4", b"x"))
    assert "expected an empty topic" in reshard(mqtrail, topic, "--yes").err
    Path("state.json").write_text("[]")
    assert "expected a progress file" in reshard(mqtrail, topic, "--yes").err
    words = ("--topic", topic, "--to", "fresh", "--queues", "4", "--yes")
    assert "no offset of group" in mqtrail("backlog", "reshard", "Unknown", *words).err


@pytest.mark.slow
def test_a_killed_run_is_continued(mqtrail: Command, server: Embedded, admin: SyncAdmin, tmp_path: Path) -> None:
    """kill -9 in the middle of the copies: the next run copies the rest, and no message twice."""
    topic, count = "killed", 4_000
    assert admin.create_topic(TopicConfig(topic, 4, 4)).complete
    with SyncProducer("PG", server.namesrv_address) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number, keys=f"k{number % 9}"))
    for queue in admin.queues(topic):
        admin.set_offset(GROUP, queue, 0)

    def is_begun() -> bool:  # reading the copies instead takes so long on a busy machine that all are there
        known = (tmp_path / "state.json").exists()
        return known and sum(admin.max_offset(queue) for queue in admin.queues(f"{topic}-4")) > count / 8

    words = ["backlog", "reshard", GROUP, "--topic", topic, "--to", f"{topic}-4", "--queues", "4"]
    words += ["--progress", str(tmp_path / "state.json"), "--namesrv", server.namesrv_address, "--yes", "--json"]
    with subprocess.Popen([sys.executable, "-m", "mqtrail", *words], stdout=subprocess.DEVNULL) as run:
        wait_until(is_begun)
        run.kill()
    assert len(list(admin.messages(f"{topic}-4"))) < count, "the kill came too late"
    done = mqtrail(*words)
    assert (done.code, done.json["copied_count"]) == (0, count)
    places = [one.properties[COPIED_FROM] for one in admin.messages(f"{topic}-4")]
    assert (len(places), len(set(places))) == (count, count)
