"""Administration of consumer groups: 200, 225, 207, 201, 352; topics and subscriptions: 300, 343, 345; resets: 222.

Source: AdminBrokerProcessor, apache/rocketmq broker/processor/.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from mqtrail.wire import (
    DeleteGroupHeader,
    GroupHeader,
    GroupList,
    GroupSubscription,
    GroupTopicHeader,
    InvalidParameter,
    MessageQueue,
    Peer,
    QueueOffsets,
    RemotingCommand,
    ResetOffsetHeader,
    Send,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupNotExist,
    SubscriptionGroupTable,
    SystemError_,
    TopicHeader,
    TopicList,
    TopicNotExist,
    Work,
    answer,
    encode_in_slices,
    encode_list_in_slices,
    sorted_in_slices,
)

from ..jobs import (
    ENTRIES_A_SLICE,
    NAMES_A_SLICE,
    QUEUES_A_SLICE,
    SliceCounter,
)
from ..state import BrokerState
from ..tables import GROUP_ATTRIBUTES, alter
from .setting_lists import change_each

_PAST_ALL: Final = 1 << 62  # greater than any queue offset


class GroupRequests:
    """Serves requests about consumer groups."""

    def __init__(self, state: BrokerState, on_delete: Callable[[str], None]) -> None:
        """on_delete: called with the name of a deleted group."""
        self._on_delete = on_delete
        self._broker_name = state.config.broker_name
        self._groups = state.groups
        self._topics = state.topics
        self._clients = state.clients
        self._offsets = state.offsets
        self._store = state.store
        self._writer = state.writer

    def update(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """200: create or change a group."""
        self._update(SubscriptionGroupConfig.decode_request(request.body), now_ms)
        return answer(peer, request)

    def update_list(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """225: create or change groups, in order; stops at the first invalid one."""
        change = partial(self._update, now_ms=now_ms)
        yield from change_each(
            "groups", request.body, lambda body: SubscriptionGroupList.decode(body).group_config_list, change
        )
        return answer(peer, request)

    def _update(self, config: SubscriptionGroupConfig, now_ms: int) -> None:
        """Create or replace a group; its attributes are changed one by one."""
        known = self._groups.get(config.group_name)
        attributes = alter(known.attributes if known else {}, config.attributes, GROUP_ATTRIBUTES)
        self._groups.update(replace(config, attributes=attributes), now_ms)

    def delete(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """207: delete a group and, on request, its offsets."""
        header = DeleteGroupHeader.from_ext(request.ext)
        self._groups.delete(header.group_name, now_ms)
        self._on_delete(header.group_name)
        if header.clean_offset or header.remove_offset:
            yield from self._offsets.forget_group(header.group_name)
        return answer(peer, request)

    def all(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """201."""
        table = self._groups.table()
        entries = table.subscription_group_table.items()
        bare = SubscriptionGroupTable({}, table.data_version, table.forbidden_table)
        body = yield from encode_in_slices(bare, "subscriptionGroupTable", entries, ENTRIES_A_SLICE)
        return answer(peer, request, body=body)

    def one(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """352."""
        name = GroupHeader.from_ext(request.ext).group
        config = self._groups.get(name)
        if config is None:
            raise SubscriptionGroupNotExist(f"No group in this broker: {name}")
        return answer(peer, request, body=config.encode())

    def consumers_of_topic(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """300: groups with offsets in the topic or a subscription to it."""
        topic = TopicHeader.from_ext(request.ext).topic
        names = set((yield from self._offsets.groups_of(topic))) | self._clients.groups_subscribing(topic)
        groups = yield from sorted_in_slices(names)
        body = yield from encode_list_in_slices(GroupList(), "groupList", groups, NAMES_A_SLICE)
        return answer(peer, request, body=body)

    def topics_of_group(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """343: topics in which the group has offsets."""
        group = GroupHeader.from_ext(request.ext).group
        topics = yield from self._offsets.topics_of(group)
        body = yield from encode_list_in_slices(TopicList(), "topicList", topics, NAMES_A_SLICE)
        return answer(peer, request, body=body)

    def subscription(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """345: the subscription of the group to the topic; empty if no member is online."""
        header = GroupTopicHeader.from_ext(request.ext)
        topic = header.topic or ""
        online = self._clients.consumer_group(header.group)
        found = None if online is None else online.subscriptions.get(topic)
        return answer(peer, request, body=GroupSubscription(header.group, topic, found).encode())

    def reset(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """222: set the offsets of a group in a topic to a time, the end, or a given offset, also while it is offline.

        Commits are ignored until the consumer has pulled the queue again and received the new offset (21). Source:
        resetOffsetInner of 5.3.3 (useServerSideResetOffset).
        """
        header = ResetOffsetHeader.from_ext(request.ext)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise TopicNotExist(f"Topic {header.topic} does not exist")
        if self._groups.get(header.group) is None:
            raise SubscriptionGroupNotExist(f"Group {header.group} does not exist")
        queue_nums = max(topic.read_queue_nums, topic.write_queue_nums)
        queue_ids = range(queue_nums)
        if header.queue_id is not None and header.queue_id >= 0:
            if header.queue_id >= queue_nums:
                raise InvalidParameter(
                    f"found queueId {header.queue_id} of {header.topic}, expected 0 to {queue_nums - 1}"
                )
            queue_ids = range(header.queue_id, header.queue_id + 1)
        counter = SliceCounter()
        table = {}
        for queue_id in queue_ids:
            table[queue_id] = self._target(header, queue_id)
            if counter.queue_done():
                yield
        for queue_id, offset in table.items():
            if counter.queue_done():
                yield
            self._offsets.reset(header.group, header.topic, queue_id, offset)
            self._writer.wake(header.topic, queue_id, _PAST_ALL, None)  # its held pulls are answered
        entries = (
            (MessageQueue(header.topic, self._broker_name, queue_id), offset) for queue_id, offset in table.items()
        )
        body = yield from encode_in_slices(QueueOffsets(), "offsetTable", entries, QUEUES_A_SLICE, strict=False)
        return answer(peer, request, body=body)

    def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        store = self._store
        if header.queue_id is not None and header.queue_id >= 0 and header.offset is not None and header.offset >= 0:
            first, end = store.min_offset(header.topic, queue_id), store.max_offset(header.topic, queue_id)
            if not first <= header.offset <= end:
                raise SystemError_(
                    f"Target offset {header.offset} not in consume queue range [{first}-{end}] of {header.topic} "
                    f"queue {queue_id}"
                )
            return header.offset
        if header.timestamp < 0:
            return store.max_offset(header.topic, queue_id)
        return store.offset_by_time(header.topic, queue_id, header.timestamp)
