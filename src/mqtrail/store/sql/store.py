"""SqlStore: the store's contract on tables of a database.

A queue is a table, and a queue offset is the id of a row. `append` gives places in memory; a flush is a commit, so the
broker must run with SYNC_FLUSH: then no reply, also to a pull, leaves before the rows that it is about are committed.
docs/design/table-store.md has the tables, the order of commits and what a table store refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime
from typing import NoReturn

from mqtrail.wire import TIMER_TOPIC

from ..base import (
    Appended,
    BatchPlaces,
    Buffer,
    IndexQueryResult,
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
from .database import Apart, Database, in_turns
from .queues import TableQueues
from .reading import TableReader
from .retention import Remover
from .writing import RowWriter

Appending = Callable[[Sequence[PendingRecord], int], list[Appended]]


class TableBatch:
    """Many records of one queue, appended together; see RecordBatch."""

    def __init__(self, topic: str, queue_id: int, writer: RowWriter, append: Appending) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._writer = writer
        self._append = append
        self._records: list[PendingRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, records: Sequence[PendingRecord]) -> None:
        """Add records. MessageIllegal: one of them cannot be stored."""
        for record in records:
            self._writer.check_size(record)
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
    asks a server, and limits the time; None: nothing limits it.
    """

    def __init__(self, disk: Disk, url: str, config: CommitLogConfig | None = None, apart: Apart | None = None) -> None:
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
            self._start(unclean)
        except BaseException:
            self.abandon()
            raise

    def _start(self, unclean: bool) -> None:
        config = self.config
        self._queues = TableQueues(self._database)
        self._writer = RowWriter(self._database, self._queues, config.store_host.packed(), config.record_size_max)
        self._reader = TableReader(self._database, self._queues, self._writer.appended)
        self._remover = Remover(self._database, self._queues, self._reader)
        self._min_physical_offset = self._remover.first_physical_offset(self.end_offset)
        self._full = False
        self.recovery = Recovery(
            unclean=unclean,
            scanned_from=self.end_offset,
            end_offset=self.end_offset,
            wiped_size=0,
            dangling_entries=0,
            rebuilt_entries=0,
            last_store_ms=self._writer.store_ms,
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
        return self._writer.end_offset

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first kept record."""
        return self._min_physical_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is committed."""
        return self._writer.flushed_offset

    @property
    def last_record_offset(self) -> int:
        """Physical offset of the last record since the start; -1: there is none."""
        return self._writer.last_offset

    @property
    def segment_size(self) -> int:
        """The setting; there are no segments."""
        return self.config.segment_size

    @property
    def fault(self) -> str | None:
        """Why the store rejects appends until it is opened again; None: it accepts them."""
        return self._writer.fault

    @property
    def away(self) -> str | None:
        """Why the database does not answer at present; the next flush asks it again. None: it does."""
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
        return self._queues.open(topic, queue_id)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues that exist, sorted."""
        return self._queues.ids(topic)

    def topics(self) -> list[str]:
        """Return the topics that have queues, sorted."""
        return sorted({topic for topic, _ in self._queues.by_key})

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first kept queue offset."""
        queue = self._queues.by_key.get((topic, queue_id))
        return 0 if queue is None else queue.first_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next record."""
        queue = self._queues.by_key.get((topic, queue_id))
        return 0 if queue is None else queue.next_offset

    # -- append ----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Give all of records their places, or none; a flush commits them. See the contract."""
        if self._full:
            raise StoreFull(
                f"found the disk more than {self.config.full_ratio:.0%} full, expected less: free space; nothing of "
                "this request was stored"
            )
        return self._writer.append(records, now_ms)

    def begin_batch(self, topic: str, queue_id: int) -> RecordBatch:
        """Return an empty batch; see the contract."""
        return TableBatch(topic, queue_id, self._writer, self.append)

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
        self._writer.forget_committed()
        queue = self._queues.by_key.get((topic, queue_id))
        if end_offset is not None and end_offset >= self.end_offset:
            end_offset = None
        return self._reader.read(queue, queue_offset, count_max, size_max, tags_codes, end_offset, accepts, scan_max)

    @property
    def fetches(self) -> bool:
        """True on a server whose reads another thread can run."""
        return self._database.runs_apart

    def begin_fetch(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int, tags_codes: frozenset[int] | None = None
    ) -> Callable[[], None] | None:
        """Return what a read of rows needs, for the thread of `apart`; see the contract."""
        self._writer.forget_committed()
        queue = self._queues.by_key.get((topic, queue_id))
        if queue is None or not self.fetches or self.away is not None:
            return None
        return self._reader.begin_fetch(queue, queue_offset, count_max, tags_codes)

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
            topic, key, count_max, begin_ms, end_ms, self._writer.store_ms, self.end_offset
        )

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> IndexQueryResult:
        """Run all slices of a query at once."""
        return at_once(self.query_in_slices(topic, key, count_max, begin_ms, end_ms))

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a queue's record, -1 when it is not there."""
        return self._reader.store_time(self._queues.by_key.get((topic, queue_id)), queue_offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after timestamp_ms (upper: the last at or before)."""
        return self._reader.offset_by_time(self._queues.by_key.get((topic, queue_id)), timestamp_ms, upper=upper)

    def entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of entries from queue_offset on."""
        queue = self._queues.by_key.get((topic, queue_id))
        return [] if queue is None else self._reader.entries(queue, queue_offset, count_max)

    # -- upkeep ----------------------------------------------------------------------------------------------------

    def begin_flush(self) -> Callable[[], int]:
        """Return a function for any thread: it commits what is appended now and returns the flushed offset."""
        return self._writer.begin_commit()

    def flush(self) -> int:
        """Commit everything that is appended; return the flushed offset. StoreAway: it is known to be away."""
        if self.away is not None:
            raise StoreAway(self.away)
        return self._writer.begin_commit()()

    def write_queues(self, *, sync: bool = False) -> None:
        """Remove the rows of deleted topics."""
        for _ in self.write_queues_in_slices():
            pass

    def write_queues_in_slices(self) -> Iterator[None]:
        """Remove the rows of deleted topics; yield now and then. StoreError: a later call does the rest."""
        self._writer.forget_committed()
        yield from in_turns(self._remover.empty_released())

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
        self._writer.release(topic)

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
        self._writer.forget_committed()
        freed = yield from in_turns(self._remover.expire_in_slices(now_ms - config.retention_ms))
        if freed:
            self._min_physical_offset = self._remover.first_physical_offset(self.end_offset)
            self.timers.expire(self._min_physical_offset)
        return freed

    def close(self, *, finishes_index: bool = True) -> None:
        """Commit everything, mark the stop as clean, close the connections. There is no index to finish.

        StoreError: the database is away, so what waits is not committed.
        """
        try:
            if self.fault is None:
                if self._writer.waits_for_commit:
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
        self._database.close()
        self._disk.close()


def _refuse_copy() -> NoReturn:
    raise LogDiffers(
        "found a store on tables, which has no CommitLog to copy, expected a CommitLog: replicate the database instead"
    )
