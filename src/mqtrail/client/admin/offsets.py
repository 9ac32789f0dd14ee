"""Offsets: the range of queues, the offsets of groups, and changing them."""

from collections.abc import Mapping

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
from ..core import reply_number
from .base import Gathered
from .groups import AdminGroups


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

    # -- changing a group's offsets --------------------------------------------------------------------------------

    async def reset_offset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True, queue_id: int | None = None
    ) -> Gathered[QueueOffsets]:
        """Move a group to the first message stored at or after timestamp_ms (-1: to the end), on a topic's brokers.

        force: also move it forward, past messages that it has not consumed. queue_id: only that queue of each broker
        (5.x). If a 4.9 broker refuses because the group is not online, the offsets are written one by one.
        """
        ext = {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "true" if force else "false"}
        if queue_id is not None:
            ext |= {"queueId": str(queue_id)}
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answers = await self._on_topic(topic, code, ext, QueueOffsets.decode)
        offline = [name for name, error in answers.failures.items() if isinstance(error, ConsumerNotOnline)]
        if not offline:
            return answers
        route = await self._client.route(topic)
        queues: dict[str, list[MessageQueue]] = {}
        for queue in route.subscribe_queues:
            if queue_id is None or queue.queue_id == queue_id:
                queues.setdefault(queue.broker_name, []).append(queue)
        written = await self._gather(
            {name: self._write_offsets(group, queues.get(name, []), timestamp_ms, force=force) for name in offline}
        )
        failures = {name: error for name, error in answers.failures.items() if name not in offline}
        return Gathered({**answers.found, **written.found}, {**failures, **written.failures})

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

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Write a group's offset of one queue. Live members overwrite it: stop them first, or use reset_offset."""
        ext = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(offset),
            "bname": queue.broker_name,
        }
        route = await self._client.route(queue.topic)
        await self._client.call(self._client.master(queue.broker_name, route), RequestCode.UPDATE_CONSUMER_OFFSET, ext)

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
