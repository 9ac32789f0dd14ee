"""The composer: validates and compresses messages, assigns their ids, and writes their requests.

The request is SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) or, for the reply to a request, SEND_REPLY_MESSAGE_V2
(325), with a JSON header. The part that is the same for all sends of a producer to one topic and broker is written once
and kept as a template.
Source: DefaultMQProducerImpl and Validators, RocketMQ client; header fields in docs/design/frame.md.
"""

from collections.abc import Callable, Sequence

import msgspec

from mqtrail.wire import (
    DELAY_PROPERTIES,
    PROPERTIES_SIZE_MAX,
    PROPERTY_DELAY,
    PROPERTY_INSTANCE_ID,
    PROPERTY_KEYS,
    PROPERTY_MSG_TYPE,
    PROPERTY_START_DELIVER_TIME,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    RAW_UNIQ_KEY,
    RETRY_PREFIX,
    UNSENDABLE_TOPICS,
    BatchItem,
    InvalidParameter,
    Message,
    MessageQueue,
    MessageSysFlag,
    PropertiesError,
    RemotingCommand,
    compress,
    encode_batch,
    encode_properties,
    validate_topic,
)

from .config import ProducerConfig
from .errors import InvalidMessage
from .namespaces import with_namespace
from .outgoing import MSG_TYPE_DELAY, MSG_TYPE_HALF, MSG_TYPE_NORMAL, SEND, SEND_BATCH, SEND_REPLY, Outgoing


