"""Answers about a live cluster: unknown is not none."""

from __future__ import annotations

import pytest

from mqtrail.answers import ClusterAnswers, Scope
from mqtrail.answers.cluster import _client
from mqtrail.client import SyncAdmin
from mqtrail.testing import embedded
from mqtrail.wire import ConsumerRunningInfo, ConsumeStatus, MQError


def test_a_cluster_without_brokers_is_no_cluster_without_lag() -> None:
    """A broker that stops unregisters itself: then the lag is unknown, not zero."""
    with embedded() as broker:
        cluster = ClusterAnswers(broker.namesrv_address)
        assert cluster.brokers().brokers[0].name == "broker-a"
        broker.stop_broker("broker-a")
        for ask in (cluster.brokers, cluster.topics, cluster.groups, cluster.lag):
            with pytest.raises(MQError, match="found no master broker"):
                ask()
        with SyncAdmin(broker.namesrv_address) as admin:
            assert admin.lag().problems == ("the name servers know no broker, so the lag of all groups is unknown",)
        cluster.close()


def test_the_time_of_a_handler_that_handled_nothing_is_unknown() -> None:
    """A client reports 0 ms for it, as for a fast one."""
    found = ConsumerRunningInfo(
        status_table={
            "idle": ConsumeStatus(),
            "fast": ConsumeStatus(consume_ok_tps=3.0),
            "slow": ConsumeStatus(consume_rt=2.5, consume_ok_tps=3.0),
        }
    )
    topics = _client(Scope(0), "CG", "c1", "broker-a", found).topics
    assert {one.topic: one.handler_ms for one in topics} == {"idle": None, "fast": 0.0, "slow": 2.5}
