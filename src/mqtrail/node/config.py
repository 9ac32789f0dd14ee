"""What a node may be told. One frozen value, made by `cli` or `testing`, handed down, read nowhere else."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from mqtrail.broker import BrokerConfig
from mqtrail.namesrv import NameServerConfig
from mqtrail.net import ServerConfig, TlsClientConfig
from mqtrail.store import CommitLogConfig
from mqtrail.wire import Credentials

BROKER_PORT_STEP = 10  # between two brokers of one node; Apache takes port - 2 and port + 1 as well


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A name server and its brokers in one process. Times are ms.

    data: the data folder; None keeps everything in memory and forgets it at the end. host: where ports open; advertise:
    the ip that clients are told (brokerIP1), host where None. A port 0 takes a free one. namesrv_port None: no name
    server here; namesrv_addresses: further ones to register with. broker: settings of every broker, its name and
    address apart. acl_home: where conf/plain_acl.yml and conf/acl/ are (ROCKETMQ_HOME); None: each broker's own folder.
    """

    data: Path | None = None
    host: str = "127.0.0.1"
    advertise: str | None = None
    namesrv_port: int | None = 9876
    namesrv_addresses: tuple[str, ...] = ()
    broker_port: int = 10911
    broker_names: tuple[str, ...] = ("broker-a",)
    fast_port: bool = True  # RocketMQ: fastListenPort; open broker_port - 2 as well, for clients with vipChannelEnabled
    acl_home: Path | None = None  # RocketMQ: rocketmqHome, ROCKETMQ_HOME
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    store: CommitLogConfig = field(default_factory=CommitLogConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    tls: TlsClientConfig = field(default_factory=TlsClientConfig)  # of brokers as clients of name servers
    namesrv: NameServerConfig = field(default_factory=NameServerConfig)
    namesrv_credentials: Credentials | None = None  # what brokers sign with at name servers: see namesrv_access
    flush_interval_ms: int = 500  # flushIntervalCommitLog, ASYNC_FLUSH only
    expire_interval_ms: int = 10_000  # cleanResourceInterval
    index_interval_ms: int = 5  # pause between two strokes of index building while there is something to index
    index_stroke_ms: int = 5  # how long a stroke may keep requests waiting; it does as many records as that allows
    register_timeout_ms: int = 6_000  # registerBrokerTimeoutMills is 24 000 there
    metrics_port: int | None = None  # RocketMQ: metricsPromExporterPort; None: nowhere

    def of_broker(self, index: int) -> "NodeConfig":
        """Return the settings of one broker that has a process of its own: the next has the next metrics port."""
        return replace(self, metrics_port=self.metrics_port + index if self.metrics_port else self.metrics_port)
