"""A node whose brokers run in processes of their own, as RocketMQ shards topics over brokers to use several cores.

This process holds the name server and the lock of the data folder. Each broker is a `worker` process, which registers
like any other broker. A worker ends when this process ends, however it ends: its stdin reaches end of file. If a worker
ends by itself, the node logs it, and the other brokers continue.
"""

import asyncio

from mqtrail.net import Log

from .base import BaseNode
from .config import NodeConfig
from .exposure import warn_if_open
from .metrics_exporter import MetricsExporter
from .namesrv_access import SavedKeys, SigningKeys
from .namesrv_node import NameServerNode
from .report import ServerReport
from .tasks import BrokerTask
from .worker_process import WorkerEnded, WorkerProcess, how_ended

log = Log()


class ProcessNode(BaseNode):
    """`start`, then `stop`. Errors of start: as Node's, and WorkerEnded with the broker's own error text."""

    def __init__(self, config: NodeConfig, *, use_uvloop: bool = True) -> None:
        """InvalidParameter: the brokers' credentials."""
        super().__init__(config)
        self._reports: dict[str, ServerReport] = {}
        self._use_uvloop = use_uvloop
        self._processes: dict[str, WorkerProcess] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._stopping = False
        self._metrics: MetricsExporter | None = None

    @property
    def reports(self) -> dict[str, ServerReport]:
        """Broker name -> its report, of each broker that was started."""
        return self._reports

    @property
    def process_ids(self) -> dict[str, int]:
        """Broker name -> process id."""
        found = {name: process.process_id for name, process in self._processes.items()}
        return {name: process_id for name, process_id in found.items() if process_id is not None}

    async def start(self) -> None:
        """Open the data folder, start the name server, then every broker. When it returns, brokers are registered."""
        self._check_names()
        try:
            self._open()
            if self._namesrv is not None:
                await self._namesrv.start()
                await self._open_metrics(self._namesrv)
            async with asyncio.TaskGroup() as group:
                starts = {
                    name: group.create_task(self._start_broker(index, name))
                    for index, name in enumerate(self.config.broker_names)
                }
            self._reports = {name: start.result() for name, start in starts.items()}
        except BaseException as error:
            await self.stop()
            if isinstance(error, BaseExceptionGroup):  # the first one failed; the others were only cancelled
                raise error.exceptions[0] from None
            raise
        self._watches = [asyncio.create_task(self._watch(name, process)) for name, process in self._processes.items()]
        warn_if_open(self.config)

    async def _open_metrics(self, namesrv: NameServerNode) -> None:
        """Serve the name server's metrics on the port after the last broker's."""
        port = self.config.metrics_port
        if port is not None:
            self._metrics = MetricsExporter(lambda: (), namesrv)
            await self._metrics.start(self.config.host, port + len(self.config.broker_names) if port else 0)

    def _signing_keys(self) -> SigningKeys:
        rooms = [room for name in self.config.broker_names if (room := self._room(name)) is not None]
        return SavedKeys(self.config, rooms)

    async def _start_broker(self, index: int, name: str) -> ServerReport:
        task = BrokerTask(
            name=name,
            port=self._port_of(index),
            advertised=self._advertised,
            room=self._room(name),
            namesrvs=self._namesrvs(),
            own_namesrv=self._own_namesrv(),
            config=self.config.of_broker(index),
            use_uvloop=self._use_uvloop,
        )
        self._processes[name] = process = WorkerProcess(f"broker {name}")
        return await process.start(task)

    async def _watch(self, name: str, process: WorkerProcess) -> None:
        """Log when a broker ends by itself."""
        code = await process.wait()
        if self._stopping:
            return
        how = how_ended(code)
        self.failure = WorkerEnded(f"broker {name} {how}")
        log.error(
            "broker.ended",
            broker=name,
            found=how,
            remedy="read the log of this broker, then restart the node; the other brokers continue",
        )
        del self._processes[name]
        if not self._processes:
            self.failed.set()

    async def stop(self) -> None:
        """Stop every broker cleanly, then the name server; unlock the data folder."""
        self._stopping = True
        await asyncio.gather(*(self._end(name, process) for name, process in self._processes.items()))
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        if self._metrics is not None:
            await self._metrics.stop()
            self._metrics = None
        await self._close()

    async def _end(self, name: str, process: WorkerProcess) -> None:
        code = await process.stop()
        if code != 0 and self.failure is None and name in self.reports:
            self.failure = WorkerEnded(f"broker {name} exited with code {code}")
