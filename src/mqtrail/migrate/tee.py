"""The tee: each record goes to Kafka and to RocketMQ. One side decides, the other one gets a copy.

    send -> the deciding side acknowledges: that is the caller's outcome -> a lane -> the copy, with retries
                                                                                   -> or the file of failed copies

Copies of a key are sent in the order in which the deciding side stored them. While a copy waits in a file, later ones
of its key go there too. copies_max bounds the copies on their way; then `send` waits. They are in the journal, so kill
-9 loses no copy of a record whose `send` returned: `mqtrail migrate copies --send` sends it. A record without an answer
may be stored without a copy: `mqtrail migrate compare` names it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple, Self

from aiokafka.structs import RecordMetadata

from mqtrail.client import Admin, ClientClosed, InvalidMessage, Producer, ProducerConfig
from mqtrail.clock import now_ms
from mqtrail.feed import queues_of
from mqtrail.net import Log
from mqtrail.wire import MessageQueue, MQError, Refusal

from .copies import CopyFile, CopyHead, CopyWriter, TeeCopy, TeeSide, ToKafka, ToRocketMQ, patiently, send_again
from .journal import CopyJournal
from .kafka import KafkaConfig, KafkaTopic
from .kafka_writer import KafkaWriter, partition_for
from .left import left_keys, resend_left
from .messages import HeaderRule, OrderBy, outbound_of, queue_for
from .model import KafkaRecord, MigrateError, SideAway
from .state import TeeState, is_running, read_bridge, read_tee, save_tee

log = Log()

PRODUCER_GROUP: Final = "mqtrail-tee"
DOWN_S: Final = 5.0  # after a copy that failed: so long, further ones go to the file at once; after a failed connect
KEYS_MAX: Final = 10_000  # keys with copies in files; with more, all copies go to the file
STRIPES: Final = 256  # with RocketMQ deciding: locks that keep the sends of a key in order


@dataclass(frozen=True, slots=True, kw_only=True)
class TeeConfig:
    """What a tee is to do. topic: Kafka's; target: RocketMQ's. decides: the side whose outcome is the caller's.

    folder: of the migration; order, headers: as its bridge has them. copies_max, copies_size_max: bounds of the copies
    on their way, count and bytes; `send` waits for room. retry_ms: how long a copy is tried again. close_ms: how long
    `close` waits for copies.
    """

    kafka: KafkaConfig
    topic: str
    target: str
    folder: Path
    decides: TeeSide = TeeSide.KAFKA
    order: OrderBy = OrderBy.PARTITION
    headers: HeaderRule = HeaderRule.ENCODE
    copies_max: int = 1_000
    copies_size_max: int = 32 * 1024 * 1024
    retry_ms: int = 10_000
    close_ms: int = 30_000


class TeeResult(NamedTuple):
    """Where the deciding side has a record. Kafka: partition and offset. RocketMQ: queue and its offset."""

    side: TeeSide
    partition: int | None
    queue: MessageQueue | None
    offset: int


class FailedCopy(NamedTuple):
    """A copy that failed. place: where the deciding side has it. path: the file that keeps it; None: it is not kept."""

    record: KafkaRecord
    place: str
    error: str
    path: Path | None


@dataclass(frozen=True, slots=True)
class TeeCounts:
    """Since the start. sent: acknowledged by the deciding side. copied: by the other one. waiting: on their way.

    failed: copies put in the file. lost: failed copies that the file could not keep. resent: by `resend`.
    """

    sent: int
    copied: int
    waiting: int
    failed: int
    lost: int
    resent: int


@dataclass(slots=True, eq=False)
class _CopyLane:
    copies: deque[TeeCopy] = field(default_factory=deque)
    under_way: list[TeeCopy] = field(default_factory=list)
    alone: int = 0  # so many of the next copies are sent one by one
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _TeeSides:
    """What both sides have. partition_count: of Kafka's topic. queues: of RocketMQ's."""

    cluster: str
    partition_count: int
    queues: list[MessageQueue]


class TeeProducer:
    """Sends to both sides. Use it with `async with`, from one event loop; without asyncio: SyncTeeProducer.

    The start needs the deciding side. If the other one is away, copies go to the file until it is back; then the folder
    must have the files of a bridge or of an earlier tee, which name partitions and queues.

    namesrv, producer: how to reach the brokers. on_failed: called in the loop with each copy that failed.
    """

    def __init__(
        self,
        config: TeeConfig,
        namesrv: str,
        producer: ProducerConfig | None = None,
        *,
        on_failed: Callable[[FailedCopy], None] | None = None,
    ) -> None:
        self.config = config
        self._namesrv = namesrv
        base = replace(producer or ProducerConfig(), degrade=False, auto_batch=False)
        # Lanes repeat a failed copy themselves, in its place.
        self._producer_config = base if config.decides is TeeSide.ROCKETMQ else replace(base, retry_count=0)
        self._on_failed = on_failed
        self._stack = AsyncExitStack()
        to = TeeSide.ROCKETMQ if config.decides is TeeSide.KAFKA else TeeSide.KAFKA
        self._head = CopyHead(topic=config.topic, target=config.target, to=to, headers=config.headers)
        self._file = CopyFile(config.folder, self._head)
        self._journal = CopyJournal(config.folder, self._file.name, self._head)
        self._connections = AsyncExitStack()  # closed after the lanes ended
        self._kafka: KafkaWriter | None = None
        self._writer: CopyWriter | None = None
        self._away = ""  # why there is no writer
        self._sides = _TeeSides("", 0, [])
        self._lanes: dict[MessageQueue | int, _CopyLane] = {}
        self._locks = [asyncio.Lock() for _ in range(STRIPES)]
        self._sends: set[asyncio.Task[TeeResult]] = set()
        self._waiting = self._size = 0  # copies on their way, and records that will be some
        self._room = asyncio.Event()
        self._behind: set[bytes] = set()  # keys of copies in files
        self._down_until_s = 0.0
        self._connecting: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_ended = False
        self._resending = asyncio.Lock()
        self._sent = self._copied = self._failed = self._lost = self._resent = 0

    @property
    def counts(self) -> TeeCounts:
        """What came of records and copies so far."""
        return TeeCounts(self._sent, self._copied, self._waiting, self._failed, self._lost, self._resent)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect, as `async with` does. KafkaAway, MigrateError, MQError: a side cannot be used. OSError."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def send(
        self, value: bytes | None, *, key: bytes | None = None, headers: Iterable[tuple[str, bytes | None]] = ()
    ) -> TeeResult:
        """Write a record to the deciding side, and hand its copy to a lane.

        Waits for room for the copy first. Raises what the deciding side fails with: KafkaAway, MigrateError, or as
        `Producer.send`; then no copy is sent, although the record may be stored. ClientClosed.
        """
        if key is None and value is None:
            raise MigrateError("found a record without key and value, expected one of them: pass a value")
        record = KafkaRecord(self.config.topic, -1, -1, -1, key, value, tuple(headers))
        size = record.size
        await self._until(lambda: not self._is_open or self._has_room(size))
        if not self._is_open:
            raise ClientClosed("found a tee that is not open, expected `async with`: make another one")
        self._waiting += 1
        self._size += size
        task = asyncio.create_task(self._decide(record))  # a caller that is cancelled leaves no record without a copy
        self._sends.add(task)
        task.add_done_callback(lambda done: self._decided(done, size))
        return await asyncio.shield(task)

    async def drain(self) -> TeeCounts:
        """Wait until no copy is on its way; return the counts."""
        await self._until(lambda: not self._waiting)
        return self.counts

    async def resend(self) -> TeeCounts:
        """Send the copies of files again, in order; then later copies of their keys are sent as others.

        The files: those that ended tees left in the folder, then this tee's. What is refused stays in the file. Raises
        what the other side fails with; the rest then stays in the file, too.
        """
        async with self._resending:
            if (writer := self._writer) is None:
                raise SideAway(f"{self._head.to} is away: {self._away}: the copies stay in {str(self.config.folder)!r}")
            self._resent += await resend_left(self.config.folder, self._head, writer, self.config.retry_ms)
            seen, kept, error = 0, list[tuple[TeeCopy, str]](), None
            while error is None and (copies := self._file.read()[seen:]):
                seen += len(copies)
                found = await send_again(copies, writer, self.config.retry_ms)
                kept += found.kept
                error = found.error
                self._resent += found.sent
            self._file.replace([*kept, *self._file.read()[seen:]])
            if error is not None:
                raise error
            self._behind.clear()
            self._down_until_s = 0.0
        return self.counts

    async def close(self) -> TeeCounts:
        """Wait for copies, for close_ms at most; the rest goes to the file. Return the counts. OSError."""
        self._is_open = False
        self._room.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.close_ms / 1000):
                await self.drain()
        try:
            await self._stack.aclose()
            await asyncio.gather(*self._sends, return_exceptions=True)
        finally:
            for lane in self._lanes.values():
                for copy in (*lane.under_way, *lane.copies):
                    self._fail(copy, f"the tee was closed, and had waited {self.config.close_ms} ms")
                lane.under_way = []
                lane.copies.clear()
            self._file.close()
            self._journal.close()
        return self.counts

    # -- start and end ---------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        config = self.config
        config.folder.mkdir(parents=True, exist_ok=True)
        self._connections = await self._stack.enter_async_context(AsyncExitStack())
        self._producer = await self._connections.enter_async_context(
            Producer(PRODUCER_GROUP, self._namesrv, config=self._producer_config)
        )
        known = self._known()
        self._sides = known or self._sides
        decider, other = self._find_kafka, self._find_rocketmq
        if config.decides is TeeSide.ROCKETMQ:
            decider, other = other, decider
        await decider()
        try:
            await other()
            self._check_bridge()
            self._writer = await self._new_writer()
        except MQError as error:
            if known is None or isinstance(error, MigrateError | Refusal):
                raise
            self._check_bridge()
            self._note_away(error)
        self._behind, left = left_keys(config.folder, self._head)
        if left:
            remedy = "call `resend`, or `mqtrail migrate copies --send`; until then, copies of their keys go to a file"
            log.warning("tee.copies_left", folder=str(config.folder), count=left, remedy=remedy)
        self._save()
        self._journal.open()
        self._stack.push_async_callback(self._end_lanes)
        if self._writer is None:
            self._connecting = asyncio.create_task(self._connect_later(other))
        self._is_open = True

    def _known(self) -> _TeeSides | None:
        """Return what the files of the folder say of both sides; None: nothing."""
        config = self.config
        state = read_bridge(config.folder)
        if state is not None and (state.topic, state.target) == (config.topic, config.target):
            queues = [MessageQueue.at(config.target, one) for one in state.queues]
            return _TeeSides(state.cluster, len(state.next_offsets), queues)
        for side in TeeSide:
            tee = read_tee(config.folder, side)
            if tee and tee.queues and (tee.topic, tee.target) == (config.topic, config.target):
                queues = [MessageQueue.at(config.target, one) for one in tee.queues]
                return _TeeSides(tee.cluster, tee.partition_count, queues)
        return None

    async def _find_kafka(self) -> None:
        """Connect to Kafka. KafkaAway, MigrateError."""
        config = self.config
        async with KafkaTopic(config.kafka, config.topic) as kafka:
            count = len(await kafka.partitions())
            self._sides = replace(self._sides, cluster=await kafka.cluster_id(), partition_count=count)
        writer = KafkaWriter(config.kafka, config.topic, is_idempotent=config.decides is TeeSide.KAFKA)
        self._kafka = await self._connections.enter_async_context(writer)

    async def _find_rocketmq(self) -> None:
        """Find the queues of the topic. MigrateError: it has none. SideAway: the same, but it had some. MQError."""
        try:
            found = await queues_of(self._producer, self.config.target, MigrateError)
        except MigrateError as error:
            if not self._sides.queues:
                raise
            raise SideAway(str(error)) from error
        self._sides = replace(self._sides, queues=found)

    async def _new_writer(self) -> CopyWriter:
        config = self.config
        if config.decides is TeeSide.KAFKA:
            return ToRocketMQ(self._producer, config.target, config.headers)
        assert self._kafka is not None, "it is connected"
        admin = Admin(self._namesrv, config=self._producer_config.instance)
        return ToKafka(self._kafka, await self._connections.enter_async_context(admin))

    async def _connect_later(self, find: Callable[[], Awaitable[None]]) -> None:
        """Try to reach the other side until it is back. Until then, copies go to the file."""
        while self._writer is None:
            await asyncio.sleep(DOWN_S)
            try:
                await find()
                self._check_bridge()
                self._save()
                self._writer = await self._new_writer()
            except Exception as error:
                self._note_away(error)
        log.info("tee.connected", to=self._head.to, remedy="call `resend` for the copies in files")

    def _note_away(self, error: Exception) -> None:
        self._away = str(error) or repr(error)
        log.sparse.warning("tee.side_away", to=self._head.to, error=self._away, retry_s=DOWN_S)

    def _save(self) -> None:
        """Note in the folder that there is a tee, and what both sides have."""
        config, sides = self.config, self._sides
        known = read_tee(config.folder, config.decides)
        state = known or TeeState(topic=config.topic, target=config.target, since_ms=now_ms())
        queues = [one.place for one in sides.queues]
        state = replace(state, cluster=sides.cluster, partition_count=sides.partition_count, queues=queues)
        if state != known:
            save_tee(config.folder, config.decides, state)

    def _check_bridge(self) -> None:
        """Check that the folder's bridge is of the same topics, and ended."""
        config, state = self.config, read_bridge(self.config.folder)
        if state is None:
            return
        queues = [queue.place for queue in self._sides.queues]
        found = (self._sides.cluster, config.topic, config.target, str(config.order), queues)
        expected = (state.cluster, state.topic, state.target, state.order, state.queues)
        if found != expected:
            raise MigrateError(
                f"found cluster, topic, target, order and queues {found}, expected {expected}, which the bridge of "
                f"{str(config.folder)!r} has: use those, or another folder"
            )
        if is_running(config.folder):
            raise MigrateError(
                f"found a running bridge with the folder {str(config.folder)!r}, expected none: it would send each "
                "record of the tee again: stop it when its lag is 0, then start the tee"
            )

    async def _end_lanes(self) -> None:
        self._is_ended = True
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if self._connecting is not None:
            tasks.append(self._connecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the deciding side -----------------------------------------------------------------------------------------

    async def _decide(self, record: KafkaRecord) -> TeeResult:
        if self._kafka is None:
            partition = partition_for(record.key, self._sides.partition_count)
        else:
            partition = await self._kafka.partition_of(record.key)
        record = record._replace(partition=partition)
        if self.config.decides is TeeSide.KAFKA:
            assert self._kafka is not None, "it decides"
            future = await self._kafka.begin(record)
            # Kafka acknowledges in the order of offsets, and so are callbacks called: the copies are in order.
            future.add_done_callback(lambda done: self._copy_of_kafka(record, done))
            found = await self._kafka.stored(future)
            return TeeResult(TeeSide.KAFKA, found.partition, None, found.offset)
        if record.key is None:
            return await self._send_message(record)
        async with self._locks[hash(record.key) % STRIPES]:
            return await self._send_message(record)

    def _copy_of_kafka(self, record: KafkaRecord, done: asyncio.Future[RecordMetadata]) -> None:
        if not done.cancelled() and done.exception() is None:
            place = done.result()
            record = record._replace(offset=place.offset, timestamp_ms=place.timestamp)
            queue = queue_for(record, self._sides.queues, self.config.order)
            self._add(queue, TeeCopy(record, queue))

    async def _send_message(self, record: KafkaRecord) -> TeeResult:
        queue = queue_for(record, self._sides.queues, self.config.order)
        message = outbound_of(record, self.config.target, self.config.headers).message
        sent = await self._producer.send(message, queue=queue)
        self._add(record.partition, TeeCopy(record, sent.queue, sent.queue_offset))
        return TeeResult(TeeSide.ROCKETMQ, None, sent.queue, sent.queue_offset)

    def _decided(self, done: asyncio.Task[TeeResult], size: int) -> None:
        self._sends.discard(done)
        self._size -= size
        if done.cancelled() or done.exception() is not None:
            self._waiting -= 1  # no copy
        self._room.set()

    # -- the other side --------------------------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        config = self.config
        return self._waiting < config.copies_max and (not self._waiting or self._size + size <= config.copies_size_max)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._room.clear()
            await self._room.wait()

    def _add(self, name: MessageQueue | int, copy: TeeCopy) -> None:
        """Hand a copy to its lane."""
        self._sent += 1
        self._size += copy.record.size
        copy = copy._replace(number=self._journal.add(copy))
        lane = self._lanes.setdefault(name, _CopyLane())
        if lane.task is None and not self._is_ended:
            lane.task = asyncio.create_task(self._run(lane))
        lane.copies.append(copy)
        lane.filled.set()

    async def _run(self, lane: _CopyLane) -> None:
        while True:
            while not lane.copies:
                lane.filled.clear()
                await lane.filled.wait()
            batch_count = 1 if lane.alone or self._writer is None else self._writer.batch_count
            count = min(len(lane.copies), batch_count)
            lane.alone = max(0, lane.alone - 1)
            lane.under_way = [lane.copies.popleft() for _ in range(count)]
            await self._copy(lane)

    async def _copy(self, lane: _CopyLane) -> None:
        """Send the copies under way of a lane: each is copied then, or failed, or the lane's next again."""
        ready = []
        for copy in lane.under_way:
            if reason := self._reason_to_wait(copy):
                self._fail(copy, reason)
            else:
                ready.append(copy)
        lane.under_way = ready
        writer = self._writer
        if not ready or writer is None:
            return
        try:
            await patiently(lambda: writer.write(ready), self.config.retry_ms)
        except (InvalidMessage, Refusal, MigrateError) as error:  # no retry would change it
            if len(ready) == 1:
                self._fail(ready[0], str(error), holds_key=False)
            else:  # one of them, or only their batch, is refused
                lane.copies.extendleft(reversed(ready))
                lane.alone = len(ready)
        except Exception as error:
            self._down_until_s = time.monotonic() + DOWN_S
            for copy in ready:
                self._fail(copy, str(error) or repr(error))
        else:
            self._copied += len(ready)
            self._leave(ready)
        lane.under_way = []

    def _reason_to_wait(self, copy: TeeCopy) -> str:
        if self._writer is None:
            return f"{self._head.to} is away: {self._away}"
        if copy.record.key in self._behind or len(self._behind) >= KEYS_MAX:
            return "an earlier copy of its key failed"
        return "the copy before failed" if time.monotonic() < self._down_until_s else ""

    def _leave(self, copies: Sequence[TeeCopy]) -> None:
        self._journal.done([one.number for one in copies])
        self._waiting -= len(copies)
        self._size -= sum(one.record.size for one in copies)
        self._room.set()

    def _fail(self, copy: TeeCopy, error: str, *, holds_key: bool = True) -> None:
        """Keep a copy in the file, count it, and report it. holds_key: later copies of its key go there, too."""
        path: Path | None = self._file.path
        try:
            self._file.add(copy, error)
            self._failed += 1
        except OSError as why:
            path = None
            self._lost += 1
            log.sparse.error("tee.copy_lost", place=copy.place, error=f"{error}; {why}")
        if holds_key and copy.record.key is not None:
            self._behind.add(copy.record.key)
        self._leave([copy])
        log.sparse.warning("tee.copy_failed", place=copy.place, error=error)
        if self._on_failed is not None:
            try:
                self._on_failed(FailedCopy(copy.record, copy.place, error, path))
            except Exception as why:
                log.sparse.error("tee.callback_failed", error=repr(why))
