"""Layouts of trace records as data: one source for the codec here and for the SQL that the pipeline makes of it.

A record is fields joined by ␁ (U+0001) and ended by ␂ (U+0002); field 0 names its type. Which layout a record has
follows from its type and the count of its fields, empty ones at the end included:

    type        fields   who writes it
    Pub         12, 13   SDKs before 4.4
                14       Java 4.4 to 4.7, and from 4.9
                15       Java 4.8.0 (clientHost: client id), Go (clientHost: local address)
    SubBefore   8        Java 4.4 to 4.7, and from 4.9
                9        Java 4.8.0, Go
    SubAfter    6        SDKs before 4.4
                7        Java 4.4 to 4.7.1, 4.9.1; CLOUD 4.9.5 to 4.9.8 and 5.1.4 to 5.3.0, these without a ␂
                8        CLOUD from 5.3.1: 7 and an empty last one
                9        Java 4.8.0 and from 4.9.2 (4.9.0 too), Go
    EndTransaction 13, Recall 7; ours: one layout each

More fields than a type's longest layout has are ignored, so that a later release can add some.

How a field's text becomes a value:

    kind                 text                                   value            otherwise
    TEXT                 anything                               the text, None for "null" and ""
    INT, LONG            INTEGER_PATTERN, within its bits       the number       the record is rejected
    TIME                 a LONG of 0 to TIME_MS_MAX, epoch ms   the number       the record is rejected
    COUNT                a LONG of 0 to COUNT_MAX               the number       the record is rejected
    BOOL                 "true" in any case; anything else      True; False
    MSG_TYPE             an INT of 0 to 4                       the number       the record is rejected
    TRANSACTION_STATE    one of the three names                 the name         the record is rejected

A nullable number or boolean is None for "null" and "". An attribute that a layout lacks is None unless ABSENT has a
value for it. Java's decoders accept and reject the same texts (Long.parseLong, Boolean.parseBoolean, the enums'
lookup), with two exceptions: they drop empty fields at the end, which makes them fail on whole records, and they accept
any int64 as a time. The judgement adds to times and counts, so a time that no clock can show would stop it.

Source: TraceDataEncoder at every release from 4.4.0 to 5.3.3, apache/rocketmq client/; internal/trace.go of the Go
client; MsgTraceDecodeUtil of the dashboard.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from . import trace_records
from .trace_records import LocalTransactionState, MessageType, TraceRecord

__all__ = [
    "ABSENT",
    "APACHE_TYPES",
    "COUNT_MAX",
    "FIELD_SEPARATOR",
    "INTEGER_PATTERN",
    "KIND_RANGE",
    "MSG_TYPE_MAX",
    "NULL_TEXT",
    "RECORD_SEPARATOR",
    "TIME_MS_MAX",
    "TRACE_LAYOUTS",
    "TRANSACTION_STATES",
    "UNTERMINATED_PATTERN",
    "FieldKind",
    "Layout",
    "TraceField",
]

FIELD_SEPARATOR: Final = "\x01"
RECORD_SEPARATOR: Final = "\x02"
NULL_TEXT: Final = "null"
INTEGER_PATTERN: Final = r"[+-]?[0-9]{1,19}"
FOUND_LENGTH_MAX: Final = 40  # characters of the found text that a reject's reason quotes


class FieldKind(Enum):
    """How a field's text is read. The value is the text that a reject names as expected."""

    TEXT = "text"
    INT = "a decimal int32"
    LONG = "a decimal int64"
    TIME = "epoch ms of 0 to 99999999999999"
    COUNT = "a count of 0 to 999999999999999"
    BOOL = "true or false"
    MSG_TYPE = "a message type of 0 to 4"
    TRANSACTION_STATE = "COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW"


MSG_TYPE_MAX: Final = max(MessageType)
TIME_MS_MAX: Final = 99_999_999_999_999  # in the year 5138: sums of times stay dates that every engine can show
COUNT_MAX: Final = 999_999_999_999_999
KIND_RANGE: Final[Mapping[FieldKind, tuple[int, int]]] = {
    FieldKind.INT: (-(1 << 31), (1 << 31) - 1),
    FieldKind.LONG: (-(1 << 63), (1 << 63) - 1),
    FieldKind.TIME: (0, TIME_MS_MAX),
    FieldKind.COUNT: (0, COUNT_MAX),
    FieldKind.MSG_TYPE: (0, MSG_TYPE_MAX),
}
"""The kinds that are numbers, with the least and the greatest value of each."""
assert str(TIME_MS_MAX) in FieldKind.TIME.value
assert str(COUNT_MAX) in FieldKind.COUNT.value
TRANSACTION_STATES: Final = tuple(state.value for state in LocalTransactionState)


