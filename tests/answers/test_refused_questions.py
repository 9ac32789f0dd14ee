"""Brokers that refuse a query: its answer is unknown, never none and never zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from mqtrail import trail
from mqtrail.answers import doctor, live
from mqtrail.client import NoNameServer, RouteNotFound, SyncAdmin
from mqtrail.client.admin import Gathered
from mqtrail.pipeline import sampling
from mqtrail.wire import (
    ClientConnection,
    ConsumerConnections,
    ConsumerNotOnline,
    GroupList,
    NoPermission,
    SubscriptionGroupTable,
    SystemBusy,
)

ONLINE = ConsumerConnections((ClientConnection("client-1"),))
STAMP = {"cluster": "C", "sampled_ms": 1}
Answer = ConsumerConnections | Exception


class FakeAdmin:
    """Answers for each address; an exception is raised."""

    def __init__(self, connections: Mapping[str, Answer]) -> None:
        self.connections = connections

    def groups(self, address: str) -> SubscriptionGroupTable:
        return SubscriptionGroupTable()

    def consumer_connections(self, group: str, address: str) -> ConsumerConnections:
        found = self.connections[address]
        if isinstance(found, Exception):
            raise found
        return found

    def queues(self, topic: str) -> list[Any]:
        found = self.connections["namesrv"]
        assert isinstance(found, Exception)
        raise found

    def groups_of_topic(self, topic: str) -> Gathered[GroupList]:
        return Gathered({"b": GroupList(("billing",))}, {"c": SystemBusy("busy")})


def admin(connections: Mapping[str, Answer]) -> SyncAdmin:
    return cast(SyncAdmin, FakeAdmin(connections))


CASES = [
    ({"a": ConsumerNotOnline("none"), "b": ConsumerNotOnline("none")}, "OFFLINE", 0),
    ({"a": ConsumerNotOnline("none"), "b": NoPermission("acl")}, "ERROR", None),
    ({"a": SystemBusy("busy"), "b": NoPermission("acl")}, "ERROR", None),
    ({"a": NoPermission("acl"), "b": ONLINE}, "OK", 1),
]


@pytest.mark.parametrize(("connections", "status", "count"), CASES)
def test_clients_that_could_not_be_queried_are_unknown(
    connections: Mapping[str, Answer], status: str, count: int | None
) -> None:
    """Only ConsumerNotOnline means that a group has no client; other refusals are listed in the scope."""
    refused = [error for error in connections.values() if isinstance(error, NoPermission | SystemBusy)]
    masters = {name: name for name in connections}

    omissions: list[str] = []
    [group] = doctor._groups(admin(connections), masters, {"billing"}, omissions)
    assert (group.client_count, len(omissions)) == (count, len(refused))

    evidence = live.LiveEvidence()
    live._sample_group(admin(connections), evidence, "billing", list(masters), STAMP)
    assert {row["status"] for row in evidence.rows[trail.CLIENTS.name]} == {status}
    assert len(evidence.omissions) == len(refused)

    sample = sampling.ClusterSample(1)
    sampling._Asking(admin(connections), sample, masters, STAMP).group("billing")
    assert {row["status"] for row in sample.rows[trail.CLIENTS.name]} == {status}
    assert len(sample.problems) == len(refused)


@pytest.mark.parametrize(("error", "exists"), [(RouteNotFound("none"), False), (NoNameServer("down"), None)])
def test_a_trace_topic_that_could_not_be_queried_is_unknown(error: Exception, exists: bool | None) -> None:
    """Nor is there the advice to create it."""
    omissions: list[str] = []
    found = doctor._trace_topic(admin({"namesrv": error}), "T", 10, omissions)
    assert found.exists is exists
    why = doctor._available((), found, ())["trace"]
    assert ("create it" in str(why)) is (exists is False)
    assert bool(omissions) is (exists is None)
