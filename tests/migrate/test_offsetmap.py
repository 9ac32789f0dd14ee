"""The offset map: a translated group never misses a record; a thinned, cut or old map only makes it repeat more."""

from __future__ import annotations

import errno
import json
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from mqtrail.migrate import MigrateError, OffsetMap, read_map, translated
from mqtrail.migrate.offsetmap import SPAN, MapEntry, MapFile, MovedEntries, Pair

QUEUES = ["b/0", "b/1"]


class World:
    """Partitions of Kafka and queues of RocketMQ, and a bridge between them that crashes now and then."""

    def __init__(self, chance: random.Random, path: Path, entry_count: int) -> None:
        self.chance = chance
        self.path = path
        self.entry_count = entry_count
        self.queues: dict[str, list[tuple[int, int]]] = {one: [] for one in QUEUES}
        self.lengths = [0, 0, 0]
        self.by_key = chance.random() < 0.5

    def queue_of(self, partition: int, offset: int) -> str:
        """The same for a record each time."""
        return QUEUES[(partition + (offset * 7 % 5 if self.by_key else 0)) % 2]

    def run(self) -> None:
        """Bridge some records from what was saved on; lines since the last durable write may be lost, or cut."""
        saved = [0, 0, 0]
        for _ in range(6):
            known = read_map(self.path, self.entry_count) or OffsetMap("t", "t", self.entry_count)
            file = MapFile(self.path, known)
            durable = self.path.stat()
            next_offsets = list(saved)
            moved = MovedEntries()
            for _ in range(self.chance.randrange(120)):
                partition = self.chance.randrange(3)
                offset = next_offsets[partition]
                next_offsets[partition] += 1
                queue = self.queue_of(partition, offset)
                self.queues[queue].append((partition, offset))
                moved.add((partition, queue), MapEntry(offset, len(self.queues[queue]) - 1, 0))
                if self.chance.random() < 0.2:
                    file.append(moved.take())
                    if self.path.stat().st_ino != durable.st_ino:  # it was written anew
                        durable = self.path.stat()
                    if self.chance.random() < 0.7:
                        saved = list(next_offsets)
            if self.chance.random() < 0.3:
                text = self.path.read_bytes()
                self.path.write_bytes(text[: self.chance.randint(durable.st_size, len(text))])
        self.lengths = saved


def test_a_fast_bridge_is_known_to_a_span() -> None:
    """Whatever is taken between, no more than SPAN records of a pair lie between two entries; the last one is there."""
    moved, pair = MovedEntries(), (0, "b/0")
    found: list[MapEntry] = []
    for number in range(1_000):
        moved.add(pair, MapEntry(number, number, 0))
        if number in (300, 301, 555):
            found += moved.take()[pair]
            assert found[-1].kafka_offset == number
    found += moved.take()[pair]
    offsets = [one.kafka_offset for one in found]
    assert offsets[-1] == 999
    assert all(0 < later - earlier <= SPAN for earlier, later in pairwise([-1, *offsets]))
    assert len(offsets) <= 1_000 // SPAN + 6
    moved.add(pair, MapEntry(5, 1_000, 0))
    assert moved.take() == {pair: [MapEntry(5, 1_000, 0)]}, "it is sent again"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("entry_count", [4, 2_048])
def test_never_ahead(seed: int, entry_count: int, tmp_path: Path) -> None:
    """Each record that is not committed is at or after the group's offset of its queue."""
    world = World(random.Random(seed), tmp_path / "map", entry_count)
    world.run()
    known = read_map(world.path, entry_count)
    assert known is not None
    assert all(len(one) <= entry_count for one in known.entries.values())
    for _ in range(20):
        committed = {one: world.chance.randint(0, length) for one, length in enumerate(world.lengths)}
        if world.chance.random() < 0.3:
            del committed[world.chance.randrange(3)]
        for placed in translated(known, committed, QUEUES):
            got = set(world.queues[placed.queue][placed.offset :])
            lacking = {one for one in world.queues[placed.queue] if one[1] >= committed.get(one[0], 0)}
            assert lacking <= got, placed.reason


