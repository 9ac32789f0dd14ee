"""Offsets for operators: 303 time spans, 308 corrections, 314 clones, 353 forbidden topics.

Source: AdminBrokerProcessor, ConsumerOffsetManager, apache/rocketmq broker/.
"""

from datetime import datetime

from mqtrail.wire import (
    LONG_MAX,
    CloneGroupOffsetHeader,
    ConsumeTimeSpan,
    ConsumeTimeSpans,
    CorrectionOffsetHeader,
    CorrectionOffsets,
    GroupForbidden,
    GroupForbiddenHeader,
    GroupTopicHeader,
    MessageQueue,
    Peer,
    RemotingCommand,
    Send,
    TopicNotExist,
    Work,
    answer,
    encode_in_slices,
    encode_list_in_slices,
    queue_members,
)

from ..jobs import ENTRIES_A_SLICE, QUEUES_A_SLICE, SliceCounter
from ..state import BrokerState


class OffsetAdmin:
    """Serves requests about offsets of groups."""

    def __init__(self, state: BrokerState) -> None:
        self._broker_name = state.config.broker_name
        self._topics = state.topics
        self._groups = state.groups
        self._clients = state.clients
        self._offsets = state.offsets
        self._store = state.store

    def time_span(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """303: store times of the first, last and last consumed message of each queue. TopicNotExist."""
        header = GroupTopicHeader.from_ext(request.ext)
        topic = header.topic or ""
        config = self._topics.get(topic)
        if config is None:
            raise TopicNotExist(f"topic[{topic}] not exist")
        spans = (self._span(header.group, topic, queue_id, now_ms) for queue_id in range(config.write_queue_nums))
        body = yield from encode_list_in_slices(ConsumeTimeSpans(), "consumeTimeSpanSet", spans, QUEUES_A_SLICE)
        return answer(peer, request, body=body)

    def _span(self, group: str, topic: str, queue_id: int, now_ms: int) -> ConsumeTimeSpan:
        store = self._store
        end = store.max_offset(topic, queue_id)
        first_ms = store.store_time(topic, queue_id, store.min_offset(topic, queue_id))
        last_ms = store.store_time(topic, queue_id, end - 1)
        consumed = self._offsets.get(group, topic, queue_id)
        consumed = -1 if consumed is None else consumed
        consumed_ms = store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else first_ms
        behind_ms = now_ms - store.store_time(topic, queue_id, max(consumed, 0)) if 0 <= consumed < end else 0
        return ConsumeTimeSpan(
            min_time_stamp=first_ms,
            max_time_stamp=last_ms,
            consume_time_stamp=consumed_ms,
            delay_time=behind_ms,
            message_queue=queue_members(MessageQueue(topic, self._broker_name, queue_id)),
            min_time_stamp_str=_time_text(first_ms),
            max_time_stamp_str=_time_text(last_ms),
            consume_time_stamp_str=_time_text(consumed_ms),
        )

    def corrections(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """308: the lowest offset of all groups for each queue, to correct a group that is ahead of all others.

        If it is above the offset of the compared group, there is nothing to correct: the answer is Java's largest Long.
        """
        header = CorrectionOffsetHeader.from_ext(request.ext)
        left_out = {name.strip() for name in (header.filter_groups or "").split(",")}
        smallest: dict[int, int] = {}
        counter = SliceCounter()
        for group in (yield from self._offsets.groups_of(header.topic)):
            if group in left_out:
                continue
            for queue_id, offset in self._offsets.queues(group, header.topic).copy().items():
                if counter.queue_done():
                    yield
                if offset >= self._store.min_offset(header.topic, queue_id):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        for queue_id, offset in self._offsets.queues(header.compare_group, header.topic).items():
            if smallest.get(queue_id, 0) > offset:
                smallest[queue_id] = LONG_MAX
        entries = sorted(smallest.items())
        bare = CorrectionOffsets()
        body = yield from encode_in_slices(bare, "correctionOffsets", entries, ENTRIES_A_SLICE, strict=False)
        return answer(peer, request, body=body)

    def clone(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """314: copy the offsets of a group to another group, for one topic or for all its topics.

        Topics that a live source group does not subscribe to are skipped, unless the request says offline.
        """
        header = CloneGroupOffsetHeader.from_ext(request.ext)
        topics = [header.topic] if header.topic else (yield from self._offsets.topics_of(header.src_group))
        online = self._clients.consumer_group(header.src_group)
        counter = SliceCounter()
        for topic in topics:
            if counter.topic_done():
                yield
            if topic not in self._topics:
                continue
            if not header.offline and online is not None and online.subscriptions and topic not in online.subscriptions:
                continue
            for queue_id, offset in self._offsets.queues(header.src_group, topic).copy().items():
                if counter.queue_done():
                    yield
                self._offsets.commit(header.dest_group, topic, queue_id, offset)
        return answer(peer, request)

    def forbid(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """353: return whether a group may read a topic, after the change in the request, if any."""
        header = GroupForbiddenHeader.from_ext(request.ext)
        if header.readable is not None:
            self._groups.forbid(header.group, header.topic, not header.readable, now_ms)
        readable = not self._groups.is_forbidden(header.group, header.topic)
        body = GroupForbidden(header.group, header.topic, readable)
        return answer(peer, request, remark="", body=body.encode())


def _time_text(time_ms: int) -> str:
    """Return a time in the format of Java's tools; -1, for a missing message, gives a time before 1970 as in Java."""
    moment = datetime.fromtimestamp(time_ms // 1000)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03}"
