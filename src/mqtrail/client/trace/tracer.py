"""ClientTracer: the listener that turns hooks into trace records, and the sender that brings them to the trace topic.

When Apache's client writes a record and when not is in docs/design/trace-text.md; this writes the same, and PubAttempt,
SubResult, OffsetCommit beside them. Nothing is recorded of the trace topic itself, and nothing where the broker says
that it wants no trace (TRACE_ON=false).
"""

import itertools
import secrets
from collections.abc import Sequence

from mqtrail.client.config import ProducerConfig, TraceConfig
from mqtrail.client.errors import AttemptFailure
from mqtrail.client.faults import QueueChooser
from mqtrail.client.identity import now_ms, unique_ids
from mqtrail.client.instance import ClientInstance
from mqtrail.client.outgoing import REGION_DEFAULT, Composer, Outgoing, SendResult, send_result
from mqtrail.client.trace.dispatcher import Dispatcher, TraceCounts, TraceRefused
from mqtrail.client.trace.shared_spool import SharedSpool
from mqtrail.client.trace.spool import SpooledMessage
from mqtrail.client.trace.text import clean, offset_commit, pub, pub_attempt, sub_after, sub_before, sub_result
from mqtrail.wire import (
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_TRACE_ON,
    Message,
    MessageExt,
    MessageIllegal,
    MessageQueue,
    MQError,
    SendStatus,
    refusal_for,
)

# ConsumeReturnType's ordinals, RocketMQ client.
CONTEXT_CODES = {"SUCCESS": 0, "TIME_OUT": 1, "EXCEPTION": 2, "RETURNNULL": 3, "FAILED": 4}

_serial = itertools.count(1)


