"""Keeps messages. `base` is the contract; `commitlog` fulfils it on a disk, `memory` in memory.

The disk is handed in: only `disk.RealDisk` touches the operating system. docs/design/store.md has the bytes and what
a crash on either side of each step leaves.
"""

from .base import (
    Appended,
    BatchPlaces,
    GetStatus,
    IndexQueryResult,
    MessageStore,
    NodeFetch,
    PendingRecord,
    QueueState,
    ReadResult,
    RecordBatch,
    Recovery,
    Retention,
)
from .commitlog import CommitLogConfig, CommitLogStore
from .config_file import ConfigFileStore
from .disk import Disk, File, RealDisk
from .errors import DamagedRecord, LogDiffers, NodeClosed, StoreAway, StoreBroken, StoreBusy, StoreError, StoreFull
from .memory import MEMORY_SEGMENT_SIZE, MEMORY_TIMER_LOG_FILE_SIZE, MemoryDisk, MemoryFile, MemoryStore
from .timers import PRECISION_MS, Slot, TimerCheckpoint, TimerFiles, Unit, UnitMagic, floor_ms

__all__ = [
    "MEMORY_SEGMENT_SIZE",
    "MEMORY_TIMER_LOG_FILE_SIZE",
    "PRECISION_MS",
    "Appended",
    "BatchPlaces",
    "CommitLogConfig",
    "CommitLogStore",
    "ConfigFileStore",
    "DamagedRecord",
    "Disk",
    "File",
    "GetStatus",
    "IndexQueryResult",
    "LogDiffers",
    "MemoryDisk",
    "MemoryFile",
    "MemoryStore",
    "MessageStore",
    "NodeClosed",
    "NodeFetch",
    "PendingRecord",
    "QueueState",
    "ReadResult",
    "RealDisk",
    "RecordBatch",
    "Recovery",
    "Retention",
    "Slot",
    "StoreAway",
    "StoreBroken",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "TimerCheckpoint",
    "TimerFiles",
    "Unit",
    "UnitMagic",
    "floor_ms",
]
