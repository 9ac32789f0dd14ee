"""One accepted connection: pieces as they come from the socket go in, replies go out in one write.

An `Application` gets whole pieces and says how far it got; everything it writes while it looks at one piece leaves in
one write. A peer that reads too slowly is not read from any more, one that lets even that limit grow is cut off. TLS
and plain connections share the port: the first byte of a connection tells which it is.

Connections take turns. One that has used up its turn is not read from until the loop has been at the others; what it
sent and is not served waits here, in order.

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
from .tls_session import TlsSession, TlsTransport

TLS_HANDSHAKE = 0x16  # first byte of a TLS connection; as a frame's it would be a length above 16 MiB
TURN_S: Final = 0.02  # a connection's requests may hold the loop for so long, and end what they have begun
TURN_SHORT_S: Final = 0.002  # after a shorter turn it is read from again at once: a loop reads up to 32 pieces in a row

log = Log()


class Port(Protocol):
    """What a connection needs of the port that accepted it."""

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
    """What a server is for. Called in the loop's thread; must not wait."""

    def connected(self, connection: "ServerConnection") -> None: ...

    def process(self, connection: "ServerConnection", buffer: bytes, start: int, end: int) -> int:
        """Serve whole frames of buffer[start:end], write the replies to connection, return where it stopped.

        What lies behind that comes again, together with what follows it. Stopping before a whole frame means: let the
        socket take the replies first, or, where `turn_is_over`, let others have their turn. RemotingError: the bytes
        make no sense, the connection is closed.
        """
        ...

    def disconnected(self, connection: "ServerConnection") -> None: ...


def next_command(buffer: bytes, start: int, end: int) -> tuple[RemotingCommand | None, int]:
    """Return the command of the frame at start and where the next begins; (None, start) when it is not whole yet.

    The general road: one frame at a time, every header read in full. RemotingError.
    """
    frame = frame_end(buffer, start, end)
    if not frame:
        return None, start
    return decode_command(cut_frame(buffer, start, frame)), frame


class ServerConnection(asyncio.BaseProtocol):
    """One accepted socket. `id` is unique within the server's life; `host` is the peer's address."""

    __slots__ = (
        "_application",
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
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._needed = 0
        self._receiving = False
        self._write_paused = False
        self._tls: TlsSession | None = None
        self._undecided = server.takes_tls
        self._turn_end_s = 0.0
        self._waits_turn = False
        self.id = 0
        self.host = Host("0.0.0.0", 0)
        self.active = True
        self.silent_sweeps = 0
        self.kept_s = 0.0  # loop time since when whole frames wait here, for the peer to read or for others; 0: none do
        self.data: object = None  # the application's own, for as long as the connection lives

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
        """Bytes that wait here: of a frame that is not whole, or of whole ones that are not served yet."""
        return self._partial_size

    def turn_is_over(self) -> bool:
        """Whether it is others' turn: an application asks after what may take long, and stops before the next frame."""
        return self._server.clock() >= self._turn_end_s

    def write(self, data: bytes) -> None:
        """Send data, together with everything else that this piece brings; nothing happens on a closed connection."""
        if self._receiving:
            self._outgoing.append(data)
        elif self._transport is not None:
            self._transport.write(data)
            if self._write_paused:
                self._check_write_size()

    def close(self) -> None:
        """Close after what is written has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what is unsent is lost."""
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
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._drop_partial()
        self._outgoing.clear()
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
        """Serve data and what is left of earlier pieces."""
        self.active = True
        if self._undecided:
            self._undecided = False
            if not self._decide(data):
                return
        if self._tls is not None:
            data = self._decrypt(self._tls, data)
            if not data:
                return
        if self._partial:
            self._partial.append(data)
            self._partial_size += len(data)
            self._server.partial_size += len(data)
            if self._partial_size < self._needed or self._write_paused or self._waits_turn:
                if self._server.partial_size > self._server.config.partial_size_max:
                    self._server.make_room()
                return
            data = self._take_partial()
        self._serve(data)

    def give_up(self, limit: int) -> None:
        """Close the connection that holds the most, where unfinished frames of all hold too much."""
        self._refuse(f"{self._partial_size} bytes of unfinished frames, where those of all connections exceed {limit}")

    # TLS

    @property
    def is_tls(self) -> bool:
        return self._tls is not None

    def _decide(self, data: bytes) -> bool:
        """Look at the connection's first byte: TLS or plain? False: it is refused."""
        context = self._server.tls.current if self._server.tls is not None else None
        if data[0] == TLS_HANDSHAKE and context is not None and self._transport is not None:
            self._tls = TlsSession(context, server_side=True)
            self._transport = cast(asyncio.Transport, TlsTransport(self._transport, self._tls))
        elif self._server.config.tls.mode is TlsMode.ENFORCING:
            log.warning(
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
        """Return what the peer said; write what its handshake needs."""
        transport = cast(TlsTransport | None, self._transport)
        if transport is None:
            return b""
        try:
            said = session.receive(data)
        except TlsError as error:
            transport.write_raw(session.take())
            log.warning("connection.tls_failed", peer=str(self.host), port=self._server.port, error=str(error))
            self.close()
            return b""
        transport.write_raw(session.take())
        if session.ended:
            asyncio.get_running_loop().call_soon(self.close)  # what came before the end is served and answered first
        return said

    # inside

    def _go_on(self) -> None:
        """Read and serve again, once the peer has read its replies and others have had their turn."""
        if self._write_paused or self._waits_turn or self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._partial and self._partial_size >= self._needed:
            self._serve(self._take_partial())

    def _end_turn(self) -> None:
        """Read no more until the loop has been at the other connections."""
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
            log.exception("connection.failed", peer=str(self.host), port=self._server.port)
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
            log.warning(
                "connection.too_slow",
                peer=str(self.host),
                unread_size=size,
                limit=self._server.config.write_size_max,
                remedy="check why the peer does not read its replies; its connection was closed",
            )
            self._transport.abort()

    def _keep(self, data: bytes, needed: int) -> None:
        self._partial.append(data)
        self._partial_size = len(data)
        self._server.partial_size += len(data)
        self._needed = needed if len(data) >= 4 else 4
        if not needed and not self.kept_s:
            self.kept_s = asyncio.get_running_loop().time()

    def _take_partial(self) -> bytes:
        data = b"".join(self._partial)
        self._drop_partial()
        return data

    def _drop_partial(self) -> None:
        self._server.partial_size -= self._partial_size
        self._partial.clear()
        self._partial_size = self._needed = 0

    def _refuse(self, found: str) -> None:
        log.warning(
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
    """For uvloop, which copies each read from a buffer of its own."""

    __slots__ = ()
    data_received = ServerConnection.received


class BufferConnection(ServerConnection, asyncio.BufferedProtocol):
    """For asyncio, whose plain protocols allocate 256 KiB a read."""

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received(bytes(self._server.receive_buffer[:nbytes]))
