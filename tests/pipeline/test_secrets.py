"""Settings of Spark may be passwords: no process shows them in its command line, and no other user can read them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqtrail.pipeline.session import _escaped, _submit_arguments
from mqtrail.wire import properties_of

SECRET = r"hunter2 =:#!\ü '\"$HOME"
SCRIPT = """
import json, sys
from pathlib import Path
from mqtrail.pipeline import SHORT_SESSION, SessionConfig, spark_session

secret, scratch = sys.stdin.readline(), Path(sys.argv[1])
conf = {"spark.hadoop.fs.s3a.secret.key": secret}
config = SessionConfig(
    master="local[1]", driver_memory="512m", java_options=SHORT_SESSION, spark_conf=conf, scratch=scratch
)
with spark_session(config) as spark:
    lines = [file.read_bytes().decode("utf-8", "replace") for file in _files("cmdline")]
    context = spark.sparkContext
    print(json.dumps({
        "java": sum("SparkSubmit" in line and str(scratch) in line for line in lines),
        "shown": [line for line in lines if secret[:7] in line],
        "modes": [oct(file.stat().st_mode & 0o77) for file in scratch.rglob("spark.properties")],
        "read": context.getConf().get("spark.hadoop.fs.s3a.secret.key"),
        "heap": context._jvm.Runtime.getRuntime().maxMemory() >> 20,
        "name": context.appName,
    }))
"""
FILES = """
def _files(name):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            (folder / name).read_bytes()
        except OSError:
            continue
        yield folder / name
"""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks at the command lines in /proc")
def test_no_setting_in_a_command_line(tmp_path: Path) -> None:
    """Spark's launcher and JVM get the settings by a file of this user, and all of them arrive."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("\nsecret", FILES + "\nsecret", 1), str(tmp_path)],
        input=SECRET,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["java"] >= 1
    assert found["shown"] == []
    assert found["modes"] == ["0o0"]
    assert found["read"] == SECRET
    assert found["name"] == "mqtrail"
    assert 256 <= found["heap"] <= 512


def test_the_environment_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that a user has set for Spark's launcher follow ours."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages a:b:1 pyspark-shell")
    arguments = _submit_arguments({"spark.x": "1"}, tmp_path)
    assert arguments.endswith(" --packages a:b:1 pyspark-shell")
    assert os.stat(tmp_path / "spark.properties").st_mode & 0o77 == 0


@pytest.mark.parametrize("text", [SECRET, " a", "a\nb", "a\r\nb", "", "\\", "a=b:c"])
def test_values_are_read_back(text: str) -> None:
    """Whatever a setting holds, .properties text gives it back."""
    assert properties_of(f"{_escaped('spark.a:b')}={_escaped(text)}\n") == {"spark.a:b": text}
