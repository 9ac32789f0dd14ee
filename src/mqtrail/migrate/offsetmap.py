"""The offset map: which Kafka offset of a partition is which queue offset, as a file of lines that one can read.

    {"topic": "orders", "target": "orders", "version": 1}
    {"p": 3, "q": "broker-a/3", "k": 170, "o": 168, "t": 1764311541000}

A line says: the record k of the partition p, of the time t (epoch ms), is at offset o of the queue q. The bridge adds
one for each pair of partition and queue that moved, about twice a second and every SPAN records. If a pair has more
than ENTRY_COUNT, every second one of its older half goes: what is old is known less finely, never wrongly. The file is
written anew when it has twice the lines that are kept, and, durably, when a pair is new: a pair with records is never
unknown. Further lines that a crash loses, or cuts, only make the map less fine.

Records of a partition that come after k have higher offsets than o in q, so a group that has consumed everything below
k+1 misses nothing if it begins at o+1.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqtrail.net import replace_file

from .model import MigrateError

VERSION: Final = 1
ENTRY_COUNT: Final = 2_048  # entries of a pair of partition and queue
SPAN: Final = 128  # records of a pair, of which at least one is in the map until older ones are thinned out
LINES_SLACK: Final = 1_024  # lines beyond those kept before a small file is written anew


class MapEntry(NamedTuple):
    """A record's offset in Kafka, in its queue, and its time (epoch ms)."""

    kafka_offset: int
    queue_offset: int
    timestamp_ms: int


Pair = tuple[int, str]
"""Partition, and queue as broker/queue."""


class MovedEntries:
    """What is acknowledged, and not yet in the map: of each pair the last record, and one of each SPAN before it."""

    def __init__(self) -> None:
        self._entries: dict[Pair, list[MapEntry]] = {}
        self._anchors: dict[Pair, int] = {}  # offset of the first record of the span of the last entry

    def add(self, pair: Pair, entry: MapEntry) -> None:
        """Note a record."""
        anchor = self._anchors.get(pair, -SPAN)
        if not anchor <= entry.kafka_offset < anchor + SPAN:
            self._anchors[pair] = entry.kafka_offset
            self._entries.setdefault(pair, []).append(entry)
        elif entries := self._entries.get(pair):
            entries[-1] = entry
        else:
            self._entries[pair] = [entry]

    def take(self) -> dict[Pair, list[MapEntry]]:
        """Return the entries, in order, and forget them."""
        taken, self._entries = self._entries, {}
        return taken


class OffsetMap:
    """The map in memory."""

    def __init__(self, topic: str, target: str, entry_count: int = ENTRY_COUNT) -> None:
        self.topic = topic
        self.target = target
        self.entries: dict[Pair, list[MapEntry]] = {}
        self._entry_count = entry_count

    def add(self, partition: int, queue: str, entry: MapEntry) -> None:
        """Add what is known of a pair. A record that is sent again replaces what was known from it on."""
        found = self.entries.setdefault((partition, queue), [])
        while found and found[-1].kafka_offset >= entry.kafka_offset:
            found.pop()
        found.append(entry)
        if len(found) > self._entry_count:
            half = len(found) // 2
            found[1:half] = found[2:half:2]  # the first one stays

    def line_count(self) -> int:
        """Return how many entries there are."""
        return sum(map(len, self.entries.values()))

    def queue_ends(self) -> dict[str, int]:
        """Return, for each queue, the offset after the last one known: the queue must reach it."""
        ends: dict[str, int] = {}
        for (_, queue), entries in self.entries.items():
            ends[queue] = max(ends.get(queue, 0), max(one.queue_offset for one in entries) + 1)
        return ends

    def position(self, partition: int, queue: str, committed: int | None) -> MapEntry | None:
        """Return the last entry below the committed offset; None: begin before all records of this pair.

        committed: the next offset that the group wants; None: it has none.
        """
        entries = self.entries[partition, queue]
        if committed is None:
            return None
        found = bisect_left(entries, committed, key=lambda one: one.kafka_offset)
        return entries[found - 1] if found else None


class Placed(NamedTuple):
    """Where a group begins in a queue, and why there."""

    queue: str
    offset: int
    reason: str


