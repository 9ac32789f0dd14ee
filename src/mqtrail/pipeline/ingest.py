"""Reads queues into bronze and silver: batches of exact ranges, each committed with the offsets that it reached.

    trace topics      → trace_events, trace_rejects, gaps   ┐
    stored messages   → message_meta, gaps                  ┴→ attempts

The driver asks for the queues' ends and plans ranges; tasks pull them and write files (`pulling`); the driver commits
the files of all tables as one batch of the lake, with the offsets as its notes. No other record of the position exists.
So a batch is in the lake completely, with its offsets, or not at all. After a crash before the commit, the next run
reads the same messages again.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from pyspark.errors import PySparkException

from mqtrail import trail
from mqtrail.lake import Change, DataFile, Lake, LakeError
from mqtrail.wire import MessageQueue, MQError

from .bounds import bounds_of, check_bounds
from .checkpoint import spark_offsets
from .config import JobConfig, JobFailed
from .executors import check_seen
from .late_workers import started
from .offsets import (
    QueueOffsets,
    QueueRange,
    advance,
    offsets_from_json,
    offsets_to_json,
    pack_ranges,
    ranges_between,
    split_ranges,
)
from .options import parse_options, security_options
from .pulling import TABLES, TRACE_MESSAGES, PulledFile, PullTasks, PullWork, pull
from .source import RocketMQDataSource

APP = "ingest"


@dataclass(slots=True)
class Counts:
    """Rows that a run committed, by table; and trace messages read."""

    rows: Counter[str] = field(default_factory=Counter)
    trace_messages: int = 0
    files: dict[str, list[Path]] = field(default_factory=dict, compare=False)
    """The files that the rows are in, by table."""
    behind: int = 0
    """Messages left for the next run."""

    def of(self, relation: trail.Relation) -> int:
        """The number of rows of a table."""
        return self.rows[relation.name]


@dataclass(frozen=True, slots=True)
class Limit:
    """When to stop before the queues' ends, after a commit."""

    messages_max: int | None = None
    is_over: Callable[[], bool] = lambda: False


