"""The timer wheel: which units of the timer log are due in which second.

Only parts with waiting units are in memory, 128 slots each (4 KiB); changed parts are written to the file. A unit waits
for two days at most (a longer wait takes several units), so this takes at most 6 MB for any number of messages.

Source: TimerWheel, apache/rocketmq store/timer.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence

from ..disk import Disk, File
from .layout import NO_UNIT, PRECISION_MS, SLOT, SLOT_COUNT, WHEEL_SIZE, Slot

WHEEL_FILE = "timerwheel"
PART_SLOTS = 128
PART_SIZE = PART_SLOTS * SLOT.size
LOOK_AHEAD_SLOTS = SLOT_COUNT // 2
READ_SIZE = 1 << 20
EMPTY_PIECE, EMPTY_PART = bytes(READ_SIZE), bytes(PART_SIZE)
assert SLOT_COUNT % PART_SLOTS == 0


class TimerWheel:
    """The slots. `write` writes changed ones to the file."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: File | None = None
        self._parts: dict[int, bytearray] = {}
        self._changed: set[int] = set()
        self._asked_ms = -1  # of the last search of `next`, and what it found; puts and clears keep it true
        self._next_ms: int | None = None

    def slot(self, slot_ms: int) -> Slot | None:
        """Return the slot of a second; None: nothing waits for it."""
        second, number = _place(slot_ms)
        part = self._parts.get(number // PART_SLOTS)
        if part is None:
            return None
        found, first, last, count, _ = SLOT.unpack_from(part, number % PART_SLOTS * SLOT.size)
        return Slot(first, last, count) if found == second and last != NO_UNIT else None

    def put(self, slot_ms: int, position: int, change: int) -> None:
        """Make a unit the slot's last. change: of the slot's count."""
        second, number = _place(slot_ms)
        part = self._parts.get(number // PART_SLOTS)
        if part is None:
            part = self._parts[number // PART_SLOTS] = bytearray(PART_SIZE)
        at = number % PART_SLOTS * SLOT.size
        found, first, last, count, _ = SLOT.unpack_from(part, at)
        if found != second or last == NO_UNIT:
            first, count = position, 0
        SLOT.pack_into(part, at, second, first, position, count + change, 0)
        self._changed.add(number // PART_SLOTS)
        slot_ms = second * PRECISION_MS
        if self._next_ms is None:
            self._asked_ms = -1
        elif self._asked_ms <= slot_ms < self._next_ms:
            self._next_ms = slot_ms

    def clear_slot(self, slot_ms: int) -> None:
        """Clear the slot of a second."""
        second, number = _place(slot_ms)
        part = self._parts.get(number // PART_SLOTS)
        if part is not None and self.slot(slot_ms) is not None:
            SLOT.pack_into(part, number % PART_SLOTS * SLOT.size, second, NO_UNIT, NO_UNIT, 0, 0)
            self._changed.add(number // PART_SLOTS)
            if self._next_ms == second * PRECISION_MS:
                self._asked_ms, self._next_ms = -1, None

    def next(self, from_ms: int) -> int | None:
        """Return the first second at or after from_ms, within a week, whose slot is not empty; None: there is none."""
        known = self._next_ms
        if known is not None and self._asked_ms <= from_ms <= known:
            return known
        if known is not None or self._asked_ms != from_ms:
            self._asked_ms, self._next_ms = from_ms, self._find_next(from_ms)
        return self._next_ms

    def _find_next(self, from_ms: int) -> int | None:
        second = from_ms // PRECISION_MS
        place = second % SLOT_COUNT
        # The parts in the wheel's order; the part of from_ms comes first, and once more last.
        distances = sorted((number * PART_SLOTS - place) % SLOT_COUNT for number in self._parts)
        current = self._parts.get(place // PART_SLOTS)
        if current is not None:
            distances.insert(0, place // PART_SLOTS * PART_SLOTS - place)
        for distance in distances:
            start = second + distance
            if start >= second + LOOK_AHEAD_SLOTS:
                break
            part = self._parts[start % SLOT_COUNT // PART_SLOTS]
            for number in range(max(0, second - start), PART_SLOTS):
                found, _, last, _, _ = SLOT.unpack_from(part, number * SLOT.size)
                if found == start + number and last != NO_UNIT:
                    return (start + number) * PRECISION_MS
        return None

    def count(self, from_ms: int, to_ms: int) -> int:
        """Return how many messages wait for the seconds in [from_ms, to_ms)."""
        total = 0
        slot_ms = self.next(from_ms)
        while slot_ms is not None and slot_ms < to_ms:
            slot = self.slot(slot_ms)
            total += 0 if slot is None else slot.waiting
            slot_ms = self.next(slot_ms + PRECISION_MS)
        return total

    def counts(self, from_ms: int, ends_ms: Sequence[int]) -> list[int]:
        """Return how many messages wait for the seconds in [from_ms, ends_ms[0]), [ends_ms[0], ends_ms[1]) and so on.

        ends_ms ascend. This scans the slots in memory once: about 10 ms for each day without an empty second.
        """
        first, ends = from_ms // PRECISION_MS, [end_ms // PRECISION_MS for end_ms in ends_ms]
        found = [0] * len(ends)
        for part in self._parts.values():
            for second, _, last, count, _ in SLOT.iter_unpack(part):
                if last != NO_UNIT and first <= second < ends[-1]:
                    found[bisect_right(ends, second)] += count
        return found

    def load(self, from_ms: int) -> None:
        """Read the parts with slots at or after from_ms. The caller compares their checksum with the checkpoint's."""
        self._parts.clear()
        self._changed.clear()
        self._asked_ms, self._next_ms = -1, None
        if self._disk.size(WHEEL_FILE) != WHEEL_SIZE:
            self._disk.remove(WHEEL_FILE)
            return
        second = from_ms // PRECISION_MS
        file = self._open()
        for start in range(0, WHEEL_SIZE, READ_SIZE):
            data = file.read_at(start, READ_SIZE)
            if data == EMPTY_PIECE:
                continue
            for at in range(0, len(data), PART_SIZE):
                part = data[at : at + PART_SIZE]
                if part != EMPTY_PART and _is_used(part, second):
                    self._parts[(start + at) // PART_SIZE] = bytearray(part)

    def checksum(self, from_ms: int) -> int:
        """Return a checksum of the parts with slots at or after from_ms, which `load` reads."""
        second, found = from_ms // PRECISION_MS, 0
        for number in sorted(self._parts):
            part = self._parts[number]
            if _is_used(part, second):
                found = zlib.crc32(part, zlib.crc32(number.to_bytes(4, "big"), found))
        return found

    def clear(self) -> None:
        """Clear all slots, in memory and in the file, to rebuild them."""
        self.close()
        self._parts.clear()
        self._changed.clear()
        self._asked_ms, self._next_ms = -1, None
        self._disk.remove(WHEEL_FILE)

    def write(self, before_ms: int) -> None:
        """Write changed parts, then drop from memory the parts whose slots are all before before_ms."""
        if self._changed:
            file = self._open()
            for number in sorted(self._changed):
                file.write_at(number * PART_SIZE, bytes(self._parts[number]))
            self._changed.clear()
        second = before_ms // PRECISION_MS
        for number, part in list(self._parts.items()):
            if all(found < second for found, *_ in SLOT.iter_unpack(part)):
                del self._parts[number]

    def sync(self) -> None:
        """Make what was written durable."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> File:
        if self._file is None:
            self._file = self._disk.open(WHEEL_FILE, WHEEL_SIZE)
        return self._file


def _is_used(part: bytes | bytearray, second: int) -> bool:
    return any(found >= second and last != NO_UNIT for found, _, last, _, _ in SLOT.iter_unpack(part))


def _place(slot_ms: int) -> tuple[int, int]:
    second = slot_ms // PRECISION_MS
    return second, second % SLOT_COUNT
