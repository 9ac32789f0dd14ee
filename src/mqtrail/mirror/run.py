"""The mirror: the messages of topics of one cluster in the same topics of another one, until it is stopped.

    check both sides and the state -> find what the target has already -> read -> lanes -> acknowledged -> state

At least once: the state has what brokers acknowledged. A run that follows on one that was killed reads the copies which
that one sent after its last save, at most LOOK_COUNT messages of each queue, and does not send them again. What is
left: a send whose answer was lost is repeated, and may be stored twice; both have one id and one MIRROR_FROM.

No loop: a message that came through the target, or through the source before, is left out.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqtrail.client import Admin, InstanceConfig, Producer, ProducerConfig, by_hash
from mqtrail.clock import now_ms
from mqtrail.feed import Feed, Lanes, queues_of
from mqtrail.net import Log
from mqtrail.wire import PROPERTY_SHARDING_KEY, Message, MessageExt, MessageQueue, place_text

from .model import ClusterAway, MirrorError, copy_of, origin_of, path_of
from .source import MirrorSource, QueuePart, SourceRanges, answers
from .state import FILES, SKIPPED_COUNT, MirrorState, read_mirror, save_mirror

log = Log()

PRODUCER_GROUP: Final = "mqtrail-mirror"
ENDS_S: Final = 1.0  # between two questions for the ends of the source, while there is something to read
POLL_S: Final = 0.2  # the same, while there is nothing
ASKING_SHARE: Final = 4  # of both: at least so many times as long as the answers took, with many topics
LOOK_COUNT: Final = 65_536  # messages of a queue of the target that a run reads to find copies of a killed one
FOUND_COUNT: Final = 16_384  # copies of a source queue that it may find: more than are ever on their way
TAIL_COUNT: Final = 256  # last messages of a queue of the target that a new mirror looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorConfig:
    """What a mirror is to do. source, target: names of the clusters. namesrv, instance: how to reach the source.

    start: where a new queue begins: "first", "end", or epoch ms. is_once: end where the topics ended at the start.
    only_own: leave out what another mirror brought to the source. may_lose, may_repeat, takes_new_queues: accept what
    is refused without. skip: places of messages to leave out. retry_ms: how long the source or brokers may be away.
    """

    source: str
    target: str
    topics: tuple[str, ...]
    folder: Path
    namesrv: str
    instance: InstanceConfig
    start: str | int = "first"
    skip: frozenset[str] = frozenset()
    only_own: bool = False
    may_lose: bool = False
    may_repeat: bool = False
    takes_new_queues: bool = False
    is_once: bool = False
    retry_ms: int = 300_000


class Passed(NamedTuple):
    """A message on its way, or what is left out up to next_offset. kind: what becomes of it; "": nothing to count."""

    source: str
    next_offset: int
    kind: str = ""
    place: str = ""
    stored_ms: int = 0
    target: MessageQueue | None = None


class Mirror(Feed):
    """Runs until stopped. namesrv, producer: how to reach the target."""

    NAME, AWAY, ERROR = "mirror", ClusterAway, MirrorError

    def __init__(self, config: MirrorConfig, namesrv: str, producer: ProducerConfig) -> None:
        super().__init__(namesrv, producer, config.retry_ms)
        self.config = config
        self._state: MirrorState | None = None
        self._targets: dict[str, list[MessageQueue]] = {}  # by topic, all queues of the target
        self._positions: dict[MessageQueue, int] = {}  # the next message to hand to the sender
        self._found: dict[str, set[int]] = {}  # by source queue, what the target has already
        self._reached: dict[str, int] = {}  # by target queue, the offset after the last copy that is acknowledged
        self._pairs: dict[str, MessageQueue] = {}  # those of the state
        self._spread: dict[str, list[MessageQueue]] = {}  # by topic whose messages go by key, the queues of the target
        self._is_begun = False
        self._goal: dict[MessageQueue, int] | None = None  # with is_once: the ends at the start

    @property
    def state(self) -> MirrorState:
        """The state, once the run has begun."""
        assert self._state is not None, "the run has not begun"
        return self._state

    async def run(self) -> MirrorState:
        """Run until `stop`, or with is_once to the ends of the topics; return the state. MQError, OSError."""
        with FILES.alone(self.config.folder):
            async with AsyncExitStack() as stack:
                admin = await stack.enter_async_context(Admin(self.config.namesrv, config=self.config.instance))
                target = await stack.enter_async_context(Admin(self._namesrv, config=self._producer_config.instance))
                producer = await stack.enter_async_context(
                    Producer(PRODUCER_GROUP, self._namesrv, config=self._producer_config)
                )
                expected = ", with as many queues as in the source (`mqtrail cluster import` makes them), for example"
                self._targets = {
                    topic: await queues_of(producer, topic, self.ERROR, expected) for topic in self.config.topics
                }
                lanes = Lanes(
                    producer,
                    [queue for queues in self._targets.values() for queue in queues],
                    self._acknowledged,
                    error=MirrorError,
                    remedy=_remedy,
                    retry_s=self._retry_s,
                )
                try:
                    await self._deliver(lanes, lambda: self._patiently(lambda: self._pump(lanes, admin, target)))
                finally:
                    await self._end()
            if self._state is None:
                raise MirrorError(f"stopped before the source at {self.config.namesrv} answered")
        return self.state

    async def _end(self) -> None:
        """Note that nothing is in doubt, if so: the next run then need not look for copies."""
        state = self._state
        if state is not None and all(
            state.next_offsets[source_text(queue)] == offset for queue, offset in self._positions.items()
        ):
            state.is_ended = not self._found
            await self._save()

    # -- begin -----------------------------------------------------------------------------------------------------

    async def _begin(self, source: MirrorSource, target: Admin) -> None:
        """Read and check the state, or make a new one, and find what the target has already."""
        config = self.config
        state = read_mirror(config.folder)
        ends = {queue: await target.max_offset(queue) for queues in self._targets.values() for queue in queues}
        if state is None:
            if not config.may_repeat:
                await self._check_new(target, ends)
            state = MirrorState(source=config.source, target=config.target)
        found = (config.source, config.target)
        if found != (state.source, state.target):
            raise MirrorError(
                f"found the clusters {found}, expected {(state.source, state.target)}, with which the mirror of "
                f"{str(config.folder)!r} began: pass those names, or a new --folder"
            )
        ranges = await source.ranges(list(config.topics))
        self._check_targets(state, ends)
        for topic in config.topics:
            self._check_queues(state, topic)
        if not state.is_ended:
            self._found = await self._look(state, target, ends)
        if ranges.away:  # which queues there are decides where messages go
            raise ClusterAway(f"the brokers {', '.join(ranges.away)} of the source did not answer at the start")
        self._reached = {source_text(queue): end for queue, end in ends.items()}
        if not self._found:  # else copies of messages that are not read yet are in doubt
            state.targets |= self._reached
        state.ends = {}
        starts = await self._starts(state, source, ranges)
        self._positions = {}
        # From here on nothing waits: a state with some of the queues would begin the others at their first message.
        self._note(state, starts, ranges)
        self._state = state
        if config.is_once:
            self._goal = {queue: end for queue, (_, end) in ranges.found.items()}
        state.is_ended = False
        state.started_ms = now_ms()
        await self._save()
        self._is_begun = True
        again = sum(map(len, self._found.values()))
        log.info("mirror.started", source=config.source, target=config.target, topics=len(config.topics), again=again)

    async def _check_new(self, target: Admin, ends: dict[MessageQueue, int]) -> None:
        """Check that the target has no copies from the source: without a state they would be sent again."""
        for queue, end in ends.items():
            async for message in target.messages_of_queue(queue, max(0, end - TAIL_COUNT), end):
                if origin_of(message.properties, self.config.source) is not None:
                    raise MirrorError(
                        f"found copies from {self.config.source!r} in queue {queue.place} of topic "
                        f"{queue.topic!r} of the target, expected none, since {str(self.config.folder)!r} has no "
                        "state: pass the --folder of the mirror that sent them, or --copy-again to have messages "
                        "there twice"
                    )

    def _check_targets(self, state: MirrorState, ends: dict[MessageQueue, int]) -> None:
        """Check that the target still has what was sent."""
        for queue, end in ends.items():
            known = state.targets.get(source_text(queue), 0)
            if end < known:
                raise MirrorError(
                    f"found the end {end} of queue {queue.place} of topic {queue.topic!r} of the target, "
                    f"expected {known} or more, which the mirror has sent: the topic was created again, or the "
                    "broker lost messages: begin again with an empty topic and a new --folder"
                )

    def _check_queues(self, state: MirrorState, topic: str) -> None:
        """Check that the target has the queues that the topic was spread over."""
        names = [queue.place for queue in self._targets[topic]]
        known = state.queues.get(topic)
        missing = [name for name in known or () if name not in names]
        if missing and not self.config.takes_new_queues:
            raise MirrorError(
                f"found no queue {', '.join(missing)} of topic {topic!r} in the target, expected it, since the mirror "
                "began with it: messages move to other queues, so let consumers read all first, then pass --new-queues"
            )
        if known is None or self.config.takes_new_queues:
            state.queues[topic] = names
            state.keyed = [one for one in state.keyed if one != topic]
            state.pairs = {one: pair for one, pair in state.pairs.items() if topic_of(one) != topic}

    async def _look(self, state: MirrorState, target: Admin, ends: dict[MessageQueue, int]) -> dict[str, set[int]]:
        """Return, by source queue, the offsets of copies that the target got and the state does not count."""
        found: dict[str, set[int]] = defaultdict(set)
        for queue, end in ends.items():
            begin = state.targets.get(source_text(queue), end)
            async for message in target.messages_of_queue(queue, begin, min(end, begin + LOOK_COUNT)):
                origin = origin_of(message.properties, self.config.source)
                if origin is None or origin.queue.topic != queue.topic:
                    continue
                name = source_text(origin.queue)
                if origin.offset >= state.next_offsets.get(name, 0) and len(found[name]) < FOUND_COUNT:
                    found[name].add(origin.offset)
        return {name: offsets for name, offsets in found.items() if offsets}

    async def _starts(self, state: MirrorState, source: MirrorSource, ranges: SourceRanges) -> dict[str, int]:
        """Return where each queue begins that the state does not have. ClusterAway, MirrorError."""
        known = {topic_of(name) for name in state.next_offsets}
        starts = {}
        for queue, (first, end) in ranges.found.items():
            name = source_text(queue)
            if name not in state.next_offsets:
                # A queue that its topic got later has only messages that the mirror should copy.
                starts[name] = first if queue.topic in known else await self._start_of(source, queue, first, end)
        return starts

    def _note(self, state: MirrorState, starts: dict[str, int], ranges: SourceRanges) -> None:
        """Begin new queues; note the ends; check that the source has what is next. MirrorError, ClusterAway."""
        state.starts |= starts
        state.next_offsets |= starts
        for topic in self.config.topics:
            self._pair(state, topic, [queue for queue in ranges.found if queue.topic == topic])
        for queue, (first, end) in ranges.found.items():
            name = source_text(queue)
            offset = self._positions.setdefault(queue, state.next_offsets[name])
            if end < offset:  # also a replica that lags, until its master is back
                raise ClusterAway(
                    f"found the end {end} of queue {name} of the source, expected {offset} or more, where the mirror "
                    "is: the target is ahead of its source. If no replica lags, the topic was created anew, or the "
                    "broker lost messages: begin again with an empty target and a new --folder"
                )
            if first > offset:
                self._lose(state, queue, offset, first)
            state.ends[name] = end
        state.ends_ms = now_ms()
        if state.away != ranges.away:
            log.warning("mirror.brokers_away", brokers=ranges.away, remedy="start them: their queues are not mirrored")
        state.away = ranges.away
        self._dirty = True

    def _pair(self, state: MirrorState, topic: str, queues: list[MessageQueue]) -> None:
        """Decide once for each source queue: the one at the same place; by key if the target has not as many."""
        targets = state.queues[topic]
        names = [source_text(queue) for queue in queues]
        if not any(name in state.pairs for name in names) and len(names) != len(targets):
            state.keyed = sorted({*state.keyed, topic})
        for at, name in enumerate(names):
            pair = state.pairs.setdefault(name, targets[at % len(targets)])
            self._pairs[name] = MessageQueue.at(topic, pair)
        if topic in state.keyed:
            self._spread[topic] = [MessageQueue.at(topic, one) for one in targets]

    async def _start_of(self, source: MirrorSource, queue: MessageQueue, first: int, end: int) -> int:
        """Return where a queue of a new topic begins. ClusterAway, MirrorError."""
        start = self.config.start
        if isinstance(start, int):
            return await source.at_time(queue, start)
        return first if start == "first" else end

    def _lose(self, state: MirrorState, queue: MessageQueue, offset: int, first: int) -> None:
        """Note that the source deleted the messages from offset to first before they were read. MirrorError."""
        name = source_text(queue)
        if not self.config.may_lose:
            raise MirrorError(
                f"found {first} as the first offset of queue {name} of the source, expected {offset}, which is next: "
                f"the source deleted {first - offset} messages before they were read; pass --accept-loss to continue "
                "without them, and raise fileReservedTime of its brokers"
            )
        state.lost[name] = state.lost.get(name, 0) + first - offset
        self._positions[queue] = first
        self._forget(state, name, {one for one in self._found.get(name, ()) if one < first})
        if state.next_offsets[name] == offset:  # else messages before it are on their way
            state.next_offsets[name] = first

    # -- work ------------------------------------------------------------------------------------------------------

    async def _pump(self, lanes: Lanes[Passed], admin: Admin, target: Admin) -> None:
        """Read and send until stopped, or to the goal. admin: of the source."""
        source = MirrorSource(admin)
        if not self._is_begun:
            await check_apart(admin, target, self.config)
            await self._begin(source, target)
        while not self._stopping.is_set():
            asked_s = time.monotonic()
            ranges = await source.ranges(list(self.config.topics))
            rest_s = ASKING_SHARE * (time.monotonic() - asked_s)
            self._note(self.state, await self._starts(self.state, source, ranges), ranges)
            ends = self._ends(ranges)
            if all(self._positions[queue] >= end for queue, end in ends.items()):
                if self._goal is not None:
                    self._check_goal(ranges)
                    break
                self._progress_s = time.monotonic()  # there is nothing to read; while there is, answers are none
                await self._pause(max(POLL_S, rest_s))
                continue
            until_s = time.monotonic() + max(ENDS_S, rest_s)
            positions = {queue: self._positions[queue] for queue in ends}
            reading = source.read(positions, ends, until_s, follows=self._goal is None)
            async with aclosing(reading) as parts:
                async for part in parts:
                    await self._pass(lanes, part)
                    if self._stopping.is_set():
                        break
        await lanes.drain()

    def _ends(self, ranges: SourceRanges) -> dict[MessageQueue, int]:
        """Return how far to read now."""
        ends = {queue: end for queue, (_, end) in ranges.found.items()}
        return ends if self._goal is None else {queue: end for queue, end in self._goal.items() if queue in ends}

    def _check_goal(self, ranges: SourceRanges) -> None:
        """Check that no queue is left out because its broker is away. ClusterAway."""
        known = [queue for queue in map(_queue_of, self.state.next_offsets) if queue.topic in self.config.topics]
        if missing := [source_text(queue) for queue in known if queue not in ranges.found]:
            raise ClusterAway(f"found no broker of the source for queue {', '.join(missing)}")
        if ranges.away:
            raise ClusterAway(f"the brokers {', '.join(ranges.away)} of the source did not answer")

    async def _pause(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _pass(self, lanes: Lanes[Passed], part: QueuePart) -> None:
        """Hand the messages of a part to the sender."""
        queue, name = part.queue, source_text(part.queue)
        for message in part.messages:
            unit, copy = self._unit(queue, name, message)
            if copy is None or unit.target is None:
                await lanes.add(unit)
            else:
                size = len(copy.body) + len("".join(copy.properties)) + len("".join(copy.properties.values()))
                await lanes.add(unit, copy, [unit.target], size)
            self._positions[queue] = unit.next_offset
        if self._positions[queue] < part.next_offset:  # there are no messages
            await lanes.add(Passed(name, part.next_offset))
            self._positions[queue] = part.next_offset

    def _unit(self, queue: MessageQueue, name: str, message: MessageExt) -> tuple[Passed, Message | None]:
        """Return what becomes of a message, and its copy; None: it is left out. MirrorError: it cannot be read."""
        config, offset = self.config, message.queue_offset
        place = place_text(queue, offset)
        path = path_of(message.properties)
        if place in config.skip:
            kind = "skipped"
        elif self._found and offset in self._found.get(name, ()):
            kind = "found"
        elif config.target in path or config.source in path:
            kind = "looped"
        elif path and config.only_own:
            kind = "foreign"
        elif message.undecodable is not None:
            raise MirrorError(
                f"found a message that cannot be read at {place} of the source: {message.undecodable}: leave it out "
                f"with --skip-message {place}"
            )
        else:
            copy = copy_of(message, queue.topic, config.source, place)
            to = self._pairs[name]
            if queue.topic in self._spread and (key := copy.properties.get(PROPERTY_SHARDING_KEY)):
                to = by_hash(key)(self._spread[queue.topic], copy) or to
            return Passed(name, offset + 1, "copied", place, message.store_timestamp_ms, to), copy
        return Passed(name, offset + 1, kind, place, message.store_timestamp_ms), None

    # -- progress --------------------------------------------------------------------------------------------------

    def _acknowledged(self, unit: Passed, queue_offset: int) -> None:
        state = self.state
        self._progress_s = time.monotonic()
        self._dirty = True
        state.next_offsets[unit.source] = unit.next_offset
        if not unit.kind:
            return
        state.counts[unit.kind] = state.counts.get(unit.kind, 0) + 1
        state.stored_ms = unit.stored_ms
        if unit.kind == "found":
            self._forget(state, unit.source, {unit.next_offset - 1})
        elif unit.kind == "skipped":
            log.warning("mirror.skipped", message=unit.place)
            state.skipped = [*(one for one in state.skipped if one != unit.place), unit.place][-SKIPPED_COUNT:]
        if unit.target is not None and queue_offset >= 0:
            reached = state.targets if not self._found else self._reached
            reached[source_text(unit.target)] = queue_offset + 1

    def _forget(self, state: MirrorState, name: str, offsets: set[int]) -> None:
        """Forget copies that the target has: the state counts their messages now."""
        if name in self._found:
            self._found[name] -= offsets
            if not self._found[name]:
                del self._found[name]
            if not self._found:
                state.targets |= self._reached

    def _state_writer(self) -> Callable[[], None] | None:
        if self._state is None:
            return None
        self._state.saved_ms = now_ms()
        saved = deepcopy(self._state)
        return lambda: save_mirror(self.config.folder, saved)

    def _source_to_check(self) -> str:
        return f"that the source runs at {self.config.namesrv} and that its brokers can be reached from here"

    def _progress(self) -> tuple[int, dict[str, Any]]:
        return (0, {}) if self._state is None else (sum(self._state.counts.values()), {"lag": self._state.lag()})


async def check_apart(source: Admin, target: Admin, config: MirrorConfig) -> None:
    """Check that source and target are two clusters: a mirror of a cluster on itself would not end. MQError."""
    if config.source == config.target:
        raise MirrorError(
            f"found the name {config.source!r} for both clusters, expected two: pass --source-name and --target-name, "
            "the same ones to every mirror of these clusters: the loop guard knows clusters by them"
        )
    with answers("brokers"):
        found = await source.cluster()
    addresses = [
        {address for broker in info.broker_addr_table.values() for address in broker.broker_addrs.values()}
        for info in (found, await target.cluster())
    ]
    if same := sorted(addresses[0] & addresses[1]):
        raise MirrorError(
            f"found the broker {same[0]} in both clusters, expected two: each copy would be copied again: check "
            "--source and --namesrv"
        )


async def name_of(admin: Admin, option: str) -> str:
    """Return the name of the only cluster that its name servers know. MirrorError: there are several."""
    names = sorted((await admin.cluster()).cluster_addr_table)
    if len(names) != 1:
        raise MirrorError(
            f"found the clusters {', '.join(names) or 'none'} at the name server, expected one: say with {option} how "
            "to call the one that is meant"
        )
    return names[0]


def source_text(queue: MessageQueue) -> str:
    """Return TOPIC@BROKER/QUEUE."""
    return f"{queue.topic}@{queue.place}"


def topic_of(text: str) -> str:
    """Return TOPIC of TOPIC@BROKER/QUEUE: neither has an @."""
    return text.partition("@")[0]


def _queue_of(text: str) -> MessageQueue:
    topic, _, name = text.partition("@")
    return MessageQueue.at(topic, name)


def _remedy(unit: Passed) -> str:
    """Return what a refused message is, and what to do."""
    return (
        f"it is {unit.place} of the source: if it is too large, raise body_size_max of [producer] and maxMessageSize "
        f"of the brokers; if its properties are, or to leave it out, pass --skip-message {unit.place}"
    )