class Ingest:
    """Reads a cluster into bronze and silver."""

    def __init__(
        self,
        tasks: PullTasks,
        lake: Lake,
        config: JobConfig,
        source: type[RocketMQDataSource] = RocketMQDataSource,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._tasks = tasks
        self._lake = lake
        self._config = config
        self._source = source
        self._say = say
        self.progress = say  # called with texts on the progress of a run
        self._reached: QueueOffsets = {}
        self._is_sure = True  # the last batch is certainly in all of its tables

    def offsets(self) -> QueueOffsets:
        """The next offset to read of each queue; of a queue that the last run found empty, its first offset."""
        return self._reached | self._position()[0]

    def _position(self) -> tuple[QueueOffsets, dict[str, list[DataFile]]]:
        """Where to continue, and files that the next batch removes."""
        last = self._lake.batches.last(APP)
        return spark_offsets(self._lake) if last is None else (offsets_from_json(last.notes["offsets"]), {})

    def run(
        self,
        cluster: str,
        trace_topics: tuple[str, ...],
        message_topics: tuple[str, ...],
        delay_levels_ms: tuple[int, ...],
        *,
        fail_on_data_loss: bool,
        limit: Limit | None = None,
    ) -> Counts:
        """Read to the current ends of all queues, or until the limit. JobFailed, LakeError: committed data is kept."""
        counts = Counts()
        limit = limit or Limit()
        if not (topics := (*trace_topics, *message_topics)):
            return counts
        work = PullWork(
            source=self._source,
            options=self._options(topics, fail_on_data_loss=fail_on_data_loss),
            trace_topics=frozenset(trace_topics),
            cluster=cluster,
            delay_levels_ms=delay_levels_ms,
            read_ms=now_ms(),
            folders={},
            memory_limit=self._config.task_memory,
            read_rate_max=None,
        )
        try:
            if not self._is_sure:
                self._lake.batches.recover()
            self._is_sure = False
            self._run(work, topics, counts, limit, fail_on_data_loss=fail_on_data_loss)
            self._is_sure = True
        except PySparkException as error:
            raise _failure(str(error)) from error
        except (JobFailed, LakeError):
            raise
        except MQError as error:
            raise JobFailed(str(error)) from error
        return counts

    def _run(
        self, work: PullWork, topics: tuple[str, ...], counts: Counts, limit: Limit, *, fail_on_data_loss: bool
    ) -> None:
        options = parse_options(work.options)
        cluster = self._source(dict(work.options)).connect(options)
        try:
            bounds = bounds_of(cluster, topics, self._config.retry_timeout_ms, hold_unreachable=True)
        finally:
            cluster.close()
        at, removed = self._position()
        check_bounds(
            {queue: offset for queue, offset in at.items() if queue in bounds},
            bounds,
            hold_unreachable=True,
            fail_on_data_loss=fail_on_data_loss,
        )
        target = {queue: end for queue, (_, end) in bounds.items()}
        at = {queue: first for queue, (first, _) in bounds.items()} | at
        left, total = limit.messages_max, count_of(ranges_between(at, target))
        while ranges := ranges_between(
            at, ends := advance(at, target, _least(left, self._config.offsets_per_batch_max))
        ):
            if limit.is_over() or left == 0:
                counts.behind = count_of(ranges_between(at, target))
                break
            self._batch(work, ranges, ends, removed, counts)
            at, removed = ends, {}
            left = None if left is None else max(left - count_of(ranges), 0)
            self.progress(f"read {total - count_of(ranges_between(at, target))} of {total} messages")
        self._reached = at

    def _options(self, topics: Sequence[str], *, fail_on_data_loss: bool) -> dict[str, str]:
        return {
            "nameServer": self._config.namesrv,
            "topic": ",".join(topics),
            "failOnDataLoss": str(fail_on_data_loss).lower(),
            "retryTimeoutMs": str(self._config.retry_timeout_ms),
            "bodySizeMax": str(trail.TRACE_BODY_SIZE_MAX),
            **security_options(self._config.instance),
        }

    # -- a batch ---------------------------------------------------------------------------------------------------

    def _batch(
        self,
        work: PullWork,
        ranges: list[QueueRange],
        ends: Mapping[MessageQueue, int],
        removed: Mapping[str, list[DataFile]],
        counts: Counts,
    ) -> None:
        """Pull ranges and commit their files with the offsets `ends`."""
        last = self._lake.batches.last(APP)
        number = 1 if last is None else last.number + 1
        folders = {relation.name: self._lake[relation.name].path / f"batch={APP}-{number}" for relation in TABLES}
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)  # what a crash left of this batch
        made = self._pulled(work, ranges, {name: str(folder) for name, folder in folders.items()})
        files = {name: [Path(file.path) for file in made if file.relation == name] for name in folders}
        changes = {
            name: Change(added=files[name], removed=removed.get(name, ()))
            for name in folders
            if files[name] or name in removed
        }
        self._lake.batches.commit(APP, number, changes, {"offsets": offsets_to_json(ends)})
        for file in made:
            if file.relation == TRACE_MESSAGES:
                counts.trace_messages += file.row_count
            else:
                counts.rows[file.relation] += file.row_count
                counts.files.setdefault(file.relation, []).append(Path(file.path))

    def _pulled(self, work: PullWork, ranges: list[QueueRange], folders: Mapping[str, str]) -> list[PulledFile]:
        """Pull ranges here or in tasks; return the files."""
        rate = self._config.read_rate_max or None
        if count_of(ranges) <= self._config.driver_messages_max:  # starting tasks would take longer
            return pull(_with(work, folders, rate), ranges, uuid4().hex[:8])
        count = self._tasks.parallelism
        pieces = pack_ranges(split_ranges(ranges, count), count)
        spread = _with(work, folders, rate / len(pieces) if rate else None)
        made = started(lambda: self._tasks.run(spread, pieces), self._say)
        check_seen(Path(file.path) for file in made if file.relation != TRACE_MESSAGES)
        return made


def _with(work: PullWork, folders: Mapping[str, str], rate_max: float | None) -> PullWork:
    return dataclasses.replace(work, folders=folders, read_rate_max=rate_max)


def count_of(ranges: Sequence[QueueRange]) -> int:
    """The number of messages in ranges."""
    return sum(each.count for each in ranges)


def _least(left: int | None, batch_max: int) -> int:
    """The most messages of the next batch; at least one, which shows whether there are any."""
    return batch_max if left is None else max(min(left, batch_max), 1)


def _failure(text: str) -> MQError:
    """Return the error of a failed query for users, with the last mqtrail error in Spark's report or its first line.

    An error of the lake stays one.
    """
    own: list[tuple[str, str]] = re.findall(r"^\s*(?:E\s+)?mqtrail\.([\w.]+): (.+)$", text, re.MULTILINE)
    if not own:
        return JobFailed(text.splitlines()[0])
    name, cause = own[-1]
    return LakeError(cause) if name.startswith("lake.") else JobFailed(cause)


def now_ms() -> int:
    """The time, epoch ms."""
    return time.time_ns() // 1_000_000
