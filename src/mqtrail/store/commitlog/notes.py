"""Notes of where log and queues began and ended at the last checkpoint.

    mqtrail-queues, text: "2 <CRC-32 of what follows>\\n<crc of checkpoint> <first byte of the log>\\n", then a line for
    each queue: <queue offset after its last entry> <queue offset of its first file> <queue id> <topic>\\n
    mqtrail-expired, text: <first byte that retention left in the log>\\n, written before anything is removed

Entries derive from the CommitLog, but the log does not have their number, and a start does not read all of it.
With this file, a start notices a queue that lost its end or its beginning and rebuilds it; otherwise the queue would
assign offsets twice or skip messages. It also distinguishes a log whose beginning was removed from one that expired.
If Apache's broker has used the folder since (its checkpoint differs), the notes are ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from zlib import crc32

from ..disk import Disk

NOTES_FILE = "mqtrail-queues"
EXPIRED_FILE = "mqtrail-expired"
VERSION, VERSION_WITHOUT_FIRSTS = b"2", b"1"

QueueKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Noted:
    """The content of the notes. ends: queue -> offset after its last entry. firsts: queue -> offset of its first file.

    log_first: first byte of the log; None: firsts is unknown. damage: what is wrong with the file, or "".
    """

    ends: dict[QueueKey, int] = field(default_factory=dict)
    firsts: dict[QueueKey, int] = field(default_factory=dict)
    log_first: int | None = None
    damage: str = ""

    def without(self, topics: Collection[str]) -> Noted:
        """Return a copy without these topics."""
        return Noted(
            {key: end for key, end in self.ends.items() if key[0] not in topics},
            {key: first for key, first in self.firsts.items() if key[0] not in topics},
            self.log_first,
            self.damage,
        )


def write_notes(disk: Disk, queues: Iterable[tuple[str, int, int, int]], checkpoint: bytes, log_first: int) -> None:
    """Note (topic, queue id, next queue offset, first file's) of every queue. The queues are durable; so are the notes
    when this returns."""
    lines = [f"{crc32(checkpoint)} {log_first}"]
    lines += [f"{next_offset} {first} {queue_id} {topic}" for topic, queue_id, next_offset, first in queues]
    data = "\n".join(lines).encode() + b"\n"
    disk.replace(NOTES_FILE, b"%b %d\n%b" % (VERSION, crc32(data), data))


def read_notes(disk: Disk, checkpoint: bytes | None) -> Noted:
    """Return the notes; empty ones if there is no file, if it is of a later version, or if Apache's broker has used the
    folder since."""
    content = disk.read(NOTES_FILE)
    if content is None:
        return Noted()
    head, _, data = content.partition(b"\n")
    version, _, crc = head.partition(b" ")
    if not version.isdigit() or crc != b"%d" % crc32(data):
        return Noted(damage=f"{NOTES_FILE}: found {len(content)} bytes that no checkpoint wrote")
    if version not in (VERSION, VERSION_WITHOUT_FIRSTS):
        return Noted()
    first, *lines = data.decode().removesuffix("\n").split("\n")
    checkpoint_crc, _, log_first = first.partition(" ")
    if checkpoint is None or checkpoint_crc != str(crc32(checkpoint)):
        return Noted()
    found = Noted(log_first=int(log_first) if version == VERSION else None)
    for line in lines:
        next_offset, _, rest = line.partition(" ")
        if version == VERSION:
            first_offset, _, rest = rest.partition(" ")
        queue_id, _, topic = rest.partition(" ")
        found.ends[topic, int(queue_id)] = int(next_offset)
        if version == VERSION:
            found.firsts[topic, int(queue_id)] = int(first_offset)
    return found


def note_expired(disk: Disk, physical_first: int) -> None:
    """Note that retention removes everything below this physical offset; durable when this returns."""
    disk.replace(EXPIRED_FILE, b"%d\n" % physical_first)


def expired_to(disk: Disk) -> int:
    """Return the physical offset below which retention removed the log; 0: unknown."""
    text = (disk.read(EXPIRED_FILE) or b"").strip()
    return int(text) if text.isdigit() else 0