def translated(offsets: OffsetMap, committed: Mapping[int, int], queues: Iterable[str]) -> list[Placed]:
    """Return where a group with these offsets of Kafka begins in each queue: never behind a record that it lacks.

    committed: partition -> the next offset that it wants. A queue with records of several partitions gets the lowest
    place of them.
    """
    found = []
    for queue in queues:
        partitions = sorted(partition for partition, one in offsets.entries if one == queue)
        if not partitions:
            found.append(Placed(queue, 0, "the bridge has sent nothing to it: its beginning"))
            continue
        places = []
        for partition in partitions:
            at = committed.get(partition)
            entry = offsets.position(partition, queue, at)
            if entry is not None:
                reason = f"partition {partition}: {at} is after {entry.kafka_offset}, at {entry.queue_offset}"
                places.append((entry.queue_offset + 1, reason))
                continue
            first = offsets.entries[partition, queue][0]
            why = "no offset" if at is None else f"{at} is not after {first.kafka_offset}, the first one in the map"
            places.append((0, f"partition {partition}: {why}: its beginning"))
        offset, reason = min(places)
        found.append(Placed(queue, offset, reason))
    return found


class MapFile:
    """Keeps a map in a file. Open it once, while no other process has the folder."""

    def __init__(self, path: Path, offsets: OffsetMap) -> None:
        self._path = path
        self.offsets = offsets
        self._lines = 0
        self._must_rewrite = True  # the file lacks what the map has, or may end in a part of a line
        self.rewrite()

    def append(self, entries: Mapping[Pair, Sequence[MapEntry]]) -> None:
        """Add entries to map and file, those of a pair in order. OSError: call it again with them, and with others."""
        is_new = not entries.keys() <= self.offsets.entries.keys()
        is_whole, self._must_rewrite = not (is_new or self._must_rewrite), True
        for (partition, queue), added in entries.items():
            for entry in added:
                self.offsets.add(partition, queue, entry)
        count = sum(map(len, entries.values()))
        if not is_whole or self._lines + count > 2 * self.offsets.line_count() + LINES_SLACK:
            self.rewrite()
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(_line(pair, entry) for pair, added in entries.items() for entry in added))
        self._lines += count
        self._must_rewrite = False

    def rewrite(self) -> None:
        """Write the file anew. OSError."""
        offsets = self.offsets
        lines = [json.dumps({"topic": offsets.topic, "target": offsets.target, "version": VERSION}) + "\n"]
        lines += [_line(pair, entry) for pair, entries in sorted(offsets.entries.items()) for entry in entries]
        replace_file(self._path, "".join(lines).encode(), 0o644)
        self._lines = len(lines) - 1
        self._must_rewrite = False


def _line(pair: Pair, entry: MapEntry) -> str:
    fields = {"p": pair[0], "q": pair[1], "k": entry.kafka_offset, "o": entry.queue_offset, "t": entry.timestamp_ms}
    return json.dumps(fields) + "\n"


def read_map(path: Path, entry_count: int = ENTRY_COUNT) -> OffsetMap | None:
    """Return the map of a file; None: there is none. MigrateError: it is damaged. OSError."""
    try:
        text = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return None
    number = 1  # of the line
    try:
        whole, _, _ = text.rpartition("\n")  # what follows the last end of a line was cut by a crash
        lines = whole.split("\n")
        head = json.loads(lines[0])
        if head["version"] != VERSION:
            raise MigrateError(
                f"found an offset map of version {head['version']} in {str(path)!r}, expected {VERSION}: use the "
                "version of mqtrail that wrote it, or a new --folder"
            )
        found = OffsetMap(head["topic"], head["target"], entry_count)
        for line in lines[1:]:
            number += 1
            found.add(*_entry_of(json.loads(line)))
    except (ValueError, TypeError, KeyError) as error:
        raise MigrateError(
            f"found {type(error).__name__} in line {number} of {str(path)!r}, expected an offset map of `mqtrail "
            "migrate bridge`: restore the file, or begin again with an empty topic and a new --folder"
        ) from None
    return found


def _entry_of(line: dict[str, Any]) -> tuple[int, str, MapEntry]:
    entry = MapEntry(int(line["k"]), int(line["o"]), int(line["t"]))
    return int(line["p"]), str(line["q"]), entry
