"""Headers of administration and of the name server.

As headers.py: one class a request or reply; requests that differ only in their code share a class.

Source: the classes of remoting/protocol/header, apache/rocketmq; recorded frames in tests/golden/frames.jsonl.
"""

from typing import Final

from .header import Header, Int32
from .topics import DEFAULT_TOPIC

__all__ = [
    "ELECTION_PRIORITY_LAST",
    "AddWritePermResponseHeader",
    "BrokerConfigResponseHeader",
    "BrokerConsumeStatsHeader",
    "BrokerHeader",
    "BrokerHeartbeatHeader",
    "BrokerMemberGroupHeader",
    "BrokerNameHeader",
    "CloneGroupOffsetHeader",
    "ClusterHeader",
    "ConsumeMessageDirectlyHeader",
    "ConsumeStatsHeader",
    "ConsumerRunningInfoHeader",
    "ConsumerStatusHeader",
    "CreateTopicHeader",
    "DataVersionResponseHeader",
    "DeleteGroupHeader",
    "DeleteTopicInNamesrvHeader",
    "GroupHeader",
    "GroupTopicHeader",
    "KvHeader",
    "KvResponseHeader",
    "NamespaceHeader",
    "QueryConsumeQueueHeader",
    "RegisterBrokerHeader",
    "RegisterBrokerResponseHeader",
    "ResetOffsetHeader",
    "ResumeCheckHalfMessageHeader",
    "RouteHeader",
    "TopicHeader",
    "ViewBrokerStatsHeader",
    "WipeWritePermResponseHeader",
]


class TopicHeader(Header):
    """202, 215, 217, 300, 351 and all other requests with just a topic."""

    topic: str


class GroupHeader(Header):
    """343, 352."""

    group: str


class GroupTopicHeader(Header):
    """303, 345."""

    group: str
    topic: str | None = None


class CreateTopicHeader(Header):
    """17. attributes: "+name=value,-name2"."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str = DEFAULT_TOPIC
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class DeleteGroupHeader(Header):
    """207. clean_offset is remove_offset in 4.9; a client sends both."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


class ConsumeStatsHeader(Header):
    """208. topic absent: all of the group's. topic_list: joined by ";"."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class BrokerConsumeStatsHeader(Header):
    """317."""

    is_order: bool = False


class ResetOffsetHeader(Header):
    """222 and, to clients, 220. timestamp: epoch ms, -1 for the queue's end. queue_id -1: all of them."""

    topic: str
    group: str
    timestamp: int
    is_force: bool = False
    queue_id: Int32 | None = None
    offset: int | None = None


class ConsumerStatusHeader(Header):
    """223 and, to clients, 221."""

    topic: str
    group: str
    client_addr: str | None = None


class ConsumerRunningInfoHeader(Header):
    """307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyHeader(Header):
    """309. msg_id: an offset id; the broker adds the record as the body when it forwards the request."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class CloneGroupOffsetHeader(Header):
    """314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewBrokerStatsHeader(Header):
    """315."""

    stats_name: str
    stats_key: str


class QueryConsumeQueueHeader(Header):
    """321. index: queue offset to begin at."""

    topic: str
    queue_id: Int32
    index: int
    count: Int32
    consumer_group: str | None = None


class ResumeCheckHalfMessageHeader(Header):
    """323. msg_id: an offset id."""

    msg_id: str | None = None
    topic: str | None = None


class RegisterBrokerHeader(Header):
    """103. body_crc32: of the body as sent, 31 bits; 0 is not checked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: int
    compressed: bool = False
    body_crc32: Int32 = 0
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None


class RegisterBrokerResponseHeader(Header):
    """Reply to 103. Only slaves use both fields."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerHeader(Header):
    """104, 322. The fields identify the broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


class DataVersionResponseHeader(Header):
    """Reply to 322."""

    changed: bool


ELECTION_PRIORITY_LAST: Final = 2**31 - 1
"""electionPriority of a broker without one: a smaller number is elected first."""


class BrokerHeartbeatHeader(Header):
    """904, to name servers and controllers. heartbeat_timeout_mills: the protocol's spelling. epoch and all after it:
    for controllers."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    heartbeat_timeout_mills: int | None = None
    epoch: Int32 | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    election_priority: Int32 | None = None


class BrokerMemberGroupHeader(Header):
    """901."""

    cluster_name: str
    broker_name: str


class RouteHeader(Header):
    """105. accept_standard_json_only: for readers of standard JSON only; a version of 401 or above implies it."""

    topic: str
    accept_standard_json_only: bool | None = None


class BrokerNameHeader(Header):
    """205, 327."""

    broker_name: str


class WipeWritePermResponseHeader(Header):
    """Reply to 205."""

    wipe_topic_count: Int32


class AddWritePermResponseHeader(Header):
    """Reply to 327."""

    add_topic_count: Int32


class DeleteTopicInNamesrvHeader(Header):
    """216."""

    topic: str
    cluster_name: str | None = None


class ClusterHeader(Header):
    """224."""

    cluster: str


class KvHeader(Header):
    """100 (with value), 101, 102."""

    namespace: str
    key: str
    value: str | None = None


class KvResponseHeader(Header):
    """Reply to 101."""

    value: str | None = None


class NamespaceHeader(Header):
    """219."""

    namespace: str


class BrokerConfigResponseHeader(Header):
    """Reply to 26. version: the DataVersion's JSON."""

    version: str = ""
