"""Settings of consumers. Times are milliseconds, sizes bytes; the defaults are the Java client's, named beside each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from mqtrail.wire import BODY_SIZE_MAX, ConsumeFromWhere, InvalidParameter, MessageModel

from .config import KIB, MIB, MINUTE_MS, InstanceConfig, TraceConfig

COUNT_MAX: Final = 65_535
# Least and most of each setting; a consumer of Java's refuses the same (DefaultMQPushConsumerImpl.checkConfig).
BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "concurrency": (1, 1_000),
    "batch_count_max": (1, 1_024),
    "pull_batch_count": (1, 1_024),
    "queue_count_max": (1, COUNT_MAX),
    "queue_size_max": (1, 1_024 * MIB),
    "topic_count_max": (1, 6_553_500),
    "topic_size_max": (1, 102_400 * MIB),
    "span_max": (1, COUNT_MAX),
    "pull_interval_ms": (0, COUNT_MAX),
    "pop_invisible_ms": (5_000, 300_000),
    "pop_batch_count": (1, 32),
    "count_max": (1, 6_553_500),
    "body_size_max": (1, 1_024 * MIB),
    "expanded_size_max": (1, 102_400 * MIB),
}


class OnUndecodable(StrEnum):
    """What becomes of a message that cannot be read: a compressed body that is broken, of an unknown type, or larger
    than `body_size_max`; a record that is damaged.
    """

    REJECT = "REJECT"  # the application never sees it: a dead letter with the reason, or left out where there is none
    DELIVER = "DELIVER"  # handed out with its body as stored and the reason in `undecodable`


def _check(config: object) -> None:
    """Refuse what could not work. InvalidParameter names the field, what was found and what was expected."""
    for name, (least, most) in BOUNDS.items():
        value = getattr(config, name, None)
        if value is not None and not least <= value <= most:
            raise InvalidParameter(f"found {name} {value}, expected {least} to {most}")
    if not getattr(config, "instance_name", ""):
        raise InvalidParameter("found an empty instance_name, expected a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """A consumer's settings."""

    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET  # of a group that committed nothing yet
    consume_from_timestamp_ms: int | None = None  # consumeTimestamp; None: half an hour before the start
    ordered: bool = False  # MessageListenerOrderly: one message of a queue at a time, queues locked at the broker
    concurrency: int = 20  # consumeThreadMax: handlers running at once
    batch_count_max: int = 1  # consumeMessageBatchMaxSize: messages handed to a handler at once
    pull_batch_count: int = 32  # pullBatchSize
    pull_batch_size: int = 256 * KIB  # pullBatchSizeInBytes
    queue_count_max: int = 1_000  # pullThresholdForQueue
    queue_size_max: int = 100 * MIB  # pullThresholdSizeForQueue, body bytes
    topic_count_max: int | None = None  # pullThresholdForTopic: shared out over the queues held; None: no such bound
    topic_size_max: int | None = None  # pullThresholdSizeForTopic, body bytes
    span_max: int = 2_000  # consumeConcurrentlyMaxSpan
    body_size_max: int = BODY_SIZE_MAX  # of one decompressed body (32 MiB); a larger one makes its message undecodable
    expanded_size_max: int = 256 * MIB  # decompressed bodies that wait here; each queue may have one in any case
    on_undecodable: OnUndecodable = OnUndecodable.REJECT
    pull_interval_ms: int = 0  # pullInterval
    pull_with_subscription: bool = False  # postSubscriptionWhenPull
    poll_suspend_ms: int = 15_000  # brokerSuspendMaxTimeMillis
    poll_timeout_ms: int = 30_000  # consumerTimeoutMillisWhenSuspend
    flow_control_ms: int = 50  # pullTimeDelayMillsWhenCacheFlowControl
    broker_flow_control_ms: int = 20  # pullTimeDelayMillsWhenBrokerFlowControl
    pull_error_ms: int = 1_000  # pullTimeDelayMillsWhenException
    rebalance_ms: int = 20_000  # rocketmq.client.rebalance.waitInterval
    client_rebalance: bool = True  # clientRebalance; false: brokers assign queues, and may have them popped
    pop_invisible_ms: int = 60_000  # popInvisibleTime
    pop_batch_count: int = 32  # popBatchNums
    pop_queue_count_max: int = 96  # popThresholdForQueue: popped and not settled, of each assignment
    ack_retry_count: int = 2  # further tries to acknowledge a popped message
    offset_persist_ms: int = 5_000  # persistConsumerOffsetInterval
    consume_timeout_ms: int = 15 * MINUTE_MS  # consumeTimeout, there in minutes
    attempts_max: int | None = None  # maxReconsumeTimes; None: the group's (16), ordered: unlimited
    send_back_timeout_ms: int = 5_000
    resubmit_ms: int = 5_000  # local retry when neither send-back nor resend succeeded
    suspend_ms: int = 1_000  # suspendCurrentQueueTimeMillis: ordered retry in place
    lock_ms: int = 20_000  # rocketmq.client.rebalance.lockInterval
    lock_valid_ms: int = 30_000  # rocketmq.client.rebalance.lockMaxLiveTime
    close_wait_ms: int = 5_000  # awaitTerminationMillisWhenShutdown: time for running handlers
    offset_dir: Path | None = None  # rocketmq.client.localOffsetStoreDir, broadcasting; None: ~/.mqtrail/offsets
    instance_name: str = "DEFAULT"  # rocketmq.client.name: tells broadcasting consumers of one host apart
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConfig:
    """A lite pull consumer's settings."""

    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET  # of a group that committed nothing yet
    consume_from_timestamp_ms: int | None = None  # consumeTimestamp; None: half an hour before the start
    auto_commit: bool = True  # autoCommit: polls commit what the polls before them brought
    auto_commit_ms: int = 5_000  # autoCommitIntervalMillis, at least 1 000 there
    poll_timeout_ms: int = 5_000  # pollTimeoutMillis: of a poll that names none
    pull_batch_count: int = 10  # pullBatchSize, and messages of one poll
    pull_batch_size: int = 256 * KIB  # pullBatchSizeInBytes
    count_max: int = 10_000  # pullThresholdForAll: messages that wait here, all queues together
    queue_count_max: int = 1_000  # pullThresholdForQueue
    queue_size_max: int = 100 * MIB  # pullThresholdSizeForQueue, body bytes
    span_max: int = 2_000  # consumeMaxSpan
    body_size_max: int = BODY_SIZE_MAX  # of one decompressed body (32 MiB); a larger one makes its message undecodable
    expanded_size_max: int = 256 * MIB  # decompressed bodies that wait here; each queue may have one in any case
    on_undecodable: OnUndecodable = OnUndecodable.REJECT
    suspend_ms: int = 20_000  # brokerSuspendMaxTimeMillis: how long the broker may hold a pull
    suspend_timeout_ms: int = 30_000  # consumerTimeoutMillisWhenSuspend: how long a held pull is waited for
    flow_control_ms: int = 50  # PULL_TIME_DELAY_MILLS_WHEN_CACHE_FLOW_CONTROL
    broker_flow_control_ms: int = 20  # PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL
    pull_error_ms: int = 1_000  # pullTimeDelayMillsWhenException
    rebalance_ms: int = 20_000  # rocketmq.client.rebalance.waitInterval
    metadata_check_ms: int = 30_000  # topicMetadataCheckIntervalMillis: how often listeners of a topic's queues look
    offset_persist_ms: int = 5_000  # persistConsumerOffsetInterval
    offset_dir: Path | None = None  # rocketmq.client.localOffsetStoreDir, broadcasting; None: ~/.mqtrail/offsets
    instance_name: str = "DEFAULT"  # rocketmq.client.name: tells broadcasting consumers of one host apart
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)

    def __post_init__(self) -> None:
        _check(self)
