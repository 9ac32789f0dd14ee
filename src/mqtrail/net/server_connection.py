"""One accepted connection: each read from the socket is served as one piece, and its replies leave in one write.

An `Application` serves a piece and returns the position where it stopped. If the peer reads its replies too slowly, the
connection stops reading from it; above a second limit the connection closes. TLS and plain connections share the port:
the first byte of a connection decides.

Connections take turns. After its turn, a connection is not read from until the event loop has served the others. Bytes
received but not served yet wait here in order.

Source: NettyRemotingServer, NettyRemotingAbstract, apache/rocketmq remoting/.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from mqtrail.wire import Host, RemotingCommand, RemotingError, cut_frame, decode_command, frame_end

from .foreign import foreign_greeting
from .log import Log
from .server_config import ServerConfig
from .tls import TlsError, TlsFiles, TlsMode
from .tls_session import READ_SIZE, TlsSession, TlsTransport

TLS_HANDSHAKE = 0x16  # first byte of a TLS connection; in a frame it would be a length above 16 MiB
TURN_S: Final = 0.02  # after this time a turn ends with the current frame
HANDSHAKE_S: Final = 10.0  # time for a TLS handshake; Apache's server (Netty) waits as long
TURN_SHORT_S: Final = 0.002  # after a shorter turn, read again at once: one turn reads up to 32 pieces

log = Log()


class Port(Protocol):
    """The part of the server that a connection uses."""

    config: ServerConfig
    clock: Callable[[], float]
    port: int
    partial_size: int
    receive_buffer: memoryview
    tls: TlsFiles | None

    @property
    def takes_tls(self) -> bool: ...

    def admit(self, connection: "ServerConnection") -> bool: ...

    def forget(self, connection: "ServerConnection") -> bool: ...

    def make_room(self) -> None: ...


class Application(Protocol):
    """Serves the requests of a server's connections. Called in the loop's thread; must not block."""

    def connected(self, connection: "ServerConnection") -> None: ...

    def process(self, connection: "ServerConnection", buffer: bytes, start: int, end: int) -> int:
        """Serve whole frames of buffer[start:end], write the replies to connection, return the end of the last one.

        The next call gets the remaining bytes again, followed by newly received ones. Return before a whole frame if
        the socket is full (`write_paused`) or if `turn_is_over`. RemotingError: the bytes are malformed, and the
        connection closes.
        """
        ...

    def disconnected(self, connection: "ServerConnection") -> None: ...


def next_command(buffer: bytes, start: int, end: int) -> tuple[RemotingCommand | None, int]:
    """Return the command of the frame at start and the start of the next; (None, start) if the frame is incomplete.

    RemotingError: the frame or its header is malformed.
    """
    frame = frame_end(buffer, start, end)
    if not frame:
        return None, start
    return decode_command(cut_frame(buffer, start, frame)), frame


class ServerConnection(asyncio.BaseProtocol):
    """One accepted socket. `id` is unique as long as the server runs; `host` is the peer's address."""

    __slots__ = (
        "_application",
        "_encrypted",
        "_handshake_timer",
        "_needed",
        "_outgoing",
        "_partial",
        "_partial_size",
        "_receiving",
        "_server",
        "_tls",
        "_transport",
        "_turn_end_s",
        "_undecided",
        "_waits_turn",
        "_write_paused",
        "active",
        "data",
        "host",
        "id",
        "kept_s",
        "silent_sweeps",
    )

    def __init__(self, server: Port, application: Application) -> None:
        self._server = server
        self._application = application
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._partial = bytearray()  # not a list of pieces: a piece of one byte would take fifty
        self._partial_size = 0
        self._needed = 0
        self._receiving = False
        self._write_paused = False
        self._tls: TlsSession | None = None
        self._encrypted = b""  # received bytes that wait for the next turn to be decrypted
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._undecided = server.takes_tls
        self._turn_end_s = 0.0
        self._waits_turn = False
        self.id = 0
        self.host = Host("0.0.0.0", 0)
        self.active = True
        self.silent_sweeps = 0
        self.kept_s = 0.0  # loop time since which whole frames wait here; 0: none wait
        self.data: object = None  # for use by the application

    # What applications use

    @property
    def closed(self) -> bool:
        return self._transport is None

    @property
    def write_paused(self) -> bool:
        """Whether the peer has more unread bytes than `write_pause_size`."""
        return self._write_paused

    @property
    def unfinished_size(self) -> int:
        """Received bytes that are not served yet: of an incomplete frame, or of whole frames that wait."""
        return self._partial_size

    def turn_is_over(self) -> bool:
        """Whether this turn is over. Check it after work that may take long, and stop before the next frame."""
        return self._server.clock() >= self._turn_end_s

    def write(self, data: bytes) -> None:
        """Send data, in one write with the other replies of this piece. On a closed connection, do nothing."""
        if self._receiving:
            self._outgoing.append(data)
        elif self._transport is not None:
            self._transport.write(data)
            if self._write_paused:
                self._check_write_size()

    def close(self) -> None:
        """Close after pending writes."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once and drop unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._server.config.write_pause_size)
        name = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        self.host = Host(str(name[0]).removeprefix("::ffff:"), int(name[1]))
        if self._server.admit(self):
            self._application.connected(self)
            if self._undecided:
                loop = asyncio.get_running_loop()
                self._handshake_timer = loop.call_later(HANDSHAKE_S, self._end_handshake)
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._drop_partial()
        self._outgoing.clear()
        self._encrypted = b""
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()  # it would keep this connection and its TLS session
            self._handshake_timer = None
        if self._server.forget(self):
            self._application.disconnected(self)

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.active = True
        self._go_on()

    def received(self, data: bytes) -> None:
        """Serve data after the remaining bytes of earlier pieces."""
        self.active = True
        if self._undecided:
            self._undecided = False
            if not self._decide(data):
                return
        if self._tls is not None:
            if self._encrypted:
                self._encrypted += data
                return
            data = self._decrypt(self._tls, data)
            if not data:
                return
        if self._partial:
            self._partial += data
            self._partial_size += len(data)
            self._server.partial_size += len(data)
            if self._partial_size < self._needed or self._write_paused or self._waits_turn:
                if self._server.partial_size > self._server.config.partial_size_max:
                    self._server.make_room()
                return
            data = self._take_partial()
        self._serve(data)

    def give_up(self, limit: int) -> None:
        """Close this connection, because unserved bytes of all connections exceed the limit and it has the most."""
        self._refuse(f"{self._partial_size} bytes of unfinished frames, where those of all connections exceed {limit}")

    # TLS

    @property
    def is_tls(self) -> bool:
        return self._tls is not None

    def _decide(self, data: bytes) -> bool:
        """Choose TLS or plain by the connection's first byte. False: the connection is refused."""
        context = self._server.tls.current if self._server.tls is not None else None
        if data[0] == TLS_HANDSHAKE and context is not None and self._transport is not None:
            self._tls = TlsSession(context, server_side=True)
            self._transport = cast(asyncio.Transport, TlsTransport(self._transport, self._tls))
        elif self._server.config.tls.mode is TlsMode.ENFORCING:
            log.sparse.warning(
                "connection.refused",
                peer=str(self.host),
                port=self._server.port,
                found=foreign_greeting(data[:16]) or "a plain connection",
                expected="TLS: enable it in the client (tls.enable=true), or set tls.server.mode=permissive here",
            )
            self.close()
            return False
        return True

    def _decrypt(self, session: TlsSession, data: bytes) -> bytes:
        """Return the decrypted bytes; write handshake messages and alerts of the session.

        What would take longer than a turn waits for the next one: 256 KiB may hold 9,000 new TLS keys.
        """
        transport = cast(TlsTransport | None, self._transport)
        if transport is None:
            return b""
        clock = self._server.clock
        end_s = clock() + TURN_S
        pieces = []
        try:
            for start in range(0, len(data), READ_SIZE):
                pieces.append(session.receive(data[start : start + READ_SIZE]))
                if start + READ_SIZE < len(data) and clock() >= end_s:
                    self._encrypted = data[start + READ_SIZE :]
                    self._end_turn()
                    break
        except TlsError as error:
            transport.write_raw(session.take())
            log.sparse.warning("connection.tls_failed", peer=str(self.host), port=self._server.port, error=str(error))
            self.close()
            return b""
        transport.write_raw(session.take())
        if session.ended:
            asyncio.get_running_loop().call_soon(self.close)  # first serve the bytes before the end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _end_handshake(self) -> None:
        """Close a connection whose handshake takes too long: it needs no certificate to hold a place here."""
        if self._tls is None:
            is_late = self._undecided and self._server.config.tls.mode is TlsMode.ENFORCING
        else:
            is_late = not self._tls.established
        if is_late and self._transport is not None:
            log.sparse.warning(
                "connection.tls_failed",
                peer=str(self.host),
                port=self._server.port,
                error=f"no TLS handshake within {HANDSHAKE_S:.0f} s",
            )
            self.abort()

    # inside

    def _go_on(self) -> None:
        """Continue to read and serve, unless the peer must read its replies first or others have their turn."""
        if self._transport is None or not self._may_go_on():
            return
        self._transport.resume_reading()
        if self._partial and self._partial_size >= self._needed:
            self._serve(self._take_partial())
        if self._encrypted and self._may_go_on():
            data, self._encrypted = self._encrypted, b""
            self.received(data)

    def _may_go_on(self) -> bool:
        is_open = self._transport is not None and not self._transport.is_closing()
        return is_open and not self._write_paused and not self._waits_turn

    def _end_turn(self) -> None:
        """Stop reading until the loop has served the other connections."""
        if self._transport is not None and not self._waits_turn:
            self._waits_turn = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._waits_turn = False
        self._go_on()

    def _serve(self, data: bytes) -> None:
        start, end = 0, len(data)
        clock = self._server.clock
        began_s = clock()
        self._turn_end_s = began_s + TURN_S
        self._receiving = True
        try:
            while True:
                position = self._application.process(self, data, start, end)
                if position == end:
                    break
                if not frame_end(data, position, end):
                    self._keep(data[position:], 4 + int.from_bytes(data[position : position + 4]))
                    break
                self._flush()
                if self._write_paused or self.turn_is_over():
                    self._keep(data[position:], 0)
                    break
                start = position
        except RemotingError as error:
            self._refuse(foreign_greeting(data[start : start + 16]) or str(error))
        except Exception:
            log.sparse.exception("connection.failed", peer=str(self.host), port=self._server.port)
            self.close()
        finally:
            self._receiving = False
            self._flush()
            if self.kept_s and not self._partial:
                self.kept_s = 0.0
            if clock() - began_s >= TURN_SHORT_S:
                self._end_turn()

    def _flush(self) -> None:
        outgoing = self._outgoing
        if outgoing and self._transport is not None:
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))
            outgoing.clear()
            if self._write_paused:
                self._check_write_size()

    def _check_write_size(self) -> None:
        if self._transport is None:
            return
        size = self._transport.get_write_buffer_size()
        if size > self._server.config.write_size_max:
            log.sparse.warning(
                "connection.too_slow",
                peer=str(self.host),
                unread_size=size,
                limit=self._server.config.write_size_max,
                remedy="check why the peer does not read its replies; its connection was closed",
            )
            self._transport.abort()

    def _keep(self, data: bytes, needed: int) -> None:
        self._partial += data
        self._partial_size = len(data)
        self._server.partial_size += len(data)
        self._needed = needed if len(data) >= 4 else 4
        if not needed and not self.kept_s:
            self.kept_s = asyncio.get_running_loop().time()

    def _take_partial(self) -> bytes:
        data = bytes(self._partial)
        self._drop_partial()
        return data

    def _drop_partial(self) -> None:
        self._server.partial_size -= self._partial_size
        self._partial = bytearray()
        self._partial_size = self._needed = 0

    def _refuse(self, found: str) -> None:
        log.sparse.warning(
            "connection.refused",
            peer=str(self.host),
            port=self._server.port,
            found=found,
            expected="RocketMQ remoting frames",
        )
        self._flush()
        self._drop_partial()
        self.close()


class PieceConnection(ServerConnection, asyncio.Protocol):
    """For uvloop, which reads into its own buffer and copies."""

    __slots__ = ()
    data_received = ServerConnection.received


class BufferConnection(ServerConnection, asyncio.BufferedProtocol):
    """For asyncio, whose plain protocols allocate 256 KiB for each read."""

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received(bytes(self._server.receive_buffer[:nbytes]))
