"""The mark at the beginning of each body: what the consumer needs to count the message.

    offset  0       4        12     13        16     20       28         36    40
            +-------+--------+------+---------+------+--------+----------+-----+------------------+
            | MQLD  | run id | kind | padding | size | number | intended | key | filler           |
            +-------+--------+------+---------+------+--------+----------+-----+------------------+

size: bytes of the body. number: of the message in its run, from 0. intended: when it should be sent, microseconds from
the begin of the run. The filler is a part of one random text: bodies do not compress, and a damaged one is noticed.
"""

from __future__ import annotations

import random
import struct
from enum import IntEnum
from typing import Final, NamedTuple

MAGIC: Final = b"MQLD"
RUN_ID_SIZE: Final = 8
_LAYOUT: Final = struct.Struct(
    ">4s"  # MAGIC
    "8s"  # id of the run
    "B3x"  # kind
    "I"  # size of the body
    "Q"  # number
    "q"  # intended time, microseconds
    "I"  # key
)
assert _LAYOUT.size == 40
SIZE_MIN: Final = _LAYOUT.size
_FILLER_SIZE: Final = 1 << 16
_STEP: Final = 7_919  # bytes between the fillers of two messages; a prime, so that they differ


class MarkKind(IntEnum):
    """LOAD: a message of the load. PROBE: one that was sent before, to see that its queue is consumed."""

    LOAD = 0
    PROBE = 1


class BodyMark(NamedTuple):
    """The mark of a body. run_id: of the run that sent it."""

    run_id: bytes
    kind: int
    size: int
    number: int
    intended_us: int
    key: int


def mark_of(body: bytes) -> BodyMark | None:
    """Return the mark of a body; None: it is not of a load."""
    if len(body) < SIZE_MIN or not body.startswith(MAGIC):
        return None
    return BodyMark(*_LAYOUT.unpack_from(body)[1:])


class Bodies:
    """Makes and checks the bodies of one run."""

    def __init__(self, run_id: bytes, seed: int, size_max: int) -> None:
        self.run_id = run_id
        text = random.Random(seed).randbytes(min(size_max, _FILLER_SIZE))
        repeats = -(-size_max // max(1, len(text))) + 1
        self._filler = text * repeats
        self._places = len(text)

    def make(self, kind: MarkKind, size: int, number: int, intended_us: int, key: int) -> bytes:
        """Return a body of `size` bytes, at least SIZE_MIN."""
        head = _LAYOUT.pack(MAGIC, self.run_id, kind, size, number, intended_us, key)
        return head + self._rest(number, size)

    def is_whole(self, body: bytes, mark: BodyMark) -> bool:
        """Whether the body is as it was made."""
        return mark.size == len(body) and body[SIZE_MIN:] == self._rest(mark.number, mark.size)

    def _rest(self, number: int, size: int) -> bytes:
        at = number * _STEP % self._places
        return self._filler[at : at + size - SIZE_MIN]
