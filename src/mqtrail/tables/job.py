"""The job: from a binlog topic to a Delta table, in batches of exact ranges.

    offsets of the table → ranges up to the queues' ends → changes (`changes.digest`) → merge and offsets, one commit

A small batch is read in this process, a large one by Spark's source `rocketmq`; both make the same batches of changes.
Spark starts with the first large batch.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mqtrail.client import InstanceConfig
from mqtrail.clock import now_ms
from mqtrail.pipeline import (
    Bounds,
    BrokerUnreachable,
    Cluster,
    QueueOffsets,
    QueueRange,
    Retrying,
    RocketMQDataSource,
    SessionConfig,
    advance,
    bounds_of,
    connect,
    offsets_to_json,
    parse_options,
    ranges_between,
    read_ranges,
    security_options,
    spark_session,
)
from mqtrail.wire import MessageQueue, MQError

from .changes import DIGEST_DDL, MESSAGE_COLUMNS, Digest, Wanted, digest
from .model import BATCH_COUNT, HERE_COUNT, TableError
from .target import DeltaTarget

_SCHEMA = (
    "broker_name string, queue_id int, queue_offset bigint, msg_id string, keys string, body binary, "
    "body_problem string"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """What to read, and the table. source: database.table; ""; that of the table."""

    namesrv: str
    topic: str
    table: Path
    source: str = ""
    ignores_other: bool = False
    batch_count: int = BATCH_COUNT
    here_count: int = HERE_COUNT  # of a batch that is read without Spark
    retry_timeout_ms: int = 30_000
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    session: SessionConfig = field(default_factory=SessionConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """What a run merged. behind: messages left. lag_ms: age of the newest message read; 0: nothing is left."""

    table: str
    source: str
    topic: str
    version: int
    messages: int
    changes: int
    repeated: int
    late: int
    schema: int
    elsewhere: int
    other: int
    behind: int
    lag_ms: int
    seconds: float


class TableJob:
    """Merges a topic into a table. Enter it: it is then the table's only writer."""

    def __init__(self, config: TableConfig, warn: Callable[[str], None] = lambda text: None) -> None:
        self.config = config
        self._warn = warn
        self._stack = ExitStack()
        self._spark: SparkSession | None = None
        self._cluster: Cluster | None = None
        self._target: DeltaTarget | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._found()  # before anything is made in a folder of something else
            stack.enter_context(DeltaTarget.alone(self.config.table))
            found, source = self._found()  # another run may have made it, or written to it, until now
            cluster = self._connected()
            stack.callback(cluster.close)
            self._cluster = cluster
            self._bounds()  # before a table is made for a topic that is not there
            self._target = found or DeltaTarget.create(self.config.table, self.config.topic, source)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def use(self, spark: SparkSession) -> Self:
        """Use a running session for large batches; the caller stops it."""
        spark.dataSource.register(RocketMQDataSource)
        self._spark = spark
        return self

    @property
    def target(self) -> DeltaTarget:
        """The table, while the job is entered."""
        assert self._target is not None, "use the job within `with TableJob(...)`"
        return self._target

    def once(self, stop: Event | None = None) -> TableReport:
        """Merge what the topic has now. TableError, TableUnreadable, MQError: what was committed stays."""
        begun = time.monotonic()
        bounds = self._all_bounds()
        at = self._begin(bounds)
        ends = {queue: end for queue, (_, end) in bounds.items()}
        counts: Counter[str] = Counter()
        last_ms = 0
        while ranges := ranges_between(at, upto := advance(at, ends, self.config.batch_count)):
            if stop is not None and stop.is_set():
                break
            made = self._read(ranges)
            self.target.apply(made, upto)
            at = upto
            counts += made.counts
            last_ms = max(last_ms, made.last_ms)
        behind = sum(each.count for each in ranges_between(at, ends))
        names = ("messages", "changes", "repeated", "late", "schema", "elsewhere", "other")
        return TableReport(
            table=str(self.config.table),
            source=self.target.source,
            topic=self.config.topic,
            version=self.target.version,
            behind=behind,
            lag_ms=max(now_ms() - last_ms, 0) if behind else 0,
            seconds=round(time.monotonic() - begun, 3),
            **{name: counts[name] for name in names},
        )

    def run(self, interval_ms: int, stop: Event, show: Callable[[TableReport], None] = lambda report: None) -> None:
        """Merge every interval_ms until stop is set, which ends it after the commit under way."""
        while not stop.is_set():
            begun = time.monotonic()
            report = self.once(stop)
            if report.messages:
                show(report)
            stop.wait(max(interval_ms / 1000 - (time.monotonic() - begun), 0))

    # -- parts -----------------------------------------------------------------------------------------------------

    def _found(self) -> tuple[DeltaTarget | None, str]:
        """Return the table, if there is one, and its source."""
        config, found = self.config, DeltaTarget.open(self.config.table)
        source = config.source or (found.source if found is not None else "")
        if "." not in source.strip("."):
            raise TableError(
                f"found the source table {source!r}, expected database.table, whose changes the table gets: pass "
                "--source"
            )
        if found is not None:
            found.check(config.topic, source)
        return found, source

    def _options(self) -> dict[str, str]:
        return {
            "nameServer": self.config.namesrv,
            "topic": self.config.topic,
            "failOnDataLoss": "true",
            "retryTimeoutMs": str(self.config.retry_timeout_ms),
            **security_options(self.config.instance),
        }

    def _connected(self) -> Cluster:
        options = parse_options(self._options())
        return connect(options.name_server, None, options.credentials, options.tls)

    def _bounds(self) -> Bounds:
        assert self._cluster is not None
        topic = self.config.topic
        found = bounds_of(self._cluster, [topic], self.config.retry_timeout_ms, hold_unreachable=False)
        if not found:
            raise TableError(
                f"found no topic {topic!r} at {self.config.namesrv}, expected that of `mqtrail binlog run`: check "
                "--topic and --namesrv"
            )
        return found

    def _all_bounds(self) -> Bounds:
        """Return the bounds, also of each queue that was read before. BrokerUnreachable: one keeps having no route."""
        found = self._bounds()
        if self.target.queues <= found.keys():
            return found
        return Retrying(self.config.retry_timeout_ms)(f"the route of topic {self.config.topic}", self._routed)

    def _routed(self) -> Bounds:
        found = self._bounds()
        if gone := sorted(self.target.queues.difference(found)):
            raise BrokerUnreachable(
                f"found no route of {len(gone)} queues that the table was read from, the first is {gone[0]}, expected "
                "all of them, or their messages would be missed: run this again when their broker is back; if the "
                "topic was made smaller for good, build a new table from a new snapshot: `mqtrail binlog run` with a "
                "new --state and a new topic, then this command with another --table"
            )
        return found

    def _begin(self, bounds: Bounds) -> QueueOffsets:
        """Return where to read each queue. TableError: the topic no longer has what comes next."""
        at = {}
        for queue, (first, end) in sorted(bounds.items()):
            known = self.target.offset(queue)
            if known is None:
                if first:
                    self._warn(
                        f"{queue} begins at offset {first}: the changes before it expired, so rows may be missing; "
                        "build a table from a new snapshot if so"
                    )
                at[queue] = first
                continue
            if not first <= known <= end:
                raise TableError(
                    f"found messages [{first}, {end}) in {queue}, expected those from {known} on, up to which the "
                    "table has read it: they expired, or the topic was deleted and created again. Build a new table "
                    "from a new snapshot: `mqtrail binlog run` with a new --state and a new topic, then this command "
                    "with another --table"
                )
            at[queue] = known
        return at

    def _read(self, ranges: Sequence[QueueRange]) -> Digest:
        made = Digest()
        wanted = Wanted(self.target.source, self.config.ignores_other)
        is_small = sum(each.count for each in ranges) <= self.config.here_count
        for batch in (self._here if is_small else self._by_spark)(wanted, ranges):
            made.add_batch(batch)
        return made

    def _here(self, wanted: Wanted, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        assert self._cluster is not None
        return digest(wanted, read_ranges(self._cluster, ranges, MESSAGE_COLUMNS, parse_options(self._options())))

    def _by_spark(self, wanted: Wanted, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        spark = self._spark or self._started()
        starts: dict[MessageQueue, int] = {each.queue: each.start for each in ranges}
        ends = {each.queue: each.end for each in ranges}
        # Queues that the JSON lacks are not read, which is what a range without messages means.
        options = self._options() | {
            "startingOffsets": json.dumps(offsets_to_json(starts)),
            "endingOffsets": json.dumps(offsets_to_json(ends)),
        }
        rows = spark.read.format("rocketmq").schema(_SCHEMA).options(**options).load()
        try:
            found: Any = rows.mapInArrow(partial(digest, wanted), DIGEST_DDL).toArrow()
        except (PySparkException, Py4JJavaError) as error:
            raise _failure(str(error)) from error
        batches: list[pa.RecordBatch] = found.to_batches()
        return iter(batches)

    def _started(self) -> SparkSession:
        """Start Spark, which sets a handler of SIGINT: the one from before stays."""
        before = signal.getsignal(signal.SIGINT)
        spark = self._stack.enter_context(spark_session(self.config.session))
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
        self.use(spark)
        return spark


def _failure(text: str) -> MQError:
    """Return the error of a task of Spark for users."""
    own: list[tuple[str, str]] = re.findall(r"^\s*(?:E\s+)?mqtrail\.([\w.]+): (.+)$", text, re.MULTILINE)
    if own:
        name, cause = own[-1]
        return TableError(cause) if name.startswith("tables.") else MQError(cause)
    return TableError(f"Spark failed ({text.splitlines()[0][:300]}), expected tasks that end: look at its log")
