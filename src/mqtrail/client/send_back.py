"""Giving a failed message back: the broker keeps it for later, and where it cannot be asked, we send a copy ourselves.

1. CONSUMER_SEND_MSG_BACK (36) to the broker that holds the record: it writes a delayed copy to %RETRY%group, or to
   %DLQ%group after the last attempt.
2. If that fails, a normal send to %RETRY%group with what the broker would have noted.
3. If that fails too, the caller keeps the message and tries it again by itself.
Source: DefaultMQPushConsumerImpl.sendMessageBack, RocketMQ client.
"""

from mqtrail.client.composer import Composer
from mqtrail.client.config import ProducerConfig
from mqtrail.client.consumer_config import ConsumerConfig
from mqtrail.client.errors import SendFailed
from mqtrail.client.faults import QueueChooser
from mqtrail.client.identity import now_ms, unique_ids
from mqtrail.client.instance import ClientInstance
from mqtrail.client.naming import Names
from mqtrail.client.outgoing import send_result
from mqtrail.net import Log
from mqtrail.wire import (
    INNER_PRODUCER_GROUP,
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_DELAY,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRAN_MSG,
    Message,
    MessageExt,
    MQError,
    RequestCode,
    refusal_for,
    retry_topic,
)

log = Log()

DELAY_LEVEL_FIRST = 3  # 10 s; each failed attempt adds a level
ATTEMPTS_MAX_DEFAULT = 16


class SendBack:
    """Gives failed messages of one group back."""

    def __init__(self, client: ClientInstance, names: Names, config: ConsumerConfig) -> None:
        self._client = client
        self._names = names
        self._group = names.group
        self._config = config
        self._composer = Composer(INNER_PRODUCER_GROUP, ProducerConfig(), unique_ids().next)
        self._chooser = QueueChooser(0)

    async def give_back(self, message: MessageExt, delay_level: int) -> bool:
        """Give one message back; False when neither way worked and the caller must keep it."""
        try:
            await self._to_broker(message, delay_level)
        except (MQError, OSError) as error:
            log.warning("consumer.send_back_failed", group=self._group, msg_id=message.msg_id, error=str(error))
        else:
            return True
        try:
            await self.resend(message, DELAY_LEVEL_FIRST + message.reconsume_times)
        except (MQError, OSError) as error:
            log.error("consumer.resend_failed", group=self._group, msg_id=message.msg_id, error=str(error))
            return False
        return True

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
        """Send a copy to the group's retry topic; the broker makes a dead letter of it after the last attempt."""
        properties = dict(message.properties)
        for name in (PROPERTY_MIN_OFFSET, PROPERTY_MAX_OFFSET, PROPERTY_CONSUME_START_TIME, PROPERTY_TRAN_MSG):
            properties.pop(name, None)  # of this delivery, not of the message
        properties.setdefault(PROPERTY_RETRY_TOPIC, self._names.topic(message.topic))
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.msg_id)
        properties[PROPERTY_DELAY] = str(delay_level)
        topic = retry_topic(self._group)
        out = self._composer.message(Message(topic, message.body, flag=message.flag, properties=properties))
        out.reconsume_times = message.reconsume_times + 1
        attempts_max = self._config.attempts_max
        out.reconsume_times_max = ATTEMPTS_MAX_DEFAULT if attempts_max is None else attempts_max
        route = await self._client.route(topic, ("TBW102", 1))
        if not route.publish_queues:
            raise SendFailed(topic, out.msg_id, [], "no queue of the retry topic can be written")
        queue = self._chooser.next(route.publish_queues)
        command = self._composer.command(out, queue, now_ms())
        address = self._client.master(queue.broker_name, route)
        reply = await self._client.pool.request(address, command, self._config.send_back_timeout_ms)
        if send_result(out, queue, reply) is None:
            raise refusal_for(reply.code, reply.remark)
