"""Changes on a live broker: what is shown is what is done, and the audit log has it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqtrail.answers import ClusterAnswers, GroupCopies, Sources
from mqtrail.answers.access import Grant, KnownClusters, Person, SeenSources
from mqtrail.answers.changes import (
    Actor,
    AuditFailed,
    AuditLog,
    ChangedMeanwhile,
    ClusterChanges,
    ConsumeDirectly,
    Fate,
    InvalidChange,
    NothingToChange,
    ResendDeadLetters,
    ResendEdited,
    ResendMessage,
    ResetOffsets,
)
from mqtrail.answers.changes.model import fate_of
from mqtrail.answers.http import API_PREFIX, Changing, make_api
from mqtrail.client import ConsumeFromWhere, ConsumerConfig, SyncAdmin, SyncConsumer, SyncDelivery, SyncProducer
from mqtrail.gateway import Problem
from mqtrail.net import ConnectError, RequestTimeout
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, MQError, SubscriptionGroupConfig, TopicConfig, dlq_topic, retry_topic
from tests.answers.serving import serving
from tests.waiting import wait_until

ANN = Actor("ann", "127.0.0.1", "api")
QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=50, offset_persist_ms=20, close_wait_ms=200
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Embedded]:
    """A broker with ten messages in one queue; two dead letters of DG."""
    with embedded() as running:
        namesrv = running.namesrv_address
        with SyncAdmin(namesrv) as admin, SyncProducer("PG", namesrv) as producer:
            assert admin.create_topics([TopicConfig("orders", 1, 1), TopicConfig("letters", 1, 1)]).complete
            wait_until(lambda: {"orders", "letters"} <= set(admin.topics()))
            admin.create_group(SubscriptionGroupConfig("OFF"))
            for number in range(10):
                producer.send(Message("orders", b"%d" % number, keys=f"k{number}"))
            with SyncConsumer("DG", namesrv, {"letters": "*"}, config=QUICK) as consumer:
                for number in range(2):
                    producer.send(Message("letters", b"%d" % number))
                    delivery = consumer.receive(20_000)
                    assert delivery is not None
                    delivery.retry(-1)
                wait_until(lambda: dlq_topic("DG") in admin.topics())
                wait_until(lambda: len(list(admin.messages(dlq_topic("DG")))) == 2)
                wait_until(lambda: retry_topic("DG") in admin.topics())
        yield running


@pytest.fixture
def admin(cluster: Embedded) -> Iterator[SyncAdmin]:
    with SyncAdmin(cluster.namesrv_address) as one:
        yield one


@pytest.fixture
def group(admin: SyncAdmin, request: pytest.FixtureRequest) -> str:
    """A group of this test's own that consumed four orders: after a reset a broker ignores commits."""
    name = f"CG-{request.node.name}"
    admin.create_group(SubscriptionGroupConfig(name))
    admin.set_offset(name, admin.queues("orders")[0], 4)
    return name


def offset(admin: SyncAdmin, group: str) -> int | None:
    """Return the group's offset of the only queue."""
    return admin.consumer_offset(group, admin.queues("orders")[0])


@pytest.fixture
def changes(cluster: Embedded, tmp_path: Path) -> Iterator[ClusterChanges]:
    one = ClusterChanges(cluster.namesrv_address, AuditLog(tmp_path / "audit.jsonl"))
    yield one
    one.close()


