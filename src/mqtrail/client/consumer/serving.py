"""Requests of brokers to a consumer: rebalance, running info, consume one message directly, reset offsets.

Codes 40, 220, 221, 307, 309; other codes get no reply. Source: ClientRemotingProcessor, RocketMQ client.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from mqtrail.net import Log
from mqtrail.wire import (
    MQ_VERSION,
    PROP_CLIENT_VERSION,
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    PROP_NAMESERVER_ADDR,
    BodyError,
    CompressionError,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumerStatus,
    DirectConsumeResult,
    MessageQueue,
    MQError,
    PopQueueInfo,
    ProcessQueueInfo,
    QueueOffsets,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    open_record,
    version_text,
)

from ..core import Names, RetryLater
from ..delivery import Batch, ConsumerStats, Delivery, Outcome, ProcessQueue
from ..pop import PopQueue
from . import stacks
from .handlers import Handlers

log = Log()


class ServedConsumer(Protocol):
    """A consumer as operators see it."""

    group: str
    started_ms: int

    @property
    def names(self) -> Names: ...

    @property
    def handlers(self) -> Handlers: ...

    @property
    def delivers_undecodable(self) -> bool: ...

    @property
    def stats(self) -> ConsumerStats: ...

    @property
    def namesrv_addresses(self) -> Sequence[str]: ...

    def facts(self) -> Mapping[str, str]: ...

    def heartbeat_data(self) -> ConsumerData: ...

    def consumer_offsets(self) -> Mapping[MessageQueue, int]: ...

    def queue_infos(self) -> dict[MessageQueue, ProcessQueueInfo]: ...

    def pop_infos(self) -> Mapping[MessageQueue, PopQueue]: ...

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None: ...

    def on_route_changed(self) -> None: ...


class ConsumerServices:
    """Answers a broker's requests for one consumer."""

    def __init__(self, consumer: ServedConsumer) -> None:
        self._consumer = consumer

    async def serve(self, command: RemotingCommand) -> RemotingCommand | None:
        """Return the reply; None if the request has none."""
        match command.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._consumer.on_route_changed()
                return None
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                await self._reset(command)
                return None
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                topic = command.ext.get("topic", "")
                offsets = self._consumer.consumer_offsets().items()
                status = ConsumerStatus({queue: offset for queue, offset in offsets if queue.topic == topic})
                return RemotingCommand.reply_to(command, 0, body=status.encode(strict=False))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                info = self._running_info(with_stacks=command.ext.get("jstackEnable") == "true")
                return RemotingCommand.reply_to(command, 0, body=info.encode(strict=False))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return await self._consume_directly(command)
        return None

    async def _reset(self, command: RemotingCommand) -> None:
        """Reset offsets for an operator."""
        topic = command.ext.get("topic", "")
        try:
            offsets = QueueOffsets.decode(command.body).offset_table
        except BodyError as error:
            log.sparse.warning("consumer.reset_unreadable", group=self._consumer.group, error=str(error))
            return
        wanted = {queue: offset for queue, offset in offsets.items() if queue.topic == topic and offset >= 0}
        log.sparse.info("consumer.offsets_reset", group=self._consumer.group, topic=topic, count=len(wanted))
        await self._consumer.reset_offsets(wanted)

    async def _consume_directly(self, command: RemotingCommand) -> RemotingCommand:
        """Run the handler once on the message in the body, independently of other deliveries; nothing is settled."""
        consumer = self._consumer
        if not consumer.handlers:
            remark = "found no handler, expected one: this consumer iterates over its messages"
            return RemotingCommand.reply_to(command, ResponseCode.SYSTEM_ERROR, remark)
        begun = time.monotonic()
        result, remark = "CR_SUCCESS", ""
        try:
            message = open_record(command.body, command.ext.get("brokerName", ""))
            if message.undecodable is not None and not consumer.delivers_undecodable:
                raise CompressionError(f"this consumer cannot read the message: {message.undecodable}")
            settler = _Unsettled()
            queue = ProcessQueue(message.queue)
            deliveries = [Delivery(consumer.names.restored(message), queue, settler)]
            item = Batch(deliveries, settler) if consumer.handlers.batches else deliveries[0]
            answer = await consumer.handlers.call(item)
            if isinstance(answer, RetryLater) or deliveries[0].outcome.result != "SUCCESS":
                result = "CR_LATER"
        except RetryLater:
            result = "CR_LATER"
        except MQError as error:
            return RemotingCommand.reply_to(command, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:
            result, remark = "CR_THROW_EXCEPTION", repr(error)
        spent_ms = int((time.monotonic() - begun) * 1000)
        ordered = consumer.facts()[PROP_CONSUME_ORDERLY] == "true"
        body = DirectConsumeResult(result, ordered, remark=remark, spent_time_mills=spent_ms)
        return RemotingCommand.reply_to(command, ResponseCode.SUCCESS, body=body.encode())

    def _running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        consumer = self._consumer
        data = consumer.heartbeat_data()
        properties = {
            PROP_CLIENT_VERSION: version_text(MQ_VERSION),
            PROP_CONSUME_TYPE: data.consume_type.value,
            PROP_CONSUMER_START_TIMESTAMP: str(consumer.started_ms),
            PROP_NAMESERVER_ADDR: ";".join(consumer.namesrv_addresses),
            "PROP_UNDECODABLE_COUNT": str(consumer.stats.totals().undecodable),
            **consumer.facts(),
        }
        subscriptions = data.subscription_data_set
        return ConsumerRunningInfo(
            properties,
            subscriptions,
            consumer.queue_infos(),
            consumer.stats.status(),
            jstack=stacks.dump() if with_stacks else None,
            mq_pop_table={
                queue: PopQueueInfo(popped.dropped, popped.last_pop_ms, popped.waiting)
                for queue, popped in consumer.pop_infos().items()
            },
        )


class _Unsettled:
    """Settles nothing: direct consumption does not change a message's state."""

    def begun(self, deliveries: Sequence[Delivery]) -> None:
        return None

    def startable(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return deliveries

    def abandon(self, deliveries: Sequence[Delivery]) -> None:
        return None

    async def settle(self, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        return None
