"""The base of both kinds of node: the data folder, the self-signed certificate, the name server, the addresses."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mqtrail.net import join_address
from mqtrail.wire import InvalidParameter

from .addresses import advertised_ip
from .config import BROKER_PORT_STEP, NodeConfig, with_store
from .data_folder import DataFolder
from .exposure import open_servers
from .namesrv_access import SigningKeys, accounts_of, with_namesrv_access
from .namesrv_node import NameServerNode
from .report import ServerReport

if TYPE_CHECKING:
    from .self_signed import SelfSigned

NAMESRV_ROOM = "namesrv"


class BaseNode(ABC):
    """A name server and its brokers over one data folder. Subclasses decide where the brokers run."""

    def __init__(self, config: NodeConfig) -> None:
        """InvalidParameter: the brokers' credentials, or settings that do not go with the store."""
        self.config = with_namesrv_access(with_store(config))
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self._folder: DataFolder | None = None
        self._self_signed: SelfSigned | None = None
        self._namesrv: NameServerNode | None = None
        self._advertised = ""

    @property
    @abstractmethod
    def reports(self) -> Mapping[str, ServerReport]:
        """Broker name -> its report, of each running broker."""

    @property
    def http_address(self) -> str:
        """host:port of the HTTP door; "" without one."""
        return ""

    @property
    def http_url(self) -> str:
        """http://host:port of the HTTP door, or https://…; "" without one."""
        return ""

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """host:port of each running broker."""
        return tuple(report.address for report in self.reports.values())

    @property
    def process_ids(self) -> dict[str, int]:
        """Name -> process id of each server with a process of its own."""
        return {}

    @property
    def controller_addresses(self) -> tuple[str, ...]:
        """host:port of each controller."""
        return ()

    @property
    def namesrv_address(self) -> str:
        """The name server addresses for clients, joined by ";": the node's own first."""
        return ";".join(self._namesrvs())

    @property
    def is_open_to_others(self) -> bool:
        """Whether a port accepts unauthenticated peers from other machines."""
        return bool(self.open_servers)

    @property
    def open_servers(self) -> list[str]:
        """Which servers accept unauthenticated peers from other machines: "brokers", "name server"."""
        return open_servers(self.config)

    @property
    def certificate(self) -> Path | None:
        """The self-signed certificate that clients may trust; None without one."""
        return None if self._self_signed is None else self._self_signed.certificate_path

    def _check_names(self) -> None:
        names = self.config.broker_names
        if len(set(names)) != len(names):
            raise InvalidParameter(f"found broker names {names}, expected each once")

    def _open(self) -> None:
        """Lock the data folder, make the certificate, take the name server's port.

        DataFolderError, TlsError, BindError: the caller then calls `_close`.
        """
        self._open_folder()
        config = self.config
        if config.namesrv_port is not None:
            accounts = accounts_of(config, self._signing_keys())
            self._namesrv = NameServerNode(self._room(NAMESRV_ROOM), config.namesrv, config.server, accounts)
            self._namesrv.bind(config.host, config.namesrv_port)

    def _open_folder(self) -> None:
        """Lock the data folder, make the certificate."""
        config = self.config
        self._advertised = advertised_ip(config.host, config.advertise)
        if config.data is not None:
            self._folder = DataFolder.open(config.data)
        if config.server.tls.self_signed:
            from .self_signed import SelfSigned, self_signed_hosts  # only then: other nodes save its memory

            self._self_signed = SelfSigned(config.data, self_signed_hosts(config.host, self._advertised))
            tls = self._self_signed.open(config.server.tls)
            self.config = replace(config, server=replace(config.server, tls=tls))

    async def _close(self) -> None:
        """Stop the name server, delete a temporary certificate, unlock the data folder."""
        if self._namesrv is not None:
            await self._namesrv.stop()
            self._namesrv = None
        if self._self_signed is not None:
            self._self_signed.close()
            self._self_signed = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    @abstractmethod
    def _signing_keys(self) -> SigningKeys:
        """Return the look-up of the keys of users and accounts for the name server."""

    def _room(self, name: str) -> Path | None:
        """Return the folder of a broker or of the name server; None in memory."""
        return None if self._folder is None else self._folder.room(name)

    def _port_of(self, index: int) -> int:
        """Return the port of a broker, 0 for any free one."""
        return self.config.broker_port + index * BROKER_PORT_STEP if self.config.broker_port else 0

    def _namesrvs(self) -> tuple[str, ...]:
        own = self._own_namesrv()
        return (*(() if own is None else (own,)), *self.config.namesrv_addresses)

    def _own_namesrv(self) -> str | None:
        """Return the address of this node's name server, None without one."""
        return None if self._namesrv is None else join_address(self._advertised, self._namesrv.port)