def test_a_reset_skips_and_repeats_what_its_plan_says(changes: ClusterChanges, admin: SyncAdmin, group: str) -> None:
    """Backward it repeats, forward it skips; the plan alone moves nothing."""
    for at_ms, before, after, skipped, repeated in ((0, 4, 0, 0, 4), (-1, 0, 10, 10, 0)):
        change = ResetOffsets(group=group, topic="orders", at_ms=at_ms)
        plan = changes.plan(change)
        assert offset(admin, group) == before
        (step,) = plan.steps
        assert (step.target, step.before, step.after) == ("broker-a/0", str(before), str(after))
        assert step.counts == {"skipped": skipped, "repeated": repeated}
        assert (plan.total("skipped"), plan.total("repeated")) == (skipped, repeated)
        assert plan.requests[0] == "INVOKE_BROKER_TO_RESET_OFFSET (222)"
        result = changes.perform(change, ANN, basis=plan.basis)
        assert [(one.target, one.fate) for one in result.outcomes] == [("broker-a", Fate.DONE)]
        assert offset(admin, group) == after
    recorded = changes.audited()
    assert [one.parameters["at_ms"] for one in recorded.changes] == [-1, 0]
    assert [one.steps[0]["before"] for one in recorded.changes] == ["0", "4"]
    assert all(one.ended_at and one.who == "ann" for one in recorded.changes)
    assert recorded.problems == ()


def test_a_reset_that_only_goes_backward(changes: ClusterChanges, admin: SyncAdmin, group: str) -> None:
    """A queue that is before the time stays where it is."""
    change = ResetOffsets(group=group, topic="orders", at_ms=-1, is_backward_only=True)
    assert [(one.before, one.after) for one in changes.plan(change).steps] == [("4", "4")]
    changes.perform(change, ANN)
    assert offset(admin, group) == 4


def test_without_an_offset_the_counts_are_unknown(changes: ClusterChanges) -> None:
    """Where a group begins is not known, so neither is what it skips."""
    plan = changes.plan(ResetOffsets(group="OFF", topic="orders", at_ms=-1))
    assert [one.before for one in plan.steps] == [None]
    assert plan.total("skipped") is None


def test_dead_letters_are_sent_again_each_with_its_result(changes: ClusterChanges, admin: SyncAdmin) -> None:
    """Each id once, although a letter that died again has two copies; nothing leaves the dead-letter queue."""
    letters = list(admin.messages(dlq_topic("DG")))
    first = letters[0].msg_id
    change = ResendDeadLetters(group="DG", msg_ids=(first, "gone"))
    plan = changes.plan(change)
    assert [(one.target, one.after) for one in plan.steps] == [(first, retry_topic("DG"))]
    assert plan.scope.omissions == ("gone: group 'DG' has no such dead letter",)
    seen: list[str] = []
    result = changes.perform(change, ANN, seen=lambda one: seen.append(one.target))
    assert seen == [first]
    (outcome,) = result.outcomes
    assert outcome.fate is Fate.DONE
    assert outcome.place.startswith(f"broker-a/{retry_topic('DG')}/0@")
    assert len(list(admin.messages(dlq_topic("DG")))) == len(letters)
    assert [one["place"] for one in changes.audited().changes[0].outcomes] == [outcome.place]
    everything = changes.perform(ResendDeadLetters(group="DG"), ANN)
    assert [one.target for one in everything.outcomes] == [one.msg_id for one in letters]
    with pytest.raises(NothingToChange, match="found no dead letter"):
        changes.perform(ResendDeadLetters(group="DG", msg_ids=("gone",)), ANN)
    with pytest.raises(InvalidChange, match="expected 1 to 1000"):
        changes.plan(ResendDeadLetters(group="DG", count_max=1_001))


def test_a_stored_message_is_sent_to_one_group(changes: ClusterChanges, cluster: Embedded, admin: SyncAdmin) -> None:
    """The copy has the id of the message, and only this group gets it."""
    (queue,) = admin.queues("orders")
    original = admin.message_at_offset(queue, 3)
    change = ResendMessage(place="broker-a/orders/0@3", group="DG")
    result = changes.perform(change, ANN, basis=changes.plan(change).basis)
    place = result.outcomes[0].place
    assert place.startswith(f"broker-a/{retry_topic('DG')}/0@")
    copies = [one for one in admin.messages(retry_topic("DG")) if one.msg_id == original.msg_id]
    assert [(one.body, one.properties["RETRY_TOPIC"]) for one in copies] == [(b"3", "orders")]
    for wrong in ("broker-a/orders", "broker-a/orders/x@y", ""):
        with pytest.raises(InvalidChange, match="expected BROKER/TOPIC/QUEUE@OFFSET"):
            changes.plan(ResendMessage(place=wrong, group="DG"))
    with pytest.raises(MQError, match="no-such-group"):
        changes.plan(ResendMessage(place="broker-a/orders/0@3", group="no-such-group"))


