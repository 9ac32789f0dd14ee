"""The Spark session: a context manager that finds Java, configures logs, and always stops the session.

`with spark_session(SessionConfig()) as spark:` gives a session whose scratch files (warehouse, shuffle files, the Java
wrapper) are in one folder, which is deleted with it. A process that also uses DuckDB and pyarrow can abort at its exit
if `spark.stop()` was not called; hence the context manager. The JVM runs until the process ends: Spark starts one per
process, so a second session starts at once, with the heap of the first one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socketserver
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from mqtrail.net import is_ours
from mqtrail.wire import setting

from .java import find_java, wrap_java
from .masters import SparkNotStarted, check_master, executor_python, is_local, overhead_mib, spark_cause, spark_defaults
from .python import wrap_python

# Three retries of a task, so that a killed Python worker does not end the job. Plain local[n] does not retry.
LOCAL_MASTER = "local[*,4]"

# A cycle over some hundred thousand records spends most time on compiling code that runs for a second. With the first
# compiler alone it takes half of the time; from some millions of records on both compilers are faster.
SHORT_SESSION = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
LONG_SESSION = "-XX:+UseParallelGC"

_LOG4J2 = """status = off
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
# The level of the shell's logger is set too: otherwise Spark reports at every start that it changes it.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = {level}
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} spark %p %c{{1}}: %m%n%ex{{short}}
"""

# Spark compiles a stage to one method. With sixty columns it exceeds HotSpot's limit of 8 000 bytes, above which a
# method is only interpreted: the decoding of trace records ran at a fifth of its speed.
_COMPILE_LARGE_METHODS = "-XX:-DontCompileHugeMethods"

# Of this pipeline; spark-defaults.conf and --spark-conf override each of them.
_SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The list of committed files is complete: no summary file and no _SUCCESS beside them.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # One rename per task, none at the end: files of a killed job are never committed, so they are never read.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    # Spark infers a filter from an explode and pushes it below the expression of the array: this computes it twice.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.InferFiltersFromGenerate",
    # One write has few kinds of rows: a writer for each kind avoids a sort by kind.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.cleaner.referenceTracking.cleanCheckpoints": "false",
    "spark.python.worker.reuse": "true",
    # On a busy machine a new Python process answers late. Spark's default limits are 15 and 120 seconds.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.network.timeout": "600s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """How to start Spark. spark_conf has the values of `--spark-conf key=value`, which override all other settings.

    spark-defaults.conf (see `masters`) overrides app_name, master and driver_memory where they have their defaults.
    """

    app_name: str = setting("mqtrail", "name of the Spark application")
    master: str = setting(
        LOCAL_MASTER,
        "Spark master: local[N], spark://HOST:PORT, yarn, k8s://URL; the default retries a task three times",
    )
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    driver_memory: str = setting("2g", "heap of the driver")
    log_level: str = setting("ERROR", "level of Spark's own log")
    java_options: str = setting(LONG_SESSION, "further JVM options")
    scratch: Path | None = setting(
        None, "folder of temporary files; none: a new one in the temporary folder of the system"
    )
    executor_timeout_ms: int = setting(
        120_000, "time that a cluster has to run the first tasks, before a pipeline ends with an error"
    )


@contextmanager
def spark_session(config: SessionConfig | None = None, task_memory: str = "1GB") -> Iterator[SparkSession]:
    """Start Spark, yield the session, and stop it in the end. task_memory: of DuckDB in one task, as `1GB`.

    Raises JavaNotFound before it starts anything, SparkNotStarted if the master does not answer or the JVM does not
    start, RuntimeError if a session is active in this process: the settings of that session would be used silently.
    """
    config = config or SessionConfig()
    if SparkSession.getActiveSession() is not None:
        raise RuntimeError("a Spark session is already active in this process: stop it first, or use that one")
    scratch = Path(tempfile.mkdtemp(prefix="mqtrail-spark-", dir=config.scratch))
    try:
        spark = _start(config, scratch, task_memory)
        _let_the_jvm_go(spark)
        try:
            yield spark
        finally:
            with suppress(Py4JError, OSError):  # its JVM may have ended already
                spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def session_settings(config: SessionConfig, defaults: Mapping[str, str], task_memory: str = "1GB") -> dict[str, str]:
    """Return Spark's settings: this pipeline's, over them those of spark-defaults.conf, over them what config sets."""
    plain = {field.name: field.default for field in fields(SessionConfig)}
    own = {
        name: (str(getattr(config, of)), getattr(config, of) != plain[of])
        for name, of in (
            ("spark.app.name", "app_name"),
            ("spark.master", "master"),
            ("spark.driver.memory", "driver_memory"),
        )
    }
    given = {name: value for name, (value, is_given) in own.items() if is_given} | dict(config.spark_conf)
    below = {name: value for name, (value, _) in own.items()}
    above = {**defaults, **given}
    if is_local(above.get("spark.master", config.master)):
        # The loopback address avoids a look-up of the host name and its warning, and opens no port to others.
        below |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    elif overhead := overhead_mib(above, task_memory):
        below |= {"spark.executor.memoryOverhead": f"{overhead}m"}
    return {**_SETTINGS, **below, **above}


def _start(config: SessionConfig, scratch: Path, task_memory: str) -> SparkSession:
    log4j2 = scratch / "log4j2.properties"
    log4j2.write_text(_LOG4J2.format(level=config.log_level.lower()))
    settings = {
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.local.dir": str(scratch),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{quote(str(log4j2))} "
        f"{_COMPILE_LARGE_METHODS} {config.java_options}",
        "spark.executor.extraJavaOptions": _COMPILE_LARGE_METHODS,
        **session_settings(config, spark_defaults(os.environ), task_memory),
    }
    master = settings["spark.master"]
    check_master(master, os.environ)
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Executors on other hosts do not have the scratch folder.
    own = sys.executable
    python = str(wrap_python(scratch)) if is_local(master) else executor_python(settings, os.environ, own)
    variables = {
        "JAVA_HOME": str(wrap_java(find_java(os.environ), scratch)),
        "PYSPARK_PYTHON": python,
        "PYSPARK_SUBMIT_ARGS": _submit_arguments(settings, scratch),
    }
    with _environment(variables):
        try:
            # Started by the builder, the JVM would be given every setting as an argument, which any user can list.
            SparkContext._ensure_initialized()
            return builder.getOrCreate()
        except Py4JJavaError as error:
            raise SparkNotStarted(
                f"Spark did not start at {master} ({spark_cause(str(error))}), expected a session: look at "
                "--master, --spark-conf and the master's log; driver and cluster need the same version of Spark"
            ) from error
        except (Py4JError, PySparkRuntimeError, OSError) as error:
            raise SparkNotStarted(
                f"Spark did not start ({str(error).strip().splitlines()[0]}), expected a JVM with "
                f"{settings['spark.driver.memory']} of heap: see its output above. Free memory or lower the "
                "heap (driver_memory), and check --master and --spark-conf"
            ) from error


def _submit_arguments(settings: Mapping[str, str], scratch: Path) -> str:
    """Return the launcher's arguments: settings by a file that only this user can read, then those of the environment.

    A value may be a password (`spark.hadoop.fs.s3a.secret.key`).
    """
    file = scratch / "spark.properties"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        for key, value in settings.items():
            opened.write(f"{_escaped(key)}={_escaped(value)}\n")
    given = os.environ.get("PYSPARK_SUBMIT_ARGS") or "pyspark-shell"
    return f"--properties-file {shlex.quote(str(file))} {given}"  # spark-defaults.conf is in it


def _escaped(text: str) -> str:
    """Return a name or value of a .properties file as Java reads it back."""
    return re.sub(r"[\\ :=#!]", r"\\\g<0>", text).replace("\n", "\\n").replace("\r", "\\r")


def _let_the_jvm_go(spark: SparkSession) -> None:
    """Print nothing if the JVM closes its connection to PySpark's accumulator server.

    A signal to the process group ends both processes, and the server would print the lost connection as an unhandled
    exception. Callers that need the JVM get an error from py4j. PySpark creates the server and accepts no class for it,
    so its method is replaced.
    """
    server: socketserver.BaseServer | None = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        original = server.handle_error

        def handle_error(request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), (OSError, EOFError, PySparkRuntimeError)):
                original(request, client_address)

        server.handle_error = handle_error  # type: ignore[method-assign]


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and hide our own ones, while Spark's launcher, a child process, and its context read them."""
    hidden = [name for name in os.environ if is_ours(name)]
    before = {name: os.environ.get(name) for name in (*values, *hidden)}
    os.environ.update(values)
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
