"""Requests about offsets: of groups (14, 15, 43, 45) and of queues (29, 30, 31, 32).

Source: ConsumerManageProcessor, AdminBrokerProcessor, apache/rocketmq broker/processor/.
"""

from mqtrail.wire import (
    ConsumerOffsetTable,
    GetMaxOffsetHeader,
    InvalidParameter,
    OffsetResponseHeader,
    Peer,
    QueryConsumerOffsetHeader,
    QueryNotFound,
    QueueHeader,
    RemotingCommand,
    SearchOffsetHeader,
    Send,
    SubscriptionGroupNotExist,
    TimestampResponseHeader,
    TopicNotExist,
    UpdateConsumerOffsetHeader,
    Work,
    answer,
    encode_in_slices,
    sorted_in_slices,
)

from ..config import QUEUES_MAX
from ..jobs import ENTRIES_A_SLICE
from ..state import BrokerState
from ..tables import is_young
from ..timing import DelayedMessages

BOUNDARY_UPPER = "UPPER"


class OffsetRequests:
    """Serves requests about offsets."""

    def __init__(self, state: BrokerState, delays: DelayedMessages) -> None:
        self._config = state.config
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._delays = delays

    def query(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """14: the group's offset of a queue.

        Without a commit: 0 if the queue never held a message, or is young (its first message still exists near the end
        of the log), so that a group that starts with the topic misses no message. Otherwise QueryNotFound, and the
        client applies its ConsumeFromWhere. 4.9 does the same. 5.x answers QueryNotFound for a queue without messages;
        the group then misses the first message if it arrives before the client asks for the maximum.
        """
        header = QueryConsumerOffsetHeader.from_ext(request.ext)
        offset = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if offset is None and header.set_zero_if_not_found is not False and self._is_young(header):
            offset = 0
        if offset is None:
            return answer(
                peer,
                request,
                {},
                code=QueryNotFound.code,
                remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        return answer(peer, request, OffsetResponseHeader(offset).to_ext())

    def _is_young(self, header: QueryConsumerOffsetHeader) -> bool:
        topic, queue_id = header.topic, header.queue_id
        if self._store.max_offset(topic, queue_id) == 0:
            config = self._topics.get(topic)
            return config is not None and 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)
        return is_young(self._store, topic, queue_id, self._config.young_queue_size)

    def update(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """15: commit. SubscriptionGroupNotExist, TopicNotExist, InvalidParameter."""
        header = UpdateConsumerOffsetHeader.from_ext(request.ext)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if self._groups.get(group) is None:
            return answer(peer, request, {}, code=SubscriptionGroupNotExist.code, remark=f"Group {group} not exist!")
        if topic not in self._topics:
            return answer(peer, request, {}, code=TopicNotExist.code, remark=f"Topic {topic} not exist!")
        if not 0 <= queue_id < QUEUES_MAX or header.commit_offset < 0:
            raise InvalidParameter(
                f"found queueId {queue_id} and commitOffset {header.commit_offset} of {topic}, expected a queue below "
                f"{QUEUES_MAX} and an offset of 0 or more"
            )
        if self._offsets.is_reset(group, topic, queue_id):
            return answer(peer, request, {}, remark="Offset has been previously reset")
        self._offsets.check_room(group, topic, queue_id)
        self._offsets.commit(group, topic, queue_id, header.commit_offset)
        return answer(peer, request, {})

    def max(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """30: the queue offset of the next message."""
        header = GetMaxOffsetHeader.from_ext(request.ext)
        offset = self._store.max_offset(header.topic, header.queue_id)
        return answer(peer, request, OffsetResponseHeader(offset).to_ext())

    def min(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """31: the first kept queue offset."""
        header = QueueHeader.from_ext(request.ext)
        offset = self._store.min_offset(header.topic, header.queue_id)
        return answer(peer, request, OffsetResponseHeader(offset).to_ext(), remark="")

    def earliest(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """32: the store time of the first kept message; -1: none."""
        header = QueueHeader.from_ext(request.ext)
        first = self._store.min_offset(header.topic, header.queue_id)
        timestamp = self._store.store_time(header.topic, header.queue_id, first)
        return answer(peer, request, TimestampResponseHeader(timestamp).to_ext())

    def search(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """29: the queue offset at a store time."""
        header = SearchOffsetHeader.from_ext(request.ext)
        upper = (header.boundary_type or "").upper() == BOUNDARY_UPPER
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp, upper=upper)
        return answer(peer, request, OffsetResponseHeader(offset).to_ext())

    def all_consumer_offsets(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """43: the whole table, for slaves."""
        bare = ConsumerOffsetTable({}, self._offsets.version)
        keys = yield from sorted_in_slices(self._offsets)
        entries = self._offsets.entries(keys)
        body = yield from encode_in_slices(bare, "offsetTable", entries, ENTRIES_A_SLICE, strict=False)
        return answer(peer, request, body=body)

    def all_delay_offsets(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """45."""
        return answer(peer, request, body=self._delays.offsets().encode(strict=False))
