"""Kafka's own MirrorMaker 2: copies topics of one Kafka to another one.

with MirrorMaker(folder, source.address, target.address, "orders-.*"):
    ...  # topic orders-1 of the source is topic source.orders-1 of the target
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from interop.apache import JVM_SMALL
from interop.java_server import JavaServer
from interop.kafka import LOG4J

SET: Final = "mirror-4.1.0"
TASKS: Final = 2


class MirrorMaker:
    """One process of MirrorMaker 2 with its own worker. It looks for new topics each second."""

    def __init__(self, folder: Path, source: str, target: str, topics: str, jvm: Sequence[str] = JVM_SMALL) -> None:
        """source, target: host:port. topics: a regular expression. jvm: options of Java."""
        self.folder = folder
        self._addresses = {"source": source, "target": target}
        self._topics = topics
        self._server = JavaServer("MirrorMaker 2", SET, folder, jvm)

    @property
    def pid(self) -> int:
        """Its process, while it runs."""
        return self._server.pid

    @staticmethod
    def copy_of(topic: str) -> str:
        """Return the name that a topic has in the target."""
        return f"source.{topic}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.yaml").write_text(LOG4J)
        settings = {
            "clusters": "source,target",
            **{f"{name}.bootstrap.servers": address for name, address in self._addresses.items()},
            "source->target.enabled": "true",
            "source->target.topics": self._topics,
            "target->source.enabled": "false",
            "tasks.max": str(TASKS),
            "refresh.topics.interval.seconds": "1",
            "emit.heartbeats.enabled": "false",
            "emit.checkpoints.enabled": "false",
            **{
                f"{name}.replication.factor": "1"
                for name in (
                    *("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"),
                    *("offset.storage", "status.storage", "config.storage"),
                )
            },
            "replication.factor": "1",
        }
        properties = self.folder / "mm2.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log4j = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.yaml'}"
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        self._server.start([log4j, main, str(properties), "--clusters", "target"], lambda: True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.end()
