"""Message ids, and the Java hashes that brokers index and filter by.

    offsetMsgId   storeHost ip (4|16) ‖ port i32 ‖ physical offset i64                      given by the broker
    UNIQ_KEY      ip (4|16) ‖ pid u16 ‖ loader hash u32 ‖ ms since month start u32 ‖ counter u16   by the client

Both are upper-case hex; ids of other clients (Go: seconds, partly lower case) have the same length, so an id is
opaque and compared as it is. A UNIQ_KEY's time counts from 00:00 of the month's first day in the *producer's* zone.

Source: MessageDecoder.createMessageId, MessageClientIDSetter, UtilAll, IndexService, apache/rocketmq common/, store/.
"""

import ipaddress
import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from operator import mul

from .errors import IdError
from .values import Host

__all__ = [
    "UniqueIdFactory",
    "index_key_hash",
    "java_string_hash",
    "offset_msg_id",
    "parse_offset_msg_id",
    "tags_code",
]

_CLOCK_STEP_MS = 1_000_000  # a clock stepped back by less than this gives time 0, as in Java

_ID_TAIL = struct.Struct(
    ">H"  # pid: low 16 bits
    "I"  # loader hash: one value per process
    "I"  # time: ms since the month began
    "H"  # counter: one more each id, wraps
)
assert _ID_TAIL.size == 12


class UniqueIdFactory:
    """Makes the UNIQ_KEYs of one process. Thread-safe: no number is assigned twice.

    ip: local address as text. pid and loader_hash: cut to 16 and 32 bits. clock: returns the time in epoch ms.
    """

    __slots__ = ("_clock", "_counter", "_month_end_ms", "_month_start_ms", "_prefix")

    def __init__(self, ip: str, pid: int, loader_hash: int, clock: Callable[[], int]) -> None:
        packed = ipaddress.ip_address(ip).packed + struct.pack(">HI", pid & 0xFFFF, loader_hash & 0xFFFFFFFF)
        self._prefix = packed.hex().upper()
        self._clock = clock
        self._counter = itertools.count()
        self._month_start_ms, self._month_end_ms = _month_of(clock())

    def next(self) -> str:
        """Return a fresh id: 32 hex digits for an IPv4 address, 56 for IPv6."""
        now_ms = self._clock()
        time_ms = now_ms - self._month_start_ms
        if now_ms >= self._month_end_ms or time_ms <= -_CLOCK_STEP_MS:
            self._month_start_ms, self._month_end_ms = _month_of(now_ms)
            time_ms = now_ms - self._month_start_ms
        return f"{self._prefix}{max(time_ms, 0):08X}{next(self._counter) & 0xFFFF:04X}"


@dataclass(frozen=True, slots=True)
class UniqueId:
    """The parts of a UNIQ_KEY."""

    ip: str
    pid: int
    loader_hash: int
    month_ms: int
    """Milliseconds since the month began in the producer's time zone."""
    counter: int

    def time_ms(self, now_ms: int) -> int:
        """Return when the id was made, epoch ms: in this month, or in the last one if that time is in the future.

        As in Java, this is right only for ids younger than a month whose producer is in our time zone.
        """
        month_start_ms, _ = _month_of(now_ms)
        if month_start_ms + self.month_ms >= now_ms:
            month_start_ms, _ = _month_of(month_start_ms - 1)
        return month_start_ms + self.month_ms


def decode_unique_id(text: str) -> UniqueId | None:
    """Return the parts of a UNIQ_KEY; None: the id has another form."""
    if len(text) not in (32, 56):
        return None
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return None
    if len(data) != len(text) // 2:  # fromhex skips blanks
        return None
    ip_size = len(data) - _ID_TAIL.size
    return UniqueId(str(ipaddress.ip_address(data[:ip_size])), *_ID_TAIL.unpack_from(data, ip_size))


def offset_msg_id(host: Host, physical_offset: int) -> str:
    """Return the broker's id of the record at physical_offset, as a broker that stores on host names it."""
    return f"{host.packed().hex().upper()}{physical_offset:016X}"


def parse_offset_msg_id(text: str) -> tuple[Host, int]:
    """Return the store host and the physical offset of a broker's id. IdError: it is not such an id.

    Java reads any text that is not 32 digits long as IPv6; here a text of another length than 32 or 56 is rejected.
    """
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) * 2 != len(text) or len(data) not in (16, 28):
        raise IdError(f"found offset message id {text!r}, expected 32 or 56 hex digits")
    physical_offset = int.from_bytes(data[-8:], "big", signed=True)
    if physical_offset < 0:
        raise IdError(f"found physical offset {physical_offset} in {text!r}, expected 0 or more")
    return Host.unpack(data[:-8]), physical_offset


_HASH_PIECE = 1_024  # UTF-16 units that are summed at once
_powers = [pow(31, exponent, 1 << 32) for exponent in range(_HASH_PIECE + 1)]
_KEPT_LENGTH_MAX = 255  # characters of a tag whose hash is remembered


def java_string_hash(text: str) -> int:
    """Return Java's String.hashCode: h = 31·h + unit over UTF-16 units, signed 32 bits."""
    if text.isascii():
        units: bytes | tuple[int, ...] = text.encode("ascii")
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(data) // 2}H", data)
    count = len(units)
    value: int = 0
    if 0 < count <= _HASH_PIECE:
        value = sum(map(mul, units, _powers[count - 1 :: -1])) & 0xFFFFFFFF
        return value - 0x100000000 if value & 0x80000000 else value
    for start in range(0, count, _HASH_PIECE):
        piece = units[start : start + _HASH_PIECE]
        count = len(piece)
        value = value * _powers[count] + sum(map(mul, piece, _powers[count - 1 :: -1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def tags_code(tags: str | None) -> int:
    """Return what a ConsumeQueue entry keeps of a message's tag: its Java hash, 0 without one."""
    if not tags:
        return 0
    return _remembered_hash(tags) if len(tags) <= _KEPT_LENGTH_MAX else java_string_hash(tags)


_remembered_hash = lru_cache(maxsize=4096)(java_string_hash)


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash under which an IndexFile keeps key of topic: |hash of "topic#key"|, 0 if that has no absolute."""
    value = abs(java_string_hash(f"{topic}#{key}"))
    return 0 if value == 0x80000000 else value


@lru_cache(maxsize=8)
def _month_start(year: int, month: int) -> int:
    return int(datetime(year, month, 1).timestamp() * 1000)


def _month_of(now_ms: int) -> tuple[int, int]:
    """Return the first ms of the local month that holds now_ms, and the first of the next one."""
    now = datetime.fromtimestamp(now_ms / 1000)
    after = datetime(now.year, now.month, 1) + timedelta(days=31)
    return _month_start(now.year, now.month), _month_start(after.year, after.month)
