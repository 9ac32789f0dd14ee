"""An export of one cluster, made in another: the plan, what is made, and that it can be repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import Admin, Message, MessageQueue, SyncAdmin
from mqtrail.mirror import ClusterImport, ImportStep, MirrorError, read_export
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import SubscriptionGroupConfig, TopicConfig
from tests.cli.conftest import commands

from .test_run import send

RATE = {"mqtrail.pull.rate.max": "100"}


@pytest.fixture(scope="module")
def east() -> Iterator[Embedded]:
    with embedded(brokers=2) as running:
        with SyncAdmin(running.namesrv_address) as admin:
            topic = TopicConfig("orders", 3, 3, attributes={"message.type": "FIFO"}, order=True)
            assert admin.create_topic(topic).complete
            assert admin.create_topic(TopicConfig("payments", 2, 2), broker="broker-b").complete
            assert admin.create_topic(TopicConfig("uneven", 2, 2), broker="broker-a").complete
            assert admin.create_topic(TopicConfig("uneven", 4, 4), broker="broker-b").complete
            assert admin.create_group(SubscriptionGroupConfig("billing", retry_max_times=3, attributes=RATE)).complete
            send(running, "orders", [(0, Message("orders", b"1")), (0, Message("orders", b"2"))])
            admin.set_offset("billing", MessageQueue("orders", "broker-a", 0), 2)
            assert admin.create_user("ann", "secret-of-ann", user_type="Super").complete
            assert admin.create_user("bob", "secret-of-bob").complete
            assert admin.update_user("bob", user_status="disable").complete
            allowed = admin.create_acl("User:bob", ["Topic:orders"], ["Pub", "Sub"], source_ips=["10.0.0.1"])
            assert allowed.complete
        yield running


@pytest.fixture
def export(east: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.chdir(tmp_path)
    done = commands(capsys)("cluster", "export", "--namesrv", east.namesrv_address)
    assert done.code == 0
    return done.out


def imported(
    target: Embedded, export: str, *, apply: bool = False, change: bool = False, **options: Any
) -> list[ImportStep]:
    async def run() -> list[ImportStep]:
        async with Admin(target.namesrv_address) as admin:
            one = ClusterImport(admin, read_export(export), **options)
            steps = await one.plan()
            return await one.apply(steps, may_change=change) if apply else steps

    return asyncio.run(run())


def texts(steps: Sequence[ImportStep]) -> list[str]:
    return [f"{one.action} {one.kind} {one.name} {one.broker}".rstrip() for one in steps]


def test_as_many_brokers(export: str) -> None:
    """Everything arrives; then all is equal. An export has no passwords."""
    assert "secret-of" not in export
    with embedded(brokers=2) as west:
        planned = imported(west, export, passwords={"bob": "new"})
        assert texts(planned) == [
            "make topic orders broker-a",
            "make topic orders broker-b",
            "make topic payments broker-b",
            "make topic uneven broker-a",
            "make topic uneven broker-b",
            "make group billing broker-a",
            "make group billing broker-b",
            "conflict user ann broker-a",
            "conflict user ann broker-b",
            "make user bob broker-a",
            "make user bob broker-b",
            "make policy User:bob Topic:orders broker-a",
            "make policy User:bob Topic:orders broker-b",
        ]
        with SyncAdmin(west.namesrv_address) as admin:
            assert "orders" not in admin.topics(), "a plan changes nothing"
            done = imported(west, export, passwords={"bob": "new"}, apply=True)
            assert [one.error for one in done] == [""] * 13
            assert admin.create_user("ann", "new", user_type="Super").complete
            assert {one.action for one in imported(west, export)} == {"equal"}
            (orders, _) = admin.topic_config("orders").values()
            assert (orders.read_queue_nums, orders.order, orders.attributes) == (3, True, {"message.type": "FIFO"})
            (group, _) = admin.group_config("billing").values()
            assert group is not None
            assert (group.retry_max_times, group.attributes) == (3, RATE)
            (bob, _) = admin.user("bob").values()
            assert bob is not None
            assert bob.user_status == "disable"


def test_differences(export: str) -> None:
    """They are changed only if that is wanted; queues never become fewer."""
    with embedded(brokers=2) as west, SyncAdmin(west.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig("orders", 2, 2)).complete
        assert admin.create_topic(TopicConfig("payments", 4, 4)).complete
        done = {one.name: one for one in imported(west, export, apply=True)}
        assert (done["orders"].action, done["orders"].is_done) == ("change", False)
        assert "readQueueNums 2 -> 3" in done["orders"].detail
        assert done["payments"].action == "conflict"
        assert "fewer queues would hide" in done["payments"].detail
        again = {one.name: one for one in imported(west, export, apply=True, change=True)}
        assert (again["orders"].action, again["orders"].is_done) == ("change", True)
        assert {one.name: one for one in imported(west, export)}["orders"].action == "equal"


def test_fewer_brokers(export: str) -> None:
    """What is the same on all brokers goes to each one; what differs is a conflict."""
    with embedded() as west:
        steps = texts(imported(west, export, with_offsets=True))
    assert "make topic orders broker-a" in steps
    assert "make topic payments broker-a" in steps
    assert "conflict topic uneven" in steps
    assert "conflict offset billing orders/0" in steps


def test_offsets_as_they_are(export: str) -> None:
    """Only into queues that have so many messages."""
    with embedded(brokers=2) as west, SyncAdmin(west.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig("orders", 3, 3)).complete
        send(west, "orders", [(0, Message("orders", b"1"))])
        (step,) = [one for one in imported(west, export, with_offsets=True) if one.kind == "offset"]
        assert (step.action, "found the end 1 of the queue, expected 2" in step.detail) == ("conflict", True)
        send(west, "orders", [(0, Message("orders", b"2"))])
        (step,) = [one for one in imported(west, export, with_offsets=True, apply=True) if one.kind == "offset"]
        assert (step.action, step.detail, step.is_done) == ("make", "none -> 2", True)
        assert admin.consumer_offset("billing", MessageQueue("orders", "broker-a", 0)) == 2
        (step,) = [one for one in imported(west, export, with_offsets=True) if one.kind == "offset"]
        assert step.action == "equal"


def exported(**brokers: Any) -> str:
    """Return an export of brokers that have only what is given, and of values."""
    values = brokers.pop("key_values", {})
    empty: dict[str, Any] = {"topics": [], "groups": [], "settings": {}}
    return json.dumps(
        {"version": 1, "brokers": {name: empty | one for name, one in brokers.items()}, "key_values": values}
    )


def user(name: str, kind: str = "Normal") -> dict[str, str]:
    return {"username": name, "userType": kind, "userStatus": "enable"}


def policy(*actions: str) -> dict[str, Any]:
    entry = {"resource": "Topic:orders", "actions": list(actions), "decision": "Allow"}
    return {"subject": "User:ann", "policies": [{"policyType": "Custom", "entries": [entry]}]}


def test_each_broker_has_its_own_access_control() -> None:
    """What one broker of the source has goes to its counterpart; what another one has is not compared with it."""
    export = exported(
        east_1={"users": [user("ann"), user("eve")], "policies": [policy("Pub")]},
        east_2={"users": [user("ann", "Super")], "policies": [policy("Sub")]},
    )
    passwords = {"ann": "a", "eve": "e"}
    with embedded(brokers=2) as west, SyncAdmin(west.namesrv_address) as admin:
        assert admin.create_user("ann", "a", user_type="Super", broker="broker-b").complete
        expected = [
            "make user ann broker-a",
            "equal user ann broker-b",
            "make user eve broker-a",
            "make policy User:ann Topic:orders broker-a",
            "make policy User:ann Topic:orders broker-b",
        ]
        assert texts(imported(west, export, passwords=passwords)) == expected
        done = imported(west, export, passwords=passwords, apply=True)
        assert [one.error for one in done] == [""] * 5
        assert {one.action for one in imported(west, export)} == {"equal"}
        assert [one and one.user_type for one in admin.user("ann").values()] == ["Normal", "Super"]
        assert [one and one.username for one in admin.user("eve").values()] == ["eve", None]
        found = [one and one.policies[0].entries[0].actions for one in admin.acl("User:ann").values()]
        assert found == [("Pub",), ("Sub",)]
    with embedded() as west:
        (conflict, eve, other) = imported(west, export, passwords=passwords)
    assert (conflict.action, conflict.name, eve.action, eve.broker) == ("conflict", "ann", "make", "broker-a")
    assert "it differs between east_1, east_2, and the target has 1 brokers, not 2" in other.detail


ACCOUNT = {"accessKey": "old-account", "admin": False, "defaultGroupPerm": "SUB", "topicPerms": ["orders=PUB|SUB"]}


def test_accounts_of_acl_files(tmp_path: Path) -> None:
    """Accounts and white addresses of 4.9 arrive with a secret key of the operator's; without one it is a conflict."""
    accounts = {"globalWhiteAddrs": ["10.0.0.*"], "plainAccessConfigs": [ACCOUNT]}
    export = exported(east={"accounts": accounts})
    keys = {"old-account": "a-new-secret"}
    with embedded(tmp_path) as west, SyncAdmin(west.namesrv_address) as admin:
        (without, white) = imported(west, export)
        assert (without.action, white.action) == ("conflict", "make")
        assert "an export has no secret keys: pass --passwords" in without.detail
        done = imported(west, export, passwords=keys, apply=True)
        assert [(str(one.action), one.is_done, one.error) for one in done] == [("make", True, "")] * 2
        (found,) = admin.acl_accounts().values()
        assert found.global_white_addrs == ("10.0.0.*",)
        assert [(one.access_key, one.topic_perms) for one in found.plain_access_configs] == [
            ("old-account", ("orders=PUB|SUB",))
        ]
        assert {one.action for one in imported(west, export)} == {"equal"}
        accounts["plainAccessConfigs"] = [ACCOUNT | {"admin": True}]
        (changed, _) = imported(west, exported(east={"accounts": accounts}), passwords=keys, apply=True, change=True)
        assert (changed.action, changed.is_done, "-> admin, topics DENY" in changed.detail) == ("change", True, True)
        assert "a-new-secret" not in json.dumps(changed.facts())


