"""Offsets: the range of queues, the offsets of groups, and changing them."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mqtrail.wire import (
    ConsumerNotOnline,
    ConsumerOffsetTable,
    DelayOffsetTable,
    MessageQueue,
    QueryNotFound,
    QueueOffsets,
    RequestCode,
    TimerMetrics,
)

from ..consumer import in_waves
from ..core import ClientError, queue_name, reply_number
from .base import Gathered
from .groups import AdminGroups

SERVER_SIDE_RESET: Final = "useServerSideResetOffset"
_READ_MS: Final = struct.Struct(">q")  # the first field of TimerCheckpoint (apache/rocketmq store/timer)


@dataclass(frozen=True, slots=True)
class QueueMove:
    """What a reset does to a group on one queue. consumer_offset: the group's before; None: it has none."""

    queue: MessageQueue
    min_offset: int
    consumer_offset: int | None
    new_offset: int

    @property
    def skipped_count(self) -> int | None:
        """Messages that the group will not consume, of all tags; None: unknown, because the group has no offset."""
        return None if self.consumer_offset is None else self._between(self.consumer_offset, self.new_offset)

    @property
    def repeated_count(self) -> int | None:
        """Messages that the group will consume again, of all tags; None as above."""
        return None if self.consumer_offset is None else self._between(self.new_offset, self.consumer_offset)

    def _between(self, first: int, end: int) -> int:
        return max(0, end - max(first, self.min_offset))


