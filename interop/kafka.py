"""A Kafka server for tests: one node that is broker and controller (KRaft), with its data in a folder.

    with KafkaServer(folder) as kafka:
        AIOKafkaProducer(bootstrap_servers=kafka.address)

A topic is created by whoever needs it; the server creates none by itself.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from interop import jars
from interop.apache import JVM_SMALL, free_port
from interop.probe import wait_until

SET: Final = "kafka-4.1.0"
START_TIMEOUT_S: Final = 120.0
CLUSTER_ID: Final = "bXF0cmFpbC1pbnRlcm9wLg"
LOG4J: Final = """Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout:
        pattern: "%d %p %c - %m%n"
  Loggers:
    Root:
      level: WARN
      AppenderRef:
        - ref: STDOUT
"""


class KafkaServer:
    """A Kafka node at `address`, whose files are below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.yaml").write_text(LOG4J)
        controller = self.port + 1  # free_port gives a block
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.cleaner.enable": "false",  # its buffers take 128 MB
        }
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        format_ = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        run = subprocess.run([*self._java(), *format_], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise jars.InteropError(f"Kafka could not format its folder:\n{(run.stdout + run.stderr)[-3000:]}")
        command = [*self._java(), "kafka.Kafka", str(properties)]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (self.folder / "console.log").open("wb") as console:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, cwd=self.folder
            )
        try:
            wait_until(self._is_ready, "Kafka ready", START_TIMEOUT_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _java(self) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.yaml'}"
        return [jars.java_tool("java"), *JVM_SMALL, log4j, "-cp", jars.classpath(SET)]

    def _is_ready(self) -> bool:
        """Return whether it accepts connections; it opens the port after it has joined itself."""
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            text = (self.folder / "console.log").read_text(errors="replace")[-3000:]
            raise jars.InteropError(f"Kafka ended with {status}:\n{text}")
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
