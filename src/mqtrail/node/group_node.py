"""A group of brokers on one machine that copy one log: `mqtrail up --ha N`.

    this process          the lock of the data folder; it starts the others, and starts those that end again
      namesrv             a name server
      controller-n0 … n2  controllers; in controller mode alone
      broker-a-1 … N      the brokers, all of the name broker-a

Each of them, a member, is a `worker` process, which ends when this process ends, however it ends. A member that is
killed or stopped is started again, on the same port, after a pause: RESTART_S, and twice as long each time it ended
within STEADY_S, at most RESTART_MAX_S. A member that ends with an error, for example because its disk failed, is not: a
person must look at it. The node ends when no broker is left.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mqtrail.broker import IDENTITY_FILE, SLAVE, SYNC_MASTER
from mqtrail.controller import ControllerConfig
from mqtrail.net import BindError, Log, bound_socket, join_address
from mqtrail.wire import InvalidParameter

from .base import NAMESRV_ROOM, BaseNode
from .config import GroupConfig, GroupMode, NodeConfig
from .exposure import warn_if_open
from .namesrv_access import SavedKeys, SigningKeys, controllers_check
from .report import ServerReport
from .tasks import BrokerTask, ControllerTask, NamesrvTask
from .worker import Task
from .worker_process import WorkerEnded, WorkerProcess, how_ended

CONTROLLERS = 3
MEMBER_PORT_STEP = 3  # from a broker's port to that of its DLedger member
GROUP_SIZES = (3, 5)  # of a DLedger group
RESTART_S = 1.0
RESTART_MAX_S = 30.0
STEADY_S = 60.0

log = Log()


@dataclass(slots=True)
class LocalMember:
    """A process of the group. task: makes what it runs, at each start. report: of its last start."""

    process: WorkerProcess
    task: Callable[[], Task]
    report: ServerReport = field(default_factory=lambda: ServerReport(""))
    started_s: float = 0.0
    pause_s: float = RESTART_S

    async def start(self) -> None:
        """WorkerEnded."""
        self.started_s = asyncio.get_running_loop().time()
        self.report = await self.process.start(self.task())

    def next_pause_s(self, now_s: float) -> float:
        """Return the time to wait before the next start, of a member that has ended now."""
        if now_s - self.started_s >= STEADY_S:
            self.pause_s = RESTART_S
        pause_s, self.pause_s = self.pause_s, min(self.pause_s * 2, RESTART_MAX_S)
        return pause_s


def _mode_of(folder: Path) -> GroupMode | None:
    """Return the mode of the broker that has used a folder; None: none has."""
    if any(folder.glob("dledger-*")):
        return GroupMode.DLEDGER
    if not (folder / "commitlog").exists():
        return None
    return GroupMode.CONTROLLER if (folder / IDENTITY_FILE).exists() else GroupMode.CLASSIC


def with_own_slaves(config: NodeConfig, advertised: str) -> NodeConfig:
    """Return the settings of a broker whose HA port takes connections of this machine alone, with access control on.

    All members are on this machine, and connect to its advertised address, from this address. A value of
    slave_addresses has precedence.
    """
    broker = config.broker
    if broker.slave_addresses or not (broker.acl or broker.authentication):
        return config
    own = ",".join(dict.fromkeys(("127.0.0.1", advertised)))
    return replace(config, broker=replace(broker, slave_addresses=own))


class GroupNode(BaseNode):
    """`start`, then `stop`. Errors of start: DataFolderError, BindError, InvalidParameter, WorkerEnded."""

    def __init__(self, config: NodeConfig, *, use_uvloop: bool = True) -> None:
        """InvalidParameter: the brokers' credentials, a group in memory, or without copies."""
        super().__init__(config)
        if config.group is None or config.data is None or len(config.broker_names) != 1:
            raise InvalidParameter("found no group, data folder or single broker name, expected each for a group")
        self.group: GroupConfig = config.group
        self._use_uvloop = use_uvloop
        self._members: dict[str, LocalMember] = {}
        self._brokers = [f"{config.broker_names[0]}-{number + 1}" for number in range(config.group.size)]
        self._controllers: dict[str, str] = {}  # id -> address
        self._reserved: list[socket.socket] = []  # the ports of controllers, or of members of a DLedger group
        self._peers = ""  # all members of a DLedger group
        self._watches: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def reports(self) -> Mapping[str, ServerReport]:
        """Return the report of each broker, by the name of the member."""
        return {name: self._members[name].report for name in self._brokers if name in self._members}

    @property
    def process_ids(self) -> dict[str, int]:
        """LocalMember -> process id, of each one that runs."""
        found = {name: member.process.process_id for name, member in self._members.items()}
        return {name: process_id for name, process_id in found.items() if process_id is not None}

    @property
    def controller_addresses(self) -> tuple[str, ...]:
        """host:port of each controller."""
        return tuple(self._controllers.values())

    async def start(self) -> None:
        """Open the data folder, start every member. When it returns, the group has a master that serves."""
        try:
            self._open_folder()
            self._check_mode()
            if self.config.namesrv_port is not None:
                await self._start_member(NAMESRV_ROOM, "name server", self._namesrv_task)
            if self.group.mode is GroupMode.CONTROLLER:
                await self._start_controllers()
            elif self.group.mode is GroupMode.DLEDGER:
                self._choose_member_ports()
            await self._start_brokers()
        except BaseException as error:
            await self.stop()
            if isinstance(error, BaseExceptionGroup):  # the first one failed; the others were only cancelled
                raise error.exceptions[0] from None
            raise
        self._watches = [asyncio.create_task(self._keep(name, member)) for name, member in self._members.items()]
        warn_if_open(self.config)

    def _check_mode(self) -> None:
        """InvalidParameter: the folders are of a group of another mode, whose logs may differ at their ends."""
        folders = [self._folder_of(name) for name in self._brokers]
        found = {mode for folder in folders if (mode := _mode_of(folder)) is not None} - {self.group.mode}
        if found:
            known, expected = found.pop().value, self.group.mode.value
            raise InvalidParameter(
                f"found brokers of {known} mode in {self.config.data}, expected those of {expected} mode: pass --mode "
                f"{known}, or another --data"
            )
        if self.group.mode is GroupMode.DLEDGER and self.group.size not in GROUP_SIZES:
            raise InvalidParameter(
                f"found a DLedger group of {self.group.size} brokers, expected {' or '.join(map(str, GROUP_SIZES))}: a "
                "majority decides"
            )

    async def _start_member(self, name: str, title: str, task: Callable[[], Task]) -> None:
        self._members[name] = member = LocalMember(WorkerProcess(title), task)
        await member.start()

    async def _start_controllers(self) -> None:
        self._choose_controller_ports()
        async with asyncio.TaskGroup() as starts:
            for self_id in self._controllers:
                name = f"controller-{self_id}"

                def task(self_id: str = self_id, name: str = name) -> Task:
                    return self._controller_task(self_id, name)

                starts.create_task(self._start_member(name, f"controller {self_id}", task))

    async def _start_brokers(self) -> None:
        """Start the brokers: at first those that were in the group before, then the others, in order.

        A controller numbers new brokers as they arrive. In classic mode the first one is master, and starts first. In a
        DLedger group all start together, because a start waits for a leader.
        """
        names = self._brokers
        known = [name for name in names if (self._folder_of(name) / IDENTITY_FILE).exists()]
        if self.group.mode is GroupMode.DLEDGER:
            known = names
        async with asyncio.TaskGroup() as starts:
            for name in known:
                starts.create_task(self._start_broker(names.index(name), name))
        for name in names:
            if name not in known:
                await self._start_broker(names.index(name), name)

    async def _start_broker(self, index: int, name: str) -> None:
        await self._start_member(name, f"broker {name}", lambda: self._broker_task(index, name))

    def _choose_controller_ports(self) -> None:
        """Take the ports, so that a used one is an error now, and 0 becomes a free one. BindError.

        They stay bound here, without listening, so that the system gives them to no other process. The controllers can
        bind them nevertheless.
        """
        first = self.group.controller_port
        for number in range(CONTROLLERS):
            try:
                self._reserved.append(bound_socket(self.config.host, first + number if first else 0))
            except BindError as error:
                raise BindError(f"controller n{number}: {error}; or pass --controller-port") from None
        self._controllers = {
            f"n{number}": join_address(self._advertised, one.getsockname()[1])
            for number, one in enumerate(self._reserved)
        }

    def _choose_member_ports(self) -> None:
        """Take the ports of the DLedger members, as `_choose_controller_ports` does. BindError."""
        peers = []
        for index, name in enumerate(self._brokers):
            port = self._port_of(index)
            try:
                self._reserved.append(bound_socket(self.config.host, port + MEMBER_PORT_STEP if port else 0))
            except BindError as error:
                raise BindError(f"DLedger member of {name}: {error}; or pass --broker-port") from None
            address = join_address(self._advertised, self._reserved[-1].getsockname()[1])
            peers.append(f"n{index}-{address}")
        self._peers = ";".join(peers)

    # What the members run.

    def _namesrv_task(self) -> Task:
        known = self._own_namesrv()
        metrics_port = self.config.metrics_port
        return NamesrvTask(
            port=self.config.namesrv_port or 0 if known is None else int(known.rpartition(":")[2]),
            advertised=self._advertised,
            room=self._folder_of(NAMESRV_ROOM),
            rooms=tuple(self._folder_of(name) for name in self._brokers),
            config=replace(self.config, metrics_port=metrics_port + self.group.size if metrics_port else metrics_port),
            use_uvloop=self._use_uvloop,
        )

    def _controller_task(self, self_id: str, name: str) -> Task:
        peers = ";".join(f"{one}-{address}" for one, address in self._controllers.items())
        return ControllerTask(
            controller=replace(self._controller_settings(), peers=peers, self_id=self_id),
            data=self._folder_of(name),
            rooms=tuple(self._folder_of(name) for name in self._brokers),
            config=self.config,
            use_uvloop=self._use_uvloop,
        )

    def _controller_settings(self) -> ControllerConfig:
        """Return the controllers' settings: they check requests if the brokers do, and can sign."""
        return replace(self.group.controller or ControllerConfig(), acl=controllers_check(self.config))

    def _broker_task(self, index: int, name: str) -> Task:
        known = self._members[name].report.address
        return BrokerTask(
            name=self.config.broker_names[0],
            port=int(known.rpartition(":")[2]) if known else self._port_of(index),
            advertised=self._advertised,
            room=self._folder_of(name),
            namesrvs=self._namesrvs(),
            own_namesrv=self._own_namesrv(),
            config=self._broker_config(index),
            use_uvloop=self._use_uvloop,
        )

    def _broker_config(self, index: int) -> NodeConfig:
        config = with_own_slaves(self.config.of_broker(index), self._advertised)
        if not config.broker_port:  # the ports beside a free one may be used
            config = replace(config, ha_port=0, fast_port=False)
        if self.group.mode is GroupMode.CONTROLLER:
            addresses = ";".join(self.controller_addresses)
            broker = replace(config.broker, controller_mode=True, controller_addresses=addresses)
        elif self.group.mode is GroupMode.DLEDGER:
            broker = replace(config.broker, ledger_mode=True, ledger_peers=self._peers, ledger_self_id=f"n{index}")
        elif index:
            broker = replace(config.broker, broker_role=SLAVE, broker_id=index, slave_read=True)
        else:
            role = config.broker.broker_role or SYNC_MASTER
            broker = replace(config.broker, broker_role=role, broker_id=0, slave_read=True)
        return replace(config, broker=broker)

    # Ends and starts.

    async def _keep(self, name: str, member: LocalMember) -> None:
        """Start a member again each time it ends, until it ends with an error."""
        while True:
            code = await member.process.wait()
            if self._stopping:
                return
            if code > 0:
                self._give_up(name, WorkerEnded(f"{member.process.title} {how_ended(code)}"))
                return
            pause_s = member.next_pause_s(asyncio.get_running_loop().time())
            log.warning(
                "member.ended",
                member=name,
                found=how_ended(code),
                remedy=f"none needed: it is started again after {pause_s:g} s",
            )
            await asyncio.sleep(pause_s)
            try:
                await member.start()
            except WorkerEnded as error:
                if (member.process.code or 0) > 0:
                    self._give_up(name, error)
                    return
            else:
                log.info("member.started", member=name, process_id=member.process.process_id)

    def _give_up(self, name: str, error: WorkerEnded) -> None:
        """Leave a member stopped; stop the node if it was the last broker."""
        self.failure = error
        log.error(
            "member.failed",
            member=name,
            found=str(error),
            remedy="read its log, repair the cause, then restart the node; the other members continue",
        )
        if not self.process_ids.keys() & set(self._brokers):
            self.failed.set()

    async def stop(self) -> None:
        """Stop the controllers, so that nothing is elected, then the brokers and the name server; unlock the folder."""
        self._stopping = True
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        brokers = set(self._brokers)
        others = self._members.keys() - brokers
        for names in (others - {NAMESRV_ROOM}, brokers & self._members.keys(), others & {NAMESRV_ROOM}):
            await asyncio.gather(*(self._end(name, self._members[name]) for name in sorted(names)))
        for one in self._reserved:
            one.close()
        await self._close()

    async def _end(self, name: str, member: LocalMember) -> None:
        code = await member.process.stop()
        if code > 0 and self.failure is None and member.report.address:
            self.failure = WorkerEnded(f"{member.process.title} {how_ended(code)}")

    def _signing_keys(self) -> SigningKeys:
        return SavedKeys(self.config, [self._folder_of(name) for name in self._brokers])

    def _folder_of(self, name: str) -> Path:
        room = self._room(name)
        assert room is not None, "the constructor refuses a group in memory"
        return room

    def _own_namesrv(self) -> str | None:
        member = self._members.get(NAMESRV_ROOM)
        return None if member is None else member.report.address or None
