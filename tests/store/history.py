"""One seeded life of a store: appends, flushes, upkeep and power cuts, checked against what was promised."""

import random
from dataclasses import dataclass, field

from mqtrail.store import CommitLogConfig, CommitLogStore, GetStatus, PendingRecord
from mqtrail.wire import check_record, decode_record, tags_code
from tests.store.crash_disk import CrashDisk

CONFIG = CommitLogConfig(
    segment_size=64 * 1024, queue_entries=50, index_slots=16, index_entries=64, message_size_max=16 * 1024
)
BORN_HOST = bytes((127, 0, 0, 1, 0, 0, 0xC3, 0x50))
QUEUES = (("orders", 0), ("orders", 1), ("%RETRY%group", 0))


def pending(number: int, topic: str, queue_id: int, size: int) -> PendingRecord:
    """A record whose body names its number."""
    properties = f"UNIQ_KEY\x01ID{number}\x02KEYS\x01key{number} all\x02TAGS\x01T{number % 3}\x02".encode()
    body = f"{number}:".encode() + bytes(size)
    return PendingRecord(topic, queue_id, body, properties, tags_code(f"T{number % 3}"), 1_000, BORN_HOST)


@dataclass
class Life:
    """A store, what was appended to each queue, and how much of the log was acknowledged as durable."""

    seed: int
    chance: random.Random = field(init=False)
    disk: CrashDisk = field(default_factory=CrashDisk)
    written: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)  # (number, end offset)
    numbers: int = 0
    durable: int = 0
    now_ms: int = 1_700_000_000_000

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.store = CommitLogStore(self.disk, CONFIG)

    def live(self, steps: int) -> None:
        """Do so many random things."""
        for _ in range(steps):
            self.now_ms += self.chance.randrange(2_000)
            match self.chance.choice(("append", "append", "append", "flush", "queues", "index", "crash", "stop")):
                case "append":
                    self.append()
                case "flush":
                    self.durable = self.store.flush()
                case "queues":
                    self.store.write_queues(sync=self.chance.random() < 0.5)
                case "index":
                    self.store.dispatch_index(self.chance.randrange(1, 5))
                case "crash":
                    self.crash()
                case "stop":
                    self.store.close()
                    self.durable = self.store.end_offset
                    self.reopen()
                    assert not self.store.recovery.unclean

    def append(self) -> None:
        """Append one to five records to one queue or several."""
        records = []
        for _ in range(self.chance.randrange(1, 6)):
            topic, queue_id = self.chance.choice(QUEUES)
            records.append(pending(self.numbers, topic, queue_id, self.chance.choice((3, 3, 200, 5_000))))
            self.numbers += 1
        for record, ticket in zip(records, self.store.append(records, self.now_ms), strict=True):
            entries = self.written.setdefault((record.topic, record.queue_id), [])
            assert ticket.queue_offset == len(entries)
            entries.append((int(bytes(record.body).split(b":")[0]), ticket.end_offset))

    def crash(self) -> None:
        """Cut the power, start again, and hold what came back against what was promised."""
        self.store.abandon()
        self.disk.crash(self.chance)
        self.reopen()
        assert self.store.recovery.unclean

    def reopen(self) -> None:
        """Start on the same disk; forget what was lost where that is allowed."""
        self.store = CommitLogStore(self.disk, CONFIG)
        for queue, entries in self.written.items():
            kept = self.store.max_offset(*queue)
            survivors = self.numbers_of(queue)
            assert survivors == [number for number, _ in entries[:kept]], f"another message came back, {self.seed=}"
            lost = [end for _, end in entries[kept:] if end <= self.durable]
            assert not lost, f"{len(lost)} acknowledged messages are lost, {self.seed=}"
            del entries[kept:]
        self.durable = self.store.flush()

    def numbers_of(self, queue: tuple[str, int]) -> list[int]:
        """Read a queue from its start to its end."""
        numbers: list[int] = []
        at = self.store.min_offset(*queue)
        while at < self.store.max_offset(*queue):
            found = self.store.read(*queue, at, 7, 10_000)
            assert found.status is GetStatus.FOUND, f"{found.status}, {self.seed=}"
            for record in found.records:
                check_record(record)
                message, _ = decode_record(record)
                assert message.queue_offset == at + found.records.index(record)
                numbers.append(int(message.body.split(b":")[0]))
            at = found.next_queue_offset
        return numbers

    def check_index(self) -> None:
        """Every message that is there is found by its id."""
        for (topic, _), entries in self.written.items():
            for number, _ in entries:
                found = self.store.query(topic, f"ID{number}", 64, 0, 2**62).records
                assert any(decode_record(record)[0].msg_id == f"ID{number}" for record in found), f"{self.seed=}"
