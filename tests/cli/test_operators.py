"""The operators' commands with our own brokers: output, exit codes, and confirmations."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtrail.client import ConsumeFromWhere, ConsumerConfig, SyncAdmin, SyncConsumer, SyncProducer
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, TopicConfig
from tests.cli.conftest import Command, commands_at
from tests.waiting import wait_until

QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=50, offset_persist_ms=20, close_wait_ms=200
)


@pytest.fixture(scope="module")
def server() -> Iterator[Embedded]:
    """Two brokers, a topic with two queues each and six messages, and a group that read them."""
    with embedded(brokers=2) as running:
        with SyncAdmin(running.namesrv_address) as admin:
            admin.create_topic(TopicConfig("orders", 2, 2))
        with SyncProducer("PG", running.namesrv_address) as producer:
            for number in range(6):
                producer.send(Message("orders", b"body-%d" % number, keys=f"k{number}", tags="AB"[number % 2]))
        with SyncConsumer("CG", running.namesrv_address, {"orders": "*"}, config=QUICK) as consumer:
            for _ in range(6):
                delivery = consumer.receive(20_000)
                assert delivery is not None
                delivery.ack()
        yield running


@pytest.fixture
def mqtrail(
    server: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return commands_at(server, capsys, monkeypatch, tmp_path)


def test_a_topics_life(mqtrail: Command) -> None:
    """Topics: create with an attribute, show the route, remove write permission, order, delete; results per broker."""
    assert mqtrail("topic", "create", "life", "--queues", "1", "--attribute", "message.type=FIFO").code == 0
    wait_until(lambda: len(mqtrail("topic", "route", "life", "--json").json.get("brokers", ())) == 2)
    route = mqtrail("topic", "route", "life", "--json").json
    assert [(row["broker"], row["perm"]) for row in route["brokers"]] == [("broker-a", "rw"), ("broker-b", "rw")]
    assert "broker-a" in mqtrail("topic", "route", "life").out
    closed = mqtrail("topic", "perm", "life", "r", "--broker", "broker-a", "--json")
    assert (closed.code, closed.json["done"]) == (0, ["broker-a"])
    assert mqtrail("topic", "perm", "life", "x").code == 2
    assert mqtrail("topic", "order", "life").code == 1
    assert mqtrail("topic", "order", "life", "broker-a:1").code == 0
    assert mqtrail("topic", "order", "life", "--json").json["order"] == "broker-a:1"
    assert mqtrail("topic", "order", "life", "nonsense").code == 2
    assert mqtrail("topic", "order", "life", "--delete").code == 0
    asked = mqtrail("topic", "delete", "life")
    assert (asked.code, "expected --yes" in asked.err) == (2, True)
    gone = mqtrail("topic", "delete", "life", "--yes", "--json").json
    assert {"broker-a", "broker-b"} <= set(gone["done"])
    wait_until(lambda: "life" not in mqtrail("topic", "list").out.split())


def test_an_operator_may_say_no(mqtrail: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal the command asks; the answer no is exit code 130, without a change."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    result = mqtrail("topic", "delete", "orders")
    assert (result.code, "Continue?" in result.err) == (130, True)
    assert "orders" in mqtrail("topic", "list").out.split()


def test_groups(mqtrail: Command) -> None:
    """Groups: create, list with lag, show, delete."""
    made = mqtrail("group", "create", "young", "--attempts", "3", "--json")
    assert (made.code, made.json["done"]) == (0, ["broker-a", "broker-b"])
    assert mqtrail("group", "create", "no spaces").code == 1
    listed = {row["group"]: row for row in mqtrail("group", "list", "--json").json["groups"]}
    assert listed["CG"]["behind"] == 0
    assert "TOOLS_CONSUMER" not in listed
    assert "young" in mqtrail("group", "list").out
    config = mqtrail("group", "config", "young", "--json").json["brokers"]
    assert {name: one["retryMaxTimes"] for name, one in config.items()} == {"broker-a": 3, "broker-b": 3}
    shown = mqtrail("group", "show", "CG", "--topic", "orders", "--json").json
    assert (len(shown["queues"]), shown["behind"], shown["members"]) == (4, 0, [])
    assert "none is online" in mqtrail("group", "show", "CG").out
    assert mqtrail("group", "config", "nobody").code == 1
    assert mqtrail("group", "mode", "young", "orders", "pop").code == 0
    assert mqtrail("group", "mode", "young", "orders", "push").code == 2
    assert mqtrail("group", "delete", "young").code == 2
    assert mqtrail("group", "delete", "young", "--offsets", "--topics", "--yes").code == 0
    assert mqtrail("group", "config", "young").code == 1


def test_who_is_online(mqtrail: Command, server: Embedded) -> None:
    """Members with their own reports, producers by group."""
    assert mqtrail("group", "members", "CG").code == 1
    with (
        SyncProducer("PG-online", server.namesrv_address) as producer,
        SyncConsumer("CG-online", server.namesrv_address, {"orders": "A"}, config=QUICK) as consumer,
    ):
        producer.send(Message("orders", b"x", tags="A"))
        assert consumer.receive(20_000) is not None
        members = mqtrail("group", "members", "CG-online", "--json").json["members"]
        assert [member["error"] for member in members] == [None]
        assert any(name.startswith("orders/") for name in members[0]["running"]["mqTable"])
        assert "subscribes to orders: A" in mqtrail("group", "members", "CG-online").out
        producers = mqtrail("group", "producers", "--json").json["producers"]
        assert "PG-online" in {row["group"] for row in producers}


def test_offsets(mqtrail: Command) -> None:
    """Offsets: show, set, clone, reset, skip; without --yes nothing changes."""
    rows = mqtrail("offset", "show", "CG", "orders", "--json").json["queues"]
    assert len(rows) == 4
    assert mqtrail("group", "create", "walker").code == 0
    assert {row["committed"] for row in mqtrail("offset", "show", "walker", "orders", "--json").json["queues"]} == {
        None
    }
    assert mqtrail("offset", "set", "walker", "orders", "broker-a/0=1").code == 2
    assert mqtrail("offset", "set", "walker", "orders", "broker-a/0", "--yes").code == 2
    assert mqtrail("offset", "set", "walker", "orders", "broker-a/0=1", "broker-b/1=0", "--yes").code == 0
    failed = mqtrail("offset", "set", "walker", "orders", "nowhere/0=1", "--yes", "--json")
    assert (failed.code, list(failed.json["failures"])) == (1, ["nowhere/0"])
    cloned = mqtrail("offset", "clone", "walker", "runner", "orders", "--yes", "--json")
    assert [row["offset"] for row in cloned.json["queues"]] == [1, 0] or cloned.code == 1
    planned = mqtrail("offset", "reset", "CG", "orders", "--to", "first", "--dry-run", "--json")
    assert (planned.code, {row["after"] for row in planned.json["steps"]}) == (0, {"0"})
    shown = mqtrail("offset", "reset", "CG", "orders", "--to", "first", "--dry-run")
    assert (shown.code, "nothing was changed, skipped: " in shown.out) == (0, True)
    reset = mqtrail("offset", "reset", "CG", "orders", "--to", "first", "--yes", "--json")
    assert (reset.code, {row["offset"] for row in reset.json["queues"]}) == (0, {0})
    assert mqtrail("offset", "reset", "CG", "orders", "--to", "soon", "--yes").code == 2
    assert mqtrail("offset", "reset", "CG", "orders", "--to", "1h", "--yes").code == 0
    skipped = mqtrail("offset", "skip", "CG", "orders", "--yes", "--json")
    assert len(skipped.json["queues"]) == 4
    after_reset = mqtrail("offset", "set", "CG", "orders", "broker-a/0=1", "--yes", "--json")
    assert [row["offset"] for row in after_reset.json["queues"]] == [1]
    cloned = mqtrail("offset", "clone", "walker", "CG", "orders", "--yes", "--json")
    assert cloned.json["failures"] == {}
    shown = mqtrail("offset", "show", "CG", "orders", "--json").json["queues"]
    committed = {(row["broker"], row["queue"]): row["committed"] for row in shown}
    assert all(committed[row["broker"], row["queue"]] == row["offset"] for row in cloned.json["queues"])


def test_the_cluster(mqtrail: Command) -> None:
    """Brokers, counters, settings, statistics, and the name servers' data."""
    listed = mqtrail("cluster", "list", "--json").json["brokers"]
    assert {(row["broker"], row["id"], row["version"]) for row in listed} == {
        ("broker-a", 0, "V5_3_3"),
        ("broker-b", 0, "V5_3_3"),
    }
    assert "broker-b" in mqtrail("cluster", "list").out
    assert mqtrail("cluster", "list", "--cluster", "nowhere").code == 1
    assert mqtrail("cluster", "show", "broker-a", "--json").json["runtime"]["brokerVersionDesc"] == "V5_3_3"
    unknown = mqtrail("cluster", "show", "broker-x")
    assert (unknown.code, "broker-a, broker-b" in unknown.err) == (1, True)
    shown = mqtrail("cluster", "ha", "--json").json
    replicas = shown["brokers"]
    assert [(row["broker"], row["role"], row["lag_bytes"], row["lag_seconds"]) for row in replicas] == [
        ("broker-a", "master", 0, 0),
        ("broker-b", "master", 0, 0),
    ]
    assert {(row["epoch"], row["in_sync"], row["process_id"]) for row in replicas} == {(None, None, os.getpid())}
    assert shown["groups"] == []
    assert "log end" in mqtrail("cluster", "ha", "--cluster", "DefaultCluster").out
    settings = mqtrail("cluster", "config", "brokerName", "--json").json["brokers"]
    assert settings == {"broker-a": {"brokerName": "broker-a"}, "broker-b": {"brokerName": "broker-b"}}
    assert mqtrail("cluster", "config", "brokerName", "a=b").code == 2
    assert mqtrail("cluster", "config", "a=b").code == 2  # asks for confirmation
    refused = mqtrail("cluster", "config", "initAuthenticationUser=sesame", "--yes")
    assert refused.code == 2
    assert "sesame" not in refused.err
    assert "sum" in mqtrail("cluster", "stats", "broker-a", "TOPIC_PUT_NUMS", "orders").out
    pinged = mqtrail("cluster", "ping", "--count", "2", "--json").json["brokers"]
    assert [(row["broker"], row["stored"]) for row in pinged] == [("broker-a", 2), ("broker-b", 2)]
    assert "worst" in mqtrail("cluster", "ping", "--cluster", "DefaultCluster").out
    exported = mqtrail("cluster", "export", "--broker", "broker-a").json["brokers"]["broker-a"]
    assert "orders" in {topic["topicName"] for topic in exported["topics"]}
    assert exported["settings"]["brokerName"] == "broker-a"
    assert "CG" in {group["groupName"] for group in exported["groups"]}
    assert mqtrail("cluster", "wipe", "broker-a").code == 2
    assert mqtrail("cluster", "wipe", "broker-a", "--yes").code == 0
    assert mqtrail("cluster", "unwipe", "broker-a").code == 0
    assert mqtrail("cluster", "clean", "everything").code == 2
    assert mqtrail("cluster", "clean", "queues").code == 2
    assert mqtrail("cluster", "clean", "queues", "--yes").code == 0
    assert mqtrail("cluster", "clean", "logs", "--broker", "broker-a", "--yes").code == 0
    assert mqtrail("topic", "clean", "--yes").code == 0
    assert mqtrail("cluster", "config", "fileReservedTime=70", "--broker", "broker-a", "--yes").code == 0
    changed = mqtrail("cluster", "config", "fileReservedTime", "--json").json["brokers"]
    assert changed == {"broker-a": {"fileReservedTime": "70"}, "broker-b": {"fileReservedTime": "72"}}
    assert "listenPort" in mqtrail("cluster", "namesrv").out
    assert mqtrail("cluster", "kv", "N").code == 1
    assert mqtrail("cluster", "kv", "N", "k=v", "--yes").code == 0
    assert mqtrail("cluster", "kv", "N", "k", "--json").json["values"] == {"k": "v"}
    values = mqtrail("cluster", "export", "--kv-namespace", "N").json["key_values"]
    assert values == {"N": {"k": "v"}, "ORDER_TOPIC_CONFIG": {}}
    assert mqtrail("cluster", "kv", "N", "k", "--delete", "--yes").code == 0
    assert mqtrail("cluster", "kv", "N", "--delete", "--yes").code == 2


