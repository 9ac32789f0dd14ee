"""What a broker may be told, with RocketMQ's names beside ours.

BROKER_CONF maps the keys of a RocketMQ broker.conf to our fields: `cli` reads a broker.conf with it, request 26 writes
one with it. A key that is not in it has no effect here; `cli` says so.

Source: BrokerConfig, MessageStoreConfig, apache/rocketmq common/ and store/, release 5.3.3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from mqtrail.wire import DELAY_LEVELS_DEFAULT, TRACE_TOPIC, Host, InvalidParameter, Perm

MINUTE_MS: Final = 60_000
_ADDRESS: Final = Host("127.0.0.1", 10911)
_HA_ADDRESS: Final = Host("127.0.0.1", 10912)
KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker's settings. Times are ms, sizes bytes; "RocketMQ:" names the key of broker.conf."""

    cluster_name: str = "DefaultCluster"  # RocketMQ: brokerClusterName
    broker_name: str = "broker-a"  # RocketMQ: brokerName
    broker_id: int = 0  # RocketMQ: brokerId; 0 is the master, and the only one there is
    address: Host = _ADDRESS  # RocketMQ: brokerIP1, listenPort; stored in every record
    ha_address: Host = _HA_ADDRESS  # RocketMQ: brokerIP2, haListenPort; told to name servers
    permission: int = Perm.READ | Perm.WRITE  # RocketMQ: brokerPermission
    region_id: str = "DefaultRegion"  # RocketMQ: regionId
    use_tls: bool = False  # RocketMQ: useTLS; shown alone: the node knows how it reaches name servers

    auto_create_topic: bool = True  # RocketMQ: autoCreateTopicEnable
    auto_create_group: bool = True  # RocketMQ: autoCreateSubscriptionGroup
    default_topic_queue_nums: int = 8  # RocketMQ: defaultTopicQueueNums
    cluster_topic: bool = True  # RocketMQ: clusterTopicEnable
    broker_topic: bool = True  # RocketMQ: brokerTopicEnable
    trace_topic_enable: bool = False  # RocketMQ: traceTopicEnable; make the trace topic at start
    trace_topic: str = TRACE_TOPIC  # RocketMQ: msgTraceTopicName
    trace_on: bool = True  # RocketMQ: traceOn; the TRACE_ON that clients are told

    sync_flush: bool = False  # RocketMQ: flushDiskType=SYNC_FLUSH
    sync_flush_timeout_ms: int = 5_000  # RocketMQ: syncFlushTimeout; then a send is told FLUSH_DISK_TIMEOUT
    start_accept_ms: int = 0  # RocketMQ: startAcceptSendRequestTimeStamp
    message_size_max: int = 4 * MIB  # RocketMQ: maxMessageSize; of a body, and of a batch's
    message_delay_level: str = DELAY_LEVELS_DEFAULT  # RocketMQ: messageDelayLevel

    long_polling: bool = True  # RocketMQ: longPollingEnable
    short_polling_ms: int = 1_000  # RocketMQ: shortPollingTimeMills; the hold of a pull when long_polling is off
    held_pulls_max: int = 100_000  # pulls held at once; the next is refused with SYSTEM_BUSY
    hold_ms_max: int = 5 * MINUTE_MS  # longest hold, whatever the client asks for
    pull_count_max: int = 32  # RocketMQ: maxTransferCountOnMessageInMemory
    pull_size_max: int = 256 * KIB  # RocketMQ: maxTransferBytesOnMessageInMemory
    lite_pull: bool = True  # RocketMQ: litePullMessageEnable
    property_filter: bool = False  # RocketMQ: enablePropertyFilter; serve subscriptions by SQL92
    filter_retry: bool = False  # RocketMQ: filterSupportRetry; SQL92 on a retry topic: the real topic's expression
    server_side_reset: bool = True  # RocketMQ: useServerSideResetOffset; off: 222 goes through live consumers (220)
    config_black_list: str = "configBlackList;brokerConfigPath"  # RocketMQ: configBlackList; keys 25 may not change

    fast_failure: bool = True  # RocketMQ: brokerFastFailureEnable; refuse what waited too long to be served
    wait_send_ms: int = 200  # RocketMQ: waitTimeMillsInSendQueue
    wait_pull_ms: int = 5_000  # RocketMQ: waitTimeMillsInPullQueue
    wait_lite_pull_ms: int = 5_000  # RocketMQ: waitTimeMillsInLitePullQueue
    wait_heartbeat_ms: int = 31_000  # RocketMQ: waitTimeMillsInHeartbeatQueue
    wait_transaction_ms: int = 3_000  # RocketMQ: waitTimeMillsInTransactionQueue
    wait_ack_ms: int = 3_000  # RocketMQ: waitTimeMillsInAckQueue
    wait_admin_ms: int = 5_000  # RocketMQ: waitTimeMillsInAdminBrokerQueue
    protect_broker: bool = False  # RocketMQ: disableConsumeIfConsumerReadSlowly
    consumer_fall_behind_size: int = 16 * 1024 * MIB  # RocketMQ: consumerFallbehindThreshold
    topic_send_rate_max: int = 0  # messages a second into one topic; 0: any number
    group_pull_rate_max: int = 0  # messages a second to one group; 0: any number
    rate_burst_s: int = 2  # seconds' worth of messages that a topic or group may save up
    query_count_max: int = 64  # RocketMQ: maxMsgsNumBatch
    query_count_default: int = 32  # RocketMQ: defaultQueryMaxNum

    pop_from_retry_percent: int = 20  # RocketMQ: popFromRetryProbability; pops that look at the retry topic first
    retry_topic_v2: bool = False  # RocketMQ: enableRetryTopicV2; %RETRY%group+topic for popped messages
    pop_from_retry_v1: bool = True  # RocketMQ: retrieveMessageFromPopRetryTopicV1; with V2, read the other name too
    pop_actual_retry_topic: bool = False  # RocketMQ: popResponseReturnActualRetryTopic
    held_pops_max: int = 100_000  # RocketMQ: maxPopPollingSize; pops held at once
    held_pops_queue_max: int = 1_024  # RocketMQ: popPollingSize; of one topic, group and queue
    revive_queue_nums: int = 8  # RocketMQ: reviveQueueNum; queues of rmq_sys_REVIVE_LOG_<cluster>
    revive_interval_ms: int = 1_000  # RocketMQ: reviveInterval; between two looks at one of them
    default_request_mode: str = "PULL"  # RocketMQ: defaultMessageRequestMode; PULL or POP, for groups without their own
    default_pop_share_queue_nums: int = -1  # RocketMQ: defaultPopShareQueueNum
    server_load_balance: bool = True  # RocketMQ: serverLoadBalancerEnable; share queues out for clients that ask (400)

    broadcast_offsets: bool = True  # RocketMQ: enableBroadcastOffsetStore; where broadcasting clients are
    broadcast_expire_ms: int = 2 * MINUTE_MS  # RocketMQ: broadcastOffsetExpireSecond (s); of a client that left
    broadcast_expire_max_ms: int = 5 * MINUTE_MS  # RocketMQ: broadcastOffsetExpireMaxSecond (s); of a silent one

    client_expire_ms: int = 2 * MINUTE_MS  # RocketMQ: channelExpiredTimeout
    client_scan_ms: int = 10_000  # how often silent clients are looked for
    lock_ttl_ms: int = MINUTE_MS  # RocketMQ: rocketmq.broker.rebalance.lockMaxLiveTime
    offsets_save_ms: int = 5_000  # RocketMQ: flushConsumerOffsetInterval; delay offsets too (there 10 s)
    register_ms: int = 30_000  # RocketMQ: registerNameServerPeriod
    statistics: bool = True  # count what is sent and pulled, per topic, queue and group
    forward_timeout_ms: int = 10_000  # a request handed on to a client (307, 309)
    young_queue_size: int = 1 << 30  # a new group starts at 0 where a queue's first message is so near the log's end
    topics_max: int = 50_000  # topics that may make themselves; 17 is not bound by it
    groups_max: int = 50_000  # consumer groups that may make themselves; 200 is not bound by it
    producer_groups_max: int = 50_000  # producer groups with a live client
    locks_max: int = 200_000  # queue locks kept at once

    reject_transactions: bool = False  # RocketMQ: rejectTransactionMessage; refuse half messages
    transaction_timeout_ms: int = 6_000  # RocketMQ: transactionTimeOut; a half message so young is not asked about
    transaction_check_ms: int = 30_000  # RocketMQ: transactionCheckInterval
    transaction_check_max: int = 15  # RocketMQ: transactionCheckMax
    transaction_op_size_max: int = 4_096  # RocketMQ: transactionOpMsgMaxSize; bytes of one op record, about
    transaction_op_delay_ms: int = 3_000  # RocketMQ: transactionOpBatchInterval
    timers: bool = True  # RocketMQ: timerWheelEnable; take timer messages (TIMER_DELAY_SEC, …)
    timer_delay_max_ms: int = 3 * 24 * 60 * MINUTE_MS  # RocketMQ: timerMaxDelaySec
    timer_slot_max: int = (1 << 31) - 1  # RocketMQ: timerCongestNumEachSlot
    recall: bool = True  # RocketMQ: recallMessageEnable; serve recalls of timer messages; there off
    store_replies: bool = True  # RocketMQ: storeReplyMessageEnable

    acl: bool = False  # RocketMQ: aclEnable; the accounts of plain_acl.yml and conf/acl/*.yml
    authentication: bool = False  # RocketMQ: authenticationEnabled; users of 5.x
    authorization: bool = False  # RocketMQ: authorizationEnabled; their policies
    authentication_whitelist: str = ""  # RocketMQ: authenticationWhitelist; request codes joined by commas
    authorization_whitelist: str = ""  # RocketMQ: authorizationWhitelist
    init_user: str = field(default="", repr=False)  # RocketMQ: initAuthenticationUser; {"username":…,"password":…}
    inner_credentials: str = field(default="", repr=False)  # RocketMQ: innerClientAuthenticationCredentials
    acl_like_apache: bool = False  # aclLikeApache; ask for no more permissions than Apache's brokers do
    migrate_acl: bool = False  # RocketMQ: migrateAuthFromV1Enabled; accounts of ACL files become users at start

    reply_in_kind: bool = False  # answer a binary header in binary; 5.3.3 always answers in JSON
    broker_trace: bool = False  # write Stored, Delivered, SentBack and DeadLettered records into the trace topic
    broker_trace_delay_ms: int = 500  # how long a record waits for others
    broker_trace_batch_size: int = 128 * KIB  # a trace message is written when it has this many bytes
    broker_trace_records_max: int = 20_000  # records waiting at most; more are dropped and counted in a TraceLoss

    def __post_init__(self) -> None:
        """Refuse what could not work. InvalidParameter names the field."""
        for name in ("cluster_name", "broker_name", "region_id", "trace_topic"):
            if not getattr(self, name):
                raise InvalidParameter(f"found an empty {name}, expected a name")
        for name in (
            "default_topic_queue_nums",
            "message_size_max",
            "held_pulls_max",
            "held_pops_max",
            "held_pops_queue_max",
            "revive_queue_nums",
            "revive_interval_ms",
            "pull_count_max",
            "pull_size_max",
            "offsets_save_ms",
            "client_expire_ms",
            "rate_burst_s",
            "sync_flush_timeout_ms",
            "transaction_check_ms",
            "transaction_op_size_max",
            "timer_delay_max_ms",
        ):
            if getattr(self, name) <= 0:
                raise InvalidParameter(f"found {name} {getattr(self, name)}, expected more than 0")
        if self.default_request_mode not in ("PULL", "POP"):
            raise InvalidParameter(f"found default_request_mode {self.default_request_mode!r}, expected PULL or POP")
        if self.broker_id != 0:
            raise InvalidParameter(f"found broker_id {self.broker_id}, expected 0: slaves are not there yet")

    def change(self, values: Mapping[str, object]) -> None:
        """Set fields of the running broker: the one way it ever changes (request 25). InvalidParameter: nothing is."""
        replace(self, **values)  # type: ignore[arg-type]
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _boolean(text: str) -> bool:
    return text.strip().lower() == "true"


