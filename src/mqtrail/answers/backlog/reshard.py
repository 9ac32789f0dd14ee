"""Copies what a group has not consumed into a topic with more queues; messages of one order key stay in order.

    plan_reshard -> begin (topic, offsets, progress file) -> rounds: read a chunk of each queue, send it, save -> result

Order: a source queue has one reader, and its messages for one target queue are sent one after the other. A key is
always in the same target queue. So a key keeps its order if all its messages are in one source queue.

Once: the progress file is saved when all sends of a round are acknowledged. Each copy names its source position in the
property COPIED_FROM. A run that goes on after a failure first reads what the target got since the last save, and skips
those copies. A send without an answer that the broker stores only after that is there twice, with one id and one
COPIED_FROM.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from mqtrail.client import (
    Admin,
    InvalidMessage,
    Message,
    MessageQueue,
    Producer,
    RouteNotFound,
    by_hash,
)
from mqtrail.net import replace_file
from mqtrail.wire import (
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    MessageExt,
    MQError,
    TopicConfig,
    copy_for_topic,
    parse_place,
    place_text,
)

COPIED_FROM: Final = "COPIED_FROM"
CHUNK_COUNT: Final = 256  # messages of one source queue in a round
CHUNK_SIZE: Final = 1024 * 1024  # bytes of bodies after which a chunk is not extended
READERS: Final = 8  # source queues whose chunks are in memory at once
DOUBTFUL_MAX: Final = 4 * CHUNK_COUNT  # copies of one source queue that a run may find behind the last save
LOOKED_AT: Final = 256  # first messages of each queue whose keys a plan looks at
LEFT_OUT_MAX: Final = 100  # places of messages that cannot be copied, in the progress file
ROUTE_WAIT_S: Final = 30.0


class ReshardRefused(MQError):
    """The copy would not be what it promises. Nothing was copied."""


@dataclass(frozen=True, slots=True)
class ReshardSource:
    """A source queue: [next_offset, end_offset) is to be copied, as far as the queue keeps it."""

    place: str
    next_offset: int
    end_offset: int

    @property
    def count(self) -> int:
        """How many messages, of all tags."""
        return self.end_offset - self.next_offset


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Where the keys of the first messages come from. distinct: different keys. largest: share of the most frequent."""

    looked_at: int = 0
    by_property: Mapping[str, int] = field(default_factory=dict)
    without: int = 0
    distinct: int = 0
    largest: float | None = None


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """What a run would do. is_resumed: a progress file exists. is_new: the target topic is to be created."""

    group_name: str
    topic: str
    target: str
    queue_count: int
    key_property: str
    brokers: tuple[str, ...]
    sources: tuple[ReshardSource, ...]
    keys: KeyCounts
    is_resumed: bool
    is_new: bool
    members: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many messages are to be copied."""
        return sum(one.count for one in self.sources)


@dataclass(slots=True)
class ReshardProgress:
    """The progress file. next: by source queue, the first offset that is not copied. targets: by target queue, in the
    order of the hash, the offset before which there is no copy that `next` does not count."""

    group_name: str
    topic: str
    target: str
    queue_count: int
    key_property: str
    first: dict[str, int]
    next: dict[str, int]
    targets: dict[str, int]
    copied_count: int = 0
    expired_count: int = 0
    left_out_count: int = 0
    left_out: list[str] = field(default_factory=list)


def order_key(message: MessageExt, key_property: str) -> str:
    """Return the key whose messages stay in order: of the property, or else the sharding key, or else KEYS; or ''."""
    found = message.properties
    if key_property:
        return found.get(key_property, "")
    return found.get(PROPERTY_SHARDING_KEY) or found.get(PROPERTY_KEYS, "")


def target_queue(queues: Sequence[MessageQueue], copy: Message, key: str, queue_offset: int) -> MessageQueue:
    """Return the queue of a key, as producers with an order key choose it; without a key, one queue after the other."""
    chosen = by_hash(key)(queues, copy) if key else queues[queue_offset % len(queues)]
    assert chosen is not None, "a hash always chooses"
    return chosen


# -- the progress file -------------------------------------------------------------------------------------------------


def read_progress(path: Path) -> ReshardProgress | None:
    """Return the progress; None: there is no file. ReshardRefused: it is none. OSError."""
    try:
        values = json.loads(path.read_text("utf-8"))
        ReshardProgress(**values)  # TypeError: other fields
        return msgspec.convert(values, ReshardProgress)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise ReshardRefused(
            f"found {type(error).__name__} in {str(path)!r}, expected a progress file of `mqtrail backlog reshard`"
        ) from None


def save_progress(path: Path, progress: ReshardProgress) -> None:
    """Replace the file, durable. OSError."""
    replace_file(path, json.dumps(asdict(progress)).encode())


# -- the plan ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardWish:
    """What an operator asks for. queue_count: of each broker of the topic. key_property: '' for the default."""

    group: str
    topic: str
    target: str
    queue_count: int
    key_property: str = ""


async def plan_reshard(admin: Admin, wish: ReshardWish, progress: ReshardProgress | None) -> ReshardPlan:
    """Return what a run would do now. ReshardRefused, MQError."""
    if wish.target == wish.topic:
        raise ReshardRefused(f"found the topic {wish.topic!r} as its own target, expected another one")
    if progress is not None:
        _check_same(wish, progress)
    queues = await admin.queues(wish.topic)
    brokers = tuple(sorted({one.broker_name for one in queues}))
    is_new = await _is_new(admin, wish, brokers, is_resumed=progress is not None)
    sources = [await _source(admin, wish.group, queue, progress) for queue in queues]
    return ReshardPlan(
        wish.group,
        wish.topic,
        wish.target,
        wish.queue_count,
        wish.key_property,
        brokers,
        tuple(sources),
        await _key_counts(admin, wish, sources),
        progress is not None,
        is_new,
        await _members(admin, wish),
    )


def _check_same(wish: ReshardWish, progress: ReshardProgress) -> None:
    asked = (wish.group, wish.topic, wish.target, wish.queue_count, wish.key_property)
    known = (progress.group_name, progress.topic, progress.target, progress.queue_count, progress.key_property)
    if asked != known:
        raise ReshardRefused(
            f"found a progress file of group, topic, target, queues and key {known}, expected {asked}: "
            "pass --progress with another file"
        )


async def _is_new(admin: Admin, wish: ReshardWish, brokers: Iterable[str], *, is_resumed: bool) -> bool:
    """Return whether the target is to be created. ReshardRefused: it exists, and is not what is needed."""
    try:
        queues = await admin.queues(wish.target)
    except RouteNotFound:
        if is_resumed:
            raise ReshardRefused(f"found no topic {wish.target!r}, but a progress file of copies to it") from None
        return True
    counts = Counter(one.broker_name for one in queues)
    expected = dict.fromkeys(brokers, wish.queue_count)
    if counts != expected:
        raise ReshardRefused(f"found topic {wish.target!r} with queues {dict(counts)}, expected {expected}")
    if not is_resumed:
        for queue in queues:
            if await admin.max_offset(queue) > 0:
                raise ReshardRefused(
                    f"found messages in topic {wish.target!r} and no progress file, expected an empty topic: "
                    "pass --progress with the file of the earlier run, or another topic"
                )
    return False


async def _source(admin: Admin, group: str, queue: MessageQueue, progress: ReshardProgress | None) -> ReshardSource:
    place = queue.place
    first, end = await admin.min_offset(queue), await admin.max_offset(queue)
    known = None if progress is None else progress.next.get(place)
    if known is None:
        known = await admin.consumer_offset(group, queue)
    if known is None and first < end:
        raise ReshardRefused(
            f"found no offset of group {group!r} in {place}, so what it has not consumed is unknown: set one with "
            "`mqtrail offset set` or `mqtrail offset reset`"
        )
    if known is not None and known > end:
        raise ReshardRefused(
            f"found offset {known} of group {group!r} in {place}, expected at most its end, {end}: the queue lost "
            "messages or was created again, so what the group has not consumed is unknown: set one with "
            "`mqtrail offset set`"
        )
    return ReshardSource(place, end if known is None else known, end)


async def _members(admin: Admin, wish: ReshardWish) -> tuple[str, ...]:
    """Return the members that read the source topic."""
    gathered = await admin.group_connections(wish.group)
    for name, error in gathered.failures.items():
        raise ReshardRefused(f"broker {name!r} did not report the members of {wish.group!r}: {error}")
    return tuple(
        sorted(
            {
                member.client_id
                for one in gathered.values()
                if wish.topic in one.subscription_table
                for member in one.connection_set
            }
        )
    )


async def _key_counts(admin: Admin, wish: ReshardWish, sources: Iterable[ReshardSource]) -> KeyCounts:
    names: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    looked_at = 0
    for source in sources:
        queue, left = MessageQueue.at(wish.topic, source.place), LOOKED_AT
        async for message in admin.messages_of_queue(
            queue, source.next_offset, min(source.next_offset + left, source.end_offset)
        ):
            looked_at += 1
            key = order_key(message, wish.key_property)
            if key:
                name = wish.key_property
                if not name:
                    name = PROPERTY_SHARDING_KEY if message.properties.get(PROPERTY_SHARDING_KEY) else PROPERTY_KEYS
                names[name] += 1
                keys[key] += 1
    largest = max(keys.values()) / looked_at if keys else None
    return KeyCounts(looked_at, dict(names), looked_at - sum(keys.values()), len(keys), largest)


# -- the run -----------------------------------------------------------------------------------------------------------


async def begin_reshard(admin: Admin, producer: Producer, plan: ReshardPlan, path: Path) -> ReshardProgress:
    """Create the target topic and the group's offsets in it, and write the progress file; nothing is copied yet."""
    if plan.is_new:
        config = TopicConfig(plan.target, plan.queue_count, plan.queue_count)
        for broker in plan.brokers:
            for error in (await admin.create_topic(config, broker=broker)).failures.values():
                raise error
    queues = await _target_queues(producer, plan)
    ends = {queue.place: await admin.max_offset(queue) for queue in queues}
    for queue in queues:  # a new group would start at the end, behind the copies
        if await admin.consumer_offset(plan.group_name, queue) is None:
            await admin.set_offset(plan.group_name, queue, ends[queue.place])
    starts = {one.place: one.next_offset for one in plan.sources}
    progress = ReshardProgress(
        plan.group_name, plan.topic, plan.target, plan.queue_count, plan.key_property, starts, dict(starts), ends
    )
    save_progress(path, progress)
    return progress


