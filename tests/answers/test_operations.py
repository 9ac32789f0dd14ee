"""Replication, name servers and access control of a cluster: what is known, what differs, and what did not answer."""

from __future__ import annotations

from typing import cast

import pytest

from mqtrail.answers import ClusterAnswers
from mqtrail.answers.operations import broker_access, name_servers, replication
from mqtrail.client import ClientError, Gathered, ReplicaInfo, SyncAdmin
from mqtrail.client.admin.replicas import ReplicaReport
from mqtrail.wire import GroupReplicas
from mqtrail.wire.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from mqtrail.wire.controller_headers import ElectionState, ReplicaState

from .conftest import Shop

DEAD = ClientError("no answer")
ON_ORDERS = PolicyEntryInfo("Topic:orders", ("Pub",), None, "Allow")


class Operated:
    """Stands for a SyncAdmin of two groups, of which one has controllers, and of three name servers."""

    def replicas(self) -> ReplicaReport:
        rows = [
            ReplicaInfo("a", 1, "h:1", True, 900, 4, True, 2, 0, 0),
            ReplicaInfo("a", 2, "h:2", False, 700, 4, False, None, 200, None),
            ReplicaInfo("b", 0, "h:3", error=DEAD),
        ]
        known = GroupReplicas(
            in_sync_replicas=(ReplicaState(broker_id=1),),
            last_election=ElectionState(timestamp=5, reason="connection_closed", master_before=2),
            master_broker_id=1,
            master_epoch=4,
        )
        return ReplicaReport(rows, Gathered({"a": known}, {"b": DEAD}))

    def namesrv_config(self) -> Gathered[dict[str, str]]:
        first = {"orderMessageEnable": "true", "aclPassword": "sesame"}
        second = {"orderMessageEnable": "false", "aclPassword": "sesame", "newer": "1"}
        return Gathered({"h:9876": first, "h:9877": second}, {"h:9878": DEAD})

    def users(self) -> Gathered[list[UserInfo]]:
        ann = UserInfo("ann", "sesame", "Normal", "enable")
        return Gathered({"a": [ann], "b": [ann, UserInfo("bob", "sesame", "Super", "enable")]}, {"c": DEAD})

    def acls(self) -> Gathered[list[AclInfo]]:
        one = AclInfo("User:ann", (PolicyInfo("Custom", (ON_ORDERS,)),))
        return Gathered({"a": [one], "b": []}, {"c": DEAD})


@pytest.fixture
def operated() -> SyncAdmin:
    return cast("SyncAdmin", Operated())


def test_replication(operated: SyncAdmin) -> None:
    """What a broker does not report is None; brokers and controllers that do not answer are omissions."""
    answer = replication(operated, "h:9876")
    first, second, third = answer.replicas
    assert (first.is_master, first.lag_bytes, first.is_in_sync) == (True, 0, True)
    assert (second.lag_bytes, second.lag_ms, second.is_in_sync) == (200, None, False)
    assert (third.is_master, third.end_offset, third.why) == (None, None, "no answer")
    (group,) = answer.groups
    assert (group.master_id, group.in_sync_ids, group.reason, group.master_before) == (1, (1,), "connection_closed", 2)
    assert answer.scope.omissions == ("broker b at h:3: no answer", "the controllers of b: no answer")


def test_name_servers(operated: SyncAdmin) -> None:
    """Settings that differ are named, also those that one server lacks; secrets are left out."""
    answer = name_servers(operated, "h:9876")
    assert answer.differing == ("newer", "orderMessageEnable")
    assert answer.settings["h:9877"] == {"orderMessageEnable": "false", "aclPassword": None, "newer": "1"}
    assert answer.scope.omissions == ("name server h:9878: no answer",)


def test_broker_access(operated: SyncAdmin) -> None:
    """A row for what is alike, with the brokers that have it; no password."""
    answer = broker_access(operated, "h:9876")
    assert answer.masters == ("a", "b")
    assert [(one.name, one.kind, one.brokers) for one in answer.users] == [
        ("ann", "Normal", ("a", "b")),
        ("bob", "Super", ("b",)),
    ]
    (policy,) = answer.policies
    assert (policy.subject, policy.resource, policy.actions, policy.decision) == (
        "User:ann",
        "Topic:orders",
        ("Pub",),
        "Allow",
    )
    assert (policy.source_ips, policy.brokers) == ((), ("a",))
    assert answer.scope.omissions == ("broker c: no answer",)
    assert "sesame" not in repr(answer)


def test_no_server_answers(monkeypatch: pytest.MonkeyPatch, operated: SyncAdmin) -> None:
    """A question that nobody answered is an error, not an empty answer."""
    silent: Gathered[object] = Gathered({}, {"a": DEAD})
    for name in ("namesrv_config", "users", "acls"):
        monkeypatch.setattr(Operated, name, lambda _: silent)
    for ask in (name_servers, broker_access):
        with pytest.raises(ClientError, match="no answer"):
            ask(operated, "h:9876")


def test_a_live_cluster(shop: Shop) -> None:
    """One broker that nobody follows, one name server, no users."""
    cluster = ClusterAnswers(shop.namesrv)
    try:
        (replica,) = cluster.replication().replicas
        assert (replica.is_master, replica.lag_bytes, replica.why) == (True, 0, "")
        assert list(cluster.name_servers().settings) == [shop.namesrv]
        access = cluster.broker_access()
        assert (access.masters, access.users, access.policies) == (("broker-a",), (), ())
    finally:
        cluster.close()
