"""A run: a snapshot of the tables, then their changes, as messages of one topic.

    check source, state and topic -> snapshot of each table not yet done -> stream from the state's place
        thread: binlog -> items      loop: items -> messages -> lanes -> acknowledged -> state

Without a gap: the stream starts at the place of the first snapshot. Without a double: a change of a table before the
place of that table's snapshot is in its rows already, and is left out. A table whose snapshot is interrupted is read
again, as of a later place; the changes between both places are sent too, since rows may be gone that the first try has
sent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mqtrail.client import Producer, ProducerConfig, by_hash
from mqtrail.clock import now_ms
from mqtrail.feed import Feed, Lanes, queues_of
from mqtrail.net import Log
from mqtrail.wire import MessageQueue

from .messages import ChangeComposer, Checkpoint, Outbound, TagBy
from .model import BinlogError, BinlogItem, RowChange, SourceAway, TransactionBegin
from .source import BinlogSource, ReadTable, Snapshot, SourceConfig, TableFilter
from .state import BinlogState, alone, place_of_text, read_state, save_state, with_gtid
from .stream import BinlogStream

log = Log()
SentLanes = Lanes[Outbound | Checkpoint]

PRODUCER_GROUP: Final = "mqtrail-binlog"
READ_COUNT: Final = 2_048  # items that are read and not yet made into messages
READ_SIZE: Final = 8 * 1024 * 1024  # bytes of their events
GROWING: Final = frozenset({"excluded", "columns"})  # options of a state to which more may be added


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogConfig:
    """What a run is to do. tables, excluded: patterns of database.table. columns: left out, database.table.column.

    has_snapshot: a new state begins with the rows that are there, else with what comes. is_once: end when the server
    has nothing new. retry_ms: how long source or brokers may be away without progress.
    """

    source: SourceConfig
    topic: str
    state: Path
    tables: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    tag_by: TagBy = TagBy.TABLE
    has_snapshot: bool = True
    takes_new_queues: bool = False
    is_once: bool = False
    retry_ms: int = 300_000

    @property
    def wish(self) -> dict[str, Any]:
        """The settings that must be the same in all runs of a state."""
        return {
            "topic": self.topic,
            "tables": list(self.tables),
            "excluded": list(self.excluded),
            "columns": list(self.columns),
            "tag_by": str(self.tag_by),
        }


class BinlogRun(Feed):
    """Runs until stopped. namesrv, producer: how to reach the brokers."""

    NAME, AWAY, ERROR = "binlog", SourceAway, BinlogError

    def __init__(self, config: BinlogConfig, namesrv: str, producer: ProducerConfig) -> None:
        super().__init__(namesrv, producer, config.retry_ms)
        self.config = config
        self._filter = TableFilter(config.tables, config.excluded, config.columns)
        self._source = BinlogSource(config.source)
        self._charsets: dict[int, str] = {}
        self._state: BinlogState | None = None
        self._queues: list[MessageQueue] = []

    @property
    def state(self) -> BinlogState:
        """The state, once the run has begun."""
        assert self._state is not None, "the run has not begun"
        return self._state

    async def run(self) -> BinlogState:
        """Run until `stop`, or with is_once to the end of the binlog; return the state. MQError, OSError."""
        with alone(self.config.state):
            async with Producer(PRODUCER_GROUP, self._namesrv, config=self._producer_config) as producer:
                expected = ", since its number of queues is for you to choose"
                self._queues = await queues_of(producer, self.config.topic, self.ERROR, expected)
                await self._patiently(self._begin)
                if self._state is None:  # stopped while the source was away
                    raise BinlogError(f"stopped before {self.config.source.shown} answered")
                lanes = Lanes(
                    producer,
                    self._queues,
                    self._acknowledged,
                    error=BinlogError,
                    remedy=_remedy,
                    retry_s=self._retry_s,
                )
                await self._deliver(lanes, lambda: self._work(lanes))
        return self.state

    async def _work(self, lanes: SentLanes) -> None:
        await self._patiently(lambda: self._snapshot(lanes), lanes)
        await self._patiently(lambda: self._stream(lanes), lanes)

    async def _add(self, lanes: SentLanes, item: Outbound | Checkpoint) -> None:
        """Send a message after those of its key, or after all messages if it has no key; or note a checkpoint."""
        if isinstance(item, Checkpoint):
            await lanes.add(item)
            return
        queues = self._queues
        if item.key is not None:
            queue = by_hash(item.key)(self._queues, item.message)
            assert queue is not None, "a hash always chooses"
            queues = [queue]
        await lanes.add(item, item.message, queues, len(item.message.body))

    # -- begin -----------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Read and check the state, or make a new one."""
        config = self.config
        identity = await asyncio.to_thread(self._source.identity)
        self._charsets = await asyncio.to_thread(self._source.charsets)
        names = [f"{queue.broker_name}/{queue.queue_id}" for queue in self._queues]
        state = read_state(config.state)
        if state is None:
            state = BinlogState(source=identity, wish=config.wish, queues=names)
            await asyncio.to_thread(
                self._source.tables, self._filter
            )  # refuse what cannot be read before anything is sent
            if not config.has_snapshot:
                place, state.gtids = await asyncio.to_thread(self._source.end)
                state.place, state.is_snapshot_done = str(place), True
        else:
            self._check_same(state, identity, names)
            if state.place:
                await asyncio.to_thread(self._source.check_place, place_of_text(state.place), state.gtids)
        state.queues, state.started_ms = names, now_ms()
        self._state = state
        await self._save()
        log.info("binlog.started", source=config.source.shown, topic=config.topic, place=state.place or "snapshot")

    def _check_same(self, state: BinlogState, identity: str, names: list[str]) -> None:
        path = str(self.config.state)
        if state.source != identity:
            raise BinlogError(
                f"found a server with the id {identity} at {self.config.source.shown}, expected {state.source}, "
                "which the state "
                f"{path!r} is of: positions of one server are not valid on another; pass its address, or a new --state"
            )
        found, expected = _different(self.config.wish, state.wish)
        if found:
            raise BinlogError(
                f"found the options {found}, expected {expected}, with which the state {path!r} began: pass those, "
                "or a new --state, which begins with a new snapshot"
            )
        if state.wish != self.config.wish:  # more is left out: `done` has counted it
            state.wish, state.done = self.config.wish, 0
        if state.queues != names and not self.config.takes_new_queues:
            raise BinlogError(
                f"found the queues {', '.join(names)} of topic {self.config.topic!r}, expected "
                f"{', '.join(state.queues)}, which "
                "the state began with: keys move to other queues, so let consumers read all first, then pass "
                "--new-queues"
            )

    # -- snapshot --------------------------------------------------------------------------------------------------

    async def _snapshot(self, lanes: SentLanes) -> None:
        """Send the rows of all tables without a complete snapshot. All tables of one try are as of one place."""
        state = self.state
        if state.is_snapshot_done:
            return
        async with AsyncExitStack() as stack:
            inner = ExitStack()
            stack.push_async_callback(asyncio.to_thread, inner.close)
            snapshot = await asyncio.to_thread(inner.enter_context, self._source.snapshot())
            tables = await asyncio.to_thread(snapshot.tables, self._filter)
            if not state.place:
                state.place, state.gtids = str(snapshot.place), snapshot.gtids
                await self._save()
            for table in tables:
                if table.name not in state.tables:
                    state.begun.setdefault(table.name, str(snapshot.place))
                    await self._save()
                    await self._snapshot_table(lanes, snapshot, table)
                    if self._stopping.is_set():
                        return
        state.is_snapshot_done = True
        await self._save()

    async def _snapshot_table(self, lanes: SentLanes, snapshot: Snapshot, table: ReadTable) -> None:
        composer = ChangeComposer(self.config.topic, self.config.tag_by)
        begun_ms, number = now_ms(), 0
        chunks = snapshot.chunks(table)
        try:
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                for row in chunk:
                    await self._add(
                        lanes, composer.snapshot(table.name, table.key, row, snapshot.place, number, begun_ms)
                    )
                    number += 1
                if self._stopping.is_set():
                    return
        finally:
            with suppress(ValueError):  # stopped in the middle of a read
                await asyncio.to_thread(chunks.close)
        await lanes.drain()
        self.state.tables[table.name] = self.state.begun.pop(table.name)
        await self._save()
        log.info("binlog.table_read", table=table.name, rows=number, place=str(snapshot.place))

    # -- stream ----------------------------------------------------------------------------------------------------

    async def _stream(self, lanes: SentLanes) -> None:
        state = self.state
        if self._stopping.is_set():
            return
        place, skip = place_of_text(state.place), state.done
        done_at = {name: place_of_text(text).order for name, text in state.tables.items()}
        readable = set(done_at)
        end, as_of_ms = place, now_ms()
        if self.config.is_once:
            end, _ = await asyncio.to_thread(self._source.end)
            if place.order >= end.order:
                state.idle_ms = as_of_ms
                return
        composer = ChangeComposer(self.config.topic, self.config.tag_by)
        begin = place
        stream = BinlogStream(self.config.source, place, self._filter, self._charsets)
        async with _Reading(stream) as reading:
            while (items := await reading.take(self._stopping)) is not None:
                for item in items:
                    if isinstance(item, TransactionBegin):
                        begin = item.place
                    elif isinstance(item, RowChange):
                        if begin.order < done_at.get(item.name, (0, 0)):
                            continue  # the snapshot has it
                        if item.name not in readable:
                            await self._check_readable(item.name)
                            readable.add(item.name)
                    for made in composer.feed(item):
                        if isinstance(made, Outbound) and skip:
                            skip -= 1  # acknowledged before this run
                            continue
                        skip = 0
                        await self._add(lanes, made)
                        if self.config.is_once and isinstance(made, Checkpoint):
                            if made.is_idle:
                                return
                            if made.place.order >= end.order:
                                await lanes.drain()
                                state.idle_ms = as_of_ms
                                return

    async def _check_readable(self, name: str) -> None:
        """Check a table that the snapshot did not have: it is new, or the user may not read it."""
        if self.config.has_snapshot:
            await asyncio.to_thread(self._source.check_readable, name)

    # -- progress --------------------------------------------------------------------------------------------------

    def _acknowledged(self, item: Outbound | Checkpoint, _: int) -> None:
        state = self.state
        self._progress_s = time.monotonic()
        self._dirty = True
        if isinstance(item, Outbound):
            op = item.message.properties["BINLOG_OP"]
            state.counts[op] = state.counts.get(op, 0) + 1
            if op != "snapshot":
                state.done += 1
            return
        state.place, state.done = str(item.place), 0
        if item.is_idle:
            state.idle_ms = now_ms()
            return
        state.event_ms = item.time_ms
        if item.gtid:
            state.gtids = with_gtid(state.gtids, item.gtid)

    def _state_writer(self) -> Callable[[], None] | None:
        if self._state is None:
            return None
        self._state.saved_ms = now_ms()
        saved = deepcopy(self._state)
        return lambda: save_state(self.config.state, saved)

    def _source_to_check(self) -> str:
        return f"the server at {self.config.source.shown}"

    def _progress(self) -> tuple[int, dict[str, Any]]:
        state = self.state
        return Counter(state.counts).total(), {"place": state.place, "lag_ms": state.lag_ms(now_ms())}


