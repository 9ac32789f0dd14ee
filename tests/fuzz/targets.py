"""Targets of the fuzzer: cores alone, and a broker behind the net layer, which gets pieces of any size. A core may
return any answer and must not raise; the net layer may close the connection. Everything else is a bug.
"""

import asyncio
import contextlib
import random
import signal
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.client import ClientInstance, Consumer, Delivery, TransactionProducer
from mqtrail.client.core.outgoing import Outgoing, send_result
from mqtrail.client.core.routes import TopicRoute, read_route
from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.net import Connection, Server
from mqtrail.net.server_connection import PieceConnection
from mqtrail.node.broker_shell import BrokerShell
from mqtrail.store import CommitLogConfig, ConfigFileStore, MemoryDisk, MemoryStore
from mqtrail.trail import TRACE_REJECTS, TracePlace, trace_rows
from mqtrail.wire import (
    FLAG_RESPONSE,
    FrameDecoder,
    Host,
    MessageExt,
    MessageQueue,
    MQError,
    Peer,
    PeerId,
    PopHandle,
    RemotingCommand,
    RemotingError,
    Send,
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
)

from .frames import FrameMaker
from .grammar import BODIES, HEADERS, TABLES, Grammar

START_MS = 1_700_000_000_000
PEER = Peer(PeerId(7), Host("10.0.0.7", 40_007))
SLOW_S = 2.0  # CPU time of one frame, plus the allowance per byte; more would hang a broker
SLOW_S_PER_BYTE = 20e-6
PEAK_SIZE = 24 << 20  # bytes of memory for one frame, plus the allowance per byte
PEAK_PER_BYTE = 400
SHOWN_SIZE_MAX = 2_000  # bytes of a frame that are printed
MEASURED = 0.03  # share of frames whose memory is measured, which is slow
STORE = CommitLogConfig(
    segment_size=1 << 22,
    queue_entries=1_000,
    index_slots=100,
    index_entries=2_000,
    message_size_max=1 << 20,
    timer_log_file_size=52 * 640 + 16,
)


class Bug(Exception):
    """A frame caused an error."""


