"""ClientTracer: turns the calls of hooks into trace records; TraceSender: sends trace messages.

It writes the same records as Apache's client (docs/design/trace-text.md), and also PubAttempt, SubResult and
OffsetCommit. It writes no records about the trace topic, nor about brokers with tracing off (TRACE_ON=false).
"""

import itertools
import secrets
from contextlib import suppress
from functools import partial

from mqtrail.clock import now_ms
from mqtrail.wire import (
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_TRACE_ON,
    REGION_DEFAULT,
    CompressionType,
    EndTransaction,
    Message,
    MessageExt,
    MessageIllegal,
    MessageQueue,
    MQError,
    Recall,
    SendOutcome,
    SendStatus,
    encode_record_text,
    refusal_for,
)

from ..core import (
    NEVER,
    AttemptFailure,
    ClientInstance,
    Composer,
    Outgoing,
    ProducerConfig,
    QueueChooser,
    SendResult,
    TraceConfig,
    send_result,
    unique_ids,
)
from .dispatcher import Dispatcher, TraceCounts, TraceRefused
from .shared_spool import SharedSpool
from .spool import SpooledMessage
from .text import (
    clean,
    offset_commit,
    pub,
    pub_at,
    pub_attempt,
    pub_place,
    sub_after,
    sub_before,
    sub_result,
    trace_end,
)

try:  # three times as fast as zlib, with the same format
    from isal.isal_zlib import compress as _compress
except ImportError:  # no wheel for this machine
    from zlib import compress as _compress


# ConsumeReturnType's ordinals, RocketMQ client.
CONTEXT_CODES = {"SUCCESS": 0, "TIME_OUT": 1, "EXCEPTION": 2, "RETURNNULL": 3, "FAILED": 4}

_SEND_OK = SendStatus.SEND_OK

GATHER_COUNT = 64  # Pubs gathered before they are passed to the dispatcher, as one piece
PIECE_SIZE_MAX = 32 * 1024  # characters; larger pieces would leave more of a trace message unused

CONSUME = "CONSUME"
"""Kind of the trace of a consumer."""
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
        spool = SharedSpool.acquire(config.spool_dir, client.name_servers.names, config.spool_size_max)
        end = partial(trace_end, group=group, client_id=client.client_id, start_id=self.start_id)
        self._dispatcher = Dispatcher(
            client.client_id,
            self.start_id,
            sender.send,
            config,
            spool,
            self._hand_over,
            end=end if kind == CONSUME else None,
        )
        # Pubs of one topic and region, not yet passed to the dispatcher.
        self._topic = self._region_id = self._place = ""
        self._started_ms = 0
        self._texts: list[str] = []
        self._ids: list[str] = []
        self._keys: list[str] = []
        self._record = self._dispatcher.record
        self._next_id = unique_ids().next
        self._client_id = client.client_id

    def start(self) -> None:
        """Start sending. Call it on the client's event loop."""
        self._dispatcher.start()

    async def close(self) -> None:
        """Flush the trace; spool what cannot be sent."""
        await self._dispatcher.close()

    def flush(self) -> None:
        """Send the recorded contexts now, without lingering."""
        self._dispatcher.flush()

    @property
    def counts(self) -> TraceCounts:
        """The numbers of this client's contexts by state."""
        return self._dispatcher.counts

    # -- SendHook --------------------------------------------------------------------------------------------------

    def send_started(self, out: Outgoing) -> None:
        """Do nothing: a record is written at the end of an attempt."""

    def send_complete(self, out: Outgoing, result: SendResult, cost_ms: int) -> None:
        """Write one Pub; after a retry also a PubAttempt.

        Pubs of successful first attempts, nearly all of them, are gathered and passed to the dispatcher together,
        because only this method adds to the cost of a send.
        """
        status, msg_id, offset_msg_id, _, _, _, region_id, trace_on, _ = result
        # Ids come from the reply and from the application: those that may contain a separator go through `pub`.
        if out.attempt == 1 and trace_on and status is _SEND_OK and msg_id.isalnum() and offset_msg_id.isalnum():
            if out.topic != self._topic or region_id != self._region_id:
                self._turn_to(out.topic, region_id, out.started_ms)
            keys = out.keys
            text = pub_at(
                self._place,
                out.started_ms,
                msg_id,
                out.tags,
                keys,
                out.address,
                out.body_size,
                cost_ms,
                out.msg_type,
                offset_msg_id,
                True,
            )
            self._texts.append(text)
            self._keys.append(keys)
            ids = self._ids
            ids.append(msg_id)
            if len(ids) >= GATHER_COUNT:
                self._hand_over()
        elif trace_on and out.topic != self._config.topic:
            success = status is _SEND_OK
            text = pub(
                out.started_ms,
                result.region_id,
                self._group,
                out.topic,
                result.msg_id,
                out.tags,
                out.keys,
                out.address,
                out.body_size,
                cost_ms,
                out.msg_type,
                result.offset_msg_id,
                success,
            )
            if out.attempt > 1:
                final = success or out.attempt >= out.attempt_max
                text += self._attempt(out, result.region_id, SendOutcome.OK, 0, cost_ms, final=final)
            self._record(out.topic, text, (msg_id, out.keys), out.started_ms)

    def _turn_to(self, topic: str, region_id: str, started_ms: int) -> None:
        """Start to gather Pubs of another topic or region."""
        self._hand_over()
        self._topic, self._region_id, self._started_ms = topic, region_id, started_ms
        self._place = pub_place(clean(region_id), self._group, topic)
        self._dispatcher.wake_later()

    def _hand_over(self) -> None:
        """Pass the gathered Pubs to the dispatcher, as one piece if that is small and ASCII."""
        texts, ids, keys = self._texts, self._ids, self._keys
        topic, self._topic = self._topic, ""
        if not texts:
            return
        self._texts, self._ids, self._keys = [], [], []
        if topic == self._config.topic:
            return
        text = "".join(texts)
        if len(text) <= PIECE_SIZE_MAX and text.isascii():
            self._record(topic, text, keys, self._started_ms, ids=" ".join(ids), count=len(texts))
        else:
            for one, msg_id, own_keys in zip(texts, ids, keys, strict=True):
                self._record(topic, one, (msg_id, own_keys), self._started_ms)

    def send_failed(self, out: Outgoing, failure: AttemptFailure, *, final: bool) -> None:
        """Write one PubAttempt: Apache's records do not cover failures."""
        if out.topic == self._config.topic:
            return
        text = self._attempt(out, "", failure.outcome, failure.code, failure.cost_ms, final=final)
        self._record(out.topic, text, (out.msg_id, out.keys), out.started_ms)

    def send_oneway(self, out: Outgoing, cost_ms: int) -> None:
        """Write one PubAttempt: a Pub needs the broker's answer."""
        if out.topic != self._config.topic:
            text = self._attempt(out, "", SendOutcome.ONEWAY, None, cost_ms, final=True)
            self._record(out.topic, text, (out.msg_id, out.keys), out.started_ms)

    def record_seldom(self, record: EndTransaction | Recall) -> None:
        """Write the record of a transaction's end or of a recall, which are rare."""
        topic = record.topic or ""
        if topic != self._config.topic:
            keys = getattr(record, "keys", None) or ""
            self._record(topic, encode_record_text(record), (record.msg_id or "", keys), record.time_stamp)

    def _attempt(
        self, out: Outgoing, region: str, outcome: SendOutcome, code: int | None, cost_ms: int, *, final: bool
    ) -> str:
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
            out.body_size,
        )

    # -- ConsumeHook -----------------------------------------------------------------------------------------------

    def consume_started(self, request_id: str, message: MessageExt, started_ms: int) -> None:
        """Write one SubBefore."""
        properties = message.properties
        if message.topic != self._config.topic and properties.get(PROPERTY_TRACE_ON) != "false":
            region = properties.get(PROPERTY_MSG_REGION) or REGION_DEFAULT
            keys = clean(properties.get(PROPERTY_KEYS, ""))
            msg_id = clean(message.msg_id)
            text = sub_before(started_ms, region, self._group, request_id, msg_id, message.reconsume_times, keys)
            self._record(message.topic, text, (msg_id,) if keys == "null" else (msg_id, keys), started_ms)

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
        batch_count: int = 1,
    ) -> None:
        """Write one SubAfter and one SubResult. As in Java, a handler's time is divided by its number of messages."""
        properties = message.properties
        if message.topic == self._config.topic or properties.get(PROPERTY_TRACE_ON) == "false":
            return
        cost_ms = max(0, ended_ms - started_ms) // batch_count
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
        self._record(message.topic, text, (msg_id,) if keys == "null" else (msg_id, keys), ended_ms)

    def offset_committed(self, queue: MessageQueue, consumer_offset: int, now_ms: int) -> None:
        """Write one OffsetCommit, without keys: it does not belong to a single message."""
        if queue.topic != self._config.topic:
            text = offset_commit(
                now_ms, self._group, queue.topic, queue.broker_name, queue.queue_id, consumer_offset, self._client_id
            )
            self._record(queue.topic, text, (), now_ms)


