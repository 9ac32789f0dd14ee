"""What the queues held when they were last made durable, noted beside them at each checkpoint.

    mqtrail-queues, text: "1 <CRC-32 of what follows>\\n<crc of checkpoint>\\n", then a line for each queue:
    <queue offset after its last entry> <queue id> <topic>\\n

Entries derive from the CommitLog, but nothing in it says how many there should be, and a start does not read it whole:
with this file a queue that has lost its end is noticed, and built again, instead of giving out its offsets anew.
A folder that Apache's broker has been in since (its checkpoint differs) is taken as it is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from mqtrail.store.disk import Disk

NOTES_FILE = "mqtrail-queues"
VERSION = b"1"

Noted = dict[tuple[str, int], int]


def write_notes(disk: Disk, queues: Iterable[tuple[str, int, int]], checkpoint: bytes) -> None:
    """Note (topic, queue id, next queue offset) of every queue. They are durable, and so is this when it returns."""
    lines = [str(crc32(checkpoint))]
    lines += [f"{next_offset} {queue_id} {topic}" for topic, queue_id, next_offset in queues]
    data = "\n".join(lines).encode() + b"\n"
    disk.replace(NOTES_FILE, b"%b %d\n%b" % (VERSION, crc32(data), data))


def read_notes(disk: Disk, checkpoint: bytes | None) -> Noted:
    """Return the next queue offset of every queue as noted; nothing where that says nothing of this folder."""
    head, _, data = (disk.read(NOTES_FILE) or b"").partition(b"\n")
    if head != b"%b %d" % (VERSION, crc32(data)):
        return {}
    first, *lines = data.decode().removesuffix("\n").split("\n")
    if checkpoint is None or first != str(crc32(checkpoint)):
        return {}
    found: Noted = {}
    for line in lines:
        next_offset, queue_id, topic = line.split(" ", 2)
        found[topic, int(queue_id)] = int(next_offset)
    return found
