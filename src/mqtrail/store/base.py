"""The store's contract: what a broker requires of the store that keeps its messages.

A store is a CommitLog of records, with queues (topic, queue id -> places in the log) and an index (topic#key -> places)
derived from it. Its caller drives it: `append` writes and returns tickets; the node flushes (`begin_flush`,
`begin_checkpoint`), writes queue entries and builds the index; the caller delays a reply until `flushed_offset` reaches
its ticket's `end_offset`. Times are arguments.

Every store guarantees the following; tests/store/test_contract.py checks it for each kind:

- `append` stores all records of a call, in order, or none.
- Queue offsets of a queue rise by one from 0. None is assigned twice, also after a restart or expiry; only
  `delete_topic` starts again at 0.
- A record is returned byte for byte as it was stored until it expires. No read skips one that its filters let through.
- A power loss removes nothing below `flushed_offset`. Above it, it removes the end only.
- `query` returns only records of that topic and key. If it cannot know all of them, it raises SystemBusy.

A store may write anywhere, at any time and in files of any size.

Physical offsets and sizes are bytes; ranges are half open, [first, end).
Source of the semantics: DefaultMessageStore, apache/rocketmq store/.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from mqtrail.wire import HOURS, PERCENT, InvalidParameter, SettingUnit, encode_record, setting, whole

from .timers import TimerFiles

Buffer: TypeAlias = bytes | bytearray | memoryview


class PendingRecord(NamedTuple):
    """A message to append: all fields of its record except those that the store sets (offsets, store time, CRC).

    born_host is packed (4 + 4 or 16 + 4 bytes). tags_code: what the queue entry holds: Java's hash of TAGS, or in
    SCHEDULE_TOPIC_XXXX the time the message is due (ms).
    """

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes
    tags_code: int
    born_timestamp_ms: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    def encoded(self, queue_offset: int, physical_offset: int, *, store_timestamp_ms: int, store_host: bytes) -> bytes:
        """Return the bytes of the record at these offsets. RecordError: a text is too long, or a number too large."""
        return encode_record(
            self.topic,
            self.body,
            self.properties,
            queue_id=self.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp_ms=self.born_timestamp_ms,
            born_host=self.born_host,
            store_timestamp_ms=store_timestamp_ms,
            store_host=store_host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )


class Appended(NamedTuple):
    """The ticket of one appended record. It is durable once flushed_offset >= end_offset."""

    physical_offset: int
    size: int
    queue_offset: int
    end_offset: int


class BatchPlaces(NamedTuple):
    """Where a batch is: its records follow each other in their queue, from queue_offset on. See Appended."""

    queue_offset: int
    physical_offsets: list[int]
    sizes: list[int]
    end_offset: int

    def ticket(self, number: int) -> Appended:
        """Return the ticket of one record."""
        start, size = self.physical_offsets[number], self.sizes[number]
        return Appended(start, size, self.queue_offset + number, start + size)


class RecordBatch(Protocol):
    """Many records of one queue, all born at one time at one host, that are appended together."""

    topic: str
    queue_id: int

    def __len__(self) -> int: ...

    def add(self, records: Sequence[PendingRecord]) -> None:
        """Prepare more records, which takes most of the time. MessageIllegal: one of them cannot be stored."""

    def append(self, now_ms: int) -> BatchPlaces:
        """Store all records, in order, or none; only once. See `MessageStore.append`."""


class GetStatus(StrEnum):
    """The result of a read of a queue. The broker maps it to a response code and sends its name as the remark."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"  # the filter left none of the entries scanned
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"  # the records are gone from the log, their entries are not yet
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"  # inside the range, but there is no entry
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"  # past the end by more than one
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"  # at the end: nothing new
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"  # below the first kept
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"  # the queue was never written
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"  # it exists and is empty


class ReadResult(NamedTuple):
    """The answer to a read. records: whole records as stored. next_queue_offset: where the next read starts."""

    status: GetStatus
    records: Sequence[Buffer]
    next_queue_offset: int
    min_offset: int
    max_offset: int


class IndexQueryResult(NamedTuple):
    """The answer to a query by key: records in physical order, and up to where the log is indexed.

    is_cut: the store stopped at one of its limits; older records with the key may be missing.
    """

    records: Sequence[bytes]
    index_timestamp_ms: int
    index_physical_offset: int
    is_cut: bool = False


