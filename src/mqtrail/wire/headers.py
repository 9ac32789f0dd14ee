"""Headers of the data path: sending, pulling, offsets, queries, transactions, clients.

One class for each request or reply, named after Apache's; its docstring lists the codes that use it. `bname` (the
broker's name), `lo`, `ns`, `nsd` and `oway`, which 5.x clients add to most requests, are read where something depends
on them and ignored elsewhere.

Source: the classes of remoting/protocol/header, apache/rocketmq; recorded frames in tests/golden/frames.jsonl.
"""

from collections.abc import Mapping
from typing import Final, Self

import msgspec

from .header import Header, Int32
from .topics import DEFAULT_TOPIC

__all__ = [
    "EXT_ACCESS_KEY",
    "EXT_HEART_BEAT_V2",
    "EXT_MSG_REGION",
    "EXT_SUB_CHANGE",
    "EXT_TRACE_ON",
    "CheckTransactionStateHeader",
    "ConsumerGroupHeader",
    "EndTransactionHeader",
    "GetMaxOffsetHeader",
    "OffsetResponseHeader",
    "ProducerGroupHeader",
    "PullHeader",
    "PullResponseHeader",
    "QueryConsumerOffsetHeader",
    "QueryMessageHeader",
    "QueryMessageResponseHeader",
    "QueueHeader",
    "RecallMessageHeader",
    "RecallMessageResponseHeader",
    "ReplyMessageHeader",
    "SearchOffsetHeader",
    "SendBackHeader",
    "SendMessageHeader",
    "SendResponseHeader",
    "TimestampResponseHeader",
    "UnregisterClientHeader",
    "UpdateConsumerOffsetHeader",
    "ViewMessageHeader",
    "sent_properties",
    "sent_topic",
]

# Ext fields outside of any header class.
EXT_MSG_REGION: Final = "MSG_REGION"
EXT_TRACE_ON: Final = "TRACE_ON"
EXT_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
EXT_HEART_BEAT_V2: Final = "IS_SUPPORT_HEART_BEAT_V2"
EXT_SUB_CHANGE: Final = "IS_SUB_CHANGE"
EXT_ACCESS_KEY: Final = "AccessKey"
EXT_SIGNATURE: Final = "Signature"


class SendMessageHeader(Header):
    """10, 324 (long names); 310, 320, 325 (one-letter names). queue_id below 0: the broker chooses.

    properties: the message's, as text; for a batch those of the batch as a whole.
    """

    producer_group: str
    topic: str
    default_topic: str = DEFAULT_TOPIC
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32 = -1
    sys_flag: Int32 = 0
    born_timestamp: int = 0
    flag: Int32 = 0
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: str | None = msgspec.field(name="bname", default=None)

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header, of either naming: a V1 header has a topic, a V2 header a "b". HeaderError as Header.

        Fields of the other naming are ignored, so that every check reads the same value.
        """
        if "topic" not in ext:
            ext = {long: ext[short] for short, long in _SEND_LONG_NAMES.items() if short in ext}
        return super().from_ext(ext)

    def to_ext_v1(self) -> dict[str, str]:
        """Return the ext fields with long names, for codes 10 and 324."""
        return self.to_ext()

    def to_ext_v2(self) -> dict[str, str]:
        """Return the ext fields with one-letter names, for codes 310, 320 and 325."""
        ext = self.to_ext()
        return {_SEND_SHORT_NAMES[name]: value for name, value in ext.items()}


def sent_topic(ext: Mapping[str, str]) -> str:
    """Return the topic that SendMessageHeader.from_ext finds in the fields of a send; empty: none."""
    return ext["topic"] if "topic" in ext else ext.get("b", "")


def sent_properties(ext: Mapping[str, str]) -> str:
    """Return the properties that SendMessageHeader.from_ext finds in the fields of a send; empty: none."""
    return ext.get("properties" if "topic" in ext else "i", "")


_SEND_SHORT_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}
_SEND_LONG_NAMES = {short: long for long, short in _SEND_SHORT_NAMES.items()}


class SendResponseHeader(Header):
    """Reply to every send. msg_id: the offset id, for a batch all ids joined by commas; queue_offset: the first one's.

    Every reply has msg_region and trace_on: Java's client reads msg_region without checking that it exists.
    """

    msg_id: str
    queue_id: Int32
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = msgspec.field(name=EXT_MSG_REGION, default=None)
    trace_on: bool | None = msgspec.field(name=EXT_TRACE_ON, default=None)


class PullHeader(Header):
    """11, 361. sys_flag: PullSysFlag. Times in ms; suspend_timeout_millis: the broker may hold the pull for so long.

    request_source: 0 to 2 from a proxy, which then also names its client (proxyFrowardClientId: Java's spelling).
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: int
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: int
    suspend_timeout_millis: int
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None


class PullResponseHeader(Header):
    """Reply to 11, 361, with codes 0, 19, 20 and 21 alike. Broker 0 is the master."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class SendBackHeader(Header):
    """36: deliver the record at CommitLog `offset` to the group again, after delay_level's delay.

    delay_level 0: the broker chooses the delay by reconsumeTimes; below 0: move it to the dead letters at once.
    """

    offset: int
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class QueueHeader(Header):
    """31, 32 and all other requests with just a queue."""

    topic: str
    queue_id: Int32


class GetMaxOffsetHeader(Header):
    """30. committed: only up to what replicas have; default true."""

    topic: str
    queue_id: Int32
    committed: bool = True


class SearchOffsetHeader(Header):
    """29. timestamp: epoch ms. boundary_type: LOWER (where absent) or UPPER."""

    topic: str
    queue_id: Int32
    timestamp: int
    boundary_type: str | None = None


class QueryConsumerOffsetHeader(Header):
    """14. set_zero_if_not_found false: an uncommitted offset is QUERY_NOT_FOUND on every queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header):
    """15."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: int


class OffsetResponseHeader(Header):
    """Reply to 14, 29, 30, 31."""

    offset: int


class TimestampResponseHeader(Header):
    """Reply to 32. timestamp: epoch ms, -1 for an empty queue."""

    timestamp: int


class QueryMessageHeader(Header):
    """12. Times are store times in epoch ms. unique_key: key is a UNIQ_KEY."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: int
    end_timestamp: int
    unique_key: bool = msgspec.field(name=EXT_UNIQUE_KEY_QUERY, default=False)


class QueryMessageResponseHeader(Header):
    """Reply to 12."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class ViewMessageHeader(Header):
    """33. offset: CommitLog byte."""

    offset: int
    topic: str | None = None


class EndTransactionHeader(Header):
    """37, one way. commit_or_rollback: 8 commit, 12 rollback, 0 unknown. commit_log_offset: the half message's."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class CheckTransactionStateHeader(Header):
    """39, broker to client, one way; the body is the half message's record."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class ReplyMessageHeader(Header):
    """326, broker to client: the answer to a request message. Hosts are "ip:port"."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: int
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: int
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False


class RecallMessageHeader(Header):
    """370."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponseHeader(Header):
    """Reply to 370. msg_id: the recalled message's UNIQ_KEY."""

    msg_id: str


class ConsumerGroupHeader(Header):
    """38, 40, 203."""

    consumer_group: str


class ProducerGroupHeader(Header):
    """204."""

    producer_group: str


class UnregisterClientHeader(Header):
    """35."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None
