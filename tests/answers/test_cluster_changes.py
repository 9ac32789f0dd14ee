"""Changes of topics, groups and broker settings on two live brokers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtrail.answers import ClusterAnswers
from mqtrail.answers.changes import (
    Actor,
    AuditLog,
    Change,
    ChangedMeanwhile,
    CloneOffsets,
    ClusterChanges,
    DeleteGroup,
    DeleteTopic,
    Fate,
    InvalidChange,
    NothingToChange,
    SetBrokerSettings,
    SetGroup,
    SetOffset,
    SetTopic,
)
from mqtrail.answers.cluster import UnknownMember
from mqtrail.answers.masters import UnknownBroker
from mqtrail.client import SyncAdmin, SyncConsumer, SyncProducer
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import InvalidParameter, Message, SubscriptionGroupConfig, TopicConfig
from tests.waiting import wait_until

ANN = Actor("ann", "127.0.0.1", "page")
BROKERS = ["broker-a", "broker-b"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Embedded]:
    with embedded(brokers=2) as running:
        yield running


@pytest.fixture
def admin(cluster: Embedded) -> Iterator[SyncAdmin]:
    with SyncAdmin(cluster.namesrv_address) as one:
        yield one


@pytest.fixture
def changes(cluster: Embedded, tmp_path: Path) -> Iterator[ClusterChanges]:
    one = ClusterChanges(cluster.namesrv_address, AuditLog(tmp_path / "audit.jsonl"))
    yield one
    one.close()


def test_a_topic_is_created_changed_and_deleted(changes: ClusterChanges, cluster: Embedded, admin: SyncAdmin) -> None:
    """Each broker's configuration before and after; what the change does not name stays as it is."""
    create = SetTopic(topic="parcels", read_queue_count=2, write_queue_count=2)
    assert [(one.target, one.before, one.after) for one in changes.plan(create).steps] == [
        (name, None, "read 2, write 2, rw") for name in BROKERS
    ]
    done = changes.perform(create, ANN)
    assert [(one.target, one.fate, one.detail) for one in done.outcomes] == [
        (name, Fate.DONE, "read 2, write 2, rw") for name in BROKERS
    ]
    wait_until(lambda: "parcels" in admin.topics())
    admin.create_topic(TopicConfig("parcels", 2, 2, order=True), broker="broker-a")
    with SyncProducer("PG", cluster.namesrv_address) as producer:
        for queue in admin.queues("parcels"):
            producer.send(Message("parcels", b"x"), queue=queue)
    shrink = SetTopic(topic="parcels", read_queue_count=1, write_queue_count=2, permission="r", broker="broker-a")
    (step,) = changes.plan(shrink).steps
    assert (step.before, step.after) == ("read 2, write 2, rw", "read 1, write 2, r")
    assert step.counts == {"unreadable": 1}
    changes.perform(shrink, ANN)
    known = admin.topic_configs(admin.masters()["broker-a"]).topic_config_table["parcels"]
    assert (known.read_queue_nums, known.write_queue_nums, known.perm, known.order) == (1, 2, 4, True)
    admin.create_group(SubscriptionGroupConfig("reader"))
    admin.set_offset("reader", admin.queues("parcels")[0], 0)
    delete = DeleteTopic(topic="parcels")
    plan = changes.plan(delete)
    assert [(one.target, one.counts) for one in plan.steps] == [(name, {"deleted": 2}) for name in BROKERS]
    assert plan.warnings == ("group reader consumes it",)
    assert {one.fate for one in changes.perform(delete, ANN, basis=plan.basis).outcomes} == {Fate.DONE}
    with pytest.raises(NothingToChange, match="no master has the topic 'parcels'"):
        changes.plan(delete)
    assert [one.action for one in changes.audited().changes] == ["delete-topic", "set-topic", "set-topic"]


def test_a_group_is_created_changed_and_deleted(changes: ClusterChanges, cluster: Embedded, admin: SyncAdmin) -> None:
    """What the change does not name stays as it is; live members are named before they stop."""
    create = SetGroup(group="shippers", retry_count_max=3)
    assert [(one.target, one.before, one.after) for one in changes.plan(create).steps] == [
        (name, None, "3 retries, may consume") for name in BROKERS
    ]
    assert {one.fate for one in changes.perform(create, ANN).outcomes} == {Fate.DONE}
    admin.create_group(SubscriptionGroupConfig("shippers", retry_max_times=3, consume_message_orderly=True))
    stop = SetGroup(group="shippers", retry_count_max=5, is_consume_enabled=False, broker="broker-a")
    admin.create_topic(TopicConfig("orders", 2, 2))
    with SyncConsumer("shippers", cluster.namesrv_address, {"orders": "*"}) as consumer:
        assert consumer.receive(timeout_ms=1) is None  # it is started
        wait_until(lambda: any("1 live members stop to receive" in one for one in changes.plan(stop).warnings))
    (outcome,) = changes.perform(stop, ANN).outcomes
    assert (outcome.fate, outcome.detail) == (Fate.DONE, "5 retries, may not consume")
    known = admin.groups(admin.masters()["broker-a"]).subscription_group_table["shippers"]
    assert (known.retry_max_times, known.consume_enable, known.consume_message_orderly) == (5, False, True)
    delete = DeleteGroup(group="shippers")
    plan = changes.plan(delete)
    assert [(one.before, one.after) for one in plan.steps] == [
        ("5 retries, may not consume", "-"),
        ("3 retries, may consume", "-"),
    ]
    assert {one.fate for one in changes.perform(delete, ANN, basis=plan.basis).outcomes} == {Fate.DONE}
    with pytest.raises(NothingToChange, match="no master has the group 'shippers'"):
        changes.plan(delete)