class Target:
    """Receives frames. `renew` drops what it has stored, since its memory counts as this process's."""

    to = "broker"

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._frames = FrameMaker(chance, self.to)
        self.renew()

    def renew(self) -> None:
        raise NotImplementedError

    def take(self, frame: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Drop all state: the next life starts empty."""

    def run(self, count: int) -> None:
        """Receive this number of frames. Bug: one of them failed; it names the frame."""
        for _ in range(count):
            self._one(self._frames.next())

    def _one(self, frame: bytes) -> None:
        """Receive one frame. A timer of CPU time interrupts a call that does not return."""
        is_measured = self._chance.random() < MEASURED
        allowed_s = SLOW_S + SLOW_S_PER_BYTE * len(frame)
        if is_measured:
            tracemalloc.start()
            allowed_s *= 10
        signal.setitimer(signal.ITIMER_VIRTUAL, allowed_s)
        try:
            self.take(frame)
            peak = tracemalloc.get_traced_memory()[1] if is_measured else 0
        except TooSlow:
            raise Bug(f"{type(self).__name__}: more than {allowed_s:.1f} s for a frame\n{_shown(frame)}") from None
        except Exception as error:
            raise Bug(f"{type(self).__name__}: {type(error).__name__}: {error}\n{_shown(frame)}") from error
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            tracemalloc.stop()
        allowed = PEAK_SIZE + PEAK_PER_BYTE * len(frame)
        if peak > allowed:
            raise Bug(f"{type(self).__name__}: {peak:,} bytes for a frame, expected {allowed:,}\n{_shown(frame)}")


class TooSlow(BaseException):
    """A frame used more CPU time than allowed; no core can catch this."""


def _too_slow(*_: object) -> None:
    raise TooSlow


signal.signal(signal.SIGVTALRM, _too_slow)


def _shown(frame: bytes) -> str:
    """Return the frame as text; of a long one both ends, since the seed makes it again."""
    if len(frame) <= SHOWN_SIZE_MAX:
        return f"frame: {frame.hex()}"
    return f"frame of {len(frame)} bytes: {frame[:SHOWN_SIZE_MAX].hex()} … {frame[-100:].hex()}"


def new_broker(now_ms: int, files: ConfigFileStore | None = None) -> Broker:
    numbers = iter(range(1 << 60))
    config = BrokerConfig(message_size_max=1 << 20, topics_max=2_000, groups_max=2_000, property_filter=True)
    return Broker(config, MemoryStore(STORE), files, unique_id=lambda: f"{next(numbers):032X}", now_ms=now_ms)


class CoreTarget(Target):
    """A core that gets every frame that can be decoded."""

    def make(self) -> Any:
        raise NotImplementedError

    def renew(self) -> None:
        self._now_ms = START_MS
        self._core = self.make()

    def take(self, frame: bytes) -> None:
        self._now_ms += self._chance.choice((0, 0, 1, 20, 1_000))
        try:
            end = frame_end(frame, 0, len(frame))
            command = decode_command(cut_frame(frame, 0, end)) if end else None
        except RemotingError:
            return
        if command is None:
            return
        sends: list[Send] = self._core.handle(PEER, command, self._now_ms)
        if self._chance.random() < 0.02:
            sends += self._core.tick(self._now_ms)
        if self._chance.random() < 0.01:
            sends += self._core.disconnected(PEER.id)
        for send in sends:
            encode_command(send.command)


class BrokerCore(CoreTarget):
    def make(self) -> Any:
        return new_broker(START_MS)


class NameServerCore(CoreTarget):
    to = "namesrv"

    def make(self) -> Any:
        return NameServer(NameServerConfig(), now_ms=START_MS)


class FakeTransport(asyncio.Transport):
    """Accepts written data, and records whether it was closed."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        super().__init__({"peername": ("10.0.0.7", 40_007)})
        self._on_close = on_close
        self.written = 0
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: writes are not buffered."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._on_close()

    abort = close


class BrokerBehindNet(Target):
    """A broker's shell and fast lane behind the net layer. Frames arrive in pieces; a closed connection is replaced."""

    def renew(self) -> None:
        self._now_ms = START_MS
        core = new_broker(START_MS)
        self._failure: Exception | None = None
        handle = core.handle
        vars(core)["handle"] = lambda *args: self._watched(handle, *args)
        self._shell = BrokerShell(core, clock=lambda: self._now_ms)
        process = self._shell.process
        vars(self._shell)["process"] = lambda *args: self._watched(process, *args)
        self._server = Server(self._shell)
        self._connect()

    def _watched(self, act: Callable[..., Any], *args: Any) -> Any:
        try:
            return act(*args)
        except RemotingError:
            raise
        except Exception as error:
            self._failure = error
            raise

    def _connect(self) -> None:
        self._connection = PieceConnection(self._server, self._shell)
        self._transport = FakeTransport(lambda: None)
        self._connection.connection_made(self._transport)

    def take(self, frame: bytes) -> None:
        self._now_ms += self._chance.choice((0, 0, 1, 20))
        at = 0
        while at < len(frame) and not self._transport.closing:
            end = len(frame) if self._chance.random() < 0.7 else min(len(frame), at + self._chance.randrange(1, 200))
            self._connection.data_received(frame[at:end])
            at = end
        if self._failure is not None:
            raise self._failure
        if self._transport.closing or self._chance.random() < 0.05:
            self._connection.connection_lost(None)
            self._connect()

    def end(self) -> None:
        self._connection.connection_lost(None)
        self._shell.stop()  # otherwise its timer would keep it, and the broker with its store


class LyingServer(Target):
    """A server that sends invalid data to every reader of replies and stored messages: client, look-up, pipeline."""

    to = "client"

    def renew(self) -> None:
        """Do nothing: readers keep no state."""
        self._grammar = Grammar(self._chance)

    def run(self, count: int) -> None:
        for _ in range(count):
            frame = self._frames.made(self._chance.choice((0, 0, 0, 1, 17, 19, 40, 220, 307, 326)), FLAG_RESPONSE)
            self._one(frame)

    def take(self, frame: bytes) -> None:
        decoder = FrameDecoder()
        decoder.feed(frame)
        try:
            while (cut := decoder.next_frame()) is not None:
                self._read(decode_command(cut))
        except RemotingError:
            return

    def _read(self, command: RemotingCommand) -> None:
        chance, ext, body = self._chance, command.ext, command.body
        refusal_for(command.code, command.remark)
        out = Outgoing("T", b"body", "", "ID")
        send_result(out, MessageQueue("T", "broker-a", 0), command)
        for kind in chance.sample(HEADERS, 4):
            with contextlib.suppress(MQError):
                kind.from_ext(ext).to_ext()
        for read in (PopHandle.decode, decode_start_offsets, decode_message_offsets, decode_order_counts):
            for value in list(ext.values())[:8]:
                with contextlib.suppress(MQError):
                    read(value)
        for one in chance.sample(BODIES, 6):
            with contextlib.suppress(MQError):
                one.decode(body).encode(strict=chance.random() < 0.5)
        with contextlib.suppress(MQError):
            for _ in read_registration(body, compressed=chance.random() < 0.5, topics_max=100_000):
                pass
        for message in self._messages(body):
            properties = decode_properties(encode_properties(message.properties))
            assert properties == dict(message.properties)
        place = TracePlace("c", "b", "T", 0, 0, 0, 0, "h:1")
        for relation, row in trace_rows(place, body):
            assert row["record_no"] >= (-1 if relation is TRACE_REJECTS else 0)  # -1: the whole body is rejected
        for data in (body, self._grammar.route()):
            with contextlib.suppress(MQError):
                route = read_route(data)
                TopicRoute.build("T", route)
                TopicRoute.from_template_route("T", route, 4)

    def _messages(self, body: bytes) -> list[MessageExt]:
        with contextlib.suppress(MQError):
            return decode_records(body, "broker-a")
        return []


class TableFiles(Target):
    """A broker that starts on tables of any content: it refuses them, or serves with them."""

    def run(self, count: int) -> None:
        for _ in range(count // 4):
            self._name = self._chance.choice(list(TABLES))
            self._one(self._grammar.table(self._name))

    def renew(self) -> None:
        self._grammar = Grammar(self._chance)
        self._name = ""

    def take(self, frame: bytes) -> None:
        disk = MemoryDisk()
        disk.replace(f"config/{self._name}", frame)
        try:
            core = new_broker(START_MS, ConfigFileStore(disk))
        except MQError:
            return
        now_ms = START_MS
        for _ in range(3):
            command = decode_command(cut_frame(made := self._served(), 0, len(made)))
            core.handle(PEER, command, now_ms)
            now_ms += 7_000
            core.tick(now_ms)
        new_broker(now_ms, ConfigFileStore(disk))  # what it saved can be read

    def _served(self) -> bytes:
        """Return a request that walks over tables."""
        code = self._chance.choice((21, 43, 45, 61, 201, 202, 208, 105, 300, 303, 317, 343, 402))
        return encode_command(RemotingCommand(code, {"topic": "T", "group": "g", "consumerGroup": "g"}))


class ServingClient(Target):
    """A client that receives requests: notifications, resets, checks, running info, direct consumption, replies."""

    to = "client"
    codes = (39, 40, 220, 221, 307, 309, 326)

    def renew(self) -> None:
        """Make a client that is not started: it opens no connection."""
        self._grammar = Grammar(self._chance)
        self._client = ClientInstance("127.0.0.1:1")
        consumer = Consumer("g", "127.0.0.1:1", {"T": "*"}, client=self._client)

        async def handle(delivery: Delivery) -> None:
            assert isinstance(delivery.body, bytes)

        consumer.handler(handle)
        self._client.add_consumer(consumer)
        producer = TransactionProducer("g", "127.0.0.1:1", client=self._client, check=lambda message: None)
        self._client.add_producer("g", producer)

    def run(self, count: int) -> None:
        for _ in range(count):
            self._one(self._frames.made(self._chance.choice(self.codes)))

    def take(self, frame: bytes) -> None:
        try:
            end = frame_end(frame, 0, len(frame))
            command = decode_command(cut_frame(frame, 0, end)) if end else None
        except RemotingError:
            return
        if command is None:
            return
        chance = self._chance
        if chance.random() < 0.8:
            command.ext["consumerGroup"] = "g"
        if chance.random() < 0.5:
            command.ext["topic"] = "T"
        if chance.random() < 0.5:
            command.body = self._grammar.records()
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


class Expressions(Target):
    """SQL92 expressions, compiled and applied to properties."""

    def renew(self) -> None:
        self._grammar = Grammar(self._chance)

    def run(self, count: int) -> None:
        for _ in range(count):
            text = self._grammar.sql()
            data = text.encode("utf-8", "replace")
            self._one(self._grammar.pumped(data, 16_000) if self._chance.random() < 0.05 else data)

    def take(self, frame: bytes) -> None:
        with contextlib.suppress(MQError):
            expression = compile_sql(frame.decode("utf-8", "replace"))
            for _ in range(3):
                expression.matches(self._grammar.properties().encode())


TARGETS: tuple[type[Target], ...] = (
    BrokerCore,
    NameServerCore,
    BrokerBehindNet,
    LyingServer,
    ServingClient,
    TableFiles,
    Expressions,
)