def _deflate(body: bytes) -> bytes:
    return bytes(_compress(body, 1))


class TraceSender:
    """Sends trace messages as Apache's inner trace producer does: round robin over the trace topic's queues."""

    def __init__(self, client: ClientInstance, group: str, config: TraceConfig) -> None:
        self._client = client
        self._config = config
        producer = self._producer = ProducerConfig(compress_over=NEVER)  # done here, by a faster library
        self._composer = Composer(group, producer, unique_ids().next)
        self._chooser = QueueChooser(secrets.randbelow(1 << 20))

    async def send(self, spooled: SpooledMessage) -> None:
        """Send one trace message. Raises TraceRefused if every retry would be refused, else MQError or TimeoutError."""
        keys = clean(spooled.keys) if spooled.keys else ""  # a property cannot contain separators
        out = self._composer.message(Message(spooled.topic, spooled.body, keys=keys))
        if out.body_size >= self._config.compress_over:
            out.body, out.sys_flag = _deflate(spooled.body), CompressionType.ZLIB.sys_flag
        template = (self._producer.default_topic, self._producer.default_topic_queue_nums)
        route = await self._client.route(out.topic, template)
        if not route.publish_queues:
            await self._client.fetch_route(out.topic, template)
            raise MQError(f"found no writable queue of the trace topic {out.topic!r}: check its brokers")
        queue = self._chooser.next(route.publish_queues)
        try:
            address = self._client.master(queue.broker_name, route)
            command = self._composer.command(out, queue, now_ms())
            reply = await self._client.pool.request(address, command, self._config.send_timeout_ms)
            if send_result(out, queue, reply) is not None:
                return
            refusal = refusal_for(reply.code, reply.remark)
            if isinstance(refusal, MessageIllegal):
                raise TraceRefused(str(refusal))
            raise refusal
        except MQError as error:
            if not isinstance(error, TraceRefused):
                await self._renew(out.topic, template)
            raise

    async def _renew(self, topic: str, template: tuple[str, int]) -> None:
        """Request the route for the next attempt: another broker may be master now."""
        with suppress(MQError):  # the next attempt reports it
            await self._client.fetch_route(topic, template)
