"""Spark's settings from spark-defaults.conf, the environment and the command, and unreachable masters."""

import socket
from pathlib import Path

import pytest

from mqtrail.pipeline import SessionConfig
from mqtrail.pipeline.masters import (
    SparkNotStarted,
    check_master,
    executor_python,
    memory_mib,
    overhead_mib,
    spark_cause,
    spark_defaults,
)
from mqtrail.pipeline.session import LOCAL_MASTER, session_settings

DEFAULTS = """# of the cluster's administrators
spark.master           spark://10.0.0.1:7077
spark.driver.memory=3g
spark.ui.enabled: true
spark.executor.memory  4g
other.key              1
"""
MASTER = "spark://10.0.0.1:7077"


def test_spark_defaults(tmp_path: Path) -> None:
    """The file in SPARK_CONF_DIR, otherwise in SPARK_HOME, is parsed as by Spark; without a file there are no
    settings."""
    assert spark_defaults({"SPARK_HOME": str(tmp_path)}) == {}
    assert spark_defaults({}) == {}  # PySpark's own folder
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    found = {
        "spark.master": MASTER,
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "true",
        "spark.executor.memory": "4g",
    }
    assert spark_defaults({"SPARK_HOME": str(tmp_path)}) == found
    assert spark_defaults({"SPARK_HOME": "/nowhere", "SPARK_CONF_DIR": str(tmp_path / "conf")}) == found
    (tmp_path / "conf" / "spark-defaults.conf").write_bytes(b"\xff")
    with pytest.raises(SparkNotStarted, match=r"spark-defaults\.conf: .*expected Spark settings"):
        spark_defaults({"SPARK_HOME": str(tmp_path)})


def test_precedence() -> None:
    """The command overrides spark-defaults.conf, which overrides the pipeline's settings, as with spark-submit."""
    plain = session_settings(SessionConfig(), {})
    assert plain["spark.master"] == LOCAL_MASTER
    assert plain["spark.driver.host"] == "127.0.0.1"
    assert plain["spark.ui.enabled"] == "false"
    assert "spark.executor.memoryOverhead" not in plain
    defaults = {"spark.master": MASTER, "spark.driver.memory": "3g", "spark.ui.enabled": "true"}
    found = session_settings(SessionConfig(), defaults)
    assert defaults.items() <= found.items()
    assert "spark.driver.host" not in found  # executors on other machines have to reach the driver
    given = SessionConfig(master="local[2]", driver_memory="1g", spark_conf={"spark.ui.enabled": "false"})
    found = session_settings(given, defaults)
    values = [found[f"spark.{name}"] for name in ("master", "driver.memory", "ui.enabled")]
    assert values == ["local[2]", "1g", "false"]
    assert session_settings(SessionConfig(spark_conf={"spark.master": MASTER}), {})["spark.master"] == MASTER


@pytest.mark.parametrize(
    ("settings", "task_memory", "overhead"),
    [
        ({}, "1GB", 384 + 954 + 512),
        ({"spark.executor.cores": "4"}, "2GiB", 384 + 4 * (2048 + 512)),
        ({"spark.executor.cores": "${CORES}"}, "lots", 384 + 1024 + 512),
        ({"spark.executor.memoryOverhead": "6g"}, "1GB", None),
        ({"spark.executor.memoryOverheadFactor": "0.5"}, "1GB", None),
    ],
)
def test_memory_beside_the_heap(settings: dict[str, str], task_memory: str, overhead: int | None) -> None:
    """A container of YARN or Kubernetes has room for the DuckDB of each core, unless the user sets another size."""
    assert overhead_mib(settings, task_memory) == overhead
    found = session_settings(SessionConfig(master="yarn"), settings, task_memory).get("spark.executor.memoryOverhead")
    assert found == (settings.get("spark.executor.memoryOverhead") if overhead is None else f"{overhead}m")


def test_units() -> None:
    """DuckDB's units of memory, rounded up."""
    assert [memory_mib(text) for text in ("1KB", "300MB", "1.5GiB", "1tb")] == [1, 287, 1536, 953_675]


def test_the_python_of_executors() -> None:
    """As in PySpark, the setting comes first, then the variable; otherwise the path of this Python."""
    assert executor_python({}, {}, "/own") == "/own"
    assert executor_python({}, {"PYSPARK_PYTHON": "/venv"}, "/own") == "/venv"
    assert executor_python({"spark.pyspark.python": "./env"}, {"PYSPARK_PYTHON": "/venv"}, "/own") == "./env"


def test_a_master_that_is_not_there() -> None:
    """The error is one line at once, where Spark tries for a minute; one reachable master of several is enough."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}", {})
        check_master(f"k8s://https://127.0.0.1:{port}", {})
    for master in (f"spark://127.0.0.1:{port}", f"k8s://127.0.0.1:{port}", f"k8s://http://127.0.0.1:{port}"):
        with pytest.raises(SparkNotStarted, match=rf"found no Spark master at .*127.0.0.1:{port}: Connection refused"):
            check_master(master, {})


def test_masters_that_spark_finds_by_itself(tmp_path: Path) -> None:
    """YARN needs its configuration; other masters that cannot be tried are left to Spark."""
    with pytest.raises(SparkNotStarted, match=r"expected the folder of yarn-site\.xml"):
        check_master("yarn", {})
    check_master("yarn", {"HADOOP_CONF_DIR": "/etc/hadoop"})
    (tmp_path / "spark-env.sh").touch()
    check_master("yarn", {"SPARK_CONF_DIR": str(tmp_path)})
    for master in ("local[2]", "nonsense", "spark://host:port"):
        check_master(master, {})


def test_causes() -> None:
    """The error quotes the line of Java, not that of py4j, which names only a call."""
    text = "An error occurred while calling o174.collectToPython.\n: org.x.SparkException: Job aborted\n\tat java\n"
    assert spark_cause(text) == "org.x.SparkException: Job aborted"
    assert spark_cause("just this\nand that") == "just this"
    worker = (
        "o1.collect.\n: org.x.SparkException: \nError from python worker:\n  python: 2: /a: not found\nPYTHONPATH was:"
    )
    assert spark_cause(worker) == "org.x.SparkException: Error from python worker: python: 2: /a: not found"
    assert spark_cause(" ") == "no reason given"
