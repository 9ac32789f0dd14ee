"""The CommitLog store's settings, with RocketMQ's names beside ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from mqtrail.wire import (
    DELAY_LEVELS_DEFAULT,
    Host,
    InvalidParameter,
    SettingUnit,
    check_settings,
    setting,
    settings_of,
    whole,
)

from ..base import Retention

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

QUEUE_ENTRY_SIZE = 20
QUEUE_BYTES = SettingUnit(lambda text: whole(text) // QUEUE_ENTRY_SIZE, lambda entries: str(entries * QUEUE_ENTRY_SIZE))
RECORD_EXTRA_MAX = 64 * KIB  # topic, properties and fixed fields beside the body


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogConfig(Retention):
    """Sizes are bytes, times ms, ratios shares of the partition."""

    store_host: Host = Host("127.0.0.1", 10911)  # brokerIP1, listenPort: written to every record
    segment_size: int = setting(GIB, "bytes of one CommitLog file", conf="mappedFileSizeCommitLog")
    queue_entries: int = setting(
        300_000,
        "entries of one ConsumeQueue file (RocketMQ: bytes, 20 per entry)",
        conf="mappedFileSizeConsumeQueue",
        unit=QUEUE_BYTES,
        least=1,
    )
    index: bool = setting(True, "build IndexFiles, which look-ups at the broker need", conf="messageIndexEnable")
    index_slots: int = setting(5_000_000, "hash slots of one IndexFile", conf="maxHashSlotNum", least=1)
    index_entries: int = setting(20_000_000, "entries of one IndexFile", conf="maxIndexNum", least=1)
    timer_log_file_size: int = setting(100 * MIB, "bytes of one timer log file", conf="mappedFileSizeTimerLog")
    message_size_max: int = 4 * MIB  # the broker's setting
    message_delay_level: str = DELAY_LEVELS_DEFAULT  # the broker's setting, to rebuild schedule queues
    check_crc: bool = setting(True, "verify checksums of bodies when a start scans the log", conf="checkCRCOnRecover")
    skip_damaged: bool = setting(
        False, "start despite damage inside the CommitLog, and skip damaged records when reading (`--skip-damaged`)"
    )

    def __post_init__(self) -> None:
        """Reject sizes that cannot hold a message. InvalidParameter names the field."""
        least = self.message_size_max + RECORD_EXTRA_MAX
        if self.segment_size < least and self.segment_size < 64 * KIB:
            raise InvalidParameter(f"found segment_size {self.segment_size}, expected at least {64 * KIB} bytes")
        check_settings(self)
        Retention.__post_init__(self)

    @property
    def retention(self) -> Retention:
        """The settings that may change while the store is open."""
        return Retention(**{name: getattr(self, name) for name in settings_of(Retention)})

    def with_retention(self, retention: Retention) -> Self:
        """Return the settings with these of retention."""
        return replace(self, **{name: getattr(retention, name) for name in settings_of(Retention)})

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
