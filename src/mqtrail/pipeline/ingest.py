"""Reads queues into bronze and silver: batches of exact ranges, each committed with the offsets that it reached.

    trace topics      → trace_events, trace_rejects, gaps   ┐
    stored messages   → message_meta, gaps                  ┴→ attempts

The driver asks for the queues' ends and plans ranges; tasks pull them and write files (`pulling`); the driver commits
the files of all tables as one batch of the lake, with the offsets as its notes. No other record of the position exists.
So a batch is in the lake completely, with its offsets, or not at all. After a crash before the commit, the next run
reads the same messages again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

from pyspark.errors import PySparkException

from mqtrail import trail
from mqtrail.clock import now_ms
from mqtrail.lake import Change, DataFile, Lake, LakeBatch, LakeError, LakePath, emptied, lake_errors, place_of
from mqtrail.wire import HALF_TOPIC, MessageQueue, MQError

from .begin import BORDER_MS, MESSAGES_LEAD_MS, begin_latest
from .bounds import Bounds, FoundBounds, bounds_of, check_bounds
from .checkpoint import spark_offsets
from .cluster import Cluster, Retrying
from .config import JobConfig, JobFailed, StartingOffsets
from .executors import check_seen
from .late_workers import started
from .names import ClusterNames, named
from .notread import added_gaps
from .offsets import QueueOffsets, QueueRange, advance, pack_ranges, ranges_between, split_ranges
from .options import parse_options, security_options
from .positions import APP, UNNAMED, Position, later, positions_from_json, positions_to_json
from .pulling import TABLES, TRACE_MESSAGES, PulledFile, PullTasks, PullWork, files_of, last_records, pull
from .reading import DataLoss
from .removed import removed_until
from .rewinds import CHECKED_MAX, Rewinds, replaced_text, rewound
from .source import RocketMQDataSource
from .truncated import Truncated, truncated_of

RECREATED = "RECREATED"
Removed = dict[str, list[DataFile]]


@dataclass(slots=True)
class Counts:
    """Rows that a run committed, by table; and trace messages read."""

    rows: Counter[str] = field(default_factory=Counter)
    trace_messages: int = 0
    files: dict[str, list[LakePath]] = field(default_factory=dict, compare=False)
    """The files that the rows are in, by table."""
    behind: int = 0
    """Messages left for the next run."""

    def of(self, relation: trail.Relation) -> int:
        """The number of rows of a table."""
        return self.rows[relation.name]


@dataclass(frozen=True, slots=True)
class ReadCluster:
    """A cluster and its topics to read.

    delay_levels_ms: of its brokers. brokers: addresses of masters by name. sql_topics: with a subscription by SQL92.
    """

    name: str
    trace_topics: tuple[str, ...]
    message_topics: tuple[str, ...]
    delay_levels_ms: tuple[int, ...]
    brokers: Mapping[str, str] = field(default_factory=dict)
    sql_topics: frozenset[str] = frozenset()

    @property
    def topics(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.trace_topics, *self.message_topics)


@dataclass(frozen=True, slots=True)
class Limit:
    """When to stop before the queues' ends, after a commit."""

    messages_max: int | None = None
    is_over: Callable[[], bool] = lambda: False

    def shared(self, messages_max: int) -> Limit:
        """This limit, or a lower one."""
        lower = messages_max if self.messages_max is None else min(self.messages_max, messages_max)
        return replace(self, messages_max=lower)


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
        self._reached: QueueOffsets = {}  # by the last run
        self._bounds = FoundBounds()  # that the last run read to
        self._parsed: tuple[LakeBatch, dict[str, Position]] | None = None  # of the notes of this batch
        self.note_truncated: Callable[[list[Truncated]], None] = lambda gone: None  # called before it is committed
        self._rewinds = Rewinds(lake, config.retry_timeout_ms)
        self._names = ClusterNames(lake)
        self._is_sure = True  # the last batch is certainly in all of its tables

    def offsets(self) -> QueueOffsets:
        """The next offset to read of each queue; of a queue that the last run found empty, its first offset."""
        return self._reached

    def left(self) -> set[MessageQueue]:
        """The queues that the last run did not read to their ends, or whose ends are not known."""
        unknown = (self._reached.keys() - self._bounds.keys()) | self.silent()
        return unknown | {queue for queue, (_, end) in self._bounds.items() if self._reached.get(queue, 0) < end}

    def silent(self) -> set[MessageQueue]:
        """The queues of brokers that did not answer the last run, also those that were never read."""
        return set(self._bounds.silent)

    def position(self, cluster: str) -> Position:
        """What the lake has of a cluster."""
        positions = self.positions()
        return positions.get(cluster) or positions.get(UNNAMED) or Position()

    def positions(self) -> dict[str, Position]:
        """What the lake has of all clusters, by name."""
        return self._positions()[0]

    def _positions(self) -> tuple[dict[str, Position], Removed]:
        """What the lake has of all clusters, and files that the next batch removes."""
        last = self._lake.batches.last(APP)
        if last is not None:
            if self._parsed is None or self._parsed[0] is not last:
                self._parsed = last, named(positions_from_json(last.notes), self._lake)
            return self._parsed[1], {}
        offsets, removed = spark_offsets(self._lake)
        return named({UNNAMED: Position(offsets)}, self._lake) if offsets else {}, removed

    def check_name(self, cluster: ReadCluster) -> None:
        """JobFailed: the lake has another cluster of this name, or this cluster under another name."""
        work = self.work(cluster, fail_on_data_loss=False)
        self._names.check(
            cluster.name,
            cluster.brokers,
            self.positions,
            lambda: self.connected(work),
            is_registered=not self._config.cluster,
        )

    def run(
        self,
        cluster: ReadCluster,
        *,
        fail_on_data_loss: bool,
        limit: Limit | None = None,
        bounds: FoundBounds | None = None,
    ) -> Counts:
        """Read to the ends of all queues, or until the limit. JobFailed, LakeError: committed data is kept.

        bounds: the ends, if the cluster was asked for them just now.
        """
        counts = Counts()
        self._reached, self._bounds = self.position(cluster.name).offsets, FoundBounds()
        if cluster.topics:
            with self.sure():
                self._run(cluster, counts, limit or Limit(), bounds, fail_on_data_loss=fail_on_data_loss)
        return counts

    @contextmanager
    def sure(self) -> Iterator[None]:
        """Finish a batch that the last block may have left half done; turn errors into JobFailed or LakeError."""
        try:
            if not self._is_sure:
                self._lake.batches.recover()
            self._is_sure = False
            with lake_errors(self._lake.path):
                yield
            self._is_sure = True
        except PySparkException as error:
            raise _failure(str(error)) from error
        except (JobFailed, LakeError):
            raise
        except MQError as error:
            raise JobFailed(str(error)) from error

    def work(self, cluster: ReadCluster, *, fail_on_data_loss: bool) -> PullWork:
        """What tasks need to read a cluster."""
        return PullWork(
            source=self._source,
            options=self._options(cluster.topics, fail_on_data_loss=fail_on_data_loss),
            trace_topics=frozenset(cluster.trace_topics),
            message_topics=cluster.message_topics,
            cluster=cluster.name,
            delay_levels_ms=cluster.delay_levels_ms,
            sql_topics=cluster.sql_topics,
            read_ms=now_ms(),
            folders={},
            memory_limit=self._config.task_memory,
            read_rate_max=None,
        )

    @contextmanager
    def connected(self, work: PullWork) -> Iterator[Cluster]:
        """A connection of the driver while the block runs."""
        cluster = self._source(dict(work.options)).connect(parse_options(work.options))
        try:
            yield cluster
        finally:
            cluster.close()

    def bounds(self, connection: Cluster, topics: Sequence[str]) -> FoundBounds:
        """The ends of all queues; those of a broker that does not answer are left out."""
        return bounds_of(connection, topics, self._config.retry_timeout_ms, hold_unreachable=True)

    def _run(
        self, cluster: ReadCluster, counts: Counts, limit: Limit, found: FoundBounds | None, *, fail_on_data_loss: bool
    ) -> None:
        work = self.work(cluster, fail_on_data_loss=fail_on_data_loss)
        with self.connected(work) as connection:
            self._bounds = self.bounds(connection, cluster.topics) if found is None else found
            bounds: Bounds = self._bounds
            position = self.position(cluster.name)
            if not position.offsets and self._config.starting_offsets is StartingOffsets.LATEST:
                position = self._begun(connection, cluster, work, bounds, counts)
            replaced = self._rewinds.replaced(connection, position, bounds)
            if replaced and fail_on_data_loss:
                raise DataLoss(replaced_text(replaced, position))
            if not fail_on_data_loss and (
                again := self._rewinds.find(connection, cluster.name, position, bounds, replaced)
            ):
                self._note_truncated(connection, cluster, position, again, bounds)
                position, lost = rewound(position, again)
                self.batch(
                    work, [], position, counts, gaps=partial(added_gaps, work=work, ranges=lost, reason=RECREATED)
                )
                counts.rows[trail.GAPS.name] += len(lost)
            later_on = set(replaced[CHECKED_MAX:])
            bounds = {queue: ends for queue, ends in bounds.items() if queue not in later_on}
            new = {queue: first for queue, (first, _) in bounds.items() if queue not in position.offsets}
            removed = {queue: [(0, first)] for queue, first in new.items() if first}
            until_ms = removed_until(connection, removed, bounds, work.read_ms, self._config.retry_timeout_ms)
        check_bounds(
            {queue: offset for queue, offset in position.offsets.items() if queue in bounds},
            bounds,
            hold_unreachable=True,
            fail_on_data_loss=fail_on_data_loss,
        )
        position = replace(position, brokers={**position.brokers, **cluster.brokers})
        target = {queue: end for queue, (_, end) in bounds.items()}
        at = new | position.offsets
        if any(queue.topic == HALF_TOPIC for queue in new):  # its messages are from before the topics that began late
            begun_late = {queue.topic for queue in position.unread}
            work = replace(work, message_topics=tuple(set(work.message_topics) - begun_late))
        unread = position.unread | removed
        gone = [QueueRange(queue, 0, first) for queue, [(_, first)] in sorted(removed.items())]
        gaps = partial(added_gaps, work=work, ranges=gone, until_ms=until_ms) if gone else None
        left, total = limit.messages_max, count_of(ranges_between(at, target))
        while ranges := ranges_between(
            at, ends := advance(at, target, _least(left, self._config.offsets_per_batch_max))
        ):
            if limit.is_over() or left == 0:
                counts.behind = count_of(ranges_between(at, target))
                break
            position = self.batch(work, ranges, replace(position, offsets=ends, unread=unread), counts, gaps=gaps)
            at, gaps = ends, None
            left = None if left is None else max(left - count_of(ranges), 0)
            self.progress(f"read {total - count_of(ranges_between(at, target))} of {total} messages")
        if gaps and not counts.behind:  # there was nothing to read besides
            self.batch(work, [], replace(position, offsets=at, unread=unread), counts, gaps=gaps)
        self._reached = at

    def _begun(
        self, connection: Cluster, cluster: ReadCluster, work: PullWork, bounds: Bounds, counts: Counts
    ) -> Position:
        """Commit the position of a cluster that is read from its latest messages on, and the gaps before them."""
        offsets = begin_latest(connection, cluster, bounds, work.read_ms, self._config.retry_timeout_ms)
        left_out = {queue: [(0, offset)] for queue, offset in offsets.items() if offset}
        position = Position(offsets, left_out, cluster.brokers)
        skipped = [QueueRange(queue, 0, offset) for queue, offset in sorted(offsets.items()) if offset]
        led_ms = work.read_ms - MESSAGES_LEAD_MS + BORDER_MS
        of_trace = cluster.trace_topics
        until_ms = {each.queue: now_ms() if each.queue.topic in of_trace else led_ms for each in skipped}
        self.batch(work, [], position, counts, gaps=partial(added_gaps, work=work, ranges=skipped, until_ms=until_ms))
        return position

    def _note_truncated(
        self, connection: Cluster, cluster: ReadCluster, position: Position, found: QueueOffsets, bounds: Bounds
    ) -> None:
        """Note the messages that the lake has and the queues no longer have. After a crash the next run finds them."""
        firsts = {queue: bounds[queue][0] for queue in found if queue.topic in cluster.message_topics}
        of_messages = {queue: found[queue] for queue in firsts}
        retrying = Retrying(self._config.retry_timeout_ms)
        if gone := truncated_of(connection, position, of_messages, firsts, retrying):
            self.note_truncated(gone)

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

    def batch(
        self,
        work: PullWork,
        ranges: list[QueueRange],
        position: Position,
        counts: Counts,
        *,
        gaps: Callable[[LakePath], Change] | None = None,
        by_driver: bool = False,
    ) -> Position:
        """Pull ranges and commit their files with the position after them; return it with the last records.

        gaps: returns a change of the table of gaps besides; it may write files to a folder. by_driver: not in tasks.
        """
        positions, removed = self._positions()
        last = self._lake.batches.last(APP)
        number = 1 if last is None else last.number + 1
        batch = f"batch={APP}-{number}"
        folders = {relation.name: emptied(self._lake[relation.name].path / batch) for relation in TABLES}
        named = {name: str(folder) for name, folder in folders.items()}
        made = self._pulled(work, ranges, named, by_driver=by_driver) if ranges else []
        position = replace(position, last=later(position.last, last_records(made)))
        positions = {name: one for name, one in positions.items() if name != UNNAMED} | {work.cluster: position}
        files = {name: [place_of(file.path) for file in made if file.relation == name] for name in folders}
        changes = {
            name: Change(added=files[name], removed=removed.get(name, ()))
            for name in folders
            if files[name] or name in removed
        }
        if gaps is not None:
            own, change = changes.get(trail.GAPS.name, Change()), gaps(folders[trail.GAPS.name])
            if change.added or change.removed:
                changes[trail.GAPS.name] = Change([*own.added, *change.added], [*own.removed, *change.removed])
        self._lake.batches.commit(APP, number, changes, positions_to_json(positions))
        counts.trace_messages += sum(each.row_count for each in made if each.relation == TRACE_MESSAGES)
        for file in files_of(made):
            counts.rows[file.relation] += file.row_count
            counts.files.setdefault(file.relation, []).append(place_of(file.path))
        return position

    def _pulled(
        self, work: PullWork, ranges: list[QueueRange], folders: Mapping[str, str], *, by_driver: bool
    ) -> list[PulledFile]:
        """Pull ranges here or in tasks; return the files."""
        rate = self._config.read_rate_max or None
        if by_driver or count_of(ranges) <= self._config.driver_messages_max:  # starting tasks would take longer
            return pull(_with(work, folders, rate), ranges, uuid4().hex[:8])
        count = self._tasks.parallelism
        pieces = pack_ranges(split_ranges(ranges, count), count)
        spread = _with(work, folders, rate / len(pieces) if rate else None)
        made = started(lambda: self._tasks.run(spread, pieces), self._say)
        check_seen(place_of(file.path) for file in files_of(made))
        return made


def _with(work: PullWork, folders: Mapping[str, str], rate_max: float | None) -> PullWork:
    return replace(work, folders=folders, read_rate_max=rate_max)


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
