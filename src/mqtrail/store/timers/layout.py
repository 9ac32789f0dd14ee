"""Bytes of the timer store's files, as Apache's: the log's units, the wheel's slots, the checkpoint.

    timerlog/00000000000000000000      units of 52 bytes; a file that is full ends in a filler
    timerwheel                         1 209 600 slots of 32 bytes, one a second, two weeks
    config/timercheck                  4096 bytes, of which Apache's checkpoint takes 56

Times are ms; a slot's time is a whole second. Source: TimerLog, TimerWheel, Slot, TimerCheckpoint, apache/rocketmq
store/timer.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PRECISION_MS: Final = 1_000
SLOT_COUNT: Final = 2 * 7 * 86_400

UNIT: Final = struct.Struct(
    ">i"  # size of the unit: 52
    "q"  # position of the unit before it in the same slot; -1: none
    "i"  # magic: bits of UnitMagic
    "q"  # time it was put in, ms
    "i"  # from then to its slot, ms
    "q"  # physical offset of the message
    "i"  # size of the message's record
    "i"  # Java's hash of the topic it is meant for
    "q"  # reserved
)
assert UNIT.size == 52
UNIT_DUE: Final = struct.Struct(">i 8x i q i 24x")  # size, magic, time put in, distance: what a scan needs
assert UNIT_DUE.size == UNIT.size
FILLER: Final = struct.Struct(">iqI")  # bytes to the file's end, 0, FILLER_MAGIC
FILLER_MAGIC: Final = 0xCBD43194
NO_UNIT: Final = -1

SLOT: Final = struct.Struct(
    ">q"  # its second: epoch ms / 1000; a slot with the second of an earlier turn of the wheel is empty
    "q"  # position of the first unit
    "q"  # position of the last unit
    "i"  # units: messages that wait, less those recalled
    "i"  # unused
)
assert SLOT.size == 32
WHEEL_SIZE: Final = SLOT_COUNT * SLOT.size

CHECKPOINT: Final = struct.Struct(
    ">q"  # slots before this time are delivered, ms
    "q"  # the log is durable up to here
    "q"  # messages of the timer topic's queue before this offset are in the log
    "q"  # the same, of a slave's master
    "q"  # data version: state version
    "q"  # its timestamp, ms
    "q"  # its counter
)
assert CHECKPOINT.size == 56
CHECKPOINT_FILE_SIZE: Final = 4096
OWN_MARK_AT: Final = 64  # offset of our own mark, which Apache's broker does not change
OWN_MARK: Final = struct.Struct(">4sII")  # one of the two below, CRC-32 of the checkpoint, checksum of the wheel
WHEEL_IS_EXACT: Final = b"mqtx"  # the wheel's file is as the checkpoint says (mqtw: the same, without a checksum)
IS_REBUILDING: Final = b"mqtr"  # the log was lost and is not rebuilt completely yet


class UnitMagic:
    """Bits of a unit's magic."""

    DEFAULT: Final = 1
    ROLL: Final = 2
    """The message is due beyond the wheel's range: at this slot it is scheduled again."""
    DELETE: Final = 4
    """The message recalls another one."""
    MAX: Final = 15


class Unit(NamedTuple):
    """One message's wait in one slot."""

    previous: int
    magic: int
    put_ms: int
    slot_ms: int
    physical_offset: int
    size: int
    topic_hash: int


class Slot(NamedTuple):
    """The units of one second. waiting: their number without the recalled ones."""

    first: int
    last: int
    waiting: int


class TimerCheckpoint(NamedTuple):
    """The progress of timers. read_ms: slots before it are delivered; queue_offset: messages before it are in the log.

    version: Apache's DataVersion of it (state version, timestamp in ms, counter).
    """

    read_ms: int
    log_position: int
    queue_offset: int
    version: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint | None:
        """Return the checkpoint of Apache's 56 bytes; None: they hold none."""
        if len(data) < CHECKPOINT.size:
            return None
        read_ms, log_position, queue_offset, master_offset, *version = CHECKPOINT.unpack_from(data)
        found = cls(read_ms, log_position, min(queue_offset, master_offset), (*version,))
        return None if read_ms <= 0 or log_position < 0 or found.queue_offset < 0 else found

    def encode(self) -> bytes:
        """Return Apache's 56 bytes, which the reply to request code 60 also contains."""
        return CHECKPOINT.pack(self.read_ms, self.log_position, self.queue_offset, self.queue_offset, *self.version)


def floor_ms(time_ms: int) -> int:
    """Return the slot that a time falls into."""
    return time_ms // PRECISION_MS * PRECISION_MS