def test_exact_at_the_end() -> None:
    """A group that has committed all that was bridged begins right after it."""
    known = OffsetMap("t", "t")
    for number in range(5_000):
        known.add(0, "b/0", MapEntry(number, number + 9, 0))
    (placed, other) = translated(known, {0: 5_000}, QUEUES)
    assert placed.offset == 5_009
    assert (other.offset, other.reason) == (0, "the bridge has sent nothing to it: its beginning")
    entries = known.entries[0, "b/0"]
    assert (entries[0].kafka_offset, entries[-1].kafka_offset, len(entries)) == (0, 4_999, len(entries))
    assert len(entries) <= 2_048


def test_thinning_keeps_the_recent_fine() -> None:
    """Old entries are further apart than recent ones."""
    known = OffsetMap("t", "t", 64)
    for number in range(10_000):
        known.add(0, "b/0", MapEntry(number, number, 0))
    gaps = [
        b.kafka_offset - a.kafka_offset
        for a, b in zip(known.entries[0, "b/0"], known.entries[0, "b/0"][1:], strict=False)
    ]
    assert gaps[-30:] == [1] * 30
    assert max(gaps[:10]) > 100


def test_the_file_stays_bounded(tmp_path: Path) -> None:
    """It is written anew before it has twice the lines that are kept, and some."""
    path = tmp_path / "map"
    file = MapFile(path, OffsetMap("t", "t", 8))
    for number in range(3_000):
        file.append({(0, "b/0"): [MapEntry(number, number, 0)]})
    assert len(path.read_text().splitlines()) < 1_100
    known = read_map(path, 8)
    assert known is not None
    assert known.entries[0, "b/0"][-1].kafka_offset == 2_999


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed write lacked, or left in part, is there after the next one."""
    path = tmp_path / "map"
    file = MapFile(path, OffsetMap("t", "t"))
    pairs: list[Pair] = [(0, "b/0"), (1, "b/1")]
    with monkeypatch.context() as full:
        full.setattr("mqtrail.migrate.offsetmap.replace_file", _no_space)
        with pytest.raises(OSError, match="No space"):
            file.append({pairs[0]: [MapEntry(0, 0, 0)]})
    file.append({pairs[0]: [MapEntry(0, 0, 0)]})
    assert _entries(path) == file.offsets.entries
    file.append({pairs[1]: [MapEntry(0, 0, 0)]})
    with monkeypatch.context() as full:
        full.setattr(Path, "open", _no_space)
        with pytest.raises(OSError, match="No space"):
            file.append({pairs[1]: [MapEntry(1, 1, 0)]})
    path.write_text(path.read_text() + '{"p": 1, "q')
    file.append({pairs[0]: [MapEntry(1, 1, 0)]})
    assert _entries(path) == file.offsets.entries


def _entries(path: Path) -> dict[Pair, list[MapEntry]]:
    known = read_map(path)
    assert known is not None
    return known.entries


def _no_space(*_: object, **more: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_damaged(tmp_path: Path) -> None:
    """A last line that was cut is ignored; any other damage is named by its line."""
    path = tmp_path / "map"
    assert read_map(path) is None
    file = MapFile(path, OffsetMap("t", "t"))
    for number in range(3):
        file.append({(0, "b/0"): [MapEntry(number, number, 0)]})
    whole = path.read_text()
    path.write_text(whole[:-5])
    known = read_map(path)
    assert known is not None
    assert len(known.entries[0, "b/0"]) == 2
    path.write_text(whole.replace('{"p": 0, "q": "b/0", "k": 1', "garbage"))
    with pytest.raises(MigrateError, match=r"in line 3 of .*expected an offset map"):
        read_map(path)
    for head in ("", "[]", "7", '{"version": 1}'):
        path.write_text(head + "\n")
        with pytest.raises(MigrateError, match=r"line 1 of"):
            read_map(path)
    path.write_text(json.dumps({"version": 9}) + "\n")
    with pytest.raises(MigrateError, match="expected 1"):
        read_map(path)


def test_queue_ends() -> None:
    """What a target must have at least, repeats included."""
    known = OffsetMap("t", "t")
    known.add(0, "b/0", MapEntry(1, 5, 0))
    known.add(1, "b/0", MapEntry(1, 9, 0))
    assert known.queue_ends() == {"b/0": 10}
    assert defaultdict(int, known.queue_ends())["b/1"] == 0
