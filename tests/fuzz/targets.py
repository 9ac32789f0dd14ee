"""Targets of the fuzzer: cores alone, and a broker behind the net layer, which gets pieces of any size. A core may
return any answer and must not raise; the net layer may close the connection. Everything else is a bug.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, cast

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.client import Admin, ClientInstance, Consumer, Delivery, TransactionProducer
from mqtrail.client.core.background import AT_ONCE_MAX
from mqtrail.client.core.outgoing import Outgoing, send_result
from mqtrail.client.core.routes import TopicRoute, queue_count, read_route
from mqtrail.controller import Controller, ControllerConfig
from mqtrail.controller.controller import REQUESTS as CONTROLLER_REQUESTS
from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.namesrv.requests import REQUESTS
from mqtrail.net import Connection, Server, ServerConfig
from mqtrail.net.server_connection import PieceConnection
from mqtrail.net.tls import TlsFiles
from mqtrail.net.tls_session import TlsSession
from mqtrail.node.broker_shell import BrokerShell
from mqtrail.raft import LogEntry, MessageKind, RaftMessage, RaftOldDisk, encode_message
from mqtrail.store import ConfigFileStore, MemoryDisk, MemoryStore
from mqtrail.trail import TRACE_REJECTS, TracePlace, trace_rows
from mqtrail.wire import (
    BODY_SIZE_MAX,
    EXPANDED_SIZE_MAX,
    FLAG_RESPONSE,
    AccountKey,
    Credentials,
    FrameDecoder,
    Level,
    MessageExt,
    MessageQueue,
    MQError,
    PopHandle,
    RemotingCommand,
    RemotingError,
    RequestCode,
    Send,
    TopicRouteData,
    compile_sql,
    cut_frame,
    decode_command,
    decode_message_offsets,
    decode_order_counts,
    decode_properties,
    decode_records,
    decode_start_offsets,
    encode_command,
    encode_properties,
    frame_end,
    read_registration,
    refusal_for,
    sign,
)

from .frames import FrameMaker
from .grammar import BODIES, BOMBS, HEADERS, TABLES, Grammar
from .lies import Liar, questions
from .limits import (
    GARBAGE_SIZE,
    HANG_S,
    LARGE_SIZE,
    MEASURED,
    PEAK_SIZE,
    REFUSED_SIZE,
    Bug,
    Meter,
    interrupted,
)
from .plausible import Requests
from .tls_peer import Sent, TlsPeer, server_config
from .world import PEER, START_MS, STORE, World

SHOWN_SIZE_MAX = 2_000  # bytes of a frame that are printed
SIGNED_BY = ("AccessKey", "Signature")  # fields that a signature adds
TICKS_MAX = 30  # after one frame
SETTLE_TICKS_MAX = 10_000  # after a stroke, whose batches may have thousands of messages that are due
READ_S_PER_BYTE = 5e-6  # CPU time for which a client or the pipeline may read a byte: they have no slices
EXPANDED_AS = 100_000  # bytes read that take as long as to expand the bodies of a pull
ROUTES = 0.1  # share of the answers of a lying server with a route of many queues, which takes long
LONG = 16_000  # bytes of a long SQL92 expression, just below the most that there may be
REPEATED = (b"-", b"(", b"NOT ", b"''", b" AND a=1", b"'a',", b"(--", b"/*", b"--\n", b"a IN ('b', ", b"9", b" ")
READ_AT_ONCE = 256 * 1024  # bytes that a server reads at once
SETTLE_TURNS_MAX = 1_000  # of the loop, after a piece of TLS records
PLAUSIBLE = 0.5  # share of frames that name what exists


CLUSTER_INFO = (
    b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"c"}},'
    b'"clusterAddrTable":{"c":["broker-a"]}}'
)
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"c"}],'
    b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":2,"writeQueueNums":2,"topicSysFlag":0}]}'
)


class Target:
    """Receives frames. `renew` drops what it has stored, since its memory counts as this process's."""

    to = "broker"
    turn_s_per_byte = 0.0
    peak_size = PEAK_SIZE
    bombs = BOMBS
    garbage_size = GARBAGE_SIZE

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._frames = FrameMaker(chance, self.to, self.bombs)
        self._refused = False  # whether the last frame was answered by refusals only
        self.meter = Meter(self.turn_s_per_byte, self.peak_size)
        self.renew()

    def renew(self) -> None:
        raise NotImplementedError

    def take(self, frame: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Drop all state: the next life starts empty."""

    def next(self) -> bytes:
        """Return the next frame."""
        return self._frames.next()

    def run(self, count: int) -> None:
        """Receive this number of frames. Bug: one of them failed; it names the frame."""
        for _ in range(count):
            self._one(self.next())

    def _one(self, frame: bytes) -> None:
        """Receive one frame, and measure it."""
        chance = self._chance.random()
        is_measured = chance < MEASURED or (len(frame) >= LARGE_SIZE and chance < 0.5)
        self._refused = False
        try:
            if is_measured:
                interrupted(lambda: self.meter.memory(lambda: self.take(frame)), HANG_S * 10)
                self._check_memory(len(frame))
            else:
                interrupted(lambda: self.take(frame), HANG_S)
        except Bug as bug:
            raise type(bug)(f"{type(self).__name__}: {bug}\n{_shown(frame)}") from bug
        except Exception as error:
            raise Bug(f"{type(self).__name__}: {type(error).__name__}: {error}\n{_shown(frame)}") from error

    def _check_memory(self, size: int) -> None:
        """Bug: a refused request left too much memory."""
        kept = self.meter.kept_size
        if self._refused and kept > REFUSED_SIZE:
            raise Bug(f"a refused request of {size:,} bytes leaves {kept:,}, expected at most {REFUSED_SIZE:,}")


def _shown(frame: bytes) -> str:
    """Return the frame as text; of a long one only both ends, because the seed reproduces it."""
    if len(frame) <= SHOWN_SIZE_MAX:
        return f"frame: {frame.hex()}"
    return f"frame of {len(frame)} bytes: {frame[:SHOWN_SIZE_MAX].hex()} … {frame[-100:].hex()}"


def are_refusals(sends: list[Send]) -> bool:
    """Return whether these Sends only refuse a request."""
    return bool(sends) and all(send.command.is_response and send.command.code != 0 for send in sends)


class CoreTarget(Target):
    """A core that gets every frame that can be decoded, and the ticks that it asks for."""

    def make(self) -> Any:
        raise NotImplementedError

    @property
    def stored(self) -> tuple[int, ...]:
        """Return the amount stored: data stored by a request may stay, also if the request is refused later."""
        return ()

    def check(self, sends: list[Send]) -> None:
        """Bug: an answer cannot be written, or breaks a promise."""
        for send in sends:
            encode_command(send.command)

    def renew(self) -> None:
        self._now_ms = START_MS
        self._asked = 0  # the code of the last request
        self._core = self.make()

    def take(self, frame: bytes) -> None:
        self._now_ms += self._chance.choice((0, 0, 0, 1, 20, 1_000))
        turn, size, core = self.meter.turn, len(frame), self._core
        command = turn(size, _command, frame)
        if command is None:
            return
        self._asked, stored = command.code, self.stored
        sends: list[Send] = turn(size, core.handle, PEER, command, self._now_ms)
        del command
        turn(size, self.check, sends)
        self._refused = are_refusals(sends) and self.stored == stored
        if self._chance.random() < 0.01:
            turn(0, self.check, turn(0, core.disconnected, PEER.id))
        if self.tick(TICKS_MAX):
            self._refused = False  # what a tick stores is not the request's

    def tick(self, count_max: int) -> int:
        """Run the core's due work; return the number of ticks."""
        for count in range(count_max):
            if self._core.next_tick_ms() > self._now_ms:
                return count
            self.meter.turn(0, self.check, self.meter.turn(0, self._core.tick, self._now_ms))
        return count_max

    def run(self, count: int) -> None:
        super().run(count)
        if self.tick(SETTLE_TICKS_MAX) == SETTLE_TICKS_MAX:
            raise Bug(f"{type(self).__name__}: work without end: still busy after {SETTLE_TICKS_MAX} ticks")


def _command(frame: bytes) -> RemotingCommand | None:
    try:
        end = frame_end(frame, 0, len(frame))
        return decode_command(cut_frame(frame, 0, end)) if end else None
    except RemotingError:
        return None


class BrokerCore(CoreTarget):
    """A broker without access control."""

    access = "open"

    def make(self) -> Any:
        self._world = World(self._chance, self.access)
        self._requests = Requests(self._chance, self._world.places, self._world.handles, START_MS)
        return self._world.broker

    @property
    def stored(self) -> tuple[int, ...]:
        world = self._world
        return world.store.end_offset, len(world.broker.topics.all()), len(world.broker.groups.all())

    def next(self) -> bytes:
        if self._chance.random() > PLAUSIBLE:
            return self._frames.next()
        return frame_of(self._requests.next())

    def check(self, sends: list[Send]) -> None:
        self._world.check_answers(sends)

    def run(self, count: int) -> None:
        super().run(count)
        self._world.check_changes()


class BrokerUsers(BrokerCore):
    """A broker with users and policies (5.x)."""

    access = "users"


class BrokerAclFiles(BrokerCore):
    """A broker with ACL files (4.x)."""

    access = "files"


def frame_of(request: RemotingCommand) -> bytes:
    """Return a request's bytes, also if its texts cannot be encoded as they are."""
    try:
        return encode_command(request)
    except (RemotingError, UnicodeEncodeError):
        request.ext = {name: value.encode("utf-8", "replace").decode() for name, value in request.ext.items()}
        request.ext = {name: value[:30_000] for name, value in request.ext.items()}
        return encode_command(request)


class NameServerCore(CoreTarget):
    """A name server without access control."""

    to = "namesrv"
    acl = False

    def make(self) -> Any:
        return NameServer(NameServerConfig(acl=self.acl), now_ms=START_MS)


class NameServerAcl(NameServerCore):
    """A name server with access control and no account: it answers routes alone."""

    acl = True

    def check(self, sends: list[Send]) -> None:
        super().check(sends)
        if REQUESTS[self._asked].level > Level.NONE if self._asked in REQUESTS else False:
            for send in sends:
                if send.command.code == 0:
                    raise Bug(f"request {self._asked} is served without an account")


class ControllerCore(CoreTarget):
    """A controller that leads alone, or one of three that gets messages of consensus from anyone."""

    acl = False
    codes = (904, *range(1001, 1014), RequestCode.CONTROLLER_CONSENSUS)
    edges = (7, 1_000, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
    commands = ("alter", "elect", "register", "apply_id", "clean", "x", 5, None)

    def make(self) -> Any:
        self._grammar = Grammar(self._chance)
        self._members = ["n0", "n1", "n2"][: self._chance.choice((1, 3))]
        peers = ";".join(f"{name}-127.0.0.1:{27010 + number}" for number, name in enumerate(self._members))
        config = ControllerConfig(peers=peers, self_id="n0", acl=self.acl)
        core = Controller(config, MemoryDisk(), self._chance.random, self._now_ms, _controllers_accounts)
        for _ in range(100):  # until it leads, if it is alone
            self._now_ms += 50
            core.tick(self._now_ms)
        return core

    @property
    def stored(self) -> tuple[int, ...]:
        return self._core.raft.term, self._core.raft.applied_index, self._core.raft.journal.last_index

    def next(self) -> bytes:
        chance = self._chance
        code = chance.choice(self.codes)
        if code == RequestCode.CONTROLLER_CONSENSUS:
            body = self._consensus()
            return encode_command(RemotingCommand(code, {}, self._cut(body) if chance.random() < 0.3 else body))
        if chance.random() < 0.3:
            return self._frames.made(code)
        text = "x" * 20_000 if chance.random() < 0.02 else chance.choice(("b", "b", "c", "é"))
        ext = {"clusterName": "c", "brokerName": text, "registerCheckCode": text, "brokerAddress": text}
        ids = ("appliedBrokerId", "brokerId", "masterBrokerId", "masterEpoch", "syncStateSetEpoch", "epoch")
        ext |= {name: chance.choice(("1", "1", "2", "0", "-1", "9223372036854775807")) for name in ids}
        if chance.random() < 0.2:
            ext[chance.choice(list(ext))] = self._grammar.value()[:20_000]
        body = chance.choice((b"", b'{"syncStateSet":[1,2],"syncStateSetEpoch":1}', b'["b"]', self._grammar.any_body()))
        return frame_of(RemotingCommand(code, ext, body))

    def _consensus(self) -> bytes:
        chance = self._chance
        fields = ("term", "index", "log_term", "commit", "round", "previous", "sequence")
        entries = tuple(LogEntry(self._number(), self._number(), self._entry()) for _ in range(chance.randrange(3)))
        message = RaftMessage(
            kind=chance.choice(list(MessageKind)),
            sender=chance.choice(self._members),
            target="n0",
            group_key=self._core.raft.config.group_key,
            accepted=chance.random() < 0.5,
            entries=entries,
            data=chance.choice((b"", b"", self._entry())),
            **{name: self._number() for name in fields},
        )
        return encode_message(message, self._members)

    def _number(self) -> int:
        """Return a number near the core's own, so that it matters, or an edge."""
        raft, chance = self._core.raft, self._chance
        if chance.random() < 0.01:
            return chance.choice(self.edges)
        near = chance.choice((0, raft.term, raft.term, raft.journal.last_index, raft.applied_index))
        return max(0, near + chance.choice((0, 0, 0, 1, 1, -1))) & (1 << 64) - 1

    def _entry(self) -> bytes:
        chance = self._chance
        if chance.random() < 0.3:
            return self._grammar.any_body()[:50_000]
        command = {"do": chance.choice(self.commands), "name": "b", "id": 1, "cluster": "c"}
        return json.dumps(command).encode()

    def _cut(self, data: bytes) -> bytes:
        at = self._chance.randrange(len(data))
        return data[:at] if self._chance.random() < 0.3 else data[:at] + self._chance.randbytes(1) + data[at + 1 :]

    def check(self, sends: list[Send]) -> None:
        super().check(sends)
        for call in self._core.take_calls():
            encode_command(call.command)
        failure = self._core.failure
        if failure is not None and not isinstance(failure, RaftOldDisk):
            raise failure
        if failure is not None:
            self._core = self.make()

    def take(self, frame: bytes) -> None:
        super().take(frame)
        self._refused = False  # messages of consensus have no answer


CONTROLLERS_ACCOUNTS = {
    Level.ACCOUNT: Credentials(access_key="user", secret_key="a secret of a user"),
    Level.BROKER: Credentials(access_key="brokers", secret_key="a secret of brokers"),
    Level.ADMIN: Credentials(access_key="operator", secret_key="a secret of operators"),
}
FORGERS = (
    Credentials(access_key="operator", secret_key="a guess"),
    Credentials(access_key="nobody", secret_key="a secret of operators"),
)


def _controllers_accounts(access_key: str) -> Iterator[AccountKey]:
    for level, one in CONTROLLERS_ACCOUNTS.items():
        if one.access_key == access_key:
            yield AccountKey(one.secret_key.encode(), level)


class ControllerAcl(ControllerCore):
    """A controller with access control: requests are signed by an account, signed wrongly, changed after that, or not
    signed."""

    acl = True

    def next(self) -> bytes:
        frame, chance = super().next(), self._chance
        command = _command(frame)
        if command is None or chance.random() < 0.3:
            return frame
        if chance.random() < 0.3:
            command.ext["designateElect"] = "true"
        with contextlib.suppress(UnicodeEncodeError):
            sign(command, chance.choice((*CONTROLLERS_ACCOUNTS.values(), *FORGERS)))
        if chance.random() < 0.3:
            command.ext[chance.choice(list(command.ext))] = "3"
        elif chance.random() < 0.1:
            command.body += b" "
        return frame_of(command)

    def take(self, frame: bytes) -> None:
        command = _command(frame)
        self._lacks = None if command is None or not self._core.config.acl else self._lacking(command)
        self._before = self._state()
        super().take(frame)

    def _lacking(self, command: RemotingCommand) -> Level | None:
        """Return the level that a request needs and its signer has not; None: it may be served."""
        row = CONTROLLER_REQUESTS.get(command.code)
        needed = Level.ADMIN if row is None else row.level
        if command.code == RequestCode.CONTROLLER_ELECT_MASTER and command.ext.get("designateElect") == "true":
            needed = Level.ADMIN
        return needed if needed > _signer(command) else None

    def _state(self) -> tuple[int, int]:
        return self._core.raft.term, self._core.raft.journal.last_index

    def check(self, sends: list[Send]) -> None:
        lacks, self._lacks = self._lacks, None
        is_served = any(send.command.is_response and send.command.code == 0 for send in sends)
        if lacks is not None and (is_served or self._state() != self._before):
            raise Bug(f"request {self._asked} is served without the account of level {lacks.name}")
        super().check(sends)


def _signer(command: RemotingCommand) -> Level:
    """Return the level of the account whose signature a request has, found by signing it again."""
    ext = {name: value for name, value in command.ext.items() if name not in SIGNED_BY}
    for level, one in CONTROLLERS_ACCOUNTS.items():
        again = RemotingCommand(command.code, dict(ext), command.body, version=command.version)
        with contextlib.suppress(UnicodeEncodeError):
            sign(again, one)
            if all(again.ext[name] == command.ext.get(name) for name in SIGNED_BY):
                return level
    return Level.NONE


class FakeTransport(asyncio.Transport):
    """Accepts written data, and records whether it was closed."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        super().__init__({"peername": ("10.0.0.7", 40_007)})
        self._on_close = on_close
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: writes are not buffered."""

    def pause_reading(self) -> None:
        """Do nothing: there are no reads."""

    def resume_reading(self) -> None:
        """Do nothing: there are no reads."""

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._on_close()

    abort = close


class MeteredLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own. Each callback is a turn; an exception is kept in `failure`."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.now_s = 0.0
        self.size = 0  # bytes that a turn may read
        self.failure: BaseException | None = None
        # As attributes: the signatures of these methods are too general to be overridden with types.
        soon, at = self.call_soon, self.call_at
        vars(self)["call_soon"] = lambda *args, **context: soon(meter.turn, self.size, *args, **context)
        vars(self)["call_at"] = lambda when, *args, **context: at(when, meter.turn, self.size, *args, **context)
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self.now_s

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failure = context.get("exception") or Bug(str(context.get("message")))


class BrokerBehindNet(Target):
    """A broker's shell and fast lane behind the net layer. Frames arrive in pieces; a closed connection is replaced."""

    access = "open"

    def renew(self) -> None:
        self._now_ms = START_MS
        self._world = World(self._chance, self.access)
        self._requests = Requests(self._chance, self._world.places, self._world.handles, START_MS)
        self._loop = MeteredLoop(self.meter)
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        core = self._world.broker
        handle = core.handle
        vars(core)["handle"] = lambda *args: self._watched(handle, *args)
        self._shell = BrokerShell(core, clock=lambda: self._now_ms)
        process = self._shell.process
        vars(self._shell)["process"] = lambda *args: self._watched(process, *args)
        tick = core.tick
        vars(core)["tick"] = lambda *args: self._ticking(tick, *args)
        report = core.parts.report
        core.parts.report = lambda part: self._part_failed(part, report)
        self._server = self._make_server()
        self._server.clock = time.thread_time  # the lives of a seed are equal on a busy machine too
        self._shell.start()
        self._connect()

    def _make_server(self) -> Server:
        return Server(self._shell)

    def next(self) -> bytes:
        if self._chance.random() > PLAUSIBLE:
            return self._frames.next()
        return frame_of(self._requests.next())

    def _part_failed(self, part: str, report: Callable[[str], None] | None) -> None:
        """Keep the exception of a part of a tick, which the shell only logs."""
        self._loop.failure = sys.exception()
        if report is not None:
            report(part)

    def _ticking(self, act: Callable[..., Any], *args: Any) -> Any:
        self._has_ticked = True
        return self._watched(act, *args)

    def _watched(self, act: Callable[..., Any], *args: Any) -> Any:
        try:
            return act(*args)
        except RemotingError:
            raise
        except Exception as error:
            self._loop.failure = error
            raise

    def _connect(self) -> None:
        self._connection = PieceConnection(self._server, self._shell)
        self._transport = FakeTransport(lambda: None)
        self._connection.connection_made(self._transport)

    def take(self, frame: bytes) -> None:
        passed_ms = self._chance.choice((0, 0, 1, 20))
        self._now_ms += passed_ms
        self._loop.now_s += passed_ms / 1000
        self._has_ticked = False
        self._loop.run_until_complete(self._receive(frame))
        if self._has_ticked:
            self._refused = False  # what an earlier request asked for may have been done
        if (failure := self._loop.failure) is not None:
            self._loop.failure = None
            raise failure

    async def _receive(self, frame: bytes) -> None:
        at = 0
        while at < len(frame) and not self._transport.closing:
            end = len(frame) if self._chance.random() < 0.7 else min(len(frame), at + self._chance.randrange(1, 200))
            self.meter.turn(end - at, self._connection.data_received, frame[at:end])
            at = end
            await asyncio.sleep(0)
        for _ in range(2):  # what the shell and the connection have put off
            await asyncio.sleep(0)
        if self.access != "open":
            self._world.check_bytes(b"".join(self._transport.written))
        self._transport.written.clear()
        self._refused = self._transport.closing
        if self._transport.closing or self._chance.random() < 0.05:
            self._connection.connection_lost(None)
            self._connect()

    def run(self, count: int) -> None:
        super().run(count)
        self._world.check_changes()

    def end(self) -> None:
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    async def _stop(self) -> None:
        self._connection.connection_lost(None)
        self._shell.stop()


class BrokerUsersBehindNet(BrokerBehindNet):
    """The same with users and policies: the lane's own checks of permissions."""

    access = "users"


class WatchedConnection(PieceConnection):
    """A connection that keeps what it has decrypted, and notes whether TLS failed."""

    def __init__(self, server: Server, application: BrokerShell) -> None:
        super().__init__(server, application)
        self.decrypted = bytearray()
        self.tls_failed = False

    def _decrypt(self, session: TlsSession, data: bytes) -> bytes:
        text = super()._decrypt(session, data)
        self.decrypted += text
        self.tls_failed = self._transport is not None and self._transport.is_closing()
        return text

    @property
    def waits(self) -> bool:
        """Whether received bytes wait to be decrypted."""
        return bool(self._encrypted)


class BrokerBehindTls(BrokerBehindNet):
    """The same behind TLS: frames in records of any sizes, key updates, renegotiations, and every way to end.

    What a refused frame leaves is not measured: meanwhile the shell may do the work of an earlier one.
    """

    _connection: WatchedConnection

    def run(self, count: int) -> None:
        super().run(count // 2)  # a fifth of the frames end their connection: handshakes take most of the time

    def _make_server(self) -> Server:
        server = Server(self._shell, ServerConfig(tls=server_config()))
        server.tls = TlsFiles(server_config())
        return server

    def _connect(self) -> None:
        self._connection = WatchedConnection(self._server, self._shell)
        self._transport = FakeTransport(lambda: None)
        self._connection.connection_made(self._transport)
        self._peer = TlsPeer(self._chance)
        received = b""
        while True:
            sent = self._peer.shake_hands(received)
            for piece in self._cut(sent):
                self.meter.turn(len(piece), self._connection.data_received, piece)
            if self._peer.established:
                break
            received = self._written()
        self._written()

    def _written(self) -> bytes:
        written = b"".join(self._transport.written)
        self._transport.written.clear()
        return written

    def _cut(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            end = at + (READ_AT_ONCE if self._chance.random() < 0.7 else self._chance.randrange(1, 200))
            yield data[at:end]
            at = end

    def _receive(self, frame: bytes) -> Coroutine[Any, Any, None]:
        return self._take(self._peer.encrypted(frame))  # outside of the loop, whose turns are measured

    async def _take(self, sent: Sent) -> None:
        connection = self._connection
        for piece in self._cut(sent.records):
            if self._transport.closing:
                break
            self.meter.turn(len(piece), connection.data_received, piece)
            await self._settle()
        await self._settle()
        self._check(sent)
        if self._transport.closing or self._chance.random() < 0.05:
            connection.connection_lost(None)
            self._connect()

    async def _settle(self) -> None:
        """Let the loop do what the shell and the connection have put off."""
        for count in range(SETTLE_TURNS_MAX):
            await asyncio.sleep(0)
            if count >= 2 and (self._transport.closing or not self._connection.waits):
                return
        raise Bug(f"received bytes are not decrypted after {SETTLE_TURNS_MAX} turns")

    def _check(self, sent: Sent) -> None:
        """Bug: the text is not what was sent, or the connection does not end where it must."""
        text = bytes(self._connection.decrypted)
        self._connection.decrypted = bytearray()
        if not sent.text.startswith(text) or (text != sent.text and not self._transport.closing):
            raise Bug(f"{len(text)} bytes were decrypted, and are not the {len(sent.text)} bytes of the frame")
        if sent.ends and not self._transport.closing:
            raise Bug("a connection stays open after the end of its TLS session")
        if self._peer.is_negotiating_again(self._written()):
            raise Bug("keys are negotiated again")
        if self._connection.tls_failed and not sent.ends:
            raise Bug("TLS failed on records that it allows")


class LyingServer(Target):
    """A server that sends invalid data to every reader of replies and stored messages: client, look-up, pipeline."""

    to = "client"
    turn_s_per_byte = READ_S_PER_BYTE
    peak_size = EXPANDED_SIZE_MAX + 2 * BODY_SIZE_MAX  # the bodies of a pull, and the one being read

    def renew(self) -> None:
        """Do nothing: readers keep no state."""
        self._grammar = Grammar(self._chance)

    def next(self) -> bytes:
        return self._frames.made(self._chance.choice((0, 0, 0, 1, 17, 19, 40, 220, 307, 326)), FLAG_RESPONSE)

    def take(self, frame: bytes) -> None:
        decoder = FrameDecoder()
        decoder.feed(frame)
        try:
            while (cut := decoder.next_frame()) is not None:
                self._read(self.meter.turn(len(frame), decode_command, cut))
        except RemotingError:
            return

    def _read(self, command: RemotingCommand) -> None:
        chance = self._chance
        readers: list[Callable[[RemotingCommand], None]] = [
            _read_answer,
            lambda command: _read_headers(command.ext, chance.sample(HEADERS, 4)),
            lambda command: _read_handles(command.ext),
            lambda command: self._read_registration(command.body),
            lambda command: _read_trace(command.body),
            *(partial(_read_body, kind, chance.random() < 0.5) for kind in chance.sample(BODIES, 6)),
        ]
        for read in readers:
            self.meter.turn(len(command.body) + sum(map(len, command.ext.values())), read, command)
        self.meter.turn(len(command.body) + EXPANDED_AS, self._read_messages, command.body)
        for data in (command.body, *((self._grammar.route(),) if chance.random() < ROUTES else ())):
            route = self.meter.turn(len(data), _route_in, data)
            if route is not None:
                count = queue_count(route)
                self.meter.turn(0 if count <= AT_ONCE_MAX else count, _build_route, route)  # more: in a thread

    def _read_registration(self, body: bytes) -> None:
        with contextlib.suppress(MQError):
            for _ in read_registration(body, compressed=self._chance.random() < 0.5, topics_max=100_000):
                pass

    def _read_messages(self, body: bytes) -> None:
        for message in self._messages(body):
            properties = decode_properties(encode_properties(message.properties))
            assert properties == dict(message.properties)

    def _messages(self, body: bytes) -> list[MessageExt]:
        with contextlib.suppress(MQError):
            return decode_records(body, "broker-a")
        return []


def _read_answer(command: RemotingCommand) -> None:
    refusal_for(command.code, command.remark)
    send_result(Outgoing("T", b"body", "", "ID"), MessageQueue("T", "broker-a", 0), command)


def _read_headers(ext: dict[str, str], kinds: list[Any]) -> None:
    for kind in kinds:
        with contextlib.suppress(MQError):
            kind.from_ext(ext).to_ext()


def _read_handles(ext: dict[str, str]) -> None:
    for read in (PopHandle.decode, decode_start_offsets, decode_message_offsets, decode_order_counts):
        for value in list(ext.values())[:8]:
            with contextlib.suppress(MQError):
                read(value)


def _read_body(kind: Any, strict: bool, command: RemotingCommand) -> None:
    with contextlib.suppress(MQError):
        kind.decode(command.body).encode(strict=strict)


def _read_trace(body: bytes) -> None:
    place = TracePlace("c", "b", "T", 0, 0, 0, 0, "h:1")
    for relation, row in trace_rows(place, body):
        assert row["record_no"] >= (-1 if relation is TRACE_REJECTS else 0)  # -1: the whole body is rejected


def _route_in(data: bytes) -> TopicRouteData | None:
    with contextlib.suppress(MQError):
        return read_route(data)
    return None


def _build_route(route: TopicRouteData) -> None:
    TopicRoute.build("T", route)
    TopicRoute.from_template_route("T", route, 4)


def new_broker(now_ms: int, files: ConfigFileStore) -> Broker:
    """A broker on files of its tables."""
    numbers = iter(range(1 << 60))
    config = BrokerConfig(message_size_max=1 << 20, topics_max=2_000, groups_max=2_000, property_filter=True)
    return Broker(config, MemoryStore(STORE), files, unique_id=lambda: f"{next(numbers):032X}", now_ms=now_ms)


class TableFiles(Target):
    """A broker that starts on tables of any content: it refuses them, or serves with them."""

    garbage_size = 1 << 30  # brokers that ended

    def run(self, count: int) -> None:
        super().run(count // 8)  # each starts brokers

    def next(self) -> bytes:
        self._name = self._chance.choice(list(TABLES))
        return self._grammar.table(self._name)

    def renew(self) -> None:
        self._grammar = Grammar(self._chance)
        self._name = ""

    def take(self, frame: bytes) -> None:
        disk = MemoryDisk()
        disk.replace(f"config/{self._name}", frame)
        try:
            core = self.meter.turn(len(frame), new_broker, START_MS, ConfigFileStore(disk))
        except MQError:
            return
        now_ms = START_MS
        for _ in range(3):
            command = decode_command(cut_frame(made := self._served(), 0, len(made)))
            self.meter.turn(0, core.handle, PEER, command, now_ms)
            now_ms += 7_000
            self.meter.turn(0, core.tick, now_ms)
        new_broker(now_ms, ConfigFileStore(disk))  # what it saved can be read

    def _served(self) -> bytes:
        """Return a request that iterates over tables."""
        code = self._chance.choice((21, 43, 45, 61, 201, 202, 208, 105, 300, 303, 317, 343, 402))
        return encode_command(RemotingCommand(code, {"topic": "T", "group": "g", "consumerGroup": "g"}))


class ServingClient(Target):
    """A client that receives requests: notifications, resets, checks, running info, direct consumption, replies."""

    to = "client"
    bombs = 0.0  # one body may take longer than a turn; LyingServer has them
    codes = (39, 40, 220, 221, 307, 309, 326)

    def renew(self) -> None:
        """Create a client that is not started: it opens no connection."""
        self._grammar = Grammar(self._chance, self.bombs)
        self._loop = MeteredLoop(self.meter)
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._client = ClientInstance("127.0.0.1:1")
        consumer = Consumer("g", "127.0.0.1:1", {"T": "*"}, client=self._client)

        async def handle(delivery: Delivery) -> None:
            assert isinstance(delivery.body, bytes)

        consumer.handler(handle)
        self._client.add_consumer(consumer)
        producer = TransactionProducer("g", "127.0.0.1:1", client=self._client, check=lambda message: None)
        self._client.add_producer("g", producer)

    def next(self) -> bytes:
        return self._frames.made(self._chance.choice(self.codes))

    def take(self, frame: bytes) -> None:
        command = self.meter.turn(len(frame), _command, frame)
        if command is None:
            return
        chance = self._chance
        if chance.random() < 0.8:
            command.ext["consumerGroup"] = "g"
        if chance.random() < 0.5:
            command.ext["topic"] = "T"
        if chance.random() < 0.5:
            command.body = self._grammar.records()
        self._loop.run_until_complete(self._serve(command))
        if (failure := self._loop.failure) is not None:
            self._loop.failure = None
            raise failure

    def end(self) -> None:
        self._loop.close()

    async def _serve(self, command: RemotingCommand) -> None:
        answer = self._client._on_request(cast(Connection, _Peer()), command)
        if answer is not None and not isinstance(answer, RemotingCommand):
            answer = _run(answer)
        if answer is not None:
            encode_command(answer)


class _Peer:
    """The connection of a request, with the attributes that a client reads."""

    address = "127.0.0.1:10911"


def _run(coroutine: Any) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    return None


class LyingCluster(Target):
    """An admin whose questions are answered by a broker; a share of the answers is changed on the way."""

    turn_s_per_byte = READ_S_PER_BYTE
    peak_size = EXPANDED_SIZE_MAX + 2 * BODY_SIZE_MAX
    bombs = 0.0
    address = "127.0.0.1:10911"

    def renew(self) -> None:
        self._world = World(self._chance)
        self._liar = Liar(self._chance.randrange(1 << 32))
        self._loop = MeteredLoop(self.meter)

    def run(self, count: int) -> None:
        super().run(count // 4)  # each asks several servers

    def next(self) -> bytes:
        return self._chance.randrange(1 << 16).to_bytes(2, "big")  # chooses the question

    def take(self, frame: bytes) -> None:
        self._loop.size = 0
        self._loop.run_until_complete(self._ask(int.from_bytes(frame, "big")))
        if (failure := self._loop.failure) is not None:
            self._loop.failure = None
            raise failure

    async def _ask(self, number: int) -> None:
        async with Admin("127.0.0.1:9876") as admin:
            vars(admin._client.pool)["request"] = self._answer
            asked = questions(admin, self.address)
            with contextlib.suppress(MQError, ConnectionError):
                await asked[number % len(asked)]()

    async def _answer(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        encode_command(command)
        reply = self._liar.altered(self._true_answer(command))
        self._loop.size += len(reply.body) + EXPANDED_AS
        data = frame_of(reply)
        return decode_command(cut_frame(data, 0, len(data)))

    def _true_answer(self, command: RemotingCommand) -> RemotingCommand:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return RemotingCommand(0, body=CLUSTER_INFO)
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return RemotingCommand(0, body=ROUTE)
        sends = self._world.broker.handle(PEER, command, START_MS)
        return next((send.command for send in sends if send.command.is_response), RemotingCommand(1))

    def end(self) -> None:
        self._loop.close()


class Expressions(Target):
    """SQL92 expressions, compiled and applied to properties."""

    def renew(self) -> None:
        self._grammar = Grammar(self._chance)

    def next(self) -> bytes:
        text = self._grammar.sql()
        data = text.encode("utf-8", "replace")
        if self._chance.random() < 0.05:
            return (self._chance.choice((data, b"", b"a = ")) + self._chance.choice(REPEATED) * LONG)[:LONG]
        return self._grammar.pumped(data, LONG)[:LONG] if self._chance.random() < 0.1 else data

    def take(self, frame: bytes) -> None:
        with contextlib.suppress(MQError):
            expression = self.meter.turn(len(frame), compile_sql, frame.decode("utf-8", "replace"))
            for _ in range(3):
                self.meter.turn(len(frame), expression.matches, self._grammar.properties().encode())


TARGETS: tuple[type[Target], ...] = (
    BrokerCore,
    BrokerUsers,
    BrokerAclFiles,
    BrokerBehindNet,
    BrokerUsersBehindNet,
    BrokerBehindTls,
    NameServerCore,
    NameServerAcl,
    ControllerCore,
    ControllerAcl,
    LyingServer,
    LyingCluster,
    ServingClient,
    TableFiles,
    Expressions,
)
