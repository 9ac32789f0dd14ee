"""`mqtrail backlog` on our own broker: what is printed, what is changed, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import (
    ClientError,
    ConsumeFromWhere,
    ConsumerConfig,
    MessageQueue,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, SubscriptionGroupConfig, TopicConfig
from tests.cli.conftest import Command, commands_at
from tests.waiting import wait_until

TOPIC = "orders"
PER_QUEUE = 5
QUEUES = [MessageQueue(TOPIC, "broker-a", number) for number in range(2)]
PLACES: dict[str, tuple[int | None, int | None]] = {
    "Away": (1, 4),
    "Half": (5, None),
    "Skips": (1, 4),
    "Timed": (3, 5),
    "Partly": (1, 4),
    "Idle": (None, None),
}
QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    rebalance_ms=50,
    offset_persist_ms=20,
    close_wait_ms=10,
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
            for group, places in PLACES.items():
                assert admin.create_group(SubscriptionGroupConfig(group)).complete
                for queue, offset in zip(QUEUES, places, strict=True):
                    if offset is not None:
                        admin.set_offset(group, queue, offset)
        yield running


@pytest.fixture
def mqtrail(
    server: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return commands_at(server, capsys, monkeypatch, tmp_path)


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
    assert "mqtrail backlog skip Away --topic orders --to end --dry-run" in text


def test_a_group_with_a_member(mqtrail: Command, server: Embedded) -> None:
    """Its queues and handler time are those that it reports; it consumes nothing between the readings."""
    with SyncConsumer("Live", server.namesrv_address, {TOPIC: "*"}, config=QUICK) as consumer:
        delivery = consumer.receive(20_000)
        assert delivery is not None
        wait_until(lambda: sum(one.topic == TOPIC for one in consumer.assignment) == 2)
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


def skip(mqtrail: Command, group: str, to: str, *more: str) -> Any:
    return mqtrail("backlog", "skip", group, "--topic", TOPIC, "--to", to, *more)


def offsets(server: Embedded, group: str) -> list[int | None]:
    with SyncAdmin(server.namesrv_address) as admin:
        return [admin.consumer_offset(group, queue) for queue in QUEUES]


def test_a_dry_run_changes_nothing(mqtrail: Command, server: Embedded) -> None:
    """It shows each queue with its range and times, and writes no record."""
    found = skip(mqtrail, "Away", "end", "--dry-run", "--json")
    assert (found.code, found.json["count"], found.json["record"]) == (0, 5, None)
    ranges = [(one["queue_id"], one["first_offset"], one["end_offset"], one["count"]) for one in found.json["queues"]]
    assert ranges == [(0, 1, 5, 4), (1, 4, 5, 1)]
    assert all(one["first_ms"] <= one["last_ms"] for one in found.json["queues"])
    assert "nothing was changed" in skip(mqtrail, "Away", "end", "--dry-run").out
    refused = skip(mqtrail, "Away", "end")
    assert (refused.code, "expected --yes" in refused.err) == (2, True)
    assert offsets(server, "Away") == [1, 4]
    assert list(Path().glob("*.jsonl")) == []


def test_what_is_skipped_can_be_read_from_its_record(mqtrail: Command, server: Embedded) -> None:
    """The record has each queue before it moves, and what came of it; its messages are printed from it."""
    done = skip(mqtrail, "Skips", "end", "--yes", "--json")
    assert (done.code, offsets(server, "Skips")) == (0, [5, 5])
    lines = [json.loads(line) for line in Path(done.json["record"]).read_text().splitlines()]
    assert [line["event"] for line in lines] == ["skip", "queue", "queue", "outcome", "outcome"]
    assert (lines[0]["group"], lines[0]["topic"], lines[0]["count"], "@" in lines[0]["who"]) == (
        "Skips",
        TOPIC,
        5,
        True,
    )
    assert [(line["place"], line["offset"], line["error"]) for line in lines[3:]] == [
        ("broker-a/0", 5, ""),
        ("broker-a/1", 5, ""),
    ]
    read = mqtrail("backlog", "skipped", done.json["record"], "--json")
    assert [(row["queue"], row["queue_offset"]) for row in read.rows] == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 4)]
    assert "pass --limit 0" in mqtrail("backlog", "skipped", done.json["record"], "--limit", "2").err
    again = skip(mqtrail, "Skips", "end", "--yes")
    assert (again.code, "2 queues have nothing to skip" in again.out) == (0, True)


def test_a_skip_to_a_time_moves_no_queue_backward(mqtrail: Command, server: Embedded) -> None:
    """A queue whose offset is past the time stays, where a reset to the time would deliver its messages again."""
    early = skip(mqtrail, "Timed", "2001-01-01", "--yes", "--json")
    assert (early.code, early.json["queues"], offsets(server, "Timed")) == (0, [], [3, 5])
    late = skip(mqtrail, "Timed", "2999-01-01", "--yes", "--json")
    assert [(one["queue_id"], one["count"]) for one in late.json["queues"]] == [(0, 2)]
    assert (late.code, offsets(server, "Timed")) == (0, [5, 5])


def test_a_broker_that_does_not_reset_offsets_itself(mqtrail: Command, server: Embedded) -> None:
    """Live members would write their offsets back, so nothing is changed until they are stopped."""
    with SyncAdmin(server.namesrv_address) as admin:
        admin.set_broker_config({"useServerSideResetOffset": "false"})
        try:
            with SyncConsumer("Old", server.namesrv_address, {TOPIC: "*"}, config=QUICK) as consumer:
                delivery = consumer.receive(20_000)
                assert delivery is not None
                refused = skip(mqtrail, "Old", "end", "--yes")
                assert (refused.code, "Stop them" in refused.err) == (1, True)
                assert list(Path().glob("*.jsonl")) == []
            wait_until(lambda: not any(one.connection_set for one in admin.group_connections("Old").values()))
            assert skip(mqtrail, "Old", "end", "--yes").code == 0
        finally:
            admin.set_broker_config({"useServerSideResetOffset": "true"})
    assert offsets(server, "Old") == [5, 5]


def test_a_queue_that_cannot_be_moved(mqtrail: Command, server: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was written before; it says which queue was moved, and which was not. A later run moves the rest."""
    set_offset, before = SyncAdmin.set_offset, []

    def set_one(admin: SyncAdmin, group: str, queue: MessageQueue, offset: int) -> None:
        before.append([json.loads(line)["event"] for line in Path("skip.jsonl").read_text().splitlines()])
        if queue.queue_id == 0:
            raise ClientError("found no answer")
        set_offset(admin, group, queue, offset)

    with monkeypatch.context() as patch:
        patch.setattr(SyncAdmin, "set_offset", set_one)
        done = skip(mqtrail, "Partly", "end", "--yes", "--record", "skip.jsonl", "--json")
    assert (done.code, before) == (1, [["skip", "queue", "queue"]] * 2)
    assert [(one["offset"], one["error"]) for one in done.json["outcomes"]] == [(None, "found no answer"), (5, "")]
    assert json.loads(Path("skip.jsonl").read_text().splitlines()[3])["error"] == "found no answer"
    assert offsets(server, "Partly") == [1, 5]
    assert [one["queue_id"] for one in skip(mqtrail, "Partly", "end", "--yes", "--json").json["queues"]] == [0]
    assert offsets(server, "Partly") == [5, 5]


def test_a_group_with_live_members_is_moved(mqtrail: Command, server: Embedded) -> None:
    """Its members go on behind what was skipped, and do not write their old offsets back."""
    with SyncConsumer("Busy", server.namesrv_address, {TOPIC: "*"}, config=QUICK) as consumer:
        delivery = consumer.receive(20_000)
        assert delivery is not None
        wait_until(lambda: sum(one.topic == TOPIC for one in consumer.assignment) == 2)
        assert skip(mqtrail, "Busy", "end", "--yes").code == 0
        assert offsets(server, "Busy") == [5, 5]
        delivery.ack()
    assert offsets(server, "Busy") == [5, 5], "it was closed, so it has committed the delivery"


def test_files_that_are_no_record(mqtrail: Command) -> None:
    """One line says what was found; an existing file is never overwritten, and nothing moves."""
    Path("there.jsonl").write_text("[]\n")
    assert "expected a record" in mqtrail("backlog", "skipped", "there.jsonl").err
    assert mqtrail("backlog", "skipped", "missing.jsonl").code == 1
    found = skip(mqtrail, "Away", "end", "--yes", "--record", "there.jsonl")
    assert (found.code, Path("there.jsonl").read_text()) == (1, "[]\n")
