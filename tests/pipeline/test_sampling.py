"""The sampled part of a cluster: which topics are read, and which groups belong to them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqtrail.client import SyncAdmin
from mqtrail.pipeline.sampling import ALL_TOPICS, NO_MASTER, NOT_OPTED_IN, Topology, sample, survey
from mqtrail.wire import (
    IMPLEMENTATION,
    IMPLEMENTATION_KEY,
    TRACE_TOPIC,
    ClientConnection,
    ConsumerConnections,
    ConsumerNotOnline,
    ConsumerOffsetTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)


class Cluster:
    """The admin calls of a survey. implementations: that of each broker, None for Apache's."""

    def __init__(self, *implementations: str | None) -> None:
        self.settings = [
            {"messageDelayLevel": "1s 2s"} | ({} if name is None else {IMPLEMENTATION_KEY: name})
            for name in implementations
        ]

    def cluster(self) -> Any:
        names = {f"broker-{number}": None for number in range(len(self.settings))}
        return SimpleNamespace(cluster_addr_table={"C": list(names)}, broker_addr_table=names)

    def masters(self) -> dict[str, str]:
        return {f"broker-{number}": str(number) for number in range(len(self.settings))}

    def topics(self) -> list[str]:
        return ["C", "broker-0", "orders", "payments", "%RETRY%billing", TRACE_TOPIC]

    def broker_config(self, address: str) -> dict[str, str]:
        return self.settings[int(address)]


@pytest.mark.parametrize(
    ("implementations", "only", "read", "is_reported"),
    [
        ((IMPLEMENTATION,), None, ("orders", "payments"), False),
        ((IMPLEMENTATION, IMPLEMENTATION), None, ("orders", "payments"), False),
        ((None,), None, (), True),
        ((IMPLEMENTATION, None), None, (), True),
        ((None,), ("orders",), ("orders",), False),
        ((None,), (ALL_TOPICS,), ("orders", "payments"), False),
        ((IMPLEMENTATION,), (), (), False),
    ],
)
def test_business_topics_of_others_are_opted_in(
    implementations: tuple[str | None, ...], only: tuple[str, ...] | None, read: tuple[str, ...], is_reported: bool
) -> None:
    """All topics of our brokers are read; of other brokers only named ones. Omitted topics are reported."""
    found = survey(cast(SyncAdmin, Cluster(*implementations)), TRACE_TOPIC, only)
    assert (found.business, found.problems) == (read, (NOT_OPTED_IN,) if is_reported else ())
    assert found.evidence == (*read, "%RETRY%billing")
    assert (found.trace_topics, found.delays_ms) == ((TRACE_TOPIC,), (1_000, 2_000))


class Master:
    """The admin calls of a sample: one master with groups in different tables."""

    def committed_offsets(self, address: str) -> ConsumerOffsetTable:
        offsets = {"orders@Stopped": {0: 7}, "orders@Everyone@broadcast": {0: 5}, "orders@TOOLS_CONSUMER": {0: 1}}
        return ConsumerOffsetTable({**offsets, "orders": {0: 1}, "orders@Odd@other": {0: 1}})

    def groups(self, address: str) -> SubscriptionGroupTable:
        return SubscriptionGroupTable({name: SubscriptionGroupConfig(name) for name in ("New", "TOOLS_CONSUMER")})

    def consumer_connections(self, group: str, address: str) -> ConsumerConnections:
        raise ConsumerNotOnline(group)

    def master_epoch(self, address: str) -> int:
        return 3


def test_groups_beyond_the_bound_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier groups are sampled first. With some left out, no broker has reported all of its groups."""
    monkeypatch.setattr("mqtrail.pipeline.sampling.GROUPS_MAX", 2)
    topology = Topology("C", {"broker-0": "0"}, (), (), (), ())
    found = sample(cast(SyncAdmin, Master()), topology, "C", 1, ["Traced"])
    assert found.groups == {"Traced", "Everyone"}
    assert found.problems == ["found 4 groups, expected at most 2: the others are not sampled"]
    assert found.answers["GROUPS", "broker-0", ""] == found.answers["GROUPS", "", ""] == found.problems[0]


def test_groups_are_looked_for_in_all_tables() -> None:
    """Groups come from configurations, offsets, earlier samples and the trace. A broadcasting group has no committed
    offset; the broker keeps its common one."""
    topology = Topology("C", {"broker-0": "0"}, (), (), (), ())
    found = sample(cast(SyncAdmin, Master()), topology, "C", 1, ["Traced"])
    assert not found.problems
    assert {row["group_name"] for row in found.rows["clients"]} == {"Stopped", "Everyone", "New", "Traced"}
    assert [(row["group_name"], row["consumer_offset"]) for row in found.rows["group_offsets"]] == [("Stopped", 7)]


def test_brokers_without_a_master_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers read at slaves of a broker that nobody asks: which groups and clients it has is not known."""
    cluster = Cluster(IMPLEMENTATION, IMPLEMENTATION)
    monkeypatch.setattr(cluster, "masters", lambda: {"broker-0": "0"})
    topology = survey(cast(SyncAdmin, cluster), TRACE_TOPIC, ())
    found = sample(cast(SyncAdmin, Master()), replace(topology, evidence=(), trace_topics=()), "C", 1, ["Traced"])
    assert {row["status"] for row in found.rows["clients"]} == {"ERROR"}
    assert {name: bool(found.answers["GROUPS", name, ""]) for name in ("broker-0", "broker-1", "")} == {
        "broker-0": False,
        "broker-1": True,
        "": True,
    }
    assert found.answers["OFFSETS", "broker-1", ""] == NO_MASTER
    assert found.problems == [f"offsets and clients on broker-1: {NO_MASTER}"]


class Leaving(Master):
    """Its only consumer commits and leaves as soon as the first question about its group is answered."""

    has_left = False

    def committed_offsets(self, address: str) -> ConsumerOffsetTable:
        offset, self.has_left = 9 if self.has_left else 7, True
        return ConsumerOffsetTable({"orders@g": {0: offset}})

    def consumer_connections(self, group: str, address: str) -> ConsumerConnections:
        if self.has_left:
            raise ConsumerNotOnline(group)
        self.has_left = group == "g"
        return ConsumerConnections(connection_set=(ClientConnection("10.0.0.2@77#1"),))


def test_a_sample_without_a_consumer_has_its_last_commit() -> None:
    """A consumer that leaves during a sample is in the sample: otherwise the next one would show an offset that rose
    while the group had no client."""
    topology = Topology("C", {"broker-0": "0"}, (), (), (), ())
    found = sample(cast(SyncAdmin, Leaving()), topology, "C", 1, ["g"])
    assert [row["status"] for row in found.rows["clients"] if row["group_name"] == "g"] == ["OK"]
    assert [row["consumer_offset"] for row in found.rows["group_offsets"]] == [9]
