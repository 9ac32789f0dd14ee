"""JSON headers of the lane's requests, decoded by type.

A struct lists every member that the lane accepts, and the accepted values of constant members. Any other member, value
or type is a ValidationError, and the request goes to `Broker.handle`. So lane and `handle` read an accepted header
alike. Ext values are texts; the numbers that the C++ client writes in code 10 are accepted too.

Source: SendMessageRequestHeader, SendMessageRequestHeaderV2, PullMessageRequestHeader, apache/rocketmq remoting/.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, Final, Literal

import msgspec


class Kind(IntEnum):
    """What the lane does with a request."""

    SEND = 1
    BATCH = 2
    PULL = 3
    HALF = 4  # a send of a half message, by its sysFlag
    END = 5  # of a transaction, one-way


# Accepted values of fields that are almost always the same.
QUEUE_NUMS: Final = (
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "10",
    "12",
    "16",
    "24",
    "32",
    "48",
    "64",
    "128",
    "256",
)
_QueueNums = Literal[
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "10", "12", "16", "24", "32", "48", "64", "128", "256"
]  # fmt: skip
_Zero = Literal["0"]
HALF_FLAG: Final = "4"  # MessageSysFlag.TRANSACTION_PREPARED
SendFlag = Literal["0", "4"]
_False = Literal["false"]
_Boolean = Literal["false", "true"]
_Opaque = Annotated[int, msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)]


class _Strict(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Accepts the listed members only."""


class SendExt(_Strict):
    """310: a group, b topic, c template topic, d its number of queues, e queue id, f sysFlag, g born ms, h flag, i
    properties, j reconsume times, k unit mode, m batch, n broker."""

    a: str
    b: str
    e: str
    g: str
    i: str
    c: str = ""
    d: _QueueNums = "4"
    f: SendFlag = "0"
    h: _Zero = "0"
    j: _Zero = "0"
    k: _Boolean = "false"
    m: _False = "false"
    n: str = ""


class BatchExt(_Strict):
    """320: as 310."""

    a: str
    b: str
    e: str
    g: str
    i: str
    c: str = ""
    d: _QueueNums = "4"
    f: _Zero = "0"
    h: _Zero = "0"
    j: _Zero = "0"
    k: _Boolean = "false"
    m: _Boolean = "true"
    n: str = ""


