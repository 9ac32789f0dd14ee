"""One seeded run of a store on a faulty disk, checked against its guarantees: a queue has the acknowledged messages, in
order, and no others; a rejected message never appears; kill -9 loses no acknowledged message, a power cut no flushed
one; the index finds all stored messages.
"""

import random
from collections.abc import Callable, Generator

from mqtrail.store import Appended, CommitLogConfig, CommitLogStore, GetStatus, PendingRecord, StoreBroken, StoreFull
from mqtrail.wire import MessageSysFlag, ServiceNotAvailable, check_record, decode_record, tags_code
from tests.store.hard_disk import HardDisk, PowerCut, Rates

CONFIG = CommitLogConfig(
    segment_size=64 * 1024, queue_entries=50, index_slots=16, index_entries=64, message_size_max=16 * 1024
)
BORN_HOST = bytes((127, 0, 0, 1, 0, 0, 0xC3, 0x50))
QUEUES = (("orders", 0), ("orders", 1), ("%RETRY%group", 0))
ACTIONS = (
    *("append",) * 8,
    *("flush", "queues", "index") * 2,
    *("kill", "power", "stop"),
    *("checkpoint",) * 4,
)
WORST = Rates(power_cut=0.02, full=0.02, write_error=0.01, sync_error=0.01, short_read=0.1)
BODY_SIZES = (3, 3, 20, 200, 5_000)


def pending(number: int, topic: str, queue_id: int, size: int, sys_flag: int = 0) -> PendingRecord:
    """A record whose body names its number."""
    properties = f"UNIQ_KEY\x01ID{number}\x02KEYS\x01key{number} all\x02TAGS\x01T{number % 3}\x02".encode()
    body = f"{number}:".encode() + bytes(size)
    return PendingRecord(
        topic, queue_id, body, properties, tags_code(f"T{number % 3}"), 1_000, BORN_HOST, sys_flag=sys_flag
    )


def number_of(body: bytes) -> int:
    return int(body.split(b":")[0])


