"""CommitLogStore: Apache RocketMQ's store on a disk, driven by its caller.

The CommitLog is the truth; ConsumeQueues and the index derive from it. `append` writes the records of a call with one
write and buffers queue entries in memory; `flush` syncs the log and moves the mark; `write_queues` and `dispatch_index`
run later. After a crash the next start rebuilds what the derived files lack (`recovery.py`).

    <root>/commitlog/ consumequeue/<topic>/<queue id>/ index/ config/ checkpoint abort lock mqtrail-durable
           timerlog/ timerwheel config/timercheck (mqtrail.store.timers)

Source: DefaultMessageStore, CommitLog, StoreCheckpoint, apache/rocketmq store/.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from mqtrail.wire import TIMER_TOPIC, QueryNotFound

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
from ..disk import UNCLEAN_FILE, Disk
from ..errors import LogDiffers, StoreError, StoreFull
from ..timers import TimerFiles
from .append import Appender
from .batch import EncodedBatch
from .checkpoint import Checkpoints, index_clean_ms
from .config import CommitLogConfig
from .copying import LogCopy
from .cutting import copy_tail, cut_log, end_cut, last_record_before, note_cut, noted_cut
from .foreign import refuse_foreign
from .index import Index
from .indexer import Indexer
from .log import CommitLog
from .lookup import Lookup
from .notes import NOTES_FILE, Noted, expired_to, note_expired, read_notes
from .queues import ConsumeQueues
from .reading import Reader
from .recovery import recover

Result = TypeVar("Result")
GATHERED_ENTRIES_MAX = 50_000  # queue entries of all queues that wait in memory to be written
EXPIRE_FILES_MAX = 10  # segments removed by one call
COPIED_RECORD_SIZE_LEAST = 91  # bytes: a copied record has at most one queue entry
UNCHECKED_SIZE = 1 << 30  # bytes before the log's end: probably in memory, so they are read without a check


def at_once(work: Generator[None, None, Result]) -> Result:
    """Run all slices of a generator; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


