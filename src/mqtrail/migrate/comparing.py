"""Compares a Kafka topic with its topic of RocketMQ, record by record, by business key.

    both sides -> a SQLite file on disk, sorted by key -> one key after the other -> counts and a few examples

Memory is bounded whatever the topics have: only the records of one key are in it, KEY_COUNT_MAX at most. Disk: about
350 bytes for a record and its message, half of it to sort them, in the system's folder for temporary files, until the
end.

A message of the bridge is compared with the record of its KAFKA_PARTITION and KAFKA_OFFSET. Other messages, as
producers write that send to both sides, are compared by key and body.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqtrail.client import Admin, ReadFailed, RouteNotFound
from mqtrail.clock import now_ms
from mqtrail.trail import ProofResult, literal
from mqtrail.wire import MessageExt, MessageQueue

from .copies import TeeSide
from .kafka import KafkaConfig, KafkaTopic
from .messages import HEADERS, OFFSET, PARTITION, TIMESTAMP, TOPIC, key_of, misfit, record_id, value_of
from .model import KafkaRecord, MigrateError
from .state import COMPARE, BridgeState, read_bridge, read_tee, save_json

KEY_COUNT_MAX: Final = 100_000  # records of one key, both sides together; a key with more is not judged
READ_COUNT: Final = 2_048  # records of one read
READ_WAIT_MS: Final = 1_000  # how long a read waits for the first
EMPTY_READS_MAX: Final = 30  # such reads without a record, one after the other, before Kafka is given up
CLOCK_SLACK_MS: Final = 600_000  # how far clocks of Kafka and brokers may differ, for a range of time
KEY_SHOWN_LENGTH: Final = 80  # characters of a key in an example


class Difference(StrEnum):
    """What can differ."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    ORDER = "order"
    DOUBLE = "double"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSides:
    """What to compare. key: "kafka", "header:NAME" or "json:a.b". since_ms, until_ms: of the records' times.

    grace_ms: records and messages younger than this may still be on their way; for records of a bridge, its state
    decides. late_ms: 0 reports no late messages.
    examples: of each kind. accepted: kinds that do not count as found.
    """

    kafka: KafkaConfig
    topic: str
    target: str
    folder: Path
    key: str = "kafka"
    since_ms: int | None = None
    until_ms: int | None = None
    grace_ms: int = 30_000
    late_ms: int = 0
    examples: int = 8
    accepted: frozenset[str] = frozenset()

    def has(self, time_ms: int) -> bool:
        """Whether a time is in the range."""
        return (self.since_ms is None or time_ms >= self.since_ms) and (
            self.until_ms is None or time_ms < self.until_ms
        )


@dataclass(slots=True)
class Comparison:
    """The result. pending: records, and messages that the bridge did not send, that may be on
    their way to the other side. gaps: what could not be compared, and why."""

    topic: str
    target: str
    outcome: ProofResult = ProofResult.NONE
    counts: dict[str, int] = field(default_factory=lambda: {str(one): 0 for one in Difference})
    accepted: list[str] = field(default_factory=list)
    records: int = 0
    messages: int = 0
    keys: int = 0
    matched: int = 0
    pending: int = 0
    gaps: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    since_ms: int | None = None
    until_ms: int | None = None
    at_ms: int = 0


class Row(NamedTuple):
    """A record or a message. seq: order of reading, which is that of its partition or queue. lane: that one's number.

    place: topic:partition:offset in Kafka, "" of a message that the bridge did not send. shown: the same for people.
    """

    key: bytes
    has_key: int
    side: int  # 0 Kafka, 1 RocketMQ
    seq: int
    lane: int
    place: str
    shown: str
    digest: bytes
    time_ms: int  # of the record; of a message: when it was stored
    is_pending: int


def business_key(rule: str) -> tuple[Callable[[KafkaRecord], bytes | None], Callable[[MessageExt], bytes | None]]:
    """Return how to find the key of a record and of a message. MigrateError."""
    kind, _, name = rule.partition(":")
    if rule == "kafka":
        return lambda record: record.key, _kafka_key
    if kind == "header" and name:
        return (
            lambda record: next((value for one, value in reversed(record.headers) if one == name), None),
            lambda message: _header(message.properties, name),
        )
    if kind == "json" and name:
        return (
            lambda record: _json_key(record.value, name),
            lambda message: _json_key(value_of(message.body, message.properties), name),
        )
    raise MigrateError(f"found the key {rule!r}, expected kafka, header:NAME, or json:FIELD, for example json:order.id")