class HardLife:
    """A store, what was acknowledged in each queue, and up to where the log was flushed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.disk = HardDisk(self.chance)
        self.store = CommitLogStore(self.disk, CONFIG)
        self.writing: Generator[None, None, Callable[[], None]] | None = None  # the checkpoint under way
        self.syncing: list[Callable[[], None]] = []  # syncs of checkpoints that are not done yet
        self.written: dict[tuple[str, int], list[tuple[int, int]]] = {queue: [] for queue in QUEUES}
        self.refused: set[int] = set()
        self.in_flight: list[PendingRecord] = []  # a power cut interrupted their append: they may be stored or not
        self.numbers = 0
        self.flushed = 0  # the part that must exist at the next start
        self.durable = 0  # the part that must survive a power cut
        self.now_ms = 1_700_000_000_000

    def live(self, steps: int) -> None:
        """Run random steps; a power cut or a full disk may interrupt each."""
        for _ in range(steps):
            self.now_ms += self.chance.randrange(2_000)
            self.disk.rates = WORST
            try:
                self._do(self.chance.choice(ACTIONS))
            except StoreBroken:
                self.end(power=self.chance.random() < 0.3)
            except (ServiceNotAvailable, OSError):
                pass  # the disk was full or failed; the store continues, or rejects appends until it is started again
            except PowerCut:
                self.end(power=self.chance.random() < 0.7)
        self.disk.rates = Rates()
        self.end(power=False)

    def _do(self, action: str) -> None:
        match action:
            case "append":
                self.append()
            case "flush":
                self.sync_all()
                self.flushed = self.durable = self.store.flush()
            case "queues" if self.writing is None:
                self.sync_all()
                self.store.write_queues(sync=self.chance.random() < 0.5)
            case "index":
                self.store.dispatch_index(self.chance.randrange(1, 5))
            case "checkpoint":
                self.checkpoint()
            case "kill":
                self.end(power=False)
            case "power":
                self.end(power=True)
            case "stop":
                try:
                    self.sync_all()
                    self.store.close()
                    self.flushed = self.durable = self.store.end_offset
                except (StoreFull, StoreBroken, OSError):
                    self.disk.stop(power=False)
                self.start()

    def checkpoint(self) -> None:
        """Run the next slices of a checkpoint, or one of its syncs: syncs run one after the other."""
        if self.syncing and (self.writing is None or self.chance.random() < 0.5):
            self.syncing.pop(0)()
            return
        writing = self.writing or self.store.begin_checkpoint_in_slices(index=self.chance.random() < 0.8)
        self.writing = None  # if this fails, the next one starts over
        for _ in range(self.chance.randrange(1, 5)):
            try:
                next(writing)
            except StopIteration as end:
                self.syncing.append(end.value)
                return
        self.writing = writing

    def sync_all(self) -> None:
        """Run the syncs of checkpoints, which come before any later flush."""
        while self.syncing:
            self.syncing.pop(0)()

    def append(self) -> None:
        """Append one to five records to one queue or several, some of them prepared; or a batch to one queue."""
        records = []
        is_batch = self.chance.random() < 0.2
        queues = [self.chance.choice(QUEUES)] if is_batch else QUEUES
        for _ in range(self.chance.randrange(1, 30 if is_batch else 6)):
            topic, queue_id = self.chance.choice(queues)
            sys_flag = MessageSysFlag.TRANSACTION_PREPARED if not is_batch and self.chance.random() < 0.1 else 0
            records.append(pending(self.numbers, topic, queue_id, self.chance.choice(BODY_SIZES), sys_flag))
            self.numbers += 1
        try:
            tickets = self._append_batch(records) if is_batch else self.store.append(records, self.now_ms)
        except (PowerCut, StoreBroken):
            self.in_flight += records
            raise
        except (StoreFull, OSError):
            self.refused.update(number_of(bytes(record.body)) for record in records)
            raise
        for record, ticket in zip(records, tickets, strict=True):
            entries = self.written[record.topic, record.queue_id]
            if record.sys_flag:
                assert ticket.queue_offset == 0, f"a prepared message took a place in its queue, {self.seed=}"
                continue
            assert ticket.queue_offset == len(entries), f"a place in the queue was left out, {self.seed=}"
            entries.append((number_of(bytes(record.body)), ticket.end_offset))

    def _append_batch(self, records: list[PendingRecord]) -> list[Appended]:
        batch = self.store.begin_batch(records[0].topic, records[0].queue_id)
        batch.add(records)
        places = batch.append(self.now_ms)
        return [places.ticket(number) for number in range(len(batch))]

    def end(self, *, power: bool) -> None:
        """Kill the process or cut the power; then start the store again."""
        self.store.abandon()
        self.disk.stop(power=power)
        if not power:
            self.flushed = max([self.durable, *(entries[-1][1] for entries in self.written.values() if entries)])
        self.start()

    def start(self) -> None:
        """Start, despite power cuts meanwhile, and compare the stored messages with the guarantees."""
        self.writing, self.syncing = None, []
        while True:
            try:
                self.store = CommitLogStore(self.disk, CONFIG)
                break
            except (PowerCut, StoreFull, StoreBroken, OSError) as error:
                power = self.chance.random() < (0.7 if isinstance(error, PowerCut) else 0.2)
                self.disk.stop(power=power)
                if power:
                    self.flushed = self.durable
        self.disk.rates = Rates(short_read=0.1)
        for queue in QUEUES:
            self._check(queue)
        self.in_flight = []
        self.flushed = self.durable = self.store.flush()
        assert self.flushed == self.store.end_offset

    def _check(self, queue: tuple[str, int]) -> None:
        entries = self.written[queue]
        kept = self.store.max_offset(*queue)
        survivors = self._read(queue)
        came_back = self.refused.intersection(survivors)
        assert not came_back, f"refused messages came back: {came_back}, {self.seed=}"
        maybe = [
            number_of(bytes(record.body))
            for record in self.in_flight
            if (record.topic, record.queue_id) == queue and not record.sys_flag
        ]
        allowed = [number for number, _ in entries] + maybe
        assert survivors == allowed[:kept], f"others came back in {queue}, {self.seed=}"
        lost = [number for number, end in entries[kept:] if end <= self.flushed]
        assert not lost, f"acknowledged messages are lost from {queue}: {lost}, {self.seed=}"
        del entries[kept:]
        entries += [(number, self.store.end_offset) for number in survivors[len(entries) :]]

    def _read(self, queue: tuple[str, int]) -> list[int]:
        numbers: list[int] = []
        at = self.store.min_offset(*queue)
        while at < self.store.max_offset(*queue):
            found = self.store.read(*queue, at, 7, 10_000)
            assert found.status is GetStatus.FOUND, f"{found.status} at {at} of {queue}, {self.seed=}"
            for place, record in enumerate(found.records):
                check_record(record)
                message, _ = decode_record(record)
                assert (message.topic, message.queue_id, message.queue_offset) == (*queue, at + place), f"{self.seed=}"
                numbers.append(number_of(message.body))
            at = found.next_queue_offset
        return numbers

    def check_index(self) -> None:
        """Check that every stored message is found by its id."""
        for (topic, _), entries in self.written.items():
            for number, _ in entries:
                found = self.store.query(topic, f"ID{number}", 64, 0, 2**62).records
                ids = [decode_record(record)[0].msg_id for record in found]
                assert f"ID{number}" in ids, f"the index misses {number}, {self.seed=}"
