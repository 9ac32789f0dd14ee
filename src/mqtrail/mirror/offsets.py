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
from .run import source_text, topic_of
from .source import answers
from .state import FILES, MirrorState, read_mirror

PROBE_COUNT: Final = 65_536  # messages that a search reads to find the next copy; what is beyond is unknown
APPLY: Final = "`mqtrail mirror offsets --apply`"
COUNT_MAX: Final = 100_000  # messages of a queue that are read to count those that are repeated, or skipped


@dataclass(frozen=True, slots=True)
class MirroredPlace:
    """What becomes of a group's offset on a queue of the target. before: None: it has none.

    after: written, or kept; None: it has none, and which one is right is unknown. repeated: messages from there on that
    the group has consumed in the source. skipped: messages before it that are no copies, and that the group does not
    get. Of both, at most COUNT_MAX messages are looked at. is_kept: nothing is written, because the group is there, or
    further, or because nothing is known. written: what the last apply wrote. error: why it could not be written.
    """

    queue: str
    before: int | None
    after: int | None
    end: int
    written: int | None = None
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
    def changes(self) -> dict[MessageQueue, int]:
        """What an apply writes, by queue of the target."""
        wanted = {MessageQueue.at(self.topic, one.queue): one.after for one in self.queues if not one.is_kept}
        return {queue: after for queue, after in wanted.items() if after is not None}

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

    @property
    def file(self) -> Path:
        """The file with what the applies of the group have written."""
        return self.folder / f"offsets-{self.target_group}.json"


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
    written = _read_written(wanted.file)
    found = []
    for topic in wanted.topics or tuple(state.queues):
        committed, kept = await _committed(source, wanted.group, topic)
        _check_known(state, committed)
        if committed:
            translation = _Topic(wanted, state, topic, committed, kept, target, written.get(topic, {}))
            found.append(await translation.translate())
    if not found:
        raise MirrorError(
            f"found no offsets of group {wanted.group!r} on the topics {', '.join(wanted.topics or state.queues)} in "
            "the source, expected some: check the names of group and topics"
        )
    if not wanted.is_applied:
        return found
    if any(one.changes for one in found):
        await _check_apply(wanted, found, target)
    applied = [await _written(one, target) for one in found]
    for one in applied:
        written[one.topic] = {place.queue: place.written for place in one.queues if place.written is not None}
    FILES.save(wanted.file, {"topics": written})
    return applied


async def _check_apply(wanted: MirroredOffsets, found: Sequence[MirroredGroup], target: Admin) -> None:
    """Check that the group may be moved, and loses nothing. MirrorError, MQError."""
    await check_group(target, wanted.target_group, MirrorError)
    missing, skipped = sum(one.missing for one in found), sum(one.skipped for one in found)
    if (missing or skipped) and not wanted.may_lose:
        raise MirrorError(
            f"found about {missing} messages without a copy that the group has not consumed, and {skipped} messages of "
            "other producers before its place, expected none: the group would never get them: let it consume them in "
            "the source first, or move producers after groups; --accept-loss goes without them"
        )


def _read_written(path: Path) -> dict[str, dict[str, int]]:
    """Return what the applies of a group have written, by topic and queue of the target. MirrorError: damaged."""
    content = FILES.read(path, APPLY)
    with FILES.content_of(path, APPLY):
        found = content["topics"] if content else {}
        return {topic: {queue: int(at) for queue, at in places.items()} for topic, places in found.items()}


def _check_known(state: MirrorState, committed: Mapping[str, int]) -> None:
    """Check that the mirror has seen the queues of a group: it does not know what it will copy of others."""
    if unseen := sorted(committed.keys() - state.next_offsets.keys()):
        raise MirrorError(
            f"found an offset of the group on queue {unseen[0]} of the source, which the mirror has not read yet: run "
            "`mqtrail mirror run` until it has, then try again"
        )


