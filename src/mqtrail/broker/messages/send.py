"""Sending: 10, 310 (one message), 320 (a batch).

The checks follow the order of 5.3.3; each failed check is a Refusal with the code of 5.3.3. The facts that they need
about a topic are the same for all its messages, so they are kept as an Admission, which the fast lane uses too. It is
valid until any topic changes (TopicTable.version).

Source: SendMessageProcessor, AbstractSendMessageProcessor, apache/rocketmq broker/processor/.
"""

from collections.abc import Generator
from dataclasses import dataclass, field

from mqtrail.store import Appended, PendingRecord
from mqtrail.wire import (
    EXT_MSG_REGION,
    EXT_TRACE_ON,
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    RETRY_PREFIX,
    TIMER_TOPIC,
    TOPIC_LENGTH_MAX,
    UNSENDABLE_TOPICS,
    DeadLetterCause,
    InvalidParameter,
    MessageIllegal,
    MessageSysFlag,
    MQError,
    NoPermission,
    Peer,
    Perm,
    RecallHandle,
    RemotingCommand,
    RequestCode,
    Send,
    SendMessageHeader,
    SendResponseHeader,
    ServiceNotAvailable,
    StoredKind,
    SubscriptionGroupNotExist,
    SystemError_,
    TopicConfig,
    TopicNotExist,
    answer,
    answer_error,
    batch_items,
    decode_properties,
    delay_of_level,
    dlq_topic,
    offset_msg_id,
    validate_topic,
)

from ..properties import (
    StoredProperties,
    check_size,
    delay_level,
    is_transactional,
    with_properties,
)
from ..state import BrokerState
from ..telemetry import BrokerTrace
from ..timing import DelayedMessages, Timers, recall_ms, recalls
from ..transactions import half_record
from .retries import is_exhausted

DLQ_QUEUES = 1
ADMISSIONS_MAX = 10_000
BATCH_COUNT_MAX = 65_536  # messages of a batch; the smallest that an official client makes has 75 bytes
BATCH_IDS_MAX = 4_096  # ids in the answer to a batch, since a header has at most 256 KiB
BATCH_SLICE = 1_000  # messages checked, or stored, before other requests are served
_HOST_BITS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6  # bits that the broker sets
_OURS = _HOST_BITS | MessageSysFlag.TRANSACTION_MASK


@dataclass(frozen=True, slots=True)
class Admission:
    """The facts about a plain topic that sends need: it exists, is writable and is not a retry topic.

    version: of the topic table at that time. queue_limit: exclusive bound of queue ids. sys_flag: bits to add.
    """

    topic: str
    version: int
    queue_limit: int
    write_queue_nums: int
    sys_flag: int


@dataclass(slots=True)
class _Destination:
    """The target of the messages of a request, after all checks."""

    topic: str
    queue_id: int
    sys_flag: int
    changes: dict[str, str] = field(default_factory=dict)
    """Properties to set on the messages."""
    group: str | None = None
    """The group that sends a copy to its retry topic itself, instead of sending the message back (36)."""
    dead_letter: DeadLetterCause | None = None


