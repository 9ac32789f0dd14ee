"""One seeded life of a replicated group: three brokers under controllers, with faults; then calm.

Faults: kills and power cuts inside any call of the disk, torn sectors, disks that are replaced by empty ones,
partitions (symmetric, one-way), slow links, and operators that have another master elected. Clients send to any broker
and read from any broker.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mqtrail.broker import BrokerConfig, MasterTerm
from mqtrail.controller.broker_groups import ReplicaGroup
from mqtrail.wire import (
    ElectMasterHeader,
    Host,
    Peer,
    PeerId,
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageHeader,
    decode_records,
)

from .member_network import MemberNetwork
from .members import (
    NAME,
    TOPIC,
    BrokerMachine,
    ControllerMachine,
    MemberDisk,
    MemberMachine,
    MemberNode,
    WatchedGroups,
    simulated,
)
from .virtual_loop import LoopEngine

FAULTS_MS, CALM_MS = 14_000.0, 12_000.0
SEND_MS, READ_MS = 25.0, 40.0
FAULTS = (
    *("kill", "kill", "master", "master", "controller"),
    *("symmetric", "master-apart", "master-apart", "one-way", "slow", "heal", "heal", "transfer", "empty"),
)


@dataclass(slots=True)
class MemberHistory:
    """What clients and the checker saw. final: bodies of the last master's queue, by offset."""

    problems: list[str] = field(default_factory=list)
    masters: dict[int, str] = field(default_factory=dict)  # epoch -> who served as its master
    decided: dict[int, int | None] = field(default_factory=dict)  # epoch -> the master that controllers decided
    sets: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)  # epoch, number -> SyncStateSet
    acknowledged: dict[bytes, int] = field(default_factory=dict)  # body -> queue offset
    reads: dict[int, bytes] = field(default_factory=dict)  # queue offset -> body
    final: dict[int, bytes] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # of faults and of what happened