def test_offsets_are_copied_and_corrected(changes: ClusterChanges, cluster: Embedded, admin: SyncAdmin) -> None:
    """Each queue has its offset before and after, and its result; what lies outside of the queue is refused."""
    admin.create_topic(TopicConfig("copied", 1, 1))
    wait_until(lambda: len(admin.queues("copied")) == 2)
    first, second = sorted(admin.queues("copied"))
    with SyncProducer("PG", cluster.namesrv_address) as producer:
        for number in range(3):
            producer.send(Message("copied", b"%d" % number), queue=first)
    for group in ("from", "to"):
        admin.create_group(SubscriptionGroupConfig(group))
    with pytest.raises(NothingToChange, match="group 'from' has no offset on topic 'copied'"):
        changes.plan(CloneOffsets(source="from", group="to", topic="copied"))
    admin.set_offset("from", first, 2)
    admin.set_offset("to", first, 1)
    clone = CloneOffsets(source="from", group="to", topic="copied")
    plan = changes.plan(clone)
    assert [(one.target, one.before, one.after, one.counts) for one in plan.steps] == [
        ("broker-a/0", "1", "2", {"skipped": 1, "repeated": 0})
    ]
    assert plan.warnings == ("1 queues stay as they are: group 'from' has no offset there",)
    assert plan.command[:6] == ("mqtrail", "offset", "clone", "from", "to", "copied")
    done = changes.perform(clone, ANN, basis=plan.basis)
    assert [(one.target, one.fate, one.detail) for one in done.outcomes] == [("broker-a/0", Fate.DONE, "2")]
    assert (admin.consumer_offset("to", first), admin.consumer_offset("to", second)) == (2, None)

    back = SetOffset(group="to", topic="copied", broker="broker-a", queue_id=0, offset=0)
    (step,) = changes.plan(back).steps
    assert (step.before, step.after, step.counts) == ("2", "0", {"skipped": 0, "repeated": 2})
    (outcome,) = changes.perform(back, ANN).outcomes
    assert (outcome.target, outcome.fate, outcome.detail) == ("broker-a/0", Fate.DONE, "0")
    assert admin.consumer_offset("to", first) == 0
    (outcome,) = changes.perform(clone, ANN).outcomes  # a reset is not known to any member yet
    assert (outcome.fate, admin.consumer_offset("to", first)) == (Fate.DONE, 2)
    for wrong, expected in (
        (SetOffset(group="to", topic="copied", broker="broker-a", queue_id=0, offset=4), "expected 0 to 3"),
        (SetOffset(group="to", topic="copied", broker="broker-c", queue_id=0, offset=0), "expected one of topic"),
        (CloneOffsets(source="to", group="to", topic="copied"), "the group itself"),
    ):
        with pytest.raises(InvalidChange, match=expected):
            changes.perform(wrong, ANN)
    with SyncConsumer("to", cluster.namesrv_address, {"copied": "*"}) as consumer:
        wait_until(lambda: _offset(consumer) == 2)
        (outcome,) = changes.perform(back, ANN).outcomes
        assert outcome.fate == Fate.DONE
        wait_until(lambda: _offset(consumer) == 0)  # the live member begins there
        assert not any("live members" in one for one in changes.plan(clone).warnings)
        _client_reports(cluster, admin)
        for value in ("false", "true"):
            changes.perform(SetBrokerSettings(settings={"useServerSideResetOffset": value}), ANN)
            warned = any("1 live members overwrite" in one for one in changes.plan(clone).warnings)
            assert warned is (value == "false")


def _offset(consumer: SyncConsumer) -> int | None:
    """The queue offset of the next message; None: none came."""
    delivery = consumer.receive(timeout_ms=10)
    return None if delivery is None else delivery.message.queue_offset