class ConfKey(NamedTuple):
    """How one key of broker.conf is read into a field and written back."""

    field: str
    read: Callable[[str], object] = str
    write: Callable[[object], str] = str


def _write_boolean(value: object) -> str:
    return "true" if value else "false"


def _milliseconds(seconds: str) -> int:
    return int(seconds) * 1_000


def _write_seconds(value: object) -> str:
    assert isinstance(value, int)
    return str(value // 1_000)


def _switch(field: str) -> ConfKey:
    return ConfKey(field, _boolean, _write_boolean)


def _number(field: str) -> ConfKey:
    return ConfKey(field, int)


# RocketMQ's key -> our field. Addresses (brokerIP1, listenPort, brokerIP2, haListenPort) are made of two keys each and
# are cli's to join; keys of the store are in mqtrail.store.
BROKER_CONF: Final[Mapping[str, ConfKey]] = {
    "aclEnable": _switch("acl"),
    "aclLikeApache": _switch("acl_like_apache"),
    "authenticationEnabled": _switch("authentication"),
    "authenticationWhitelist": ConfKey("authentication_whitelist"),
    "authorizationEnabled": _switch("authorization"),
    "authorizationWhitelist": ConfKey("authorization_whitelist"),
    "autoCreateSubscriptionGroup": _switch("auto_create_group"),
    "autoCreateTopicEnable": _switch("auto_create_topic"),
    "broadcastOffsetExpireMaxSecond": ConfKey("broadcast_expire_max_ms", _milliseconds, _write_seconds),
    "broadcastOffsetExpireSecond": ConfKey("broadcast_expire_ms", _milliseconds, _write_seconds),
    "brokerClusterName": ConfKey("cluster_name"),
    "brokerFastFailureEnable": _switch("fast_failure"),
    "brokerId": _number("broker_id"),
    "brokerName": ConfKey("broker_name"),
    "brokerPermission": _number("permission"),
    "brokerTopicEnable": _switch("broker_topic"),
    "channelExpiredTimeout": _number("client_expire_ms"),
    "clusterTopicEnable": _switch("cluster_topic"),
    "configBlackList": ConfKey("config_black_list"),
    "consumerFallbehindThreshold": _number("consumer_fall_behind_size"),
    "defaultMessageRequestMode": ConfKey("default_request_mode"),
    "defaultPopShareQueueNum": _number("default_pop_share_queue_nums"),
    "defaultQueryMaxNum": _number("query_count_default"),
    "defaultTopicQueueNums": _number("default_topic_queue_nums"),
    "disableConsumeIfConsumerReadSlowly": _switch("protect_broker"),
    "enableBroadcastOffsetStore": _switch("broadcast_offsets"),
    "enablePropertyFilter": _switch("property_filter"),
    "enableRetryTopicV2": _switch("retry_topic_v2"),
    "filterSupportRetry": _switch("filter_retry"),
    "flushConsumerOffsetInterval": _number("offsets_save_ms"),
    "flushDiskType": ConfKey(
        "sync_flush", lambda text: text.strip() == "SYNC_FLUSH", lambda on: "SYNC_FLUSH" if on else "ASYNC_FLUSH"
    ),
    "litePullMessageEnable": _switch("lite_pull"),
    "longPollingEnable": _switch("long_polling"),
    "maxMessageSize": _number("message_size_max"),
    "maxMsgsNumBatch": _number("query_count_max"),
    "maxPopPollingSize": _number("held_pops_max"),
    "maxTransferBytesOnMessageInMemory": _number("pull_size_max"),
    "maxTransferCountOnMessageInMemory": _number("pull_count_max"),
    "messageDelayLevel": ConfKey("message_delay_level"),
    "migrateAuthFromV1Enabled": _switch("migrate_acl"),
    "msgTraceTopicName": ConfKey("trace_topic"),
    "popFromRetryProbability": _number("pop_from_retry_percent"),
    "popPollingSize": _number("held_pops_queue_max"),
    "popResponseReturnActualRetryTopic": _switch("pop_actual_retry_topic"),
    "recallMessageEnable": _switch("recall"),
    "regionId": ConfKey("region_id"),
    "registerNameServerPeriod": _number("register_ms"),
    "rejectTransactionMessage": _switch("reject_transactions"),
    "retrieveMessageFromPopRetryTopicV1": _switch("pop_from_retry_v1"),
    "reviveInterval": _number("revive_interval_ms"),
    "reviveQueueNum": _number("revive_queue_nums"),
    "serverLoadBalancerEnable": _switch("server_load_balance"),
    "shortPollingTimeMills": _number("short_polling_ms"),
    "startAcceptSendRequestTimeStamp": _number("start_accept_ms"),
    "storeReplyMessageEnable": _switch("store_replies"),
    "timerCongestNumEachSlot": _number("timer_slot_max"),
    "timerMaxDelaySec": ConfKey("timer_delay_max_ms", _milliseconds, _write_seconds),
    "timerWheelEnable": _switch("timers"),
    "syncFlushTimeout": _number("sync_flush_timeout_ms"),
    "traceOn": _switch("trace_on"),
    "traceTopicEnable": _switch("trace_topic_enable"),
    "transactionCheckInterval": _number("transaction_check_ms"),
    "transactionCheckMax": _number("transaction_check_max"),
    "transactionOpBatchInterval": _number("transaction_op_delay_ms"),
    "transactionOpMsgMaxSize": _number("transaction_op_size_max"),
    "transactionTimeOut": _number("transaction_timeout_ms"),
    "useServerSideResetOffset": _switch("server_side_reset"),
    "waitTimeMillsInAckQueue": _number("wait_ack_ms"),
    "waitTimeMillsInAdminBrokerQueue": _number("wait_admin_ms"),
    "waitTimeMillsInHeartbeatQueue": _number("wait_heartbeat_ms"),
    "waitTimeMillsInLitePullQueue": _number("wait_lite_pull_ms"),
    "waitTimeMillsInPullQueue": _number("wait_pull_ms"),
    "waitTimeMillsInSendQueue": _number("wait_send_ms"),
    "waitTimeMillsInTransactionQueue": _number("wait_transaction_ms"),
}


def properties_text(config: BrokerConfig) -> str:
    """Return the settings as the lines of a broker.conf, by key: what request 26 answers."""
    lines = {key: entry.write(getattr(config, entry.field)) for key, entry in BROKER_CONF.items()}
    lines |= {
        "brokerIP1": config.address.ip,
        "listenPort": str(config.address.port),
        "brokerIP2": config.ha_address.ip,
        "haListenPort": str(config.ha_address.port),
        "brokerRole": "ASYNC_MASTER",
        "useTLS": _write_boolean(config.use_tls),
        # never otherwise; exportConfigs of mqadmin 4.9 fails without them
        "filterServerNums": "0",
        "slaveReadEnable": "false",
    }
    return "".join(f"{key}={lines[key]}\n" for key in sorted(lines))
