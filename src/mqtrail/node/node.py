"""A name server and its brokers in one process, over one data folder."""

import asyncio
import ipaddress
import socket
from dataclasses import replace
from pathlib import Path

from mqtrail.broker import Key
from mqtrail.net import ClientAuth, Log, TlsMode, join_address
from mqtrail.wire import InvalidParameter

from .acl_files import warn_if_open_to_others
from .broker_node import BrokerNode
from .config import BROKER_PORT_STEP, NodeConfig
from .data_folder import DataFolder
from .metrics_door import MetricsDoor
from .namesrv_access import accounts_of, with_namesrv_access
from .namesrv_node import NameServerNode
from .report import BrokerReport
from .self_signed import SelfSigned, self_signed_hosts

NAMESRV_ROOM = "namesrv"

log = Log()


class Node:
    """`start` and `stop`; brokers may be stopped and started one by one in between.

    Errors of start: DataFolderError, BindError, StoreError, InvalidParameter; nothing is held or running then.
    """

    def __init__(self, config: NodeConfig) -> None:
        """InvalidParameter: the brokers' credentials."""
        self.config = with_namesrv_access(config)
        self.brokers: dict[str, BrokerNode] = {}
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self._folder: DataFolder | None = None
        self._self_signed: SelfSigned | None = None
        self._namesrv: NameServerNode | None = None
        self._metrics: MetricsDoor | None = None
        self._ports: dict[str, int] = {}
        self._advertised = ""

    @property
    def namesrv_address(self) -> str:
        """What clients are given: the name servers, ours first, joined by ";"."""
        return ";".join(self._namesrvs())

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """host:port of each broker that runs."""
        return tuple(broker.address for broker in self.brokers.values())

    @property
    def reports(self) -> dict[str, BrokerReport]:
        """What each broker that runs tells."""
        metrics = "" if self._metrics is None else f"http://{self._metrics.address}/metrics"
        return {name: BrokerReport.of(broker.address, broker.store, metrics) for name, broker in self.brokers.items()}

    @property
    def is_open_to_others(self) -> bool:
        """Whether other machines can connect and a port serves everyone."""
        return bool(self.open_doors)

    @property
    def open_doors(self) -> list[str]:
        """What serves everyone on other machines: "brokers", "name server"."""
        return open_doors(self.config)

    @property
    def certificate(self) -> Path | None:
        """The self-signed certificate that clients may trust; None: there is none."""
        return None if self._self_signed is None else self._self_signed.certificate_path

    async def start(self) -> None:
        """Open the data folder, then serve. Ready when it returns: brokers are registered."""
        config = self.config
        if len(set(config.broker_names)) != len(config.broker_names):
            raise InvalidParameter(f"found broker names {config.broker_names}, expected each once")
        self._advertised = advertised_ip(config.host, config.advertise)
        try:
            if config.data is not None:
                self._folder = DataFolder.open(config.data)
            if config.server.tls.self_signed:
                self._self_signed = SelfSigned(config.data, self_signed_hosts(config.host, self._advertised))
                tls = self._self_signed.open(config.server.tls)
                self.config = config = replace(config, server=replace(config.server, tls=tls))
            if config.namesrv_port is not None:
                room = None if self._folder is None else self._folder.room(NAMESRV_ROOM)
                accounts = accounts_of(config, self._keys_of)
                self._namesrv = NameServerNode(room, config.namesrv, config.server, accounts)
                self._namesrv.bind(config.host, config.namesrv_port)
            for index, name in enumerate(config.broker_names):
                self._ports[name] = config.broker_port + index * BROKER_PORT_STEP if config.broker_port else 0
                self._bind_broker(name)
            if self._namesrv is not None:
                await self._namesrv.start()
            own = None if self._namesrv is None else self._namesrvs()[0]
            await asyncio.gather(*(broker.start(self._namesrvs(), own) for broker in self.brokers.values()))
            if config.metrics_port is not None:
                self._metrics = MetricsDoor(lambda: [one.core for one in self.brokers.values() if one.core is not None])
                await self._metrics.start(config.host, config.metrics_port)
        except BaseException:
            await self.stop()
            raise
        warn_if_open(config)

    def _bind_broker(self, name: str) -> None:
        room = None if self._folder is None else self._folder.room(name)
        broker = BrokerNode(name, room, self.config, self._fail)
        broker.bind(self.config.host, self._ports[name], self._advertised)
        self._ports[name] = broker.port
        self.brokers[name] = broker

    async def stop_broker(self, name: str) -> None:
        """Stop one broker cleanly; what it keeps in memory alone is gone."""
        await self.brokers.pop(name).stop()

    async def start_broker(self, name: str) -> None:
        """Start a stopped broker again, on its port."""
        assert name not in self.brokers, f"{name} runs"
        self._bind_broker(name)
        own = None if self._namesrv is None else self._namesrvs()[0]
        await self.brokers[name].start(self._namesrvs(), own)

    async def stop(self) -> None:
        """Stop everything that runs, brokers first, and let go of the data folder."""
        if self._metrics is not None:
            await self._metrics.stop()
            self._metrics = None
        brokers, self.brokers = list(self.brokers.values()), {}
        results: list[BaseException | None] = []
        for broker in brokers:
            try:
                await broker.stop()
            except Exception as error:
                log.exception("broker.stop_failed", broker=broker.name)
                results.append(error)
        if self._namesrv is not None:
            await self._namesrv.stop()
            self._namesrv = None
        if self._self_signed is not None:
            self._self_signed.close()
            self._self_signed = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        for result in results:
            if result is not None:
                raise result

    def _keys_of(self, access_key: str) -> list[Key]:
        cores = [broker.core for broker in self.brokers.values() if broker.core is not None]
        return [key for core in cores for key in core.access.keys_of(access_key)]

    def _namesrvs(self) -> tuple[str, ...]:
        own = () if self._namesrv is None else (join_address(self._advertised, self._namesrv.port),)
        return (*own, *self.config.namesrv_addresses)

    def _fail(self, error: BaseException) -> None:
        """The log of a broker cannot be made durable: going on would promise what cannot be kept."""
        log.error(
            "store.flush_failed",
            error=str(error),
            remedy="check the disk and the kernel log, then restart; the node stops because it could not flush",
        )
        self.failure = error
        self.failed.set()