def test_the_lag_of_a_group_counts_its_copies(cluster: Embedded, admin: SyncAdmin) -> None:
    """Those of its retry and dead-letter topics; a group without these topics has none; of all groups none is known."""
    asked = ClusterAnswers(cluster.namesrv_address)
    found = asked.lag("DG").copies
    assert found is not None
    counted = [len(list(admin.messages(topic))) for topic in (retry_topic("DG"), dlq_topic("DG"))]
    assert [found.retry_count, found.dead_letter_count] == counted
    assert found.dead_letter_count
    assert asked.lag("no-such-group").copies == GroupCopies(0, 0)
    assert asked.lag().copies is None
    asked.close()


def test_an_edited_copy_is_sent_to_one_group(changes: ClusterChanges, admin: SyncAdmin) -> None:
    """It has the id of the message, another body and other properties; the audit log has no body."""
    (queue,) = admin.queues("orders")
    original = admin.message_at_offset(queue, 3)
    edited = {"KEYS": "mended", "mended-by": "ann", "none": ""}
    change = ResendEdited(place="broker-a/orders/0@3", group="DG", body="mended é", properties=edited)
    plan = changes.plan(change)
    assert [(one.target, one.after) for one in plan.steps] == [
        (original.msg_id, retry_topic("DG")),
        ("body", f"9 bytes, SHA-256 {sha256('mended é'.encode()).hexdigest()[:16]}"),
        ("KEYS", "mended"),
        ("mended-by", "ann"),
    ]
    result = changes.perform(change, ANN, basis=plan.basis)
    assert [one.fate for one in result.outcomes] == [Fate.DONE]
    copies = [one for one in admin.messages(retry_topic("DG")) if one.properties.get("KEYS") == "mended"]
    assert [(one.msg_id, one.body.decode(), one.properties["mended-by"]) for one in copies] == [
        (original.msg_id, "mended é", "ann")
    ]
    assert admin.message_at_offset(queue, 3).body == original.body == b"3"
    assert "mended é" not in changes.audit_log.path.read_text("utf-8")
    assert changes.audited().changes[0].parameters["properties"] == edited


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        ({"body": "3"}, "found the body and the properties of the stored message"),
        ({"properties": {"gone": ""}}, "found the body and the properties of the stored message"),
        ({"properties": {"RETRY_TOPIC": "parcels"}}, "found 'RETRY_TOPIC', expected KEYS, TAGS"),
        ({"properties": {"UNIQ_KEY": "x"}}, "found 'UNIQ_KEY', expected KEYS, TAGS"),
        ({"properties": {"a\x01b": "x"}}, "expected KEYS, TAGS"),
        ({"properties": {"a": "x\x02y"}}, "expected visible characters"),
        ({"properties": {f"p{number}": "x" for number in range(101)}}, "expected at most 100"),
        ({"body": "\ud800"}, "expected Unicode"),
    ],
)
def test_edits_that_are_refused(changes: ClusterChanges, edited: dict[str, Any], expected: str) -> None:
    """Before anything is sent: nothing differs, or a property is one of RocketMQ's own or breaks the message."""
    with pytest.raises(InvalidChange, match=expected):
        changes.plan(ResendEdited(place="broker-a/orders/0@3", group="DG", **edited))


