"""Spark's settings may be passwords: no process shows them in its command line, and no other user can read them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.conftest import SECRET, SECRET_KEY

from mqtrail.pipeline.session import _environment, _escaped, _submit_arguments
from mqtrail.wire import properties_of


@pytest.mark.spark
def test_no_setting_in_a_command_line(spark: SparkSession) -> None:
    """Spark's launcher and JVM read the settings from a file of this user, and get all of them."""
    context = spark.sparkContext
    scratch = Path(context.getConf().get("spark.local.dir", ""))
    lines = list(command_lines())
    assert [line for line in lines if "SparkSubmit" in line and str(scratch) in line]
    assert [line for line in lines if SECRET[:7] in line] == []
    assert [file.stat().st_mode & 0o77 for file in scratch.rglob("spark.properties")] == [0]
    assert context.getConf().get(SECRET_KEY) == SECRET
    assert context.appName == "mqtrail tests"
    assert context._jvm is not None
    assert 512 <= context._jvm.Runtime.getRuntime().maxMemory() >> 20 <= 1024


def command_lines() -> Iterator[str]:
    """The command line of each process on this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            yield (folder / "cmdline").read_bytes().decode("utf-8", "replace")


def test_the_environment_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's arguments for Spark's launcher follow ours."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages a:b:1 pyspark-shell")
    arguments = _submit_arguments({"spark.x": "1"}, tmp_path)
    assert arguments.endswith(" --packages a:b:1 pyspark-shell")
    assert os.stat(tmp_path / "spark.properties").st_mode & 0o77 == 0


@pytest.mark.parametrize("text", [SECRET, " a", "a\nb", "a\r\nb", "", "\\", "a=b:c"])
def test_values_are_read_back(text: str) -> None:
    """.properties text keeps any value of a setting."""
    assert properties_of(f"{_escaped('spark.a:b')}={_escaped(text)}\n") == {"spark.a:b": text}


def test_spark_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of ours are hidden while its processes start, and are there again afterwards."""
    monkeypatch.setenv("MQTRAIL_SECRET_KEY", SECRET)
    monkeypatch.delenv("OF_SPARK", raising=False)
    with _environment({"OF_SPARK": "x"}):
        assert "MQTRAIL_SECRET_KEY" not in os.environ
        assert os.environ["OF_SPARK"] == "x"
    assert os.environ["MQTRAIL_SECRET_KEY"] == SECRET
    assert "OF_SPARK" not in os.environ
