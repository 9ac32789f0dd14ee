"""What waits inside a live broker, and its changes: a timer is recalled, a transaction is asked about again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqtrail.answers import ClusterAnswers, Sources
from mqtrail.answers.access import Grant, KnownClusters, NotAllowed, Person, SeenSources
from mqtrail.answers.changes import (
    Actor,
    AuditLog,
    ClusterChanges,
    Fate,
    InvalidChange,
    NothingToChange,
    RecallMessage,
    ResumeChecks,
    SetConsumeMode,
)
from mqtrail.broker import BrokerConfig
from mqtrail.client import (
    ConsumeFromWhere,
    ConsumerConfig,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    SyncTransaction,
    SyncTransactionProducer,
    TransactionState,
)
from mqtrail.testing import embedded
from mqtrail.wire import TRANS_CHECK_MAX_TIME_TOPIC, Message, TopicConfig
from tests.waiting import wait_until

ANN = Actor("ann", "127.0.0.1", "api")
HOUR_MS = 3_600_000
POP = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=50, client_rebalance=False, close_wait_ms=200
)


@dataclass(frozen=True)
class Waiting:
    """A broker: one message at a delay level, two timers, an open transaction and a given-up one; its messages' ids."""

    namesrv: str
    ids: dict[str, str]


def transact(namesrv: str) -> dict[str, str]:
    """Begin transactions; one is committed, one rolled back, and two have no end: brokers give up the second one."""
    ids = {}
    with SyncTransactionProducer("payers", namesrv, check=lambda _: TransactionState.UNKNOWN) as producer:
        for name, end, seconds in (
            ("open", SyncTransaction.unknown, "86400"),
            ("committed", SyncTransaction.commit, "86400"),
            ("rolled back", SyncTransaction.rollback, "86400"),
            ("given up", SyncTransaction.unknown, "0"),
        ):
            properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": seconds}
            message = Message("orders", b"x", keys=[name.replace(" ", "-")], properties=properties)
            transaction = producer.begin(message)
            end(transaction)
            ids[name] = transaction.sent.msg_id
    return ids


