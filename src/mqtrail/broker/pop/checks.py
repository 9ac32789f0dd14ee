"""What a request on a queue has to pass before POP looks at it, in 5.3.3's order and with its codes.

Source: PopMessageProcessor, PeekMessageProcessor, NotificationProcessor, AckMessageProcessor,
ChangeInvisibleTimeProcessor, apache/rocketmq 5.3.3 broker/processor/.
"""

from mqtrail.wire import (
    InvalidParameter,
    MessageIllegal,
    NoMessage,
    NoPermission,
    Perm,
    TopicConfig,
    TopicNotExist,
)

from ..state import BrokerState

POP_COUNT_MAX = 32  # messages of one pop: a check point has a bit for each


class PopChecks:
    """The checks, and the topic they end with."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups

    def broker_reads(self) -> None:
        """NoPermission: this broker hands nothing out."""
        if not self._config.permission & Perm.READ:
            raise NoPermission(f"the broker[{self._config.address.ip}] pop message is forbidden (brokerPermission)")

    def reading(self, topic: str, queue_id: int, group: str, now_ms: int) -> TopicConfig:
        """Return the topic that a group may read queue_id of, -1 for all its queues.

        TopicNotExist, NoPermission, InvalidParameter, SubscriptionGroupNotExist.
        """
        config = self._known(topic)
        if not config.perm & Perm.READ:
            raise NoPermission(f"the topic[{topic}] peeking message is forbidden: it has no permission to read")
        if queue_id >= config.read_queue_nums:
            raise InvalidParameter(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}]: refresh the route"
            )
        found = self._groups.require(group, now_ms)
        if not found.consume_enable:
            raise NoPermission(f"subscription group no permission, {group}: its consumeEnable is false")
        return config

    def popped(self, topic: str, queue_id: int, queue_offset: int, *, end: int) -> None:
        """Check that a message may have been popped. end: how far behind the queue's last its offset may be, 0 or 1.

        TopicNotExist, MessageIllegal (no such queue), NoMessage (an offset that the queue has not).
        """
        config = self._known(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise MessageIllegal(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{config.read_queue_nums}]"
            )
        first, last = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id) - 1 + end
        if not first <= queue_offset <= last:
            raise NoMessage(
                f"offset is illegal, key:{topic}@{queue_id}, commit:{queue_offset}, store:{first}~{last}: the message "
                "is gone, or was never there"
            )

    def is_inside(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Tell whether a queue has, or just had, the offset."""
        return self._store.min_offset(topic, queue_id) <= queue_offset <= self._store.max_offset(topic, queue_id)

    def _known(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise TopicNotExist(f"topic[{topic}] not exist, apply first please!")
        return config