async def _committed(source: Admin, group: str, topic: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return, by queue of the source, the next offset that the group wants; and of queues on which it has no offset,
    the first one that is kept: what it has consumed there is unknown, so it may lack all."""
    committed, kept = {}, {}
    with answers(f"offsets of group {group!r} on topic {topic!r}"):
        for queue in await source.queues(topic):
            offset = await source.consumer_offset(group, queue)
            if offset is None:
                kept[source_text(queue)] = await source.min_offset(queue)
            else:
                committed[source_text(queue)] = offset
    return committed, kept


async def _written(found: MirroredGroup, target: Admin) -> MirroredGroup:
    errors: dict[str, str] = {}
    if found.changes:
        _, failures = await target.set_offsets(found.target_group, found.changes)
        errors = {queue.place: str(error) for queue, error in failures.items()}
    queues = []
    for one in found.queues:
        if one.queue in errors:
            one = replace(one, error=errors[one.queue])
        elif not one.is_kept:
            one = replace(one, written=one.after)
        queues.append(one)
    return replace(found, queues=queues, is_applied=True)


@dataclass(slots=True)
class _Topic:
    """A topic of one translation. committed: by queue of the source. kept: the first offset of those without one.

    written: by queue of the target, by the last apply.
    """

    wanted: MirroredOffsets
    state: MirrorState
    topic: str
    committed: Mapping[str, int]
    kept: Mapping[str, int]
    target: Admin
    written: Mapping[str, int]

    async def translate(self) -> MirroredGroup:
        """Return what would be written. MQError."""
        sources = [name for name in self.state.pairs if topic_of(name) == self.topic]
        firsts: dict[str, int | None] = {}  # by source queue, the first message with a copy; None: unknown
        lacking: set[str] = set()  # source queues whose place in the target is not one that an apply wrote
        places = []
        for queue in await self.target.queues(self.topic):
            of_it = [
                name for name in sources if self.topic in self.state.keyed or self.state.pairs[name] == queue.place
            ]
            place = await self._place(queue, of_it, firsts)
            places.append(place)
            if not (place.is_kept and place.written is not None and not place.error):
                lacking.update(of_it)
        missing = 0
        for name in lacking:
            first = firsts.get(name, self.state.next_offsets[name])
            missing += 0 if first is None else max(0, first - self._wants(name))
        behind = sum(max(0, at - self.state.next_offsets[name]) for name, at in self.committed.items())
        group, target_group = self.wanted.group, self.wanted.target_group
        return MirroredGroup(
            group, target_group, self.topic, dict(self.committed), behind, missing, places, False, now_ms()
        )

    def _wants(self, name: str) -> int:
        """Return the next offset that the group wants. A queue that the source has no more has no first one either."""
        return self.committed.get(name, self.kept.get(name, self.state.starts[name]))

    async def _place(self, queue: MessageQueue, sources: Sequence[str], firsts: dict[str, int | None]) -> MirroredPlace:
        """Return the place in a queue of the target that has copies of these queues of the source."""
        first, end = await self.target.min_offset(queue), await self.target.max_offset(queue)
        found, unknown = {}, []
        for name in sources:
            seen = await self._first_copy(queue, name, first, end)
            if seen is not None:
                known = firsts.get(name)
                firsts[name] = seen if known is None else min(seen, known)
                found[name] = await self._after_consumed(queue, name, first, end)
            elif end - first > PROBE_COUNT:
                firsts.setdefault(name, None)
                unknown.append(name)
        before = await self.target.consumer_offset(self.wanted.target_group, queue)
        place = MirroredPlace(queue.place, before, before, end, self.written.get(queue.place), is_kept=True)
        if not found:
            return self._without_copies(place, first, unknown)
        # Copies that the search did not reach are behind what it has read.
        found |= dict.fromkeys(unknown, first + PROBE_COUNT)
        name = min(found, key=lambda one: found[one])
        after = await self._pass_consumed(queue, found[name], max(found.values()))
        at = self.committed.get(name)
        reason = f"{name}: {'no offset' if at is None else f'{at} is next'}"
        if before == after:
            return replace(place, reason=f"{reason}; the group is there", written=after)
        if before is not None and before > after and not self.wanted.may_rewind:
            if place.written is not None and place.written <= after:
                return replace(place, reason=f"{reason}; the group has consumed further since the last apply")
            kept = f"the group is at {before} already, not by an apply: --rewind moves it to {after}"
            return replace(place, reason=f"{reason}; {kept}", error=kept)
        place = replace(place, after=after, reason=reason, is_kept=False)
        repeated = await self._count_consumed(queue, after, max(found.values(), default=after))
        skipped = await self._count_others(queue, max(first, min(before or 0, after)), after)
        return replace(place, repeated=repeated, skipped=skipped)

    @staticmethod
    def _without_copies(place: MirroredPlace, first: int, unknown: Sequence[str]) -> MirroredPlace:
        """Return a place in a queue where no copy was found: a group without an offset begins at its beginning."""
        if unknown:
            error = (
                f"found no copy in its first {PROBE_COUNT} messages, so where the group continues is unknown: set it "
                "with `mqtrail offset set`"
            )
            return replace(place, reason=error, error="" if place.written is not None else error)
        if place.before is not None:
            return replace(place, reason="it has no copies: the group stays where it is")
        return replace(place, after=first, reason="it has no copies: its beginning", is_kept=False)

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
