"""Acknowledgements of popped messages (200051, 200151), and changes of their invisible time (200053).

An acknowledgement is a record of the revive log; nothing is looked up. A change of the invisible time writes a new
check point for the message and acknowledges the old one, in one append. Acknowledgements of messages popped in order
move the offset of the group immediately; a record in the revive log makes this survive a crash.

Source: AckMessageProcessor, ChangeInvisibleTimeProcessor, apache/rocketmq 5.3.3 broker/processor/.
"""

from collections.abc import Callable

from mqtrail.wire import (
    ORDERLY_REVIVE_QUEUE,
    AckHeader,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleHeader,
    ChangeInvisibleResponseHeader,
    HeaderError,
    MessageIllegal,
    NoMessage,
    Peer,
    PopAck,
    PopCheckPoint,
    PopHandle,
    RemotingCommand,
    Send,
    answer,
    topic_of_marker,
)

from ..bounds import BATCH_ACKS_MAX, check_count
from ..state import BrokerState
from .checks import POP_COUNT_MAX
from .held_pops import WaitKey
from .revive_log import Put
from .state import PopState


class PopAcks:
    """Serves acknowledgements. on_open: called with (topic, group, queue id) when a queue opens for pops in order."""

    def __init__(self, state: BrokerState, pop: PopState, on_open: Callable[[WaitKey], None]) -> None:
        self._config = state.config
        self._offsets = state.offsets
        self._orders = pop.orders
        self._log = pop.log
        self._checks = pop.checks
        self._stats = state.stats
        self._on_open = on_open
        self._end_offset = 0  # of the last record

    def ack(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """200051. TopicNotExist, MessageIllegal, NoMessage; SystemError_: an invalid handle."""
        header = AckHeader.from_ext(request.ext)
        self._checks.popped(header.topic, header.queue_id, header.offset, end=1)
        handle = PopHandle.decode(header.extra_info)
        if handle.is_orderly:
            record = self._ack_in_order(
                (header.topic, header.consumer_group, header.queue_id),
                header.offset,
                handle.pop_time_ms,
                handle.invisible_ms,
                handle.broker_name,
                now_ms,
            )
            records = [] if record is None else [record]
        else:
            ack = _ack_of(header, handle)
            queue_id = self._revive_queue(handle.revive_queue_id)
            records = [self._log.ack(ack, handle.invisible_ms, queue_id, now_ms)]
        after_offset = self._write(records, now_ms)
        self._count(header.topic, header.consumer_group, 1)
        return answer(peer, request, after_offset=after_offset)

    def batch(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """200151. NoMessage: no valid offset. Offsets outside a queue are ignored, as in Java."""
        body = BatchAckBody.decode(request.body or b"{}")
        if not body.acks:
            raise NoMessage("found an empty batch of acks, expected at least one")
        check_count("groups of acks", body.acks, BATCH_ACKS_MAX)
        records: list[Put] = []
        for ack in body.acks:
            records += self._batch_records(ack, body.broker_name, now_ms)
        return answer(peer, request, after_offset=self._write(records, now_ms))

    def _batch_records(self, ack: BatchAck, broker_name: str | None, now_ms: int) -> list[Put]:
        topic = topic_of_marker(ack.marker, ack.topic, ack.group)
        offsets = [
            offset for offset in ack.queue_offsets(POP_COUNT_MAX) if self._checks.is_inside(topic, ack.queue_id, offset)
        ]
        if not offsets:
            return []
        self._count(topic, ack.group, len(offsets))
        if ack.revive_queue_id == ORDERLY_REVIVE_QUEUE:
            key = (topic, ack.group, ack.queue_id)
            found = [
                self._ack_in_order(key, offset, ack.pop_time_ms, ack.invisible_ms, broker_name, now_ms)
                for offset in offsets
            ]
            return [record for record in found if record is not None][-1:]
        pop_ack = PopAck(
            -1, ack.start_offset, ack.group, topic, ack.queue_id, ack.pop_time_ms, broker_name, tuple(offsets)
        )
        return [self._log.ack(pop_ack, ack.invisible_ms, self._revive_queue(ack.revive_queue_id), now_ms)]

    def _ack_in_order(
        self,
        key: WaitKey,
        queue_offset: int,
        pop_time_ms: int,
        invisible_ms: int,
        broker_name: str | None,
        now_ms: int,
    ) -> Put | None:
        """Move the offset of the group; return the record that makes it durable, None: unchanged. MessageIllegal: not
        popped."""
        topic, group, queue_id = key
        before = self._offsets.get(group, topic, queue_id)
        if before is not None and queue_offset < before:
            return None
        try:
            next_offset = self._orders.ack(key, queue_offset, pop_time_ms)
        except KeyError:
            raise MessageIllegal(
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{before}, commit:{queue_offset}: the last pop "
                "in order did not deliver it"
            ) from None
        if next_offset is None:
            return None
        if not self._orders.is_closed(key, None, invisible_ms, now_ms):
            self._on_open(key)
        if self._offsets.is_reset(group, topic, queue_id):
            return None  # the offset of the group was reset
        self._offsets.move(group, topic, queue_id, next_offset)
        ack = PopAck(queue_offset, queue_offset, group, topic, queue_id, pop_time_ms, broker_name)
        return self._log.position(ack, next_offset, now_ms)

    def change_invisible(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """200053. Refusals as `ack`."""
        header = ChangeInvisibleHeader.from_ext(request.ext)
        self._checks.popped(header.topic, header.queue_id, header.offset, end=0)
        handle = PopHandle.decode(header.extra_info)
        if handle.is_orderly:
            return self._hide_in_order(peer, request, header, handle, now_ms)
        pop_time_ms = max(now_ms, handle.pop_time_ms + 1)  # must differ from the old check point, which is acknowledged
        point = PopCheckPoint(
            start_offset=header.offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=header.invisible_time,
            count=1,
            queue_id=header.queue_id,
            topic=header.topic,
            group=header.consumer_group,
            diffs=(0,),
            broker_name=handle.broker_name,
        )
        ack = _ack_of(header, handle)
        queue_id = self._revive_queue(handle.revive_queue_id)
        records = [
            self._log.check_point(point, queue_id, now_ms),
            self._log.ack(ack, handle.invisible_ms, queue_id, now_ms),
        ]
        after_offset = self._write(records, now_ms)
        self._count(header.topic, header.consumer_group, 1)
        if self._stats is not None:
            self._stats.check_point(header.topic, header.consumer_group)
        response = ChangeInvisibleResponseHeader(pop_time_ms, header.invisible_time, handle.revive_queue_id)
        return answer(peer, request, response.to_ext(), after_offset=after_offset)

    def _hide_in_order(
        self, peer: Peer, request: RemotingCommand, header: ChangeInvisibleHeader, handle: PopHandle, now_ms: int
    ) -> list[Send]:
        before = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if before is not None and header.offset < before:
            return answer(peer, request, ChangeInvisibleResponseHeader(0, 0, 0).to_ext())
        visible_ms = now_ms + header.invisible_time
        key = (header.topic, header.consumer_group, header.queue_id)
        self._orders.hide(key, header.offset, handle.pop_time_ms, visible_ms)
        response = ChangeInvisibleResponseHeader(
            handle.pop_time_ms, visible_ms - handle.pop_time_ms, handle.revive_queue_id
        )
        return answer(peer, request, response.to_ext())

    def _revive_queue(self, queue_id: int) -> int:
        if not 0 <= queue_id < self._log.queue_nums:
            raise HeaderError(
                f"found the revive queue {queue_id} in a handle, expected 0 to {self._log.queue_nums - 1} or "
                f"{ORDERLY_REVIVE_QUEUE}"
            )
        return queue_id

    def _write(self, records: list[Put], now_ms: int) -> int:
        """Append; return the offset that the answer waits for. A repeated request in order waits like the first one."""
        if records:
            self._end_offset = self._log.write(records, now_ms)
        return self._end_offset

    def _count(self, topic: str, group: str, count: int) -> None:
        if self._stats is not None:
            self._stats.ack(topic, group, count)


def _ack_of(header: AckHeader | ChangeInvisibleHeader, handle: PopHandle) -> PopAck:
    """Return the acknowledgement of the message that the header names."""
    return PopAck(
        header.offset,
        handle.start_offset,
        header.consumer_group,
        header.topic,
        header.queue_id,
        handle.pop_time_ms,
        handle.broker_name,
    )
