"""The bridge: the records of a Kafka topic as messages of a RocketMQ topic, until it is stopped.

    check topic, state and target -> read from the state's offsets on -> lanes -> acknowledged -> map, state

At least once: the state has what brokers acknowledged, so a run repeats what was on its way when the last one ended,
IN_FLIGHT_COUNT messages at most, and what it had acknowledged since the last save. A repeat has the KAFKA_PARTITION and
KAFKA_OFFSET of the first. In a queue, the records of a partition are in order; repeats begin an unbroken run that goes
on beyond all that was there before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqtrail.client import Admin, Producer, ProducerConfig
from mqtrail.clock import now_ms
from mqtrail.feed import Feed, Lanes, queues_of
from mqtrail.net import Log
from mqtrail.wire import BatchItem, MessageQueue

from .kafka import KafkaConfig, KafkaTopic
from .messages import HeaderRule, OrderBy, RecordEncoder, queue_for, record_id
from .model import KafkaAway, KafkaRecord, MigrateError
from .offsetmap import MapEntry, MapFile, MovedEntries, OffsetMap, Pair, read_map
from .state import MAP, SKIPPED_COUNT, BridgeState, alone, read_bridge, save_bridge

log = Log()

PRODUCER_GROUP: Final = "mqtrail-migrate"
READ_COUNT: Final = 16_384  # records of one read: all that a fetch has of several partitions
READ_WAIT_MS: Final = 200  # how long a read waits for the first
ENDS_S: Final = 2.0  # between two questions for Kafka's ends and partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeConfig:
    """What a bridge is to do. topic: Kafka's; target: RocketMQ's.

    start: where a new state begins: "first", "end", or epoch ms. is_once: end where Kafka's topic ended at the start.
    may_be_compacted, may_lose, may_be_used, takes_new_queues: accept what is refused without. skip: records to leave
    out, topic:partition:offset. retry_ms: how long Kafka or brokers may be away without progress.
    """

    kafka: KafkaConfig
    topic: str
    target: str
    folder: Path
    order: OrderBy = OrderBy.PARTITION
    headers: HeaderRule = HeaderRule.ENCODE
    start: str | int = "first"
    skip: frozenset[str] = frozenset()
    may_be_compacted: bool = False
    may_lose: bool = False
    may_be_used: bool = False
    takes_new_queues: bool = False
    is_once: bool = False
    retry_ms: int = 300_000


class Transit(NamedTuple):
    """A record on its way. message, queue: None for one that is left out."""

    record: KafkaRecord
    message: BatchItem | None = None
    queue: MessageQueue | None = None


class Bridge(Feed):
    """Runs until stopped. namesrv, producer: how to reach the brokers."""

    NAME, AWAY, ERROR = "migrate", KafkaAway, MigrateError

    def __init__(self, config: BridgeConfig, namesrv: str, producer: ProducerConfig) -> None:
        super().__init__(namesrv, producer, config.retry_ms)
        self.config = config
        self._encoder = RecordEncoder(config.target, config.headers)
        self._queues: list[MessageQueue] = []
        self._state: BridgeState | None = None
        self._map: MapFile | None = None
        self._moved = MovedEntries()
        self._unwritten: dict[Pair, list[MapEntry]] = {}  # on their way to the map
        self._positions: dict[int, int] = {}  # by partition: the next record to hand to the sender
        self._goal: dict[int, int] | None = None  # with is_once: the ends at the start
        self._is_begun = False

    @property
    def state(self) -> BridgeState:
        """The state, once the run has begun."""
        assert self._state is not None, "the run has not begun"
        return self._state

    async def run(self) -> BridgeState:
        """Run until `stop`, or with is_once to the ends of the topic; return the state. MQError, OSError."""
        with alone(self.config.folder):
            async with Producer(PRODUCER_GROUP, self._namesrv, config=self._producer_config) as producer:
                expected = ", with as many queues as the Kafka topic has partitions, for example"
                self._queues = await queues_of(producer, self.config.target, self.ERROR, expected)
                lanes = Lanes(
                    producer,
                    self._queues,
                    self._acknowledged,
                    error=MigrateError,
                    remedy=_remedy,
                    retry_s=self._retry_s,
                )
                await self._deliver(lanes, lambda: self._patiently(lambda: self._pump(lanes)))
            if self._state is None:
                raise MigrateError(f"stopped before Kafka at {self.config.kafka.bootstrap} answered")
        return self.state

    # -- begin -----------------------------------------------------------------------------------------------------

    async def _begin(self, kafka: KafkaTopic) -> None:
        """Check the topic, and read and check the state, or make a new one."""
        config = self.config
        partitions = await kafka.partitions()
        if not config.may_be_compacted and "compact" in await kafka.cleanup_policy():
            raise MigrateError(
                f"found the Kafka topic {config.topic!r} compacted, expected cleanup.policy=delete: RocketMQ keeps "
                "messages by age and has no compaction, so the last value of a key expires with the others; if "
                "consumers can live with that, pass --compacted"
            )
        cluster = await kafka.cluster_id()
        if self._state is None:
            self._state, offsets = await self._new_or_known(kafka, partitions, cluster)
            self._map = MapFile(config.folder / MAP, offsets)
            self._positions = {int(one): offset for one, offset in self._state.next_offsets.items()}
        await self._check_source(kafka, partitions, cluster)
        if not self._is_begun:
            self._is_begun = True
            self.state.started_ms = now_ms()
            await self._save()
            log.info("migrate.started", topic=config.topic, target=config.target, partitions=len(partitions))

    async def _new_or_known(
        self, kafka: KafkaTopic, partitions: list[int], cluster: str
    ) -> tuple[BridgeState, OffsetMap]:
        config = self.config
        names = [queue.place for queue in self._queues]
        state, offsets = read_bridge(config.folder), read_map(config.folder / MAP)
        if state is not None:
            if offsets is None:
                raise MigrateError(
                    f"found no offset map {str(config.folder / MAP)!r}, expected it beside the state: without it, "
                    "offsets of groups would be translated wrongly: restore it, or begin again with an empty topic "
                    "and a new --folder"
                )
            self._check_same(state, names)
            state.queues = names
            await self._check_target(offsets)
            return state, offsets
        await self._check_empty()
        if isinstance(config.start, int):
            starts = await kafka.at_time(partitions, config.start)
        else:
            starts = await (kafka.ends(partitions) if config.start == "end" else kafka.firsts(partitions))
        state = BridgeState(
            cluster=cluster,
            topic=config.topic,
            target=config.target,
            order=str(config.order),
            headers=str(config.headers),
            queues=names,
            starts={str(one): offset for one, offset in starts.items()},
            next_offsets={str(one): offset for one, offset in starts.items()},
        )
        return state, OffsetMap(config.topic, config.target)

    def _check_same(self, state: BridgeState, names: list[str]) -> None:
        config = self.config
        found = {"topic": config.topic, "--to": config.target, "--order": str(config.order)}
        expected = {"topic": state.topic, "--to": state.target, "--order": state.order}
        if found != expected:
            raise MigrateError(
                f"found {found}, expected {expected}, with which the bridge of {str(config.folder)!r} began: pass "
                "those, or a new --folder"
            )
        state.headers = str(config.headers)
        if state.queues != names and not config.takes_new_queues:
            raise MigrateError(
                f"found the queues {', '.join(names)} of topic {config.target!r}, expected {', '.join(state.queues)}, "
                "with which the bridge began: records move to other queues, so let consumers read all first, then "
                "pass --new-queues"
            )

    async def _check_target(self, offsets: OffsetMap) -> None:
        """Check that the target still has what the map knows of."""
        ends = offsets.queue_ends()
        async with Admin(self._namesrv, config=self._producer_config.instance) as admin:
            for queue in self._queues:
                end, known = await admin.max_offset(queue), ends.get(queue.place, 0)
                if end < known:
                    raise MigrateError(
                        f"found the end {end} of queue {queue.place} of topic {queue.topic!r}, expected {known} "
                        "or more, which the bridge has sent: the topic was created again, or the broker lost messages: "
                        "begin again with an empty topic and a new --folder"
                    )

    async def _check_empty(self) -> None:
        if self.config.may_be_used:
            return
        async with Admin(self._namesrv, config=self._producer_config.instance) as admin:
            for queue in self._queues:
                if end := await admin.max_offset(queue):
                    raise MigrateError(
                        f"found {end} messages in queue {queue.place} of topic {queue.topic!r}, expected an "
                        "empty topic, since this folder has no state and records may be there already: pass the "
                        "--folder of the bridge that sent them, or --into-used-topic if others did"
                    )

    async def _check_source(self, kafka: KafkaTopic, partitions: list[int], cluster: str) -> None:
        """Check that Kafka is the one of the state and still has what is next."""
        state, topic = self.state, self.config.topic
        if state.cluster != cluster:
            raise MigrateError(
                f"found the Kafka cluster {cluster}, expected {state.cluster}, which the state is of: offsets of one "
                "cluster mean nothing in another; pass its address, or a new --folder"
            )
        firsts, ends = await kafka.firsts(partitions), await kafka.ends(partitions)
        for one, offset in self._positions.items():
            first, end = firsts.get(one), ends.get(one, 0)
            if first is None or end < offset:
                raise MigrateError(
                    f"found the end {end} of partition {one} of Kafka's topic {topic!r}, expected {offset} or more, "
                    "where the bridge is: the target is ahead of its source. The topic was created anew, or Kafka "
                    "lost records: begin again with an empty target and a new --folder"
                )
            if first > offset:
                self._lose(one, offset, first)
                self._positions[one] = first
                if state.next_offsets[str(one)] == offset:  # else records before it are on their way
                    state.next_offsets[str(one)] = first
        if self.config.is_once and self._goal is None:
            self._goal = ends
        self._note_ends(ends)

    def _lose(self, partition: int, offset: int, first: int) -> None:
        """Note that Kafka deleted the records from offset to first before they were read. MigrateError."""
        if not self.config.may_lose:
            raise MigrateError(
                f"found {first} as the first offset of partition {partition} of Kafka's topic {self.config.topic!r}, "
                f"expected {offset}, which is next: Kafka deleted {first - offset} records before they were read; "
                "pass --accept-loss to continue without them, and raise retention.ms of the topic"
            )
        self.state.lost[str(partition)] = self.state.lost.get(str(partition), 0) + first - offset

    # -- work ------------------------------------------------------------------------------------------------------

    async def _pump(self, lanes: Lanes[Transit]) -> None:
        """Read and send until stopped, or to the goal."""
        async with KafkaTopic(self.config.kafka, self.config.topic) as kafka:
            await self._begin(kafka)
            await self._add_new_partitions(await kafka.partitions(), kafka)
            kafka.begin(self._positions)
            asked_s = time.monotonic()
            while not self._stopping.is_set():
                records = await kafka.read(READ_COUNT, READ_WAIT_MS)
                for record in records:
                    await self._add(lanes, self._unit(record))
                    self._positions[record.partition] = record.offset + 1
                if self._goal is not None and not records and await self._is_done(kafka, self._goal):
                    break
                if time.monotonic() - asked_s >= ENDS_S:
                    asked_s = time.monotonic()
                    await self._pass_marks(kafka)
                    partitions = await kafka.partitions()
                    self._note_ends(await kafka.ends(partitions))
                    self._progress_s = time.monotonic()  # it answers, and reads did not fail
                    if await self._add_new_partitions(partitions, kafka):
                        kafka.begin(self._positions)
            await lanes.drain()
            await self._pass_marks(kafka)

    async def _pass_marks(self, kafka: KafkaTopic) -> None:
        """Pass the marks that transactions leave after their records, where all before them is acknowledged."""
        for one, offset in self._positions.items():
            if self.state.next_offsets[str(one)] == offset and (passed := await kafka.position(one)) > offset:
                self._positions[one] = self.state.next_offsets[str(one)] = passed
                self._dirty = True

    async def _add_new_partitions(self, partitions: list[int], kafka: KafkaTopic) -> bool:
        """Begin partitions that were added, at their first record; return whether there were some."""
        added = [one for one in partitions if one not in self._positions]
        if added:
            firsts = await kafka.firsts(added)
            for one, first in firsts.items():
                if first:
                    self._lose(one, 0, first)
            self._positions |= firsts
            self.state.starts |= {str(one): offset for one, offset in firsts.items()}
            self.state.next_offsets |= {str(one): offset for one, offset in firsts.items()}
            self._dirty = True
            log.info("migrate.new_partitions", partitions=added)
        return bool(added)

    async def _is_done(self, kafka: KafkaTopic, goal: dict[int, int]) -> bool:
        return all([await kafka.position(one) >= end for one, end in goal.items()])

    def _unit(self, record: KafkaRecord) -> Transit:
        place = record_id(record.topic, record.partition, record.offset)
        if place in self.config.skip:
            return Transit(record)
        return Transit(record, self._encoder.encode(record), queue_for(record, self._queues, self.config.order))

    @staticmethod
    async def _add(lanes: Lanes[Transit], unit: Transit) -> None:
        if unit.message is None or unit.queue is None:
            await lanes.add(unit)
        else:
            await lanes.add(unit, unit.message, [unit.queue], len(unit.message.body) + len(unit.message.properties))

    # -- progress --------------------------------------------------------------------------------------------------

    def _note_ends(self, ends: dict[int, int]) -> None:
        self.state.ends = {str(one): end for one, end in ends.items()}
        self.state.ends_ms = now_ms()
        self._dirty = True

    def _acknowledged(self, unit: Transit, queue_offset: int) -> None:
        state, record = self.state, unit.record
        self._progress_s = time.monotonic()
        self._dirty = True
        state.next_offsets[str(record.partition)] = record.offset + 1
        if unit.message is None:
            place = record_id(record.topic, record.partition, record.offset)
            log.warning("migrate.skipped", record=place)
            state.skipped = [*(one for one in state.skipped if one != place), place][-SKIPPED_COUNT:]
            return
        assert unit.queue is not None, "it was sent"
        state.event_ms = record.timestamp_ms
        kind = "value" if record.value else "tombstone" if record.value is None else "empty"
        state.counts[kind] = state.counts.get(kind, 0) + 1
        pair = record.partition, unit.queue.place
        self._moved.add(pair, MapEntry(record.offset, queue_offset, record.timestamp_ms))

    def _state_writer(self) -> Callable[[], None] | None:
        if self._state is None:
            return None
        self._state.saved_ms = now_ms()
        saved, map_file = deepcopy(self._state), self._map
        moved = self._unwritten
        for pair, entries in self._moved.take().items():
            moved.setdefault(pair, []).extend(entries)

        def write() -> None:
            if moved and map_file is not None:
                map_file.append(moved)
            self._unwritten = {}  # if it failed, they are for the next try: the state must not be ahead of the map
            save_bridge(self.config.folder, saved)

        return write

    def _source_to_check(self) -> str:
        kafka = self.config.kafka.bootstrap
        return f"that Kafka runs at {kafka} and that its advertised addresses can be reached from here"

    def _progress(self) -> tuple[int, dict[str, Any]]:
        return (0, {}) if self._state is None else (sum(self._state.counts.values()), {"lag": self._state.lag()})


def _remedy(unit: Transit) -> str:
    """Return what a refused record is, and what to do."""
    assert unit.message is not None, "what is left out is not sent"
    record = unit.record
    place = record_id(record.topic, record.partition, record.offset)
    return (
        f"the record {place} has a value of {len(unit.message.body)} bytes: if it is too large, raise "
        "body_size_max of [producer] and maxMessageSize of the brokers, or leave it out with --skip-record "
        f"{place}"
    )
