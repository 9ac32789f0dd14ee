"""What frames are thrown at: cores by themselves, and a broker behind the net layer, in pieces of any size.

A core may answer anything, and must not raise; the net layer may close the connection. Whatever else happens is a bug.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.net import Server
from mqtrail.net.server_connection import PieceConnection
from mqtrail.node.broker_shell import BrokerShell
from mqtrail.store import CommitLogConfig, MemoryStore
from mqtrail.wire import Host, Peer, PeerId, RemotingError, Send, cut_frame, decode_command, encode_command, frame_end

from .frames import FrameMaker

START_MS = 1_700_000_000_000
PEER = Peer(PeerId(7), Host("10.0.0.7", 40_007))
SLOW_S = 5.0  # of the processor, for one frame; anything near it hangs a broker
STORE = CommitLogConfig(
    segment_size=1 << 22,
    queue_entries=1_000,
    index_slots=100,
    index_entries=2_000,
    message_size_max=1 << 20,
    timer_log_file_size=52 * 640 + 16,
)


class Bug(Exception):
    """What a frame brought about."""


class Target:
    """Takes frames. `renew` makes it forget what it has stored, as its memory is this process's."""

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
        """Let go of everything: nothing of this life may be left."""

    def run(self, count: int) -> None:
        """Take so many frames. Bug: one of them was too much; the frame is told."""
        for _ in range(count):
            frame = self._frames.next()
            began_s = time.process_time()
            try:
                self.take(frame)
            except Exception as error:
                raise Bug(f"{type(self).__name__}: {type(error).__name__}: {error}\nframe: {frame.hex()}") from error
            if (took_s := time.process_time() - began_s) > SLOW_S:
                raise Bug(f"{type(self).__name__}: {took_s:.1f} s for one frame\nframe: {frame.hex()}")


def new_broker(now_ms: int) -> Broker:
    numbers = iter(range(1 << 60))
    config = BrokerConfig(message_size_max=1 << 20, topics_max=2_000, groups_max=2_000)
    return Broker(config, MemoryStore(STORE), unique_id=lambda: f"{next(numbers):032X}", now_ms=now_ms)


class CoreTarget(Target):
    """A core that is handed every frame that can be decoded."""

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
    """Takes what is written, and remembers whether it was closed."""

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
        """Nothing is buffered."""

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
    """A broker's shell and fast lane behind the net layer. Frames come in pieces; a closed connection is made anew."""

    def renew(self) -> None:
        self._now_ms = START_MS
        core = new_broker(START_MS)
        self._failure: Exception | None = None
        handle = core.handle
        core.handle = lambda *args: self._watched(handle, *args)  # type: ignore[method-assign]
        self._shell = BrokerShell(core, clock=lambda: self._now_ms)
        process = self._shell.process
        self._shell.process = lambda *args: self._watched(process, *args)  # type: ignore[method-assign]
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
        self._shell.stop()  # or its timer would keep it, and the broker with all that it has stored


TARGETS: tuple[type[Target], ...] = (BrokerCore, NameServerCore, BrokerBehindNet)
