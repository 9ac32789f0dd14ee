"""Answers about a live cluster: unknown is not none."""

from __future__ import annotations

import pytest

from mqtrail.answers import ClusterAnswers
from mqtrail.client import SyncAdmin
from mqtrail.testing import embedded
from mqtrail.wire import MQError


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
