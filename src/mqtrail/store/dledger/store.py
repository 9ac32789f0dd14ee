"""The store of a broker in a DLedger group: a CommitLogStore whose log is the member's ledger.

    store = LedgerStore(disk, config, self_id="n0")
    store.lead(gate)         this member leads, and all that earlier leaders may have committed is committed
    store.append(…)          writes entries; consumers cannot read them yet
    store.advance()          makes what was committed since visible: queue entries, reads, `max_offset`
    store.step_down()        this member leads no longer: nothing becomes visible or counts as flushed before `follow`
    store.follow()           another member leads; `advance` shows what it commits

Queues, index, timers and readers see only the committed part of the log (`CommittedLog`). So an entry that is rolled
back was never in a queue and was never read. `flushed_offset` is the end of that part: a reply that waits for its
record waits for the majority, and tables are saved up to there. Between `step_down` and `follow` it does not move,
because another leader's entries may take the places of this one's. All replies that wait for entries of this leader
must be dropped before `follow`.

A record is one entry; a batch is consecutive ones. The queue offset of an appended record is kept here until its entry
is in the queue.

Source: DLedgerCommitLog, apache/rocketmq store/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from mqtrail.wire import (
    FRAME_SIZE_MAX,
    LEDGER_HEAD_SIZE,
    LEDGER_PADDING_SIZE_MIN,
    TIMER_TOPIC,
    LedgerEntry,
    MessageIllegal,
    MessageSysFlag,
    RecordError,
    ServiceNotAvailable,
    decode_head,
    parse_delay_levels,
)

from ..base import Appended, BatchPlaces, Buffer, PendingRecord, RecordBatch
from ..commitlog.append import RECORD_BASE, too_large
from ..commitlog.config import CommitLogConfig
from ..commitlog.foreign import refuse_foreign
from ..commitlog.log import CommitLog
from ..commitlog.notes import QueueKey, note_expired
from ..commitlog.scan import LogScan
from ..commitlog.store import GATHERED_ENTRIES_MAX, CommitLogStore
from ..disk import Disk
from ..errors import LogDiffers, StoreError, StoreFull
from ..timers import TimerFiles
from .committed_log import CommittedLog
from .ledger import LedgerLog

TRANSACTION_MASK: Final = int(MessageSysFlag.TRANSACTION_MASK)
HOSTS_SIZE: Final = 16  # of both hosts, IPv4, as RECORD_BASE counts them
FIRST_TOPIC: Final = "DLEDGER_FIRST_ENTRY"  # of the record with which a leader of mqtrail begins; it is in no queue
IN_QUEUE: Final = (0, int(MessageSysFlag.TRANSACTION_COMMIT))
ADVANCE_COUNT_MAX: Final = 500  # entries that one call makes visible
PUSHED_SIZE_MAX: Final = FRAME_SIZE_MAX * 3 // 4 - 4096  # of a record: a request to a member has it in base64


class LedgerGate(Protocol):
    """The leader's part of consensus."""

    def check(self, count: int) -> None:
        """Refusal: so many more entries cannot be appended now."""

    def appended(self) -> None:
        """Entries were appended: send them to the other members."""


