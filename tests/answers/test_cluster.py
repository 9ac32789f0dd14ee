"""Answers about a live cluster: unknown is not none."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mqtrail.answers import ClusterAnswers, Scope
from mqtrail.answers.cluster import _client
from mqtrail.answers.joined import JOINED_S, JoinedAnswers
from mqtrail.client import SyncAdmin
from mqtrail.testing import embedded
from mqtrail.wire import ConsumerRunningInfo, ConsumeStatus, MQError

WAIT_S = 30.0


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


class Failed(MQError):
    """A cluster that does not answer."""


def test_viewers_at_the_same_time_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lag of a cluster is found once for all who watch it, also its failure; another cluster has its own."""
    asked: list[str] = []
    waiting, found = threading.Event(), threading.Event()

    def lag(cluster: ClusterAnswers, *_: object) -> Any:
        asked.append(cluster.namesrv)
        if cluster.namesrv == "east:1":
            waiting.set()
            assert found.wait(WAIT_S)
            raise Failed("no answer")
        return "lag of west"

    monkeypatch.setattr(ClusterAnswers, "lag", lag)
    east, west = ClusterAnswers("east:1"), ClusterAnswers("west:1")
    with ThreadPoolExecutor(8) as viewers:
        first = viewers.submit(east.overview().lag)
        assert waiting.wait(WAIT_S)
        others = [viewers.submit(east.overview().lag) for _ in range(7)]
        answers: list[object] = [west.overview().lag()]
        assert answers == ["lag of west"]
        found.set()
        for viewer in (first, *others):
            with pytest.raises(Failed):
                viewer.result(WAIT_S)
    assert asked == ["east:1", "west:1"]
    east.close()
    west.close()


def test_a_shared_answer_is_found_again_after_a_while() -> None:
    """The time counts from the end of the question, so that a slow one is shared too."""
    now_s = 0.0
    joined = JoinedAnswers(lambda: now_s)
    found: list[float] = []

    def ask() -> float:
        nonlocal now_s
        now_s += 60.0
        found.append(now_s)
        return now_s

    assert joined.get("lag", ask) == joined.get("lag", ask) == 60.0
    now_s += JOINED_S
    assert joined.get("lag", ask) == 60.0
    now_s += 0.1
    assert joined.get("lag", ask) > 60.0
    assert joined.get("brokers", ask) == found[-1]
    assert len(found) == 3


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