class TraceField(NamedTuple):
    """One field: RocketMQ's name, our attribute's, how it is read, and whether a number or boolean may be null."""

    name: str
    attribute: str
    kind: FieldKind
    nullable: bool = False


class Layout(NamedTuple):
    """The fields of a record of count_min to count_max fields (None: and more). fields[i] is at place i + 1."""

    record_type: str
    fields: tuple[TraceField, ...]
    count_min: int
    count_max: int | None
    written: bool = True
    """Whether our writer uses it; one layout of each type."""


_TEXT, _INT, _LONG, _BOOL = FieldKind.TEXT, FieldKind.INT, FieldKind.LONG, FieldKind.BOOL

_TIME_STAMP = TraceField("timeStamp", "time_stamp", FieldKind.TIME)
_REGION_ID = TraceField("regionId", "region_id", _TEXT)
_GROUP_NAME = TraceField("groupName", "group_name", _TEXT)
_TOPIC = TraceField("topic", "topic", _TEXT)
_MSG_ID = TraceField("msgId", "msg_id", _TEXT)
_TAGS = TraceField("tags", "tags", _TEXT)
_KEYS = TraceField("keys", "keys", _TEXT)
_STORE_HOST = TraceField("storeHost", "store_host", _TEXT)
_COST_TIME = TraceField("costTime", "cost_time", _INT)
_MSG_TYPE = TraceField("msgType", "msg_type", FieldKind.MSG_TYPE)
_IS_SUCCESS = TraceField("isSuccess", "is_success", _BOOL)
_REQUEST_ID = TraceField("requestId", "request_id", _TEXT)
_CLIENT_HOST = TraceField("clientHost", "client_host", _TEXT)

_PUB = (
    _TIME_STAMP,
    _REGION_ID,
    _GROUP_NAME,
    _TOPIC,
    _MSG_ID,
    _TAGS,
    _KEYS,
    _STORE_HOST,
    TraceField("bodyLength", "body_length", _INT),
    _COST_TIME,
    _MSG_TYPE,
)
_OFFSET_MSG_ID = TraceField("offsetMsgId", "offset_msg_id", _TEXT)
_SUB_BEFORE = (
    _TIME_STAMP,
    _REGION_ID,
    _GROUP_NAME,
    _REQUEST_ID,
    _MSG_ID,
    TraceField("retryTimes", "retry_times", _INT),
    _KEYS,
)
_SUB_AFTER = (_REQUEST_ID, _MSG_ID, _COST_TIME, _IS_SUCCESS, _KEYS)
_CONTEXT_CODE = TraceField("contextCode", "context_code", _INT)
_END_TRANSACTION = (
    _TIME_STAMP,
    _REGION_ID,
    _GROUP_NAME,
    _TOPIC,
    _MSG_ID,
    _TAGS,
    _KEYS,
    _STORE_HOST,
    _MSG_TYPE,
    TraceField("transactionId", "transaction_id", _TEXT),
    TraceField("transactionState", "transaction_state", FieldKind.TRANSACTION_STATE),
    TraceField("fromTransactionCheck", "from_transaction_check", _BOOL),
)
_RECALL = (_TIME_STAMP, _REGION_ID, _GROUP_NAME, _TOPIC, _MSG_ID, _IS_SUCCESS)

_OUR_KINDS = {
    **dict.fromkeys(["timeStamp", "fromMs", "toMs", "storeTimestamp", "dueMs", "beforeUntilMs"], FieldKind.TIME),
    **dict.fromkeys(
        ["sequence", "droppedTotal", "count", "epoch", "beforeEpoch", "fromOffset", "toOffset"], FieldKind.COUNT
    ),
    # The sender sets bornTimestamp: the broker's record is valid with any value.
    **dict.fromkeys(["queueOffset", "consumerOffset", "physicalOffset", "bornTimestamp"], _LONG),
    **dict.fromkeys(
        [
            "ver",
            "queueId",
            "attempt",
            "attemptMax",
            "responseCode",
            "costTime",
            "bodyLength",
            "retryTimes",
            "size",
            "reconsumeTimes",
            "delayLevel",
        ],
        _INT,
    ),
    "isFinal": _BOOL,
}


def _ours(record_type: str, names: str) -> tuple[Layout, ...]:
    """One layout of ours: fields by name, numbers and booleans by _OUR_KINDS and nullable, the rest text."""
    fields = tuple(
        TraceField(name, _snake_case(name), _OUR_KINDS.get(name, _TEXT), name in _OUR_KINDS) for name in names.split()
    )
    return (Layout(record_type, fields, len(fields) + 1, None),)


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