def test_values_of_name_servers() -> None:
    """They arrive; the order of a topic names the brokers of the target, or is refused."""
    values = {"ORDER_TOPIC_CONFIG": {"orders": "east_1:3;east_2:2", "odd": "gone:1"}, "shop": {"mode": "blue"}}
    export = exported(east_1={}, east_2={}, key_values=values)
    with embedded(brokers=2) as west, SyncAdmin(west.namesrv_address) as admin:
        admin.kv_put("shop", "mode", "red")
        done = {one.name: one for one in imported(west, export, apply=True, change=True)}
        assert done["ORDER_TOPIC_CONFIG orders"].detail == "none -> broker-a:3;broker-b:2"
        assert "found broker 'gone' in gone:1, expected one of east_1, east_2" in done["ORDER_TOPIC_CONFIG odd"].detail
        assert (done["shop mode"].action, done["shop mode"].detail) == ("change", "red -> blue")
        assert (admin.order_config("orders"), admin.kv_list("shop")) == ("broker-a:3;broker-b:2", {"mode": "blue"})
        again = {one.name: one.action for one in imported(west, export)}
        assert again == {
            "ORDER_TOPIC_CONFIG odd": "conflict",
            "ORDER_TOPIC_CONFIG orders": "equal",
            "shop mode": "equal",
        }
    with embedded() as west:
        (_, orders, _) = imported(west, export)
    assert "it names brokers, east_1:3;east_2:2, and the target has 1, not 2" in orders.detail


