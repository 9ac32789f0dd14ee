"""The CommitLog store's settings, with RocketMQ's names beside ours."""

from __future__ import annotations

from dataclasses import dataclass

from mqtrail.wire import DELAY_LEVELS_DEFAULT, Host, InvalidParameter

from ..base import Retention

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
HOUR_MS = 3_600_000

QUEUE_ENTRY_SIZE = 20
RECORD_EXTRA_MAX = 64 * KIB  # topic, properties and fixed fields beside the body


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogConfig:
    """Sizes are bytes, times ms, ratios shares of the partition."""

    store_host: Host = Host("127.0.0.1", 10911)  # RocketMQ: brokerIP1, listenPort; stored in every record
    segment_size: int = GIB  # RocketMQ: mappedFileSizeCommitLog
    queue_entries: int = 300_000  # RocketMQ: mappedFileSizeConsumeQueue, there in bytes (x 20)
    index: bool = True  # RocketMQ: messageIndexEnable
    index_slots: int = 5_000_000  # RocketMQ: maxHashSlotNum
    index_entries: int = 20_000_000  # RocketMQ: maxIndexNum
    timer_log_file_size: int = 100 * MIB  # RocketMQ: mappedFileSizeTimerLog
    message_size_max: int = 4 * MIB  # RocketMQ: maxMessageSize
    retention_ms: int = 72 * HOUR_MS  # RocketMQ: fileReservedTime, there in hours
    delete_hours: tuple[int, ...] = (4,)  # RocketMQ: deleteWhen; hours of the day, local time
    expire_ratio: float = 0.75  # RocketMQ: diskMaxUsedSpaceRatio: expired files go whatever the hour
    force_ratio: float = 0.85  # RocketMQ: diskSpaceCleanForciblyRatio: the oldest go whatever their age
    full_ratio: float = 0.90  # RocketMQ: diskSpaceWarningLevelRatio: sends are refused
    message_delay_level: str = DELAY_LEVELS_DEFAULT  # RocketMQ: messageDelayLevel; to build schedule queues again
    check_crc: bool = True  # RocketMQ: checkCRCOnRecover
    skip_damaged: bool = False  # step over damage in the CommitLog, and lose the messages there

    def __post_init__(self) -> None:
        """Refuse what could not hold a message. InvalidParameter names the field."""
        least = self.message_size_max + RECORD_EXTRA_MAX
        if self.segment_size < least and self.segment_size < 64 * KIB:
            raise InvalidParameter(f"found segment_size {self.segment_size}, expected at least {64 * KIB} bytes")
        for name in ("queue_entries", "index_slots", "index_entries"):
            if getattr(self, name) <= 0:
                raise InvalidParameter(f"found {name} {getattr(self, name)}, expected more than 0")
        _ = self.retention  # which refuses what means nothing

    @property
    def retention(self) -> Retention:
        """What of the settings may change while the store is open."""
        return Retention(
            retention_ms=self.retention_ms,
            delete_hours=self.delete_hours,
            expire_ratio=self.expire_ratio,
            force_ratio=self.force_ratio,
            full_ratio=self.full_ratio,
        )

    @property
    def record_size_max(self) -> int:
        """The largest record: it must fit into a segment with the 8 bytes that end one."""
        return min(self.message_size_max + RECORD_EXTRA_MAX, self.segment_size - 8)

    @property
    def queue_file_size(self) -> int:
        """Bytes of one ConsumeQueue file."""
        return self.queue_entries * QUEUE_ENTRY_SIZE

    @property
    def index_file_size(self) -> int:
        """Bytes of one IndexFile."""
        return 40 + 4 * self.index_slots + 20 * self.index_entries