class CommitLogStore:
    """See the module. recovery: the result of recovery at the start."""

    def __init__(self, disk: Disk, config: CommitLogConfig | None = None) -> None:
        self.config = config or CommitLogConfig()
        self._disk = disk
        disk.lock("lock")
        try:
            self._start()
            if (end := noted_cut(disk)) is not None:
                self._cut(end)
        except BaseException:
            disk.close()  # so that the folder can be opened again
            raise

    def _start(self) -> None:
        disk, config = self._disk, self.config
        unclean = disk.size(UNCLEAN_FILE) is not None
        self._log = self._open_log()
        self._queues = ConsumeQueues(disk, self._log, config.queue_file_size)
        self._by_key = queues = self._queues.by_key
        checkpoint = disk.read("checkpoint")
        noted = read_notes(disk, checkpoint).without(self._queues.deleted_since_noted())
        lost = self._queues.load(noted, unclean)
        if unclean and not lost:
            disk.remove(NOTES_FILE)  # some of its entries are added again below
        self._index = Index(
            disk,
            config,
            index_clean_ms(checkpoint) if unclean else None,
            may_drop=not self._log.is_foreign,
            is_as_left=bool(noted.ends or noted.damage),
            physical_first=self._log.first_offset,
        )
        self._reader = Reader(self._log, queues, skip_damaged=config.skip_damaged)
        self._full = False
        self._gathered = 0  # queue entries appended since they were written last
        recovery = recover(
            self._log, queues, self._put_entry, disk, config, unclean, lost, noted, self._queues.deleted.ends
        )
        if recovery.rebuilt:
            self._queues.restore_ends(noted)
        if self._log.is_plain:  # a later end of a ledger is not known to be committed, and never changes if it is
            self._queues.deleted.cut(self._log.end_offset)
        self._store_ms = recovery.last_store_ms
        self._index.drop_past(self._log.end_offset)
        lost_first = self._lost_first(noted)
        self.recovery: Recovery = replace(
            recovery,
            rebuilt=(*recovery.rebuilt, *self._index.dropped),
            lost=() if lost_first is None else (lost_first,),
        )
        self._indexer = Indexer(self._log, self._index, skip_damaged=config.skip_damaged)
        self._appender = Appender(
            self._log, queues, self._queues.open, config.store_host.packed(), config.record_size_max
        )
        self._copy = LogCopy(disk, self._log, self._queues, config, self._indexer.expire)
        self._lookup = Lookup(self._index, self._indexer, self._reader, is_indexed=config.index)
        self._checkpoints = Checkpoints(disk, self._log, self._index, queues, index_clean_ms(checkpoint))
        self.timers = TimerFiles(disk, config.timer_log_file_size)
        self.timers.recover(self._log.end_offset, self._queue_offset_at, self.min_offset(TIMER_TOPIC, 0))
        disk.replace(UNCLEAN_FILE, b"")
        if unclean or lost or self.recovery.damage or self._checkpoints.dispatched < self._log.end_offset:
            try:
                self._settle()
            except StoreFull:
                self._full = True  # serve the existing messages; the next start reads as much of the log as this one

    def _open_log(self) -> CommitLog:
        """Open the log. StoreError: the folder has what this version does not read."""
        refuse_foreign(self._disk)
        return CommitLog(self._disk, self.config.segment_size)

    def _put_entry(
        self, topic: str, queue_id: int, queue_offset: int, physical: int, size: int, tags_code: int
    ) -> None:
        """Add the queue entry of a record that a start reads."""
        self._queues.put_entry(topic, queue_id, queue_offset, physical, size, tags_code)

    def _queue_offset_at(self, physical_offset: int) -> int | None:
        try:
            return self._reader.queue_offset_of(self._reader.record_at(physical_offset))
        except QueryNotFound:
            return None

    def truncate(self, physical_offset: int) -> str:
        """Cut off the log from physical_offset on; return the file with what was cut off. See the contract."""
        log = self._log
        if not log.first_offset <= physical_offset < log.end_offset:
            raise LogDiffers(
                f"found physical offset {physical_offset}, expected {log.first_offset} to {log.end_offset - 1}, what "
                "this log has"
            )
        last_record_before(log, self._by_key.values(), physical_offset)
        path = copy_tail(self._disk, log, physical_offset)
        note_cut(self._disk, physical_offset)
        self._cut(physical_offset)
        return path

    def _cut(self, end: int) -> None:
        """Complete a cut that is noted."""
        if self._log.end_offset > end:
            self.flush()  # the rest of the log must be durable before the mark is
            self.timers.distrust()
            cut_log(self._disk, self._log, self._by_key.values(), end)
            self._close_files()
            self._start()
        end_cut(self._disk)

    def _settle(self) -> None:
        """Make the log and all derived files durable, and note it: the next start begins here."""
        self.begin_checkpoint()()
        self.flush()
        self._log.sync_mark()

    def _lost_first(self, noted: Noted) -> str | None:
        """Return a report if the log's beginning is missing and retention did not remove it; None: it is not
        missing."""
        found = self._log.first_offset
        expected = max(noted.log_first or 0, expired_to(self._disk))
        if noted.log_first is None or found <= expected or not self._log.segments.starts:
            return None
        return (
            f"commitlog/ begins at physical offset {found}, expected {expected}: {found - expected} bytes with "
            "their messages are missing, not removed by retention: restore the missing files, or accept the loss"
        )

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """Physical offset of the next record."""
        return self._log.end_offset

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first kept byte."""
        return self._log.first_offset

    @property
    def last_record_offset(self) -> int:
        """Physical offset of the last record; -1: there is none."""
        return self._log.last_record

    @property
    def segment_size(self) -> int:
        """Bytes of a file of the log."""
        return self._log.segments.size

    @property
    def flushed_offset(self) -> int:
        """Everything below survives power loss."""
        return self._log.flushed_offset

    @property
    def fault(self) -> str | None:
        """Why the store rejects appends until it is opened again; None: it accepts them."""
        return self._log.fault

    @property
    def fetches(self) -> bool:
        """False: files are read at once."""
        return False

    def begin_fetch(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int, tags_codes: frozenset[int] | None = None
    ) -> None:
        """Return None: see `fetches`."""

    @property
    def away(self) -> str | None:
        """None: the disk is there, or the store has a fault."""
        return None

    @property
    def retention(self) -> Retention:
        """The settings of `expire`."""
        return self.config.retention

    @retention.setter
    def retention(self, retention: Retention) -> None:
        self.config = self.config.with_retention(retention)

    @property
    def disk_ratio(self) -> float:
        """How full the partition is, 0 to 1."""
        return self._disk.usage()

    @property
    def retention_ms(self) -> int:
        """How long records are kept if there is enough space."""
        return self.config.retention_ms

    @property
    def disk_capacity(self) -> tuple[int, int]:
        """Bytes of the partition, and how many are free; (0, 0) in memory."""
        return self._disk.capacity()

    @property
    def is_full(self) -> bool:
        """Whether sends are rejected because the disk is full."""
        return self._full

    @property
    def index_damage(self) -> tuple[int, str]:
        """How often the index was found damaged since the start, and what was found the last time."""
        return self._index.drop_count, self._index.last_damage

    @property
    def is_index_saved(self) -> bool:
        """Whether the whole index is durable, so that a checkpoint has no work with it."""
        return self._index.is_saved

    @property
    def behind_size(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return self._indexer.behind_size if self.config.index else 0

    def queue(self, topic: str, queue_id: int) -> QueueState:
        """Return the queue's state, making the queue when it is new."""
        return self._by_key.get((topic, queue_id)) or self._queues.open(topic, queue_id)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues that exist, sorted."""
        return sorted(self._queues.by_topic.get(topic, ()))

    def topics(self) -> list[str]:
        """Return the topics that have queues, sorted."""
        return sorted(self._queues.by_topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first kept queue offset."""
        queue = self._by_key.get((topic, queue_id))
        return 0 if queue is None else queue.first_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next record."""
        queue = self._by_key.get((topic, queue_id))
        return 0 if queue is None else queue.next_offset

    # -- append ----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Store all of records or none; see the contract. Store times never run backwards."""
        self._prepare(len(records), now_ms)
        begin = self._log.end_offset
        tickets = self._appender.append(records, self._store_ms)
        if self.config.index and tickets:
            self._indexer.hand_over(begin, records, tickets, self._store_ms)
        return tickets

    @property
    def away_nodes(self) -> Mapping[str, str]:
        """None: all queues are in one place."""
        return {}

    @property
    def away_replicas(self) -> Mapping[str, str]:
        """None: its files are on this machine."""
        return {}

    @property
    def closes_queues(self) -> bool:
        """False: all queues are in one place."""
        return False

    def is_end_known(self, topic: str, queue_id: int) -> bool:
        """Return True."""
        return True

    def why_closed(self, topic: str, queue_id: int, now_ms: int) -> str | None:
        """Return None: see `closes_queues`."""
        return None

    def begin_batch(self, topic: str, queue_id: int) -> RecordBatch:
        """Return an empty batch; see the contract."""
        return self._appender.begin_batch(topic, queue_id, self._append_batch)

    def _append_batch(self, batch: EncodedBatch, now_ms: int) -> BatchPlaces:
        self._prepare(len(batch), now_ms)
        if self.config.index:
            self._indexer.leave_to_log()
        return self._appender.append_batch(batch, self._store_ms)

    def append_copy(self, physical_offset: int, data: Buffer) -> int:
        """Store the whole records in bytes of another store's log; return their size. See the contract."""
        self._check_room()
        self._indexer.leave_to_log()
        begin = self._log.end_offset
        try:
            size, store_ms = self._copy.append(physical_offset, data)
        finally:
            self._gathered += (self._log.end_offset - begin) // COPIED_RECORD_SIZE_LEAST
        self._store_ms = max(self._store_ms, store_ms)
        return size

    def log_bytes(self, physical_offset: int, size_max: int) -> bytes:
        """Return bytes of the log from physical_offset on, not past a segment's end; see the contract."""
        log = self._log
        if not log.first_offset <= physical_offset <= log.end_offset:
            raise LogDiffers(
                f"found physical offset {physical_offset}, expected {log.first_offset} to {log.end_offset}, what this "
                "log has"
            )
        start = log.segments.start_of(physical_offset)
        size = min(size_max, log.end_offset - physical_offset, start + log.segments.size - physical_offset)
        return log.segments.file(start).read_at(physical_offset - start, size) if size else b""

    def _prepare(self, count: int, now_ms: int) -> None:
        """Prepare to append so many records. StoreFull: the store rejects appends now."""
        if self._full or self._gathered > GATHERED_ENTRIES_MAX:
            self._check_room()
        self._gathered += count
        if now_ms > self._store_ms:
            self._store_ms = now_ms

    def _check_room(self) -> None:
        """Make room in memory for queue entries. StoreFull: the disk is too full."""
        if self._full:
            raise StoreFull(
                f"found the disk more than {self.config.full_ratio:.0%} full, expected less: free space or lower "
                "fileReservedTime; nothing of this request was stored"
            )
        if self._gathered > GATHERED_ENTRIES_MAX:
            self.write_queues()  # StoreFull: sends wait until there is room for queue entries

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
        return self._reader.read(
            topic, queue_id, queue_offset, count_max, size_max, tags_codes, end_offset, accepts, scan_max
        )

    def read_at(self, physical_offset: int) -> bytes:
        """Return the record that starts there and that its queue names. QueryNotFound: there is none."""
        return self._reader.read_at(physical_offset)

    def query_in_slices(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> Generator[None, None, IndexQueryResult]:
        """Return records indexed under topic and key; see the contract. The index is brought up to date first."""
        return self._lookup.query_in_slices(topic, key, count_max, begin_ms, end_ms)

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> IndexQueryResult:
        """Run all slices of a query at once."""
        return at_once(self.query_in_slices(topic, key, count_max, begin_ms, end_ms))

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a queue's record, -1 when it is not there."""
        return self._reader.store_time(topic, queue_id, queue_offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after timestamp_ms (upper: the last at or before)."""
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms, upper=upper)

    # -- upkeep ----------------------------------------------------------------------------------------------------

    def begin_flush(self) -> Callable[[], int]:
        """Return a function for any thread: it makes the log durable up to its present end and returns the flushed
        offset."""
        return self._log.begin_flush(self._checkpoints.dispatched)

    def flush(self) -> int:
        """Sync the log, then move the mark; return the flushed offset."""
        return self._log.begin_flush(self._checkpoints.dispatched)()

    def begin_checkpoint_in_slices(self, *, index: bool = True) -> Generator[None, None, Callable[[], None]]:
        """Write buffered data; return a function that syncs it and moves the checkpoint; see the contract.

        Once it is flushed, recovery begins at the log's present end.
        """
        yield from self._queues.remove_left()
        return (yield from self._checkpoints.in_slices(self._store_ms, index=index))

    def begin_checkpoint(self, *, index: bool = True) -> Callable[[], None]:
        """Run all slices of a checkpoint at once."""
        return at_once(self.begin_checkpoint_in_slices(index=index))

    def write_queues(self, *, sync: bool = False) -> None:
        """Write buffered queue entries; sync: make them durable and move the checkpoint."""
        for _ in self.write_queues_in_slices():
            pass
        if sync:
            self.begin_checkpoint()()

    def write_queues_in_slices(self) -> Iterator[None]:
        """Remove the files of deleted topics, then write buffered queue entries; yield now and then.

        StoreFull, OSError: a later call does the rest.
        """
        yield from self._queues.remove_left()
        gathered = self._gathered
        yield from self._queues.write_in_slices()
        self._gathered = max(0, self._gathered - gathered)

    def dispatch_index(self, count_max: int) -> int:
        """Index at most count_max records that are not indexed yet; return how many were indexed."""
        return self._indexer.dispatch(count_max) if self.config.index else 0

    def entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[tuple[int, int, int]]:
        """Return a queue's entries from queue_offset on; see the contract."""
        return self._queues.entries(topic, queue_id, queue_offset, count_max)

    def clean_queues(self) -> Iterator[None]:
        """Forget queue entries whose records expired, and files that hold nothing else; yield now and then."""
        return self._queues.clean()

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues. Records stay in the log until they expire; see the contract."""
        self._queues.delete_topic(topic)
        self._copy.forget()

    def expire(self, now_ms: int, *, at_any_hour: bool = False) -> int:
        """Run all slices of expire_in_slices at once."""
        return at_once(self.expire_in_slices(now_ms, at_any_hour=at_any_hour))

    def expire_in_slices(self, now_ms: int, *, at_any_hour: bool = False) -> Generator[None, None, int]:
        """Remove segments that retention and disk limits allow to remove, never the last one; return the bytes freed.

        In the hours of delete_hours, or above expire_ratio, these are segments last written retention_ms ago or
        earlier. Above force_ratio, even if it is lower than expire_ratio, they are the oldest segments of any age.
        Above full_ratio sends are rejected until there is space again.
        """
        config, segments = self.config, self._log.segments
        usage = self._disk.usage()
        hour = datetime.fromtimestamp(now_ms / 1000).hour
        is_due = at_any_hour or hour in config.delete_hours or usage > min(config.expire_ratio, config.force_ratio)
        freed = 0
        for _ in range(EXPIRE_FILES_MAX):
            if not is_due or len(segments.starts) < 2 or segments.starts[1] > self._log.flushed_offset:
                break
            age_ms = now_ms - self._disk.modified_ms(segments.path(segments.starts[0]))
            if age_ms <= config.retention_ms and self._disk.usage() <= config.force_ratio:
                break
            note_expired(self._disk, segments.starts[1])  # otherwise a start would report them as missing
            freed += self._drop_first()
            yield
        if freed:
            self._indexer.expire()
            self.timers.expire(self._log.first_offset)
            usage = self._disk.usage()
        self._full = usage > config.full_ratio
        self._log.checked_from = max(self._log.checked_from, self._log.end_offset - UNCHECKED_SIZE)
        if freed:
            yield from self.clean_queues()
        return freed

    def _drop_first(self) -> int:
        """Remove the oldest segment; return the bytes freed."""
        return self._log.segments.drop_first()

    def close(self, *, finishes_index: bool = True) -> None:
        """Make everything durable, mark the stop as clean, and close the files; see the contract."""
        try:
            if finishes_index:
                self._finish_index()
            self._settle()
            if self._index.closing():
                self._settle()  # writes the headers of full files
            if not self._checkpoints.is_frozen:
                self._index.note_sums()
                self._disk.remove(UNCLEAN_FILE)  # after a failure it stays, and the next start checks more
        finally:
            self.abandon()

    def _finish_index(self) -> None:
        try:
            while self.dispatch_index(10_000):
                pass
        except StoreError:
            pass  # the log is damaged where it would be indexed again; the next start reports it

    def abandon(self) -> None:
        """Close the files as they are, as a crash would leave them."""
        self._close_files()
        self._disk.close()

    def _close_files(self) -> None:
        self._queues.close()
        self._index.close()
        self.timers.close()
        self._log.close()
