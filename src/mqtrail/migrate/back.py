"""Translates the offsets of a RocketMQ group back to the committed offsets of a Kafka group.

Never ahead: the Kafka group gets every record that the group has not consumed in RocketMQ; it may get some again.

- Of the bridge: by the offset map, the minimum over the queues; where the group has passed all that the map knows, the
  bridge's next offset.
- Of a tee with Kafka deciding: the bridge's next offset, until a comparison has found that all records have messages,
  and the group has consumed all that was stored before the comparison.
- Of a tee with RocketMQ deciding: by time, the first record that is not older than the first message that waits for
  the group in any queue. Such a record has the store time of its message as its timestamp.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from mqtrail.client import Admin
from mqtrail.clock import now_ms
from mqtrail.trail import ProofResult
from mqtrail.wire import MessageQueue, NoMessage

from .copies import TeeSide
from .groups import group_file, written_places
from .journal import waiting_files
from .kafka import KafkaConfig, KafkaTopic
from .model import MigrateError
from .offsetmap import OffsetMap, read_map
from .state import COMPARE, MAP, BridgeState, content_of, read_bridge, read_json, read_tee, save_json

CLOCKS_MS: Final = 60_000  # how far the clocks of the brokers may differ, and be set back


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """What becomes of a group's offset on a partition. before: None: it has none. after: what is written, or kept.

    lost: at most so many records that the group lacks are no longer in Kafka. is_kept: nothing is written, because the
    group is there, or further.
    """

    partition: int
    before: int | None
    after: int
    end: int
    reason: str
    is_kept: bool = False
    lost: int = 0


@dataclass(frozen=True, slots=True)
class GroupReturn:
    """The offsets of a group, by partition. to_read: records from there to Kafka's ends.

    unread: messages that it has not consumed in RocketMQ. repeated: records that it gets again, about. unknown: what is
    not known about records that it may lack. members: of the RocketMQ group, that run: what they consume is repeated.
    """

    source_group: str
    target_group: str
    topic: str
    partitions: list[PartitionPlace]
    to_read: int
    unread: int
    repeated: int
    unknown: list[str]
    members: int
    is_applied: bool
    at_ms: int

    @property
    def lost(self) -> int:
        """At most so many records that the group lacks are no longer in Kafka."""
        return sum(one.lost for one in self.partitions)


class _Where(NamedTuple):
    """Where a group is in a queue. at: None: it has no offset. waits_ms: when the first message for it was stored."""

    queue: MessageQueue
    at: int | None
    first: int
    end: int
    waits_ms: int


@dataclass(frozen=True, slots=True)
class _FolderFacts:
    """What a folder knows. since_ms: RocketMQ decides since; None: it does not. proven_ms: of a comparison since."""

    state: BridgeState | None
    offsets: OffsetMap | None
    topic: str
    target: str
    since_ms: int | None
    has_kafka_tee: bool
    proven_ms: int | None


async def return_group(
    folder: Path,
    kafka: KafkaConfig,
    admin: Admin,
    groups: tuple[str, str],
    *,
    is_applied: bool,
    may_rewind: bool = False,
    accepts_unknown: bool = False,
    may_lose: bool = False,
) -> GroupReturn:
    """Translate the offsets of groups[1] of RocketMQ for groups[0] of Kafka, and commit them if is_applied.

    may_rewind: also where the Kafka group is further. accepts_unknown: also if it is not known that Kafka has all that
    the group lacks. may_lose: also if it is known that it has not. MQError, OSError.
    """
    known = _migration(folder)
    source_group, target_group = groups
    wheres = await _wheres(admin, target_group, known.target)
    members = await admin.group_connections(target_group)
    unknown = _unknown(folder, known, target_group, wheres)
    async with KafkaTopic(kafka, known.topic) as topic:
        if known.state is not None and (cluster := await topic.cluster_id()) != known.state.cluster:
            raise MigrateError(
                f"found the Kafka cluster {cluster}, expected {known.state.cluster}, which the bridge reads: pass its "
                "address"
            )
        places = await _places(topic, known, wheres, await topic.committed(source_group, may_be_none=True), may_rewind)
        to_read, unread = (
            sum(one.end - one.after for one in places),
            sum(one.end - max(one.at or 0, one.first) for one in wheres),
        )
        found = GroupReturn(
            source_group,
            target_group,
            known.topic,
            places,
            to_read,
            unread,
            max(0, to_read - unread - _not_sent(known, places)),
            unknown,
            len({one.client_id for of in members.found.values() for one in of.connection_set}),
            is_applied,
            now_ms(),
        )
        if is_applied:
            await _check(topic, found, accepts_unknown=accepts_unknown, may_lose=may_lose)
            wanted = {one.partition: one.after for one in places if not one.is_kept}
            if wanted:
                await topic.commit(source_group, wanted)
            save_json(folder / f"back-{source_group}.json", asdict(found))
    return found


def _migration(folder: Path) -> _FolderFacts:
    state, offsets = read_bridge(folder), read_map(folder / MAP)  # in this order: the map has all that the state has
    tee = read_tee(folder, TeeSide.ROCKETMQ)
    other = read_tee(folder, TeeSide.KAFKA)
    if (state is None or offsets is None) and tee is None:
        raise MigrateError(
            f"found neither a bridge nor a tee with RocketMQ deciding in {str(folder)!r}, expected one: pass --folder"
        )
    names = tee if state is None else state
    assert names is not None, "there is one of them"
    return _FolderFacts(
        state,
        offsets,
        names.topic,
        names.target,
        None if tee is None else tee.since_ms,
        other is not None,
        None if tee is None else _proven_ms(folder, tee.since_ms),
    )


def _proven_ms(folder: Path, since_ms: int) -> int | None:
    """Return when a comparison of everything, after that time, found no record missing, extra or different."""
    path, writer = folder / COMPARE, "`mqtrail migrate compare`"
    found = read_json(path, writer)
    if found is None:
        return None
    with content_of(path, writer):
        at_ms, is_whole = int(found["at_ms"]), found["since_ms"] is None and found["until_ms"] is None
        is_same = not any(found["counts"][kind] for kind in ("missing", "extra", "different"))
        is_covered = ProofResult(found["outcome"]) is not ProofResult.CANNOT_TELL and not found["pending"]
        return at_ms if at_ms > since_ms and is_whole and is_same and is_covered else None


async def _wheres(admin: Admin, group: str, topic: str) -> list[_Where]:
    """Return where the group is in each queue."""
    found = []
    for queue in sorted(await admin.queues(topic), key=lambda one: (one.broker_name, one.queue_id)):
        waits_ms = now_ms()  # nothing that is stored later has an earlier time
        at = await admin.consumer_offset(group, queue)
        first, end = await admin.min_offset(queue), await admin.max_offset(queue)
        if (next_ := max(at or 0, first)) < end:
            try:
                waits_ms = (await admin.message_at_offset(queue, next_)).store_timestamp_ms
            except NoMessage:  # it has expired meanwhile
                waits_ms = 0
        found.append(_Where(queue, at, first, end, waits_ms))
    return found


def _unknown(folder: Path, known: _FolderFacts, group: str, wheres: Sequence[_Where]) -> list[str]:
    """Return what is not known about records that the group may lack."""
    found = []
    written = written_places(group_file(folder, group))
    if names := [one.queue.place for one in wheres if one.at is not None and one.queue.place not in written]:
        found.append(
            f"what group {group!r} has consumed of {', '.join(names)}: no `mqtrail migrate offsets --apply` is in the "
            "folder, so it may have skipped messages when it began"
        )
    if known.since_ms is not None:
        copies = sum(one.count for one in waiting_files(folder) if one.to is TeeSide.KAFKA)
        if copies:
            found.append(f"when {copies} failed copies reach Kafka: send them with `mqtrail migrate copies --send`")
        elif known.proven_ms is None:
            found.append(
                "whether each message of the tee has its record in Kafka: stop the producers, run `mqtrail migrate "
                "compare --grace 0s`, and look at what it finds"
            )
    return found


async def _places(
    topic: KafkaTopic,
    known: _FolderFacts,
    wheres: Sequence[_Where],
    committed: Mapping[int, int],
    may_rewind: bool,
) -> list[PartitionPlace]:
    partitions = await topic.partitions()
    firsts, ends = await topic.firsts(partitions), await topic.ends(partitions)
    limits = _limits(known, {one.queue.place: one.at for one in wheres}, firsts)
    times: Mapping[int, int] = {}
    waits_ms = max(0, min((one.waits_ms for one in wheres), default=0) - CLOCKS_MS)
    if known.since_ms is not None and (not known.has_kafka_tee or waits_ms > (known.proven_ms or waits_ms)):
        times = await topic.at_time(partitions, waits_ms)
    found = []
    for one in partitions:
        after, reason, is_passed = limits[one]
        if is_passed and known.since_ms is not None:
            if one in times:
                after, reason = max(after, times[one]), f"{reason}; by time, the first record that it may lack"
            else:
                reason += (
                    "; a tee with Kafka deciding is repeated: no comparison without differences is "
                    f"{CLOCKS_MS // 1000} s older than what waits"
                )
        if after > ends[one]:
            raise MigrateError(
                f"found the end {ends[one]} of partition {one} of Kafka's topic {known.topic!r}, expected {after} or "
                "more, where the bridge is: the topic was created anew, or Kafka lost records: go back by hand"
            )
        place = PartitionPlace(one, committed.get(one), after, ends[one], reason)
        if after < firsts[one]:
            place = replace(
                place, after=firsts[one], lost=firsts[one] - after, reason=f"{reason}; Kafka begins at {firsts[one]}"
            )
        if place.before is not None and place.before == place.after:
            place = replace(place, is_kept=True, lost=0, reason=f"{place.reason}; the group is there")
        elif place.before is not None and place.before > place.after and not may_rewind:
            kept = f"{place.reason}; the group had consumed more in Kafka: --rewind moves it to {place.after}"
            place = replace(place, after=place.before, is_kept=True, lost=0, reason=kept)
        found.append(place)
    return found


def _limits(
    known: _FolderFacts, places: Mapping[str, int | None], firsts: Mapping[int, int]
) -> dict[int, tuple[int, str, bool]]:
    """Return, by partition, the first record of the bridge that the group may lack, why, and whether it has passed all.

    places: of the group, by queue. firsts: of partitions without bridge.
    """
    state, offsets = known.state, known.offsets
    if state is None or offsets is None:
        return {one: (first, "no bridge", True) for one, first in firsts.items()}
    found = dict.fromkeys(firsts, (0, "the bridge has not sent it", True))
    for name, next_offset in state.next_offsets.items():
        partition = int(name)
        limit = (next_offset, f"consumed up to {next_offset}, where the bridge is", True)
        for (of, queue), entries in offsets.entries.items():
            at = places.get(queue)
            if of != partition or (at is not None and at > entries[-1].queue_offset):
                continue
            entry = bisect_left(entries, at or 0, key=lambda one: one.queue_offset)
            if at is None or not entry:
                why = "has no offset" if at is None else f"is at {at}, before the first one in the map"
                limit = min(limit, (state.starts.get(name, 0), f"the group {why} on {queue}", False))
            else:
                last = entries[entry - 1]
                why = f"{last.kafka_offset} is at {last.queue_offset} of {queue}, the group at {at}"
                limit = min(limit, (last.kafka_offset + 1, why, False))
        found[partition] = limit
    return found


def _not_sent(known: _FolderFacts, places: Sequence[PartitionPlace]) -> int:
    """Return how many records no queue has yet."""
    if known.state is None or known.since_ms is not None or known.has_kafka_tee:
        return 0
    return sum(max(0, one.end - known.state.next_offsets.get(str(one.partition), 0)) for one in places)


async def _check(topic: KafkaTopic, found: GroupReturn, *, accepts_unknown: bool, may_lose: bool) -> None:
    """Check that offsets may be written. MigrateError."""
    if members := await topic.member_count(found.source_group):
        raise MigrateError(
            f"found {members} running members of group {found.source_group!r} in Kafka, expected none: they would "
            "overwrite the offsets: stop them, apply again, then start them"
        )
    if found.unknown and not accepts_unknown:
        raise MigrateError(
            f"found something unknown, expected nothing: {'; '.join(found.unknown)}; --accept-unknown commits "
            "nevertheless"
        )
    if found.lost and not may_lose:
        raise MigrateError(
            f"found up to {found.lost} records that group {found.target_group!r} has not consumed and that Kafka no "
            "longer has, expected none: let it consume them in RocketMQ first; --accept-loss goes without them"
        )