async def _target_queues(producer: Producer, plan: ReshardPlan) -> list[MessageQueue]:
    """Return the queues of the target when name servers know all of them."""
    expected = plan.queue_count * len(plan.brokers)
    queues: list[MessageQueue] = []
    deadline = asyncio.get_running_loop().time() + ROUTE_WAIT_S
    while asyncio.get_running_loop().time() < deadline:
        try:
            queues = await producer.queues(plan.target)
        except RouteNotFound:
            queues = []
        if len(queues) == expected:
            return queues
        await asyncio.sleep(0.05)
    raise ReshardRefused(f"found {len(queues)} queues of {plan.target!r} in its route, expected {expected}")


class ReshardRun:
    """One run: copies up to the ends of the plan. saved: called after each round."""

    def __init__(
        self,
        admin: Admin,
        producer: Producer,
        progress: ReshardProgress,
        path: Path,
        saved: Callable[[ReshardProgress], None] = lambda _: None,
    ) -> None:
        self._admin = admin
        self._producer = producer
        self._progress = progress
        self._path = path
        self._saved = saved
        self._targets = [MessageQueue.at(progress.target, place) for place in progress.targets]
        self._ends: dict[str, int] = dict(progress.targets)  # behind the last acknowledged copy
        self._done: dict[str, set[int]] = defaultdict(set)  # offsets that were copied after the last save

    async def copy(self, plan: ReshardPlan) -> None:
        """Copy all. MQError, OSError: what is saved is copied, and the next run goes on."""
        await self._check_targets()
        await self._find_done()
        ends = {one.place: one.end_offset for one in plan.sources}
        for one in plan.sources:  # the topic may have got queues since the first run
            self._progress.first.setdefault(one.place, one.next_offset)
            self._progress.next.setdefault(one.place, one.next_offset)
        while waiting := [place for place, end in ends.items() if self._progress.next[place] < end]:
            for begin in range(0, len(waiting), READERS):
                await self._round(waiting[begin : begin + READERS], ends)

    async def _check_targets(self) -> None:
        queues = await self._producer.queues(self._progress.target)
        if queues != self._targets:
            raise ReshardRefused(
                f"found queues {[one.place for one in queues]} of {self._progress.target!r}, expected those of the "
                f"progress file, {list(self._progress.targets)}: a key would change its queue"
            )

    async def _find_done(self) -> None:
        """Find the copies that the target got after the last save: at most about a chunk of each source queue."""
        for target in self._targets:
            end = self._ends[target.place] = await self._admin.max_offset(target)
            async for message in self._admin.messages_of_queue(target, self._progress.targets[target.place], end):
                try:
                    queue, offset = parse_place(message.properties.get(COPIED_FROM, ""))
                except ValueError:
                    continue
                place = queue.place
                is_open = offset >= self._progress.next.get(place, offset + 1)
                if queue.topic == self._progress.topic and is_open and len(self._done[place]) < DOUBTFUL_MAX:
                    self._done[place].add(offset)
        self._done = defaultdict(set, {place: offsets for place, offsets in self._done.items() if offsets})

    async def _round(self, places: Sequence[str], ends: Mapping[str, int]) -> None:
        """Copy a chunk of each queue, then save. If one fails, the others are finished and nothing is saved."""
        results = await asyncio.gather(*(self._chunk(one, ends[one]) for one in places), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure
        progress = self._progress
        for place, chunk in zip(places, results, strict=True):
            assert isinstance(chunk, _Chunk)
            progress.next[place] = chunk.next_offset
            progress.copied_count += chunk.copied_count
            progress.expired_count += chunk.expired_count
            progress.left_out_count += len(chunk.left_out)
            progress.left_out += chunk.left_out[: LEFT_OUT_MAX - len(progress.left_out)]
            self._done.pop(place, None)
        if not self._done:  # else copies of queues of a later round are in doubt still
            progress.targets |= self._ends
        save_progress(self._path, progress)
        self._saved(progress)

    async def _chunk(self, place: str, end: int) -> _Chunk:
        """Copy the next messages of one source queue."""
        queue, first = MessageQueue.at(self._progress.topic, place), self._progress.next[place]
        start = max(first, await self._admin.min_offset(queue))
        chunk = _Chunk(min(max(start, first), end), expired_count=min(start, end) - first)
        lanes: dict[MessageQueue, list[Message]] = defaultdict(list)
        size = 0
        limit = min(end, chunk.next_offset + CHUNK_COUNT)
        async with aclosing(self._admin.messages_of_queue(queue, chunk.next_offset, limit)) as found:
            async for message in found:
                chunk.next_offset = message.queue_offset + 1
                size += len(message.body)
                if message.queue_offset in self._done[place]:
                    chunk.copied_count += 1
                elif message.undecodable is not None:
                    chunk.left_out.append(place_text(queue, message.queue_offset))
                else:
                    source = place_text(queue, message.queue_offset)
                    copy = copy_for_topic(message, self._progress.target, {COPIED_FROM: source})
                    key = order_key(message, self._progress.key_property)
                    lanes[target_queue(self._targets, copy, key, message.queue_offset)].append(copy)
                if size >= CHUNK_SIZE:
                    break
            else:
                chunk.next_offset = limit
        sent = await asyncio.gather(*(self._lane(*lane) for lane in lanes.items()), return_exceptions=True)
        for copies, refused in zip(lanes.values(), sent, strict=True):
            if isinstance(refused, BaseException):
                raise refused
            chunk.left_out += refused
            chunk.copied_count += len(copies) - len(refused)
        return chunk

    async def _lane(self, target: MessageQueue, copies: Sequence[Message]) -> list[str]:
        """Send the copies for one target queue, one after the other; return the places of those that cannot be sent."""
        refused = []
        for copy in copies:
            try:
                result = await self._producer.send(copy, queue=target)
            except InvalidMessage:  # for example, its properties and COPIED_FROM together are too long
                refused.append(copy.properties[COPIED_FROM])
                continue
            place = target.place
            self._ends[place] = max(self._ends[place], result.queue_offset + 1)
        return refused


@dataclass(slots=True)
class _Chunk:
    next_offset: int
    copied_count: int = 0
    expired_count: int = 0
    left_out: list[str] = field(default_factory=list)
