"""Translates the committed offsets of a Kafka group to offsets of a RocketMQ group.

Never ahead: the RocketMQ group gets every record that the Kafka group has not committed; it may get some again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mqtrail.client import Admin
from mqtrail.clock import now_ms
from mqtrail.feed import check_group
from mqtrail.wire import MessageQueue

from .kafka import KafkaConfig, KafkaTopic
from .model import MigrateError
from .offsetmap import OffsetMap, read_map, translated
from .state import MAP, BridgeState, content_of, read_bridge, read_json, save_json


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """What becomes of a group's offset on a queue. before: None: it has none. after: what is written, or kept.

    is_kept: nothing is written, because the group is there, or further. error: why it could not be written. expired: at
    most so many messages that the group lacks are no longer there. written: a place that the group got by an apply, so
    that what it has consumed since is from there on; None: it is not known what the group has consumed.
    """

    queue: str
    before: int | None
    after: int
    end: int
    reason: str
    is_kept: bool = False
    error: str = ""
    expired: int = 0
    written: int | None = None


@dataclass(frozen=True, slots=True)
class GroupMove:
    """The offsets of a group, by queue. committed: Kafka's, by partition. behind: records the bridge has yet to send.

    before_start: offsets that the group has yet to consume, and that Kafka keeps, from before the bridge's start: no
    queue has them. is_applied: they were written, except those with an error.
    """

    source_group: str
    target_group: str
    target: str
    committed: dict[str, int]
    behind: int
    before_start: int
    queues: list[GroupPlace]
    is_applied: bool
    at_ms: int

    @property
    def expired(self) -> int:
        """At most so many messages that the group lacks are no longer in RocketMQ."""
        return sum(one.expired for one in self.queues)

    @property
    def is_complete(self) -> bool:
        """Whether each queue has its offset."""
        return self.is_applied and not any(one.error for one in self.queues)


def group_file(folder: Path, target_group: str) -> Path:
    """Return the file with the last result of a group."""
    return folder / f"offsets-{target_group}.json"


def bridge_of(folder: Path) -> tuple[BridgeState, OffsetMap]:
    """Return state and map of a folder. MigrateError: the folder lacks them. OSError."""
    state, offsets = read_bridge(folder), read_map(folder / MAP)
    if state is None or offsets is None:
        raise MigrateError(
            f"found no bridge in {str(folder)!r}, expected its state and its map: start `mqtrail migrate bridge`, or "
            "pass its --folder"
        )
    return state, offsets


async def move_group(
    folder: Path,
    kafka: KafkaConfig,
    admin: Admin,
    groups: tuple[str, str],
    *,
    is_applied: bool,
    may_rewind: bool = False,
    may_lose: bool = False,
) -> GroupMove:
    """Translate the offsets of groups[0] of Kafka for groups[1] of RocketMQ, and write them if is_applied.

    may_rewind: also where the RocketMQ group is further already. may_lose: also if RocketMQ does not have all that the
    group lacks. MQError, OSError.
    """
    state, offsets = bridge_of(folder)
    source_group, target_group = groups
    async with KafkaTopic(kafka, state.topic) as topic:
        if (cluster := await topic.cluster_id()) != state.cluster:
            raise MigrateError(
                f"found the Kafka cluster {cluster}, expected {state.cluster}, which the bridge reads: pass its address"
            )
        committed = await topic.committed(source_group)
        firsts = await topic.firsts(set(await topic.partitions()) & set(map(int, state.starts)))
    before_start = sum(
        max(0, state.starts[str(one)] - max(committed.get(one, 0), first)) for one, first in firsts.items()
    )
    queues = [MessageQueue.at(state.target, name) for name in state.queues]
    written = written_places(group_file(folder, target_group))
    moves = await _moves(admin, target_group, queues, offsets, committed, written, may_rewind)
    if is_applied and not all(one.is_kept for one in moves):
        await check_group(admin, target_group, MigrateError)
        # Until here members may have consumed further; now there are none.
        moves = await _moves(admin, target_group, queues, offsets, committed, written, may_rewind)
    if is_applied:
        if not may_lose:
            _check_nothing_lost(target_group, before_start, sum(one.expired for one in moves))
        moves = await _write(admin, target_group, moves, state.target)
    behind = sum(max(0, at - state.next_offsets.get(str(one), 0)) for one, at in committed.items())
    found = GroupMove(
        source_group,
        target_group,
        state.target,
        {str(one): at for one, at in sorted(committed.items())},
        behind,
        before_start,
        moves,
        is_applied,
        now_ms(),
    )
    if is_applied:
        save_json(group_file(folder, target_group), asdict(found))
    return found


def _check_nothing_lost(group: str, before_start: int, expired: int) -> None:
    if before_start or expired:
        raise MigrateError(
            f"found {before_start} offsets before the bridge's start and up to {expired} messages that RocketMQ no "
            f"longer has, which the group has not consumed, expected none: group {group!r} would never get them: let "
            "the group consume them in Kafka first, or bridge again with --start first, an empty topic and a new "
            "--folder; --accept-loss goes without them"
        )


async def _moves(
    admin: Admin,
    group: str,
    queues: Sequence[MessageQueue],
    offsets: OffsetMap,
    committed: dict[int, int],
    written: dict[str, int],
    may_rewind: bool,
) -> list[GroupPlace]:
    bridged = {queue for _, queue in offsets.entries}
    moves = []
    for queue, placed in zip(queues, translated(offsets, committed, [queue.place for queue in queues]), strict=True):
        first, end = await admin.min_offset(queue), await admin.max_offset(queue)
        before = await admin.consumer_offset(group, queue)
        after, reason, expired = placed.offset, placed.reason, 0
        if after > end:
            raise MigrateError(
                f"found the end {end} of queue {placed.queue}, expected {after} or more, which the map has: the topic "
                "was created anew, or the broker lost messages: bridge again into an empty topic, with a new --folder"
            )
        if after < first:
            expired = first - after if placed.queue in bridged else 0
            after, reason = first, f"{reason}; {first - after} messages before the queue's first one have expired"
        earlier = written.get(placed.queue)
        place = GroupPlace(placed.queue, before, after, end, reason, expired=expired, written=earlier)
        if before == after:
            place = replace(place, reason=f"{reason}; the group is there", is_kept=True, written=after)
        elif before is not None and before > after and not may_rewind:
            kept = f"{reason}; the group is further: --rewind moves it to {after}"
            place = replace(place, after=before, reason=kept, is_kept=True)
            if earlier is not None and earlier <= after:  # it has consumed all from there to where it is
                place = replace(place, expired=0)
            else:
                error = f"the group is at {before} already, not by an apply: --rewind moves it to {after}"
                place = replace(place, error=error)
        moves.append(place)
    return moves


async def _write(admin: Admin, group: str, moves: list[GroupPlace], topic: str) -> list[GroupPlace]:
    wanted = {MessageQueue.at(topic, one.queue): one.after for one in moves if not one.is_kept}
    _, failures = await admin.set_offsets(group, wanted)
    errors = {queue.place: str(error) for queue, error in failures.items()}
    done = []
    for one in moves:
        if one.queue in errors:
            one = replace(one, error=errors[one.queue])
        elif not one.is_kept:
            one = replace(one, written=one.after)
        done.append(one)
    return done


def written_places(path: Path) -> dict[str, int]:
    """Return, of a saved result, the place that the group got in each queue. MigrateError: the file is damaged."""
    writer = "`mqtrail migrate offsets --apply`"
    content = read_json(path, writer)
    with content_of(path, writer):
        places = {str(one["queue"]): one.get("written") for one in content["queues"]} if content else {}
        return {queue: int(place) for queue, place in places.items() if place is not None}
