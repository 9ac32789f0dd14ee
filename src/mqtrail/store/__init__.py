"""Keeps messages. `base` is the contract; `commitlog` fulfils it on a disk, `memory` in memory.

The disk is handed in: only `disk.RealDisk` touches the operating system. docs/design/store.md has the bytes and what
a crash on either side of each step leaves.
"""

from mqtrail.store.base import (
    Appended,
    GetStatus,
    MessageStore,
    PendingRecord,
    QueryResult,
    QueueState,
    ReadResult,
    Retention,
    StoreBroken,
    StoreError,
    StoreFull,
)
from mqtrail.store.commitlog import CommitLogConfig, CommitLogStore, Recovery
from mqtrail.store.config_file import ConfigFileStore
from mqtrail.store.disk import Disk, File, RealDisk
from mqtrail.store.memory import MemoryDisk, MemoryFile, MemoryStore
from mqtrail.store.timers import PRECISION_MS, Slot, TimerCheckpoint, TimerFiles, Unit, UnitMagic, floor_ms

__all__ = [
    "PRECISION_MS",
    "Appended",
    "CommitLogConfig",
    "CommitLogStore",
    "ConfigFileStore",
    "Disk",
    "File",
    "GetStatus",
    "MemoryDisk",
    "MemoryFile",
    "MemoryStore",
    "MessageStore",
    "PendingRecord",
    "QueryResult",
    "QueueState",
    "ReadResult",
    "RealDisk",
    "Recovery",
    "Retention",
    "Slot",
    "StoreBroken",
    "StoreError",
    "StoreFull",
    "TimerCheckpoint",
    "TimerFiles",
    "Unit",
    "UnitMagic",
    "floor_ms",
]