def _remedy(item: Outbound | Checkpoint) -> str:
    """Return what a refused message is, and what to do."""
    assert isinstance(item, Outbound), "a checkpoint is not sent"
    return (
        f"the message of {item.name}, key {item.key or 'none'}, order {item.order}, has a body of "
        f"{len(item.message.body)} bytes: if it is too large, raise body_size_max of [producer] and maxMessageSize of "
        "the brokers, or leave a column out (--exclude-column)"
    )


def _different(found: dict[str, Any], known: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a run that do not fit its state, and those of the state. More may be left out, not less."""
    names = [
        name
        for name, value in found.items()
        if value != known.get(name) and not (name in GROWING and set(value) >= set(known.get(name, ())))
    ]
    return {name: found[name] for name in names}, {name: known.get(name) for name in names}


class _Reading:
    """Reads a stream in a thread, a bounded part ahead."""

    def __init__(self, stream: BinlogStream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()
        self._room = threading.Condition()
        self._items: deque[BinlogItem] = deque()
        self._size = 0
        self._is_closed = False
        self._is_ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="binlog", daemon=True)

    async def __aenter__(self) -> _Reading:
        self._thread.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with self._room:
            self._is_closed = True
            self._room.notify()
        self._stream.close()
        await asyncio.to_thread(self._thread.join)

    async def take(self, stop: asyncio.Event) -> list[BinlogItem] | None:
        """Return what was read, at least one; None: stop is set. SourceAway, BinlogError."""
        stopping = asyncio.create_task(stop.wait())
        filled = asyncio.create_task(self._filled.wait())
        try:
            await asyncio.wait((stopping, filled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            filled.cancel()
        if stop.is_set():
            return None
        with self._room:
            self._filled.clear()
            items = list(self._items)
            self._items.clear()
            self._size = 0
            self._room.notify()
            if self._is_ended:
                self._filled.set()
        if not items and self._error is not None:
            raise self._error
        return items

    def _read(self) -> None:
        try:
            for item in self._stream.items():
                if not self._put(item):
                    return
            self._error = SourceAway("the server ended its binlog")
        except BaseException as error:
            self._error = error
        finally:
            with self._room:
                self._is_ended = True
            self._wake()

    def _put(self, item: BinlogItem) -> bool:
        size = item.size if isinstance(item, RowChange) else 0
        with self._room:
            while self._items and (len(self._items) >= READ_COUNT or self._size + size > READ_SIZE):
                if self._is_closed:
                    return False
                self._room.wait()
            was_empty = not self._items
            self._items.append(item)
            self._size += size
        if was_empty:
            self._wake()
        return not self._is_closed

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._filled.set)
