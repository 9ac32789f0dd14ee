"""The configuration of a node: one frozen value, made by `cli` or `testing` and passed down."""

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mqtrail.broker import BrokerConfig
from mqtrail.namesrv import NameServerConfig
from mqtrail.net import ServerConfig, TlsClientConfig, parse_namesrv
from mqtrail.store import CommitLogConfig
from mqtrail.wire import (
    Credentials,
    InvalidParameter,
    SettingUnit,
    address_matcher,
    check_settings,
    is_loopback,
    setting,
)

if TYPE_CHECKING:
    from mqtrail.controller import ControllerConfig

PORT_MAX = 65_535
BROKER_PORT_STEP = 10  # between two brokers of one node; Apache takes port - 2 and port + 1 as well

NAMESRV = SettingUnit(partial(parse_namesrv, required=False), ";".join, "addresses as host:port;host:port")


class GroupMode(Enum):
    """How a group of brokers replicates. CONTROLLER: controllers elect the master. DLEDGER: the brokers do, and a
    majority has each message. CLASSIC: it is always the first."""

    CONTROLLER = "controller"
    DLEDGER = "dledger"
    CLASSIC = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The brokers of one group on one machine: see GroupNode. controller_port: of the first controller, +1 for each
    next one; 0: any free ports. controller: its settings, None: defaults; the group sets `peers` and `self_id`."""

    size: int
    mode: GroupMode = GroupMode.CONTROLLER
    controller_port: int = 9878
    controller: "ControllerConfig | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A name server and its brokers. Times are ms.

    data: the data folder; None: keep everything in memory. host: IP address to listen on. advertise: IP address
    advertised to clients (brokerIP1); None: host. Port 0: any free port. namesrv_port None: run no name server.
    namesrv_addresses: further name servers to register with. broker: settings of every broker; the node adds name and
    address. group: run one group of brokers of the first name. acl_home: folder with conf/plain_acl.yml and
    conf/acl/ (ROCKETMQ_HOME); None: each broker's own folder.
    """

    data: Path | None = None
    store_url: str = setting(
        "",
        "URL of a database that keeps the messages in tables, `sqlite:///path`, `postgresql://user:password@host/name` "
        "or `mysql://…`; needs `pip install 'mqtrail[pmq]'`, `'mqtrail[postgresql]'` or `'mqtrail[mysql]'`; "
        "sets `sync_flush`; one broker, without slaves; none: a CommitLog in `data`",
        secret=True,
    )
    store_nodes: str = setting(
        "",
        "further databases for queues beside `store_url`, as `NAME=URL NAME=URL`; see [several databases]"
        "(../how-to/tables.md#several-databases); none: `store_url` has all queues",
        secret=True,
    )
    store_replicas: str = setting(
        "",
        "replicas of databases of the store, as `NAME=URL NAME=URL`, where `NAME` is `home` for `store_url`; see "
        "[replicas](../how-to/tables.md#replicas); none: all messages are read from the databases themselves",
        secret=True,
    )
    host: str = setting("127.0.0.1", "IP address to listen on", conf="bindAddress")
    advertise: str | None = setting(None, "IP address advertised to clients; none: `host`", conf="brokerIP1")
    namesrv_port: int | None = setting(
        9876, "port of the name server; none: run no name server", least=0, most=PORT_MAX
    )
    namesrv_addresses: tuple[str, ...] = setting(
        (), "further name servers to register with", conf="namesrvAddr", unit=NAMESRV
    )
    broker_port: int = setting(
        10911, "port of the first broker; +10 for each next one", conf="listenPort", least=0, most=PORT_MAX
    )
    broker_names: tuple[str, ...] = setting(("broker-a",), "names of the brokers to run", like="brokerName")
    fast_port: bool = setting(
        True,
        "also listen on `broker_port` - 2, for clients with vipChannelEnabled; not with port 0",
        like="fastListenPort",
    )
    ha_port: int | None = setting(
        None,
        "port for slaves, +10 for each next broker; none: `broker_port` + 1 if `broker_role` is set; 0: any free port",
        conf="haListenPort",
        least=0,
        most=PORT_MAX,
    )
    ha_master: str = setting(
        "",
        "on a slave: host:port of the HA port of its master; none: ask the name server",
        conf="haMasterAddress",
    )
    acl_home: Path | None = setting(
        None, "folder of `conf/plain_acl.yml` and `conf/acl/`; none: the folder of each broker", conf="rocketmqHome"
    )
    group: GroupConfig | None = None
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    store: CommitLogConfig = field(default_factory=CommitLogConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    tls: TlsClientConfig = field(default_factory=TlsClientConfig)  # of brokers as clients of name servers
    namesrv: NameServerConfig = field(default_factory=NameServerConfig)
    namesrv_credentials: Credentials | None = None  # what brokers sign with at name servers: see namesrv_access
    flush_interval_ms: int = setting(
        500, "pause between two flushes, ASYNC_FLUSH only", conf="flushIntervalCommitLog", least=0
    )
    expire_interval_ms: int = setting(
        10_000, "interval of the check for expired files", conf="cleanResourceInterval", least=1
    )
    index_interval_ms: int = setting(5, "pause between two steps of index building while records are waiting", least=0)
    index_stroke_ms: int = setting(5, "maximum duration of one step, during which requests wait", least=1)
    register_timeout_ms: int = setting(
        6_000, "timeout of one registration (RocketMQ: 24 000)", like="registerBrokerTimeoutMills"
    )
    metrics_port: int | None = setting(
        None,
        "port of the [Prometheus metrics](metrics.md), +1 for each next broker; 0: any free port; none: off",
        conf="metricsPromExporterPort",
        least=0,
        most=PORT_MAX,
    )

    http_port: int | None = setting(
        None,
        "port of the [HTTP door](http.md), on `host`; needs `pip install 'mqtrail[pmq]'`; one broker, without "
        "controllers; 0: any free port; none: off. With a certificate in `[tls_server]` it speaks HTTPS only",
        least=0,
        most=PORT_MAX,
    )
    http_rules: Path | None = setting(
        None,
        "TOML file of the [rules of the HTTP door](http.md#rules): tokens, addresses, limits; read again after changes",
    )
    http_address_percent: int = setting(
        25,
        "share of the HTTP door's requests, waiting receives and connections that one client address may hold; "
        "loopback and `http_proxies` have no limit; 100: no address has one",
        least=1,
        most=100,
    )
    http_proxies: str = setting(
        "",
        "addresses of proxies in front of the HTTP door, for example `10.0.0.{1,2}`: many clients share them, so they "
        "have no limit and get no wake-ups",
    )
    http_wake_local: bool = setting(
        False,
        "also send [wake-ups](pmq.md#wake-ups) of pmq to clients on the door's machine; not behind a proxy on it, "
        "since its clients choose the port",
    )

    def __post_init__(self) -> None:
        """InvalidParameter: a setting is outside its bounds."""
        check_settings(self)
        address_matcher(self.http_proxies)

    @property
    def group_credentials(self) -> Credentials | None:
        """What the members of a group on one machine know each other by, made at this start; None: a user's are set."""
        is_made = self.group is not None and not self.broker.inner_credentials.strip()
        return self.namesrv_credentials if is_made else None

    def of_broker(self, index: int) -> "NodeConfig":
        """Return the settings of a broker in a process of its own: each has its own metrics port and HA port."""
        return replace(
            self,
            metrics_port=self.metrics_port + index if self.metrics_port else self.metrics_port,
            ha_port=self.ha_port + index * BROKER_PORT_STEP if self.ha_port else self.ha_port,
        )


def shown_url(url: str) -> str:
    """Return a URL without its password, for people and logs."""
    return re.sub(r"(://[^/@:]*:)[^/@]*@", r"\1***@", url)


def with_store(config: NodeConfig) -> NodeConfig:
    """Return the settings as store and HTTP door need them. InvalidParameter: they cannot work with some of them.

    A flush of a store on tables is a commit. Until then a message is only in the memory of the process, so every reply
    waits.
    """
    if config.http_port is not None:
        _check_door(config)
    if not config.store_url:
        for name in ("store_nodes", "store_replicas"):
            if getattr(config, name):
                raise InvalidParameter(f"found {name} without store_url, expected both: name the home in store_url")
        return config
    remedy = "set none of these with store_url: replicate the database, and start one node per database"
    if len(config.broker_names) > 1:
        raise InvalidParameter(f"found {len(config.broker_names)} brokers on one database, expected one: {remedy}")
    broker = config.broker
    has_copies = config.group is not None or broker.controller_mode or broker.ledger_mode or broker.broker_role
    if has_copies or config.ha_port is not None:
        raise InvalidParameter(f"found a broker with slaves, a master or a controller, expected none: {remedy}")
    return replace(config, broker=replace(config.broker, sync_flush=True, loses_unflushed=True))


def _check_door(config: NodeConfig) -> None:
    """InvalidParameter: the HTTP door cannot serve such a node, or would open what is guarded."""
    if len(config.broker_names) > 1:
        raise InvalidParameter(
            f"found http_port with {len(config.broker_names)} brokers, expected one: start one node per HTTP door"
        )
    if config.group is not None or config.broker.controller_mode or config.broker.ledger_mode:
        raise InvalidParameter(
            "found http_port with controllers or a DLedger group, expected none: run the HTTP door on a plain broker"
        )
    broker = config.broker
    if (broker.acl or broker.authentication) and not is_loopback(config.host):
        raise InvalidParameter(
            f"found http_port on {config.host} with access control, expected a loopback address: the HTTP door "
            "has no accounts; listen on --host 127.0.0.1, behind a proxy that has accounts"
        )