class AdminOffsets(AdminGroups):
    """Admin's methods for offsets."""

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The group's committed offset of a queue; None if there is none."""
        # Without setZeroIfNotFound=false a broker answers 0 for a young queue.
        ext = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        try:
            return await self._offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        except QueryNotFound:
            return None

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that a queue still keeps."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, {})

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that a queue's next message will get."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, {})

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after a time (epoch ms); else the queue's end."""
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(timestamp_ms)})

    async def earliest_store_ms(self, queue: MessageQueue) -> int | None:
        """The store time of the queue's first message, epoch ms; None for an empty queue."""
        address = await self._address_of(queue)
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}
        reply = await self._client.call(address, RequestCode.GET_EARLIEST_MSG_STORETIME, ext)
        found = reply_number(reply, "timestamp")
        return found if found >= 0 else None

    async def committed_offsets(self, broker_address: str) -> ConsumerOffsetTable:
        """All offsets that groups committed at a broker: "topic@group" -> queue id -> offset."""
        return await self._ask(broker_address, RequestCode.GET_ALL_CONSUMER_OFFSET, {}, ConsumerOffsetTable.decode)

    async def delay_offsets(self, broker_address: str) -> DelayOffsetTable:
        """A broker's progress with delayed messages: delay level -> offset to be delivered next."""
        return await self._ask(broker_address, RequestCode.GET_ALL_DELAY_OFFSET, {}, DelayOffsetTable.decode)

    async def timer_counts(self, broker_address: str) -> TimerMetrics:
        """The number of messages in a broker's timer by topic (5.x). Raises SystemError_ if it has no timer."""
        return await self._ask(broker_address, RequestCode.GET_TIMER_METRICS, {}, TimerMetrics.decode)

    async def timer_progress_ms(self, broker_address: str) -> int:
        """The second that a broker's timers deliver next, epoch ms (5.x). InvalidReply: the reply lacks it."""
        return await self._ask(broker_address, RequestCode.GET_TIMER_CHECK_POINT, {}, _read_ms)

    async def plan_reset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True, queue_id: int | None = None
    ) -> Gathered[QueueMove]:
        """What reset_offset with these arguments would do now, by queue; nothing is changed.

        Queues that would keep their offset are in it, too. Raises RouteNotFound.
        """
        queues = [one for one in await self.queues(topic) if queue_id in (None, one.queue_id)]
        return await self._gather(
            {queue_name(queue): self._plan_move(group, queue, timestamp_ms, force=force) for queue in queues}
        )

    async def _plan_move(self, group: str, queue: MessageQueue, timestamp_ms: int, *, force: bool) -> QueueMove:
        consumed = await self.consumer_offset(group, queue)
        target = await (self.max_offset(queue) if timestamp_ms < 0 else self.offset_by_time(queue, timestamp_ms))
        if not force and consumed is not None:
            target = min(target, consumed)
        return QueueMove(queue, await self.min_offset(queue), consumed, target)

    async def plan_clone(self, source: str, target: str, topic: str) -> Gathered[QueueMove | None]:
        """What clone_offsets with these arguments would do now to the group target, by queue; nothing is changed.

        None: source has no offset on the queue, so that target keeps its own. Raises RouteNotFound.
        """

        async def move(queue: MessageQueue) -> QueueMove | None:
            offset = await self.consumer_offset(source, queue)
            if offset is None:
                return None
            return QueueMove(queue, await self.min_offset(queue), await self.consumer_offset(target, queue), offset)

        return await self._gather({queue_name(queue): move(queue) for queue in await self.queues(topic)})

    # -- changing a group's offsets --------------------------------------------------------------------------------

    async def reset_offset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True, queue_id: int | None = None
    ) -> Gathered[QueueOffsets]:
        """Move a group to the first message stored at or after timestamp_ms (-1: to the end), on a topic's brokers.

        force: also move it forward, past messages that it has not consumed. queue_id: only that queue of each broker
        (5.x). If a 4.9 broker refuses because the group is not online, the offsets are written one by one. Without
        force, failures are by topic/broker/queue.
        """
        if not force:
            return await self._reset_backward(group, topic, timestamp_ms, queue_id)
        ext = _reset_header(group, topic, timestamp_ms, queue_id)
        answers = await self._on_topic(
            topic, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext | {"isForce": "true"}, QueueOffsets.decode
        )
        offline = [name for name, error in answers.failures.items() if isinstance(error, ConsumerNotOnline)]
        if not offline:
            return answers
        route = await self._client.route(topic)
        queues: dict[str, list[MessageQueue]] = {}
        for queue in route.subscribe_queues:
            if queue_id is None or queue.queue_id == queue_id:
                queues.setdefault(queue.broker_name, []).append(queue)
        written = await self._gather(
            {name: self._write_offsets(group, queues.get(name, []), timestamp_ms, force=True) for name in offline}
        )
        failures = {name: error for name, error in answers.failures.items() if name not in offline}
        return Gathered({**answers.found, **written.found}, {**failures, **written.failures})

    async def _reset_backward(
        self, group: str, topic: str, timestamp_ms: int, queue_id: int | None
    ) -> Gathered[QueueOffsets]:
        """Request only the queues that go backward, each by itself.

        A broker that resets in the broker (5.x, useServerSideResetOffset) moves every requested queue, forward too: it
        does not read isForce. A 4.9 broker reads isForce and no queueId.
        """
        planned = await self.plan_reset(group, topic, timestamp_ms, force=False, queue_id=queue_id)
        moves = {
            name: move
            for name, move in planned.found.items()
            if move.consumer_offset is None or move.new_offset < move.consumer_offset
        }
        done = await self._gather(
            {name: self._reset_queue(group, move.queue, timestamp_ms) for name, move in moves.items()}
        )
        found: dict[str, dict[MessageQueue, int]] = {move.queue.broker_name: {} for move in planned.values()}
        for name, moved in done.found.items():
            found[moves[name].queue.broker_name] |= moved.offset_table
        return Gathered(
            {broker: QueueOffsets(moved) for broker, moved in found.items()}, {**planned.failures, **done.failures}
        )

    async def _reset_queue(self, group: str, queue: MessageQueue, timestamp_ms: int) -> QueueOffsets:
        ext = _reset_header(group, queue.topic, timestamp_ms, queue.queue_id) | {"isForce": "false"}
        address = await self._address_of(queue)
        try:
            return await self._ask(
                address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, lambda body: _only(queue, body)
            )
        except ConsumerNotOnline:
            return await self._write_offsets(group, [queue], timestamp_ms, force=False)

    async def reset_queue(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Move a group on one queue to an offset, also while members are online.

        Only for a broker that resets in the broker (5.x with useServerSideResetOffset): others ignore queue and offset.
        ClientError: the broker moved it to another offset.
        """
        ext = _reset_header(group, queue.topic, -1, queue.queue_id) | {"isForce": "true", "offset": str(offset)}
        done = await self._ask(
            await self._address_of(queue),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            ext,
            lambda body: _only(queue, body),
        )
        moved = done.offset_table.get(queue)
        if moved != offset:
            raise ClientError(f"found offset {moved} of {queue_name(queue)} after the reset, expected {offset}")

    async def _write_offsets(
        self, group: str, queues: list[MessageQueue], timestamp_ms: int, *, force: bool
    ) -> QueueOffsets:
        moved = {}
        for queue in queues:
            if timestamp_ms < 0:
                offset = await self.max_offset(queue)
            else:
                offset = await self.offset_by_time(queue, timestamp_ms)
            now = await self.consumer_offset(group, queue)
            if not force and now is not None and now <= offset:
                continue
            await self.set_offset(group, queue, offset)
            moved[queue] = offset
        return QueueOffsets(moved)

    async def skip_backlog(self, group: str, topic: str) -> Gathered[QueueOffsets]:
        """Move a group to the end of a topic: it does not consume the waiting messages."""
        return await self.reset_offset(group, topic, -1)

    async def resets_offsets(self, broker_address: str) -> bool:
        """Return whether a broker resets offsets itself (5.x, by its settings), also while members are online."""
        return (await self.broker_config(broker_address)).get(SERVER_SIDE_RESET, "").lower() == "true"

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set a group's offset of one queue. A broker that resets offsets itself moves live members, too.

        With other brokers, live members overwrite the offset: stop them first. A broker acknowledges commits and
        ignores them from a reset until members pull the queue again; so the offset is read back, and reset if it is
        another one. ClientError: the group has another offset then.
        """
        address = await self._commit(group, queue, offset)
        found = await self.consumer_offset(group, queue)
        if found == offset and not await self._is_online(group, address):
            return
        if await self.resets_offsets(address):
            await self.reset_queue(group, queue, offset)
        elif found != offset:
            raise ClientError(
                f"found offset {found} of {queue_name(queue)} after the commit, expected {offset}; stop the members of "
                f"group {group!r}, and set it again"
            )

    async def _is_online(self, group: str, broker_address: str) -> bool:
        try:
            await self.consumer_connections(group, broker_address)
        except ConsumerNotOnline:
            return False
        return True

    async def _commit(self, group: str, queue: MessageQueue, offset: int) -> str:
        """Commit an offset; return the address of the master."""
        ext = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(offset),
            "bname": queue.broker_name,
        }
        route = await self._client.route(queue.topic)
        address = self._client.master(queue.broker_name, route)
        return await self._call(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    async def set_offsets(
        self, group: str, offsets: Mapping[MessageQueue, int]
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, Exception]]:
        """Write a group's offsets; return those that were written, and the errors of the others."""
        written: dict[MessageQueue, int] = {}
        failures: dict[MessageQueue, Exception] = {}
        for wave in in_waves(offsets):
            queues = {str(number): queue for number, queue in enumerate(wave)}
            done = await self._gather(
                {name: self.set_offset(group, queue, offsets[queue]) for name, queue in queues.items()}
            )
            written |= {queues[name]: offsets[queues[name]] for name in done.found}
            failures |= {queues[name]: error for name, error in done.failures.items()}
        return written, failures

    async def clone_offsets(
        self, source: str, target: str, topic: str
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, Exception]]:
        """Copy the offsets that the group source committed on a topic to the group target. Returns as set_offsets.

        Raises the first Refusal of reading them: nothing is written unless all queues could be read.
        """
        offsets = {}
        for queue in await self.queues(topic):
            offset = await self.consumer_offset(source, queue)
            if offset is not None:
                offsets[queue] = offset
        return await self.set_offsets(target, offsets)


def _read_ms(body: bytes) -> int:
    if len(body) < _READ_MS.size:
        raise ValueError(f"found {len(body)} bytes, expected the progress of timers")
    (found,) = _READ_MS.unpack_from(body)
    return int(found)


def _reset_header(group: str, topic: str, timestamp_ms: int, queue_id: int | None) -> dict[str, str]:
    header = {"topic": topic, "group": group, "timestamp": str(timestamp_ms)}
    return header if queue_id is None else header | {"queueId": str(queue_id)}


def _only(queue: MessageQueue, body: bytes) -> QueueOffsets:
    """Return what an answer says about one queue: a 4.9 broker answers for all."""
    return QueueOffsets({one: offset for one, offset in QueueOffsets.decode(body).offset_table.items() if one == queue})
