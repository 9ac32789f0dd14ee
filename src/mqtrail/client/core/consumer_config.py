"""Settings of consumers. Times are milliseconds, sizes bytes; the defaults are the Java client's, named beside each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Final

from mqtrail.wire import (
    BODY_SIZE_MAX,
    ConsumeFromWhere,
    InvalidParameter,
    MessageExt,
    MessageModel,
    check_settings,
    setting,
)

from .config import KIB, MIB, MINUTE_MS, InstanceConfig, TraceConfig

QUEUES_MOST: Final = 1_000_000  # each takes about 11 KB of memory
COUNT_MAX: Final = 65_535  # DefaultMQPushConsumerImpl.checkConfig has the same bounds


class OnUndecodable(StrEnum):
    """What to do with an undecodable message.

    A message is undecodable if its record is damaged, or if its compressed body is damaged, has an unknown type, or
    expands to more than `body_size_max` bytes.
    """

    REJECT = "REJECT"  # not delivered: a dead letter with the reason, or skipped where there are no dead letters
    DELIVER = "DELIVER"  # delivered with its body as stored and the reason in `undecodable`


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseConsumerConfig:
    """Settings that all consumers have."""

    model: MessageModel = setting(MessageModel.CLUSTERING, "CLUSTERING or BROADCASTING", like="messageModel")
    consume_from: ConsumeFromWhere = setting(
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        "where a group without committed offsets starts",
        like="consumeFromWhere",
    )
    consume_from_timestamp_ms: int | None = setting(
        None,
        "start time for CONSUME_FROM_TIMESTAMP, epoch ms; none: half an hour before the start",
        like="consumeTimestamp",
    )
    pull_batch_size: int = setting(256 * KIB, "maximum bytes per pull", like="pullBatchSizeInBytes")
    queue_count_max: int = setting(
        1_000, "maximum number of cached messages per queue", like="pullThresholdForQueue", least=1, most=COUNT_MAX
    )
    queue_size_max: int = setting(
        100 * MIB,
        "maximum bytes of cached bodies per queue",
        like="pullThresholdSizeForQueue",
        least=1,
        most=1_024 * MIB,
    )
    body_size_max: int = setting(
        BODY_SIZE_MAX,
        "maximum bytes of a decompressed body; a message with a larger one is undecodable",
        least=1,
        most=1_024 * MIB,
    )
    expanded_size_max: int = setting(
        256 * MIB,
        "maximum bytes of cached decompressed bodies of all queues; each queue may always have one message",
        least=1,
        most=102_400 * MIB,
    )
    on_undecodable: OnUndecodable = setting(
        OnUndecodable.REJECT,
        "REJECT: send to the dead letters with the reason (broadcast, lite pull: skip); DELIVER: deliver with"
        " the body as stored",
    )
    assigned_count_max: int = setting(
        8_192,
        "maximum number of queues that this member consumes, of all topics; the log reports the others",
        least=1,
        most=QUEUES_MOST,
    )
    pull_error_ms: int = setting(1_000, "pause after a failed pull", like="pullTimeDelayMillsWhenException")
    rebalance_ms: int = setting(20_000, "interval of rebalances", like="rocketmq.client.rebalance.waitInterval")
    offset_persist_ms: int = setting(
        5_000, "interval at which offsets are committed", like="persistConsumerOffsetInterval"
    )
    offset_dir: Path | None = setting(
        None, "folder of broadcast offsets; none: ~/.mqtrail/offsets", like="rocketmq.client.localOffsetStoreDir"
    )
    instance_name: str = setting(
        "DEFAULT", "distinguishes broadcast consumers of one group on one host", like="rocketmq.client.name", least=1
    )
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(BaseConsumerConfig):
    """A consumer's settings."""

    ordered: bool = setting(
        False,
        "consume each queue in order, one message at a time, with queue locks at the broker",
        like="MessageListenerOrderly",
    )
    concurrency: int = setting(
        20, "maximum number of handlers running at once", like="consumeThreadMax", least=1, most=1_000
    )
    concurrency_min: int | None = setting(
        None,
        "let the number of handlers running at once follow their latency, between this and `concurrency`; none: fixed",
        least=1,
        most=1_000,
    )
    key_concurrency_max: int | None = setting(
        None,
        "maximum number of handlers running at once for messages of one topic with the same key: the order key, or the"
        " first of KEYS, or what `limit_key` returns; none: no limit",
        least=1,
        most=1_000,
    )
    topic_concurrency_max: Mapping[str, int] | None = setting(
        None, "table: topic = maximum number of its handlers running at once"
    )
    rate_max: float = setting(0.0, "maximum messages per second to the handlers of this member; 0: no limit")
    topic_rate_max: Mapping[str, float] | None = setting(
        None, "table: topic = maximum messages per second to its handlers of this member"
    )
    rate_burst_s: float = setting(
        1.0, "seconds of unused rate that are kept; always one message, or a batch of `batch_count_max`"
    )
    limit_key: Callable[[MessageExt], str | None] | None = None  # for key_concurrency_max; None: no limit
    batch_count_max: int = setting(
        1, "maximum number of messages per handler call", like="consumeMessageBatchMaxSize", least=1, most=1_024
    )
    pull_batch_count: int = setting(
        32, "maximum number of messages per pull", like="pullBatchSize", least=1, most=1_024
    )
    topic_count_max: int | None = setting(
        None,
        "maximum number of cached messages per topic, shared by its queues; none: no limit",
        like="pullThresholdForTopic",
        least=1,
        most=6_553_500,
    )
    topic_size_max: int | None = setting(
        None,
        "maximum bytes of cached bodies per topic, shared by its queues; none: no limit",
        like="pullThresholdSizeForTopic",
        least=1,
        most=102_400 * MIB,
    )
    span_max: int = setting(
        2_000,
        "maximum distance between the offsets of cached messages of a queue",
        like="consumeConcurrentlyMaxSpan",
        least=1,
        most=COUNT_MAX,
    )
    pull_interval_ms: int = setting(0, "pause between pulls", like="pullInterval", least=0, most=COUNT_MAX)
    pull_with_subscription: bool = setting(
        False,
        "send the subscription with each pull, so that the broker need not know it",
        like="postSubscriptionWhenPull",
    )
    poll_suspend_ms: int = setting(15_000, "time that the broker may hold a pull", like="brokerSuspendMaxTimeMillis")
    poll_timeout_ms: int = setting(30_000, "timeout of a held pull", like="consumerTimeoutMillisWhenSuspend")
    flow_control_ms: int = setting(
        50, "pause when a cache limit is reached", like="pullTimeDelayMillsWhenCacheFlowControl"
    )
    broker_flow_control_ms: int = setting(
        20, "pause when the broker is busy", like="pullTimeDelayMillsWhenBrokerFlowControl"
    )
    client_rebalance: bool = setting(
        True, "false: brokers assign queues and decide which topics are popped", like="clientRebalance"
    )
    pop_invisible_ms: int = setting(
        60_000,
        "time that a popped message is invisible to others, 5 000 to 300 000",
        like="popInvisibleTime",
        least=5_000,
        most=300_000,
    )
    pop_batch_count: int = setting(32, "maximum number of messages per pop", like="popBatchNums", least=1, most=32)
    pop_queue_count_max: int = setting(
        96, "maximum number of popped messages per assignment that are not acknowledged", like="popThresholdForQueue"
    )
    ack_retry_count: int = setting(2, "retries of an acknowledgement of a popped message after a broken connection")
    consume_timeout_ms: int = setting(
        15 * MINUTE_MS,
        "time after which the message of a running handler is sent back for another attempt (RocketMQ: minutes)",
        like="consumeTimeout",
    )
    attempts_max: int | None = setting(
        None, "maximum number of retries; none: that of the group (16), ordered: unlimited", like="maxReconsumeTimes"
    )
    send_back_timeout_ms: int = setting(5_000, "timeout of sending a message back")
    resubmit_ms: int = setting(5_000, "delay of a local retry when a message could neither be sent back nor resent")
    suspend_ms: int = setting(1_000, "delay of a retry in order", like="suspendCurrentQueueTimeMillis")
    lock_ms: int = setting(
        20_000, "interval at which queue locks are renewed", like="rocketmq.client.rebalance.lockInterval"
    )
    lock_valid_ms: int = setting(
        30_000,
        "time after which a lock that was not renewed counts as lost",
        like="rocketmq.client.rebalance.lockMaxLiveTime",
    )
    close_wait_ms: int = setting(
        5_000, "time to wait for running handlers at close", like="awaitTerminationMillisWhenShutdown"
    )

    def __post_init__(self) -> None:
        BaseConsumerConfig.__post_init__(self)
        if self.concurrency_min is not None and self.concurrency_min > self.concurrency:
            raise InvalidParameter(
                f"found concurrency_min {self.concurrency_min}, expected at most concurrency ({self.concurrency})"
            )
        for name in ("rate_max", "rate_burst_s"):
            value = getattr(self, name)
            if not isfinite(value) or value < 0:
                raise InvalidParameter(f"found {name} {value}, expected 0 or more")
        for topic, rate in (self.topic_rate_max or {}).items():
            if not isfinite(rate) or rate <= 0:
                raise InvalidParameter(f"found topic_rate_max {rate} of topic {topic!r}, expected more than 0")
        for topic, count in (self.topic_concurrency_max or {}).items():
            if count < 1:
                raise InvalidParameter(f"found topic_concurrency_max {count} of topic {topic!r}, expected 1 or more")

    @property
    def is_limited(self) -> bool:
        """Whether messages may have to wait although a handler is free."""
        tables = self.topic_rate_max, self.topic_concurrency_max
        return any(tables) or self.rate_max > 0 or (self.concurrency_min or self.key_concurrency_max) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConfig(BaseConsumerConfig):
    """A lite pull consumer's settings."""

    auto_commit: bool = setting(True, "commit the messages of earlier polls at each poll", like="autoCommit")
    auto_commit_ms: int = setting(5_000, "interval of these commits; at least 1 000", like="autoCommitIntervalMillis")
    poll_timeout_ms: int = setting(5_000, "timeout of a poll without one", like="pollTimeoutMillis")
    pull_batch_count: int = setting(
        10,
        "maximum number of messages per pull, and per poll without a number",
        like="pullBatchSize",
        least=1,
        most=1_024,
    )
    count_max: int = setting(
        10_000, "maximum number of cached messages of all queues", like="pullThresholdForAll", least=1, most=6_553_500
    )
    span_max: int = setting(
        2_000,
        "maximum distance between the offsets of cached messages of a queue",
        like="consumeMaxSpan",
        least=1,
        most=COUNT_MAX,
    )
    suspend_ms: int = setting(20_000, "time that the broker may hold a pull", like="brokerSuspendMaxTimeMillis")
    suspend_timeout_ms: int = setting(30_000, "timeout of a held pull", like="consumerTimeoutMillisWhenSuspend")
    flow_control_ms: int = setting(50, "pause when a cache limit is reached")
    broker_flow_control_ms: int = setting(20, "pause when the broker is busy")
    metadata_check_ms: int = setting(
        30_000, "interval at which `watch_queues` checks the queues", like="topicMetadataCheckIntervalMillis"
    )