def _kafka_key(message: MessageExt) -> bytes | None:
    if TOPIC in message.properties:
        return key_of(message.properties)
    return message.keys[0].encode() if message.keys else None


def _header(properties: Mapping[str, str], name: str) -> bytes | None:
    """Return the last value of a header: of all headers if the bridge kept them apart, else the property."""
    if TOPIC in properties:
        with suppress(ValueError, TypeError):  # another producer's
            for one, value in reversed(json.loads(properties.get(HEADERS, "[]"))):
                if one == name:
                    return None if value is None else base64.b64decode(value)
        if HEADERS in properties or misfit(name, b"x") is not None:
            return None  # the property of that name is not the header
    return properties[name].encode() if name in properties else None


def _json_key(body: bytes | None, path: str) -> bytes | None:
    try:
        found: Any = json.loads(body or b"")
        for name in path.split("."):
            found = found[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return json.dumps(found, sort_keys=True).encode()


def _digest(body: bytes | None) -> bytes:
    return b"" if body is None else hashlib.sha256(body).digest()[:16]


@contextmanager
def _on_disk(folder: str) -> Iterator[None]:
    """Convert errors of SQLite. MigrateError."""
    try:
        yield
    except sqlite3.Error as error:
        raise MigrateError(
            f"found {str(error)!r} with the temporary file of the comparison in {folder!r}, expected space for about "
            "350 bytes a record: free some, set TMPDIR to a folder with more, or compare a range of time"
        ) from error


class KeySorter:
    """Rows in a file, to be read by key. SQLite sorts them in the same folder. MigrateError: no space."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with _on_disk(folder):
            self._base = sqlite3.connect(f"{folder}/compare.sqlite", isolation_level=None)
            for pragma in (
                "journal_mode=OFF",
                "synchronous=OFF",
                "temp_store=FILE",
                f"temp_store_directory={literal(folder)}",
            ):
                self._base.execute(f"PRAGMA {pragma}")
            self._base.execute(f"CREATE TABLE rows ({', '.join(Row._fields)})")

    def add(self, rows: Iterable[Row]) -> None:
        """Keep rows."""
        with _on_disk(self._folder):
            self._base.execute("BEGIN")
            self._base.executemany(f"INSERT INTO rows VALUES ({', '.join('?' * len(Row._fields))})", rows)
            self._base.execute("COMMIT")

    def groups(self) -> Iterator[tuple[bytes, list[Row] | None]]:
        """Yield the rows of each key, Kafka's first, in order; None instead: there are more than KEY_COUNT_MAX."""
        for (_, key), rows in groupby(self._sorted(), lambda row: (row.has_key, row.key)):
            kept: list[Row] | None = []
            for row in rows:
                if kept is not None:
                    kept.append(row)
                    if len(kept) > KEY_COUNT_MAX:
                        kept = None
            yield key, kept

    def _sorted(self) -> Iterator[Row]:
        with _on_disk(self._folder):
            yield from map(Row._make, self._base.execute("SELECT * FROM rows ORDER BY has_key, key, side, seq"))

    def close(self) -> None:
        """Close the file."""
        with suppress(sqlite3.Error):  # the folder for SQLite's own files is one for the whole process
            self._base.execute("PRAGMA temp_store_directory=''")
        self._base.close()


@contextmanager
def sorted_rows() -> Iterator[KeySorter]:
    """Make a sorter in a temporary folder, which goes in the end. MigrateError, OSError."""
    with tempfile.TemporaryDirectory(prefix="mqtrail-compare-") as folder, closing(KeySorter(folder)) as sorter:
        yield sorter


class KeyJudge:
    """Judges one key after the other."""

    def __init__(
        self,
        found: Comparison,
        *,
        is_expired: Callable[[Row], bool] = lambda row: False,
        late_ms: int = 0,
        examples: int = 8,
    ) -> None:
        """is_expired: whether the other side of a row may have expired. late_ms, examples: as in `CompareSides`."""
        self._found = found
        self._is_expired = is_expired
        self._late_ms = late_ms
        self._examples = examples

    def judge_all(self, sorter: KeySorter) -> None:
        """Compare the rows of all keys, and draw the conclusion."""
        for key, rows in sorter.groups():
            if rows is None:
                self._gap(f"keys with more than {KEY_COUNT_MAX} records")
            else:
                self.judge(key, rows)
        found = self._found
        if any(count for kind, count in found.counts.items() if kind not in found.accepted):
            found.outcome = ProofResult.FOUND
        elif found.gaps or not found.matched:
            found.outcome = ProofResult.CANNOT_TELL

    def judge(self, key: bytes, rows: Sequence[Row]) -> None:
        """Compare the rows of a key."""
        self._found.keys += rows[0].has_key
        records, messages = [row for row in rows if not row.side], [row for row in rows if row.side]
        pairs, left, extra = self._by_place(key, records, messages)
        pairs += self._by_body(key, left, extra)
        self._found.matched += len(pairs)
        self._found.pending += sum(row.is_pending for row in (*left, *extra))
        left, extra = ([row for row in rest if not row.is_pending] for rest in (left, extra))
        foreign = [row for row in extra if not row.place]
        changed = min(len(left), len(foreign))  # one of each: the body changed
        for record, message in zip(left[:changed], foreign[:changed], strict=True):
            self._note(Difference.DIFFERENT, key, f"{record.shown} and {message.shown}")
        extra = [*(row for row in extra if row.place), *foreign[changed:]]
        for row in left[changed:]:
            if self._is_expired(row):
                self._gap("messages of RocketMQ that may have expired")
            else:
                self._note(Difference.MISSING, key, row.shown)
        for row in extra:
            if row.place and self._is_expired(row):
                self._gap("records of Kafka that expired or were compacted away")
            else:
                self._note(Difference.EXTRA, key, row.shown)
        self._check_order(key, pairs)
        for record, message in pairs:
            if self._late_ms and message.time_ms - record.time_ms > self._late_ms:
                self._note(Difference.LATE, key, f"{message.shown}, {(message.time_ms - record.time_ms) / 1000:.1f} s")

    def _by_place(
        self, key: bytes, records: list[Row], messages: list[Row]
    ) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
        """Pair what the bridge sent; return pairs, and what is left of both sides."""
        known = {row.place: row for row in records}
        used: set[str] = set()
        pairs, extra = [], []
        for message in messages:
            record = known.get(message.place)
            if record is None:
                extra.append(message)
            elif message.place in used:
                self._note(Difference.DOUBLE, key, message.shown)
            else:
                used.add(message.place)
                if record.digest == message.digest:
                    pairs.append((record, message))
                else:
                    self._note(Difference.DIFFERENT, key, f"{record.shown} and {message.shown}")
        return pairs, [row for row in records if row.place not in used], extra

    def _by_body(self, key: bytes, left: list[Row], extra: list[Row]) -> list[tuple[Row, Row]]:
        """Pair equal bodies, in order, and take them out of both lists."""
        by_body: dict[bytes, list[Row]] = defaultdict(list)
        for record in reversed(left):
            by_body[record.digest].append(record)
        bodies = {record.digest for record in left}
        pairs, rest = [], []
        for message in extra:
            if not message.place and by_body[message.digest]:
                pairs.append((by_body[message.digest].pop(), message))
            elif not message.place and message.digest in bodies and not message.is_pending:
                self._note(Difference.DOUBLE, key, message.shown)
            else:
                rest.append(message)
        paired = {id(record) for record, _ in pairs}
        left[:] = [record for record in left if id(record) not in paired]
        extra[:] = rest
        return pairs

    def _check_order(self, key: bytes, pairs: list[tuple[Row, Row]]) -> None:
        if not pairs or not pairs[0][0].has_key:
            return
        lanes: dict[int, list[tuple[Row, Row]]] = defaultdict(list)  # Kafka has no order between partitions
        bodies: dict[bytes, set[int]] = defaultdict(set)
        for pair in pairs:
            bodies[pair[0].digest].add(pair[0].lane)
        for pair in pairs:
            if pair[1].place or len(bodies[pair[0].digest]) == 1:  # else it is not known which partition it is of
                lanes[pair[0].lane].append(pair)
        for found in lanes.values():
            self._check_lane(key, found)

    def _check_lane(self, key: bytes, pairs: list[tuple[Row, Row]]) -> None:
        pairs.sort(key=lambda pair: pair[1].seq)
        if len(lanes := {message.lane for _, message in pairs}) > 1:
            self._note(Difference.ORDER, key, f"in {len(lanes)} queues, first {pairs[0][1].shown}")
            return
        for (before, _), (record, message) in pairwise(pairs):
            if record.seq < before.seq:
                self._note(Difference.ORDER, key, f"{message.shown} is after that of {before.shown}")
                return

    def _note(self, kind: Difference, key: bytes, text: str) -> None:
        self._found.counts[kind] += 1
        examples = self._found.examples.setdefault(str(kind), [])
        if len(examples) < self._examples:
            examples.append(f"{key.decode('utf-8', 'replace')[:KEY_SHOWN_LENGTH]}: {text}")

    def _gap(self, why: str) -> None:
        self._found.gaps[why] = self._found.gaps.get(why, 0) + 1


def has_tee(folder: Path) -> bool:
    """Return whether a tee has been used with a folder. MigrateError, OSError."""
    return any(read_tee(folder, one) is not None for one in TeeSide)


class _Sides:
    """Reads both sides into a sorter."""

    def __init__(self, config: CompareSides, state: BridgeState | None, sorter: KeySorter, found: Comparison) -> None:
        self._config = config
        self._state = state
        self._has_tee = has_tee(config.folder)  # then the bridge has ended
        self._sorter = sorter
        self._found = found
        self._of_record, self._of_message = business_key(config.key)
        self._firsts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._is_compacted = False
        self._started_ms = now_ms()
        self._kept_ms: int | None = None  # RocketMQ keeps all that was stored since; None: since ever

    def is_expired(self, row: Row) -> bool:
        """Whether the other side of a row may have expired."""
        if row.side:
            _, partition, offset = row.place.rsplit(":", 2)
            kept = self._ends if self._is_compacted else self._firsts  # a compacted topic has gaps
            return int(offset) < kept.get(int(partition), 0)
        return self._kept_ms is not None and row.time_ms < self._kept_ms

    async def read(self, admin: Admin) -> None:
        """Read the ends of RocketMQ, then Kafka, then RocketMQ: what comes meanwhile is no difference."""
        config = self._config
        try:
            queues = sorted(await admin.queues(config.target), key=lambda one: (one.broker_name, one.queue_id))
        except RouteNotFound:
            raise MigrateError(f"found no topic {config.target!r} in RocketMQ, expected it: pass --to") from None
        async with KafkaTopic(config.kafka, config.topic) as kafka:
            if self._state is not None and (cluster := await kafka.cluster_id()) != self._state.cluster:
                raise MigrateError(
                    f"found the Kafka cluster {cluster}, expected {self._state.cluster}, which the bridge reads: pass "
                    "its address, or another --folder"
                )
            partitions = await kafka.partitions()
            # Messages up to these ends have their records below the ends of Kafka, asked after them.
            ends = {queue: await admin.max_offset(queue) for queue in queues}
            await self._read_kafka(kafka, partitions)
        for number, (queue, end) in enumerate(ends.items()):
            await self._read_queue(admin, number, queue, end)

    async def _read_kafka(self, kafka: KafkaTopic, partitions: list[int]) -> None:
        config = self._config
        self._is_compacted = "compact" in await kafka.cleanup_policy()
        self._firsts, self._ends = await kafka.firsts(partitions), await kafka.ends(partitions)
        begins, ends = self._firsts, self._ends
        if config.since_ms is not None:
            begins = await kafka.at_time(partitions, config.since_ms)
        if self._state is not None:
            starts = self._state.starts
            begins = {one: max(at, starts.get(str(one), 0)) for one, at in begins.items()}
        begins = {one: at for one, at in begins.items() if at < ends[one]}
        kafka.begin(begins)
        seq = empty = 0
        while any([await kafka.position(one) < ends[one] for one in begins]):
            records = await kafka.read(READ_COUNT, READ_WAIT_MS)
            empty = 0 if records else empty + 1
            if empty > EMPTY_READS_MAX:
                raise MigrateError(
                    f"found no further record of Kafka's topic {config.topic!r} for "
                    f"{EMPTY_READS_MAX * READ_WAIT_MS / 1000:.0f} s, expected all before its end: compare again"
                )
            rows = []
            for record in records:
                if record.offset < ends[record.partition] and config.has(record.timestamp_ms):
                    seq += 1
                    rows.append(self._record_row(record, seq))
            self._found.records += len(rows)
            self._sorter.add(rows)

    def _record_row(self, record: KafkaRecord, seq: int) -> Row:
        place = record_id(record.topic, record.partition, record.offset)
        if self._state is None or self._has_tee:
            is_pending = record.timestamp_ms > self._started_ms - self._config.grace_ms
        else:
            is_pending = True
        if self._state is not None:
            is_pending &= record.offset >= self._state.next_offsets.get(str(record.partition), 0)
        key, digest = self._of_record(record), _digest(record.value)
        where = f"Kafka {record.partition}/{record.offset}"
        return Row(
            digest if key is None else key,
            int(key is not None),
            0,
            seq,
            record.partition,
            place,
            where,
            digest,
            record.timestamp_ms,
            int(is_pending),
        )

    async def _read_queue(self, admin: Admin, number: int, queue: MessageQueue, end: int) -> None:
        config, first = self._config, await admin.min_offset(queue)
        if first > 0:
            kept_ms = await admin.earliest_store_ms(queue)
            self._kept_ms = max(self._kept_ms or 0, now_ms() if kept_ms is None else kept_ms)
        if config.since_ms is not None:
            first = max(first, await admin.offset_by_time(queue, max(0, config.since_ms - CLOCK_SLACK_MS)))
        name, rows = queue.place, list[Row]()
        try:
            async for message in admin.messages_of_queue(queue, first, end):
                if (row := self._message_row(message, number, name)) is not None:
                    rows.append(row)
                if len(rows) >= READ_COUNT:
                    self._sorter.add(rows)
                    rows = []
        except ReadFailed as error:
            self._found.gaps[f"{name}: {error}"] = 1
        self._sorter.add(rows)

    def _message_row(self, message: MessageExt, number: int, name: str) -> Row | None:
        of = message.properties
        place, time_ms = "", message.born_timestamp_ms
        if of.get(TOPIC) == self._config.topic:
            with suppress(KeyError, ValueError):  # another producer's
                place, time_ms = record_id(of[TOPIC], int(of[PARTITION]), int(of[OFFSET])), int(of[TIMESTAMP])
        if not self._config.has(time_ms):
            return None
        self._found.messages += 1
        key, digest = self._of_message(message), _digest(value_of(message.body, of))
        where = f"{name} at {message.queue_offset}"
        return Row(
            digest if key is None else key,
            int(key is not None),
            1,
            message.queue_offset,
            number,
            place,
            where,
            digest,
            message.store_timestamp_ms,
            int(not place and message.store_timestamp_ms > self._started_ms - self._config.grace_ms),
        )


async def compare(config: CompareSides, admin: Admin) -> Comparison:
    """Compare both sides, and keep the result in the folder if it has a bridge or a tee. MQError, OSError."""
    state = read_bridge(config.folder)
    if state is not None and (state.topic, state.target) != (config.topic, config.target):
        raise MigrateError(
            f"found a bridge from {state.topic!r} to {state.target!r} in {str(config.folder)!r}, expected one from "
            f"{config.topic!r} to {config.target!r}: pass its --folder, or one without a bridge"
        )
    found = Comparison(config.topic, config.target, since_ms=config.since_ms, until_ms=config.until_ms, at_ms=now_ms())
    found.accepted = sorted(config.accepted)
    with sorted_rows() as sorter:
        sides = _Sides(config, state, sorter, found)
        await sides.read(admin)
        judge = KeyJudge(found, is_expired=sides.is_expired, late_ms=config.late_ms, examples=config.examples)
        judge.judge_all(sorter)
    if state is not None or has_tee(config.folder):
        save_json(config.folder / COMPARE, asdict(found))
    return found