def test_messages(mqtrail: Command) -> None:
    """Find messages by key, position and either id; print by queue, tag and time."""
    (found,) = mqtrail("message", "find", "orders", "k3", "--body", "--json").json["messages"]
    assert (found["body"], found["tags"]) == ("body-3", "B")
    assert mqtrail("message", "find", "orders", "nothing").code == 1
    assert "k3" in mqtrail("message", "find", "orders", "k3").out
    shown = mqtrail("message", "show", found["msg_id"], "--topic", "orders", "--groups", "--json").json["messages"]
    assert [one["offset_msg_id"] for one in shown] == [found["offset_msg_id"]]
    assert shown[0]["groups"]["CG"] == "NOT_ONLINE"
    by_place = mqtrail("message", "show", found["offset_msg_id"])
    assert (by_place.code, "body-3" in by_place.out) == (0, True)
    nameless = mqtrail("message", "show", found["msg_id"])
    assert (nameless.code, "--topic" in nameless.err) == (2, True)
    assert mqtrail("message", "show", "7F" * 16, "--topic", "orders").code == 1
    printed = mqtrail("message", "print", "orders", "--json").rows
    assert {"body-0", "body-5"} <= {row["body"] for row in printed}
    assert {row["tags"] for row in mqtrail("message", "print", "orders", "--tags", "B", "--json").rows} == {"B"}
    place = f"{found['broker']}/{found['queue']}"
    (one,) = mqtrail(
        "message", "print", "orders", "--queue", place, "--offset", str(found["queue_offset"]), "--json"
    ).rows
    assert one["msg_id"] == found["msg_id"]
    index = mqtrail("message", "index", "orders", place, "--group", "CG", "--json").json
    assert index["entries"][0]["queue_offset"] == index["first"] == 0
    assert "the queue holds [0" in mqtrail("message", "index", "orders", place).out
    assert mqtrail("message", "index", "orders", "nonsense").code == 2
    rates = mqtrail("topic", "stats", "orders", "--json").json["topics"]
    assert rates[0]["group"] is None
    assert "orders" in mqtrail("topic", "stats").out
    assert mqtrail("message", "print", "orders", "--offset", "1").code == 2
    assert mqtrail("message", "print", "orders", "--queue", "nonsense").code == 2
    assert mqtrail("message", "print", "orders", "--from", "2100-01-01").code == 1
    limited = mqtrail("message", "print", "orders", "--limit", "2", "--no-body")
    assert (len(limited.out.splitlines()), "--limit 0" in limited.err, "body-" in limited.out) == (2, True, False)