class SendLongExt(msgspec.Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """10, as the C++ client and old Java clients write it."""

    producer_group: str
    topic: str
    queue_id: str | int
    born_timestamp: str | int
    properties: str
    default_topic: str = ""
    default_topic_queue_nums: Literal["4", "8", "16", 4, 8, 16] = "4"
    sys_flag: Literal["0", 0] = "0"
    flag: Literal["0", 0] = "0"
    reconsume_times: Literal["0", 0] = "0"
    unit_mode: Literal["false", "true", "0", "1"] = "false"
    batch: Literal["false", "0"] = "false"
    bname: str = ""
    access_key: str = msgspec.field(default="", name="AccessKey")
    signature: str = msgspec.field(default="", name="Signature")
    ons_channel: str = msgspec.field(default="", name="OnsChannel")


class PullExt(msgspec.Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """11."""

    consumer_group: str
    topic: str
    queue_id: str
    queue_offset: str
    max_msg_nums: str
    sys_flag: str
    commit_offset: str
    suspend_timeout_millis: str
    subscription: str | None = None
    sub_version: str = "0"
    expression_type: Literal["TAG", "SQL92"] | None = None
    max_msg_bytes: str | None = None
    bname: str = ""


class EndExt(msgspec.Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """37. An end with outcome 0 (unknown) goes to `handle`."""

    producer_group: str
    tran_state_table_offset: str
    commit_log_offset: str
    commit_or_rollback: Literal["8", "12"]
    msg_id: str
    from_transaction_check: _Boolean = "false"
    transaction_id: str = ""
    topic: str = ""
    bname: str = ""


class SendHeader(_Strict):
    """A whole header of 310."""

    code: Literal[310]
    extFields: SendExt
    opaque: _Opaque
    flag: Literal[0]
    language: str = "JAVA"
    version: int = 0
    serializeTypeCurrentRPC: str = ""


class BatchHeader(_Strict):
    """A whole header of 320."""

    code: Literal[320]
    extFields: BatchExt
    opaque: _Opaque
    flag: Literal[0]
    language: str = "JAVA"
    version: int = 0
    serializeTypeCurrentRPC: str = ""


class SendLongHeader(_Strict):
    """A whole header of 10."""

    code: Literal[10]
    extFields: SendLongExt
    opaque: _Opaque
    flag: Literal[0]
    language: str = "JAVA"
    version: int = 0
    serializeTypeCurrentRPC: str = ""


class PullHeaderIn(_Strict):
    """A whole header of 11."""

    code: Literal[11]
    extFields: PullExt
    opaque: _Opaque
    flag: Literal[0]
    language: str = "JAVA"
    version: int = 0
    serializeTypeCurrentRPC: str = ""


class EndHeader(_Strict):
    """A whole header of 37, one-way; a request that wants an answer goes to `handle`."""

    code: Literal[37]
    extFields: EndExt
    opaque: _Opaque
    flag: Literal[2]
    language: str = "JAVA"
    version: int = 0
    serializeTypeCurrentRPC: str = ""


Decode = Callable[[bytes], Any]
PREFIX_SIZE: Final = 12

# First bytes of a JSON header -> its kind, whether its field names are short, its decoder. Java's client and ours write
# `code` first; a header that begins otherwise goes to `handle`. The prefixes of 10, 11 and 37 include the comma and the
# next quote.
JSON_HEADERS: Final[dict[bytes, tuple[Kind, bool, Decode]]] = {
    b'{"code":310,': (Kind.SEND, True, msgspec.json.Decoder(SendHeader).decode),
    b'{"code":320,': (Kind.BATCH, True, msgspec.json.Decoder(BatchHeader).decode),
    b'{"code":10,"': (Kind.SEND, False, msgspec.json.Decoder(SendLongHeader).decode),
    b'{"code":11,"': (Kind.PULL, False, msgspec.json.Decoder(PullHeaderIn).decode),
    b'{"code":37,"': (Kind.END, False, msgspec.json.Decoder(EndHeader).decode),
}
assert all(len(prefix) == PREFIX_SIZE for prefix in JSON_HEADERS)

# The same for binary headers, which layouts.py reads: code -> (kind, constant fields with their accepted values; None:
# any value). A header with a field that is neither here nor variable goes to `handle`.
SEND_CONSTANTS: Final[dict[str, tuple[str, ...] | None]] = {
    "a": None,
    "b": None,
    "c": None,
    "d": QUEUE_NUMS,
    "f": ("0", HALF_FLAG),
    "h": ("0",),
    "j": ("0",),
    "k": ("false", "true"),
    "m": ("false",),
    "n": None,
}
PULL_CONSTANTS: Final[dict[str, tuple[str, ...] | None]] = {
    "consumerGroup": None,
    "topic": None,
    "maxMsgNums": None,
    "sysFlag": None,
    "suspendTimeoutMillis": None,
    "subscription": None,
    "expressionType": ("TAG", "SQL92"),
    "maxMsgBytes": None,
    "bname": None,
}
END_CONSTANTS: Final[dict[str, tuple[str, ...] | None]] = {
    "producerGroup": None,
    "topic": None,
    "bname": None,
    "commitOrRollback": ("8", "12"),
    "fromTransactionCheck": ("false", "true"),
}
END_REQUIRED: Final = frozenset(
    {"producerGroup", "tranStateTableOffset", "commitLogOffset", "commitOrRollback", "msgId"}
)
PULL_REQUIRED: Final = frozenset(
    {
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "sysFlag",
        "commitOffset",
        "suspendTimeoutMillis",
    }
)
