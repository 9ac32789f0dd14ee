"""A Kafka server for tests: one node that is broker and controller (KRaft), with its data in a folder.

    with KafkaServer(folder) as kafka:
        AIOKafkaProducer(bootstrap_servers=kafka.address)

A topic is created by whoever needs it; the server creates none by itself.

With a `KafkaLogin` the address takes SASL_SSL connections of two users, by PLAIN and SCRAM-SHA-512: one may do
everything, the other one nothing.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from interop import jars
from interop.apache import JVM_SMALL, free_port
from interop.java_server import JavaServer

SET: Final = "kafka-4.1.0"
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


@dataclass(frozen=True, slots=True)
class KafkaLogin:
    """How to log in to the server. key_store: private key (PKCS #8) and certificates for 127.0.0.1, PEM."""

    key_store: Path
    user: str = "mqtrail"
    stranger: str = "stranger"
    password: str = "a-password"

    def settings(self) -> dict[str, str]:
        """Return settings of the server."""
        users = " ".join(f'user_{name}="{self.password}"' for name in (self.user, self.stranger))
        login, modules = "listener.name.sasl_ssl", "org.apache.kafka.common.security"
        return {
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{login}.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required {users};",
            f"{login}.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.key_store),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{self.user};User:ANONYMOUS",  # the node itself has no user
        }


class KafkaServer:
    """A Kafka node at `address`, whose files are below `folder`."""

    def __init__(self, folder: Path, jvm: Sequence[str] = JVM_SMALL, login: KafkaLogin | None = None) -> None:
        """jvm: options of Java. login: None: PLAINTEXT without users."""
        self.folder = folder
        self._login = login
        self.port = free_port()
        self._server = JavaServer("Kafka", SET, folder, jvm)

    @property
    def pid(self) -> int:
        """Its process, while it runs."""
        return self._server.pid

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.yaml").write_text(LOG4J)
        controller, inside = self.port + 1, self.port - 1  # free_port gives a block
        clients = f"PLAINTEXT://{self.address}"
        if self._login is not None:
            clients = f"SASL_SSL://{self.address},PLAINTEXT://127.0.0.1:{inside}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": clients,
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
        further: list[str] = []
        if self._login is not None:
            settings |= self._login.settings()
            further = ["--add-scram", f"SCRAM-SHA-512=[name={self._login.user},password={self._login.password}]"]
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log4j = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.yaml'}"
        format_ = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), *further]
        run = subprocess.run(self._server.command(log4j, *format_), capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise jars.InteropError(f"Kafka could not format its folder:\n{(run.stdout + run.stderr)[-3000:]}")
        self._server.start([log4j, "kafka.Kafka", str(properties)], self._is_ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.end()

    def _is_ready(self) -> bool:
        """Return whether it accepts connections; it opens the port after it has joined itself."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True