def _client_reports(cluster: Embedded, admin: SyncAdmin) -> None:
    """A live member reports its queues and, when it is asked for them, the stacks of its threads."""
    answers = ClusterAnswers(cluster.namesrv_address)
    (name,) = {one.client_id for known in admin.group_connections("to").values() for one in known.connection_set}
    found = answers.client("to", name)
    assert (found.client_id, found.stack, found.stack_size) == (name, None, 0)
    assert found.subscriptions["copied"] == "*"
    with_stack = answers.client("to", name, has_stack=True)
    assert with_stack.stack is not None
    assert "receive" in with_stack.stack or "File" in with_stack.stack
    assert with_stack.stack_size >= len(with_stack.stack)
    with pytest.raises(UnknownMember, match="found no member 'gone' of group 'to' online"):
        answers.client("to", "gone")
    answers.close()


def test_a_setting_is_what_the_broker_reports_then(
    changes: ClusterChanges, cluster: Embedded, admin: SyncAdmin
) -> None:
    """The outcome is read back; a value that changed after it was shown is not overwritten."""
    address = admin.masters()["broker-a"]
    before = admin.broker_config(address)["fileReservedTime"]
    change = SetBrokerSettings(settings={"fileReservedTime": "48"}, broker="broker-a")
    plan = changes.plan(change)
    assert [(one.target, one.before, one.after) for one in plan.steps] == [("broker-a fileReservedTime", before, "48")]
    assert [(one.fate, one.detail) for one in changes.perform(change, ANN, basis=plan.basis).outcomes] == [
        (Fate.DONE, "reports 48")
    ]
    assert admin.broker_config(address)["fileReservedTime"] == "48"
    with pytest.raises(ChangedMeanwhile):
        changes.perform(change, ANN, basis=plan.basis)
    answers = ClusterAnswers(cluster.namesrv_address)
    assert answers.settings("broker-a").settings["fileReservedTime"] == "48"
    for unknown in ("127.0.0.1:1", ""):
        with pytest.raises(UnknownBroker, match="expected one of broker-a, broker-b"):
            answers.settings(unknown)
    answers.close()


def test_a_setting_that_a_broker_does_not_take(changes: ClusterChanges) -> None:
    """It is warned about, and the outcome is no success."""
    change = SetBrokerSettings(settings={"noSuchSetting": "1"})
    plan = changes.plan(change)
    assert [one.before for one in plan.steps] == [None, None]
    assert plan.warnings == tuple(
        f"broker {name} reports no setting noSuchSetting: it may ignore it" for name in BROKERS
    )
    assert {one.fate for one in changes.perform(change, ANN).outcomes} == {Fate.FAILED}


def test_only_registered_brokers_are_asked(changes: ClusterChanges, admin: SyncAdmin) -> None:
    """An address that the name servers do not know gets no connection; one that they know is its broker."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(0)
        elsewhere = f"127.0.0.1:{listening.getsockname()[1]}"
        for change in (SetTopic(topic="t", broker=elsewhere), SetBrokerSettings(settings={"a": "b"}, broker=elsewhere)):
            with pytest.raises(UnknownBroker):
                changes.perform(change, ANN)
        with pytest.raises(BlockingIOError):
            listening.accept()
    by_address = SetTopic(topic="t", broker=admin.masters()["broker-b"])
    assert [one.target for one in changes.plan(by_address).steps] == ["broker-b"]


@pytest.mark.parametrize(
    "change",
    [
        SetTopic(topic="%RETRY%CG"),
        SetTopic(topic="RMQ_SYS_TRACE_TOPIC"),
        SetTopic(topic="no/name"),
        SetTopic(topic="orders", read_queue_count=0),
        DeleteTopic(topic="SCHEDULE_TOPIC_XXXX"),
        SetGroup(group="TOOLS_CONSUMER"),
        SetGroup(group="no/name"),
        SetGroup(group="CG", retry_count_max=-1),
        DeleteGroup(group="DEFAULT_CONSUMER"),
        CloneOffsets(source="CG", group="TOOLS_CONSUMER", topic="orders"),
        CloneOffsets(source="no/name", group="CG", topic="orders"),
        SetOffset(group="CG", topic="no/name", broker="broker-a", queue_id=0, offset=0),
        SetBrokerSettings(settings={}),
        SetBrokerSettings(settings={"initAuthenticationUser": "x"}),
        SetBrokerSettings(settings={"metricsGrpcExporterHeader": "authorization:x"}),
        SetBrokerSettings(settings={"tlsServerKeyPassword": "x"}),
    ],
    ids=lambda change: str(change)[:60],
)
def test_what_is_refused(changes: ClusterChanges, change: Change) -> None:
    """RocketMQ's own topics, wrong names, nothing, and secrets: the audit log would show them."""
    with pytest.raises((InvalidChange, InvalidParameter)):
        changes.perform(change, ANN)
    assert changes.audited().changes == ()
