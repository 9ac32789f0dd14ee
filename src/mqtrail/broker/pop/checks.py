"""Checks of POP requests, in the order and with the codes of 5.3.3.

Source: PopMessageProcessor, PeekMessageProcessor, NotificationProcessor, AckMessageProcessor,
ChangeInvisibleTimeProcessor, apache/rocketmq 5.3.3 broker/processor/.
"""

from mqtrail.wire import InvalidParameter, MessageIllegal, NoMessage, NoPermission, Perm, TopicConfig

from ..state import BrokerState

POP_COUNT_MAX = 32  # messages of one pop, since a check point has one bit for each


class PopChecks:
    """Checks requests, and returns their topic."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups

    def broker_reads(self) -> None:
        """NoPermission: this broker is not readable."""
        if not self._config.permission & Perm.READ:
            raise NoPermission(f"the broker[{self._config.address.ip}] pop message is forbidden (brokerPermission)")

    def reading(self, topic: str, queue_id: int, group: str, now_ms: int) -> TopicConfig:
        """Return the topic if the group may read queue_id; -1: all queues.

        TopicNotExist, NoPermission, InvalidParameter, SubscriptionGroupNotExist.
        """
        config = self._topics.require(topic)
        if not config.perm & Perm.READ:
            raise NoPermission(f"the topic[{topic}] peeking message is forbidden: it has no permission to read")
        if queue_id >= config.read_queue_nums:
            raise InvalidParameter(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}]: refresh the route"
            )
        self._groups.require_consuming(group, now_ms)
        return config

    def popped(self, topic: str, queue_id: int, queue_offset: int, *, end: int) -> None:
        """Check that a message may have been popped. end: 1 if its offset may be the end of the queue, else 0.

        TopicNotExist, MessageIllegal (no such queue), NoMessage (an offset outside the queue).
        """
        config = self._topics.require(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise MessageIllegal(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{config.read_queue_nums}]"
            )
        first, last = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id) - 1 + end
        if not first <= queue_offset <= last:
            raise NoMessage(
                f"offset is illegal, key:{topic}@{queue_id}, commit:{queue_offset}, store:{first}~{last}: the message "
                "was deleted, or never existed"
            )

    def is_inside(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Return whether the offset is in the queue, or is its end."""
        return self._store.min_offset(topic, queue_id) <= queue_offset <= self._store.max_offset(topic, queue_id)
