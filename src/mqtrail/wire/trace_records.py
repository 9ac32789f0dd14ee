"""Trace records as values: events of a message, reported by clients and our broker.

The first five are Apache's (Pub to Recall). The others are ours: they report failures, times of each message, losses of
the trace itself, and events in the broker, which Apache's do not. Field names are those of the layouts (trace_layouts)
in snake_case; all times are epoch ms, all costs ms. Text is None if the record has `null` or an empty field.

Source: TraceBean, TraceContext, TraceType, ConsumeReturnType, MessageType, apache/rocketmq client/ and common/.
"""

from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

import msgspec

__all__ = [
    "BROKER_EVENTS_KEY",
    "TRACE_DETAIL_LENGTH_MAX",
    "TRACE_VERSION",
    "BrokerEvent",
    "BrokerEventKind",
    "ConsumeReturnType",
    "DeadLetterCause",
    "DeadLettered",
    "Delivered",
    "EndTransaction",
    "LocalTransactionState",
    "MessageType",
    "OffsetCommit",
    "Pub",
    "PubAttempt",
    "Recall",
    "SendOutcome",
    "SentBack",
    "Stored",
    "StoredKind",
    "SubAfter",
    "SubBefore",
    "SubResult",
    "TraceBatch",
    "TraceEnd",
    "TraceLoss",
    "TraceRecord",
]

TRACE_DETAIL_LENGTH_MAX: Final = 200  # characters of SubResult.detail; the writer cuts
TRACE_VERSION: Final = 1  # TraceBatch.ver
BROKER_EVENTS_KEY: Final = "mqtrail-broker-events"
"""KEYS of trace messages with BrokerEvents: neither an id nor a key of a user."""


class MessageType(IntEnum):
    """Pub.msg_type and EndTransaction.msg_type."""

    NORMAL = 0
    TRANS_HALF = 1
    TRANS_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeReturnType(IntEnum):
    """SubAfter.context_code; TIME_OUT comes with is_success true."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


class LocalTransactionState(StrEnum):
    """EndTransaction.transaction_state: the producer's decision, not the result. UNKNOW is spelled so."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    UNKNOW = "UNKNOW"


class SendOutcome(StrEnum):
    """PubAttempt.outcome."""

    OK = "OK"
    ERROR = "ERROR"
    TIMEOUT = "TIMEOUT"
    CONNECT = "CONNECT"
    NOT_SENT = "NOT_SENT"
    ONEWAY = "ONEWAY"


class StoredKind(StrEnum):
    """Stored.kind."""

    NORMAL = "NORMAL"
    BATCH = "BATCH"
    DELAY = "DELAY"
    RETRY = "RETRY"
    DLQ = "DLQ"
    HALF = "HALF"
    COMMIT = "COMMIT"
    RECALL = "RECALL"


class DeadLetterCause(StrEnum):
    """DeadLettered.cause."""

    ATTEMPTS_EXHAUSTED = "ATTEMPTS_EXHAUSTED"
    BY_HANDLER = "BY_HANDLER"
    ORDERED_GIVE_UP = "ORDERED_GIVE_UP"


class BrokerEventKind(StrEnum):
    """BrokerEvent.event."""

    STARTED = "STARTED"
    STOPPED = "STOPPED"
    BECAME_MASTER = "BECAME_MASTER"
    BECAME_SLAVE = "BECAME_SLAVE"
    TRUNCATED = "TRUNCATED"
    DROPPED = "DROPPED"


class Pub(msgspec.Struct, frozen=True, kw_only=True):
    """A send with a reply. msg_id and offset_msg_id are comma-joined for a batch.

    time_stamp: just before the send (Go: after it). body_length: bytes as sent, so compressed. client_host is read
    from 4.8.0 and Go clients and never written.
    """

    time_stamp: int
    region_id: str | None = None
    group_name: str | None = None
    topic: str | None = None
    msg_id: str | None = None
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    body_length: int = 0
    cost_time: int = 0
    msg_type: int = MessageType.NORMAL
    offset_msg_id: str | None = None
    is_success: bool = True
    client_host: str | None = None


class SubBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A message is delivered to a listener. request_id is the same for all messages of one call, and in its
    SubAfter."""

    time_stamp: int
    region_id: str | None = None
    group_name: str | None = None
    request_id: str | None = None
    msg_id: str | None = None
    retry_times: int = 0
    keys: str | None = None
    client_host: str | None = None


class SubAfter(msgspec.Struct, frozen=True, kw_only=True):
    """The listener has returned. cost_time: that of the call, divided by the number of its messages.

    context_code, time_stamp and group_name are None in layouts that lack them (trace_layouts).
    """

    request_id: str | None = None
    msg_id: str | None = None
    cost_time: int = 0
    is_success: bool = True
    keys: str | None = None
    context_code: int | None = None
    time_stamp: int | None = None
    group_name: str | None = None


class EndTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A producer is about to report the end of its transaction. The report is one-way and may be lost."""

    time_stamp: int
    region_id: str | None = None
    group_name: str | None = None
    topic: str | None = None
    msg_id: str | None = None
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    msg_type: int = MessageType.TRANS_COMMIT
    transaction_id: str | None = None
    transaction_state: str = LocalTransactionState.UNKNOW
    from_transaction_check: bool = False


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """The recall of a delayed message. is_success: whether it was recalled."""

    time_stamp: int
    region_id: str | None = None
    group_name: str | None = None
    topic: str | None = None
    msg_id: str | None = None
    is_success: bool = True


