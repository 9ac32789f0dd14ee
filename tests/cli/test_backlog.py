"""`mqtrail backlog` on our own broker: what is printed, what is changed, and exit codes."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtrail.client import ConsumeFromWhere, ConsumerConfig, MessageQueue, SyncAdmin, SyncConsumer, SyncProducer
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, SubscriptionGroupConfig, TopicConfig
from tests.cli.conftest import Command, commands
from tests.waiting import wait_until

TOPIC = "orders"
PER_QUEUE = 5
QUEUES = [MessageQueue(TOPIC, "broker-a", number) for number in range(2)]
QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    rebalance_ms=50,
    offset_persist_ms=20,
    close_wait_ms=200,
    concurrency=4,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Embedded]:
    """A topic of two queues with five messages each, and groups without members at several places."""
    with embedded() as running:
        with SyncAdmin(running.namesrv_address) as admin, SyncProducer("PG", running.namesrv_address) as producer:
            assert admin.create_topic(TopicConfig(TOPIC, 2, 2)).complete
            for number in range(2 * PER_QUEUE):
                producer.send(Message(TOPIC, b"%d" % number, keys=f"k{number}"), queue=QUEUES[number % 2])
            for group, offsets in {"Away": (1, 4), "Half": (5, None), "Skips": (1, 4), "Idle": (None, None)}.items():
                assert admin.create_group(SubscriptionGroupConfig(group)).complete
                for queue, offset in zip(QUEUES, offsets, strict=True):
                    if offset is not None:
                        admin.set_offset(group, queue, offset)
        yield running


@pytest.fixture
def mqtrail(
    server: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs one command line with the cluster, without any settings of this machine and without a terminal."""
    monkeypatch.setenv("NAMESRV_ADDR", server.namesrv_address)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    return commands(capsys)


def test_a_group_without_members(mqtrail: Command) -> None:
    """What waits by queue and since when, and that nobody consumes it."""
    found = mqtrail("backlog", "show", "Away", "--over", "20ms", "--json")
    assert found.code == 0
    [topic], [advice] = found.json["topics"], found.json["advice"]
    assert (topic["total"]["lag_count"], topic["members"]) == (5, [])
    assert [(one["queue_id"], one["lag_count"], one["owners"]) for one in topic["queues"]] == [(0, 4, []), (1, 1, [])]
    assert topic["since_ms"] == found.json["as_of_ms"] - topic["total"]["lag_ms"]
    assert (advice["cause"], advice["ways"][0]["kind"], advice["estimates"]) == ("NO_MEMBERS", "start", [])
    text = mqtrail("backlog", "show", "Away", "--over", "20ms").out
    assert "5 messages wait and no member is online (NO_MEMBERS)" in text
    assert "mqtrail offset reset Away orders --to end --dry-run" in text


def test_a_group_with_a_member(mqtrail: Command, server: Embedded) -> None:
    """Its queues and handler time are those that it reports; it consumes nothing between the readings."""
    with SyncConsumer("Live", server.namesrv_address, {TOPIC: "*"}, config=QUICK) as consumer:
        delivery = consumer.receive(20_000)
        assert delivery is not None
        wait_until(lambda: len(consumer.assignment) == 2)
        found = mqtrail("backlog", "show", "Live", "--topic", TOPIC, "--over", "20ms", "--json")
        text = mqtrail("backlog", "show", "Live", "--over", "20ms").out
        delivery.ack()
    [topic], [advice] = found.json["topics"], found.json["advice"]
    [member] = topic["members"]
    assert member["queues"] == ["broker-a/0", "broker-a/1"]
    assert (member["threads"], member["is_ordered"], member["handler_ms"]) == (4, False, None)
    assert topic["unowned"] == []
    assert {owner for queue in topic["queues"] for owner in queue["owners"]} == {member["client_id"]}
    assert advice["cause"] in ("STUCK", "UNKNOWN"), "UNKNOWN: no offset was committed yet"
    assert member["client_id"] in text
    assert "?" in text


def test_what_is_unknown_and_who_is_not_there(mqtrail: Command) -> None:
    """An unknown lag is ?, an unknown group or topic is exit code 1."""
    half = mqtrail("backlog", "show", "Half", "--over", "20ms")
    assert (half.code, "1 of 2 queues are unknown" in half.out) == (0, True)
    assert mqtrail("backlog", "show", "Nobody", "--over", "20ms").code == 1
    assert mqtrail("backlog", "show", "Away", "--over", "20ms", "--topic", "payments").code == 1
    assert "neither an offset nor a subscription" in mqtrail("backlog", "show", "Idle", "--over", "20ms").out
    assert mqtrail("backlog", "show", "Away", "--over", "0s").code == 2