class Composer:
    """Prepares one producer's messages and writes their requests."""

    def __init__(self, group: str, config: ProducerConfig, next_id: Callable[[], str], namespace: str = "") -> None:
        self._group = with_namespace(namespace, group)
        self._namespace = namespace
        self._config = config
        self._next_id = next_id
        self._topics: set[str] = set()
        self._heads: dict[tuple[str, str, int], tuple[bytes, bytes]] = {}

    def message(self, message: Message) -> Outgoing:
        """Validate and prepare one message. Raises InvalidMessage, which states what was found and what is allowed."""
        topic = message.topic
        if topic not in self._topics:
            self._check_topic(topic)
        body = message.body
        self._check_body(body)
        properties = message.wire_properties()
        msg_id = properties.get(PROPERTY_UNIQ_KEY) or self._next_id()
        code, wire_topic = SEND, topic
        if properties.get(PROPERTY_MSG_TYPE) == "reply":
            code = SEND_REPLY  # a reply topic belongs to the cluster and has no namespace
        elif self._namespace:
            wire_topic = with_namespace(self._namespace, topic)
            properties[PROPERTY_INSTANCE_ID] = self._namespace
        tags = properties.get(PROPERTY_TAGS, "")
        keys = properties.get(PROPERTY_KEYS, "")
        if "\x01" in tags or "\x01" in keys:  # for the trace; the message keeps them unchanged
            tags, keys = tags.replace("\x01", ""), keys.replace("\x01", "")
        text = self._properties({PROPERTY_UNIQ_KEY: msg_id} | properties)
        sys_flag = 0
        if len(body) >= self._config.compress_over:
            sys_flag = self._config.compress_type.sys_flag
            body = compress(body, self._config.compress_type, self._config.compress_level)
        msg_type = MSG_TYPE_NORMAL
        if PROPERTY_DELAY in properties or PROPERTY_START_DELIVER_TIME in properties:
            msg_type = MSG_TYPE_DELAY
        elif properties.get(PROPERTY_TRAN_MSG) == "true":
            msg_type = MSG_TYPE_HALF
            sys_flag |= MessageSysFlag.TRANSACTION_PREPARED
        return Outgoing(
            topic,
            body,
            text,
            msg_id,
            tags=tags,
            keys=keys,
            flag=message.flag,
            sys_flag=sys_flag,
            msg_type=msg_type,
            code=code,
            wire_topic=wire_topic,
        )

    def check(self, message: Message) -> None:
        """Raise InvalidMessage for a message that no broker accepts, as `message` does."""
        if message.topic not in self._topics:
            self._check_topic(message.topic)
        self._check_body(message.body)
        properties = message.wire_properties()
        self._properties(properties)

    def batch(self, messages: Sequence[Message]) -> Outgoing:
        """Validate messages for one batch: one topic, one WAIT, no delay, at most body_size_max bytes in total.

        The batch itself gets no id: brokers from 4.9 to 5.3.3 would replace the ids of its messages with it.
        """
        if not messages:
            raise InvalidMessage("found an empty batch, expected at least one message")
        topic = messages[0].topic
        if topic not in self._topics:
            self._check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            raise InvalidMessage(f"a batch for the retry topic {topic!r}: send such messages one by one")
        ids: list[str] = []
        items: list[BatchItem] = []
        waits = set()
        for message in messages:
            if message.topic != topic:
                raise InvalidMessage(f"a batch with topics {topic!r} and {message.topic!r}: expected one topic")
            self._check_body(message.body)
            properties = message.wire_properties()
            if not _DELAYS.isdisjoint(properties):
                raise InvalidMessage("a delayed message in a batch: send delayed messages one by one")
            waits.add(properties[PROPERTY_WAIT])
            msg_id = properties.get(PROPERTY_UNIQ_KEY) or self._next_id()
            text = self._properties({PROPERTY_UNIQ_KEY: msg_id} | properties)
            ids.append(msg_id)
            items.append(BatchItem(message.body, text.encode(), message.flag))
        if len(waits) > 1:
            raise InvalidMessage(f"a batch with WAIT {sorted(waits)}: expected one value for all of its messages")
        return self._batch(topic, items, ids, waits.pop())

    def encoded(self, topic: str, items: Sequence[BatchItem]) -> Outgoing:
        """Prepare a batch of items whose properties are encoded: WAIT=true and others, no UNIQ_KEY and no delay.

        Equal to `batch` of the same messages; the properties are not read. Raises InvalidMessage.
        """
        if not items:
            raise InvalidMessage("found an empty batch, expected at least one message")
        if topic not in self._topics:
            self._check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            raise InvalidMessage(f"a batch for the retry topic {topic!r}: send such messages one by one")
        ids = [self._next_id() for _ in items]
        with_ids = []
        for item, msg_id in zip(items, ids, strict=True):
            body, properties, flag = item
            self._check_body(body)
            properties = b"%b\x01%b\x02%b" % (RAW_UNIQ_KEY, msg_id.encode(), properties)
            if len(properties) > PROPERTIES_SIZE_MAX:
                raise InvalidMessage(
                    f"properties of {len(properties)} bytes, at most {PROPERTIES_SIZE_MAX} are allowed: move data to "
                    "the body"
                )
            with_ids.append(BatchItem(body, properties, flag))
        return self._batch(topic, with_ids, ids, "true")

    def _batch(self, topic: str, items: Sequence[BatchItem], ids: Sequence[str], wait: str) -> Outgoing:
        body = encode_batch(items)
        if len(body) > self._config.body_size_max:
            raise InvalidMessage(
                f"a batch of {len(items)} messages is {len(body)} bytes, at most {self._config.body_size_max} are "
                "allowed: send smaller batches, or use send_all, which splits them"
            )
        properties = {PROPERTY_WAIT: wait}
        if self._namespace:
            properties[PROPERTY_INSTANCE_ID] = self._namespace
        wire_topic = with_namespace(self._namespace, topic)
        text = encode_properties(properties)
        return Outgoing(topic, body, text, ",".join(ids), code=SEND_BATCH, wire_topic=wire_topic)

    def command(self, out: Outgoing, queue: MessageQueue, born_ms: int) -> RemotingCommand:
        """Return the request for one attempt."""
        ext = {
            "a": self._group,
            "b": out.wire_topic,
            "c": self._config.default_topic,
            "d": str(self._config.default_topic_queue_nums),
            "e": str(queue.queue_id),
            "f": str(out.sys_flag),
            "g": str(born_ms),
            "h": str(out.flag),
            "i": out.properties,
            "j": str(out.reconsume_times),
            "k": "false",
            "m": "true" if out.batch else "false",
            "n": queue.broker_name,
        }
        if out.reconsume_times_max is not None:
            ext["l"] = str(out.reconsume_times_max)
        return RemotingCommand(out.code, ext, out.body)

    def frame(self, out: Outgoing, queue: MessageQueue, born_ms: int, opaque: int, flag: int = 0) -> bytes:
        """Return the request's frame: the bytes of encode_command(command(...)), at a third of the cost.

        Not for copies to a %RETRY% topic.
        """
        head = self._heads.get((out.wire_topic, queue.broker_name, out.code))
        if head is None:
            head = self._head(out.wire_topic, queue.broker_name, out.code)
        before, after = head
        header = b'%be":"%d","f":"%d","g":"%d","h":"%d","i":%b%b%d,"language":"PYTHON","opaque":%d%b' % (
            before,
            queue.queue_id,
            out.sys_flag,
            born_ms,
            out.flag,
            _json(out.properties),
            after,
            flag,
            opaque,
            _TAIL,
        )
        size = len(header)
        return b"".join(((4 + size + len(out.body)).to_bytes(4, "big"), size.to_bytes(4, "big"), header, out.body))

    def _head(self, topic: str, broker_name: str, code: int) -> tuple[bytes, bytes]:
        a, b, c = _json(self._group), _json(topic), _json(self._config.default_topic)
        before = b'{"code":%d,"extFields":{"a":%b,"b":%b,"c":%b,"d":"%d","' % (
            code, a, b, c, self._config.default_topic_queue_nums,
        )  # fmt: skip
        batch = b"true" if code == SEND_BATCH else b"false"
        after = b',"j":"0","k":"false","m":"%b","n":%b},"flag":' % (batch, _json(broker_name))
        if len(self._heads) >= 4_096:  # topics times brokers; beyond that the templates are written again
            self._heads.clear()
        self._heads[topic, broker_name, code] = before, after
        return before, after

    def _check_topic(self, topic: str) -> None:
        try:
            validate_topic(topic)
        except InvalidParameter as error:
            raise InvalidMessage(f"topic {topic!r}: {error}") from error
        if topic in UNSENDABLE_TOPICS:
            raise InvalidMessage(f"topic {topic!r} is a system topic of the broker: send to another topic")
        if len(self._topics) >= 65_536:
            self._topics.clear()
        self._topics.add(topic)

    def _check_body(self, body: bytes) -> None:
        if not isinstance(body, bytes):
            raise InvalidMessage(f"a body of {type(body).__name__}: expected bytes; encode text first")
        if not body or len(body) > self._config.body_size_max:
            raise InvalidMessage(f"a body of {len(body)} bytes: expected 1 to {self._config.body_size_max}")

    def _properties(self, properties: dict[str, str]) -> str:
        try:
            text = encode_properties(properties)
        except (PropertiesError, TypeError) as error:
            raise InvalidMessage(f"properties cannot be encoded: {error}") from error
        if len(text) > PROPERTIES_SIZE_MAX // 4 and len(text.encode()) > PROPERTIES_SIZE_MAX:
            raise InvalidMessage(
                f"properties of {len(text.encode())} bytes, at most {PROPERTIES_SIZE_MAX} are allowed: "
                "move data to the body"
            )
        return text


_json = msgspec.json.Encoder().encode
_DELAYS = frozenset(DELAY_PROPERTIES)
_TAIL = b',"serializeTypeCurrentRPC":"JSON","version":479}'
