"""Deleted topics: the physical offset below which their records belong to no queue.

    mqtrail-deleted, SLOTS slots of 512 bytes, big-endian:
    4   CRC-32 of what follows     8   physical offset of the log's end when the topic was deleted
    2   length of the topic        n   topic

The records of a deleted topic stay in the log, and recovery makes queue entries for all records that it reads. With
this file it skips those of a deleted topic, also if a new topic has the same name. A slot is written before anything of
a new topic can be appended, and is synced together with the log.

A slot is free again once its records are gone, or once the durable mark is past them: then recovery does not read them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from zlib import crc32

from ..disk import SECTOR_SIZE, Disk, File
from ..errors import StoreFull

DELETED_FILE = "mqtrail-deleted"
SLOTS = 4_096  # deletions that one checkpoint has not covered yet; further ones wait for it
SLOT_SIZE = SECTOR_SIZE
_CRC = struct.Struct(">I")
_FIXED = struct.Struct(">qH")  # end, length of the topic
assert _CRC.size + _FIXED.size + 255 <= SLOT_SIZE


class DeletedTopics:
    """ends: topic -> physical offset below which its records belong to no queue."""

    def __init__(self, disk: Disk, take_unsynced: Callable[[File], None]) -> None:
        """take_unsynced: called with the file whenever it was written, to sync it together with the log."""
        self._disk = disk
        self._take_unsynced = take_unsynced
        self._file: File | None = None
        self.ends: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._used_count = 0  # slots from here on were never taken
        self._free: list[int] = []  # slots below that are free again
        self._waiting: dict[str, int] = {}  # not in the file yet: there was no slot, or the write failed
        if disk.size(DELETED_FILE) is not None:
            self._read()

    def _read(self) -> None:
        file = self._open()
        for slot in range(SLOTS):
            data = file.read_at(slot * SLOT_SIZE, SLOT_SIZE)
            end, length = _FIXED.unpack_from(data, _CRC.size)
            size = _CRC.size + _FIXED.size + length
            if not length or size > SLOT_SIZE or _CRC.unpack_from(data)[0] != crc32(data[_CRC.size : size]):
                continue  # empty, or torn by a crash during the deletion
            topic = data[_CRC.size + _FIXED.size : size].decode("utf-8", "replace")
            if end > self.ends.get(topic, 0):
                self.ends[topic], self._slots[topic] = end, slot
        taken = set(self._slots.values())
        self._used_count = max(taken, default=-1) + 1
        self._free = [slot for slot in range(self._used_count) if slot not in taken]

    def _open(self) -> File:
        if self._file is None:
            self._file = self._disk.open(DELETED_FILE, SLOTS * SLOT_SIZE)
        return self._file

    def add(self, topic: str, end: int) -> None:
        """Note that the topic's records below end belong to no queue. This never fails: `settle` tries again."""
        self.ends[topic] = self._waiting[topic] = end
        with suppress(OSError, StoreFull):
            self.settle(0, 0)

    def settle(self, first_offset: int, dispatched_offset: int) -> None:
        """Write pending deletions. StoreFull, OSError: they stay pending, and no queue of these topics may be made.

        first_offset: where the log begins; dispatched_offset: from where on a start reads it.
        """
        for topic in list(self._waiting):
            slot = self._slots.get(topic)
            if slot is None:
                slot = self._take_slot(first_offset, dispatched_offset)
                self._slots[topic] = slot
            self._write(topic, slot)
            del self._waiting[topic]

    def _take_slot(self, first_offset: int, dispatched_offset: int) -> int:
        if self.is_full:
            self._free_slots(first_offset)
        if self.is_full:
            self._free_slots(dispatched_offset)
        if self.is_full:
            raise StoreFull(
                f"found {SLOTS} topics deleted since the last checkpoint, expected fewer: try again in a few seconds"
            )
        if self._free:
            return self._free.pop()
        self._used_count += 1
        return self._used_count - 1

    def _free_slots(self, physical_offset: int) -> None:
        """Forget the topics whose records end at or below an offset."""
        gone = [topic for topic in self._slots if topic not in self._waiting and self.ends[topic] <= physical_offset]
        for topic in gone:
            del self.ends[topic]
            self._free.append(self._slots.pop(topic))

    def _write(self, topic: str, slot: int) -> None:
        name = topic.encode()
        body = _FIXED.pack(self.ends[topic], len(name)) + name
        file = self._open()
        file.write_at(slot * SLOT_SIZE, _CRC.pack(crc32(body)) + body)
        self._take_unsynced(file)

    @property
    def is_settled(self) -> bool:
        """Whether all deletions are in the file."""
        return not self._waiting

    @property
    def is_full(self) -> bool:
        """Whether no slot is free: the next deletion needs the slot of an earlier one."""
        return not self._free and self._used_count == SLOTS

    def is_waiting(self, topic: str) -> bool:
        """Whether the deletion of a topic is not in the file yet."""
        return topic in self._waiting

    def cut(self, end_offset: int) -> None:
        """After a start, lower all offsets to the log's end: later records belong to new topics with these names."""
        for topic, end in self.ends.items():
            if end > end_offset:
                self.ends[topic] = self._waiting[topic] = end_offset
        with suppress(OSError, StoreFull):
            self.settle(0, 0)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
