"""One connection per address, opened at first use and again after it was lost."""

import asyncio
import ssl
from collections.abc import Callable

from mqtrail.wire import RemotingCommand

from .client import CONNECT_TIMEOUT_MS, Connection, OnRequest, Sign
from .errors import ConnectError, ConnectionClosed, RequestTimeout


class ConnectionPool:
    """Sends requests by address. Concurrent callers of one address share one attempt to connect.

    on_request: passed to every connection. on_connect, on_disconnect: called with the address; they must not block.
    prepare: called with every command before it is sent, to add common fields such as a namespace. sign: called after
    prepare; the last to change a command. tls: the TLS context of connections; None: plain.
    Use it only in the event loop that uses it first.
    """

    def __init__(
        self,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        on_request: OnRequest | None = None,
        on_connect: Callable[[str], None] | None = None,
        on_disconnect: Callable[[str], None] | None = None,
        prepare: Callable[[RemotingCommand], None] | None = None,
        sign: Sign | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connect_timeout_ms = connect_timeout_ms
        self._on_request = on_request
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self.prepare = prepare
        self._sign = sign
        self._tls = tls
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    async def request(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send command to address and return its reply. timeout_ms includes the time to connect.

        ConnectError, RequestTimeout, ConnectionClosed; see their `sent`.
        """
        if self.prepare is not None:
            self.prepare(command)
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            loop = asyncio.get_running_loop()
            begin = loop.time()
            connection = await self._open_within(address, timeout_ms)
            timeout_ms = max(1, timeout_ms - int((loop.time() - begin) * 1000))
        return await connection.request(command, timeout_ms)

    async def oneway(self, address: str, command: RemotingCommand, timeout_ms: int = CONNECT_TIMEOUT_MS) -> None:
        """Send command to address without a reply. ConnectError, RequestTimeout (socket full), ConnectionClosed."""
        if self.prepare is not None:
            self.prepare(command)
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = await self._open_within(address, timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await connection.oneway(command)
        except TimeoutError:
            raise RequestTimeout(f"{address} read nothing from its socket for {timeout_ms} ms", sent=False) from None

    async def connect(self, address: str) -> Connection:
        """Return the connection to address; open one if there is none. ConnectError."""
        if self._closed:
            raise ConnectionClosed(f"the connection pool is closed; nothing was sent to {address}", sent=False)
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.create_task(self._open(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opened(address, task))
        try:
            # If one caller is cancelled, the attempt continues for the others.
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise ConnectionClosed(
                f"the connection pool was closed; nothing was sent to {address}", sent=False
            ) from None

    @property
    def signs(self) -> bool:
        """Whether requests are signed. Signing needs the command, so frames cannot be written without it."""
        return self._sign is not None

    def connected(self, address: str) -> bool:
        """Whether an open connection to address exists now."""
        return self.connection(address) is not None

    def connection(self, address: str) -> Connection | None:
        """The open connection to address, None if there is none. Opens none."""
        connection = self._connections.get(address)
        return connection if connection is not None and not connection.closed else None

    def drop(self, address: str) -> None:
        """Close the connection to address, if there is one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Close every connection. Pending requests fail with ConnectionClosed."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    async def _open_within(self, address: str, timeout_ms: int) -> Connection:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.connect(address)
        except TimeoutError:
            raise ConnectError(f"no connection to {address} within the {timeout_ms} ms of the request") from None

    async def _open(self, address: str) -> Connection:
        connection = await Connection.open(
            address,
            connect_timeout_ms=self._connect_timeout_ms,
            on_request=self._on_request,
            on_closed=self._lost,
            sign=self._sign,
            tls=self._tls,
        )
        self._connections[address] = connection
        if self._on_connect is not None:
            self._on_connect(address)
        return connection

    def _opened(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # mark as retrieved: all callers may have been cancelled

    def _lost(self, connection: Connection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        if self._on_disconnect is not None:
            self._on_disconnect(connection.address)