TRACE_LAYOUTS: Final[Mapping[str, tuple[Layout, ...]]] = {
    "Pub": (
        Layout("Pub", _PUB, 12, 12, written=False),
        Layout("Pub", (*_PUB, _IS_SUCCESS), 13, 13, written=False),
        Layout("Pub", (*_PUB, _OFFSET_MSG_ID, _IS_SUCCESS), 14, 14),
        Layout("Pub", (*_PUB, _OFFSET_MSG_ID, _IS_SUCCESS, _CLIENT_HOST), 15, None, written=False),
    ),
    "SubBefore": (
        Layout("SubBefore", _SUB_BEFORE, 8, 8),
        Layout("SubBefore", (*_SUB_BEFORE, _CLIENT_HOST), 9, None, written=False),
    ),
    "SubAfter": (
        Layout("SubAfter", _SUB_AFTER, 6, 6, written=False),
        Layout("SubAfter", (*_SUB_AFTER, _CONTEXT_CODE), 7, 8, written=False),
        Layout("SubAfter", (*_SUB_AFTER, _CONTEXT_CODE, _TIME_STAMP, _GROUP_NAME), 9, None),
    ),
    "EndTransaction": (Layout("EndTransaction", _END_TRANSACTION, 13, None),),
    "Recall": (Layout("Recall", _RECALL, 7, None),),
    "TraceBatch": _ours("TraceBatch", "ver clientId startId sequence timeStamp droppedTotal"),
    "TraceLoss": _ours("TraceLoss", "clientId startId fromMs toMs count reason"),
    "TraceEnd": _ours("TraceEnd", "timeStamp groupName clientId startId"),
    "PubAttempt": _ours(
        "PubAttempt",
        "timeStamp regionId groupName topic msgId keys storeHost brokerName queueId sendId attempt attemptMax outcome"
        " responseCode costTime isFinal clientId bodyLength",
    ),
    "SubResult": _ours(
        "SubResult",
        "requestId msgId groupName topic brokerName queueId queueOffset retryTimes result costTime timeStamp clientId"
        " detail",
    ),
    "OffsetCommit": _ours("OffsetCommit", "timeStamp groupName topic brokerName queueId consumerOffset clientId"),
    "Stored": _ours(
        "Stored",
        "timeStamp brokerName storeHost topic queueId queueOffset physicalOffset size msgId keys bornTimestamp bornHost"
        " storeTimestamp kind",
    ),
    "Delivered": _ours("Delivered", "timeStamp brokerName groupName topic queueId offsets clientId"),
    "SentBack": _ours(
        "SentBack",
        "timeStamp brokerName groupName topic msgId originMsgId reconsumeTimes delayLevel dueMs clientId",
    ),
    "DeadLettered": _ours(
        "DeadLettered", "timeStamp brokerName groupName topic msgId originMsgId reconsumeTimes cause clientId"
    ),
    "BrokerEvent": _ours(
        "BrokerEvent",
        "timeStamp clusterName brokerName event brokerId address epoch reason beforeId beforeAddress beforeEpoch"
        " beforeUntilMs fromOffset toOffset detail",
    ),
}

ABSENT: Final[Mapping[str, Mapping[str, bool]]] = {"Pub": {"is_success": True}}
"""Values of attributes that a record's layout lacks, by type; attributes not named here are None."""

APACHE_TYPES: Final = ("Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall")

SHORT_SUB_AFTER_PATTERN: Final = r"SubAfter(?:\x01[^\x01\x02]*){6}\x01"
UNTERMINATED_PATTERN: Final = rf"(?<![^\x02])(?:{SHORT_SUB_AFTER_PATTERN}(?=(?:" + "|".join(APACHE_TYPES) + r")\x01))+"
"""A run of CLOUD SubAfters whose ␂ is missing, and a record behind them: put a ␂ behind each SHORT_SUB_AFTER_PATTERN of
the run before cutting at ␂.

Regular expression of Python and Java alike. A run starts where a record does, so the names in its fields do not matter:
where it wants a record type's name, a whole SubAfter has its timeStamp.
"""

RECORD_CLASSES: Final[Mapping[str, type[TraceRecord]]] = {name: getattr(trace_records, name) for name in TRACE_LAYOUTS}

for _layouts in TRACE_LAYOUTS.values():
    assert sum(layout.written for layout in _layouts) == 1
    assert all(layout.count_min == len(layout.fields) + 1 for layout in _layouts)