class LedgerStore(CommitLogStore):
    """See the module. ledger: its log; its committed index is raised by whoever decides it."""

    _log: CommittedLog

    def __init__(
        self,
        disk: Disk,
        config: CommitLogConfig | None = None,
        *,
        self_id: str,
        group: str = "",
        index_units: int | None = None,
    ) -> None:
        """index_units: of one file of the ledger's index; None: as many as Apache's member has."""
        self._self_id, self._group = self_id, group
        self._index_units = {} if index_units is None else {"index_units": index_units}
        self._gate: LedgerGate | None = None
        self._is_frozen = False
        self._next: dict[QueueKey, int] = {}  # queue offset of the next record, of queues that this leader wrote to
        self._grown: dict[QueueKey, None] = {}
        self._scan: LogScan | None = None
        super().__init__(disk, config)
        # Queue entries behind what is known to be committed are cut, and come again: nothing is lost with them.
        self.recovery = replace(self.recovery, wiped_size=self.ledger.start.wiped_size, dangling_entries=0)
        self._store_host = self.config.store_host.packed()
        self._delays_ms = parse_delay_levels(self.config.message_delay_level)

    def _open_log(self) -> CommitLog:
        refuse_foreign(self._disk, f"dledger-{self._self_id}")
        config = self.config
        self.ledger = LedgerLog(
            self._disk,
            self._self_id,
            segment_size=config.segment_size,
            check_crc=config.check_crc,
            group=self._group,
            **self._index_units,
        )
        return CommittedLog(self._disk, self.ledger)

    def _settle(self) -> None:
        ledger = self.ledger
        ledger.begin_checkpoint(ledger.committed_index)()
        ledger.begin_flush()()
        ledger.data.sync_mark()
        super()._settle()

    def _close_files(self) -> None:
        super()._close_files()
        self.ledger.abandon()

    # Roles.

    def lead(self, gate: LedgerGate) -> None:
        """Take appends. All entries of earlier leaders that this log has must be committed, and visible."""
        assert self.is_current, "found committed entries that are not visible, expected none: call `advance` first"
        self._gate, self._is_frozen = gate, False
        self._next.clear()

    def step_down(self) -> None:
        """Take no appends, and show nothing more until `follow`."""
        self._gate, self._is_frozen = None, True

    def follow(self) -> None:
        """Show what another leader commits. No reply may still wait for an entry of this member as leader."""
        self._gate, self._is_frozen = None, False
        self._next.clear()

    def reopen_timers(self) -> None:
        """Read the files of the timers again, as a start does: the broker's role changes, and its timers begin anew."""
        self.timers.close()
        self.timers = TimerFiles(self._disk, self.config.timer_log_file_size)
        self.timers.recover(self._log.end_offset, self._queue_offset_at, self.min_offset(TIMER_TOPIC, 0))

    # State.

    @property
    def end_offset(self) -> int:
        """Of a leader, the position of its next entry; of another member, that behind the last visible entry."""
        is_leader = self._gate is not None or self._is_frozen
        return self.ledger.end_position if is_leader else self._log.end_offset

    @property
    def is_current(self) -> bool:
        """Whether all that is committed is visible, and nothing that the ledger dropped: it may have begun anew."""
        index, ledger = self._log.committed_index, self.ledger
        return index >= ledger.committed_index and index + 1 >= ledger.begin_index

    @property
    def last_record_offset(self) -> int:
        """Physical offset of the last visible record; -1: there is none."""
        last = self._log.last_record
        return last + LEDGER_HEAD_SIZE if last >= 0 else -1

    @property
    def committed_offset(self) -> int:
        """Position behind the last entry that is visible."""
        return self._log.end_offset

    # Appending.

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Write all of records or none, each as one entry; see the contract. ServiceNotAvailable: not the leader."""
        if self._gate is None:
            raise ServiceNotAvailable(
                "found a member of a DLedger group that does not lead, expected the leader: refresh the route"
            )
        self._gate.check(len(records))
        self._prepare(0, now_ms)  # `advance` counts the queue entries
        if not records:
            return []
        self._indexer.leave_to_log()
        moved: dict[QueueKey, int] = {}
        tickets: list[Appended] = []
        entries: list[LedgerEntry] = []
        ledger = self.ledger
        index, term, end = ledger.end_index, ledger.term, ledger.end_position
        for fields in records:
            record = PendingRecord(*fields)
            key = record.topic, record.queue_id
            queue = self._by_key.get(key) or self._queues.open(*key)
            if record.sys_flag & TRANSACTION_MASK in IN_QUEUE:
                queue_offset = moved.get(key, self._next.get(key, queue.next_offset))
                moved[key] = queue_offset + 1
            else:
                queue_offset = 0  # prepared and rolled back messages are in no queue
            size = self._size_of(record, len(queue.topic_field))
            position = ledger.place_behind(end, LEDGER_HEAD_SIZE + size)
            physical_offset = position + LEDGER_HEAD_SIZE
            body = self._encode(record, queue_offset, physical_offset)
            assert len(body) == size
            index += 1
            entry = LedgerEntry(index, term, position, body)
            entries.append(entry)
            end = entry.end
            tickets.append(Appended(physical_offset, len(body), queue_offset, end))
        try:
            ledger.append(entries)
        except StoreFull:
            self._full = True  # until `expire` finds space
            raise
        self._next |= moved
        self._gate.appended()
        return tickets

    def _encode(self, record: PendingRecord, queue_offset: int, physical_offset: int) -> bytes:
        try:
            return record.encoded(
                queue_offset, physical_offset, store_timestamp_ms=self._store_ms, store_host=self._store_host
            )
        except RecordError as error:
            raise MessageIllegal(f"{error}") from error

    def _size_of(self, record: PendingRecord, topic_size: int) -> int:
        """Return the size of a record; topic_size: of the topic with its length. MessageIllegal: it is too large."""
        hosts_size = len(record.born_host) + len(self._store_host)
        size = RECORD_BASE - HOSTS_SIZE + hosts_size + len(record.body) + topic_size + len(record.properties)
        room = self.config.segment_size - LEDGER_HEAD_SIZE - LEDGER_PADDING_SIZE_MIN
        size_max = min(self.config.record_size_max, room, PUSHED_SIZE_MAX)
        if size > size_max or len(record.properties) > 32767:
            raise too_large(size, size_max, len(record.body), len(record.properties))
        return size

    def begin_batch(self, topic: str, queue_id: int) -> RecordBatch:
        """Return an empty batch; see the contract."""
        return _Batch(self, topic, queue_id)

    def append_copy(self, physical_offset: int, data: Buffer) -> int:
        """LogDiffers: the group writes this log."""
        raise LogDiffers(
            "found bytes of a master's log for a member of a DLedger group, expected none: it has no master"
        )

    def log_bytes(self, physical_offset: int, size_max: int) -> bytes:
        """LogDiffers: a member of a group receives entries, never bytes of a log."""
        raise LogDiffers("found a request for bytes of the log of a DLedger member, expected none: it has no slaves")

    def truncate(self, physical_offset: int) -> str:
        """LogDiffers: consensus alone cuts this log."""
        raise LogDiffers("found a cut of the log of a DLedger member, expected none: its leader decides what it has")

    # Committed entries.

    def read_at(self, physical_offset: int) -> bytes:
        """Return the record there, and that of the first entry at the log's first byte; see the contract."""
        if physical_offset == self._log.first_offset:
            return self._reader.record_at(physical_offset + LEDGER_HEAD_SIZE)
        return super().read_at(physical_offset)

    def advance(self, count_max: int = ADVANCE_COUNT_MAX) -> list[QueueKey]:
        """Make at most so many committed entries visible; return the queues that have grown.

        Call it again while `is_current` is False. StoreError: a committed entry is damaged; StoreFull, OSError: queue
        files cannot be written, and a later call goes on.
        """
        if self._is_frozen:
            return []
        log, ledger = self._log, self.ledger
        self._skip_dropped()
        index = min(ledger.committed_index, log.committed_index + count_max)
        if index <= log.committed_index:
            return []
        if self._gathered > GATHERED_ENTRIES_MAX:
            self.write_queues()
        scan = self._scanner()
        begun = log.committed_index
        end = ledger.position_behind(index)
        log.move_to(index, end)
        try:
            why = scan.run(end)
        except BaseException:
            self._set_back(begun, scan)
            raise
        if why is not None:
            self._set_back(begun, scan)
            raise StoreError(f"found committed entry behind position {scan.position} that is no record: {why}") from why
        log.last_record = scan.last_record
        self._store_ms = max(self._store_ms, scan.last_store_ms)
        self._gathered += index - begun
        grown, self._grown = list(self._grown), {}
        return grown

    def _set_back(self, begun: int, scan: LogScan) -> None:
        """After a failure let the log end behind the last entry that was read."""
        log, ledger = self._log, self.ledger
        index = begun
        while index < log.committed_index and ledger.position_behind(index + 1) <= scan.position:
            index += 1
        log.move_to(index, ledger.position_behind(index))
        self._scan = None

    def _scanner(self) -> LogScan:
        if self._scan is None:
            self._scan = LogScan(
                self._log,
                self._by_key,
                self._show_entry,
                {},
                self._delays_ms,
                position=self._log.end_offset,
                crc=True,
                torn_from=None,
                deleted=self._queues.deleted.ends,
            )
        return self._scan

    def _show_entry(
        self, topic: str, queue_id: int, queue_offset: int, physical: int, size: int, tags_code: int
    ) -> None:
        self._put_entry(topic, queue_id, queue_offset, physical, size, tags_code)
        self._grown[topic, queue_id] = None

    def _put_entry(
        self, topic: str, queue_id: int, queue_offset: int, physical: int, size: int, tags_code: int
    ) -> None:
        """Add the queue entry of a committed record; one that exists stays.

        A leader may give a queue offset a second time: Apache's forgets a queue whose records all expired, and that of
        5.3.3 lacks queue entries once it was killed. What has an entry here may be acknowledged, so such a record gets
        the next offset of its queue. Only a leader of mqtrail shows by offset 0 that it deleted the topic.
        """
        queue = self._by_key.get((topic, queue_id))
        if queue is not None and queue_offset < queue.next_offset:
            if physical <= queue.newest_physical_offset:
                return
            if queue_offset == 0 and self._queues.is_spent(queue):
                self._queues.begin_again(queue)
            elif queue_offset == 0 and self._is_of_mqtrail(physical - LEDGER_HEAD_SIZE):
                self._queues.delete_topic(topic, physical - LEDGER_HEAD_SIZE)
            else:
                queue_offset = queue.next_offset
        self._queues.put_entry(topic, queue_id, queue_offset, physical, size, tags_code)

    def _is_of_mqtrail(self, position: int) -> bool:
        """Whether a member of mqtrail led in the term of an entry: its terms begin with a record of FIRST_TOPIC.

        True also if that entry expired: Apache's leader gives offsets again soon after its election.
        """
        ledger = self.ledger
        head = ledger.data.entry_head(position)
        assert head is not None, f"found no entry at position {position}, expected that of a record"
        low, high = ledger.begin_index, head.index
        while low < high:
            middle = (low + high) // 2
            if (ledger.term_at(middle) or 0) < head.term:
                low = middle + 1
            else:
                high = middle
        if low == ledger.begin_index and low > 0:
            return True
        first = ledger.entry(low)
        return first is not None and decode_head(first.body).topic == FIRST_TOPIC

    def _skip_dropped(self) -> None:
        """Go on at the first entry, if the ledger dropped what was not visible yet: it was too far behind."""
        log, ledger = self._log, self.ledger
        if ledger.begin_index > log.committed_index + 1:
            first = ledger.first_position
            note_expired(self._disk, first)
            log.move_to(ledger.begin_index - 1, first)
            log.last_record = -1
            self._scan = None
            self._indexer.expire()
            self.timers.expire(first)
            for _ in self.clean_queues():
                pass

    # Upkeep.

    def begin_flush(self) -> Callable[[], int]:
        """Return a function for any thread that notes what queues have, and returns the flushed offset.

        The majority decides what is flushed, and the ledger's own flushes make the log durable.
        """
        note = super().begin_flush()

        def flush() -> int:
            note()
            return self.flushed_offset

        return flush

    def flush(self) -> int:
        """Note what queues have; return the flushed offset."""
        return self.begin_flush()()

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues; see the contract."""
        super().delete_topic(topic)
        for key in [key for key in self._next if key[0] == topic]:
            del self._next[key]

    def _drop_first(self) -> int:
        return self.ledger.expire_first(self._log.committed_index)


class _Batch:
    """Records that are appended together; see RecordBatch."""

    def __init__(self, store: LedgerStore, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._store = store
        self._records: list[PendingRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, records: Sequence[PendingRecord]) -> None:
        """Add records of this queue. MessageIllegal: one cannot be stored."""
        queue = self._store.queue(self.topic, self.queue_id)
        for record in records:
            self._store._size_of(record, len(queue.topic_field))
            self._records.append(record)

    def append(self, now_ms: int) -> BatchPlaces:
        """Store all records or none; see `MessageStore.begin_batch`."""
        tickets = self._store.append(self._records, now_ms)
        return BatchPlaces(
            tickets[0].queue_offset,
            [one.physical_offset for one in tickets],
            [one.size for one in tickets],
            tickets[-1].end_offset,
        )