async def test_a_message_is_sent_again_where_its_operator_may(changes: ClusterChanges, cluster: Embedded) -> None:
    """The topic that a message was first sent to is one of its properties: a role on the topic where it is stored is
    not enough."""
    changing = Changing(changes)
    sources = Sources.open(None, cluster.namesrv_address)
    place = f"broker-a/{dlq_topic('DG')}/0@0"
    to_topics = (
        ResendMessage(place=place, group="DG", is_to_topic=True),
        ResendEdited(place=place, group="DG", is_to_topic=True, body="x"),
    )
    stored, origin = Grant.parse(f"operator/{dlq_topic('DG')}"), Grant.parse("operator/letters")
    try:
        for grants, allowed in (((stored,), False), ((stored, origin), True), ((origin,), False)):
            seen = SeenSources(sources, KnownClusters(sources), partial(Person, "ann", grants))
            for to_topic in to_topics:
                if allowed:
                    assert (await changing.plan(to_topic, seen)).steps[0].after == "letters"
                    continue
                for act in (changing.plan(to_topic, seen), changing.perform(to_topic, seen, ANN, "", [])):
                    with pytest.raises(Problem, match="right to operate on topic"):
                        await act
        seen = SeenSources(sources, KnownClusters(sources), partial(Person, "ann", (stored,)))
        assert (await changing.plan(ResendMessage(place=place, group="DG"), seen)).steps
        assert not changes.audited().changes
    finally:
        changing.close()
        sources.close()


def test_one_member_processes_a_message(changes: ClusterChanges, cluster: Embedded, admin: SyncAdmin) -> None:
    """Its result is the outcome; a member that is not online is refused before anything is asked."""
    handled: list[bytes] = []

    def handle(delivery: SyncDelivery) -> None:
        handled.append(delivery.body)
        if delivery.body == b"6":
            raise ValueError("card declined")

    with SyncConsumer("HG", cluster.namesrv_address, {"letters": "*"}) as consumer:
        threading.Thread(target=consumer.run, args=(handle,), daemon=True).start()
        wait_until(lambda: any(one.connection_set for one in admin.group_connections("HG").values()))
        (member,) = (one.client_id for known in admin.group_connections("HG").values() for one in known.connection_set)
        change = ConsumeDirectly(place="broker-a/orders/0@5", group="HG", client_id=member)
        assert changes.plan(change).steps[0].target == member
        assert [one.fate for one in changes.perform(change, ANN).outcomes] == [Fate.DONE]
        assert b"5" in handled
        failing = ConsumeDirectly(place="broker-a/orders/0@6", group="HG", client_id=member)
        assert [one.fate for one in changes.perform(failing, ANN).outcomes] == [Fate.FAILED]
        with pytest.raises(NothingToChange, match=f"expected one of: {member}"):
            changes.plan(ConsumeDirectly(place="broker-a/orders/0@5", group="HG", client_id="nobody"))


def test_what_changed_after_it_was_shown_is_not_done(
    changes: ClusterChanges, cluster: Embedded, admin: SyncAdmin
) -> None:
    """The plan's basis binds what is done to what was seen; the audit log has no change then."""
    change = ResendDeadLetters(group="DG")
    basis = changes.plan(change).basis
    copies = len(list(admin.messages(retry_topic("DG"))))
    known = len(list(admin.messages(dlq_topic("DG"))))
    with (
        SyncProducer("PG", cluster.namesrv_address) as producer,
        SyncConsumer("DG", cluster.namesrv_address, {"letters": "*"}, config=QUICK) as consumer,
    ):
        sent = producer.send(Message("letters", b"one more"))
        while (delivery := consumer.receive(20_000)) is not None and delivery.msg_id != sent.msg_id:
            delivery.ack()
        assert delivery is not None
        delivery.retry(-1)
        wait_until(lambda: len(list(admin.messages(dlq_topic("DG")))) > known)
    with pytest.raises(ChangedMeanwhile):
        changes.perform(change, ANN, basis=basis)
    assert len(list(admin.messages(retry_topic("DG")))) == copies
    assert changes.audited().changes == ()


