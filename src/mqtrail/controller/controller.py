"""The controller: serves brokers and operators, elects masters, and agrees with the other controllers. Pure.

A request that changes something becomes an entry of the log; its reply leaves when the entry is applied. A request that
reads waits until the leader is sure that it still leads. A controller that does not lead answers 2007, and its client
asks another one. Commands to other addresses (messages of consensus, 1008) are Calls, which the node takes.

Source: ControllerManager, ControllerRequestProcessor, DLedgerController, apache/rocketmq 5.3.3 controller/.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from mqtrail.raft import (
    Journal,
    LogEntry,
    MessageKind,
    NotLeader,
    Raft,
    RaftBusy,
    RaftDisk,
    RaftError,
    RaftMessage,
    decode_message,
    encode_message,
)
from mqtrail.wire import (
    Accounts,
    BrokerHeartbeatHeader,
    ControllerMetadataReply,
    InvalidParameter,
    Level,
    MQError,
    NoPermission,
    Peer,
    PeerId,
    RegisterAtControllerHeader,
    RemotingCommand,
    RemotingError,
    RequestCode,
    RequestCodeNotSupported,
    ResponseCode,
    RoleChangedHeader,
    Send,
    SystemBusy,
    WorkParts,
    answer,
    answer_error,
    no_accounts,
)

from .access import ControllerAccess
from .broker_groups import Decision, ElectionReason, ReplicaGroup, ReplicaGroups, SnapshotGroups
from .config import ControllerConfig
from .entries import check_entry, snapshot_slices
from .live import HeardBrokers
from .requests import READ, WRITTEN, ReadRequest, ReplyParts, Written, elect_command, encode_entry, in_sync_body
from .settings import settings_text, update_settings

GROUPS_A_TURN: Final = 1_000  # looked at for a dead master in one turn of the loop
ELECTIONS_A_TURN: Final = 100  # proposed in it
READING_MAX: Final = 64  # answers that are made in slices
PENDING_MAX: Final = 1_024  # requests whose entries are not applied
BODY_SIZE_MAX: Final = 256 * 1024  # of requests of brokers and operators
REFUSALS_MAX: Final = 20  # that wait to be logged
NOT_LEADER: Final = "The controller is not in leader state"


@dataclass(frozen=True, slots=True)
class Call:
    """Write command, which is one-way, to an address. of_raft: a message of consensus; the newest matters most."""

    address: str
    command: RemotingCommand
    of_raft: bool = False


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request whose entry is not applied. request None: an election that no one asked for."""

    term: int
    name: str
    peer: Peer | None = None
    request: RemotingCommand | None = None


class _Incoming(NamedTuple):
    """A snapshot that is read and written in slices before consensus gets it."""

    peer: Peer
    message: RaftMessage
    slices: Generator[None, None, SnapshotGroups]