@dataclass(slots=True, eq=False)
class QueueState:
    """The state of a queue in memory. The fast lane keeps a reference to it; only the store changes it.

    topic_field: length and bytes of the topic as a record has them. next_offset: queue offset of the next record.
    """

    topic: str
    queue_id: int
    topic_field: bytes
    next_offset: int = 0


def _hours(text: str) -> tuple[int, ...]:
    hours = tuple(whole(part) for part in text.replace(";", ",").split(",") if part.strip())
    if not hours:
        raise ValueError(text)
    return hours


HOURS_OF_DAY: Final = SettingUnit(
    _hours, lambda hours: ";".join(f"{hour:02}" for hour in hours), "hours of the day such as 04 or 04;16"
)
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long records are kept. Times are ms, ratios shares of the partition.

    The same checks apply at a start and while the broker runs. As in Java, each ratio counts on its own; they may be in
    any order.
    """

    retention_ms: int = setting(
        72 * HOUR_MS, "time to keep files (RocketMQ: hours)", conf="fileReservedTime", unit=HOURS, changeable=True
    )
    delete_hours: tuple[int, ...] = setting(
        (4,),
        "hours of the day (local time) at which expired files are deleted",
        conf="deleteWhen",
        unit=HOURS_OF_DAY,
        changeable=True,
    )
    expire_ratio: float = setting(
        0.75,
        "share of the disk above which expired files are deleted at any hour",
        conf="diskMaxUsedSpaceRatio",
        unit=PERCENT,
        changeable=True,
    )
    force_ratio: float = setting(
        0.85,
        "share of the disk above which the oldest files are deleted before they expire",
        conf="diskSpaceCleanForciblyRatio",
        unit=PERCENT,
        changeable=True,
    )
    full_ratio: float = setting(
        0.90,
        "share of the disk above which sends are rejected",
        conf="diskSpaceWarningLevelRatio",
        unit=PERCENT,
        changeable=True,
    )

    def __post_init__(self) -> None:
        """Reject invalid values. InvalidParameter names the field and RocketMQ's key."""
        if self.retention_ms < 0:
            raise InvalidParameter(f"found retention_ms {self.retention_ms} (fileReservedTime), expected 0 or more")
        if not all(0 <= hour <= 23 for hour in self.delete_hours):  # empty: only a lack of space removes files
            raise InvalidParameter(f"found delete_hours {self.delete_hours} (deleteWhen), expected hours, 0 to 23")
        for name, key in (
            ("expire_ratio", "diskMaxUsedSpaceRatio"),
            ("force_ratio", "diskSpaceCleanForciblyRatio"),
            ("full_ratio", "diskSpaceWarningLevelRatio"),
        ):
            ratio = getattr(self, name)
            if not 0 < ratio <= 1:
                raise InvalidParameter(f"found {name} {ratio:g} ({key}), expected more than 0 and at most 1 (100 %)")


class Damage(NamedTuple):
    """Bytes [first, end) of the log that contain no whole record, and the reason."""

    first: int
    end: int
    why: str

    def __str__(self) -> str:
        return f"{self.end - self.first} damaged bytes skipped at physical offset {self.first} ({self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The result of recovery. wiped_size: bytes that were written and are not a record; an unknown number of further
    bytes may be lost with them. dangling_entries: queue entries that pointed past the end of the log. damage: the
    ranges that were skipped. rebuilt: derived files that were damaged and are built again, each with what was found.
    first_start: no broker has used the folder before. lost: what is missing from the log and was not removed by
    retention."""

    unclean: bool
    scanned_from: int
    end_offset: int
    wiped_size: int
    dangling_entries: int
    rebuilt_entries: int
    last_store_ms: int
    damage: tuple[Damage, ...] = ()
    rebuilt: tuple[str, ...] = ()
    first_start: bool = False
    lost: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to report to an operator."""
        return not (self.unclean or self.damage or self.rebuilt or self.lost)

    def __str__(self) -> str:
        parts = [f"the log ends at {self.end_offset}"]
        if self.unclean:
            parts.append(
                f"{self.wiped_size} bytes wiped, {self.dangling_entries} queue entries pointed past the end: messages "
                "that were not flushed are lost, possibly more than these"
                if self.wiped_size or self.dangling_entries
                else "nothing was wiped"
            )
        parts += [*map(str, self.damage), *self.rebuilt, *self.lost]
        before = "first start" if self.first_start else f"after {'an unclean' if self.unclean else 'a clean'} stop"
        return f"{before}; {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class NodeFetch:
    """What `begin_fetch` returns for a queue of another database than the first, or for a replica: fetches of one node
    run in one thread, which waits for no other database."""

    node: str
    act: Callable[[], None]

    def __call__(self) -> None:
        """Fetch."""
        self.act()