def test_command(
    export: str, east: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`cluster import`: plan, apply, exit codes."""
    mqtrail = commands(capsys)
    (tmp_path / "east.json").write_text(export)
    (tmp_path / "passwords").write_text("# of users\nann=a\nbob=b=c\n")
    (tmp_path / "passwords").chmod(0o600)
    with embedded(brokers=2) as west:
        options = ("cluster", "import", "east.json", "--namesrv", west.namesrv_address)
        shown = mqtrail(*options)
        assert (shown.code, "nothing was changed: pass --apply" in shown.out) == (0, True)
        assert mqtrail(*options, "--apply").code == 1, "users have no passwords"
        done = mqtrail(*options, "--apply", "--passwords", "passwords", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["counts"]["make"] == 6, "two users, and a policy that needs one, on each broker"
        assert "a=b" not in done.out
        assert mqtrail(*options, "--change").code == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "found JSONDecodeError in the export"),
        ("[]", "found AttributeError in the export"),
        ('{"brokers": {"a": {"topics": 1, "groups": []}}}', "found TypeError in the export"),
        ('{"brokers": {"a": {"topics": [{"perm": "x"}], "groups": []}}}', "found BodyError in the export"),
        ('{"version": 2, "brokers": {}}', "found an export of version 2, expected 1"),
        ('{"brokers": {}, "failures": {"broker-a": "no answer"}}', "found an export without broker-a"),
    ],
)
def test_what_is_no_export(text: str, error: str) -> None:
    with pytest.raises(MirrorError, match=error):
        read_export(text)
