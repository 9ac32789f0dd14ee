"""Machines of a replicated group: controllers, and brokers as mqtrail.node runs them, on virtual disks and sockets.

Real are the cores, the store, both ends of the HA protocol, and of the node ControlledBroker, Controllers,
InSyncKeeper, what a BrokerNode does to the files of a group, and the Flusher's decisions. Simulated are sockets, disks
and time.
"""

import asyncio
import json
import traceback
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from mqtrail.broker import HaError, TailDiffers
from mqtrail.controller import Controller, ControllerConfig, ReplicaGroups
from mqtrail.controller.broker_groups import Decision, ReplicaGroup
from mqtrail.node.broker_node import BrokerNode
from mqtrail.node.config import NodeConfig
from mqtrail.node.controlled_broker import ControlledBroker
from mqtrail.node.flusher import Flusher
from mqtrail.node.late import late_replies, refused_replies
from mqtrail.store import CommitLogConfig, StoreError
from mqtrail.wire import (
    MQError,
    Peer,
    PeerId,
    RemotingCommand,
    ResponseCode,
    Send,
    encode_command,
)
from tests.store.hard_disk import HardDisk, PowerCut

from .member_network import Answer, ByteStream, MemberPool
from .servers import first_command

if TYPE_CHECKING:
    from .member_group import MemberGroup

NAME, TOPIC = "broker-a", "T"
PORT, HA_PORT = 10911, 10912
CHECK_MS, RETRY_MS, SYNC_MS = 100.0, 300.0, 3.0
STORE = CommitLogConfig(
    segment_size=64 * 1024, queue_entries=100, index=False, message_size_max=16 * 1024, timer_log_file_size=52 * 64 + 16
)
MACHINE: ContextVar["BrokerMachine"] = ContextVar("MACHINE")


class MemberDisk(HardDisk):
    """A disk that reports the power cut which it draws, so that the machine ends there."""

    def __init__(self, group: "MemberGroup", on_cut: Callable[[], None]) -> None:
        super().__init__(group.engine.chance)
        self._on_cut = on_cut

    def _power_cut(self) -> bool:
        cut = super()._power_cut()
        if cut:
            self._on_cut()
        return cut


class MemberMachine:
    """A machine whose process may end in any call. process: number of the present one; None: none runs."""

    def __init__(self, group: "MemberGroup", name: str) -> None:
        self.group, self.engine, self.name = group, group.engine, name
        self.disk: HardDisk = MemberDisk(group, lambda: self.crash(power=True))
        self.process: int | None = None
        self.skew_ms = self.engine.chance.choice((-2_000, 0, 0, 2_000))

    def clock_ms(self) -> int:
        return self.engine.start_ms + int(self.engine.now_ms) + self.skew_ms

    def start(self) -> None:
        """Start a process, if none runs."""
        if self.process is None:
            self.process = self.group.next_process()
            self.engine.log(f"{self.name} starts as process {self.process}")
            self.guard(self.process, self.begin)

    def begin(self) -> None:
        """Do what a start does."""

    def end(self) -> None:
        """Forget what the process had; its peers see closed connections."""

    def crash(self, *, power: bool, restart_ms: float | None = None) -> None:
        """End the process at once, and start it again later. restart_ms: negative: never."""
        if self.process is None:
            return
        self.engine.log(f"{self.name} ends {power=}")
        ended, self.process = self.process, None
        self.end()
        self.engine.after(0, lambda: self.disk.stop(power=power))
        self.group.process_ended(self, ended)
        wait_ms = self.engine.between(*self.group.restarts_ms) if restart_ms is None else restart_ms
        if wait_ms >= 0:
            self.engine.after(wait_ms + 1, self.start)

    def guard(self, process: int | None, act: Callable[[], None]) -> None:
        """Call act in this process, if it still runs. The power may go in it; its disk may fail."""
        if process is None or self.process != process:
            return
        try:
            act()
        except PowerCut:
            self.crash(power=True)

    def every(self, interval_ms: float, act: Callable[[], None]) -> None:
        """Call act at an interval while this process runs."""
        process = self.process

        def run() -> None:
            self.guard(process, act)
            if self.process == process:
                self.engine.after(interval_ms, run)

        self.engine.after(interval_ms, run)


