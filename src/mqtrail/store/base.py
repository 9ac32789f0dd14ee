"""The store's contract: what a broker asks of whatever keeps its messages.

A store is a CommitLog of records, with queues (topic, queue id -> places in the log) and an index (topic#key -> places)
derived from it. It is driven from outside: `append` writes and returns tickets; the node makes durable (`begin_flush`,
`begin_checkpoint`), writes queue entries and builds the index; the caller holds an answer back until `flushed_offset`
reaches its ticket's `end_offset`. Times and clocks are arguments.

Physical offsets and sizes are bytes; ranges are half open, [first, end).
Source of the semantics: DefaultMessageStore, apache/rocketmq store/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from mqtrail.wire import InvalidParameter, MQError, ServiceNotAvailable

if TYPE_CHECKING:
    from mqtrail.store.timers import TimerFiles

Buffer: TypeAlias = bytes | bytearray | memoryview


class PendingRecord(NamedTuple):
    """A message on its way into the store: all of its record but what the store decides (offsets, store time, CRC).

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


class Appended(NamedTuple):
    """The ticket of one appended record. It is durable once flushed_offset >= end_offset."""

    physical_offset: int
    size: int
    queue_offset: int
    end_offset: int


class GetStatus(StrEnum):
    """How a read of a queue ended; the broker turns it into a response code, and sends its name as the remark."""

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
    """The answer to a read. records are whole records as stored; next_queue_offset is where to go on."""

    status: GetStatus
    records: Sequence[Buffer]
    next_queue_offset: int
    min_offset: int
    max_offset: int


class QueryResult(NamedTuple):
    """The answer to a query by key: records in physical order, and how far the index reaches."""

    records: Sequence[bytes]
    index_timestamp_ms: int
    index_physical_offset: int


class StoreFull(ServiceNotAvailable):
    """There is no room to append: nothing of the call was stored."""


class StoreBroken(ServiceNotAvailable):
    """The disk failed, and nothing more can be promised: the store takes nothing until it is opened again."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"found that {what}; nothing more is taken, what was stored can be read: look at the disk and the kernel's "
            "log, then restart the broker"
        )


class StoreError(MQError):
    """The files on disk are not what a store may open or go on with. The text says what was found and what to do."""


@dataclass(slots=True, eq=False)
class QueueState:
    """What the store keeps of a queue in memory. The fast lane holds on to it; only the store writes it.

    topic_field: length and bytes of the topic as a record has them. next_offset: queue offset of the next record.
    """

    topic: str
    queue_id: int
    topic_field: bytes
    next_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long records are kept. Times are ms, ratios shares of the partition; CommitLogConfig tells of each.

    The one rule for these, at a start and while the broker runs. The ratios count each for itself, in any order, as
    Java's do.
    """

    retention_ms: int
    delete_hours: tuple[int, ...]
    expire_ratio: float
    force_ratio: float
    full_ratio: float

    def __post_init__(self) -> None:
        """Refuse what means nothing. InvalidParameter names the field, and RocketMQ's key."""
        if self.retention_ms < 0:
            raise InvalidParameter(f"found retention_ms {self.retention_ms} (fileReservedTime), expected 0 or more")
        if not all(0 <= hour <= 23 for hour in self.delete_hours):  # none: files go for want of room alone
            raise InvalidParameter(f"found delete_hours {self.delete_hours} (deleteWhen), expected hours, 0 to 23")
        for name, key in (
            ("expire_ratio", "diskMaxUsedSpaceRatio"),
            ("force_ratio", "diskSpaceCleanForciblyRatio"),
            ("full_ratio", "diskSpaceWarningLevelRatio"),
        ):
            ratio = getattr(self, name)
            if not 0 < ratio <= 1:
                raise InvalidParameter(f"found {name} {ratio:g} ({key}), expected more than 0, 1 (100 %) at most")


class MessageStore(Protocol):
    """See the module. One thread calls it; what the begin_… methods return may run in another one, one at a time."""

    @property
    def end_offset(self) -> int:
        """Physical offset of the next record."""

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first kept byte."""

    @property
    def flushed_offset(self) -> int:
        """Everything below survives power loss."""

    @property
    def retention_ms(self) -> int:
        """How long records are kept, where there is room."""

    @property
    def timers(self) -> TimerFiles:
        """What it keeps for the broker's timers."""

    retention: Retention
    """What `expire` goes by; may be set while the store is open."""

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

        tags_codes: only entries whose low 32 bits are among them. end_offset: none at or past this physical offset.
        accepts: only records whose properties text it accepts; no record is looked at that tags_codes leave out.
        scan_max: entries to look at, at most; the store has a bound of its own.
        """

    def read_at(self, physical_offset: int) -> bytes:
        """Return the record that starts there. QueryNotFound when none does."""

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Return the newest count_max records under topic and key stored in [begin_ms, end_ms], in the log's order."""

    def queue(self, topic: str, queue_id: int) -> QueueState:
        """Return the queue's state, making the queue when it is new."""

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues that exist, sorted."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first kept queue offset; 0 for a queue that was never written."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next record; 0 for a queue that was never written."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after timestamp_ms (upper: the last at or before)."""

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time (ms) of a queue's record, -1 when it is not there."""

    def begin_flush(self) -> Callable[[], int]:
        """Take note of what is appended; return what makes it durable and gives the new flushed_offset.

        StoreBroken: an earlier flush failed, and nothing can be promised until the store is opened again.
        """

    def flush(self) -> int:
        """Make everything appended before the call durable, here and now; return the new flushed_offset."""

    def write_queues(self, *, sync: bool = False) -> None:
        """Write queue entries that wait in memory; sync: checkpoint as well."""

    def write_queues_in_slices(self) -> Iterator[None]:
        """Write queue entries that wait in memory; yield now and then. Appends and deletions may come in between."""

    def begin_checkpoint(self) -> Callable[[], None]:
        """Write what waits in memory; return what makes all of it durable, so that the next start begins here."""

    @property
    def behind_size(self) -> int:
        """Bytes of the log that the index has not seen."""

    def dispatch_index(self, count_max: int) -> int:
        """Index at most count_max records that are not yet; return how many were done."""

    def topics(self) -> list[str]:
        """Return the topics that have queues, sorted."""

    def entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of entries from queue_offset on; none where it is out of range."""

    def clean_queues(self) -> Iterator[None]:
        """Forget queue entries whose records expired, and files that hold nothing else; yield now and then."""

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues. Records stay in the log until they expire."""

    def expire(self, now_ms: int, *, at_any_hour: bool = False) -> int:
        """Remove what retention and disk limits say may go; return the bytes freed.

        at_any_hour: as in the hours that are set for it.
        """

    def close(self) -> None:
        """Make everything durable, and give the files back."""