class Controller:
    """One controller. chance: see Raft. disk: for the log. accounts: whose signatures count with `acl`.

    `failure` is set when this controller must stop: its disk failed, or is older than the others know it.
    """

    def __init__(
        self,
        config: ControllerConfig,
        disk: RaftDisk,
        chance: Callable[[], float],
        now_ms: int,
        accounts: Accounts = no_accounts,
    ) -> None:
        """RaftIdentityError, RaftDamaged: the files cannot be used."""
        self.config = config
        self.groups = ReplicaGroups()
        self.failure: BaseException | None = None
        self.elections = 0  # masters elected while this controller led
        self.stalls: dict[str, list[int]] = {}
        self.parts = WorkParts()
        raft_config = config.raft()
        self.raft = Raft(raft_config, Journal(raft_config, disk), chance, now_ms)
        self._access = ControllerAccess(config, accounts)
        self._refusals: list[tuple[str, str]] = []
        self._live = HeardBrokers(config.broker_expire_ms, self._is_member)
        self._addresses = dict(config.addresses)
        self._calls: list[Call] = []
        self._pending: dict[int, _Pending] = {}  # index of the entry -> request
        self._reads: dict[int, tuple[Peer, RemotingCommand]] = {}
        self._electing: set[str] = set()
        self._to_look: dict[str, None] = {}  # names of groups that may need a master
        self._reading: deque[tuple[Peer, RemotingCommand, Generator[None, None, ReplyParts]]] = deque()
        self._incoming: _Incoming | None = None  # a leader sends another one again
        self._read_snapshot: tuple[bytes, SnapshotGroups] | None = None  # of this step
        self._compacting: Generator[None, None, None] | None = None  # writes the own snapshot
        self._now_ms = now_ms
        self._led_since_ms: int | None = None
        self._next_scan_ms = now_ms + config.scan_ms

    @property
    def is_leader(self) -> bool:
        return self.raft.is_leader

    def take_calls(self) -> list[Call]:
        """Return the commands for other addresses since the last call."""
        calls, self._calls = self._calls, []
        return calls

    def take_refusals(self) -> list[tuple[str, str]]:
        """Return address and reason of requests and messages that were refused since the last call, some of many."""
        found, self._refusals = self._refusals, []
        return found

    # Commands, connections and the clock, as in the broker.

    def handle(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        """Serve one command; return the Sends."""
        if command.is_response or self.failure is not None:
            return []
        self._now_ms = now_ms
        try:
            row = REQUESTS.get(command.code)
            self._access.check(peer.address.ip, command, None if row is None else row.level)
            sends = self._act(peer, command, row, now_ms)
        except MQError as error:
            sends = answer_error(peer, command, error)
            is_told = not isinstance(error, NoPermission) and command.code != RequestCode.CONTROLLER_CONSENSUS
            if not is_told and len(self._refusals) < REFUSALS_MAX:
                self._refusals.append((str(peer.address), str(error)))
        sends = [] if command.is_oneway else sends
        return sends + self._settle(now_ms)

    def disconnected(self, peer: PeerId) -> list[Send]:
        """Elect another master for the groups whose master's connection closed."""
        if names := self._live.disconnected(peer):
            self._to_look = dict.fromkeys(names) | self._to_look
            self._elect_where_needed(self._now_ms)
        for one in [one for one in self._reading if one[0].id == peer]:
            self._reading.remove(one)
        return self._settle(self._now_ms)

    def lost(self, address: str) -> list[Send]:
        """Note that the connection to another controller closed."""
        for member, known in self._addresses.items():
            if known == address:
                self.raft.lost(member, self._now_ms)
        return self._settle(self._now_ms)

    def next_tick_ms(self) -> int:
        """Return the time of the next `tick`."""
        if (self._to_look or self._reading or self._incoming or self._compacting) and self.failure is None:
            return self._now_ms
        return min(self.raft.next_tick_ms(), self._next_scan_ms)

    def tick(self, now_ms: int) -> list[Send]:
        """Let consensus go on; look for masters whose heartbeats stopped."""
        self._now_ms = now_ms
        if self.failure is not None:
            return []
        with suppress(NotLeader), self._step():
            self.raft.tick(now_ms)
        self._receive_on(now_ms)
        if now_ms >= self._next_scan_ms:
            self._live.excuse(now_ms - self._next_scan_ms, now_ms)
            self._next_scan_ms = now_ms + self.config.scan_ms
            self.parts.run("scan", partial(self._scan, now_ms))
        if self._to_look:
            self.parts.run("elections", partial(self._elect_where_needed, now_ms))
        return self._read_on() + self._settle(now_ms)

    def _scan(self, now_ms: int) -> None:
        self._live.expire(now_ms)
        self._to_look |= dict.fromkeys(self.groups.groups)

    # Requests.

    def _act(self, peer: Peer, command: RemotingCommand, row: "ControllerRow | None", now_ms: int) -> list[Send]:
        if row is None:
            raise RequestCodeNotSupported(f" request type {command.code} not supported")
        if len(command.body) > BODY_SIZE_MAX and command.code != RequestCode.CONTROLLER_CONSENSUS:
            raise SystemBusy(f"found a body of {len(command.body)} bytes, expected at most {BODY_SIZE_MAX}")
        if isinstance(row, Written):
            return self._write(peer, command, row, now_ms)
        if isinstance(row, ReadRequest):
            return self._read(peer, command, now_ms)
        return row.serve(self, peer, command, now_ms)

    def _receive(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        message = decode_message(command.body, self.raft.config.members)
        for entry in message.entries:
            if entry.data:
                check_entry(entry.data)
        self.raft.check(message)
        if message.kind is not MessageKind.SNAPSHOT:
            with suppress(NotLeader), self._step():
                self.raft.receive(message, now_ms)
        elif self._incoming is None:
            self._read_incoming(_Incoming(peer, message, self._incoming_slices(message)), now_ms)
        return []

    def _incoming_slices(self, message: RaftMessage) -> Generator[None, None, SnapshotGroups]:
        """Read a snapshot, then write it beside the log. RemotingError, RaftBadMessage. NotLeader: the disk failed."""
        groups = yield from snapshot_slices(message.data)
        self.raft.check(message)
        self._compacting = None  # the journal prepares one snapshot at a time
        with self._step():
            yield from self.raft.preparing(message)
        return groups

    def _receive_on(self, now_ms: int) -> None:
        """Read or write the next slice of a snapshot."""
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            return
        try:
            self._read_incoming(incoming, now_ms)
        except MQError as error:
            if len(self._refusals) < REFUSALS_MAX:
                self._refusals.append((str(incoming.peer.address), str(error)))

    def _read_incoming(self, incoming: _Incoming, now_ms: int) -> None:
        """Take a slice; after the last one let consensus have the snapshot. RemotingError, RaftBadMessage."""
        message = incoming.message
        try:
            next(incoming.slices)
        except StopIteration as end:
            self.raft.check(message)
            self._read_snapshot = message.data, end.value
            with suppress(NotLeader), self._step():
                self.raft.receive(message, now_ms)
        except NotLeader:
            return
        else:
            self._incoming = incoming

    def _compact_on(self) -> None:
        """Write the next slice of the own snapshot."""
        compacting, self._compacting = self._compacting, None
        if compacting is not None:
            with suppress(NotLeader), self._step():
                if next(compacting, False) is None:
                    self._compacting = compacting

    def _heartbeat(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        header = BrokerHeartbeatHeader.from_ext(request.ext)
        if header.broker_id is None:
            return answer(
                peer, request, code=ResponseCode.CONTROLLER_INVALID_REQUEST, remark="Heart beat with empty brokerId"
            )
        self._live.heartbeat(peer.id, header, now_ms)
        return answer(peer, request, remark="Heart beat success")

    def _write(self, peer: Peer, request: RemotingCommand, row: Written, now_ms: int) -> list[Send]:
        command = row.command(request)
        if request.code == RequestCode.CONTROLLER_REGISTER_BROKER:
            header = RegisterAtControllerHeader.from_ext(request.ext)
            self._live.check_alone(peer.id, (header.broker_name, header.broker_id), header.broker_address, now_ms)
        try:
            self._propose(command, now_ms, peer, request)
        except NotLeader:
            return _not_leader(peer, request)
        except RaftBusy as error:
            raise SystemBusy(str(error)) from error
        return []

    def _propose(
        self, command: dict[str, Any], now_ms: int, peer: Peer | None = None, request: RemotingCommand | None = None
    ) -> None:
        """Append a command with what its decision needs. NotLeader, RaftBusy. InvalidParameter: no member takes it."""
        if len(self._pending) >= PENDING_MAX:
            raise RaftBusy(f"found {len(self._pending)} requests that wait for other controllers: try again later")
        name = command["name"]
        known = {"alive": self._alive(name, now_ms), "unclean": self.config.elect_unclean_master, "at_ms": now_ms}
        whole = command | known
        entry = encode_entry(whole)
        try:
            check_entry(entry)
        except RemotingError as error:
            raise InvalidParameter(str(error)) from error
        with self._step():
            index, term = self.raft.propose(entry, now_ms)
        self._pending[index] = _Pending(term, name, peer, request)

    def _read(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        try:
            self._reads[self.raft.read(now_ms)] = (peer, request)
        except NotLeader:
            return _not_leader(peer, request)
        except RaftBusy as error:
            raise SystemBusy(str(error)) from error
        return []

    def _metadata(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        leader = self.raft.leader
        reply = ControllerMetadataReply(
            self.config.group,
            leader,
            None if leader is None else self._addresses[leader],
            self.is_leader,
            "".join(f"{member}:{address};" for member, address in self._addresses.items()),
        )
        return answer(peer, request, reply.to_ext())

    def _settings(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        return answer(peer, request, body=settings_text(self.config).encode())

    def _update_settings(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        update_settings(self.config, str(request.body, "utf-8", "replace"))
        return answer(peer, request)

    # Elections.

    def _alive(self, name: str, now_ms: int) -> dict[str, list[int]]:
        """Return id -> epoch, largest offset and priority of the living brokers of a group."""
        group = self.groups.groups.get(name)
        found = {} if group is None else self._live.of_group(name, group.members, now_ms)
        return {str(one): [live.epoch, live.max_offset, live.priority] for one, live in found.items()}

    def _is_member(self, key: tuple[str, int]) -> bool:
        name, broker_id = key
        group = self.groups.groups.get(name)
        return group is not None and broker_id in group.members

    def _elect_where_needed(self, now_ms: int) -> None:
        """Propose an election for each group to look at whose master is dead, or that lost it, while another broker
        lives: for some of many. The next turns look at the others."""
        if not self.is_leader or self._led_since_ms is None:
            self._to_look.clear()
            return
        names, self._to_look = [*self._to_look], {}
        left = ELECTIONS_A_TURN
        for number, name in enumerate(names):
            if number >= GROUPS_A_TURN or left <= 0:
                self._to_look = dict.fromkeys(names[number:])
                return
            group = self.groups.groups.get(name)
            if group is None or name in self._electing or not group.master_epoch:
                continue
            alive = self._alive(name, now_ms)
            if not self._needs_master(name, group, alive, now_ms):
                continue
            try:
                self._propose(elect_command(group.cluster, name) | {"reason": self._why(name, group)}, now_ms)
                self._electing.add(name)
                left -= 1
            except RaftError:  # the next scan tries again
                return

    def _needs_master(self, name: str, group: ReplicaGroup, alive: dict[str, list[int]], now_ms: int) -> bool:
        """A controller gives a master that it never heard the time of a heartbeat: it may only not know it yet."""
        if not alive:
            return False
        if group.master is None:
            return self.config.elect_unclean_master or any(str(one) in alive for one in group.in_sync)
        assert self._led_since_ms is not None
        known = self._live.was_heard(name, group.master) or now_ms - self._led_since_ms >= self.config.broker_expire_ms
        return known and str(group.master) not in alive

    def _why(self, name: str, group: ReplicaGroup) -> ElectionReason:
        """Return why this group needs a master."""
        if group.master is None:
            return ElectionReason.NO_MASTER
        if self._live.has_closed(name, group.master):
            return ElectionReason.CONNECTION_CLOSED
        return ElectionReason.HEARTBEATS_STOPPED

    def _notify(self, name: str) -> None:
        """Send 1008 to the living brokers of a group."""
        group = self.groups.groups[name]
        header = RoleChangedHeader(group.master_address, group.master_epoch, group.in_sync_epoch, group.master)
        for broker_id in self._alive(name, self._now_ms):
            command = RemotingCommand(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header.to_ext(), body=in_sync_body(group))
            self._calls.append(Call(group.members[int(broker_id)].address, command))

    # What consensus decided.

    def _settle(self, now_ms: int) -> list[Send]:
        """Make this step durable, apply what is committed, answer who waits, gather messages."""
        if self.failure is not None:
            return self._give_up()
        try:
            with self._step():
                ready = self.raft.take(now_ms)
        except NotLeader:
            return self._give_up()
        members = self.raft.config.members
        for message in ready.messages:
            command = RemotingCommand(RequestCode.CONTROLLER_CONSENSUS, {}, body=encode_message(message, members))
            self._calls.append(Call(self._addresses[message.target], command, of_raft=True))
        read, self._read_snapshot = self._read_snapshot, None
        if ready.snapshot is not None:
            if read is not None and read[0] is ready.snapshot:
                self.groups.take(read[1])
            else:
                self.groups.restore(ready.snapshot)
        sends: list[Send] = []
        for entry in ready.committed:
            sends += self._apply(entry)
        for number in ready.reads:
            peer, request = self._reads.pop(number)
            sends += self._answer_read(peer, request, now_ms)
        for number in ready.refused:
            sends += _not_leader(*self._reads.pop(number))
        if self.is_leader:
            if self._led_since_ms is None:
                self._led_since_ms = now_ms
        else:
            self._led_since_ms = None
            sends += self._give_up()
        if self.raft.wants_snapshot and self._compacting is None and self._incoming is None:
            with suppress(NotLeader, RaftBusy), self._step():  # RaftBusy: too large, so the log takes no more entries
                self._compacting = self.raft.compacting(self.groups.snapshot())
        self._compact_on()
        return sends

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Note any other error than a refusal as the failure: what the step left undone is unknown. NotLeader then."""
        try:
            yield
        except (NotLeader, RaftBusy):
            raise
        except Exception as error:
            self.failure = error
            raise NotLeader(None) from error

    def _apply(self, entry: LogEntry) -> list[Send]:
        pending = self._pending.pop(entry.index, None)
        outcome = self.groups.apply(entry.data) if entry.data else Decision()
        if outcome.elected is not None and self.is_leader:
            self.elections += 1
            if self.config.notify_role_changed:
                self._notify(outcome.elected)
        if pending is None:
            return []
        self._electing.discard(pending.name)
        if pending.peer is None or pending.request is None:
            return []
        if pending.term != entry.term:
            return _not_leader(pending.peer, pending.request)
        group = self.groups.groups.get(pending.name)
        reply = WRITTEN[pending.request.code].answer(pending.request, group, outcome)
        return _answered(pending.peer, pending.request, reply)

    def _answer_read(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """Make the first slice of an answer; return the answer if that is all of it."""
        if len(self._reading) >= READING_MAX:
            return answer_error(
                peer, request, SystemBusy(f"found {READING_MAX} requests that are read: try again later")
            )
        return self._read_slice(
            peer, request, READ[request.code].answer(request, self.groups, lambda name: self._alive(name, now_ms))
        )

    def _read_on(self) -> list[Send]:
        """Make the next slice of the answer that waits longest."""
        return self._read_slice(*self._reading.popleft()) if self._reading else []

    def _read_slice(
        self, peer: Peer, request: RemotingCommand, slices: Generator[None, None, ReplyParts]
    ) -> list[Send]:
        try:
            next(slices)
        except StopIteration as end:
            return _answered(peer, request, end.value)
        except MQError as error:
            return answer_error(peer, request, error)
        self._reading.append((peer, request, slices))
        return []

    def _give_up(self) -> list[Send]:
        """Answer the requests whose entries another leader may drop: their effect is unknown."""
        pending, self._pending = self._pending, {}
        self._electing = set()
        return [
            send
            for one in pending.values()
            if one.peer is not None and one.request is not None
            for send in _not_leader(one.peer, one.request)
        ]


class DirectRequest(NamedTuple):
    """A request that the controller answers at once."""

    level: Level
    serve: Callable[[Controller, Peer, RemotingCommand, int], list[Send]]


ControllerRow = Written | ReadRequest | DirectRequest
REQUESTS: Final[Mapping[int, ControllerRow]] = {
    **WRITTEN,
    **READ,
    RequestCode.BROKER_HEARTBEAT: DirectRequest(Level.BROKER, Controller._heartbeat),
    RequestCode.CONTROLLER_CONSENSUS: DirectRequest(Level.BROKER, Controller._receive),  # of the other controllers
    RequestCode.CONTROLLER_GET_METADATA_INFO: DirectRequest(Level.NONE, Controller._metadata),
    RequestCode.GET_CONTROLLER_CONFIG: DirectRequest(Level.ADMIN, Controller._settings),
    RequestCode.UPDATE_CONTROLLER_CONFIG: DirectRequest(Level.ADMIN, Controller._update_settings),
}
"""All requests: how each is served, and the account that it needs with access control on."""


def _answered(peer: Peer, request: RemotingCommand, reply: ReplyParts) -> list[Send]:
    return answer(peer, request, reply.ext, code=reply.code, remark=reply.remark, body=reply.body)


def _not_leader(peer: Peer, request: RemotingCommand) -> list[Send]:
    return answer(peer, request, code=ResponseCode.CONTROLLER_NOT_LEADER, remark=NOT_LEADER)
