"""Settings of the client, one frozen dataclass for each of its faces. Times are milliseconds, sizes bytes.

The defaults are the Java client's (named beside each setting where it has one). Nothing here is read from the
environment: `mqtrail.cli` does that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mqtrail.wire import TRACE_TOPIC, ConsumeFromWhere, MessageModel

MINUTE_MS = 60_000
KIB = 1024
MIB = 1024 * 1024

NAMESRV_DEFAULT = "127.0.0.1:9876"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """What producers, consumers and admins share: name servers, connections, periodic work."""

    request_timeout_ms: int = 3_000  # mqClientApiTimeout: name server, id lists, offsets
    route_refresh_ms: int = 30_000  # pollNameServerInterval
    heartbeat_ms: int = 30_000  # heartbeatBrokerInterval
    unit_name: str = ""  # appended to the client id


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """The trace dispatcher: how much it may keep, where it spills, how long it waits."""

    topic: str = TRACE_TOPIC  # customizedTraceTopic
    batch_count_max: int = 400  # records' contexts in one trace message (Apache: 10 or 20)
    body_size_max: int = 128_000  # UTF-8 bytes of one trace message's body
    keys_size_max: int = 24_000  # bytes of its KEYS property; a broker refuses properties over 32 767
    linger_ms: int = 200  # an incomplete trace message is sent after this (Apache: up to 5 000)
    memory_size_max: int = 16 * MIB  # text kept in memory before the spool takes over
    in_flight_max: int = 4  # trace messages sent and not yet acknowledged
    send_timeout_ms: int = 5_000
    retry_ms: int = 1_000  # wait after a failed send; doubles up to retry_max_ms
    retry_max_ms: int = 30_000
    spool_dir: Path | None = None  # None: ~/.mqtrail/spool; below it a folder for each cluster
    spool_size_max: int = 256 * MIB  # one file a process
    close_wait_ms: int = 5_000  # at close: then what is left goes to the spool
    compress_over: int = 4_096  # compressMsgBodyOverHowmuch; bodies as large or larger are compressed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """A producer's settings."""

    send_timeout_ms: int = 3_000  # sendMsgTimeout: the whole send, retries included
    retry_count: int = 2  # retryTimesWhenSendFailed: attempts beyond the first
    retry_not_stored_ok: bool = False  # retryAnotherBrokerWhenNotStoreOK
    compress_over: int = 4 * KIB  # compressMsgBodyOverHowmuch
    compress_level: int = 5  # rocketmq.message.compressLevel
    body_size_max: int = 4 * MIB  # maxMessageSize, before compression
    default_topic: str = "TBW102"  # createTopicKey: the template for topics that do not exist
    default_topic_queue_nums: int = 4  # defaultTopicQueueNums
    latency_fault: bool = False  # sendLatencyFaultEnable
    in_flight_max: int = 65_535  # requests without an answer; a send waits for its turn within its time-out
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """A consumer's settings."""

    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET  # of a group that committed nothing yet
    consume_from_timestamp_ms: int = 0  # consumeTimestamp, with CONSUME_FROM_TIMESTAMP
    ordered: bool = False  # MessageListenerOrderly: one message of a queue at a time, queues locked at the broker
    concurrency: int = 20  # consumeThreadMax: handlers running at once
    pull_batch_count: int = 32  # pullBatchSize
    pull_batch_size: int = 256 * KIB  # pullBatchSizeInBytes
    queue_count_max: int = 1_000  # pullThresholdForQueue
    queue_size_max: int = 100 * MIB  # pullThresholdSizeForQueue, body bytes
    span_max: int = 2_000  # consumeConcurrentlyMaxSpan
    pull_interval_ms: int = 0  # pullInterval
    poll_suspend_ms: int = 15_000  # brokerSuspendMaxTimeMillis
    poll_timeout_ms: int = 30_000  # consumerTimeoutMillisWhenSuspend
    flow_control_ms: int = 50  # pullTimeDelayMillsWhenCacheFlowControl
    broker_flow_control_ms: int = 20  # pullTimeDelayMillsWhenBrokerFlowControl
    pull_error_ms: int = 1_000  # pullTimeDelayMillsWhenException
    rebalance_ms: int = 20_000  # rocketmq.client.rebalance.waitInterval
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
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)


def parse_namesrv(text: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of "host:port;host:port" (or of a sequence), in order and without repeats.

    An IPv6 host stands in brackets. Raises ValueError that names the part that is not host:port.
    """
    parts = text.split(";") if isinstance(text, str) else list(text)
    addresses: dict[str, None] = {}
    for part in (part.strip() for part in parts):
        if not part:
            continue
        host, separator, port = part.removeprefix("http://").rpartition(":")
        if not separator or not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError(f"name server address {part!r}: expected host:port, as in {NAMESRV_DEFAULT}")
        addresses[f"{host}:{port}"] = None
    if not addresses:
        raise ValueError(f"no name server address in {text!r}: expected host:port;host:port")
    return tuple(addresses)
