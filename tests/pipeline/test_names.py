"""One name means one cluster in a lake, and one cluster has one name."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.conftest import FolderCluster
from tests.pipeline.test_ingest import CLUSTER, ORDERS, Reader, fill

from mqtrail.pipeline import JobFailed
from mqtrail.pipeline.names import named, positions_in
from mqtrail.pipeline.positions import UNNAMED, Position

HERE, THERE = {"broker-a": "10.0.0.1:10911"}, {"broker-a": "10.0.9.9:10911"}


def seen(brokers: Mapping[str, str], name: str = "c") -> Any:
    return dataclasses.replace(CLUSTER, name=name, brokers=brokers)


@pytest.fixture
def known(tmp_path: Path, cluster: Any) -> Reader:
    """A lake that has read a cluster."""
    fill(cluster)
    reader = Reader(tmp_path, cluster)
    reader.ingest.check_name(seen(HERE))
    reader.ingest.run(seen(HERE), fail_on_data_loss=True)
    return reader


def another(folder: Path, count: int) -> FolderCluster:
    """A cluster with queues of the same names and other messages."""
    (folder / "another").mkdir()
    made = FolderCluster(folder / "another")
    for number in range(count):
        made.append(ORDERS, b"body", properties={"UNIQ_KEY": f"other-{number}"}, store_timestamp_ms=1_800_000_000_000)
    return made


def test_the_cluster_that_was_read(known: Reader, cluster: Any, tmp_path: Path) -> None:
    """A cluster is recognised after a restart, with a new broker, and after its brokers moved with their messages."""
    assert positions_in(known.lake)["c"].brokers == HERE
    for brokers in (HERE, HERE | {"broker-new": "10.0.0.7:10911"}, THERE):
        Reader(tmp_path, cluster).ingest.check_name(seen(brokers))


@pytest.mark.parametrize("count", [0, 3])
def test_another_cluster_of_its_name(known: Reader, tmp_path: Path, count: int) -> None:
    """A cluster with the same names of cluster and broker, but other or no messages, is refused unless the user names
    it."""
    source = another(tmp_path, count)
    other = Reader(tmp_path, source)
    with pytest.raises(JobFailed, match=r"broker-a at 10.0.9.9:10911.*broker-a at 10.0.0.1:10911.*--cluster c"):
        other.ingest.check_name(seen(THERE))
    with pytest.raises(JobFailed, match="registered as 'c' too, with brokers foreign at"):
        other.ingest.check_name(seen({"foreign": "10.0.0.1:10911"}))
    other.ingest.check_name(seen(THERE, "other"))
    Reader(tmp_path, source, cluster="c").ingest.check_name(seen(THERE))


def test_the_same_cluster_under_another_name(known: Reader, cluster: Any, tmp_path: Path) -> None:
    """Otherwise its messages would be in the lake twice."""
    for again in (Reader(tmp_path, cluster), Reader(tmp_path, cluster, cluster="again")):
        with pytest.raises(JobFailed, match=r"as those of 'c', .*`--cluster c`"):
            again.ingest.check_name(seen(HERE, "again"))


def test_a_position_without_a_name_is_that_of_the_lakes_cluster(known: Reader) -> None:
    """A lake of an earlier version identifies its cluster by its content, not by the first cluster read."""
    position = Position({ORDERS: 3})
    assert named({UNNAMED: position}, known.lake) == {UNNAMED: position}
    assert named({"c": position}, known.lake) == {"c": position}
