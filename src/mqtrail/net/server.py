"""The server side of remoting: a listening port and its connections.

Limits apply to the number of connections, to bytes of incomplete frames, and to the time that a connection is idle. See
server_connection for a single connection.

Source: NettyRemotingServer, apache/rocketmq remoting/.
"""

import asyncio
import errno
import socket
import time

from mqtrail.wire import MQError

from .address import host_address, join_address
from .log import Log
from .server_config import ServerConfig
from .server_connection import Application, BufferConnection, PieceConnection, ServerConnection
from .tls import TlsError, TlsFiles, TlsMode

RECEIVE_SIZE = 256 * 1024  # maximum bytes of one read
IDLE_SWEEPS = 8  # sweeps within the idle timeout
CLOSE_WAIT_S = 2.0  # at stop, for pending writes
ACCEPT_STEPS = 4  # loop iterations from accept until the connection exists, or ends because it is refused
TLS_WATCH_S = 5.0  # interval at which certificate files are checked for changes

log = Log()


class BindError(MQError):
    """The port could not be opened."""


class Server:
    """One listening port and its connections."""

    def __init__(
        self, application: Application | None = None, config: ServerConfig | None = None, *, first_id: int = 0
    ) -> None:
        """first_id: connection ids start after it. Two servers of one application need different ranges."""
        self.config = config or ServerConfig()
        self.application = application  # must be set before start
        self.tls: TlsFiles | None = None
        self.clock = time.monotonic  # seconds; measures the turns of connections
        self.connections: dict[int, ServerConnection] = {}
        self.partial_size = 0
        self.receive_buffer = memoryview(b"")
        self.host = ""
        self.port = 0
        self._socket: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._tls_timer: asyncio.TimerHandle | None = None
        self._last_id = first_id
        self._full_logged = False
        self._stopping = False
        self._empty = asyncio.Event()

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    @property
    def takes_tls(self) -> bool:
        """Whether connections may use TLS, so that their first byte must be checked."""
        return self.tls is not None and self.tls.current is not None

    def bind(self, host: str, port: int) -> None:
        """Bind to host and port; 0: any free port, see `port`. Peers cannot connect before start.

        BindError. TlsError: a certificate cannot be used.
        """
        if self.config.tls.mode is not TlsMode.DISABLED and self.config.tls.cert_path is not None:
            self.tls = TlsFiles(self.config.tls)
        self._socket = bound_socket(host, port)
        self.host = host
        self.port = self._socket.getsockname()[1]

    async def start(self) -> None:
        """Accept connections. BindError: another process listens on the port now."""
        assert self._socket is not None, "bind comes first"
        application = self.application
        assert application is not None, "an application comes first"
        loop = asyncio.get_running_loop()
        if _on_uvloop():
            kind: type[ServerConnection] = PieceConnection
        else:
            kind = BufferConnection
            self.receive_buffer = memoryview(bytearray(RECEIVE_SIZE))
        try:
            self._listener = await loop.create_server(
                lambda: kind(self, application),
                sock=self._socket,
                backlog=1024,
            )
        except OSError as error:
            self.release()
            raise BindError(why_not_bound(self.host, self.port, error)) from error
        self._stopping = False
        self._sweep_later()
        if self.tls is not None:
            self._schedule_tls_check()

    async def stop(self) -> None:
        """Stop listening, finish pending writes, close every connection."""
        for timer in (self._sweeper, self._tls_timer):
            if timer is not None:
                timer.cancel()
        self._stopping = True
        if self._listener is not None:
            assert self._socket is not None
            await accept_no_more(self._socket)
            self._listener.close()
        self._empty.clear()
        for connection in list(self.connections.values()):
            connection.close()
        if self.connections:
            try:
                async with asyncio.timeout(CLOSE_WAIT_S):
                    await self._empty.wait()
            except TimeoutError:
                for connection in list(self.connections.values()):
                    connection.abort()
                await self._empty.wait()  # an aborted connection is lost in the loop's next turns
        if self._listener is not None:
            await self._listener.wait_closed()
            self._listener = None
        self.release()

    def release(self) -> None:
        """Release the port, if start was never called."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def admit(self, connection: ServerConnection) -> bool:
        """Add a connection; return False if there are too many or the server stops."""
        if self._stopping:
            return False
        if len(self.connections) >= self.config.connection_count_max:
            if not self._full_logged:
                self._full_logged = True
                log.warning("server.full", port=self.port, connection_count_max=self.config.connection_count_max)
            return False
        self._last_id += 1
        connection.id = self._last_id
        self.connections[connection.id] = connection
        return True

    def forget(self, connection: ServerConnection) -> bool:
        """Remove a connection; return False if it was never admitted."""
        known = self.connections.pop(connection.id, None) is not None
        if len(self.connections) < self.config.connection_count_max:
            self._full_logged = False
        if not self.connections:
            self._empty.set()
        return known

    def make_room(self) -> None:
        """Close the connection with the most unserved bytes, even if another one sent last."""
        largest = max(self.connections.values(), key=lambda connection: connection.unfinished_size)
        largest.give_up(self.config.partial_size_max)

    def reload_tls(self) -> None:
        """Reload changed certificates for new connections. If one is invalid, the previous ones stay in use."""
        if self.tls is None:
            return
        try:
            if self.tls.reload():
                log.info("server.tls_reloaded", port=self.port, cert_path=str(self.config.tls.cert_path))
        except TlsError as error:
            log.error(
                "server.tls_not_reloaded",
                port=self.port,
                error=str(error),
                remedy="repair the certificate files; the previous certificate stays in use",
            )

    def _schedule_tls_check(self) -> None:
        self._tls_timer = asyncio.get_running_loop().call_later(TLS_WATCH_S, self._check_tls)

    def _check_tls(self) -> None:
        self._schedule_tls_check()
        self.reload_tls()

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(self.config.idle_timeout_ms / 1000 / IDLE_SWEEPS, self._sweep)

    def _sweep(self) -> None:
        for connection in list(self.connections.values()):
            if connection.active:
                connection.active = False
                connection.silent_sweeps = 0
                continue
            connection.silent_sweeps += 1
            if connection.silent_sweeps >= IDLE_SWEEPS:
                log.sparse.info(
                    "connection.idle", peer=str(connection.host), idle_timeout_ms=self.config.idle_timeout_ms
                )
                connection.close()
        self._sweep_later()


def _on_uvloop() -> bool:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0] == "uvloop"


async def accept_no_more(listening: socket.socket) -> None:
    """Finish connections being accepted: asyncio (3.11) leaves them open when its server closes. Then close it."""
    if not _on_uvloop():
        asyncio.get_running_loop().remove_reader(listening)
    for _ in range(ACCEPT_STEPS):
        await asyncio.sleep(0)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to host and port; 0: any free port. BindError."""
    sock: socket.socket | None = None
    try:
        family, kind, protocol, address = host_address(host, port)
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise BindError(why_not_bound(host, port, error)) from error
    except UnicodeError as error:  # a label that no name can have
        raise BindError(f"cannot listen on {join_address(host, port)}: {error}") from error
    return sock


def why_not_bound(host: str, port: int, error: OSError) -> str:
    """Return the text of a BindError."""
    address = join_address(host, port)
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {address}: the port is in use by another process; stop it or choose another port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"cannot listen on {address}: not permitted; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {address}: no interface of this machine has that address; check `ip address`"
    return f"cannot listen on {address}: {error}"
