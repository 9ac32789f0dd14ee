"""SqlStore: the store's contract on tables of a database.

A queue is a table, and a queue offset is the id of a row. `append` gives places in memory; a flush is a commit, so the
broker must run with SYNC_FLUSH: then no reply, also to a pull, leaves before the rows that it is about are committed.
docs/design/table-store.md has the tables, the order of commits and what a table store refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NoReturn

from mqtrail.wire import TIMER_TOPIC

from ..base import (
    Appended,
    BatchPlaces,
    Buffer,
    IndexQueryResult,
    NodeFetch,
    PendingRecord,
    QueueState,
    ReadResult,
    RecordBatch,
    Recovery,
    Retention,
)
from ..commitlog import CommitLogConfig
from ..commitlog.foreign import TABLES_FILE
from ..commitlog.reading import no_record_at
from ..commitlog.store import at_once
from ..disk import UNCLEAN_FILE, Disk
from ..errors import LogDiffers, StoreAway, StoreError, StoreFull
from ..timers import TimerFiles
from .appending import TableAppender
from .database import Apart, Database, in_turns
from .node_reading import NodesReader
from .nodes import NodeDatabase, NodeGroup, TableNode
from .replica import ReplicaDatabase
from .schema import HOME

Appending = Callable[[Sequence[PendingRecord], int], list[Appended]]


class TableBatch:
    """Many records of one queue, appended together; see RecordBatch."""

    def __init__(self, topic: str, queue_id: int, appender: TableAppender, append: Appending) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._appender = appender
        self._append = append
        self._records: list[PendingRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, records: Sequence[PendingRecord]) -> None:
        """Add records. MessageIllegal: one of them cannot be stored."""
        for record in records:
            self._appender.check_size(record)
            self._records.append(record._replace(body=bytes(record.body)))

    def append(self, now_ms: int) -> BatchPlaces:
        """Store all records or none."""
        tickets = self._append(self._records, now_ms)
        return BatchPlaces(
            tickets[0].queue_offset,
            [ticket.physical_offset for ticket in tickets],
            [ticket.size for ticket in tickets],
            tickets[-1].end_offset,
        )


class SqlStore:
    """See the module. disk: the broker's folder, which has its lock and the files of timers.

    config: its settings of segments, queue files and index have no effect here. apart: runs what the caller's thread
    asks a server, and limits the time; None: nothing limits it. nodes: further databases for queues. replicas: from
    which messages are read too, at most one of each node.
    """

    def __init__(
        self,
        disk: Disk,
        url: str,
        config: CommitLogConfig | None = None,
        apart: Apart | None = None,
        nodes: Sequence[NodeDatabase] = (),
        replicas: Sequence[ReplicaDatabase] = (),
    ) -> None:
        self.config = config or CommitLogConfig()
        self._disk = disk
        disk.lock("lock")
        try:
            if disk.list("commitlog"):
                raise StoreError(
                    "found a CommitLog in the folder, expected none beside a store on tables: name another --data, or "
                    "start without --store"
                )
            unclean = disk.size(UNCLEAN_FILE) is not None
            self._database = Database(url, self.config.record_size_max, apart)
        except BaseException:
            disk.close()
            raise
        try:
            self._start(unclean, url, nodes)
            self._nodes.read_from(replicas)
        except BaseException:
            self.abandon()
            raise

    def _start(self, unclean: bool, url: str, nodes: Sequence[NodeDatabase]) -> None:
        config = self.config
        self._nodes = NodeGroup(url, self._database, nodes, config.record_size_max)
        self._queues = self._nodes.by_key
        self._log = self._nodes.log
        self._reader = NodesReader(self._nodes)
        self._appender = TableAppender(
            self._log,
            {node.number: node.writer for node in self._nodes.nodes.values()},
            self._queues,
            self._nodes.open,
            config.store_host.packed(),
            config.record_size_max,
        )
        self._min_physical_offset = self._first_physical_offset()
        self._full = False
        self.recovery = Recovery(
            unclean=unclean,
            scanned_from=self.end_offset,
            end_offset=self.end_offset,
            wiped_size=0,
            dangling_entries=0,
            rebuilt_entries=0,
            last_store_ms=self._log.store_ms,
            first_start=self._database.is_new,
        )
        self.timers = TimerFiles(self._disk, config.timer_log_file_size)
        self.timers.recover(self.end_offset, self._reader.queue_offset_at, self.min_offset(TIMER_TOPIC, 0))
        for name in (UNCLEAN_FILE, TABLES_FILE):
            self._disk.replace(name, b"")

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """Physical offset of the next record."""
        return self._log.end_offset

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first kept record."""
        return self._min_physical_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is committed."""
        return self._nodes.flushed_offset

    @property
    def last_record_offset(self) -> int:
        """Physical offset of the last record since the start; -1: there is none."""
        return self._log.last_offset

    @property
    def segment_size(self) -> int:
        """The setting; there are no segments."""
        return self.config.segment_size

    @property
    def fault(self) -> str | None:
        """Why the store rejects appends until it is opened again; None: it accepts them."""
        return self._nodes.fault

    @property
    def away(self) -> str | None:
        """Why the home does not answer at present; the next flush asks it again. None: it does. Without another node
        only its queues are away."""
        return self._database.away

    @property
    def is_full(self) -> bool:
        """Whether sends are rejected because the broker's disk is full."""
        return self._full

    @property
    def retention(self) -> Retention:
        """The settings of `expire`."""
        return self.config.retention

    @retention.setter
    def retention(self, retention: Retention) -> None:
        self.config = self.config.with_retention(retention)

    @property
    def retention_ms(self) -> int:
        """How long records are kept."""
        return self.config.retention_ms

    @property
    def disk_ratio(self) -> float:
        """How full the partition of the broker's folder is, 0 to 1."""
        return self._disk.usage()

    @property
    def disk_capacity(self) -> tuple[int, int]:
        """Bytes of that partition, and how many are free."""
        return self._disk.capacity()

    @property
    def index_damage(self) -> tuple[int, str]:
        """No damage: a transaction writes keys and rows."""
        return 0, ""

    @property
    def is_index_saved(self) -> bool:
        """True: a commit includes the keys."""
        return True

    @property
    def behind_size(self) -> int:
        """0: a commit includes the keys, and queries see later records too."""
        return 0

    def queue(self, topic: str, queue_id: int) -> QueueState:
        """Return the queue's state, making the queue when it is new."""
        return self._nodes.open(topic, queue_id)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues that exist, sorted."""
        return sorted(queue_id for name, queue_id in self._queues if name == topic)

    def topics(self) -> list[str]:
        """Return the topics that have queues, sorted."""
        return sorted({topic for topic, _ in self._queues})

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first kept queue offset."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.first_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next record."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.next_offset

    def is_end_known(self, topic: str, queue_id: int) -> bool:
        """Whether `max_offset` is exact: the node of the queue has answered since the start."""
        queue = self._queues.get((topic, queue_id))
        return queue is None or self._nodes.node_of(queue).queues.is_loaded

    # -- append ----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Give all of records their places, or none; a flush commits them. See the contract."""
        if self._full:
            raise StoreFull(
                f"found the disk more than {self.config.full_ratio:.0%} full, expected less: free space; nothing of "
                "this request was stored"
            )
        self._nodes.now_ms = now_ms
        return self._appender.append(records, now_ms)

    @property
    def away_nodes(self) -> Mapping[str, str]:
        """Names of the nodes that do not answer at present, without the home, and why."""
        return {node.name: node.away for node in self._nodes.others if node.away is not None}

    @property
    def away_replicas(self) -> Mapping[str, str]:
        """Names of the nodes whose replica cannot be read at present, and why. Their messages are read from them."""
        found = {node.name: node.reader.replica for node in self._nodes.nodes.values()}
        return {name: one.away for name, one in found.items() if one is not None and one.away is not None}

    @property
    def closes_queues(self) -> bool:
        """Whether it has several nodes, or queues that an operator has closed."""
        return len(self._nodes.nodes) > 1 or bool(self._nodes.closed)

    def why_closed(self, topic: str, queue_id: int, now_ms: int) -> str | None:
        """Return why clients cannot send to a queue now: its node is away, read-only or closed, or an operator has
        closed the queue itself. None: they can."""
        return self._nodes.why_closed(topic, queue_id, now_ms) if self.closes_queues else None

    # What operators do with queues. None of it is of the contract.

    @property
    def node_names(self) -> list[str]:
        """The names of all nodes, the home first."""
        return [node.name for node in self._nodes.nodes.values()]

    def node_of(self, topic: str, queue_id: int) -> str | None:
        """Return the name of the node that a queue is on; None: there is no such queue."""
        queue = self._queues.get((topic, queue_id))
        return None if queue is None else self._nodes.node_of(queue).name

    def has_table(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has a table, or gets one with the next commit."""
        queue = self._queues.get((topic, queue_id))
        return queue is not None and bool(queue.number or queue.waiting)

    def is_closed(self, topic: str, queue_id: int) -> bool:
        """Return whether `close_queue` closed a queue."""
        return (topic, queue_id) in self._nodes.closed

    def close_queue(self, topic: str, queue_id: int, why: str | None) -> None:
        """Let a queue take no messages of clients, until it is opened again (why None) or the store is."""
        self._nodes.closed.pop((topic, queue_id), None)
        if why is not None:
            self._nodes.closed[topic, queue_id] = why

    def release_table(self, topic: str, queue_id: int, end_offset: int, to: str | None = None) -> Callable[[], bool]:
        """Take its table from a queue that ends at an offset; it goes on from there, on the node `to` if that is named.
        Its messages are removed. Return what tells whether that is committed: a flush does it.

        ServiceNotAvailable: not now, for example because the queue has got messages.
        """
        return self._nodes.release_table(topic, queue_id, end_offset, to)

    def begin_batch(self, topic: str, queue_id: int) -> RecordBatch:
        """Return an empty batch; see the contract."""
        return TableBatch(topic, queue_id, self._appender, self.append)

    def append_copy(self, physical_offset: int, data: Buffer) -> int:
        """Refuse: see `log_bytes`."""
        _refuse_copy()

    def log_bytes(self, physical_offset: int, size_max: int) -> bytes:
        """Refuse: there is no log whose bytes could be copied."""
        _refuse_copy()

    def truncate(self, physical_offset: int) -> str:
        """Refuse: see `log_bytes`."""
        _refuse_copy()

    # -- read ------------------------------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        size_max: int,
        tags_codes: frozenset[int] | None = None,
        end_offset: int | None = None,
        accepts: Callable[[bytes], bool] | None = None,
        scan_max: int | None = None,
    ) -> ReadResult:
        """Return records from queue_offset on; see the contract."""
        queue = self._queues.get((topic, queue_id))
        if end_offset is not None and end_offset >= self.end_offset:
            end_offset = None
        return self._reader.read(queue, queue_offset, count_max, size_max, tags_codes, end_offset, accepts, scan_max)

    @property
    def fetches(self) -> bool:
        """True on servers whose reads another thread can run."""
        return any(node.database.runs_apart for node in self._nodes.nodes.values())

    def begin_fetch(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int, tags_codes: frozenset[int] | None = None
    ) -> Callable[[], None] | None:
        """Return what a read of rows needs, for the thread of `apart` of its node; see the contract."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or self.away is not None:
            return None
        node = self._nodes.node_of(queue)
        if not node.database.runs_apart or not node.queues.is_loaded:
            return None
        if node.away is not None and not node.reader.is_on_replica(queue, queue_offset):
            return None
        fetch = self._reader.begin_fetch(queue, queue_offset, count_max, tags_codes)
        if fetch is None or node.number == HOME or isinstance(fetch, NodeFetch):
            return fetch
        return NodeFetch(node.name, fetch)

    def read_at(self, physical_offset: int) -> bytes:
        """Return the record that starts there. QueryNotFound: there is none."""
        record = self._reader.read_at(physical_offset)
        if record is None:
            raise no_record_at(physical_offset, self.min_physical_offset, self.end_offset)
        return record

    def query_in_slices(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> Generator[None, None, IndexQueryResult]:
        """Return records under topic and key; see the contract."""
        return self._reader.query_in_slices(
            topic, key, count_max, begin_ms, end_ms, self._log.store_ms, self.end_offset
        )

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> IndexQueryResult:
        """Run all slices of a query at once."""
        return at_once(self.query_in_slices(topic, key, count_max, begin_ms, end_ms))

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a queue's record, -1 when it is not there."""
        return self._reader.store_time(self._queues.get((topic, queue_id)), queue_offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after timestamp_ms (upper: the last at or before)."""
        return self._reader.offset_by_time(self._queues.get((topic, queue_id)), timestamp_ms, upper=upper)

    def entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of entries from queue_offset on."""
        queue = self._queues.get((topic, queue_id))
        return [] if queue is None else self._reader.entries(queue, queue_offset, count_max)

    # -- upkeep ----------------------------------------------------------------------------------------------------

    def begin_flush(self) -> Callable[[], int]:
        """Return a function for any thread: it commits what is appended now and returns the flushed offset."""
        return self._nodes.begin_flush()

    def flush(self) -> int:
        """Commit everything that is appended; return the flushed offset. StoreAway: it is known to be away."""
        if self.away is not None:
            raise StoreAway(self.away)
        return self.begin_flush()()

    def write_queues(self, *, sync: bool = False) -> None:
        """Remove the rows of deleted topics."""
        for _ in self.write_queues_in_slices():
            pass

    def write_queues_in_slices(self) -> Iterator[None]:
        """Remove the rows of deleted topics; yield now and then. StoreError: a later call does the rest."""
        yield from in_turns(self._empty_released())

    def _empty_released(self) -> Generator[None, None, None]:
        self._nodes.tend()
        for node in self._nodes.nodes.values():
            node.writer.forget_committed()
            with self._may_be_away(node):
                yield from node.remover.empty_released()

    @contextmanager
    def _may_be_away(self, node: TableNode) -> Iterator[None]:
        """Leave work of another node than the home to a later time if that node is away."""
        try:
            yield
        except StoreAway:
            if node.number == HOME:
                raise

    def begin_checkpoint_in_slices(self, *, index: bool = True) -> Generator[None, None, Callable[[], None]]:
        """Remove the rows of deleted topics; commits need no checkpoint."""
        yield from self.write_queues_in_slices()
        return lambda: None

    def dispatch_index(self, count_max: int) -> int:
        """Return 0: a commit includes the keys."""
        return 0

    def clean_queues(self) -> Iterator[None]:
        """Do nothing: rows and their places are removed together."""
        return iter(())

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues. The next flush records that in the database; `write_queues` removes their rows."""
        self._nodes.release(topic)

    def expire(self, now_ms: int, *, at_any_hour: bool = False) -> int:
        """Run all slices of expire_in_slices at once."""
        return at_once(self.expire_in_slices(now_ms, at_any_hour=at_any_hour))

    def expire_in_slices(self, now_ms: int, *, at_any_hour: bool = False) -> Generator[None, None, int]:
        """Remove committed messages that are older than retention_ms, in the hours of delete_hours or on a full disk;
        return the bytes of their records. force_ratio has no effect: a database keeps the space of removed rows."""
        config, usage = self.config, self._disk.usage()
        self._full = usage > config.full_ratio
        hour = datetime.fromtimestamp(now_ms / 1000).hour
        if not (at_any_hour or hour in config.delete_hours or usage > config.expire_ratio):
            return 0
        freed = yield from in_turns(self._expire_before(now_ms - config.retention_ms))
        if freed:
            self._min_physical_offset = self._first_physical_offset()
            self.timers.expire(self._min_physical_offset)
        return freed

    def _expire_before(self, before_ms: int) -> Generator[None, None, int]:
        freed = 0
        for node in self._nodes.nodes.values():
            node.writer.forget_committed()
            with self._may_be_away(node):
                freed += yield from node.remover.expire_in_slices(before_ms)
        return freed

    def _first_physical_offset(self) -> int:
        """Return where the first kept record of all nodes starts; of a node that is away, as last known."""
        for node in self._nodes.nodes.values():
            with self._may_be_away(node):
                node.first_offset = node.remover.first_physical_offset(self.end_offset)
        return min(node.first_offset for node in self._nodes.nodes.values())

    def close(self, *, finishes_index: bool = True) -> None:
        """Commit everything, mark the stop as clean, close the connections. There is no index to finish.

        StoreError: the database is away, so what waits is not committed.
        """
        try:
            if self.fault is None:
                self._nodes.note_ends_now()
                if len(self._nodes.nodes) > 1 or self._nodes.has_changes or self._nodes.home.writer.waits_for_commit:
                    self.flush()
                self._disk.remove(UNCLEAN_FILE)
        except StoreAway as error:
            size = self.end_offset - self.flushed_offset
            raise StoreError(
                f"found that the database does not answer ({self.away}) and {size} bytes that wait for a commit, "
                "expected none: no send of them was acknowledged; let senders repeat them"
            ) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the connections as they are, as a crash would."""
        if hasattr(self, "timers"):
            self.timers.close()
        if hasattr(self, "_nodes"):
            self._nodes.close()
        else:
            self._database.close()
        self._disk.close()


def _refuse_copy() -> NoReturn:
    raise LogDiffers(
        "found a store on tables, which has no CommitLog to copy, expected a CommitLog: replicate the database instead"
    )
