"""Transactions of the official clients: ended by their producer, by a check, by another producer's check, or never."""

from __future__ import annotations

import pytest
from interop.driver import Json
from interop.stage import CLIENTS, OURS, Part, Stage, by_label, labels, properties, wait_for

from mqtrail.client import HalfMessage, SyncAdmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
# The decision at the send, and the answer to each check in turn.
DECISIONS = {
    "committed": ("commit", "throw"),
    "rolled-back": ("rollback", "throw"),
    "commits-later": ("unknown", "commit"),
    "rolls-back-later": ("unknown", "rollback"),
    "throws": ("throw", "unknown,commit"),
    "never": ("unknown", "unknown"),
}


def transactions(part: Part) -> Json:
    """Every way a half message can end, and one whose producer was closed before the check."""
    topic, group = part.named("Transactions"), part.named("TransactionGroup")
    part.make_topic(topic)
    part.consumer("c", group=group, topics={topic: "*"})
    part.producer("t", group=part.named("TransactionProducer"), transactions=True)
    sent = part.labelled(
        "t",
        topic,
        {
            label: {"keys": f"key-{label}", "tags": "Half", "properties": {"local": local, "check": check}}
            for label, (local, check) in DECISIONS.items()
        },
        "transaction",
    )
    heirs = part.named("HeirProducer")
    part.producer("gone", group=heirs, transactions=True)
    part.labelled("gone", topic, {"orphan": {"properties": {"local": "unknown", "check": "commit"}}}, "transaction")
    part.close("gone")
    part.producer("heir", group=heirs, transactions=True)
    # a producer without a route sends no heartbeat to any broker
    part.labelled("heir", topic, {"plain": {}})
    handled = part.wait_handled(5, "c")
    wait_for(lambda: "never" in labels(_given_up(part, topic)), f"never given up on {part.kind}")
    checks = part.decisions("check", "t", "heir", "gone")
    with SyncAdmin(part.server.namesrv_address) as admin:
        wait_for(lambda: not _open(admin, topic), f"transactions do not end on {part.kind}")
        listed = [half for broker in admin.half_messages()[0] for half in broker.given_up or () if half.topic == topic]
    return {
        "listed": [(half.keys, half.producer_group, half.check_count) for half in listed],
        "sent": [(result["status"], result["local"], result["transactionId"] == result["msgId"]) for result in sent],
        "local": labels_of(part.decisions("local", "t")),
        "checked": {label: sum(name == label for name in labels(checks)) for label in (*DECISIONS, "orphan")},
        "by": sorted({check["producer"].rpartition(":")[2] for check in checks if check["body"] == "orphan"}),
        "asked": [
            (
                check["topic"] == topic,
                check["transactionId"] == check["properties"]["UNIQ_KEY"],
                sorted(check["properties"]),
            )
            for check in sorted(checks, key=lambda check: check["body"])
            if check["body"] in ("commits-later", "rolls-back-later")
        ],
        "handled": by_label(handled),
        "given up": by_label(m for m in _given_up(part, topic)),
    }


def labels_of(decisions: list[Json]) -> list[tuple[str, dict[str, str]]]:
    """Return label and properties of messages that a producer decided at once."""
    return [(reported["properties"]["label"], properties(reported["properties"])) for reported in decisions]


def _open(admin: SyncAdmin, topic: str) -> list[HalfMessage]:
    """The topic's half messages that wait for their end."""
    brokers, problems = admin.half_messages()
    assert problems == ()
    return [half for broker in brokers for half in broker.open or () if half.topic == topic]


def _given_up(part: Part, topic: str) -> list[Json]:
    """The topic's messages among those without a decision."""
    found = part.query("heir", GIVEN_UP, "key-never")
    return [message for message in found if message["properties"].get("REAL_TOPIC", topic) == topic]


@pytest.mark.parametrize("client", CLIENTS)
def test_transactions(stage: Stage, client: str) -> None:
    """A committed message is delivered once, another one never; without a decision it is dropped after the limit."""
    ours, apache = stage.play(transactions, client)
    assert ours == apache
    assert sorted(ours["handled"]) == ["commits-later", "committed", "orphan", "plain", "throws"]
    assert all(len(attempts) == 1 for attempts in ours["handled"].values())
    assert ours["checked"]["committed"] == ours["checked"]["rolled-back"] == 0
    assert ours["checked"]["throws"] == 2
    assert ours["checked"]["never"] == OURS["transaction_check_max"]
    assert [key for key, _, _ in ours["listed"]] == ["key-never"]
    assert ours["by"] == ["heir"]
