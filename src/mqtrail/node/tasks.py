"""The servers that run in processes of their own: a broker, a controller, a name server."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from mqtrail.controller import ControllerConfig
from mqtrail.net import join_address

from .brokers import make_broker
from .config import NodeConfig
from .controller_node import ControllerNode
from .metrics_exporter import MetricsExporter
from .namesrv_access import SavedKeys, accounts_of
from .namesrv_node import NameServerNode
from .report import ServerReport
from .worker import OnFailure, WorkerServer


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTask:
    """A broker. room: its folder; None: in memory. own_namesrv: see BrokerNode.start."""

    name: str
    port: int
    advertised: str
    room: Path | None
    namesrvs: tuple[str, ...]
    own_namesrv: str | None
    config: NodeConfig
    use_uvloop: bool = True

    def server(self, on_failure: OnFailure) -> WorkerServer:
        return _ServedBroker(self, on_failure)


class _ServedBroker:
    def __init__(self, task: BrokerTask, on_failure: OnFailure) -> None:
        self._task = task
        self._broker = make_broker(task.name, task.room, task.config, on_failure)
        self._metrics = MetricsExporter(lambda: [] if self._broker.core is None else [self._broker.core])
        self._broker.bind(task.config.host, task.port, task.advertised)

    async def start(self) -> ServerReport:
        await self._broker.start(self._task.namesrvs, self._task.own_namesrv)
        url = await _serve_metrics(self._metrics, self._task.config)
        return ServerReport.of(self._broker.address, self._broker.store, url)

    async def stop(self) -> None:
        await self._metrics.stop()
        await self._broker.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerTask:
    """A controller. data: its data folder; rooms: those of the brokers, whose users it knows."""

    controller: ControllerConfig
    data: Path | None
    rooms: tuple[Path, ...]
    config: NodeConfig
    use_uvloop: bool = True

    def server(self, on_failure: OnFailure) -> WorkerServer:
        return _ServedController(self, on_failure)


class _ServedController:
    def __init__(self, task: ControllerTask, on_failure: OnFailure) -> None:
        config = task.config
        accounts = accounts_of(config, SavedKeys(config, task.rooms))
        self._node = ControllerNode(
            task.controller,
            task.data,
            config.host,
            config.server,
            config.tls,
            config.namesrv_credentials,
            accounts,
        )
        self._on_failure = on_failure
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> ServerReport:
        await self._node.start()
        self._watch = asyncio.create_task(self._watch_failure())
        return ServerReport(self._node.address)

    async def _watch_failure(self) -> None:
        await self._node.failed.wait()
        assert self._node.failure is not None
        self._on_failure(self._node.failure)

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._node.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvTask:
    """A name server. room: its folder; rooms: those of the brokers, whose users it knows."""

    port: int
    advertised: str
    room: Path | None
    rooms: tuple[Path, ...]
    config: NodeConfig
    use_uvloop: bool = True

    def server(self, on_failure: OnFailure) -> WorkerServer:
        return _ServedNamesrv(self)


class _ServedNamesrv:
    def __init__(self, task: NamesrvTask) -> None:
        self._task, config = task, task.config
        accounts = accounts_of(config, SavedKeys(config, task.rooms))
        self._node = NameServerNode(task.room, config.namesrv, config.server, accounts)
        self._metrics = MetricsExporter(lambda: (), self._node)
        self._node.bind(config.host, task.port)

    async def start(self) -> ServerReport:
        await self._node.start()
        url = await _serve_metrics(self._metrics, self._task.config)
        return ServerReport(join_address(self._task.advertised, self._node.port), metrics=url)

    async def stop(self) -> None:
        await self._metrics.stop()
        await self._node.stop()


async def _serve_metrics(metrics: MetricsExporter, config: NodeConfig) -> str:
    """Serve metrics if they are on; return their URL."""
    if config.metrics_port is not None:
        await metrics.start(config.host, config.metrics_port)
    return f"http://{metrics.address}/metrics" if metrics.address else ""
