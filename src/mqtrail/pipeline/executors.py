"""The executors of a cluster, checked before the first cycle: a missing part is reported in one line, and no job hangs.

    driver   writes <lake>/_probe/<token>/driver     every task reads it
    task     writes <lake>/_probe/<token>/<task>     the driver reads them

A task for each core starts Python, imports mqtrail, and looks for the lake's folder. Executors that join later are not
tried: if one of them has another folder, `check_seen` notices before a commit that its files are not there.
"""

from __future__ import annotations

import importlib.metadata
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from mqtrail.lake import LakePath, LakeUnsupported, lake_errors, place_of, remove_tree

from .config import JobFailed
from .late_workers import started
from .masters import SparkNotStarted, spark_cause

FOLDER: Final = "_probe"
SEEN_MS_MAX: Final = 30_000  # how long a file may take to be seen on another machine: NFS keeps what it looked up
SEEN_POLL_MS: Final = 100
TASKS_MAX: Final = 256  # of a probe
_SCHEMA: Final = "host string, version string, error string, name string"


class Probed(NamedTuple):
    """What a task on a host found. error: why it cannot use the lake's folder; name: of the file that it wrote."""

    host: str
    version: str
    error: str
    name: str


Run = Callable[[int, Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]], list[Probed]]


def check_executors(spark: SparkSession, lake: LakePath, timeout_ms: int) -> None:
    """Let each core of the executors try what tasks need. SparkNotStarted: none runs a task in time, or one fails."""
    context = spark.sparkContext
    driver = f"{context.getConf().get('spark.driver.host')}:{context.getConf().get('spark.driver.port')}"

    def run(count: int, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> list[Probed]:
        rows = spark.range(0, count, 1, count).mapInArrow(task, _SCHEMA).collect()
        return [Probed(*row) for row in rows]

    def in_time(count: int, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> list[Probed]:
        try:
            return _within(timeout_ms, lambda: run(count, task))
        except TimeoutError:
            with suppress(Exception):
                context.cancelAllJobs()
            raise SparkNotStarted(
                f"found no executor of {context.master} that ran a task within {timeout_ms // 1000} s, expected one: "
                "start workers, free cores and memory on them or ask for less (spark.cores.max, "
                f"spark.executor.memory), and let executors reach the driver at {driver} (spark.driver.host, "
                "spark.driver.port)"
            ) from None

    probe(in_time, lake, min(context.defaultParallelism, TASKS_MAX), context.pythonExec, driver)


def probe(run: Run, lake: LakePath, count: int, python: str, driver: str) -> None:
    """Let `count` tasks try the lake's folder. SparkNotStarted. JobFailed: their Python workers were late."""
    token = uuid4().hex
    folder = lake / FOLDER / token
    with lake_errors(lake):
        folder.mkdir(parents=True)
        (folder / "driver").write_bytes(token.encode())
    try:
        try:
            found = started(lambda: run(count, _task(str(folder), token)))
        except (SparkNotStarted, JobFailed):
            raise
        except Exception as error:
            raise SparkNotStarted(_reason(str(error), python, driver)) from error
        _check(found, folder, lake)
    finally:
        with suppress(OSError):
            remove_tree(folder)
            if isinstance(lake, Path):
                (lake / FOLDER).rmdir()


def _check(found: Iterable[Probed], folder: LakePath, lake: LakePath) -> None:
    own = importlib.metadata.version("mqtrail")
    for each in found:
        if each.version != own:
            raise SparkNotStarted(
                f"found mqtrail {each.version} on executor host {each.host}, expected {own}, the driver's: install the "
                "same version there"
            )
        if each.error:
            raise SparkNotStarted(
                f"{lake}: executor host {each.host} does not see this folder as the driver does ({each.error}), "
                "expected a shared folder: mount the lake at the same path, with write access, on every machine"
            )
        if not is_seen(folder / each.name):
            raise SparkNotStarted(
                f"{lake}: the driver does not see what executor host {each.host} wrote here, expected a shared folder: "
                "mount the lake at the same path on every machine"
            )


def _task(folder: str, token: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        name = f"{context.partitionId()}-{context.taskAttemptId()}"
        yield pa.RecordBatch.from_pylist([look(folder, token, name)._asdict()], schema=_arrow_schema())

    return run


def _arrow_schema() -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in Probed._fields])


def look(place: str, token: str, name: str) -> Probed:
    """Look at a folder of the driver from here, and leave a file in it."""
    error = ""
    try:
        folder = place_of(place)
        if (folder / "driver").read_text() != token:
            error = "another file of the same name"
        (folder / name).write_bytes(token.encode())
    except (OSError, LakeUnsupported) as found:  # LakeUnsupported: it lacks the packages for object stores
        error = f"{getattr(found, 'strerror', '') or found}"
    return Probed(socket.gethostname(), importlib.metadata.version("mqtrail"), error, name)


def check_seen(paths: Iterable[LakePath]) -> None:
    """Check that the files of tasks exist here. JobFailed: the executor has a folder of its own."""
    for path in paths:
        if not is_seen(path):
            raise JobFailed(
                f"{path}: found no such file on the driver, expected it, because a task on an executor wrote it: mount "
                "the lake at the same path on every machine; nothing of this batch was committed"
            )


def is_seen(path: LakePath) -> bool:
    """Whether a file exists; wait for it up to SEEN_MS_MAX."""
    end = time.monotonic() + SEEN_MS_MAX / 1000
    while not path.exists():
        if time.monotonic() > end:
            return False
        with suppress(OSError):
            list(path.parent.parent.iterdir())  # opening a folder makes NFS look again
            list(path.parent.iterdir())
        time.sleep(SEEN_POLL_MS / 1000)
    return True


_NO_PYTHON: Final = re.compile(r'Cannot run program "([^"]+)"')
_NO_MODULE: Final = re.compile(r"No module named '?([\w.]+)")
_VERSIONS: Final = re.compile(r"PYTHON_VERSION_MISMATCH\]?\s*([^\n]*)")
_REMOVED: Final = ("Master removed our application", "SparkContext was shut down", "SparkContext was cancelled")


def _reason(text: str, python: str, driver: str) -> str:
    """Return why tasks failed, in one line."""
    if missing := _NO_PYTHON.search(text):
        return (
            f"found no program {missing[1]} on an executor, expected the Python of mqtrail there: install it at this "
            "path on every machine, or name another one with PYSPARK_PYTHON or spark.pyspark.python"
        )
    if module := _NO_MODULE.search(text):
        return (
            f"found no Python module {module[1]} on an executor ({python}), expected mqtrail[pipeline]: install "
            f"mqtrail[pipeline]=={importlib.metadata.version('mqtrail')} there, or name another Python with "
            "PYSPARK_PYTHON or spark.pyspark.python"
        )
    if versions := _VERSIONS.search(text):
        return f"{versions[1].strip()[:300]} Set PYSPARK_PYTHON or spark.pyspark.python to a Python of the same version"
    if any(each in text for each in _REMOVED):
        return (
            "found executors that ended before they ran a task, expected some that run: let them reach the driver at "
            f"{driver} (spark.driver.host, spark.driver.port, spark.blockManager.port), and look at their logs"
        )
    return f"the executors cannot run tasks: {spark_cause(text)}; look at their logs"


def _within(timeout_ms: int, work: Callable[[], list[Probed]]) -> list[Probed]:
    """Return what work returns, or raise what it raises. TimeoutError: it still runs, in a thread of its own."""
    made: list[Any] = []

    def run() -> None:
        try:
            made.append(work())
        except BaseException as error:
            made.append(error)

    thread = Thread(target=run, name="mqtrail-probe", daemon=True)
    thread.start()
    thread.join(timeout_ms / 1000)
    if not made:
        raise TimeoutError
    if isinstance(made[0], BaseException):
        raise made[0]
    found: list[Probed] = made[0]
    return found
