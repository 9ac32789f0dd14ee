"""Returning a failed message: the broker stores it for later, or, if that request fails, the client sends a copy.

1. CONSUMER_SEND_MSG_BACK (36) to the broker that holds the record: it writes a delayed copy to %RETRY%group, or to
   %DLQ%group after the last attempt.
2. If that fails, a normal send to %RETRY%group with the properties that the broker would have set.
3. If that fails too, the caller keeps the message and retries it.

An undecodable message becomes a dead letter immediately, with its bytes as stored. The client sends a copy first,
because only its own copy can have the reason as a property. The copy goes to %RETRY%group with its attempts used up
(reconsumeTimes above maxReconsumeTimes); every broker turns such a message into a dead letter.
Source: DefaultMQPushConsumerImpl.sendMessageBack, RocketMQ client.
"""

from mqtrail.clock import now_ms
from mqtrail.wire import (
    DEFAULT_TOPIC,
    FRAME_SIZE_MAX,
    INNER_PRODUCER_GROUP,
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_DELAY,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_POP_CK,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRAN_MSG,
    Message,
    MessageExt,
    MessageSysFlag,
    RequestCode,
    refusal_for,
    retry_topic,
)

from ..core import (
    NEVER,
    ClientInstance,
    Composer,
    ConsumerConfig,
    Names,
    Outgoing,
    ProducerConfig,
    QueueChooser,
    SendFailed,
    report,
    send_result,
    unique_ids,
)
from ..trace import detail
from .delivery import DEAD_LETTER

DELAY_LEVEL_FIRST = 3  # 10 s; each failed attempt adds a level
ATTEMPTS_MAX_DEFAULT = 16
PROPERTY_UNDECODABLE = "UNDECODABLE_REASON"  # of a dead letter: why the consumer could not read the message
_COMPRESSION = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK


class SendBackCalls:
    """Returns failed messages of one group to the broker."""

    def __init__(self, client: ClientInstance, names: Names, config: ConsumerConfig) -> None:
        self._client = client
        self._names = names
        self._group = names.group
        self._config = config
        self._composer = Composer(INNER_PRODUCER_GROUP, ProducerConfig(), unique_ids().next)
        raw = ProducerConfig(compress_over=NEVER, body_size_max=FRAME_SIZE_MAX)
        self._raw_composer = Composer(INNER_PRODUCER_GROUP, raw, unique_ids().next)
        self._chooser = QueueChooser(0)

    async def give_back(self, message: MessageExt, delay_level: int) -> bool:
        """Send back one message. False: both ways failed, and the caller must keep it."""
        try:
            await self._to_broker(message, delay_level)
        except Exception as error:
            report("consumer.send_back_failed", error, group=self._group, msg_id=message.msg_id)
        else:
            return True
        try:
            await self.resend(message, DELAY_LEVEL_FIRST + message.reconsume_times)
        except Exception as error:
            report("consumer.resend_failed", error, group=self._group, msg_id=message.msg_id)
            return False
        return True

    async def dead_letter(self, message: MessageExt) -> bool:
        """Make an undecodable message a dead letter. False: both ways failed, and the caller must keep it."""
        copy = self._copy(message) | {PROPERTY_UNDECODABLE: detail(message.undecodable or "")}
        try:
            out = self._outgoing(message, copy)
            out.reconsume_times, out.reconsume_times_max = 1, 0
            await self._send(out)
            return True
        except Exception as error:
            report("consumer.dead_letter_failed", error, group=self._group, msg_id=message.msg_id)
        try:
            await self._to_broker(message, DEAD_LETTER)
            return True
        except Exception as error:
            report("consumer.send_back_failed", error, group=self._group, msg_id=message.msg_id)
            return False

    async def _to_broker(self, message: MessageExt, delay_level: int) -> None:
        ext = {
            "offset": str(message.physical_offset),
            "group": self._group,
            "delayLevel": str(delay_level),
            "originMsgId": message.msg_id,
            "originTopic": self._names.topic(message.topic),
            "unitMode": "false",
            "bname": message.broker_name,
        }
        if self._config.attempts_max is not None:
            ext["maxReconsumeTimes"] = str(self._config.attempts_max)
        address = self._client.master(message.broker_name) if message.broker_name else str(message.store_host)
        timeout_ms = self._config.send_back_timeout_ms
        await self._client.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, ext, timeout_ms=timeout_ms)

    async def resend(self, message: MessageExt, delay_level: int) -> None:
        """Send a copy to the group's retry topic; after the last attempt the broker makes it a dead letter."""
        out = self._outgoing(message, self._copy(message) | {PROPERTY_DELAY: str(delay_level)})
        out.reconsume_times = message.reconsume_times + 1
        attempts_max = self._config.attempts_max
        out.reconsume_times_max = ATTEMPTS_MAX_DEFAULT if attempts_max is None else attempts_max
        await self._send(out)

    def _copy(self, message: MessageExt) -> dict[str, str]:
        """Return the properties of a copy."""
        properties = dict(message.properties)
        for name in _OF_THE_DELIVERY:
            properties.pop(name, None)
        properties.setdefault(PROPERTY_RETRY_TOPIC, self._names.topic(message.topic))
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.msg_id)
        return properties

    def _outgoing(self, message: MessageExt, properties: dict[str, str]) -> Outgoing:
        composed = Message(retry_topic(self._group), message.body, flag=message.flag, properties=properties)
        if message.undecodable is None:
            return self._composer.message(composed)
        out = self._raw_composer.message(composed)
        out.sys_flag |= message.sys_flag & _COMPRESSION  # its body is as stored
        return out

    async def _send(self, out: Outgoing) -> None:
        topic = out.topic
        route = await self._client.route(topic, (DEFAULT_TOPIC, 1))
        if not route.publish_queues:
            raise SendFailed(topic, out.msg_id, [], "the retry topic has no writable queue")
        queue = self._chooser.next(route.publish_queues)
        command = self._composer.command(out, queue, now_ms())
        address = self._client.master(queue.broker_name, route)
        reply = await self._client.pool.request(address, command, self._config.send_back_timeout_ms)
        if send_result(out, queue, reply) is None:
            raise refusal_for(reply.code, reply.remark)


# Properties of one delivery, not of the message.
_OF_THE_DELIVERY = (
    PROPERTY_MIN_OFFSET,
    PROPERTY_MAX_OFFSET,
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_TRAN_MSG,
    PROPERTY_POP_CK,
    PROPERTY_FIRST_POP_TIME,
)