class MessageStore(Protocol):
    """See the module. One thread calls it. What the begin_… methods return may run in another thread, one at a time."""

    @property
    def end_offset(self) -> int:
        """Physical offset of the next record."""

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first kept byte."""

    @property
    def flushed_offset(self) -> int:
        """Everything below this physical offset survives power loss."""

    @property
    def recovery(self) -> Recovery:
        """What the start found, and what was found damaged and built again since."""

    @property
    def fault(self) -> str | None:
        """Why the store rejects appends until it is opened again; None: it accepts them."""

    @property
    def away(self) -> str | None:
        """Why what keeps the records does not answer at present: reads raise StoreAway, and a flush tries it again.
        None: it answers."""

    @property
    def away_nodes(self) -> Mapping[str, str]:
        """Databases of queues that do not answer at present, and why. The other queues are not affected."""

    @property
    def away_replicas(self) -> Mapping[str, str]:
        """Databases whose replica cannot be read at present, and why. Everything is read from the databases then."""

    @property
    def is_full(self) -> bool:
        """Whether `append` raises StoreFull because the disk is above the limit that retention sets."""

    @property
    def retention_ms(self) -> int:
        """How long records are kept if there is enough space."""

    @property
    def timers(self) -> TimerFiles:
        """The files of the broker's timers."""

    retention: Retention
    """The settings of `expire`; may be changed while the store is open."""

    @property
    def disk_ratio(self) -> float:
        """How full the partition is, 0 to 1."""

    @property
    def disk_capacity(self) -> tuple[int, int]:
        """Bytes of the partition, and how many are free; (0, 0) for a store in memory."""

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Store all of records, in order, or none. Store times never run backwards.

        Plain tuples of PendingRecord's fields do as well. StoreFull, StoreBroken, MessageIllegal.
        """

    @property
    def closes_queues(self) -> bool:
        """Whether `why_closed` may find something."""

    def why_closed(self, topic: str, queue_id: int, now_ms: int) -> str | None:
        """Return why the broker must refuse sends of clients to a queue; None: it need not. `append` takes records also
        then: those that the broker moves."""

    def begin_batch(self, topic: str, queue_id: int) -> RecordBatch:
        """Return an empty batch, for more records than one call of `append` may take. Nothing is stored yet."""

    def append_copy(self, physical_offset: int, data: Buffer) -> int:
        """Store the whole records in bytes of another store's log, which begin at physical_offset; return their size.

        An empty store takes the first bytes at any segment's start. What is left behind the last whole record is not
        stored. LogDiffers: the bytes do not continue this log, or are no records; those before them are stored.
        StoreFull, StoreBroken: nothing more can be stored now.
        """

    def log_bytes(self, physical_offset: int, size_max: int) -> bytes:
        """Return at most size_max bytes of the log from physical_offset on; b"" at its end.

        The end of a segment ends the answer earlier. LogDiffers: the log does not have this place.
        """

    @property
    def last_record_offset(self) -> int:
        """Physical offset of the last record; -1: there is none."""

    @property
    def segment_size(self) -> int:
        """Bytes of a file of the log. A copy has files of the same size."""

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
        """Return records from queue_offset on: at most count_max, at most size_max bytes but at least one.

        tags_codes: only entries with one of these codes (low 32 bits). end_offset: only records below this physical
        offset. accepts: only records whose properties text it accepts; it is not called for records that tags_codes
        exclude. scan_max: the most entries to scan; the store also has a limit of its own.
        """

    @property
    def fetches(self) -> bool:
        """Whether `begin_fetch` may have something to do."""

    def begin_fetch(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int, tags_codes: frozenset[int] | None = None
    ) -> Callable[[], None] | None:
        """Return a function for another thread that fetches what a `read` with the same arguments needs, so that it
        waits for nothing; None: it waits for nothing anyway. A NodeFetch names its thread."""

    def read_at(self, physical_offset: int) -> bytes:
        """Return the record that starts there. QueryNotFound: there is none.

        Bytes inside a body that look like a record do not count: clients choose the offset, and can send such a body.
        """

    def query_in_slices(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> Generator[None, None, IndexQueryResult]:
        """Return the newest count_max records under topic and key stored in [begin_ms, end_ms], in the log's order.

        It yields now and then; any method may be called in between. SystemBusy: not everything is indexed yet.
        """

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> IndexQueryResult:
        """Run all slices of a query at once."""

    def queue(self, topic: str, queue_id: int) -> QueueState:
        """Return the queue's state, making the queue when it is new."""

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues that exist, sorted."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first kept queue offset; 0 for a queue that was never written."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next record; 0 for a queue that was never written."""

    def is_end_known(self, topic: str, queue_id: int) -> bool:
        """Whether `max_offset` is exact. False: the database of the queue has not answered since the start, so it may
        be too small."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after timestamp_ms (upper: the last at or before)."""

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time (ms) of a queue's record, -1 when it is not there."""

    def truncate(self, physical_offset: int) -> str:
        """Cut off the log from physical_offset on, where a record ends; return the path of the file with the bytes that
        were cut off. Their queue entries and index entries go too.

        Only for a store that nothing else uses yet: it is opened again. After a crash the next start completes it.
        LogDiffers: no record ends there; StoreFull: no space for the bytes. Then nothing was cut off.
        """

    def begin_flush(self) -> Callable[[], int]:
        """Note the log's end; return a function that makes the log durable up to it and returns the new flushed_offset.

        StoreBroken: an earlier flush failed; nothing can be made durable until the store is opened again.
        """

    def flush(self) -> int:
        """Make everything appended before the call durable before returning; return the new flushed_offset."""

    def write_queues(self, *, sync: bool = False) -> None:
        """Write queue entries that wait in memory; sync: checkpoint as well."""

    def write_queues_in_slices(self) -> Iterator[None]:
        """Write queue entries that wait in memory; yield now and then. Appends and deletions may come in between."""

    def begin_checkpoint_in_slices(self, *, index: bool = True) -> Generator[None, None, Callable[[], None]]:
        """Write buffered data; return a function that makes it durable, so that recovery starts where this call
        started.

        index: include the index. It yields now and then; appends and deletions may come in between.
        """

    @property
    def index_damage(self) -> tuple[int, str]:
        """How often the index was found damaged since the start, and what was found the last time."""

    @property
    def is_index_saved(self) -> bool:
        """Whether the whole index is durable, so that a checkpoint has no work with it."""

    @property
    def behind_size(self) -> int:
        """Bytes of the log that are not indexed yet."""

    def dispatch_index(self, count_max: int) -> int:
        """Index at most count_max records that are not indexed yet; return how many were indexed."""

    def topics(self) -> list[str]:
        """Return the topics that have queues, sorted."""

    def entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of entries from queue_offset on; empty when it is out of range."""

    def clean_queues(self) -> Iterator[None]:
        """Forget queue entries whose records expired, and files that hold nothing else; yield now and then."""

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues, at once and for good. Records stay in the log until they expire.

        A new topic with the same name starts at queue offset 0 at once. `write_queues_in_slices` removes the files, and
        retries what fails. Nothing is synced here: the next flush makes the deletion durable, before any later append.
        """

    def expire(self, now_ms: int, *, at_any_hour: bool = False) -> int:
        """Remove segments that retention and disk limits allow to remove; return the bytes freed. at_any_hour: ignore
        the configured hours.
        """

    def expire_in_slices(self, now_ms: int, *, at_any_hour: bool = False) -> Generator[None, None, int]:
        """Do the work of `expire`; yield after each segment, and now and then while queue entries are cleaned."""

    def close(self, *, finishes_index: bool = True) -> None:
        """Make everything durable, and close the files.

        finishes_index False: records that are not indexed yet are left to the next start, which serves meanwhile.
        """

    def abandon(self) -> None:
        """Close the files as they are, as a crash would leave them."""
