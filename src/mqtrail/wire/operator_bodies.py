"""Bodies of requests that operators' tools send to brokers occasionally.

Source: the classes of remoting/protocol/body, apache/rocketmq.
"""

from typing import Any

import msgspec

from .body import Body, Long

__all__ = [
    "ColdDataInfo",
    "CorrectionOffsets",
    "GroupForbidden",
    "HaClientInfo",
    "HaRuntimeInfo",
]


class CorrectionOffsets(Body, frozen=True):
    """Reply to 308: queue id to offset."""

    correction_offsets: dict[Long, Long] = msgspec.field(default_factory=dict)


class GroupForbidden(Body, frozen=True):
    """Reply to 353."""

    group: str = ""
    topic: str = ""
    readable: bool = True


class HaClientInfo(Body, frozen=True):
    """The progress of a slave's replication; all zero on a master."""

    last_read_timestamp: Long = 0
    last_write_timestamp: Long = 0
    master_addr: str | None = None
    master_flush_offset: Long = 0
    max_offset: Long = 0
    transferred_byte_in_second: Long = 0


class HaRuntimeInfo(Body, frozen=True):
    """Reply to 907. ha_connection_info: one a slave."""

    master: bool = True
    master_commit_log_max_offset: Long = 0
    in_sync_slave_nums: Long = 0
    ha_connection_info: tuple[dict[str, Any], ...] = ()
    ha_client_runtime_info: HaClientInfo = HaClientInfo()


class ColdDataInfo(Body, frozen=True):
    """Reply to 2003: limits for reading data that is no longer in memory, and how much was read, in bytes."""

    runtime_table: dict[str, Any] = msgspec.field(default_factory=dict)
    config_table: dict[str, Long] = msgspec.field(default_factory=dict)
    cg_cold_read_threshold: Long = 0
    global_cold_read_threshold: Long = 0
    global_acc: Long = 0
