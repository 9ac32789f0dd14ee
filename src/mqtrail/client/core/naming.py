"""Names: a group and its topics as brokers know them, and messages as the application sees them.

Source: DefaultMQPushConsumerImpl.resetRetryAndNamespace and tryResetPopRetryTopic, NamespaceUtil, RocketMQ client.
"""

from dataclasses import replace

from mqtrail.wire import PROPERTY_RETRY_TOPIC, MessageExt, pop_topic_of, retry_topic

from .namespaces import with_namespace, without_namespace


class Names:
    """The names of one group and its topics. namespace: of 4.x, empty for none."""

    def __init__(self, group: str, namespace: str = "") -> None:
        self.namespace = namespace
        self.group = with_namespace(namespace, group)
        self.retry_topic = retry_topic(self.group)
        self._pop_retry_prefixes = (f"{self.retry_topic}_", f"{self.retry_topic}+")

    def topic(self, topic: str) -> str:
        """Return an application's topic as brokers know it."""
        return with_namespace(self.namespace, topic)

    def plain(self, name: str) -> str:
        """Return a broker's name of a topic or group as the application knows it."""
        return without_namespace(self.namespace, name) if self.namespace else name

    def restored(self, message: MessageExt) -> MessageExt:
        """Return a message with the topic it was sent to, where it comes from one of the group's retry topics."""
        topic = message.topic
        if topic == self.retry_topic:
            topic = message.properties.get(PROPERTY_RETRY_TOPIC) or topic
        elif topic.startswith(self._pop_retry_prefixes):
            topic = pop_topic_of(topic, self.group)
        topic = self.plain(topic)
        return message if topic == message.topic else replace(message, topic=topic)