def test_dead_letters_and_consuming_by_hand(mqtrail: Command, server: Embedded) -> None:
    """A dead letter is resent; an online consumer consumes a message, and its result is shown."""
    assert mqtrail("message", "resend", "CG-dead", "--yes").code == 1
    with SyncAdmin(server.namesrv_address) as admin:
        admin.create_topic(TopicConfig("letters", 1, 1))
        wait_until(lambda: "letters" in admin.topics())
    with (
        SyncProducer("PG", server.namesrv_address) as producer,
        SyncConsumer("CG-dead", server.namesrv_address, {"letters": "*"}, config=QUICK) as consumer,
    ):
        sent = producer.send(Message("letters", b"letter"))
        delivery = consumer.receive(20_000)
        assert delivery is not None
        delivery.retry(-1)
        assert mqtrail("message", "resend", "CG-dead").code == 2
        with SyncAdmin(server.namesrv_address) as admin:
            wait_until(lambda: "%DLQ%CG-dead" in admin.topics())
        planned = mqtrail("message", "resend", "CG-dead", "--dry-run", "--json").json
        assert [(one["target"], one["after"]) for one in planned["steps"]] == [(sent.msg_id, "%RETRY%CG-dead")]
        (row,) = mqtrail("message", "resend", "CG-dead", "--id", sent.msg_id, "--yes", "--json").rows
        assert (row["msg_id"], row["done"]) == (sent.msg_id, True)
        delivery = consumer.receive(20_000)
        assert delivery is not None
        assert delivery.msg_id == sent.msg_id
        delivery.ack()
        refused = mqtrail("message", "consume", sent.offset_msg_id, "CG-dead", "--yes")
        assert (refused.code, "no handler" in refused.err) == (1, True)


