"""Trace messages of the broker: without ids in KEYS, so that Apache's viewers do not find them by message id."""

from typing import Final

from mqtrail.store import PendingRecord
from mqtrail.wire import PROPERTY_KEYS, PROPERTY_WAIT, Perm, encode_properties

from ..config import BrokerConfig
from ..properties import PropertyRules
from ..tables import TopicTable

_NO_WAIT: Final = encode_properties({PROPERTY_WAIT: "false"}).encode()


class TraceMessages:
    """Makes trace messages of one broker, for the queues of the trace topic in turn. It creates the topic."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, properties: PropertyRules) -> None:
        self._config = config
        self._topics = topics
        self._properties = properties
        self._born_host = config.address.packed()
        self._turn = 0

    def message(self, body: bytes, now_ms: int, key: str = "") -> PendingRecord:
        """Return a message with this body. key: its KEYS; '' for none."""
        properties = encode_properties({PROPERTY_KEYS: key}).encode() + _NO_WAIT if key else _NO_WAIT
        topic = self._topics.create_own(self._config.trace_topic, 1, Perm.READ | Perm.WRITE, now_ms)
        self._turn += 1
        return PendingRecord(
            topic=topic.topic,
            queue_id=self._turn % max(1, topic.write_queue_nums),
            body=body,
            properties=self._properties.of_message(properties).text,
            tags_code=0,
            born_timestamp_ms=now_ms,
            born_host=self._born_host,
        )
