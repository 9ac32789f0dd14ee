"""A node whose brokers run in processes of their own: RocketMQ shards topics over brokers, that is how cores are used.

The name server and the data folder's lock are here; each broker is a `worker`, which registers as any other broker
does. Workers end when this process ends, however it ends: their stdin is its sign of life. One that ends by itself is
told, and the others go on.
"""

import asyncio
import json
import sys
from asyncio.subprocess import Process
from dataclasses import replace
from pathlib import Path
from typing import Any

from mqtrail.net import Log, join_address
from mqtrail.wire import InvalidParameter, MQError

from .config import BROKER_PORT_STEP, NodeConfig
from .data_folder import DataFolder
from .namesrv_access import SavedKeys, accounts_of, with_namesrv_access
from .namesrv_node import NameServerNode
from .node import NAMESRV_ROOM, advertised_ip, open_doors, warn_if_open
from .report import BrokerReport
from .self_signed import SelfSigned, self_signed_hosts
from .worker import Task, pack

PROGRAM = "import sys; from mqtrail.node.worker import main; sys.exit(main())"
STOP_TIMEOUT_S = 60.0  # for a broker to write what it has; then it is killed

log = Log()


class BrokerEnded(MQError):
    """A broker's process did not start, or ended by itself."""


class ProcessNode:
    """`start` and `stop`, as Node. Errors of start: as Node's; BrokerEnded with what a broker said."""

    def __init__(self, config: NodeConfig, *, use_uvloop: bool = True) -> None:
        """InvalidParameter: the brokers' credentials."""
        self.config = with_namesrv_access(config)
        self.reports: dict[str, BrokerReport] = {}
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self._use_uvloop = use_uvloop
        self._folder: DataFolder | None = None
        self._self_signed: SelfSigned | None = None
        self._namesrv: NameServerNode | None = None
        self._processes: dict[str, Process] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._advertised = ""
        self._stopping = False

    @property
    def namesrv_address(self) -> str:
        """What clients are given: the name servers, ours first, joined by ";"."""
        return ";".join(self._namesrvs())

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """host:port of each broker."""
        return tuple(report.address for report in self.reports.values())

    @property
    def process_ids(self) -> dict[str, int]:
        """The brokers' processes."""
        return {name: process.pid for name, process in self._processes.items()}

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
        """Open the data folder, serve names, start every broker. Ready when it returns."""
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
                folder = self._folder
                rooms = [] if folder is None else [folder.room(name) for name in config.broker_names]
                accounts = accounts_of(config, SavedKeys(config, rooms))
                self._namesrv = NameServerNode(room, config.namesrv, config.server, accounts)
                self._namesrv.bind(config.host, config.namesrv_port)
                await self._namesrv.start()
            async with asyncio.TaskGroup() as group:
                starts = {
                    name: group.create_task(self._start_broker(index, name))
                    for index, name in enumerate(config.broker_names)
                }
            self.reports = {name: start.result() for name, start in starts.items()}
        except BaseException as error:
            await self.stop()
            if isinstance(error, BaseExceptionGroup):  # the first that failed; the others were only cancelled
                raise error.exceptions[0] from None
            raise
        self._watches = [asyncio.create_task(self._watch(name, process)) for name, process in self._processes.items()]
        warn_if_open(config)

    async def _start_broker(self, index: int, name: str) -> BrokerReport:
        config = self.config
        task = Task(
            name=name,
            port=config.broker_port + index * BROKER_PORT_STEP if config.broker_port else 0,
            advertised=self._advertised,
            room=None if self._folder is None else self._folder.room(name),
            namesrvs=self._namesrvs(),
            own_namesrv=None if self._namesrv is None else self._namesrvs()[0],
            config=config.of_broker(index),
            use_uvloop=self._use_uvloop,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for this process, which then ends them in order
        )
        self._processes[name] = process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pack(task))
            await process.stdin.drain()
            line = await process.stdout.readline()
        except ConnectionError:
            line = b""
        told: dict[str, Any] = (
            json.loads(line) if line else {"error": f"its process exited with code {await process.wait()}"}
        )
        if told.get("event") != "ready":
            raise BrokerEnded(f"broker {name}: {told['error']}")
        return BrokerReport(told["address"], told["recovery"], told["figures"], told["metrics"])

    async def _watch(self, name: str, process: Process) -> None:
        """Tell when a broker ends by itself."""
        code = await process.wait()
        if self._stopping:
            return
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        self.failure = BrokerEnded(f"broker {name} {how}")
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
        """Stop every broker cleanly, then the name server; let go of the data folder."""
        self._stopping = True
        await asyncio.gather(*(self._end(name, process) for name, process in self._processes.items()))
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        if self._namesrv is not None:
            await self._namesrv.stop()
            self._namesrv = None
        if self._self_signed is not None:
            self._self_signed.close()
            self._self_signed = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    async def _end(self, name: str, process: Process) -> None:
        if process.returncode is None:
            process.terminate()
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                code = await process.wait()
        except TimeoutError:
            log.error("broker.killed", broker=name, found=f"it did not stop within {STOP_TIMEOUT_S:g} s")
            process.kill()
            code = await process.wait()
        if code != 0 and self.failure is None and name in self.reports:
            self.failure = BrokerEnded(f"broker {name} exited with code {code}")

    def _namesrvs(self) -> tuple[str, ...]:
        own = () if self._namesrv is None else (join_address(self._advertised, self._namesrv.port),)
        return (*own, *self.config.namesrv_addresses)
