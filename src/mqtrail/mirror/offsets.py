"""Translates the offsets of a group of the source to the target, by the place in the source that each copy has.

Never ahead: the group begins after the last copy that it has consumed with all before it, so it gets each copy that it
has not consumed. In a queue with copies of one queue of the source, it gets none again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mqtrail.client import Admin, MessageQueue
from mqtrail.clock import now_ms
from mqtrail.feed import check_group

from .model import MirrorError, origin_of
from .run import source_text
from .source import answers
from .state import MirrorState, read_mirror

PROBE_COUNT: Final = 65_536  # messages that a search reads to find the next copy; beyond, the group begins before them
COUNT_MAX: Final = 100_000  # messages of a queue that are read to count those that are repeated, or skipped


@dataclass(frozen=True, slots=True)
class MirroredPlace:
    """What becomes of a group's offset on a queue of the target. before: None: it has none. after: written, or kept.

    repeated: messages from there on that the group has consumed in the source. skipped: messages before it that are no
    copies, and that the group does not get. Of both, at most COUNT_MAX messages are looked at. is_kept: nothing is
    written, because the group is there, or further. error: why it could not be written.
    """

    queue: str
    before: int | None
    after: int
    end: int
    repeated: int = 0
    skipped: int = 0
    reason: str = ""
    is_kept: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class MirroredGroup:
    """The offsets of a group on a topic. committed: in the source, by queue.

    behind: messages it consumed there that the mirror has yet to copy: the group gets them again. missing: about how
    many that it lacks have no copy: from before the start of the mirror, expired, or left out. is_applied: the offsets
    were written, except those with an error.
    """

    source_group: str
    target_group: str
    topic: str
    committed: dict[str, int]
    behind: int
    missing: int
    queues: list[MirroredPlace]
    is_applied: bool
    at_ms: int

    @property
    def repeated(self) -> int:
        """Messages that the group gets again, besides those of `behind`."""
        return sum(one.repeated for one in self.queues)

    @property
    def skipped(self) -> int:
        """Messages of other producers that the group does not get."""
        return sum(one.skipped for one in self.queues)

    @property
    def is_complete(self) -> bool:
        """Whether each queue has its offset."""
        return self.is_applied and not any(one.error for one in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredOffsets:
    """What to translate. topics: () for all of the mirror. may_rewind: also where the group is further already.

    may_lose: also if there are messages that the group would never get.
    """

    folder: Path
    group: str
    target_group: str
    topics: tuple[str, ...] = ()
    is_applied: bool = False
    may_rewind: bool = False
    may_lose: bool = False


async def mirrored_offsets(wanted: MirroredOffsets, source: Admin, target: Admin) -> list[MirroredGroup]:
    """Translate the offsets of a group, topic by topic, and write them if is_applied. MQError, OSError."""
    state = read_mirror(wanted.folder)
    if state is None:
        raise MirrorError(
            f"found no mirror in {str(wanted.folder)!r}, expected its state: start `mqtrail mirror run`, or pass its "
            "--folder"
        )
    if unknown := sorted(set(wanted.topics) - set(state.queues)):
        raise MirrorError(f"found no topic {unknown[0]!r} in the mirror, expected one of {', '.join(state.queues)}")
    if wanted.is_applied:
        await check_group(target, wanted.target_group, MirrorError)
    found = []
    for topic in wanted.topics or tuple(state.queues):
        committed = await _committed(source, wanted.group, topic)
        if committed:
            found.append(await _Topic(wanted, state, topic, committed, target).translate())
    if not found:
        raise MirrorError(
            f"found no offsets of group {wanted.group!r} on the topics {', '.join(wanted.topics or state.queues)} in "
            "the source, expected some: check the names of group and topics"
        )
    if not wanted.is_applied:
        return found
    missing, skipped = sum(one.missing for one in found), sum(one.skipped for one in found)
    if (missing or skipped) and not wanted.may_lose:
        raise MirrorError(
            f"found about {missing} messages without a copy that the group has not consumed, and {skipped} messages of "
            "other producers before its place, expected none: the group would never get them: let it consume them in "
            "the source first, or move producers after groups; --accept-loss goes without them"
        )
    return [await _written(one, target) for one in found]


async def _committed(source: Admin, group: str, topic: str) -> dict[str, int]:
    """Return, by queue of the source, the next offset that the group wants."""
    with answers(f"offsets of group {group!r} on topic {topic!r}"):
        offsets = {queue: await source.consumer_offset(group, queue) for queue in await source.queues(topic)}
    return {source_text(queue): offset for queue, offset in offsets.items() if offset is not None}


async def _written(found: MirroredGroup, target: Admin) -> MirroredGroup:
    offsets = {MessageQueue.at(found.topic, one.queue): one.after for one in found.queues if not one.is_kept}
    _, failures = await target.set_offsets(found.target_group, offsets)
    errors = {queue.place: str(error) for queue, error in failures.items()}
    queues = [replace(one, error=errors.get(one.queue, one.error)) for one in found.queues]
    return replace(found, queues=queues, is_applied=True)


@dataclass(slots=True)
class _Topic:
    """A topic of one translation. committed: by queue of the source; one that is not there has consumed nothing."""

    wanted: MirroredOffsets
    state: MirrorState
    topic: str
    committed: Mapping[str, int]
    target: Admin

    async def translate(self) -> MirroredGroup:
        """Return what would be written. MQError."""
        sources = [name for name in self.state.pairs if name.partition("@")[0] == self.topic]
        firsts: dict[str, int] = {}  # by source queue, the first message with a copy
        places = []
        for queue in await self.target.queues(self.topic):
            of_it = [
                name for name in sources if self.topic in self.state.keyed or self.state.pairs[name] == queue.place
            ]
            places.append(await self._place(queue, of_it, firsts))
        missing = sum(
            max(0, firsts.get(name, self.state.next_offsets.get(name, 0)) - self._wants(name)) for name in sources
        )
        behind = sum(max(0, at - self.state.next_offsets.get(name, 0)) for name, at in self.committed.items())
        group, target_group = self.wanted.group, self.wanted.target_group
        return MirroredGroup(
            group, target_group, self.topic, dict(self.committed), behind, missing, places, False, now_ms()
        )

    def _wants(self, name: str) -> int:
        return self.committed.get(name, self.state.starts.get(name, 0))

    async def _place(self, queue: MessageQueue, sources: Sequence[str], firsts: dict[str, int]) -> MirroredPlace:
        """Return the place in a queue of the target that has copies of these queues of the source."""
        first, end = await self.target.min_offset(queue), await self.target.max_offset(queue)
        found = {}
        for name in sources:
            seen = await self._first_copy(queue, name, first, end)
            if seen is not None:
                firsts[name] = min(seen, firsts.get(name, seen))
                found[name] = await self._after_consumed(queue, name, first, end)
        after, reason = first, "it has no copies: its beginning"
        if found:
            name = min(found, key=lambda one: found[one])
            after = await self._pass_consumed(queue, found[name], max(found.values()))
            at = self.committed.get(name)
            reason = f"{name}: {'no offset' if at is None else f'{at} is next'}"
        before = await self.target.consumer_offset(self.wanted.target_group, queue)
        place = MirroredPlace(queue.place, before, after, end, reason=reason)
        if before == after:
            return replace(place, reason=f"{reason}; the group is there", is_kept=True)
        if before is not None and before > after and not self.wanted.may_rewind:
            kept = f"the group is at {before} already: --rewind moves it to {after}"
            return replace(place, after=before, reason=f"{reason}; {kept}", is_kept=True, error=kept)
        repeated = await self._count_consumed(queue, after, max(found.values(), default=after))
        skipped = await self._count_others(queue, max(first, min(before or 0, after)), after)
        return replace(place, repeated=repeated, skipped=skipped)

    async def _after_consumed(self, queue: MessageQueue, name: str, first: int, end: int) -> int:
        """Return the offset after the last copy that is consumed: copies of one queue are in order."""
        low, high = first, end
        while low < high:
            middle = (low + high) // 2
            offset = await self._first_copy(queue, name, middle, end)
            if offset is None or offset >= self._wants(name):
                high = middle
            else:
                low = middle + 1
        return low

    async def _first_copy(self, queue: MessageQueue, name: str, begin: int, end: int) -> int | None:
        """Return the offset in the source of the first copy of a queue; None: there is none in PROBE_COUNT messages."""
        async with aclosing(self._origins(queue, begin, min(end, begin + PROBE_COUNT))) as found:
            async for source, offset in found:
                if source == name:
                    return offset
        return None

    async def _pass_consumed(self, queue: MessageQueue, begin: int, end: int) -> int:
        """Return the offset of the first message that is not a consumed copy: those of other queues may be there."""
        at = begin
        async with aclosing(self._origins(queue, begin, min(end, begin + COUNT_MAX))) as found:
            async for source, offset in found:
                if source is None or offset >= self._wants(source):
                    break
                at += 1
        return at

    async def _count_consumed(self, queue: MessageQueue, begin: int, end: int) -> int:
        count = 0
        async with aclosing(self._origins(queue, begin, min(end, begin + COUNT_MAX))) as found:
            async for source, offset in found:
                count += source is not None and offset < self._wants(source)
        return count

    async def _count_others(self, queue: MessageQueue, begin: int, end: int) -> int:
        count = 0
        async with aclosing(self._origins(queue, max(begin, end - COUNT_MAX), end)) as found:
            async for source, _ in found:
                count += source is None
        return count

    async def _origins(self, queue: MessageQueue, begin: int, end: int) -> AsyncGenerator[tuple[str | None, int]]:
        """Yield, of the messages of a queue, the queue of the source, None for no copy, and the offset there."""
        async with aclosing(self.target.messages_of_queue(queue, begin, end)) as messages:
            async for message in messages:
                origin = origin_of(message.properties, self.state.source)
                if origin is None or origin.queue.topic != self.topic:
                    yield None, 0
                else:
                    yield source_text(origin.queue), origin.offset
