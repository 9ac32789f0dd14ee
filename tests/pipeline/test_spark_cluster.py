"""The job on a standalone Spark cluster: executors that are killed, and executors that cannot run tasks."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.crash import pipeline as crash
from tests.pipeline.standalone import SMALL_JVM, Standalone, standalone

from mqtrail import trail
from mqtrail.lake import TABLES, Lake, arrow_schema, connect, define_compared, parquet_of, run_stages
from mqtrail.testing import embedded

# Four JVMs of Spark and their Python workers: half a minute on a quiet machine.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

MESSAGES = 120
RATE_MAX = 60  # messages a second: so a task that pulls half of them takes two seconds
WAIT_S_MAX = 500.0
RESULTS = (trail.TRAJECTORIES, trail.VERDICTS, trail.LATENCY_MINUTE, trail.KEY_INDEX)
TOML = f"""
[pipeline]
driver_messages_max = 0
driver_attempts_max = 1
task_memory = "300MB"
[spark]
driver_memory = "512m"
java_options = "{SMALL_JVM}"
log_level = "WARN"
executor_timeout_ms = 240_000
"""
DEFAULTS = f"spark.executor.memory 512m\nspark.executor.extraJavaOptions {SMALL_JVM}\nspark.driver.host 127.0.0.1\n"

# In one process, because a JVM takes seconds to start. Prints the error of each session.
ATTEMPTS = """
import json, os, sys
from pathlib import Path
from mqtrail.pipeline import JobConfig, PipelineJob, SessionConfig
from mqtrail.wire import MQError

master, lake, cases = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
for python, conf, timeout_ms in cases:
    os.environ["PYSPARK_PYTHON"] = python
    session = SessionConfig(
        master=master, driver_memory="512m", spark_conf=conf, executor_timeout_ms=timeout_ms, log_level="OFF"
    )
    try:
        with PipelineJob(JobConfig(namesrv="127.0.0.1:1", lake=lake, session=session)):
            print("entered", flush=True)
    except MQError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.fixture(scope="module")
def cluster_of_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a spark-submit user: its own spark-defaults.conf."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    return os.environ | {"SPARK_CONF_DIR": str(tmp_path / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"}


def wait(what: Callable[[], bool], job: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a condition while the job runs."""
    end = time.monotonic() + WAIT_S_MAX
    while not what():
        is_well = job.poll() is None and time.monotonic() < end
        assert is_well, log.read_text()[-3000:]
        time.sleep(0.005)


def rows(lake: Lake, relation: trail.Relation) -> list[tuple[Any, ...]]:
    paths = lake[relation.name].paths()
    columns = ", ".join(relation.names)
    return sorted(duckdb.execute(f"SELECT {columns} FROM {parquet_of(paths)}").fetchall(), key=repr) if paths else []


def judged_at_once(lake: Lake, as_of_ms: int) -> duckdb.DuckDBPyConnection:
    """A connection with one DuckDB's judgement of the lake's evidence, without Spark and without the lake's gold."""
    duck = connect()
    for name in trail.INPUTS:
        if name in [relation.name for relation in trail.COMPARED]:
            continue
        paths = lake[name].paths() if name != trail.GROUP_FOLDS.name else []
        if paths:
            duck.execute(f"CREATE VIEW {name} AS SELECT * FROM {parquet_of(paths)}")
        else:
            duck.register(name, arrow_schema(TABLES[name].relation).empty_table())
    define_compared(duck, as_of_ms, trail.Settings())
    run_stages(duck, trail.judge(as_of_ms), also_read=tuple(relation.name for relation in RESULTS))
    return duck


def test_executors_are_killed_within_a_cycle(
    cluster_of_spark: Standalone, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One executor dies while it pulls, one while it judges: each row is in the lake once, and the verdicts equal those
    of the driver."""
    monkeypatch.setattr(crash, "PAUSE_S", 0.001)
    folder, log, settings = tmp_path / "lake", tmp_path / "job.log", tmp_path / "mqtrail.toml"
    settings.write_text(TOML)
    with embedded() as broker:
        with crash.Clients(broker.namesrv_address) as clients:
            end = time.monotonic() + WAIT_S_MAX
            while len(clients.sent) < MESSAGES:
                assert time.monotonic() < end
                time.sleep(0.05)
        words = ["--namesrv", broker.namesrv_address, "--lake", str(folder), "--config", str(settings), "--json"]
        words += ["--read-rate-max", str(RATE_MAX), "--master", cluster_of_spark.master, "--conf", "spark.cores.max=2"]
        with log.open("wb") as errors:
            job = subprocess.Popen(
                [sys.executable, "-m", "mqtrail", "pipeline", "once", *words],
                env=environment, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        try:
            for worker, prefix in zip(cluster_of_spark.workers, ("mqtrail-pull-", "mqtrail-share-"), strict=True):
                wait(partial(worker.is_in, prefix), job, log)
                for executor in worker.executors():
                    os.kill(executor, signal.SIGKILL)
            report = json.loads(job.communicate(timeout=WAIT_S_MAX)[0])
        finally:
            if job.poll() is None:
                job.kill()
        assert job.returncode == 0, log.read_text()[-3000:]
        assert "ExecutorLostFailure" in log.read_text()
        ends = crash.ends_of(broker.namesrv_address)
    assert crash.problems_of(folder, clients.sent, ends) == []
    assert report["trajectories"] == report["messages"] == len(clients.sent)
    made = Lake.open(folder)
    with judged_at_once(made, report["as_of_ms"]) as duck:
        for relation in RESULTS:
            at_once = duck.execute(f"SELECT {', '.join(relation.names)} FROM {relation.name}").fetchall()
            assert rows(made, relation) == sorted(at_once, key=repr), relation.name


def test_executors_that_cannot_work(cluster_of_spark: Standalone, environment: dict[str, str], tmp_path: Path) -> None:
    """Too little memory, no Python, no mqtrail: each gives an error of one line instead of a job that waits."""
    absent = tmp_path / "absent" / "mqtrail" / "__init__.py"
    absent.parent.mkdir(parents=True)
    absent.write_text("raise ModuleNotFoundError(\"No module named 'mqtrail'\")")
    python = tmp_path / "python"
    module, program = shlex.quote(str(absent.parent.parent)), shlex.quote(sys.executable)  # paths may have spaces
    python.write_text(f'#!/bin/sh\nPYTHONPATH={module}:$PYTHONPATH exec {program} "$@"\n')
    python.chmod(0o755)
    cases = [
        (sys.executable, {"spark.executor.memory": "64g"}, 5_000),
        ("/nowhere/python", {}, 240_000),
        (str(python), {}, 240_000),
    ]
    command = [sys.executable, "-c", ATTEMPTS, cluster_of_spark.master, str(tmp_path / "lake"), json.dumps(cases)]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False)
    starts = ["found no executor of spark://", "found no program /nowhere/python", "found no Python module mqtrail"]
    lines = made.stdout.splitlines()
    assert len(lines) == len(starts), made.stdout + made.stderr
    for line, text in zip(lines, starts, strict=True):
        assert line.startswith(f"SparkNotStarted: {text}"), line
