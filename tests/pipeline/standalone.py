"""A standalone Spark cluster on this machine, from the files of PySpark's wheel: a master and workers of one core.

Ports are free ones, and the REST port of the master, which runs anything submitted to it, is closed. Each worker has
its own scratch folders, so that a test can see which one runs a task.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from mqtrail.pipeline.java import find_java, wrap_java

START_S_MAX = 180.0
SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"
CLASS = "org.apache.spark.deploy"
MEMORY = "1g"  # that a worker offers


@dataclass(frozen=True)
class SparkWorker:
    """A worker and its executors."""

    process: subprocess.Popen[bytes]
    scratch: Path

    def is_in(self, prefix: str) -> bool:
        """Whether a task of this worker has a temporary folder whose name starts with prefix."""
        return any(name.startswith(prefix) for _, folders, _ in os.walk(self.scratch) for name in folders)

    def executors(self) -> list[int]:
        """Return the processes of the executors: the worker's only children."""
        return [
            int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _parent(path) == self.process.pid
        ]


@dataclass(frozen=True)
class Standalone:
    """The address of a master, and its workers."""

    master: str
    workers: tuple[SparkWorker, ...]


@contextmanager
def standalone(folder: Path, worker_count: int = 2) -> Iterator[Standalone]:
    """Run a cluster while the block runs."""
    home = Path(pyspark.__file__).parent
    (folder / "conf").mkdir()
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.master.rest.enabled=false {SMALL_JVM}",
        "JAVA_HOME": str(wrap_java(find_java(os.environ), folder)),
    }
    with ExitStack() as stack:

        def start(name: str, kind: str, *words: str, **more: str) -> subprocess.Popen[bytes]:
            own = ["--host", "127.0.0.1", "--webui-port", "0"]
            command = [str(home / "bin" / "spark-class"), f"{CLASS}.{kind}", *own, *words]
            with (folder / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, env=environment | more, start_new_session=True
                )
            stack.callback(_end, process)
            return process

        master = start("master", "master.Master", "--port", "0")
        address = _logged(folder / "master.log", master, r"Starting Spark master at (spark://\S+)")
        workers = []
        for number in range(worker_count):
            name, scratch = f"worker-{number}", folder / f"scratch-{number}"
            scratch.mkdir()
            words = ("--cores", "1", "--memory", MEMORY, "--work-dir", str(folder / name), address)
            process = start(name, "worker.Worker", *words, SPARK_LOCAL_DIRS=str(scratch))
            workers.append(SparkWorker(process, scratch))
        yield Standalone(address, tuple(workers))


def _logged(log: Path, process: subprocess.Popen[bytes], pattern: str) -> str:
    end = time.monotonic() + START_S_MAX
    while True:
        if found := re.search(pattern, log.read_text("utf-8", "replace")):
            return found[1]
        is_well = process.poll() is None and time.monotonic() < end
        assert is_well, log.read_text("utf-8", "replace")[-3000:]
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with its executors."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0
