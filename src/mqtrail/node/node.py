"""A name server and its brokers in one process, over one data folder."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mqtrail.broker import Key
from mqtrail.net import Log
from mqtrail.store import StoreError
from mqtrail.wire import InvalidParameter

from .base import BaseNode
from .broker_node import BrokerNode
from .brokers import AnyBroker, make_broker
from .config import NodeConfig
from .exposure import warn_if_open
from .namesrv_access import SigningKeys
from .report import ServerReport

if TYPE_CHECKING:
    from .door import HttpDoor
    from .metrics_exporter import MetricsExporter

log = Log()


class Node(BaseNode):
    """`start`, then `stop`. In between, single brokers can be stopped and started again.

    Errors of start: DataFolderError, BindError, StoreError, InvalidParameter; everything is released then.
    """

    def __init__(self, config: NodeConfig) -> None:
        """InvalidParameter: the brokers' credentials."""
        super().__init__(config)
        self.brokers: dict[str, AnyBroker] = {}
        self._metrics: MetricsExporter | None = None
        self._door: HttpDoor | None = None
        self._ports: dict[str, int] = {}

    @property
    def reports(self) -> dict[str, ServerReport]:
        """Broker name -> its report, of each running broker."""
        metrics = "" if self._metrics is None else f"http://{self._metrics.address}/metrics"
        return {name: ServerReport.of(broker.address, broker.store, metrics) for name, broker in self.brokers.items()}

    async def start(self) -> None:
        """Open the data folder and the ports, then serve. When it returns, the brokers are registered."""
        self._check_names()
        try:
            self._open()
            for index, name in enumerate(self.config.broker_names):
                self._ports[name] = self._port_of(index)
                self._bind_broker(name)
            if self.config.http_port is not None:
                self._door = _make_door(self.config, self.config.http_port)
            if self._namesrv is not None:
                await self._namesrv.start()
            namesrvs, own = self._namesrvs(), self._own_namesrv()
            await asyncio.gather(*(broker.start(namesrvs, own) for broker in self.brokers.values()))
            if self.config.metrics_port is not None:
                from .metrics_exporter import MetricsExporter  # other nodes do without its memory

                self._metrics = MetricsExporter(
                    lambda: [one.core for one in self.brokers.values() if one.core is not None],
                    self._namesrv,
                    lambda: {} if self._door is None else self._door.mails,
                )
                await self._metrics.start(self.config.host, self.config.metrics_port)
            if self._door is not None:
                (broker,) = self.brokers.values()
                assert isinstance(broker, BrokerNode), "with_store lets no controlled broker pass"
                await self._door.start(broker)
        except BaseException:
            await self.stop()
            raise
        warn_if_open(self.config)

    def _bind_broker(self, name: str) -> None:
        config = self.config.of_broker(self.config.broker_names.index(name))
        broker = make_broker(name, self._room(name), config, self._fail)
        broker.bind(self.config.host, self._ports[name], self._advertised)
        self._ports[name] = broker.port
        self.brokers[name] = broker

    @property
    def http_address(self) -> str:
        """host:port of the HTTP door; "" without one."""
        return "" if self._door is None else self._door.address

    @property
    def http_url(self) -> str:
        """http://host:port of the HTTP door, or https://…; "" without one."""
        return "" if self._door is None else self._door.url

    async def stop_broker(self, name: str) -> None:
        """Stop one broker cleanly. A broker in memory loses its messages."""
        await self.brokers.pop(name).stop()

    async def start_broker(self, name: str) -> None:
        """Start a stopped broker again, on its previous port."""
        assert name not in self.brokers, f"{name} runs"
        self._bind_broker(name)
        await self.brokers[name].start(self._namesrvs(), self._own_namesrv())

    async def stop(self) -> None:
        """Stop everything that runs, the doors first, then brokers, and unlock the data folder."""
        if self._door is not None:
            await self._door.stop()
            self._door = None
        if self._metrics is not None:
            await self._metrics.stop()
            self._metrics = None
        brokers, self.brokers = list(self.brokers.values()), {}
        failures: list[Exception] = []
        for broker in brokers:
            try:
                await broker.stop()
            except StoreError as error:  # the command prints it
                failures.append(error)
            except Exception as error:
                log.exception("broker.stop_failed", broker=broker.name)
                failures.append(error)
        await self._close()
        if failures:
            raise failures[0]

    def _signing_keys(self) -> SigningKeys:
        return self._keys_of

    def _keys_of(self, access_key: str) -> list[Key]:
        cores = [broker.core for broker in self.brokers.values() if broker.core is not None]
        return [key for core in cores for key in core.access.keys_of(access_key)]

    def _fail(self, error: BaseException) -> None:
        """Stop the node: a broker's log cannot be made durable, so no further send can be acknowledged."""
        log.error(
            "store.flush_failed",
            error=str(error),
            remedy="check the disk and the kernel log, then restart; the node stops because it could not flush",
        )
        self.failure = error
        self.failed.set()


def _make_door(config: NodeConfig, port: int) -> HttpDoor:
    """Return a door with its port taken. BindError; InvalidParameter: a package is missing, or its rules are wrong."""
    try:
        from .door import HttpDoor
    except ImportError as error:
        raise InvalidParameter(
            f"found no module {error.name}, expected FastAPI and uvicorn for http_port: pip install 'mqtrail[pmq]'"
        ) from error
    door = HttpDoor(config, port)
    door.bind()
    return door
