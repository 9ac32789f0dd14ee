"""Executors that lack something are reported in one line, before they get work."""

import importlib.metadata
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.faults import SparkFailed

from mqtrail.pipeline import JobConfig, JobFailed, PipelineJob, executors
from mqtrail.pipeline.clusterjob import ClusterJob
from mqtrail.pipeline.executors import Probed, _within, check_seen, look, probe
from mqtrail.pipeline.late_workers import WORKER_STARTS_MAX
from mqtrail.pipeline.masters import SparkNotStarted

VERSION = importlib.metadata.version("mqtrail")
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "SEEN_MS_MAX", 0)


class Executors:
    """Executors that see a folder of their own, or the driver's, and succeed or fail."""

    def __init__(self, lake: Path, mounted: Path | None = None, **answer: str) -> None:
        self.lake = lake
        self.mounted = mounted or lake
        self.answer = answer

    def __call__(self, count: int, task: Task) -> list[Probed]:
        given = inspect.getclosurevars(task).nonlocals
        folder = self.mounted / Path(given["folder"]).relative_to(self.lake)
        return [look(str(folder), given["token"], f"{n}-{n}")._replace(**self.answer) for n in range(count)]


def test_executors_that_share_the_lake(tmp_path: Path) -> None:
    """Nothing is reported, and nothing is left in the lake."""
    probe(Executors(tmp_path), tmp_path, 3, "python", "driver:1")
    assert list(tmp_path.iterdir()) == []


def test_executors_whose_workers_start_late(tmp_path: Path) -> None:
    """They are tried again, as those of later tasks; when they stay late, the words say so."""
    whole = Executors(tmp_path)

    class Late:
        def __init__(self, late_count: int) -> None:
            self.late_count = late_count
            self.starts = 0

        def __call__(self, count: int, task: Task) -> list[Probed]:
            self.starts += 1
            if self.starts <= self.late_count:
                raise SparkFailed("Python worker failed to connect back.")
            return whole(count, task)

    once, always = Late(1), Late(WORKER_STARTS_MAX)
    probe(once, tmp_path, 2, "python", "driver:1")
    assert once.starts == 2
    with pytest.raises(JobFailed, match="the machine is too busy"):
        probe(always, tmp_path, 2, "python", "driver:1")
    assert always.starts == WORKER_STARTS_MAX
    assert list(tmp_path.iterdir()) == []


def test_executors_with_a_folder_of_their_own(tmp_path: Path) -> None:
    """The folder is missing, or is another one, or the driver does not see the executor's writes."""
    lake, other = tmp_path / "lake", tmp_path / "other"
    lake.mkdir()
    with pytest.raises(SparkNotStarted, match=r"does not see this folder as the driver does .No such file"):
        probe(Executors(lake, other), lake, 1, "python", "driver:1")
    with pytest.raises(SparkNotStarted, match="the driver does not see what executor host far wrote here"):
        probe(Executors(lake, name="elsewhere", host="far"), lake, 1, "python", "driver:1")
    assert list(lake.iterdir()) == []


def test_another_version_of_mqtrail(tmp_path: Path) -> None:
    """It could write other columns, so it is refused."""
    with pytest.raises(SparkNotStarted, match=f"found mqtrail 0.0.1 on executor host far, expected {VERSION}"):
        probe(Executors(tmp_path, version="0.0.1", host="far"), tmp_path, 1, "python", "driver:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'x\n: Job aborted: java.io.IOException: Cannot run program "/v/python": error=2',
            "found no program /v/python",
        ),
        ("ModuleNotFoundError: No module named 'mqtrail'", "found no Python module mqtrail on an executor (/p)"),
        ("/p: Error while finding module spec: No module named pyspark", "found no Python module pyspark"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has 3.10, driver 3.11.\n at x",
            "Python in worker has 3.10, driver",
        ),
        (
            "Job aborted due to stage failure: Master removed our application: FAILED",
            "let them reach the driver at d:1",
        ),
        ("An error\n: org.x.Odd: what\n\tat y", "the executors cannot run tasks: org.x.Odd: what;"),
    ],
)
def test_tasks_that_fail(tmp_path: Path, text: str, message: str) -> None:
    """Each reason has its remedy, on one line."""

    def run(count: int, task: Task) -> list[Probed]:
        raise RuntimeError(text)

    with pytest.raises(SparkNotStarted) as raised:
        probe(run, tmp_path, 2, "/p", "d:1")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_waits() -> None:
    """The check ends after its time limit; a result or an error before that is passed on."""
    stop = Event()
    with pytest.raises(TimeoutError):
        _within(1, lambda: [Probed("", "", "", str(stop.wait()))])
    stop.set()
    assert _within(60_000, list) == []

    def fail() -> Any:
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        _within(60_000, fail)


def test_a_file_that_only_its_executor_sees(tmp_path: Path) -> None:
    """No file is committed that readers would miss."""
    file = tmp_path / "batch=ingest-1" / "0-0" / "part-0.parquet"
    with pytest.raises(JobFailed, match=r"found no such file on the driver.*mount the lake at the same path"):
        check_seen([file])
    file.parent.mkdir(parents=True)
    file.touch()
    check_seen([file])


def test_a_file_that_is_seen_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system shows it after a delay."""
    answers = iter([False, False, True])
    monkeypatch.setattr(executors, "SEEN_MS_MAX", 60_000)
    monkeypatch.setattr(executors, "SEEN_POLL_MS", 0)
    monkeypatch.setattr(Path, "exists", lambda self: next(answers))
    check_seen([tmp_path / "file"])
    assert next(answers, None) is None


def test_a_failure_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`once` reports in one line that executors were lost or ran out of memory."""

    def cycle(*_: object, **__: object) -> None:
        raise SparkFailed("Job aborted: ExecutorLostFailure")

    monkeypatch.setattr(ClusterJob, "once", cycle)
    job = PipelineJob(JobConfig(namesrv="127.0.0.1:1", lake=tmp_path)).use(cast(SparkSession, SimpleNamespace()))
    with pytest.raises(JobFailed, match=r"^Spark failed \(org.x.SparkException: Job aborted: Exec[^\n]+again$"):
        job.once()