class WatchedGroups(ReplicaGroups):
    """Reports each decision with the state before it."""

    def __init__(self, watch: Callable[[dict[str, Any], ReplicaGroup | None, ReplicaGroup | None], None]) -> None:
        super().__init__()
        self._watch = watch

    def apply(self, data: bytes) -> Decision:
        before = ReplicaGroups()
        before.restore(self.snapshot())
        decision = super().apply(data)
        self._watch(_command(data), before.groups.get(NAME), self.groups.get(NAME))
        return decision


def _command(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found


class ControllerMachine(MemberMachine):
    """A controller."""

    def __init__(self, group: "MemberGroup", name: str) -> None:
        super().__init__(group, name)
        self.address = f"{name}:9878"
        self.core: Controller | None = None
        self._waiting: dict[tuple[PeerId, int], Answer] = {}
        self._timer = 0

    def begin(self) -> None:
        config = ControllerConfig(
            peers=self.group.peers,
            self_id=self.name,
            scan_ms=300,
            broker_expire_ms=1_500,
            heartbeat_ms=100,
            election_ms=500,
        )
        core = Controller(config, self.disk, self.engine.chance.random, self.clock_ms())
        core.groups = self.group.groups_class(partial(self.group.decided, self.name))
        self.core = core
        self.group.network.servers[self.address] = self.name, self.serve
        self._act(lambda core: [])

    def end(self) -> None:
        self.core = None
        self._waiting = {}
        self.group.network.servers.pop(self.address, None)

    def serve(self, source: str, command: RemotingCommand, answer: Answer) -> None:
        """Serve a request of another machine's process."""
        peer = self.group.peer_of(source)
        self._waiting[peer.id, command.opaque] = answer
        self.guard(self.process, lambda: self._act(lambda core: core.handle(peer, command, self.clock_ms())))

    def closed(self, machine: str, peer_id: PeerId) -> None:
        """The connection of a process that ended is closed."""
        self.guard(self.process, lambda: self._act(lambda core: core.disconnected(peer_id)))
        if machine in self.group.controllers:
            address = self.group.controllers[machine].address
            self.guard(self.process, lambda: self._act(lambda core: core.lost(address)))

    def _act(self, step: Callable[[Controller], list[Send]]) -> None:
        core = self.core
        if core is None:
            return
        for send in step(core):
            answer = self._waiting.pop((send.peer, send.command.opaque), None)
            if answer is not None:
                answer(send.command)
        if core.failure is not None:
            if isinstance(core.failure, PowerCut):
                raise core.failure
            self.crash(power=False)
            return
        for call in core.take_calls():
            self.group.network.ask(self.name, call.address, call.command, lambda reply: None, lambda: None)
        self._timer += 1
        number, process = self._timer, self.process
        delay_ms = min(max(1, core.next_tick_ms() - self.clock_ms()), 1_000)

        def tick() -> None:
            if number == self._timer:
                self.guard(process, lambda: self._act(lambda core: core.tick(self.clock_ms())))

        self.engine.after(delay_ms, tick)


class MemberFlusher(Flusher):
    """A flusher whose syncs take virtual time, in the machine's process."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self._machine = MACHINE.get()
        super().__init__(*args, **named)

    def ask(self) -> None:
        if not self._running and not self._failed:
            job = self._store.begin_flush()
            self._running = True
            machine = self._machine
            process = machine.process
            machine.engine.after(SYNC_MS, lambda: machine.guard(process, lambda: self._sync(job)))

    def _sync(self, job: Callable[[], object]) -> None:
        try:
            job()
        except (OSError, StoreError) as error:
            self._fail(error)
        else:
            self._flushed()

    def run(self, job: Callable[[], object]) -> None:
        job()

    async def stop(self, stuck_s: float | None = None) -> None:
        self._waiting.clear()
        self._overdue.clear()


class MemberNode(BrokerNode):
    """A BrokerNode without sockets and threads: of its parts the core, the store, the flusher and the HA connection."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.machine = MACHINE.get()
        self._process = self.machine.process
        self._links: list[HaLink] = []  # to slaves; of a slave: to its master
        self._following = ""
        self.is_serving = False

    @property
    def port(self) -> int:
        return PORT

    @property
    def ha_port(self) -> int:
        return HA_PORT

    def bind(self, host: str, port: int, advertised: str) -> None:
        self._advertised = self.machine.host
        self._open()

    async def start(self, namesrvs: Any, own_namesrv: str | None = None) -> None:
        core, store, machine = self.core, self.store, self.machine
        assert core is not None
        assert store is not None
        self._flusher = self._make_flusher(core, store)
        core.topics.create_own(TOPIC, 1, 6, machine.clock_ms())
        core.take_changed_topics()
        self.is_serving = True
        machine.node = self
        machine.group.serves(machine, self, self._part.term)
        machine.every(CHECK_MS, self._check)

    async def stop(self, *, leaves: bool = True) -> None:
        self.is_serving = False
        for link in list(self._links):
            link.close("the broker stopped")
        if self.machine.process != self._process or self.core is None or self.store is None:
            return  # the process has ended
        if self._flusher is not None:
            await self._flusher.stop()
        self.core.stop(self.machine.clock_ms())
        self.store.close(finishes_index=leaves)
        self.core = self.store = None

    def _check(self) -> None:
        """Heartbeats, silence, and the flush of ASYNC_FLUSH."""
        if not self.is_serving:
            return
        assert self._flusher is not None
        self._flusher.ask()
        for link in list(self._links):
            link.check()

    def follow(self, master: str, ha_address: str) -> None:
        self._following = ha_address
        for link in list(self._links):
            link.close("another master")
        self._connect(ha_address)

    def _connect(self, address: str) -> None:
        if not self.is_serving or self._following != address:
            return
        machine = self.machine
        target = machine.group.machine_at(address)

        def arrive() -> None:
            node = target.node
            if target.process is not None and node is not None and node.is_serving and not node.is_slave:
                target.guard(target.process, lambda: HaLink(self, node).open())

        machine.group.network.carry(machine.name, target.name, arrive)
        process = machine.process

        def again() -> None:
            if not self._links and machine.process == process:
                self._connect(address)

        machine.engine.after(RETRY_MS, again)

    def ended(self, link: "HaLink", *, again: bool) -> None:
        """A connection is closed; a slave connects again."""
        if link in self._links:
            self._links.remove(link)
        if again and self.is_slave and self.is_serving:
            address, process = self._following, self.machine.process

            def connect() -> None:
                if self.machine.process == process and not self._links:
                    self._connect(address)

            self.machine.engine.after(RETRY_MS, connect)

    def joined(self, link: "HaLink") -> None:
        self._links.append(link)

    @property
    def is_slave(self) -> bool:
        return self.core is not None and self.core.config.is_slave

    def appended(self) -> None:
        """Messages may have been stored: slaves get them."""
        for link in list(self._links):
            link.push()

    def serve(self, peer: Peer, command: RemotingCommand, answer: Answer) -> None:
        """Serve a request; the reply leaves when its log position is confirmed, as in mqtrail.node."""
        core, flusher = self.core, self._flusher
        assert core is not None
        assert flusher is not None
        for send in core.handle(peer, command, self.machine.clock_ms()):
            if send.peer != peer.id or not send.command.is_response:
                continue
            data = encode_command(send.command)
            if send.after_offset:
                refuse = partial(self._write, answer, refused_replies(data))
                late = partial(self._write_late, answer, data)
                flusher.after(send.after_offset, partial(self._write, answer, data), late, refuse, len(data))
            else:
                self._write(answer, data)
        self.appended()

    def _write_late(self, answer: Answer, data: bytes, code: ResponseCode) -> Callable[[], None] | None:
        at_once, waiting = late_replies(data, code)
        self._write(answer, at_once)
        return partial(self._write, answer, waiting) if waiting else None

    def _write(self, answer: Answer, data: bytes) -> None:
        if data and self.machine.process == self._process:
            answer(first_command(data))


class HaLink:
    """A connection of the HA protocol, with the real ends of it."""

    def __init__(self, slave: MemberNode, master: MemberNode) -> None:
        self.slave, self.master = slave, master
        self._processes = slave.machine.process, master.machine.process
        group = slave.machine.group
        names = slave.machine.name, master.machine.name
        self._up = ByteStream(group.engine, group.network, names, lambda data: self._in_master(data))
        self._down = ByteStream(group.engine, group.network, names[::-1], lambda data: self._in_slave(data))
        self._sender: Any = None
        self._follower: Any = None
        self._address = f"{slave.machine.host}:{group.next_process()}"
        self.is_open = False

    def open(self) -> None:
        """The slave's connection is accepted."""
        slave, master = self.slave, self.master
        if not slave.is_serving or slave.machine.process != self._processes[0] or slave._links:
            return
        assert master.core is not None
        assert master.store is not None
        assert slave.core is not None
        assert slave.store is not None
        self._sender = master.core.replicas.sender(master.store, master.machine.clock_ms())
        master.core.replicas.add(self._address, self._sender)
        self._follower = slave._follower(slave.core.config, slave.store, slave.machine.clock_ms())
        self.is_open = True
        slave.joined(self)
        master.joined(self)
        self._up.send(self._follower.hello())

    def _runs(self, node: MemberNode, process: int | None) -> bool:
        return self.is_open and node.is_serving and process is not None and node.machine.process == process

    def _in_master(self, data: bytes) -> None:
        if self._runs(self.master, self._processes[1]):
            self.master.machine.guard(self._processes[1], lambda: self._received(data))

    def _received(self, data: bytes) -> None:
        try:
            self._sender.receive(data, self.master.machine.clock_ms())
        except HaError as error:
            self.close(str(error))
            return
        self.master.slaves_moved()
        self.push()

    def push(self) -> None:
        """Send what is new to the slave."""
        if self.slave is self.master or not self._runs(self.master, self._processes[1]):
            return
        for _ in range(16):
            try:
                frame = self._sender.next_bytes(self.master.machine.clock_ms())
            except (StoreError, OSError) as error:
                self.close(str(error))
                return
            if frame is None:
                return
            self._down.send(frame)

    def _in_slave(self, data: bytes) -> None:
        if self._runs(self.slave, self._processes[0]):
            self.slave.machine.guard(self._processes[0], lambda: self._copy(data))

    def _copy(self, data: bytes) -> None:
        node, follower = self.slave, self._follower
        assert node.core is not None
        assert node._flusher is not None
        now_ms = node.machine.clock_ms()
        try:
            follower.receive(data, now_ms)
        except TailDiffers as error:
            self.close(str(error), again=False)
            node._part.differs(error.common_end)
            return
        except (HaError, StoreError, OSError) as error:
            self.close(str(error))
            return
        following = node.core.replicas.following
        node.core.copied(now_ms)
        if follower.confirm_offset > following.confirm_offset:
            following.confirm_offset = follower.confirm_offset
            node._flusher.replicated()
        self._report()

    def _report(self) -> None:
        node = self.slave
        if not self._runs(node, self._processes[0]) or node.core is None or node.store is None:
            return
        if node.core.config.sync_flush and self._follower.position < node.store.end_offset:
            assert node._flusher is not None
            node._flusher.when_flushed(node.store.end_offset, self._report)
        report = self._follower.report(node.machine.clock_ms())
        if report is not None:
            self._up.send(report)

    def check(self) -> None:
        """Heartbeats and silence, at both ends."""
        try:
            if self._runs(self.master, self._processes[1]):
                self._sender.check(self.master.machine.clock_ms())
                self.push()
                self.master.slaves_moved()
            if self._runs(self.slave, self._processes[0]):
                self._follower.check(self.slave.machine.clock_ms())
                self._report()
        except HaError as error:
            self.close(str(error))

    def close(self, why: str, *, again: bool = True) -> None:
        """Close both ends; a cut link would delay one of them, which its silence ends too."""
        if not self.is_open:
            return
        self.is_open = False
        self._up.closed = self._down.closed = True
        self.slave.machine.engine.log(f"{self.slave.machine.name} follows no more: {why[:90]}")
        core = self.master.core
        if core is not None and self.master.machine.process == self._processes[1]:
            core.replicas.remove(self._address)
            self.master.ended(self, again=False)
            if self.master.is_serving:
                self.master.slaves_moved()
        self.slave.ended(self, again=again)


class BrokerMachine(MemberMachine):
    """A broker of the group. node: what serves; None: nothing yet."""

    def __init__(self, group: "MemberGroup", name: str) -> None:
        super().__init__(group, name)
        self.host = f"10.0.0.{name[1:]}"
        self.address = f"{self.host}:{PORT}"
        self.node: MemberNode | None = None
        self.broker: ControlledBroker | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    def begin(self) -> None:
        MACHINE.set(self)
        config = NodeConfig(broker=self.group.broker_config(), store=STORE)
        self.broker = broker = ControlledBroker(NAME, Path("/nowhere/mqtrail"), config, self._failed)
        broker.bind(self.host, PORT, self.host)
        self._tasks = [self.engine.loop.create_task(self._run(broker))]
        self.group.network.servers[self.address] = self.name, self.serve

    async def _run(self, broker: ControlledBroker) -> None:
        process = self.process
        try:
            await broker.start([])
        except PowerCut:
            return  # the disk has ended the process
        except (MQError, OSError) as error:
            if self.process == process:
                self.group.start_failed(self, error)
                self.crash(power=False)

    def _failed(self, error: BaseException) -> None:
        self.crash(power=False)

    def end(self) -> None:
        self.group.network.servers.pop(self.address, None)
        assert self.broker is not None
        for task in (*self._tasks, *self.broker._tasks):
            task.cancel()
        node, self.node, self.broker = self.node, None, None
        if node is not None:
            node.is_serving = False
            for link in list(node._links):
                self._hang_up(link)
            if node.store is not None:
                node.store.abandon()

    def _hang_up(self, link: HaLink) -> None:
        """The other end sees the closed connection, unless the link is cut: then its silence ends it."""
        other = link.master if link.slave.machine is self else link.slave
        self.group.network.carry(self.name, other.machine.name, lambda: link.close("the process ended"))

    def serve(self, source: str, command: RemotingCommand, answer: Answer) -> None:
        node = self.node
        if node is not None and node.is_serving and node.core is not None:
            peer = self.group.peer_of(source)
            self.guard(self.process, lambda: node.serve(peer, command, answer))


@contextmanager
def simulated() -> Any:
    """Give mqtrail.node virtual disks, connections and clocks."""

    def disk(folder: Path, **_: Any) -> HardDisk:
        return MACHINE.get().disk

    with ExitStack() as stack:
        for target, value in (
            *((f"{module}.log", MemberLog()) for module in ("controlled_broker", "broker_node", "in_sync_keeper")),
            ("controlled_broker.RealDisk", disk),
            ("controlled_broker.BrokerNode", MemberNode),
            (
                "controlled_broker.ConnectionPool",
                lambda **_: MemberPool(MACHINE.get().group.network, MACHINE.get().name),
            ),
            ("group_broker.bound_socket", lambda host, port: VirtualSocket()),
            ("controlled_broker.wall_clock_ms", lambda: MACHINE.get().clock_ms()),
            ("broker_node.RealDisk", disk),
            ("broker_node.Flusher", MemberFlusher),
            ("broker_node.SteadyClock", lambda name, on_jump: MACHINE.get().clock_ms),
            ("flusher.threading.Thread", VirtualThread),
        ):
            stack.enter_context(patch(f"mqtrail.node.{target}", value))
        yield


class MemberLog:
    """The logs of mqtrail.node: an exception that is logged is a problem of the life; the rest is left out."""

    @property
    def sparse(self) -> "MemberLog":
        return self

    def info(self, event: str, **_: Any) -> None:
        """It is no problem."""

    warning = error = info

    def exception(self, event: str, **_: Any) -> None:
        MACHINE.get().group.problem(f"{event}: {traceback.format_exc(limit=-2)}")


class VirtualSocket:
    """A port that is always free."""

    def getsockname(self) -> tuple[str, int]:
        return "", PORT

    def close(self) -> None:
        """Nothing is open."""


class VirtualThread:
    """A thread that does nothing: MemberFlusher syncs."""

    def __init__(self, **_: Any) -> None:
        """See threading.Thread."""

    def start(self) -> None:
        """It has nothing to do."""
