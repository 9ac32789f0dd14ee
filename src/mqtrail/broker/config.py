"""The settings of a broker, with the keys of a RocketMQ broker.conf that set them.

Source: BrokerConfig, MessageStoreConfig, apache/rocketmq common/ and store/, release 5.3.3.
"""

from dataclasses import dataclass
from typing import Final

from mqtrail.wire import (
    BOOLEAN,
    DELAY_LEVELS_DEFAULT,
    REGION_DEFAULT,
    SECONDS,
    TRACE_TOPIC,
    Host,
    InvalidParameter,
    Perm,
    SettingUnit,
    address_matcher,
    check_settings,
    conf_lines,
    parse_peers,
    setting,
)

MINUTE_MS: Final = 60_000
QUEUES_MAX: Final = 65_536  # of a topic, and of the retry topic of a group; Java has no limit
_ADDRESS: Final = Host("127.0.0.1", 10911)
_HA_ADDRESS: Final = Host("127.0.0.1", 10912)
KIB: Final = 1024
MIB: Final = 1024 * KIB
FLUSH_DISK_TYPE: Final = SettingUnit(
    lambda text: text.strip() == "SYNC_FLUSH", lambda on: "SYNC_FLUSH" if on else "ASYNC_FLUSH"
)
SYNC_MASTER: Final = "SYNC_MASTER"
SLAVE: Final = "SLAVE"
ROLES: Final = ("", "ASYNC_MASTER", SYNC_MASTER, SLAVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker. Times are ms, sizes bytes. The node sets address, ha_address, use_tls,
    loses_unflushed and memory_size.
    """

    cluster_name: str = setting("DefaultCluster", "name of the cluster", conf="brokerClusterName", least=1)
    broker_name: str = setting(
        "broker-a", "name of the broker; to run several brokers, use `--brokers`", conf="brokerName", least=1
    )
    broker_id: int = setting(0, "0: master; 1 or more: slave", conf="brokerId", least=0)
    broker_role: str = setting(
        "",
        "ASYNC_MASTER or SYNC_MASTER: master that slaves can follow; SLAVE; empty: ASYNC_MASTER without `ha_port`",
        conf="brokerRole",
    )
    controller_mode: bool = setting(
        False,
        "let a controller assign the id of this broker and choose the master; `broker_id` and `broker_role` are "
        "ignored",
        conf="enableControllerMode",
    )
    controller_addresses: str = setting("", "addresses of the controllers, separated by `;`", conf="controllerAddr")
    async_learner: bool = setting(
        False,
        "with controller_mode: copy the master's log, but never join the in-sync replicas or become master",
        conf="asyncLearner",
    )
    controller_heartbeat_ms: int = setting(
        1_000, "interval of heartbeats to the controllers", conf="brokerHeartbeatInterval", least=1
    )
    controller_silence_ms: int = setting(
        4_000,
        "time without a heartbeat after which a controller considers this broker dead (RocketMQ: 10 000)",
        conf="controllerHeartBeatTimeoutMills",
        least=1,
    )
    controller_poll_ms: int = setting(
        1_000,
        "interval between two requests to the controller for the master (RocketMQ: 5 000)",
        conf="syncBrokerMetadataPeriod",
        least=1,
    )
    ledger_mode: bool = setting(
        False,
        "be a member of a DLedger group, which elects the master; `broker_id` and `broker_role` are ignored",
        conf="enableDLegerCommitLog",
    )
    ledger_group: str = setting(
        "", "with ledger_mode: name of the group, the same at each member; empty: `broker_name`", conf="dLegerGroup"
    )
    ledger_peers: str = setting(
        "",
        "with ledger_mode: all members of the group: `<id>-<host>:<port>`, joined by `;`; 1, 3 or 5, the same list at "
        "each. Ids are n0, n1, …, as RocketMQ needs them",
        conf="dLegerPeers",
    )
    ledger_self_id: str = setting("", "with ledger_mode: id of this member in `ledger_peers`", conf="dLegerSelfId")
    ledger_preferred: str = setting(
        "",
        "with ledger_mode: ids of members that should lead if they can, joined by `;`; empty: none is preferred",
        conf="preferredLeaderId",
    )
    ledger_timeout_ms: int = setting(
        2_500,
        "with ledger_mode: time after which a send that no majority has is answered with code 1 (RocketMQ: fixed)",
        least=1,
    )
    address: Host = _ADDRESS  # brokerIP1, listenPort: written to every record
    ha_address: Host = _HA_ADDRESS  # brokerIP2, haListenPort: reported to name servers
    permission: int = setting(
        Perm.READ | Perm.WRITE, "4: read, 2: write, 6: both", conf="brokerPermission", changeable=True
    )
    region_id: str = setting(REGION_DEFAULT, "region written to trace records", conf="regionId", least=1)
    use_tls: bool = False  # useTLS: reported only
    loses_unflushed: bool = False  # what is not flushed is gone after kill -9, so sends with WAIT=false wait too
    memory_size: int = 0  # bytes of the machine's memory; 0: unknown, so no reader is far

    auto_create_topic: bool = setting(
        True, "create a topic when a message is sent to it", conf="autoCreateTopicEnable", changeable=True
    )
    auto_create_group: bool = setting(
        True, "create a group at its first pull or heartbeat", conf="autoCreateSubscriptionGroup", changeable=True
    )
    default_topic_queue_nums: int = setting(
        8,
        "maximum number of queues of an automatically created topic",
        conf="defaultTopicQueueNums",
        least=1,
        most=QUEUES_MAX,
    )
    cluster_topic: bool = setting(
        True, "allow reads and writes of the topic named like the cluster", conf="clusterTopicEnable"
    )
    broker_topic: bool = setting(
        True, "allow reads and writes of the topic named like the broker", conf="brokerTopicEnable"
    )
    trace_topic_enable: bool = setting(False, "create the trace topic at start", conf="traceTopicEnable")
    trace_topic: str = setting(TRACE_TOPIC, "name of the trace topic", conf="msgTraceTopicName", least=1)
    trace_on: bool = setting(True, "value of TRACE_ON sent to clients", conf="traceOn")

    sync_flush: bool = setting(
        False, "acknowledge a send after its record is flushed (SYNC_FLUSH)", conf="flushDiskType", unit=FLUSH_DISK_TYPE
    )
    sync_flush_timeout_ms: int = setting(
        5_000,
        "with sync_flush: time after which a send is answered with code 10, FLUSH_DISK_TIMEOUT",
        conf="syncFlushTimeout",
        least=1,
    )
    slave_read: bool = setting(
        False,
        "on a slave: serve pulls; on a master: send readers that are far behind to slaves",
        conf="slaveReadEnable",
    )
    far_memory_percent: int = setting(
        40,
        "with slave_read: percentage of the machine's memory that a reader must be behind to be sent to a slave",
        conf="accessMessageInMemoryMaxRatio",
        least=0,
        most=100,
    )
    in_sync_replicas: int | None = setting(
        None,
        "SYNC_MASTER: number of replicas that must have a message before its send is acknowledged, the master "
        "included; 1: no wait; none: the rule of 4.9, one slave, and code 11 if there is none",
        conf="inSyncReplicas",
        least=1,
    )
    auto_in_sync_replicas: bool = setting(
        False,
        "lower in_sync_replicas to the number of replicas that are in sync",
        conf="enableAutoInSyncReplicas",
    )
    all_in_sync: bool = setting(
        False,
        "with controller_mode: acknowledge a send, and make its message readable, when all in-sync replicas have it",
        conf="allAckInSyncStateSet",
    )
    min_in_sync_replicas: int = setting(
        1,
        "with controller_mode: number of in-sync replicas, the master included, below which sends are refused",
        conf="minInSyncReplicas",
        least=1,
    )
    ha_late_max_ms: int = setting(
        15_000,
        "with controller_mode: time that a replica may be behind the log before it leaves the in-sync replicas",
        conf="haMaxTimeSlaveNotCatchup",
        least=1,
    )
    slave_timeout_ms: int = setting(
        3_000,
        "SYNC_MASTER: time after which a send is answered with code 12, FLUSH_SLAVE_TIMEOUT",
        conf="slaveTimeout",
        least=1,
    )
    ha_gap_max: int = setting(
        256 * MIB,
        "bytes that a slave may be behind and still count as in sync (4.9: haSlaveFallbehindMax)",
        conf="haMaxGapNotInSync",
        least=1,
    )
    ha_chunk_size: int = setting(
        32 * KIB,
        "maximum bytes of the log sent to a slave in one piece",
        conf="haTransferBatchSize",
        least=1,
        most=4 * MIB - 12,
    )
    ha_flow_control: bool = setting(
        False, "limit the bytes per second sent to each slave to `ha_rate_max`", conf="haFlowControlEnable"
    )
    ha_rate_max: int = setting(
        100 * MIB, "with ha_flow_control: maximum bytes per second", conf="maxHaTransferByteInSecond", least=1
    )
    ha_heartbeat_ms: int = setting(
        5_000,
        "interval of heartbeats between master and slave when there is nothing to send",
        conf="haSendHeartbeatInterval",
        least=1,
    )
    slave_addresses: str = setting(
        "",
        "IP addresses that may connect to the HA port, for example `10.0.0.{1,2}` or `10.0.0.*`; none: all",
        conf="slaveAddresses",
    )
    ha_silence_ms: int = setting(
        20_000,
        "time without a whole report of the slave, or without bytes of the master, after which the other side closes "
        "the connection",
        conf="haHousekeepingInterval",
        least=1,
    )
    start_accept_ms: int = setting(
        0, "time before which sends are rejected, epoch ms", conf="startAcceptSendRequestTimeStamp", changeable=True
    )
    message_size_max: int = setting(
        4 * MIB, "maximum bytes of a body, and of the body of a batch", conf="maxMessageSize", least=1, changeable=True
    )
    message_delay_level: str = setting(
        DELAY_LEVELS_DEFAULT, "delays of levels 1, 2, … in `s`, `m`, `h`, `d`", conf="messageDelayLevel"
    )

    long_polling: bool = setting(True, "hold a pull that finds no message", conf="longPollingEnable", changeable=True)
    short_polling_ms: int = setting(
        1_000, "time to hold a pull if long_polling is off", conf="shortPollingTimeMills", changeable=True
    )
    held_pulls_max: int = setting(
        100_000, "maximum number of held pulls; further ones are rejected with SYSTEM_BUSY", least=1
    )
    hold_ms_max: int = setting(5 * MINUTE_MS, "maximum time to hold a pull, whatever the client requests")
    pull_count_max: int = setting(
        32, "maximum number of messages per pull", conf="maxTransferCountOnMessageInMemory", least=1, changeable=True
    )
    pull_size_max: int = setting(
        256 * KIB, "maximum bytes per pull", conf="maxTransferBytesOnMessageInMemory", least=1, changeable=True
    )
    lite_pull: bool = setting(True, "serve lite pull consumers", conf="litePullMessageEnable", changeable=True)
    property_filter: bool = setting(
        False,
        "serve SQL92 subscriptions; `mqtrail up` enables it by default",
        conf="enablePropertyFilter",
        changeable=True,
    )
    filter_retry: bool = setting(
        False,
        "apply the SQL92 filter of the original topic to the retry topic",
        conf="filterSupportRetry",
        changeable=True,
    )
    server_side_reset: bool = setting(
        True,
        "reset offsets on the broker (222); off: through online consumers (220), as in 4.9",
        conf="useServerSideResetOffset",
        changeable=True,
    )
    config_black_list: str = setting(
        "configBlackList;brokerConfigPath", "keys that request 25 must not change", conf="configBlackList"
    )

    fast_failure: bool = setting(
        True, "reject a request (code 2) that waited too long", conf="brokerFastFailureEnable", changeable=True
    )
    wait_send_ms: int = setting(200, "maximum wait of a send", conf="waitTimeMillsInSendQueue", changeable=True)
    wait_pull_ms: int = setting(5_000, "maximum wait of a pull", conf="waitTimeMillsInPullQueue", changeable=True)
    wait_lite_pull_ms: int = setting(
        5_000, "maximum wait of a lite pull", conf="waitTimeMillsInLitePullQueue", changeable=True
    )
    wait_heartbeat_ms: int = setting(
        31_000, "maximum wait of a heartbeat", conf="waitTimeMillsInHeartbeatQueue", changeable=True
    )
    wait_transaction_ms: int = setting(
        3_000, "maximum wait of the end of a transaction", conf="waitTimeMillsInTransactionQueue", changeable=True
    )
    wait_ack_ms: int = setting(
        3_000, "maximum wait of an acknowledgement of a popped message", conf="waitTimeMillsInAckQueue", changeable=True
    )
    wait_admin_ms: int = setting(
        5_000, "maximum wait of an admin request", conf="waitTimeMillsInAdminBrokerQueue", changeable=True
    )
    protect_broker: bool = setting(
        False,
        "stop consumption by a group that falls too far behind",
        conf="disableConsumeIfConsumerReadSlowly",
        changeable=True,
    )
    consumer_fall_behind_size: int = setting(
        16 * 1024 * MIB,
        "with protect_broker: maximum bytes of the log that a group may be behind",
        conf="consumerFallbehindThreshold",
        changeable=True,
    )
    topic_send_rate_max: int = setting(0, "maximum messages per second sent to one topic; 0: no limit")
    group_pull_rate_max: int = setting(0, "maximum messages per second delivered to one group; 0: no limit")
    rate_burst_s: int = setting(2, "seconds of unused rate that a topic or group can accumulate", least=1)
    query_count_max: int = setting(
        64, "maximum number of messages of one query by key", conf="maxMsgsNumBatch", changeable=True
    )
    query_count_default: int = setting(
        32, "number of messages of one query by unique id", conf="defaultQueryMaxNum", changeable=True
    )

    pop_from_retry_percent: int = setting(
        20,
        "percentage of pops that read the retry topic of the group first",
        conf="popFromRetryProbability",
        changeable=True,
    )
    retry_topic_v2: bool = setting(
        False,
        "name of the retry topic of popped messages: %RETRY%group+topic instead of %RETRY%group_topic",
        conf="enableRetryTopicV2",
        changeable=True,
    )
    pop_from_retry_v1: bool = setting(
        True,
        "with `retry_topic_v2`: read the old retry topic too",
        conf="retrieveMessageFromPopRetryTopicV1",
        changeable=True,
    )
    pop_actual_retry_topic: bool = setting(
        False,
        "return popped retries with the name of the retry topic",
        conf="popResponseReturnActualRetryTopic",
        changeable=True,
    )
    held_pops_max: int = setting(
        100_000,
        "maximum number of held pops; further ones are answered with code 209",
        conf="maxPopPollingSize",
        least=1,
    )
    held_pops_queue_max: int = setting(
        1_024, "maximum number of held pops of one topic, group and queue", conf="popPollingSize", least=1
    )
    revive_queue_nums: int = setting(
        8, "number of queues of rmq_sys_REVIVE_LOG_<cluster>", conf="reviveQueueNum", least=1, most=1_000
    )
    revive_interval_ms: int = setting(
        1_000, "pause between two reads of a queue of the revive log", conf="reviveInterval", least=1, changeable=True
    )
    default_request_mode: str = setting(
        "PULL",
        "PULL or POP: consume mode of groups without a mode of their own (401)",
        conf="defaultMessageRequestMode",
        changeable=True,
    )
    default_pop_share_queue_nums: int = setting(
        -1,
        "number of clients whose queues a popping client shares; 0 or less: every client pops all queues",
        conf="defaultPopShareQueueNum",
        changeable=True,
    )
    server_load_balance: bool = setting(
        True, "assign queues to clients that request it (400)", conf="serverLoadBalancerEnable", changeable=True
    )

    broadcast_offsets: bool = setting(
        True,
        "store the offsets of broadcast consumers behind proxies",
        conf="enableBroadcastOffsetStore",
        changeable=True,
    )
    broadcast_expire_ms: int = setting(
        2 * MINUTE_MS,
        "time without a request after which a disconnected broadcast consumer is removed (RocketMQ: seconds)",
        conf="broadcastOffsetExpireSecond",
        unit=SECONDS,
        changeable=True,
    )
    broadcast_expire_max_ms: int = setting(
        5 * MINUTE_MS,
        "time without a request after which a connected broadcast consumer is removed (RocketMQ: seconds)",
        conf="broadcastOffsetExpireMaxSecond",
        unit=SECONDS,
        changeable=True,
    )

    client_expire_ms: int = setting(
        2 * MINUTE_MS,
        "time without a heartbeat after which a client is removed",
        conf="channelExpiredTimeout",
        least=1,
        changeable=True,
    )
    client_scan_ms: int = setting(10_000, "interval of the check for expired clients", least=1)
    lock_ttl_ms: int = setting(
        MINUTE_MS, "lifetime of a queue lock without renewal", like="rocketmq.broker.rebalance.lockMaxLiveTime"
    )
    offsets_save_ms: int = setting(
        5_000,
        "interval at which offsets are saved, delay offsets included (RocketMQ: 10 s for those)",
        conf="flushConsumerOffsetInterval",
        least=1,
        changeable=True,
    )
    register_ms: int = setting(
        30_000, "interval at which the broker registers with name servers", conf="registerNameServerPeriod", least=1
    )
    statistics: bool = setting(True, "count sends and pulls per topic, queue and group")
    forward_timeout_ms: int = setting(10_000, "timeout of a request forwarded to a client (307, 309)")
    young_queue_size: int = setting(
        1 << 30,
        "a new group starts at offset 0 if the first message of the queue is within this many bytes of the "
        "end of the log",
    )
    topics_max: int = setting(50_000, "maximum number of automatically created topics; request 17 is not limited")
    groups_max: int = setting(50_000, "maximum number of automatically created groups; request 200 is not limited")
    producer_groups_max: int = setting(
        50_000, "maximum number of producer groups with an online client; a heartbeat that exceeds it is rejected"
    )
    locks_max: int = setting(200_000, "maximum number of queue locks")

    reject_transactions: bool = setting(False, "reject half messages", conf="rejectTransactionMessage", changeable=True)
    transaction_timeout_ms: int = setting(
        6_000,
        "minimum age of a half message before the broker checks with its producer",
        conf="transactionTimeOut",
        changeable=True,
    )
    transaction_check_ms: int = setting(
        30_000,
        "interval at which open transactions are checked",
        conf="transactionCheckInterval",
        least=1,
        changeable=True,
    )
    transaction_check_max: int = setting(
        15,
        "number of checks after which a half message moves to TRANS_CHECK_MAX_TIME_TOPIC",
        conf="transactionCheckMax",
        changeable=True,
    )
    transaction_op_size_max: int = setting(
        4_096, "approximate maximum bytes of one op record", conf="transactionOpMsgMaxSize", least=1, changeable=True
    )
    transaction_op_delay_ms: int = setting(
        3_000,
        "maximum time that the end of a transaction waits to share an op record",
        conf="transactionOpBatchInterval",
        changeable=True,
    )
    timers: bool = setting(True, "accept timer messages (TIMER_DELAY_SEC, …)", conf="timerWheelEnable", changeable=True)
    timer_delay_max_ms: int = setting(
        3 * 24 * 60 * MINUTE_MS,
        "maximum delay of a timer message (RocketMQ: seconds)",
        conf="timerMaxDelaySec",
        unit=SECONDS,
        least=1,
        changeable=True,
    )
    timer_slot_max: int = setting(
        (1 << 31) - 1,
        "number of timer messages in one second above which some are rejected; above twice that number all are "
        "rejected",
        conf="timerCongestNumEachSlot",
        changeable=True,
    )
    recall: bool = setting(
        True, "serve recalls of timer messages (RocketMQ: off)", conf="recallMessageEnable", changeable=True
    )
    store_replies: bool = setting(
        True,
        "store replies of request-reply in the reply topic of the cluster",
        conf="storeReplyMessageEnable",
        changeable=True,
    )

    acl: bool = setting(
        False, "check requests against the accounts in `plain_acl.yml` and `conf/acl/*.yml`", conf="aclEnable"
    )
    authentication: bool = setting(False, "verify signatures of the users of 5.x", conf="authenticationEnabled")
    authorization: bool = setting(
        False, "check requests against the policies of the users of 5.x", conf="authorizationEnabled"
    )
    authentication_whitelist: str = setting(
        "", "request codes that need no signature, separated by commas", conf="authenticationWhitelist"
    )
    authorization_whitelist: str = setting(
        "", "request codes that need no policy, separated by commas", conf="authorizationWhitelist"
    )
    init_user: str = setting(
        "", 'first user, of type Super: `{"username":…,"password":…}`', conf="initAuthenticationUser", secret=True
    )
    inner_credentials: str = setting(
        "",
        "account with which brokers sign at name servers and whose registrations the name server of this node"
        ' accepts; a Super user of the brokers: `{"accessKey":…,"secretKey":…}`',
        conf="innerClientAuthenticationCredentials",
        secret=True,
    )
    acl_like_apache: bool = setting(
        False,
        "require only the permissions that Apache's brokers require ([list](compatibility.md#access-control))",
        conf="aclLikeApache",
    )
    migrate_acl: bool = setting(
        False, "import accounts of ACL files as users at start", conf="migrateAuthFromV1Enabled"
    )

    reply_in_kind: bool = setting(False, "answer a binary header with a binary header; 5.3.3 always answers in JSON")
    broker_trace: bool = setting(False, "write Stored, Delivered, SentBack and DeadLettered records to the trace topic")
    broker_events: bool = setting(
        True,
        "write BrokerEvent records to the trace topic: starts, stops, changes of the role, removed ends of the log. A "
        "broker without replicas (no brokerRole, controller mode or DLedger mode) writes them with broker_trace only",
    )
    broker_trace_delay_ms: int = setting(500, "maximum time that a record waits for a batch")
    broker_trace_batch_size: int = setting(128 * KIB, "bytes at which a trace message is written")
    broker_trace_records_max: int = setting(
        20_000, "maximum number of waiting records; further ones are dropped and counted in a TraceLoss"
    )

    def __post_init__(self) -> None:
        """InvalidParameter: a setting is invalid."""
        check_settings(self)
        try:
            address_matcher(self.slave_addresses)
        except InvalidParameter as error:
            raise InvalidParameter(f"slave_addresses (slaveAddresses): {error}") from error
        if self.default_request_mode not in ("PULL", "POP"):
            raise InvalidParameter(f"found default_request_mode {self.default_request_mode!r}, expected PULL or POP")
        if self.broker_role not in ROLES:
            raise InvalidParameter(f"found broker_role {self.broker_role!r}, expected {', '.join(ROLES[1:])} or none")
        if self.controller_mode and not self.controller_addresses.strip(" ;"):
            raise InvalidParameter(
                f"found controller_mode (enableControllerMode) with controller_addresses {self.controller_addresses!r} "
                "(controllerAddr), expected host:port of each controller, separated by ';'"
            )
        if self.ledger_mode:
            self._check_ledger()
        if self.is_slave != (self.broker_id > 0):
            raise InvalidParameter(
                f"found broker_id {self.broker_id} (brokerId) with broker_role {self.broker_role or 'none'} "
                "(brokerRole), expected 0 for a master, and 1 or more for a SLAVE"
            )

    def _check_ledger(self) -> None:
        """InvalidParameter: the settings of a DLedger group are wrong."""
        from mqtrail.raft import RaftIdentityError, check_members  # other brokers do without its memory

        if self.controller_mode:
            raise InvalidParameter(
                "found controller_mode (enableControllerMode) and ledger_mode (enableDLegerCommitLog), expected one of "
                "them: controllers choose the master, or the group's members do"
            )
        try:
            members = tuple(parse_peers(self.ledger_peers))
            check_members(self.ledger_self_id, members, self.ledger_group or self.broker_name)
        except (InvalidParameter, RaftIdentityError) as error:
            raise InvalidParameter(f"ledger_peers (dLegerPeers), ledger_self_id (dLegerSelfId): {error}") from error
        ledger_number(self.ledger_self_id)
        if unknown := [one for one in self.preferred_members if one not in members]:
            raise InvalidParameter(
                f"found {unknown[0]!r} in ledger_preferred (preferredLeaderId), expected some of {', '.join(members)}"
            )

    @property
    def preferred_members(self) -> tuple[str, ...]:
        """The ids in ledger_preferred."""
        return tuple(one.strip() for one in self.ledger_preferred.split(";") if one.strip())

    @property
    def far_size(self) -> int | None:
        """Bytes of the log that a reader must be behind to be sent to a slave; None: it never is."""
        return self.memory_size * self.far_memory_percent // 100 if self.slave_read and self.memory_size else None

    @property
    def is_slave(self) -> bool:
        """Whether this broker copies a master's log and stores nothing itself."""
        return self.broker_role == SLAVE

    @property
    def writes_events(self) -> bool:
        """Whether BrokerEvent records are written, or sent to the master."""
        has_replicas = self.controller_mode or self.ledger_mode or bool(self.broker_role)
        return self.broker_events and (has_replicas or self.broker_trace)

    def takes_body(self, size: int) -> bool:
        """Return whether a message or a batch may have a body of size bytes."""
        return 0 < size <= self.message_size_max


def ledger_number(self_id: str) -> int:
    """Return the number in a member's id (n0, n1, ...), which gives its broker id. InvalidParameter: it lacks one."""
    number = self_id[1:]
    if not (self_id.startswith("n") and number.isascii() and number.isdigit() and len(number) <= 4):
        raise InvalidParameter(
            f"found ledger_self_id {self_id!r} (dLegerSelfId), expected n and a number, for example n0: a member that "
            "does not lead has this number and one as its broker id"
        )
    return int(number)


def properties_text(config: BrokerConfig) -> str:
    """Return the settings as the lines of a broker.conf, sorted by key, as request 26 returns them."""
    lines = dict(conf_lines(config))
    lines |= {
        "brokerIP1": config.address.ip,
        "listenPort": str(config.address.port),
        "brokerIP2": config.ha_address.ip,
        "haListenPort": str(config.ha_address.port),
        "brokerRole": config.broker_role or "ASYNC_MASTER",
        "useTLS": BOOLEAN.write(config.use_tls),
        # constant; exportConfigs of mqadmin 4.9 fails without them
        "filterServerNums": "0",
    }
    return "".join(f"{key}={lines[key]}\n" for key in sorted(lines))