class SendMessages:
    """Serves sends."""

    def __init__(self, state: BrokerState, delays: DelayedMessages, timers: Timers) -> None:
        self._jobs = state.jobs
        self._config = state.config
        self._topics = state.topics
        self._groups = state.groups
        self._locks = state.locks
        self._delays = delays
        self._timers = timers
        self._store = state.store
        self._writer = state.writer
        self.properties = state.properties
        self._trace = state.trace
        self._limits = state.limits
        self._admissions: dict[str, Admission] = {}
        self._turn = 0
        self._ext = {EXT_MSG_REGION: state.config.region_id, EXT_TRACE_ON: "true" if state.config.trace_on else "false"}

    def handle(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """Answer a send. Refusals also carry MSG_REGION and TRACE_ON, as in 5.3.3."""
        try:
            header = SendMessageHeader.from_ext(request.ext)
            if request.code == RequestCode.SEND_BATCH_MESSAGE or header.batch:
                return self._jobs.begin(peer, request, self._batch_in_slices(peer, request, header, now_ms))
            return self._send_one(peer, request, header, now_ms)
        except MQError as error:
            return self._refuse(peer, request, error)

    def _refuse(self, peer: Peer, request: RemotingCommand, error: MQError) -> list[Send]:
        return answer_error(peer, request, error, dict(self._ext))

    # Checks.

    def admission(self, topic: str) -> Admission | None:
        """Return the Admission of a plain topic; None: the request needs all checks (`handle`)."""
        known = self._admissions.get(topic)
        if known is not None and known.version == self._topics.version:
            return known
        config = self._topics.get(topic)
        if (
            config is None
            or not self._topics.is_saved(topic)
            or topic in UNSENDABLE_TOPICS
            or topic.startswith(RETRY_PREFIX)
            or not self._config.permission & Perm.WRITE
            or self._config.is_slave
            or self._limited(topic) is not None
        ):
            return None
        if len(self._admissions) >= ADMISSIONS_MAX:
            self._admissions.clear()
        made = Admission(
            topic,
            self._topics.version,
            max(config.read_queue_nums, config.write_queue_nums),
            config.write_queue_nums,
            _filter_bit(config),
        )
        self._admissions[topic] = made
        return made

    def _limited(self, topic: str) -> TopicConfig | None:
        """Return the topic if its rate is limited; system topics are not limited."""
        config = self._topics.get(topic)
        if config is None or topic.startswith(RETRY_PREFIX) or not self._limits.send_rate(config):
            return None
        return None if self._topics.is_system(topic) else config

    def queue_for(self, header: SendMessageHeader, request: RemotingCommand, now_ms: int) -> tuple[str, int]:
        """Apply the checks of a send; return the target of its message. Refusal: a check failed."""
        destination = self._admit(header, request, now_ms)
        return destination.topic, destination.queue_id

    def _admit(self, header: SendMessageHeader, request: RemotingCommand, now_ms: int) -> _Destination:
        """Apply the checks in the order of 5.3.3; return the target of the messages. Refusal: a check failed."""
        if now_ms < self._config.start_accept_ms:
            raise SystemError_(
                f"found time {now_ms}, expected {self._config.start_accept_ms} or later: this broker does not accept "
                "messages yet; try again later (startAcceptSendRequestTimeStamp)"
            )
        admission = self.admission(header.topic)
        if admission is None:
            admission = self._check_topic(header, now_ms)
        if header.queue_id >= admission.queue_limit:
            raise InvalidParameter(
                f"request queueId[{header.queue_id}] is illegal, {header.topic} has queues 0 to "
                f"{admission.queue_limit - 1}: refresh the route"
            )
        if (limited := self._limited(header.topic)) is not None:
            self._limits.take_send(limited, now_ms)
        queue_id = self._queue_of(header.queue_id, admission, now_ms)
        destination = _Destination(header.topic, queue_id, admission.sys_flag)
        if header.topic.startswith(RETRY_PREFIX):
            return self._check_retry(destination, header, request, now_ms)
        return destination

    def _check_topic(self, header: SendMessageHeader, now_ms: int) -> Admission:
        topic = header.topic
        config = self._topics.get(topic)
        if not self._config.permission & Perm.WRITE and config is not None and config.order:
            raise NoPermission(f"the broker[{self._config.address.ip}] sending message is forbidden")
        validate_topic(topic)
        if topic in UNSENDABLE_TOPICS:
            raise NoPermission(f"Sending message to topic[{topic}] is forbidden.")
        if config is None:
            config = self._topics.create_by_send(topic, header.default_topic, header.default_topic_queue_nums, now_ms)
        if config is None and topic.startswith(RETRY_PREFIX):
            config = self._topics.create_own(topic, 1, Perm.READ | Perm.WRITE, now_ms)
        if config is None:
            raise TopicNotExist(
                f"topic[{topic}] not exist, and {header.default_topic} does not allow automatic creation: "
                "create it with updateTopic, or set autoCreateTopicEnable=true"
            )
        limit = max(config.read_queue_nums, config.write_queue_nums)
        return Admission(topic, self._topics.version, limit, config.write_queue_nums, _filter_bit(config))

    def _check_retry(
        self, destination: _Destination, header: SendMessageHeader, request: RemotingCommand, now_ms: int
    ) -> _Destination:
        """Return the dead-letter topic if the retries are exhausted or the group consumes in order, else
        destination."""
        group = header.topic.removeprefix(RETRY_PREFIX)
        if self._groups.get(group) is None:
            group = self._popping_group(group) or group
        config = self._groups.find(group, now_ms)
        if config is None:
            raise SubscriptionGroupNotExist(
                f"subscription group not exist, {group}: create it with updateSubGroup, or set "
                "autoCreateSubscriptionGroup=true"
            )
        destination.group = group
        ordered = self._locks.is_any_held(group, now_ms)
        if not ordered and not is_exhausted(header.reconsume_times, config, request, header.max_reconsume_times):
            return destination
        cause = DeadLetterCause.ORDERED_GIVE_UP if ordered else DeadLetterCause.ATTEMPTS_EXHAUSTED
        dead = self._topics.create_own(dlq_topic(group), DLQ_QUEUES, Perm.READ | Perm.WRITE, now_ms)
        return _Destination(dead.topic, 0, _filter_bit(dead), {PROPERTY_DELAY: "-1"}, group, cause)

    def _popping_group(self, name: str) -> str | None:
        """Return the group whose pop retry topic is %RETRY%name; None: no known group and topic make this name."""
        for place, letter in enumerate(name):
            if letter == "_" and name[place + 1 :] in self._topics and self._groups.get(name[:place]) is not None:
                return name[:place]
        return None

    def _queue_of(self, queue_id: int, admission: Admission, now_ms: int) -> int:
        """Return the queue of a message; -1: the next one in turn that the store takes messages for."""
        if queue_id >= 0:
            if (closed := self._store.why_closed(admission.topic, queue_id, now_ms)) is not None:
                raise ServiceNotAvailable(closed)
            return queue_id
        config = self._topics.get(admission.topic)
        if config is not None and not config.perm & Perm.WRITE:
            raise NoPermission(
                f"the topic[{admission.topic}] sending message is forbidden: it has no permission to write"
            )
        if admission.write_queue_nums <= 0:
            raise InvalidParameter(
                f"found no writable queue in topic {admission.topic}, expected at least 1: raise writeQueueNums"
            )
        closed = None
        for _ in range(admission.write_queue_nums):
            self._turn += 1
            queue_id = self._turn % admission.write_queue_nums
            closed = self._store.why_closed(admission.topic, queue_id, now_ms)
            if closed is None:
                return queue_id
        raise ServiceNotAvailable(f"{closed}; it is the same with all queues of {admission.topic}")

    # One message.

    def _send_one(self, peer: Peer, request: RemotingCommand, header: SendMessageHeader, now_ms: int) -> list[Send]:
        sent = header.properties.encode()
        destination = self._admit(header, request, now_ms)
        is_half = self._is_half(sent, header, destination)
        self._check_body(len(request.body))
        if destination.changes:
            check_size(sent)
            sent = with_properties(sent, destination.changes)
        stored = self.properties.of_message(sent)
        record = PendingRecord(
            topic=destination.topic,
            queue_id=destination.queue_id,
            body=request.body,
            properties=stored.text,
            tags_code=stored.tags_code,
            flag=header.flag,
            sys_flag=header.sys_flag & ~_OURS | destination.sys_flag,
            born_timestamp_ms=header.born_timestamp,
            born_host=peer.address.packed(),
            reconsume_times=header.reconsume_times,
        )
        record, kind = self._waiting(record, stored, is_half, now_ms)
        (place,) = self._writer.write([record], now_ms, kind)
        if self._trace is not None and destination.group is not None:
            self._trace_retry(self._trace, destination, stored, header.reconsume_times, peer, now_ms)
        handle = None
        if record.topic == TIMER_TOPIC != destination.topic and destination.group is None:
            deliver_ms = recall_ms(record.properties)
            handle = RecallHandle(destination.topic, self._config.broker_name, deliver_ms, stored.unique_id).encode()
        return self._answer(peer, request, stored, [place], destination.queue_id, handle)

    def _waiting(
        self, record: PendingRecord, stored: StoredProperties, is_half: bool, now_ms: int
    ) -> tuple[PendingRecord, StoredKind | None]:
        """Return the record as stored until its transaction, delay level or time, and its kind; unchanged for other
        messages."""
        if is_half:
            if stored.delay_level > 0 or stored.timed:
                raise MessageIllegal(
                    "found a half message with a delay, expected only one of the two: Apache's broker would drop it "
                    "when it is due; send it without DELAY and TIMER_ properties"
                )
            return half_record(record), StoredKind.HALF
        if stored.delay_level > 0:
            return self._delays.divert(record, stored.delay_level, now_ms), None
        if stored.timed:
            waiting = self._timers.divert_sent(record, now_ms)
            if waiting.topic == TIMER_TOPIC:
                return waiting, StoredKind.RECALL if recalls(waiting.properties) else StoredKind.DELAY
        return record, None

    def _trace_retry(
        self,
        trace: BrokerTrace,
        destination: _Destination,
        stored: StoredProperties,
        reconsume_times: int,
        peer: Peer,
        now_ms: int,
    ) -> None:
        """Trace a copy that a group sent to its retry topic itself (in order, or after sending back failed)."""
        assert destination.group is not None
        properties = decode_properties(stored.text)
        trace.sent_back(
            peer,
            destination.group,
            topic=properties.get(PROPERTY_RETRY_TOPIC, destination.topic),
            msg_id=stored.unique_id,
            origin_msg_id=properties.get(PROPERTY_ORIGIN_MESSAGE_ID),
            reconsume_times=reconsume_times,
            delay_level=max(0, stored.delay_level),
            due_ms=now_ms + delay_of_level(stored.delay_level, self._delays.delays_ms),
            cause=destination.dead_letter,
            now_ms=now_ms,
        )

    def _is_half(self, properties: bytes, header: SendMessageHeader, destination: _Destination) -> bool:
        """Return whether a message is a half message. NoPermission: the broker rejects transactions.

        Copies to retry topics are not, and neither are delayed retries of clients before 4.6.1.
        """
        is_half = is_transactional(properties) and destination.group is None
        if is_half and header.reconsume_times > 0 and delay_level(properties) > 0:
            is_half = False
        if not is_half:
            if destination.group is None and not is_transactional(properties):
                _refuse_bits(header.sys_flag)
            return False
        if self._config.reject_transactions:
            raise NoPermission(
                f"the broker[{self._config.address.ip}] sending transaction message is forbidden: found TRAN_MSG=true, "
                "expected none while rejectTransactionMessage=true"
            )
        return True

    def _check_body(self, size: int) -> None:
        if not self._config.takes_body(size):
            raise MessageIllegal(
                f"the message is illegal: found a body of {size} bytes, expected 1 to {self._config.message_size_max} "
                "(maxMessageSize)"
            )

    # A batch.

    def _batch_in_slices(
        self, peer: Peer, request: RemotingCommand, header: SendMessageHeader, now_ms: int
    ) -> Generator[None, None, list[Send]]:
        try:
            return (yield from self._send_batch(peer, request, header, now_ms))
        except MQError as error:
            return self._refuse(peer, request, error)

    def _send_batch(
        self, peer: Peer, request: RemotingCommand, header: SendMessageHeader, now_ms: int
    ) -> Generator[None, None, list[Send]]:
        """Store a batch: all messages are checked before the first one is stored.

        A large batch is checked and prepared in slices, and stored at once.
        """
        _check_batch_topic(header.topic)
        destination = self._admit(header, request, now_ms)
        of_batch = header.properties.encode()
        _refuse_bits(header.sys_flag)
        _refuse_half(of_batch)
        self._check_body(len(request.body))
        if delay_level(of_batch) > 0:
            raise MessageIllegal("found a delay level on a batch, expected none: send delayed messages one by one")
        batch = self.properties.of_message(of_batch)
        if batch.timed:
            raise MessageIllegal("found a timer property on a batch, expected none: send timer messages one by one")
        records: list[PendingRecord] = []
        for item in batch_items(request.body):
            if len(records) >= BATCH_COUNT_MAX:
                raise MessageIllegal(
                    f"found a batch of more than {BATCH_COUNT_MAX} messages, expected fewer: send it in parts"
                )
            if records and len(records) % BATCH_SLICE == 0:
                yield
            _refuse_half(item.properties)
            stored = self.properties.of_batch_item(item.properties, batch.waits)
            records.append(
                PendingRecord(
                    topic=destination.topic,
                    queue_id=destination.queue_id,
                    body=item.body,
                    properties=stored.text,
                    tags_code=stored.tags_code,
                    flag=item.flag,
                    sys_flag=header.sys_flag & ~_HOST_BITS | destination.sys_flag,
                    born_timestamp_ms=header.born_timestamp,
                    born_host=peer.address.packed(),
                    reconsume_times=header.reconsume_times,
                )
            )
        places = yield from self._store_batch(records, now_ms)
        return self._answer(peer, request, batch, places, destination.queue_id)

    def _store_batch(self, records: list[PendingRecord], now_ms: int) -> Generator[None, None, list[Appended]]:
        """Append all records at once; return their places, of many only the first ones and the last one.

        A large batch is encoded, and traced, in slices.
        """
        count = len(records)
        if count <= BATCH_SLICE:
            self._count_batch(records, now_ms)
            return self._writer.write(records, now_ms, StoredKind.BATCH)
        batch = self._store.begin_batch(records[0].topic, records[0].queue_id)
        for start in range(0, count, BATCH_SLICE):
            batch.add(records[start : start + BATCH_SLICE])
            yield
        if batch.topic not in self._topics:
            raise TopicNotExist(f"topic[{batch.topic}] not exist, it was deleted while the batch was received")
        self._count_batch(records, now_ms)
        places = self._writer.append_batch(batch, now_ms)
        if self._trace is not None:
            for number, record in enumerate(records):
                if number % BATCH_SLICE == 0:
                    yield
                self._trace.stored(record, places.ticket(number), StoredKind.BATCH, now_ms)
        named = [places.ticket(number) for number in range(min(count, BATCH_IDS_MAX))]
        return named if len(named) == count else [*named, places.ticket(count - 1)]

    def _count_batch(self, records: list[PendingRecord], now_ms: int) -> None:
        """Count the other messages of a batch against the rate of their topic."""
        if (limited := self._limited(records[0].topic)) is not None:
            self._limits.add_sends(limited, len(records) - 1, now_ms)

    def _answer(
        self,
        peer: Peer,
        request: RemotingCommand,
        stored: StoredProperties,
        places: list[Appended],
        queue_id: int,
        recall_handle: str | None = None,
    ) -> list[Send]:
        address = self._config.address
        named = places if len(places) <= BATCH_IDS_MAX else places[:1]
        header = SendResponseHeader(
            msg_id=",".join(offset_msg_id(address, place.physical_offset) for place in named),
            queue_id=queue_id,
            queue_offset=places[0].queue_offset,
            transaction_id=stored.unique_id,
            recall_handle=recall_handle,
            msg_region=self._config.region_id,
            trace_on=self._config.trace_on,
        )
        after_offset = places[-1].end_offset if stored.waits else 0
        return answer(peer, request, header.to_ext(), after_offset=after_offset)


def _filter_bit(config: TopicConfig) -> int:
    return MessageSysFlag.MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0


def _refuse_bits(sys_flag: int) -> None:
    """Reject transaction bits without TRAN_MSG=true: 5.3.3 stores such a message, but in no queue. MessageIllegal."""
    if sys_flag & MessageSysFlag.TRANSACTION_MASK:
        raise MessageIllegal(
            f"found transaction bits {sys_flag & MessageSysFlag.TRANSACTION_MASK:#x} in sysFlag without TRAN_MSG=true, "
            "expected both or none"
        )


def _check_batch_topic(topic: str) -> None:
    """MessageIllegal: a batch must not go to this topic."""
    # 5.3.3 checks this last; for a retry topic the other checks would first create a topic.
    if len(topic) > TOPIC_LENGTH_MAX or topic.startswith(RETRY_PREFIX):
        raise MessageIllegal(
            f"found a batch to topic {topic[:40]} of {len(topic)} characters, expected a topic of at most "
            f"{TOPIC_LENGTH_MAX} that is not a retry topic"
        )


def _refuse_half(properties: bytes) -> None:
    if is_transactional(properties):
        raise MessageIllegal("found TRAN_MSG=true in a batch, expected none: send half messages one by one")
