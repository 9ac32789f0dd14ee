"""Several clusters read by one pipeline: as if each had a lake of its own. Without Spark."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.test_job import TOPIC, trade

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.lake import Lake, LakePath, connect, rebuild, relation_of
from mqtrail.lake.tables import cluster_of
from mqtrail.pipeline import ClusterStatus, JobConfig, JobFailed, PipelineJob, StatusFile, clusterjob
from mqtrail.testing import embedded
from mqtrail.wire import TopicConfig

NO_SPARK = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))
LIMIT_S = 120.0
COMPARED = (
    (trail.MESSAGE_META, "topic, broker_name, queue_id, queue_offset, store_ms"),
    (trail.TRACE_EVENTS, "broker_name, queue_id, queue_offset, record_no, item_no, record_type, msg_id, request_id"),
    (trail.TRAJECTORIES, "msg_id, topic, keys, send_codes, copy_count, group_count, stored_ms"),
    (trail.VERDICTS, "msg_id, group_name, state, delivery_count, success_count, first_delivered_ms"),
)
"""What a lake has of messages, whenever it was read."""
Found = list[list[tuple[Any, ...]]]


def found_in(path: LakePath, cluster: str) -> Found:
    lake = Lake.open(path)
    return [
        sorted(connect().sql(f"SELECT {columns} FROM ({relation_of(lake[relation.name], cluster=cluster)})").fetchall())
        for relation, columns in COMPARED
    ]


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.5)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_clusters_of_equal_names(tmp_path: Path, stack: ExitStack) -> None:
    """One of them stops in the middle. What the lake has of each is what a lake of its own has."""
    one, other = stack.enter_context(embedded()), stack.enter_context(ending := ExitStack()).enter_context(embedded())
    for broker in (one, other):
        with SyncAdmin(broker.namesrv_address) as admin:
            assert admin.create_topic(TopicConfig(TOPIC, 2, 2)).complete
    trade(one.namesrv_address, 3)
    trade(other.namesrv_address, 2)
    alone = JobConfig(namesrv=other.namesrv_address, lake=tmp_path / "west", cluster="west")
    PipelineJob(alone).use(NO_SPARK).once()
    west = found_in(alone.lake, "west")

    lake = tmp_path / "both"
    clusters = (f"east={one.namesrv_address}", f"west={other.namesrv_address}")
    config = JobConfig(namesrv="", lake=lake, clusters=clusters, sample_interval_ms=1_000)
    stop, blank = Event(), ClusterStatus()
    lines: list[str] = []
    running = Thread(target=PipelineJob(config, lines.append).use(NO_SPARK).run, args=(50, stop))
    running.start()
    stack.callback(running.join, LIMIT_S)
    stack.callback(stop.set)

    def status(cluster: str) -> ClusterStatus:
        found = StatusFile(lake).read()
        return next((each for each in found.clusters if each.cluster == cluster), blank) if found else blank

    until(lambda: status("east").counts["messages"] == 3 and found_in(lake, "west") == west)
    ending.close()
    until(lambda: status("west").failed_in_row > 0)
    trade(one.namesrv_address, 2)
    alone = replace(alone, namesrv=one.namesrv_address, lake=tmp_path / "east", cluster="east")
    PipelineJob(alone).use(NO_SPARK).once()
    east = found_in(alone.lake, "east")
    assert len(east[2]) == 5
    until(lambda: found_in(lake, "east") == east)
    assert found_in(lake, "west") == west
    assert (status("east").failures, status("west").counts["messages"]) == (0, 2)
    stop.set()
    running.join(LIMIT_S)
    assert any(text.startswith("west: this cycle failed") for text in lines)
    assert not any(text.startswith("east: this cycle failed") for text in lines)

    list(rebuild(lake))
    assert found_in(lake, "west")[2:] == [[], []]
    assert None not in {cluster_of(file) for file in Lake.open(lake)[trail.ATTEMPTS.name].files()}
    PipelineJob(replace(alone, lake=lake)).use(NO_SPARK).once()
    assert (found_in(lake, "east"), found_in(lake, "west")) == (east, west)


@pytest.mark.slow
def test_a_backlog_is_read_in_small_parts_while_another_cluster_waits(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cycle ends after so many messages and is judged; alone, the cluster reads on to its end."""
    monkeypatch.setattr(clusterjob, "SHARED_MESSAGES_MAX", 2)
    broker = stack.enter_context(embedded())
    trade(broker.namesrv_address, 5)
    job = PipelineJob(JobConfig(namesrv=broker.namesrv_address, lake=tmp_path / "lake")).use(NO_SPARK)
    job.sample()
    [one] = job.jobs
    one.is_shared = True
    with job.lake.writing():
        reports = [one.begin()() for _ in range(2)]
        one.is_shared = False
        reports.append(one.begin()())
    assert [found.trace_messages + found.messages for found in reports[:2]] == [2, 2]
    assert [found.behind > 0 for found in reports] == [True, True, False]


@pytest.mark.parametrize("clusters", [("east",), ("=127.0.0.1:1",), ("east=",), ("a=h:1", "b=h:2", "a=h:3")])
def test_names_that_are_no_clusters(clusters: tuple[str, ...], tmp_path: Path) -> None:
    """Each needs a name of its own and an address."""
    with pytest.raises(JobFailed, match="expected NAME=HOST:PORT"):
        JobConfig(namesrv="", lake=tmp_path, clusters=clusters)
