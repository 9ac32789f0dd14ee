"""Settings of the client, one frozen dataclass for each of its faces. Times are milliseconds, sizes bytes.

The defaults are the Java client's (named beside each setting where it has one); consumers have theirs in
consumer_config.py. Nothing here is read from the environment: `mqtrail.cli` does that.
"""

from dataclasses import dataclass, field
from pathlib import Path

from mqtrail.net import TlsClientConfig
from mqtrail.wire import TRACE_TOPIC, CompressionType, Credentials

MINUTE_MS = 60_000
KIB = 1024
MIB = 1024 * 1024
NEVER = 1 << 62  # compress_over: bodies go as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """What producers, consumers and admins share: name servers, connections, periodic work."""

    request_timeout_ms: int = 3_000  # mqClientApiTimeout: name server, id lists, offsets
    route_refresh_ms: int = 30_000  # pollNameServerInterval
    heartbeat_ms: int = 30_000  # heartbeatBrokerInterval
    unit_name: str = ""  # appended to the client id
    namespace: str = ""  # namespace (4.x): stands before the names of topics and groups
    namespace_v2: str = ""  # namespaceV2 (5.x): travels beside them
    namesrv_domain: str = ""  # rocketmq.namesrv.domain, as jmenv.tbsite.net: where no name server is given
    namesrv_subgroup: str = "nsaddr"  # rocketmq.namesrv.domain.subgroup
    namesrv_refresh_ms: int = 2 * MINUTE_MS  # how often an HTTP end point is asked for the name servers again
    credentials: Credentials | None = None  # AclClientRPCHook: every request is signed with them
    tls: TlsClientConfig = field(default_factory=TlsClientConfig)  # useTLS, tls.client.*


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
    attempt_timeout_ms: int = -1  # sendMsgMaxTimeoutPerRequest: of each attempt but the last; -1: what is left
    retry_not_stored_ok: bool = False  # retryAnotherBrokerWhenNotStoreOK
    retry_codes: tuple[int, ...] = ()  # addRetryResponseCode: refusals to try again after, beside the built-in ones
    compress_over: int = 4 * KIB  # compressMsgBodyOverHowmuch
    compress_type: CompressionType = CompressionType.ZLIB  # rocketmq.message.compressType
    compress_level: int = 5  # rocketmq.message.compressLevel; LZ4 has none
    body_size_max: int = 4 * MIB  # maxMessageSize, before compression
    default_topic: str = "TBW102"  # createTopicKey: the template for topics that do not exist
    default_topic_queue_nums: int = 4  # defaultTopicQueueNums
    latency_fault: bool = False  # sendLatencyFaultEnable
    latency_detect: bool = False  # startDetectorEnable: ask brokers that failed whether they are back
    detect_ms: int = 3_000  # how often that is done
    detect_interval_ms: int = 2_000  # detectInterval: the least time between two questions to one broker
    detect_timeout_ms: int = 200  # detectTimeout
    in_flight_max: int = 65_535  # clientAsyncSemaphoreValue; a send waits for its turn within its time-out
    back_pressure: bool = False  # enableBackpressureForAsyncMode: the two bounds below hold
    back_pressure_count: int = 1_024  # backPressureForAsyncSendNum, at least 10
    back_pressure_size: int = 100 * MIB  # backPressureForAsyncSendSize, bytes of bodies, at least 1 MiB
    auto_batch: bool = False  # autoBatch: single messages wait for company and travel as batches
    auto_batch_ms: int = 10  # batchMaxDelayMs
    auto_batch_size: int = 32 * KIB  # batchMaxBytes: bodies of one batch
    auto_batch_total_size: int = 32 * MIB  # totalBatchMaxBytes: bodies that wait; what is beyond goes alone
    requests_max: int = 65_535  # request() calls that wait for their reply
    check_concurrency: int = 1  # checkThreadPoolMaxSize: transactions checked at once
    check_queue_max: int = 2_000  # checkRequestHoldMax: checks that wait; more are dropped, the broker asks again
    check_timeout_ms: int = 3_000  # of the answer to a check
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