class MemberGroup:
    """The machines, their network, their clients and what happens to them."""

    restarts_ms = (50.0, 3_050.0)  # after a crash

    def __init__(self, seed: int, *, keeps_log: bool = False) -> None:
        self.engine = LoopEngine(seed, keeps_log=keeps_log)
        self.broker_events = seed % 2 == 1  # both: the event that a new master writes makes some faults rarer
        chance = self.engine.chance
        self.history = MemberHistory()
        self.network = MemberNetwork(self.engine, chance.choice((2.0, 30.0)))
        self.sync_flush = chance.random() < 0.5
        self.groups_class: Callable[..., WatchedGroups] = WatchedGroups
        self._processes = 0
        self._sent = 0
        self._emptying: str | None = None
        names = tuple(f"n{number}" for number in range(chance.choice((1, 3, 3))))
        self.peers = ";".join(f"{name}-{name}:9878" for name in names)
        self.controllers = {name: ControllerMachine(self, name) for name in names}
        self.brokers = {name: BrokerMachine(self, name) for name in ("b1", "b2", "b3")}
        self.machines: dict[str, MemberMachine] = {**self.controllers, **self.brokers}
        rate = chance.choice((0.0, 0.0005, 0.002)) if self.sync_flush else 0.0
        for machine in self.brokers.values():
            machine.disk.rates.power_cut = rate
        for controller in self.controllers.values():
            controller.disk.rates.power_cut = chance.choice((0.0, 0.001))

    def broker_config(self) -> BrokerConfig:
        """Without SYNC_FLUSH only processes are killed: a power cut would lose what was acknowledged."""
        return BrokerConfig(
            controller_mode=True,
            controller_addresses=";".join(one.address for one in self.controllers.values()),
            all_in_sync=True,
            slave_read=True,
            sync_flush=self.sync_flush,
            controller_heartbeat_ms=300,
            controller_silence_ms=1_500,
            controller_poll_ms=500,
            ha_late_max_ms=1_500,
            ha_heartbeat_ms=400,
            ha_silence_ms=2_500,
            broker_events=self.broker_events,
            slave_timeout_ms=1_000,
        )

    def live(self) -> MemberHistory:
        """Live the faults and the calm; return what happened."""
        engine = self.engine
        engine.loop.set_exception_handler(self._failed)
        with simulated():
            for machine in self.machines.values():
                engine.after(engine.between(0, 300), machine.start)
            engine.after(800, self._send)
            engine.after(900, self._read)
            engine.after(engine.between(1_500, 3_000), self._cause_fault)
            engine.run_until(FAULTS_MS)
            self._calm()
            engine.run_until(FAULTS_MS + CALM_MS)
            self._look()
            engine.close()
        return self.history

    def _failed(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self.history.problems.append(f"a task failed: {type(error).__name__}: {error}")

    # What machines ask.

    def next_process(self) -> int:
        self._processes += 1
        return self._processes

    def peer_of(self, machine: str) -> Peer:
        """The connection of a machine's present process, at every server."""
        found = self.machines.get(machine)
        number = 0 if found is None or found.process is None else found.process
        return Peer(PeerId(number), Host("10.0.0.1", 1_000 + number))

    def machine_at(self, address: str) -> BrokerMachine:
        return next(one for one in self.brokers.values() if one.address.startswith(address.partition(":")[0]))

    def start_failed(self, machine: MemberMachine, error: Exception) -> None:
        """A broker refused to start."""
        self.problem(f"{machine.name} did not start: {error}")

    def process_ended(self, machine: MemberMachine, process: int) -> None:
        """The others see its connections close, unless their links are cut."""
        for other in self.controllers.values():
            if other is not machine:
                closed = partial(other.closed, machine.name, PeerId(process))
                self.network.carry(machine.name, other.name, closed)

    # The checker.

    def problem(self, text: str) -> None:
        self.engine.log(f"PROBLEM {text}")
        self.history.problems.append(text)

    def count(self, name: str) -> None:
        self.history.counts[name] = self.history.counts.get(name, 0) + 1

    def serves(self, machine: BrokerMachine, node: MemberNode, term: MasterTerm | None) -> None:
        """A broker serves in a role."""
        self.engine.log(f"{machine.name} serves as {'slave' if term is None else f'master of epoch {term.epoch}'}")
        if term is None:
            return
        self.count("masters")
        known = self.history.masters.setdefault(term.epoch, machine.name)
        if known != machine.name:
            self.problem(f"two masters in epoch {term.epoch}: {known} and {machine.name}")

    def decided(
        self, name: str, command: dict[str, Any], before: ReplicaGroup | None, after: ReplicaGroup | None
    ) -> None:
        """A controller applied a decision. Each must be fenced, and all controllers must decide the same."""
        if after is None:
            return
        epoch, known = after.master_epoch, self.history.decided
        if known.setdefault(epoch, after.master) != after.master:
            self.problem(f"epoch {epoch} has two masters at controllers: {known[epoch]} and {after.master}")
        in_sync = tuple(after.in_sync)
        if self.history.sets.setdefault((epoch, after.in_sync_epoch), in_sync) != in_sync:
            self.problem(f"set {after.in_sync_epoch} of epoch {epoch} differs at {name}")
        if before is None:
            return
        if before.master != after.master and after.master_epoch <= before.master_epoch:
            self.problem(f"an unfenced decision: another master in epoch {epoch}")
        if command["do"] == "alter" and after.in_sync != before.in_sync:
            asked = command["master"], command["master_epoch"], command["in_sync_epoch"]
            if asked != (before.master, before.master_epoch, before.in_sync_epoch):
                self.problem(f"an unfenced decision: {asked} changed the set of epoch {before.master_epoch}")
        is_elected = after.master not in (None, before.master) and before.master_epoch
        if is_elected and after.master not in before.in_sync:
            self.problem(f"an unclean election: {after.master} of {before.in_sync}")

    # Clients.

    def _send(self) -> None:
        engine = self.engine
        if engine.now_ms < FAULTS_MS + CALM_MS - 2_000:
            self._sent += 1
            body = b"m%d" % self._sent
            header = SendMessageHeader("pg", TOPIC, queue_id=0, born_timestamp=1, properties="WAIT\x01true\x02")
            machine = engine.chance.choice([*self.brokers.values()])
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body)
            self.network.ask("client", machine.address, command, lambda reply: self._acked(body, reply), lambda: None)
        engine.after(engine.between(1, 2 * SEND_MS), self._send)

    def _acked(self, body: bytes, reply: RemotingCommand) -> None:
        if reply.code == ResponseCode.SUCCESS:
            self.history.acknowledged[body] = int(reply.ext["queueOffset"])

    def _read(self) -> None:
        engine = self.engine
        machine = engine.chance.choice([*self.brokers.values()])
        highest = max(self.history.reads, default=0)
        first = max(0, highest - engine.chance.choice((0, 1, 5, 40)))
        header = PullHeader("reader", TOPIC, 0, first, 32, PullSysFlag.SUBSCRIPTION, 0, 0, "*")
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
        self.network.ask("client", machine.address, command, self._pulled, lambda: None)
        engine.after(engine.between(1, 2 * READ_MS), self._read)

    def _pulled(self, reply: RemotingCommand) -> None:
        for message in decode_records(reply.body) if reply.code == ResponseCode.SUCCESS else ():
            known = self.history.reads.setdefault(message.queue_offset, message.body)
            if known != message.body:
                self.problem(
                    f"a read was rolled back: offset {message.queue_offset} was {known!r}, is {message.body!r}"
                )

    # Faults.

    def _master(self) -> BrokerMachine | None:
        """The broker that serves as master of the highest epoch."""
        found = [one for one in self.brokers.values() if one.node is not None and one.node.is_serving]
        masters = [one for one in found if one.node is not None and one.node._part.term is not None]
        return max(masters, key=lambda one: self._epoch_of(one), default=None)

    def _epoch_of(self, machine: BrokerMachine) -> int:
        term = None if machine.node is None else machine.node._part.term
        return 0 if term is None else term.epoch

    def _cause_fault(self) -> None:
        engine = self.engine
        if engine.now_ms > FAULTS_MS:
            return
        chance = engine.chance
        names = [*self.machines, "client"]
        master = self._master()
        kind = chance.choice(FAULTS)
        self.count(kind)
        engine.log(f"fault: {kind}")
        match kind:
            case "kill":
                self._kill(chance.choice([*self.brokers.values()]))
            case "master" if master is not None:
                self._kill(master)
            case "controller":
                chance.choice([*self.controllers.values()]).crash(power=chance.random() < 0.5)
            case "symmetric":
                self._part(set(chance.sample(names, chance.randrange(1, len(names)))))
            case "master-apart" if master is not None:
                self._part({master.name, "client"} if chance.random() < 0.5 else {master.name})
            case "one-way":
                name = chance.choice([*self.machines])
                self.network.cut = {(name, other) for other in names if other != name}
                if chance.random() < 0.5:
                    self.network.cut = {(target, source) for source, target in self.network.cut}
            case "slow":
                name = chance.choice([*self.machines])
                self.network.slow = {(name, other): engine.between(20, 600) for other in names}
            case "heal":
                self.network.cut, self.network.slow = set(), {}
            case "transfer":
                self._transfer()
            case "empty":
                self._stop_to_empty(chance.choice([*self.brokers.values()]))
        engine.after(engine.between(200, 2_500), self._cause_fault)

    def _kill(self, machine: BrokerMachine) -> None:
        machine.crash(power=self.sync_flush and self.engine.chance.random() < 0.6)

    def _part(self, apart: set[str]) -> None:
        names = [*self.machines, "client"]
        self.network.cut = {(a, b) for a in names for b in names if (a in apart) != (b in apart)}

    def _transfer(self) -> None:
        """An operator has one broker elected, at each controller."""
        wanted = self.engine.chance.randrange(1, 4)
        header = ElectMasterHeader(self.broker_config().cluster_name, NAME, wanted, True)
        for one in self.controllers.values():
            command = RemotingCommand(RequestCode.CONTROLLER_ELECT_MASTER, header.to_ext())
            self.network.ask("client", one.address, command, lambda reply: None, lambda: None)

    def _stop_to_empty(self, machine: BrokerMachine) -> None:
        """Stop a broker for good; give it an empty disk once all controllers know that it is not in sync."""
        if self._emptying is not None or machine.process is None:
            return
        broker_id = None if machine.broker is None else machine.broker.broker_id
        self._emptying = machine.name
        machine.crash(power=False, restart_ms=-1)

        def replace() -> None:
            states = [
                None if one.core is None else one.core.groups.groups.get(NAME) for one in self.controllers.values()
            ]
            known = {None if one is None else one.in_sync_epoch for one in states}
            is_out = all(one is not None and broker_id not in one.in_sync for one in states)
            if broker_id and is_out and len(known) == 1 and not self.network.cut:
                self.count("emptied")
                self.engine.log(f"{machine.name} gets an empty disk")
                rates = machine.disk.rates
                machine.disk = MemberDisk(self, lambda: machine.crash(power=True))
                machine.disk.rates = rates
            self._emptying = None
            machine.start()

        self.engine.after(3_000, replace)

    def _calm(self) -> None:
        self.engine.log("calm")
        self.network.cut, self.network.slow = set(), {}
        for machine in self.machines.values():
            machine.disk.rates.power_cut = 0.0

    def _look(self) -> None:
        """Read the master's whole queue, and compare the logs."""
        master = self._master()
        if master is None or master.node is None or master.node.store is None or master.node.core is None:
            self.problem("no master: the group did not recover in the calm")
            return
        node, core, store = master.node, master.node.core, master.node.store
        in_sync = core.replicas.in_sync
        alive = {one.broker.broker_id for one in self.brokers.values() if one.broker is not None}
        if in_sync is None or not alive <= in_sync.ids:
            found = None if in_sync is None else sorted(in_sync.ids)
            self.problem(f"not all are in sync after the calm: {found} of {sorted(alive)}")
        while True:
            header = PullHeader("reader", TOPIC, 0, len(self.history.final), 32, PullSysFlag.SUBSCRIPTION, 0, 0, "*")
            command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
            sends = core.handle(self.peer_of("client"), command, node.machine.clock_ms())
            if not sends or sends[0].command.code != ResponseCode.SUCCESS:
                break
            for message in decode_records(sends[0].command.body):
                self.history.final[message.queue_offset] = message.body
        confirmed = core.replicas.confirm_offset
        whole = _log_of(store, confirmed)
        for one in self.brokers.values():
            if one.node is None or one.node.store is None:
                self.problem(f"{one.name} does not serve after the calm")
            elif _log_of(one.node.store, confirmed) != whole:
                self.problem(f"logs differ up to the confirm offset {confirmed}: {one.name} and {master.name}")


def _log_of(store: Any, end: int) -> bytes:
    data = b""
    while len(data) < min(end, store.end_offset):
        data += store.log_bytes(len(data), end - len(data))
    return data


def check_members(history: MemberHistory) -> list[str]:
    """Return the promises that a life broke."""
    problems = list(dict.fromkeys(history.problems))
    lost = [body for body, offset in history.acknowledged.items() if history.final.get(offset) != body]
    if lost:
        problems.append(f"acknowledged messages are lost: {lost[:5]}, {len(lost)} in all")
    gone = [offset for offset, body in history.reads.items() if history.final.get(offset) != body]
    if gone:
        problems.append(f"a read was rolled back: offsets {gone[:5]} are no longer what was read")
    if not history.acknowledged or not history.reads:
        problems.append("nothing was acknowledged, or nothing was read")
    return problems
