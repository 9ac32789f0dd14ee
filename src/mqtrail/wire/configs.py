"""Configuration that brokers keep, register with name servers and return to administrators: topics, groups, versions.

The same JSON is in topics.json and subscriptionGroup.json. Members are alphabetical; 4.9 peers lack some of them.

Source: TopicConfig, SubscriptionGroupConfig, DataVersion, apache/rocketmq common/ and remoting/.
"""

from typing import Any, Final

import msgspec

from .body import Body, Long
from .codes import Perm

__all__ = [
    "IMPLEMENTATION",
    "IMPLEMENTATION_KEY",
    "DataVersion",
    "SubscriptionGroupConfig",
    "TopicConfig",
]

IMPLEMENTATION_KEY: Final = "implementation"
IMPLEMENTATION: Final = "mqtrail"
"""Added by mqtrail's broker to its settings (request 26), so that readers can distinguish it from Apache's."""


class DataVersion(Body, frozen=True, gc=False):
    """The version of a table. timestamp: epoch ms of the last change. counter: changes so far."""

    timestamp: Long = 0
    counter: Long = 0
    state_version: Long = 0


class TopicConfig(Body, frozen=True, gc=False):
    """A topic on one broker. perm: bits of Perm. order: queues are fixed for ordered messages."""

    topic: str = msgspec.field(name="topicName", default="")
    read_queue_nums: Long = 8
    write_queue_nums: Long = 8
    perm: Long = Perm.READ | Perm.WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Long = 0
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class SubscriptionGroupConfig(Body, frozen=True, gc=False):
    """A consumer group on one broker. retry_max_times: deliveries after the first before a message is given up.

    which_broker_when_consume_slowly: the id of the broker for lagging consumers, if slaves may be read.
    """

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Long = 1
    retry_max_times: Long = 16
    group_retry_policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Long = 0
    consume_timeout_minute: Long = 15
    attributes: dict[str, str] = msgspec.field(default_factory=dict)

    def gives_up(self, failed_count: int) -> bool:
        """Return whether the group gives a message up after so many failed deliveries: it becomes a dead letter."""
        return failed_count > self.retry_max_times