def advertised_ip(host: str, advertise: str | None) -> str:
    """Return the ip that clients are told: `advertise`, or the one that ports are opened on. InvalidParameter.

    Where ports open on all addresses it is the one that this machine reaches others from.
    """
    name = advertise or host
    try:
        found = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        option = "--advertise" if advertise else "--host"
        raise InvalidParameter(f"found {option} {name!r} ({error}), expected an IP address of this machine") from error
    if not ipaddress.ip_address(found).is_unspecified:
        return found
    if advertise:
        raise InvalidParameter(
            f"found --advertise {advertise}, expected an IP address at which clients reach this machine"
        )
    family, probe = (socket.AF_INET6, "2001:db8::1") if ":" in found else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((probe, 9))  # sends nothing: it only asks the routing table
            return str(sock.getsockname()[0])
        except OSError:
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"


def open_doors(config: NodeConfig) -> list[str]:
    """Return what serves everyone on other machines: "brokers", "name server". config: a node's own."""
    if is_loopback(config.host):
        return []
    broker, tls = config.broker, config.server.tls
    if tls.mode is TlsMode.ENFORCING and tls.client_auth is ClientAuth.REQUIRE:
        return []
    found = []
    if not (broker.acl or broker.authentication):
        found.append("brokers")
    if config.namesrv_port is not None and not config.namesrv.acl:
        found.append("name server")
    return found


def warn_if_open(config: NodeConfig) -> None:
    """Log what other machines and users can do: connect unasked, pass by client certificates, read keys."""
    keys = {config.server.tls.key_path, config.tls.key_path}
    warn_if_open_to_others(sorted(path for path in keys if path is not None))
    if config.server.tls.lets_plain_pass:
        log.warning(
            "node.plain_connections",
            found="client certificates are required, but connections without TLS need none (PERMISSIVE)",
            remedy='set mode = "ENFORCING" in [tls_server]',
        )
    doors = open_doors(config)
    if "brokers" in doors:
        log.warning(
            "node.open_to_others",
            host=config.host,
            open=doors,
            remedy="listen on --host 127.0.0.1, or enable access control (aclEnable, or authenticationEnabled and "
            "authorizationEnabled): anyone who reaches these ports can read and write every message",
        )
    elif doors:
        log.warning(
            "node.open_to_others",
            host=config.host,
            open=doors,
            remedy="listen on --host 127.0.0.1, or remove acl = false from [namesrv_server]: anyone who reaches the "
            "name server can register brokers, and change or delete routes",
        )


def is_loopback(host: str) -> bool:
    """Tell whether an address is this machine's own alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
