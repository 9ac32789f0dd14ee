"""Settings of the client, one frozen dataclass for each class of the API. Times are milliseconds, sizes bytes.

The defaults are the Java client's (named beside each setting where it has one); consumers have theirs in
consumer_config.py. Nothing here is read from the environment: `mqtrail.cli` does that.
"""

from dataclasses import dataclass, field
from pathlib import Path

from mqtrail.net import TlsClientConfig
from mqtrail.wire import (
    DEFAULT_TOPIC,
    TRACE_KEYS_SIZE_MAX,
    TRACE_MESSAGE_SIZE_MAX,
    TRACE_TOPIC,
    CompressionType,
    Credentials,
    setting,
)

MINUTE_MS = 60_000
KIB = 1024
MIB = 1024 * 1024
NEVER = 1 << 62  # compress_over: bodies are never compressed


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """What producers, consumers and admins share: name servers, connections, periodic work."""

    request_timeout_ms: int = setting(
        3_000,
        "timeout of requests to name servers, and of requests for client ids and offsets",
        like="mqClientApiTimeout",
    )
    route_refresh_ms: int = setting(30_000, "interval at which routes are refreshed", like="pollNameServerInterval")
    heartbeat_ms: int = setting(30_000, "interval of heartbeats to brokers", like="heartbeatBrokerInterval")
    unit_name: str = setting("", "suffix of the client id")
    namespace: str = setting("", "namespace of 4.x: prefix `NAMESPACE%` of topic and group names", like="namespace")
    namespace_v2: str = setting("", "namespace of 5.x: sent in each request beside the names", like="namespaceV2")
    namesrv_domain: str = setting(
        "", "HTTP endpoint that lists the name servers, used if none are configured", like="rocketmq.namesrv.domain"
    )
    namesrv_subgroup: str = setting(
        "nsaddr", "last part of the path of the endpoint", like="rocketmq.namesrv.domain.subgroup"
    )
    namesrv_refresh_ms: int = setting(2 * MINUTE_MS, "interval at which the endpoint is queried")
    credentials: Credentials | None = None  # AclClientRPCHook: every request is signed with them
    tls: TlsClientConfig = field(default_factory=TlsClientConfig)  # useTLS, tls.client.*


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """The trace dispatcher's settings: memory, spool folder, waits."""

    topic: str = setting(TRACE_TOPIC, "trace topic", like="customizedTraceTopic")
    batch_count_max: int = setting(400, "maximum number of contexts per trace message (Apache: 10 or 20)")
    body_size_max: int = setting(TRACE_MESSAGE_SIZE_MAX, "maximum UTF-8 bytes of the body of a trace message")
    keys_size_max: int = setting(
        TRACE_KEYS_SIZE_MAX, "maximum bytes of its KEYS property; a broker rejects properties over 32 767"
    )
    linger_ms: int = setting(200, "maximum time before an incomplete trace message is sent (Apache: up to 5 000)")
    memory_size_max: int = setting(16 * MIB, "bytes of text kept in memory before the spool is used")
    in_flight_max: int = setting(4, "maximum number of unacknowledged trace messages")
    send_timeout_ms: int = setting(5_000, "timeout of one send of a trace message")
    retry_ms: int = setting(1_000, "delay after a failed send; doubles up to retry_max_ms")
    retry_max_ms: int = setting(30_000, "maximum delay between two attempts")
    spool_dir: Path | None = setting(None, "folder of the spool, with a folder per cluster; none: ~/.mqtrail/spool")
    spool_size_max: int = setting(256 * MIB, "maximum bytes of the spool file of a process")
    close_wait_ms: int = setting(5_000, "time to flush the trace at close; the rest goes to the spool")
    compress_over: int = setting(4_096, "minimum bytes of a body to compress", like="compressMsgBodyOverHowmuch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """A producer's settings."""

    send_timeout_ms: int = setting(3_000, "timeout of a send, retries included", like="sendMsgTimeout")
    retry_count: int = setting(2, "maximum number of retries", like="retryTimesWhenSendFailed")
    attempt_timeout_ms: int = setting(
        -1, "timeout of each attempt except the last; -1: the remaining time", like="sendMsgMaxTimeoutPerRequest"
    )
    retry_not_stored_ok: bool = setting(
        False, "retry if the status is not SEND_OK", like="retryAnotherBrokerWhenNotStoreOK"
    )
    retry_codes: tuple[int, ...] = setting(
        (), "response codes to retry after, in addition to 1, 2, 14, 16, 17, 204, 205, 1500", like="retryResponseCodes"
    )
    compress_over: int = setting(4 * KIB, "minimum bytes of a body to compress", like="compressMsgBodyOverHowmuch")
    compress_type: CompressionType = setting(
        CompressionType.ZLIB, "LZ4, ZSTD or ZLIB", like="rocketmq.message.compressType"
    )
    compress_level: int = setting(5, "compression level of ZLIB and ZSTD", like="rocketmq.message.compressLevel")
    body_size_max: int = setting(4 * MIB, "maximum bytes of a body before compression", like="maxMessageSize")
    default_topic: str = setting(DEFAULT_TOPIC, "template of topics that do not exist", like="createTopicKey")
    default_topic_queue_nums: int = setting(
        4, "maximum number of queues of an automatically created topic", like="defaultTopicQueueNums"
    )
    latency_fault: bool = setting(False, "avoid slow brokers for a while", like="sendLatencyFaultEnable")
    latency_detect: bool = setting(False, "probe brokers that failed", like="startDetectorEnable")
    detect_ms: int = setting(3_000, "interval of the probes")
    detect_interval_ms: int = setting(2_000, "minimum time between two probes of one broker", like="detectInterval")
    detect_timeout_ms: int = setting(200, "timeout of a probe", like="detectTimeout")
    in_flight_max: int = setting(
        65_535,
        "maximum number of unacknowledged sends; further ones wait until their timeout",
        like="com.rocketmq.remoting.clientAsyncSemaphoreValue",
    )
    back_pressure: bool = setting(False, "enable the two limits below", like="enableBackpressureForAsyncMode")
    back_pressure_count: int = setting(
        1_024, "maximum number of unacknowledged sends, at least 10", like="backPressureForAsyncSendNum"
    )
    back_pressure_size: int = setting(
        100 * MIB, "maximum bytes of their bodies, at least 1 MiB", like="backPressureForAsyncSendSize"
    )
    auto_batch: bool = setting(False, "collect single messages and send them as batches", like="autoBatch")
    auto_batch_ms: int = setting(10, "maximum time to collect a batch", like="batchMaxDelayMs")
    auto_batch_size: int = setting(32 * KIB, "bytes of bodies at which a batch is sent", like="batchMaxBytes")
    auto_batch_total_size: int = setting(
        32 * MIB, "maximum bytes of collected messages; further ones are sent alone", like="totalBatchMaxBytes"
    )
    degrade: bool = setting(
        False, "keep a message in a local file when all attempts fail, answer DEGRADED, and send it later"
    )
    degrade_dir: Path | None = setting(
        None, "folder of these files, with a folder per cluster and group; none: ~/.mqtrail/degraded"
    )
    degrade_size_max: int = setting(256 * MIB, "maximum bytes of the file of a producer")
    degrade_age_max_ms: int = setting(
        24 * 60 * MINUTE_MS, "age above which a kept message is no longer sent, but moved to a file `.kept`"
    )
    degrade_sync: bool = setting(True, "answer DEGRADED once the disk has the message: it survives a power cut")
    degrade_retry_ms: int = setting(1_000, "delay after a failed attempt to send kept messages; doubles")
    degrade_retry_max_ms: int = setting(30_000, "maximum delay between two such attempts")
    requests_max: int = setting(65_535, "maximum number of requests waiting for a reply")
    check_concurrency: int = setting(1, "number of transactions checked at once", like="checkThreadPoolMaxSize")
    check_queue_max: int = setting(
        2_000,
        "maximum number of waiting checks; further ones are dropped, and the broker asks again",
        like="checkRequestHoldMax",
    )
    check_timeout_ms: int = setting(3_000, "timeout of sending the answer to a check")
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