def test_without_an_audit_log_nothing_is_done(changes: ClusterChanges, admin: SyncAdmin, group: str) -> None:
    """A log that cannot be written refuses the change before its first request."""
    changes.audit_log.path.unlink()
    changes.audit_log.path.mkdir()
    with pytest.raises(AuditFailed):
        changes.perform(ResetOffsets(group=group, topic="orders", at_ms=0), ANN)
    assert offset(admin, group) == 4


def test_a_request_without_an_answer_may_be_done() -> None:
    """UNKNOWN is not FAILED: the broker may have served it."""
    assert fate_of(RequestTimeout("no reply", sent=True)) is Fate.UNKNOWN
    assert fate_of(RequestTimeout("not sent", sent=False)) is Fate.FAILED
    assert fate_of(ConnectError("refused")) is Fate.FAILED
    assert fate_of(OSError("reset")) is Fate.UNKNOWN
    assert fate_of(MQError("refused by the broker")) is Fate.FAILED


@contextmanager
def api(namesrv: str, changes: ClusterChanges | None) -> Iterator[httpx.Client]:
    """A client of an API, with changes or without."""
    app = make_api(Sources.open(None, namesrv), changing=None if changes is None else Changing(changes))
    with serving(app) as url, httpx.Client(base_url=url + API_PREFIX, timeout=60) as client:
        yield client


def test_changes_by_http(changes: ClusterChanges, cluster: Embedded, admin: SyncAdmin, group: str) -> None:
    """Plan, then do what was shown; the audit log says by which door."""
    wanted = {"action": "reset-offsets", "group": group, "topic": "orders", "at_ms": 0}
    with api(cluster.namesrv_address, changes) as client:
        plan = client.post("/changes/plan", json=wanted).json()
        assert [one["counts"] for one in plan["steps"]] == [{"skipped": 0, "repeated": 4}]
        done = client.post("/changes", params={"basis": plan["basis"]}, json=wanted)
        assert done.json()["outcomes"] == [{"target": "broker-a", "fate": "DONE", "detail": "0: 0", "place": ""}]
        assert client.post("/changes", params={"basis": "x"}, json=wanted).status_code == 409
        (one,) = client.get("/audit").json()["changes"]
        assert (one["door"], one["address"], one["change_id"]) == ("api", "127.0.0.1", done.json()["change_id"])
        for wrong, status in (
            ({"action": "drop-everything"}, 422),
            ({"action": "reset-offsets"}, 422),
            ({"action": "reset-offsets", "group": group, "topic": "orders", "at_ms": -2}, 422),
            ({"action": "resend-dead-letters", "group": "none"}, 404),
            ({"action": "reset-offsets", "group": group, "topic": "no-such-topic", "at_ms": 0}, 502),
        ):
            answer = client.post("/changes", json=wrong)
            assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert offset(admin, group) == 0


def test_pages_of_other_sites_change_nothing(changes: ClusterChanges, cluster: Embedded) -> None:
    """A foreign origin is refused; so is what a form or a script can post without asking the server first."""
    wanted = json.dumps({"action": "reset-offsets", "group": "CG", "topic": "orders", "at_ms": 0})
    with api(cluster.namesrv_address, changes) as client:
        foreign = {"origin": "http://evil.example", "content-type": "application/json"}
        assert client.post("/changes", content=wanted, headers=foreign).status_code == 403
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            assert client.post("/changes", content=wanted, headers={"content-type": kind}).status_code == 422
    assert changes.audited().changes == ()


def test_an_api_without_changes_has_no_such_operation(cluster: Embedded) -> None:
    """They are off by default: neither served nor described."""
    with api(cluster.namesrv_address, None) as client:
        for method, path in (("POST", "/changes"), ("POST", "/changes/plan"), ("GET", "/audit")):
            assert client.request(method, path, json={}).status_code == 404
        described = httpx.get(str(client.base_url).removesuffix(f"{API_PREFIX}/") + "/openapi.json", timeout=60).json()
        assert {method for known in described["paths"].values() for method in known} == {"get"}