@pytest.fixture(scope="module")
def waiting() -> Iterator[Waiting]:
    config = BrokerConfig(
        transaction_timeout_ms=1, transaction_check_ms=50, transaction_check_max=1, transaction_op_delay_ms=0
    )
    with embedded(broker=config) as broker:
        namesrv = broker.namesrv_address
        with SyncAdmin(namesrv) as admin, SyncProducer("shop", namesrv) as producer:
            assert admin.create_topics([TopicConfig("orders", 1, 1), TopicConfig("jobs", 1, 1)]).complete
            wait_until(lambda: {"orders", "jobs"} <= set(admin.topics()))
            ids = transact(namesrv)
            ids["level"] = producer.send(Message("orders", b"x", keys=["later"], delay_level=18)).msg_id
            for name in ("timer", "recalled"):
                ids[name] = producer.send(Message("orders", b"x", keys=[name], delay_ms=HOUR_MS // 2)).msg_id
            wait_until(lambda: TRANS_CHECK_MAX_TIME_TOPIC in admin.topics())
            wait_until(lambda: list(admin.messages(TRANS_CHECK_MAX_TIME_TOPIC)))
            assert admin.set_broker_config({"transactionCheckMax": "1000"}).complete
        yield Waiting(namesrv, ids)


@pytest.fixture
def answers(waiting: Waiting) -> Iterator[ClusterAnswers]:
    one = ClusterAnswers(waiting.namesrv)
    yield one
    one.close()


@pytest.fixture
def changes(waiting: Waiting, tmp_path: Path) -> Iterator[ClusterChanges]:
    one = ClusterChanges(waiting.namesrv, AuditLog(tmp_path / "audit.jsonl"))
    yield one
    one.close()


def test_a_timer_is_recalled(waiting: Waiting, answers: ClusterAnswers, changes: ClusterChanges) -> None:
    """It is listed with its time; after the recall it says so, and cannot be recalled again."""
    answer = answers.delayed()
    assert (answer.waiting_count, answer.is_lower_bound, answer.read_count) == (3, False, 3)
    assert [(one.broker, one.level, one.delay_ms, one.message_count) for one in answer.levels] == [
        ("broker-a", 18, 2 * HOUR_MS, 1)
    ]
    assert [(one.topic, one.message_count) for one in answer.timers] == [("orders", 2)]
    assert [(one.within_ms, one.message_count) for one in answer.due if one.message_count] == [
        (HOUR_MS, 2),
        (12 * HOUR_MS, 1),
    ]
    found = {one.msg_id: one for one in answer.messages}
    timer, level = found[waiting.ids["recalled"]], found[waiting.ids["level"]]
    assert (timer.topic, timer.keys, timer.level, level.level) == ("orders", "recalled", None, 18)
    assert abs(timer.due_ms - timer.stored_ms - HOUR_MS // 2) <= 1_000
    change = RecallMessage(topic="orders", broker="broker-a", msg_id=timer.msg_id, due_ms=timer.due_ms)
    plan = changes.plan(change)
    assert (plan.steps[0].after, plan.warnings) == ("not delivered", ())
    assert [one.fate for one in changes.perform(change, ANN, basis=plan.basis).outcomes] == [Fate.DONE]
    found = {one.msg_id: one for one in answers.delayed().messages}
    assert found[timer.msg_id].is_recalled
    assert not found[waiting.ids["timer"]].is_recalled
    with pytest.raises(NothingToChange, match="recalled already"):
        changes.plan(change)
    with pytest.raises(InvalidChange, match="waits at a delay level"):
        changes.plan(RecallMessage(topic="orders", broker="broker-a", msg_id=level.msg_id, due_ms=level.due_ms))
    unknown = changes.plan(RecallMessage(topic="orders", broker="broker-a", msg_id="AC11", due_ms=timer.due_ms))
    assert "found no such message" in unknown.warnings[0]


@pytest.mark.parametrize(
    ("field", "value"), [("topic", "%RETRY%CG"), ("topic", "SCHEDULE_TOPIC_XXXX"), ("msg_id", "a b"), ("msg_id", "")]
)
def test_what_cannot_be_recalled(changes: ClusterChanges, field: str, value: str) -> None:
    """A copy for a retry would never be delivered again."""
    fields: dict[str, Any] = {"topic": "orders", "broker": "broker-a", "msg_id": "AC11", "due_ms": 1, field: value}
    with pytest.raises(InvalidChange):
        changes.plan(RecallMessage(**fields))


def test_a_given_up_transaction_is_asked_about_again(
    waiting: Waiting, answers: ClusterAnswers, changes: ClusterChanges
) -> None:
    """What ended is not listed. What was put back waits with no checks counted, and cannot be put back twice."""
    answer = answers.transactions()
    (row,) = answer.brokers
    assert (row.open_count, row.given_up_count, row.check_count_max, row.why) == (1, 1, 1_000, "")
    (opened,), (given_up,) = answer.open, answer.given_up
    assert (opened.msg_id, opened.topic, opened.producer_group, opened.keys) == (
        waiting.ids["open"],
        "orders",
        "payers",
        "open",
    )
    assert (opened.check_count, opened.checks_left, opened.is_waiting) == (0, 1_000, True)
    assert row.oldest_ms == opened.born_ms
    assert (given_up.msg_id, given_up.checks_left, given_up.is_waiting) == (waiting.ids["given up"], 0, False)
    assert given_up.place.startswith(f"broker-a/{TRANS_CHECK_MAX_TIME_TOPIC}/0@")
    change = ResumeChecks(places=(given_up.place,))
    plan = changes.plan(change)
    assert plan.command[:3] == ("mqtrail", "transaction", "resume")
    assert "group 'payers' has no producer online" in plan.warnings[0]
    assert [one.fate for one in changes.perform(change, ANN, basis=plan.basis).outcomes] == [Fate.DONE]
    answer = answers.transactions()
    assert {one.msg_id for one in answer.open} == {waiting.ids["open"], waiting.ids["given up"]}
    assert [one.is_waiting for one in answer.given_up] == [True]
    with pytest.raises(NothingToChange, match="put back already"):
        changes.plan(change)
    for places in ((), ("broker-a/orders/0@0",), ("x",)):
        with pytest.raises(InvalidChange):
            changes.plan(ResumeChecks(places=places))


def test_a_group_pops(waiting: Waiting, answers: ClusterAnswers, changes: ClusterChanges) -> None:
    """A popped message is listed until it is acknowledged."""
    change = SetConsumeMode(group="workers", topic="jobs", mode="POP")
    assert changes.plan(change).command == (
        *("mqtrail", "group", "mode", "workers", "jobs", "POP"),
        *("--namesrv", waiting.namesrv),
    )
    assert [one.fate for one in changes.perform(change, ANN).outcomes] == [Fate.DONE]
    assert answers.pops().messages == ()
    with SyncProducer("shop", waiting.namesrv) as producer:
        producer.send(Message("jobs", b"x"))
    with SyncConsumer("workers", waiting.namesrv, {"jobs": "*"}, config=POP) as consumer:
        delivery = consumer.receive(60_000)
        assert delivery is not None
        answer = answers.pops()
        (group,), (message,), (broker,) = answer.groups, answer.messages, answer.brokers
        assert (group.group, group.topic, group.message_count) == ("workers", "jobs", 1)
        assert (message.place, message.group) == ("broker-a/jobs/0@0", "workers")
        assert message.popped_ms < message.visible_ms
        assert (broker.handed_out_count, broker.behind_count) == (1, 0)
        delivery.ack()
        wait_until(lambda: not answers.pops().messages)
    with pytest.raises(InvalidChange):
        changes.plan(SetConsumeMode(group="workers", topic="jobs", mode="POP", share_count=-1))


def _same(person: Person) -> Person:
    return person


def test_roles(waiting: Waiting) -> None:
    """Lists need a role on all topics; a recall the topic's operator, half messages one of all, the mode an admin."""
    timer = RecallMessage(topic="orders", broker="broker-a", msg_id="AC11", due_ms=1)
    resume, mode = ResumeChecks(places=("x",)), SetConsumeMode(group="workers", topic="jobs", mode="PULL")
    with closing(Sources.open(None, waiting.namesrv)) as sources:
        for role, may_list, changes in (
            ("viewer/orders", False, ()),
            ("viewer", True, ()),
            ("operator/orders", False, (timer,)),
            ("operator/jobs", False, ()),
            ("operator", True, (timer, resume)),
            ("admin", True, (timer, resume, mode)),
        ):
            person = Person("ann", (Grant.parse(role),))
            seen = SeenSources(sources, KnownClusters(sources), partial(_same, person))
            cluster = seen.of_cluster()
            for ask in (cluster.delayed, cluster.transactions, cluster.pops):
                if may_list:
                    ask()
                else:
                    with pytest.raises(NotAllowed):
                        ask()
            for change in (timer, resume, mode):
                if change in changes:
                    seen.check_change(change)
                else:
                    with pytest.raises(NotAllowed):
                        seen.check_change(change)
