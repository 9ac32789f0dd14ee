"""Sending back (36): a group asks for another delivery of a message, until its retries are exhausted.

The copy goes to %RETRY%group through a delay level (level 0: 3 + number of deliveries), or to the dead-letter topic
%DLQ%group. It keeps body, properties, born time and host, and names its origin (RETRY_TOPIC, ORIGIN_MESSAGE_ID).

Source: AbstractSendMessageProcessor.consumerSendMsgBack, apache/rocketmq broker/processor/.
"""

from mqtrail.wire import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    DeadLetterCause,
    Host,
    NoPermission,
    Peer,
    Perm,
    QueryNotFound,
    RemotingCommand,
    Send,
    SendBackHeader,
    SystemError_,
    TopicSysFlag,
    answer,
    decode_head,
    decode_properties,
    delay_of_level,
    dlq_topic,
    encode_properties,
    offset_msg_id,
    retry_topic,
    revive_topic,
)

from ..copies import copy_of
from ..properties import check_size
from ..state import BrokerState
from ..timing import DelayedMessages
from .retries import is_exhausted
from .send import DLQ_QUEUES

# Topics without consumers. A request for one of their records means an earlier record at the same offset, now lost.
NEVER_CONSUMED = frozenset({HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
FIRST_LEVEL = 3  # first delay level, if the client lets the broker choose


class SendBack:
    """Serves requests to send messages back."""

    def __init__(self, state: BrokerState, delays: DelayedMessages) -> None:
        self._config = state.config
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._delays = delays
        self._writer = state.writer
        self._stats = state.stats
        self._trace = state.trace
        self._turn = 0

    def handle(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """36. Refusal: unknown group, retry topic or broker not writable, or the message no longer exists."""
        header = SendBackHeader.from_ext(request.ext)
        group = self._groups.require(header.group, now_ms)
        if not self._config.permission & Perm.WRITE:
            raise NoPermission(f"the broker[{self._config.address.ip}] sending message is forbidden")
        if group.retry_queue_nums <= 0:  # the configuration of the group allows no retries
            return answer(peer, request)
        retry = self._topics.create_own(
            retry_topic(header.group),
            group.retry_queue_nums,
            Perm.READ | Perm.WRITE,
            now_ms,
            TopicSysFlag.UNIT_SUB if header.unit_mode else 0,
        )
        if not retry.perm & Perm.WRITE:
            raise NoPermission(f"the topic[{retry.topic}] sending message is forbidden")
        try:
            original = self._store.read_at(header.offset)
        except QueryNotFound as error:
            raise SystemError_(f"look message by offset failed, {header.offset}: {error.remark}") from error
        topic = decode_head(original).topic
        if topic in NEVER_CONSUMED or topic == revive_topic(self._config.cluster_name):
            raise SystemError_(
                f"look message by offset failed, {header.offset}: found a message of an internal topic, which groups "
                "never receive; the original message was lost in a power failure"
            )

        had = decode_head(original).reconsume_times
        cause = None
        if header.delay_level < 0:
            cause = DeadLetterCause.BY_HANDLER
        elif is_exhausted(had + 1, group, request, header.max_reconsume_times):
            cause = DeadLetterCause.ATTEMPTS_EXHAUSTED
        level = 0 if cause else header.delay_level or FIRST_LEVEL + had

        topic, queue_id = retry.topic, self._next_queue(group.retry_queue_nums)
        if cause is not None:
            dead = self._topics.create_own(dlq_topic(header.group), DLQ_QUEUES, Perm.READ | Perm.WRITE, now_ms)
            topic, queue_id = dead.topic, 0
        after_offset = self._write(peer, header.group, original, topic, queue_id, level, cause, now_ms)
        return answer(peer, request, after_offset=after_offset)

    def _next_queue(self, queue_nums: int) -> int:
        self._turn += 1
        return self._turn % queue_nums

    def _write(
        self,
        peer: Peer,
        group: str,
        original: bytes,
        topic: str,
        queue_id: int,
        level: int,
        cause: DeadLetterCause | None,
        now_ms: int,
    ) -> int:
        """Store the copy; return the offset that the answer must wait for."""
        head = decode_head(original)
        properties = decode_properties(original[head.properties_start : head.properties_end])
        offset_id = offset_msg_id(Host.unpack(head.store_host), head.physical_offset)
        properties.setdefault(PROPERTY_RETRY_TOPIC, head.topic)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, offset_id)
        properties |= {PROPERTY_WAIT: "false", PROPERTY_DELAY: str(level)}
        text = encode_properties(properties).encode()
        check_size(text)
        copy = copy_of(original, head, topic, queue_id, text)._replace(reconsume_times=head.reconsume_times + 1)
        if level > 0:
            copy = self._delays.divert(copy, level, now_ms)
        (place,) = self._writer.write([copy], now_ms)
        if self._stats is not None:
            self._stats.send_back(properties[PROPERTY_RETRY_TOPIC], group)
        if self._trace is not None:
            self._trace.sent_back(
                peer,
                group,
                topic=properties[PROPERTY_RETRY_TOPIC],
                msg_id=properties.get(PROPERTY_UNIQ_KEY, offset_id),
                origin_msg_id=properties[PROPERTY_ORIGIN_MESSAGE_ID],
                reconsume_times=head.reconsume_times + 1,
                delay_level=level,
                due_ms=now_ms + delay_of_level(level, self._delays.delays_ms),
                cause=cause,
                now_ms=now_ms,
            )
        return place.end_offset
