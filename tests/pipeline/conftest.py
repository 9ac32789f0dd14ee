"""One Spark session for all tests of the room, and a cluster in a folder for its source to read."""

import os
import pickle
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from mqtrail.pipeline import RocketMQDataSource, SessionConfig, spark_session
from mqtrail.pipeline.cluster import Cluster, Pulled
from mqtrail.pipeline.options import SourceOptions
from mqtrail.wire import (
    CompressionType,
    Host,
    MessageQueue,
    MQError,
    compress,
    decode_head,
    encode_properties,
    encode_record,
)

# The workers of Spark cannot import this module. pyspark has no types for cloudpickle.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

SECRET_KEY = "spark.hadoop.fs.s3a.secret.key"
SECRET = r"hunter2 =:#!\ü '\"$HOME"


@pytest.fixture(scope="session", params=["spark"])  # the scheduler recognises tests that use it by their names
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small session: two cores, one retry per task, only the first JIT compiler, files in a folder with a blank."""
    scratch: Path = tmp_path_factory.mktemp("spark scratch")
    config = SessionConfig(
        app_name="mqtrail tests",
        master="local[2,2]",
        driver_memory="1g",
        java_options="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        scratch=scratch,
        spark_conf={SECRET_KEY: SECRET},
    )
    with spark_session(config) as session:
        session.dataSource.register(FolderDataSource)
        yield session
    assert not list(scratch.iterdir())


@pytest.fixture
def cluster(tmp_path: Path) -> "FolderCluster":
    """An empty cluster; its folder is the source's nameServer."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    return FolderCluster(folder)


class FolderDataSource(RocketMQDataSource):
    """The source, reading a folder instead of a network, from any process."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-folder"

    def connect(self, options: SourceOptions, read_rate_max: float | None = None) -> Cluster:
        return FolderCluster(Path(options.name_server))


class FolderCluster:
    """A cluster in a folder: one file per queue, so that every process sees what a test changes."""

    PULL_COUNT_MAX = 7

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # What a test does.

    def append(
        self, queue: MessageQueue, *bodies: bytes, properties: Mapping[str, str] | None = None, **record: int
    ) -> None:
        """Store messages at the queue's end; a keyword sets that field of encode_record for all of them."""
        first, records = self._load(queue)
        for body in bodies:
            queue_offset = first + len(records)
            values = {
                "queue_id": queue.queue_id,
                "queue_offset": queue_offset,
                "physical_offset": 1_000 * queue_offset,
                "born_timestamp_ms": 1_700_000_000_000 + queue_offset,
                "store_timestamp_ms": 1_700_000_000_005 + queue_offset,
            } | record
            own = {"UNIQ_KEY": f"{queue.topic}-{queue.queue_id}-{queue_offset}", "KEYS": "k1 k2"} | dict(
                properties or {}
            )
            records.append(
                encode_record(
                    queue.topic,
                    body,
                    encode_properties(own).encode(),
                    born_host=Host("10.0.0.9", 50_000).packed(),
                    store_host=Host("10.0.0.1", 10_911).packed(),
                    **values,
                )
            )
        self._save(queue, first, records)

    def append_compressed(self, queue: MessageQueue, body: bytes) -> None:
        """Store one zlib-compressed message."""
        self.append(queue, compress(body), sys_flag=CompressionType.ZLIB.sys_flag)

    def damage(self, queue: MessageQueue, queue_offset: int) -> None:
        """Overwrite one record's magic."""
        first, records = self._load(queue)
        record = records[queue_offset - first]
        records[queue_offset - first] = record[:4] + b"\0\0\0\0" + record[8:]
        self._save(queue, first, records)

    def expire(self, queue: MessageQueue, first: int) -> None:
        """Remove the messages before first."""
        old, records = self._load(queue)
        self._save(queue, first, records[first - old :])

    def recreate(self, queue: MessageQueue) -> None:
        """Empty the queue; offsets begin at 0 again."""
        self._save(queue, 0, [])

    def break_down(self, request: str, count: int) -> None:
        """Let the next count requests named name fail."""
        (self.folder / f"broken-{request}").write_text(str(count))

    def kill(self, request: str) -> None:
        """Kill the process that makes the next request named name."""
        (self.folder / f"deadly-{request}").touch()

    # What the source asks.

    def topics(self) -> list[str]:
        self._answer("topics")
        return sorted({pickle.loads(path.read_bytes())[0].topic for path in self.folder.glob("*.queue")})

    def queues(self, topic: str) -> list[MessageQueue]:
        self._answer("queues")
        found = [pickle.loads(path.read_bytes())[0] for path in self.folder.glob("*.queue")]
        return sorted(queue for queue in found if queue.topic == topic)

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        self._answer("bounds")
        first, records = self._load(queue)
        return first, first + len(records)

    def topic_bounds(self, topic: str, broker_name: str) -> dict[MessageQueue, tuple[int, int]]:
        self._answer("bounds")
        found = [pickle.loads(path.read_bytes()) for path in self.folder.glob(f"{topic}-{broker_name}-*.queue")]
        return {queue: (first, first + len(records)) for queue, first, records in found}

    def offset_by_time(self, queue: MessageQueue, at_ms: int) -> int:
        """Search by bisection like a broker, whatever the order of the times."""
        self._answer("offset_by_time")
        first, records = self._load(queue)
        return first + bisect_left(records, at_ms, key=lambda record: decode_head(record).store_timestamp_ms)

    def pull(self, queue: MessageQueue, queue_offset: int, count_max: int) -> Pulled:
        self._answer("pull")
        first, records = self._load(queue)
        end = first + len(records)
        if not first <= queue_offset < end:
            return Pulled((), max(first, min(queue_offset, end)), first, end)
        found = records[queue_offset - first :][: min(count_max, self.PULL_COUNT_MAX)]
        return Pulled(found, queue_offset + len(found), first, end)

    def close(self) -> None:
        pass

    def _answer(self, request: str) -> None:
        path = self.folder / f"broken-{request}"
        left = int(path.read_text()) if path.exists() else 0
        deadly = self.folder / f"deadly-{request}"
        if deadly.exists():
            deadly.unlink()
            os._exit(9)
        if left:
            path.write_text(str(left - 1))
            raise MQError(f"{request} is broken on purpose")

    def _path(self, queue: MessageQueue) -> Path:
        return self.folder / f"{queue.topic}-{queue.broker_name}-{queue.queue_id}.queue"

    def _load(self, queue: MessageQueue) -> tuple[int, list[bytes]]:
        path = self._path(queue)
        if not path.exists():
            return 0, []
        _, first, records = pickle.loads(path.read_bytes())
        return first, records

    def _save(self, queue: MessageQueue, first: int, records: list[bytes]) -> None:
        self._path(queue).write_bytes(pickle.dumps((queue, first, records)))