def test_access_control(mqtrail: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users and policies; a password is never an argument."""
    bare = mqtrail("acl", "user", "create", "ann")
    assert (bare.code, "MQTRAIL_PASSWORD" in bare.err) == (2, True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("secret-1\n"))
    assert mqtrail("acl", "user", "create", "ann", "--password-stdin").code == 0
    monkeypatch.setenv("MQTRAIL_PASSWORD", "secret-2")
    assert mqtrail("acl", "user", "update", "ann", "--password", "--status", "disable").code == 0
    assert mqtrail("acl", "user", "update", "ann").code == 2
    assert mqtrail("acl", "user", "update", "ann", "--status", "off").code == 2
    users = mqtrail("acl", "user", "list", "--json").json["users"]
    assert {(row["user"], row["status"]) for row in users} == {("ann", "disable")}
    allow = ("acl", "policy", "set", "ann", "--resource", "Topic:orders")
    assert mqtrail(*allow, "--action", "pub", "--action", "Sub", "--from", "10.0.0.0/8").code == 0
    assert mqtrail(*allow, "--action", "Pub", "--deny").code == 0
    assert mqtrail(*allow, "--action", "fly").code == 2
    assert mqtrail("acl", "policy", "set", "ann", "--resource", "orders", "--action", "Pub").code == 2
    policies = mqtrail("acl", "policy", "list", "--json").json["policies"]
    assert [(row["subject"], row["actions"], row["decision"]) for row in policies] == [
        ("User:ann", ["Pub"], "Deny")
    ] * 2
    assert "Topic:orders" in mqtrail("acl", "policy", "list").out
    assert mqtrail("acl", "policy", "delete", "ann").code == 2
    assert mqtrail("acl", "policy", "delete", "ann", "--yes").code == 0
    assert mqtrail("acl", "user", "delete", "ann", "--yes").code == 0
    assert mqtrail("acl", "user", "list", "--json").json["users"] == []
    assert mqtrail("acl", "account", "version").code in (0, 3)


def test_a_cluster_that_is_not_there(mqtrail: Command) -> None:
    """Every command reports it in one line."""
    for words in (("group", "list"), ("cluster", "list"), ("offset", "show", "g", "t"), ("message", "print", "t")):
        result = mqtrail(*words, "--namesrv", "127.0.0.1:1")
        assert (result.code, "no name server answered" in result.err) == (1, True), words


def test_a_delayed_message_is_called_back(mqtrail: Command) -> None:
    """A delayed message to a chosen queue; its handle recalls it."""
    sent = mqtrail("send", "orders", "later", "--delay", "1h", "--queue", "broker-a/1", "--no-trace", "--json").json
    assert (sent["status"], sent["broker"]) == ("SEND_OK", "broker-a")
    delayed = mqtrail("message", "delayed", "--json")
    assert (delayed.code, [one["msg_id"] for one in delayed.json["messages"]]) == (0, [sent["msg_id"]])
    assert "1 messages wait, 1 are listed" in mqtrail("message", "delayed").out
    recalled = mqtrail("message", "recall", "orders", sent["recall_handle"], "--json")
    assert (recalled.code, recalled.json["msg_id"]) == (0, sent["msg_id"])
    assert mqtrail("message", "recall", "orders", "nonsense").code == 1
    for wrong in (
        ("--delay", "soon"),
        ("--delay", "1h", "--delay-level", "2"),
        ("--queue", "x"),
        ("--queue", "broker-a/0", "--order-key", "k"),
    ):
        assert mqtrail("send", "orders", "x", *wrong).code == 2, wrong


def test_transactions_and_pops_that_are_not_there(mqtrail: Command) -> None:
    """Each broker reports none; only what a broker gave up can be put back, after a confirmation."""
    assert "broker-b: 0 open, 0 given up" in mqtrail("transaction", "list").out
    assert mqtrail("transaction", "list", "--json").json["open"] == []
    assert "broker-b: 0 handed out, revive log behind by 0 records" in mqtrail("group", "pops").out
    assert mqtrail("group", "pops", "--json").json["messages"] == []
    for place, words in (
        ("x", "expected BROKER/TOPIC/QUEUE@OFFSET"),
        ("broker-a/orders/0@0", "TRANS_CHECK_MAX_TIME_TOPIC"),
    ):
        refused = mqtrail("transaction", "resume", place, "--yes")
        assert (refused.code, words in refused.err) == (1, True), place
    assert mqtrail("transaction", "resume", "x").code == 2


def test_passwords_of_brokers_are_not_printed(mqtrail: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's brokers return secrets in plain text: `cluster config` and `cluster export` hide them."""
    known = SyncAdmin.broker_config

    def with_secrets(admin: SyncAdmin, address: str) -> dict[str, str]:
        secrets = {"initAuthenticationUser": "sesame", "tls.server.keyPassword": "sesame", "aclEnable": "true"}
        return {**known(admin, address), **secrets}

    monkeypatch.setattr(SyncAdmin, "broker_config", with_secrets)
    result = mqtrail("cluster", "config", "--json")
    assert "sesame" not in result.out
    assert result.json["brokers"]["broker-a"]["initAuthenticationUser"] == "(hidden)"
    assert result.json["brokers"]["broker-a"]["aclEnable"] == "true"
    assert "sesame" not in mqtrail("cluster", "config").out