class TraceBatch(msgspec.Struct, frozen=True, kw_only=True):
    """First record of each trace message of our client: a gap in sequence (1, 2, 3… per start_id) is a lost trace
    message.

    dropped_total: records that this run has dropped so far.
    """

    ver: int = TRACE_VERSION
    client_id: str | None = None
    start_id: str | None = None
    sequence: int | None = None
    time_stamp: int | None = None
    dropped_total: int | None = None


class TraceLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A client or broker dropped count records of [from_ms, to_ms]."""

    client_id: str | None = None
    start_id: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    count: int | None = None
    reason: str | None = None


class TraceEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The last record of a consumer that stops normally: it hands over no more messages."""

    time_stamp: int | None = None
    group_name: str | None = None
    client_id: str | None = None
    start_id: str | None = None


class PubAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to send: written for failed attempts, one-way sends, and successful retries.

    send_id: the same for the attempts of one send of the application. is_final: it is the last one.
    """

    time_stamp: int | None = None
    region_id: str | None = None
    group_name: str | None = None
    topic: str | None = None
    msg_id: str | None = None
    keys: str | None = None
    store_host: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    send_id: str | None = None
    attempt: int | None = None
    attempt_max: int | None = None
    outcome: str | None = None
    response_code: int | None = None
    cost_time: int | None = None
    is_final: bool | None = None
    client_id: str | None = None
    body_length: int | None = None


class SubResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one message in a listener, and its time. result: a ConsumeReturnType's name."""

    request_id: str | None = None
    msg_id: str | None = None
    group_name: str | None = None
    topic: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    retry_times: int | None = None
    result: str | None = None
    cost_time: int | None = None
    time_stamp: int | None = None
    client_id: str | None = None
    detail: str | None = None


class OffsetCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A client committed consumer_offset to the broker: the offset that its group reads next."""

    time_stamp: int | None = None
    group_name: str | None = None
    topic: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    consumer_offset: int | None = None
    client_id: str | None = None


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Our broker stored a message. kind: a StoredKind."""

    time_stamp: int | None = None
    broker_name: str | None = None
    store_host: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    physical_offset: int | None = None
    size: int | None = None
    msg_id: str | None = None
    keys: str | None = None
    born_timestamp: int | None = None
    born_host: str | None = None
    store_timestamp: int | None = None
    kind: str | None = None


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """Our broker delivered messages in one pull. offsets: their queue offsets, comma-joined."""

    time_stamp: int | None = None
    broker_name: str | None = None
    group_name: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    offsets: str | None = None
    client_id: str | None = None


class SentBack(msgspec.Struct, frozen=True, kw_only=True):
    """A group sent a message back. due_ms: when it is delivered again."""

    time_stamp: int | None = None
    broker_name: str | None = None
    group_name: str | None = None
    topic: str | None = None
    msg_id: str | None = None
    origin_msg_id: str | None = None
    reconsume_times: int | None = None
    delay_level: int | None = None
    due_ms: int | None = None
    client_id: str | None = None


class DeadLettered(msgspec.Struct, frozen=True, kw_only=True):
    """A message was moved to its group's dead-letter topic. cause: a DeadLetterCause."""

    time_stamp: int | None = None
    broker_name: str | None = None
    group_name: str | None = None
    topic: str | None = None
    msg_id: str | None = None
    origin_msg_id: str | None = None
    reconsume_times: int | None = None
    cause: str | None = None
    client_id: str | None = None


class BrokerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A broker started, stopped, changed its role or removed the end of its log. event: a BrokerEventKind.

    broker_id: its number at the controllers, the id of its DLedger member, or its id in routes. epoch: of the master,
    or the term. reason: why, for example that of the election. before_…: the master before, as this broker knew it, and
    until when it knew it. from_offset: of a new master the end of its log, of TRUNCATED the first removed byte;
    to_offset: the end of what was removed. detail: of TRUNCATED the file that has it.

    A broker that is not master cannot write. It sends its events to its master, which stores them.
    """

    time_stamp: int | None = None
    cluster_name: str | None = None
    broker_name: str | None = None
    event: str | None = None
    broker_id: str | None = None
    address: str | None = None
    epoch: int | None = None
    reason: str | None = None
    before_id: str | None = None
    before_address: str | None = None
    before_epoch: int | None = None
    before_until_ms: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    detail: str | None = None


TraceRecord: TypeAlias = (
    Pub
    | SubBefore
    | SubAfter
    | EndTransaction
    | Recall
    | TraceBatch
    | TraceLoss
    | TraceEnd
    | PubAttempt
    | SubResult
    | OffsetCommit
    | Stored
    | Delivered
    | SentBack
    | DeadLettered
    | BrokerEvent
)
