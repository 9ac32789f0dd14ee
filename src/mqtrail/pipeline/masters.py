"""Settings of Spark from outside: spark-defaults.conf, the environment, the master's address; checked before a start.

Precedence is that of spark-submit: a setting of the command or of mqtrail.toml, then `spark-defaults.conf` in
SPARK_CONF_DIR (otherwise in `$SPARK_HOME/conf`), then what this pipeline sets by itself. So files that a cluster's
administrators wrote for spark-submit hold here too.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pyspark

from mqtrail.wire import MQError, properties_of

CONNECT_MS_MAX = 5_000  # to the port of a master
_MASTER_PORT = 7077
_PORTS = {"https": 443, "http": 80}


class SparkNotStarted(MQError):
    """Spark cannot be used: its JVM ended, its master does not answer, or its executors cannot run tasks."""


def is_local(master: str) -> bool:
    """Whether the executors are this machine's."""
    return master.startswith("local")


def spark_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of spark-defaults.conf; none if there is no such file. SparkNotStarted: it is unreadable."""
    file = _conf_folder(environ) / "spark-defaults.conf"
    try:
        found = properties_of(file.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SparkNotStarted(
            f"{file}: {error}, expected Spark settings: repair the file, or set SPARK_CONF_DIR to another folder"
        ) from error
    return {key: value for key, value in found.items() if key.startswith("spark.")}


def _conf_folder(environ: Mapping[str, str]) -> Path:
    home = environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    return Path(environ.get("SPARK_CONF_DIR") or Path(home) / "conf")


def executor_python(settings: Mapping[str, str], environ: Mapping[str, str], own: str) -> str:
    """Return the Python of executors on other machines, as PySpark looks for it; own: what is taken without any."""
    return settings.get("spark.pyspark.python") or environ.get("PYSPARK_PYTHON") or own


def check_master(master: str, environ: Mapping[str, str]) -> None:
    """Fail at once where Spark would try for a minute. SparkNotStarted: nothing accepts connections at the master."""
    has_yarn = environ.get("HADOOP_CONF_DIR") or environ.get("YARN_CONF_DIR")
    # Spark's launcher reads spark-env.sh, which can set these variables.
    if master.startswith("yarn") and not has_yarn and not (_conf_folder(environ) / "spark-env.sh").exists():
        raise SparkNotStarted(
            "found --master yarn without HADOOP_CONF_DIR or YARN_CONF_DIR, expected the folder of yarn-site.xml: set "
            "one of them"
        )
    failures = []
    for host, port in _addresses(master):
        try:
            socket.create_connection((host, port), CONNECT_MS_MAX / 1000).close()
            return
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
    if failures:
        raise SparkNotStarted(
            f"found no Spark master at {master} ({'; '.join(failures)}), expected one that accepts connections: start "
            "it, open its port, or pass another --master"
        )


def _addresses(master: str) -> list[tuple[str, int]]:
    """The addresses of a master that can be tried; none if Spark finds it another way."""
    if master.startswith("spark://"):
        parts = [urlsplit(f"spark://{each}") for each in master.removeprefix("spark://").split(",")]
    elif master.startswith("k8s://"):
        address = master.removeprefix("k8s://")
        parts = [urlsplit(address if "://" in address else f"https://{address}")]
    else:
        return []
    try:
        return [(each.hostname or "", each.port or _PORTS.get(each.scheme, _MASTER_PORT)) for each in parts]
    except ValueError:  # Spark reports what is wrong with it
        return []


CAUSE_LENGTH_MAX = 500


def spark_cause(text: str) -> str:
    """Return what Java threw, in one line, from the text of an error. The first line of py4j's names only a call.

    A line that ends in a colon goes on in the next one: so does what a Python worker printed before it ended.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    start = next((number for number, line in enumerate(lines) if line.startswith(": ")), 0)
    cause, *more = lines[start:]
    while cause.endswith(":") and more:
        cause = f"{cause} {more.pop(0)}"
    return cause.removeprefix(": ")[:CAUSE_LENGTH_MAX]


def overhead_mib(settings: Mapping[str, str], task_memory: str) -> int | None:
    """Return the memory beside an executor's heap that its tasks need; None: the settings say it themselves.

    YARN and Kubernetes kill a container that takes more than its heap and this. Spark's default is a tenth of the heap
    or 384 MiB, which is less than one task of DuckDB takes.
    """
    if any(f"spark.executor.{name}" in settings for name in ("memoryOverhead", "memoryOverheadFactor")):
        return None
    cores = settings.get("spark.executor.cores", "1")
    return OVERHEAD_MIB + (int(cores) if cores.isdigit() else 1) * (memory_mib(task_memory) + PYTHON_MIB)


OVERHEAD_MIB = 384  # of the JVM itself, Spark's own least
PYTHON_MIB = 512  # of a Python worker beside its DuckDB: messages that are pulled, Arrow, modules
_MEMORY = re.compile(r"([\d.]+)\s*([kmgt])(i?)b?", re.IGNORECASE)


def memory_mib(text: str) -> int:
    """Return DuckDB's `1GB` or `512MiB` in MiB, rounded up; of a text that is neither, those of 1GB."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        return 1024
    power = "kmgt".index(match[2].lower()) + 1
    size = float(match[1]) * (1024 if match[3] else 1000) ** power
    return -int(-size // (1 << 20))
