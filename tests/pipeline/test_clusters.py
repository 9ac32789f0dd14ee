"""Two clusters in one lake, read by one pipeline after the other, and kept apart by the commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cli.conftest import Command, commands
from tests.pipeline.test_job import trade

from mqtrail.pipeline import JobConfig, JobFailed, PipelineJob
from mqtrail.testing import Embedded, embedded

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture
def brokers() -> Iterator[tuple[Embedded, Embedded]]:
    """Two clusters with equal names of clusters and brokers."""
    with embedded() as one, embedded() as other:
        yield one, other


@pytest.fixture
def mqtrail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.chdir(tmp_path)
    return commands(capsys)


def test_two_clusters(
    spark: SparkSession, brokers: tuple[Embedded, Embedded], tmp_path: Path, mqtrail: Command
) -> None:
    """The second one needs a name of its own; then each continues at its offsets, and commands name the cluster."""
    lake = tmp_path / "lake"
    one, other = (broker.namesrv_address for broker in brokers)
    trade(one, 3)
    trade(other, 2)
    first = PipelineJob(JobConfig(namesrv=one, lake=lake)).use(spark)
    report = first.once()
    name = report.cluster
    assert (report.messages, report.trajectories) == (3, 3)
    with pytest.raises(JobFailed, match=f"registered as '{name}' too.*pass --cluster"):
        PipelineJob(JobConfig(namesrv=other, lake=lake)).use(spark).once()
    second = PipelineJob(JobConfig(namesrv=other, lake=lake, cluster="west")).use(spark)
    report = second.once()
    assert (report.cluster, report.messages, report.trajectories) == ("west", 2, 2)
    trade(one, 1)
    assert first.once().messages == 1
    assert second.once().messages == 0

    def shown(*words: str) -> list[dict[str, object]]:
        return [row for row in mqtrail("export", *words, "--lake", str(lake)).rows if isinstance(row, dict)]

    assert sorted(str(row["cluster"]) for row in shown()) == sorted([name] * 4 + ["west"] * 2)
    west = shown("--cluster", "west")
    assert [row["cluster"] for row in west] == ["west"] * 2
    msg_id = str(west[0]["msg_id"])
    traced = mqtrail("trace", msg_id, "--lake", str(lake))
    assert (traced.code, "cluster west" in traced.out) == (0, True)
    assert mqtrail("trace", msg_id, "--lake", str(lake), "--cluster", name).code == 1
    assert "2 of 2 messages" in mqtrail("search", "--lake", str(lake), "--cluster", "west").out
    assert "west" in mqtrail("report", "--lake", str(lake)).out
    count = "SELECT count(*) AS n FROM messages"
    assert mqtrail("sql", count, "--lake", str(lake), "--cluster", "west", "--json").rows == [{"n": 2}]
    for words in (("search",), ("report",), ("export",), ("sql", count), ("trace", msg_id)):
        unknown = mqtrail(*words, "--lake", str(lake), "--cluster", "north")
        assert (unknown.code, "north" in unknown.err + unknown.out) == (3, True), words
