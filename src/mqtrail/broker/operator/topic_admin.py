"""Administration of topics: 17, 18, 215, 21, 351, 305.

Source: AdminBrokerProcessor, apache/rocketmq broker/processor/.
"""

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from mqtrail.wire import (
    CreateTopicHeader,
    DataVersion,
    InvalidParameter,
    Peer,
    RemotingCommand,
    Send,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicHeader,
    TopicList,
    TopicNotExist,
    Work,
    answer,
    encode_in_slices,
    pop_retry_topic,
)

from ..jobs import CHANGES_A_SLICE, ENTRIES_A_SLICE
from ..state import BrokerState
from ..tables import TOPIC_ATTRIBUTES, alter, parse_changes
from .setting_lists import change_each


class TopicRequests:
    """Serves requests about topics."""

    def __init__(self, state: BrokerState, on_delete: Callable[[str], None]) -> None:
        """on_delete: called with the name of a deleted topic."""
        self._topics = state.topics
        self._store = state.store
        self._offsets = state.offsets
        self._stats = state.stats
        self._on_delete = on_delete

    def update(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """17: create or change a topic. InvalidParameter: invalid name, numbers or attributes."""
        header = CreateTopicHeader.from_ext(request.ext)
        known = self._topics.get(header.topic)
        config = TopicConfig(
            topic=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=alter(_attributes(known), parse_changes(header.attributes or ""), TOPIC_ATTRIBUTES),
        )
        self._topics.update(config, now_ms)
        return answer(peer, request)

    def update_list(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """18: create or change topics, in order; stops at the first invalid one."""

        def change(config: TopicConfig) -> None:
            attributes = alter(_attributes(self._topics.get(config.topic)), config.attributes, TOPIC_ATTRIBUTES)
            self._topics.update(replace(config, attributes=attributes), now_ms)

        yield from change_each(
            "topics", request.body, lambda body: TopicConfigList.decode(body).topic_config_list, change
        )
        return answer(peer, request)

    def delete(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """215: delete a topic, its queues, the offsets of groups in it, and the retry topics of groups that popped it.

        A missing topic is not an error. The messages are deleted after the table without the topic is durable; then the
        request is answered. A crash in between leaves queues without a topic, which 316 deletes.
        """
        topic = TopicHeader.from_ext(request.ext).topic
        if not topic.strip():
            raise InvalidParameter("The specified topic is blank.")
        if self._topics.is_system(topic):
            raise InvalidParameter(f"The topic[{topic}] is conflict with system topic.")
        groups = yield from self._offsets.groups_of(topic)
        self._topics.delete(topic, now_ms, partial(self._forget, topic))
        self._on_delete(topic)
        for number, group in enumerate(groups, 1):
            for name in (pop_retry_topic(topic, group), pop_retry_topic(topic, group, v2=True)):
                self._topics.delete(name, now_ms, partial(self._forget, name))
            if number % CHANGES_A_SLICE == 0:
                yield
        return answer(peer, request)

    def _forget(self, topic: str) -> None:
        self._offsets.forget_topic(topic)
        self._store.delete_topic(topic)
        if self._stats is not None:
            self._stats.forget_topic(topic)

    def all(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """21."""
        table = TopicConfigTable({}, self._topics.data_version, DataVersion(), {}, {})
        entries = sorted(self._topics.all().items())
        body = yield from encode_in_slices(table, "topicConfigTable", entries, ENTRIES_A_SLICE)
        return answer(peer, request, {}, body=body)

    def one(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """351."""
        topic = TopicHeader.from_ext(request.ext).topic
        config = self._topics.get(topic)
        if config is None:
            raise TopicNotExist(f"No topic in this broker. topic: {topic}")
        return answer(peer, request, body=config.encode())

    def system(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """305."""
        return answer(peer, request, body=TopicList(tuple(self._topics.system_topics())).encode())


def _attributes(topic: TopicConfig | None) -> dict[str, str]:
    return {} if topic is None else topic.attributes