class ClientTracer:
    """The trace of one producer or consumer. It is both a SendHook and a ConsumeHook."""

    def __init__(self, client: ClientInstance, group: str, config: TraceConfig, kind: str = "PRODUCE") -> None:
        self._client = client
        self._group = group
        self._config = config
        self.start_id = secrets.token_hex(8)
        self.producer_group = f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_serial)}"
        sender = TraceSender(client, self.producer_group, config)
        spool = SharedSpool.acquire(config.spool_dir, config.spool_size_max)
        self._dispatcher = Dispatcher(client.client_id, self.start_id, sender.send, config, spool)
        self._record = self._dispatcher.record
        self._next_id = unique_ids().next
        self._client_id = client.client_id

    def start(self) -> None:
        """Begin to send. Called on the client's event loop."""
        self._dispatcher.start()

    async def close(self) -> None:
        """Bring home what is left, or spool it."""
        await self._dispatcher.close()

    def flush(self) -> None:
        """Send what is recorded now, without waiting for company."""
        self._dispatcher.flush()

    @property
    def counts(self) -> TraceCounts:
        """Where the records of this client are."""
        return self._dispatcher.counts

    # -- SendHook --------------------------------------------------------------------------------------------------

    def send_started(self, out: Outgoing) -> None:
        """Nothing is written of an attempt before its end is known."""

    def send_complete(self, out: Outgoing, result: SendResult, cost_ms: int) -> None:
        """One Pub; a PubAttempt too when it was not the first attempt."""
        topic = out.topic
        if not result.trace_on or topic == self._config.topic:
            return
        msg_id = result.msg_id
        keys = out.keys
        text = pub(
            out.started_ms,
            result.region_id,
            self._group,
            topic,
            msg_id,
            out.tags,
            keys,
            out.address,
            len(out.body),
            cost_ms,
            out.msg_type,
            result.offset_msg_id,
            result.status is SendStatus.SEND_OK,
        )
        if out.attempt > 1:
            text += self._attempt(out, result.region_id, "OK", 0, cost_ms, final=True)
        self._record(topic, text, (msg_id, *keys.split()) if keys else (msg_id,))

    def send_failed(self, out: Outgoing, failure: AttemptFailure, *, final: bool) -> None:
        """One PubAttempt: Apache's records cannot tell of a failure."""
        if out.topic == self._config.topic:
            return
        text = self._attempt(out, "", failure.outcome, failure.code, failure.cost_ms, final=final)
        self._record(out.topic, text, _keys_of(out))

    def send_oneway(self, out: Outgoing, cost_ms: int) -> None:
        """One PubAttempt, for there is no answer that a Pub could tell of."""
        if out.topic != self._config.topic:
            self._record(out.topic, self._attempt(out, "", "ONEWAY", None, cost_ms, final=True), _keys_of(out))

    def _attempt(self, out: Outgoing, region: str, outcome: str, code: int | None, cost_ms: int, *, final: bool) -> str:
        if not out.send_id:
            out.send_id = self._next_id()
        queue = out.queue
        return pub_attempt(
            out.started_ms,
            region,
            self._group,
            out.topic,
            out.msg_id,
            out.keys,
            out.address,
            queue.broker_name if queue is not None else "",
            queue.queue_id if queue is not None else -1,
            out.send_id,
            out.attempt,
            out.attempt_max,
            outcome,
            code,
            cost_ms,
            final,
            self._client_id,
            len(out.body),
        )

    # -- ConsumeHook -----------------------------------------------------------------------------------------------

    def consume_started(self, message: MessageExt, started_ms: int) -> str:
        """One SubBefore."""
        request_id = self._next_id()
        properties = message.properties
        if message.topic != self._config.topic and properties.get(PROPERTY_TRACE_ON) != "false":
            region = clean(properties.get(PROPERTY_MSG_REGION) or REGION_DEFAULT)
            keys = clean(properties.get(PROPERTY_KEYS, ""))
            msg_id = clean(message.msg_id)
            text = sub_before(started_ms, region, self._group, request_id, msg_id, message.reconsume_times, keys)
            self._record(message.topic, text, (msg_id, *message.keys))
        return request_id

    def consume_complete(
        self,
        request_id: str,
        message: MessageExt,
        result: str,
        started_ms: int,
        ended_ms: int,
        *,
        success: bool,
        detail: str,
    ) -> None:
        """One SubAfter and one SubResult."""
        properties = message.properties
        if message.topic == self._config.topic or properties.get(PROPERTY_TRACE_ON) == "false":
            return
        cost_ms = max(0, ended_ms - started_ms)
        msg_id = clean(message.msg_id)
        keys = clean(properties.get(PROPERTY_KEYS, ""))
        text = sub_after(
            request_id, msg_id, cost_ms, success, keys, CONTEXT_CODES[result], ended_ms, self._group
        ) + sub_result(
            request_id,
            msg_id,
            self._group,
            message.topic,
            message.broker_name,
            message.queue_id,
            message.queue_offset,
            message.reconsume_times,
            result,
            cost_ms,
            ended_ms,
            self._client_id,
            detail,
        )
        self._record(message.topic, text, (msg_id, *message.keys))

    def offset_committed(self, queue: MessageQueue, consumer_offset: int, now_ms: int) -> None:
        """One OffsetCommit, without keys: it is of no single message."""
        if queue.topic != self._config.topic:
            text = offset_commit(
                now_ms, self._group, queue.topic, queue.broker_name, queue.queue_id, consumer_offset, self._client_id
            )
            self._record(queue.topic, text)


def _keys_of(out: Outgoing) -> Sequence[str]:
    return (out.msg_id, *out.keys.split()) if out.keys else (out.msg_id,)


class TraceSender:
    """Sends trace messages as Apache's inner trace producer does: to the brokers that have the trace topic, in turn."""

    def __init__(self, client: ClientInstance, group: str, config: TraceConfig) -> None:
        self._client = client
        self._config = config
        producer = ProducerConfig(compress_over=config.compress_over, compress_level=1)
        self._producer = producer
        self._composer = Composer(group, producer, unique_ids().next)
        self._chooser = QueueChooser(secrets.randbelow(1 << 20))

    async def send(self, spooled: SpooledMessage) -> None:
        """Send one trace message. Raises TraceRefused when no broker will ever take it, else why it failed now."""
        out = self._composer.message(Message(spooled.topic, spooled.body, keys=spooled.keys))
        template = (self._producer.default_topic, self._producer.default_topic_queue_nums)
        route = await self._client.route(out.topic, template)
        if not route.publish_queues:
            await self._client.fetch_route(out.topic, template)
            raise MQError(f"no queue of the trace topic {out.topic!r} can be written")
        queue = self._chooser.next(route.publish_queues)
        address = self._client.master(queue.broker_name, route)
        command = self._composer.command(out, queue, now_ms())
        reply = await self._client.pool.request(address, command, self._config.send_timeout_ms)
        if send_result(out, queue, reply) is not None:
            return
        refusal = refusal_for(reply.code, reply.remark)
        if isinstance(refusal, MessageIllegal):
            raise TraceRefused(str(refusal))
        raise refusal
