"""The client side of remoting: one connection.

`opaque` matches a reply to its request. Replies come in any order, and the peer may send requests on the same socket
(`on_request`). A connection belongs to the event loop that opened it.

If a request is cancelled, a later reply to it is dropped. All frames written in one iteration of the loop leave in one
write.
Source: NettyRemotingClient and NettyRemotingAbstract, apache/rocketmq remoting/.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

from mqtrail.wire import (
    REPLY_HEADER_SIZE_MAX,
    FrameDecoder,
    RemotingCommand,
    RemotingError,
    decode_command,
    encode_command,
)

from .address import split_address
from .errors import ConnectError, ConnectionClosed, RequestTimeout
from .log import Log
from .tls import TlsError
from .tls_session import READ_SIZE, TlsSession, TlsTransport

CONNECT_TIMEOUT_MS = 3_000  # connectTimeoutMillis
CLOSE_WAIT_MS = 1_000
PENDING_MAX = 65_535  # clientAsyncSemaphoreValue: requests without a reply on one connection
WRITE_BUFFER_HIGH = 4 * 1024 * 1024  # unsent bytes above which requests wait for the socket
SILENCE_CLOSES_MS = 500  # a timeout at least this long without any received byte closes the connection
OPAQUE_MASK = 0x7FFFFFFF
TURN_S = 0.02  # seconds spent on received bytes at once; then the loop serves others
PEER_REQUESTS_MAX = 1_024  # requests of the peer that are served or wait; further ones are dropped
PEER_REQUESTS_A_TURN = 16  # of these, how many begin in one turn of the event loop

Reply = RemotingCommand | None
OnRequest = Callable[["Connection", RemotingCommand], Reply | Awaitable[Reply]]
OnClosed = Callable[["Connection"], None]
Sign = Callable[[RemotingCommand], None]

log = Log()


class Connection(asyncio.Protocol):
    """One socket to a peer. Open it with `Connection.open`; `request` and `oneway` may be called concurrently.

    on_request: serves requests of the peer (codes 40, 220, 307, ...). It returns the reply, None for no reply, or an
    awaitable of either. on_closed: called once when the connection closes for any reason. sign: called with every
    request right before it is encoded.
    """

    def __init__(
        self,
        address: str,
        on_request: OnRequest | None,
        on_closed: OnClosed | None,
        sign: Sign | None = None,
        tls: TlsSession | None = None,
    ) -> None:
        self.address = address
        self._on_request = on_request
        self._on_closed = on_closed
        self._sign = sign
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._secured: asyncio.Future[None] | None = None if tls is None else self._loop.create_future()
        self._decoder = FrameDecoder(REPLY_HEADER_SIZE_MAX)
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._opaque = 0
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()
        self._closed = False
        self._reason = "closed by us"
        self._received = 0
        self._unread = b""  # received bytes that wait for the next turn, if need be to be decrypted
        self._waits_turn = False
        self._peer_requests: deque[RemotingCommand] = deque()  # requests of the peer that wait
        self._dropped = 0
        self._tasks: set[asyncio.Future[None]] = set()

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        on_request: OnRequest | None = None,
        on_closed: OnClosed | None = None,
        sign: Sign | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> "Connection":
        """Connect to `host:port`, with a TLS handshake if there is a TLS context.

        ConnectError: the address is malformed, refuses the connection or does not reply in time, or one side rejects
        the other's certificate.
        """
        try:
            host, port = split_address(address)
            async with asyncio.timeout(connect_timeout_ms / 1000):
                loop = asyncio.get_running_loop()
                session = None if tls is None else TlsSession(tls, server_side=False, host=host)
                _, connection = await loop.create_connection(
                    lambda: cls(address, on_request, on_closed, sign, session), host, port
                )
                await connection._shake_hands()
        except TimeoutError as error:
            raise ConnectError(
                f"no connection to {address} within {connect_timeout_ms} ms; check that the address is reachable"
            ) from error
        except (OSError, ValueError) as error:
            raise ConnectError(
                f"cannot connect to {address}: {error}; check that a server is listening there"
            ) from error
        return connection

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def pending_count(self) -> int:
        """Number of requests without a reply."""
        return len(self._pending)

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Set the command's `opaque`, send it and return the reply, also one with an error code.

        RequestTimeout, ConnectionClosed: `sent`: whether the peer may have received the request.
        """

        def write(opaque: int) -> bytes:
            command.opaque = opaque
            if self._sign is not None:
                self._sign(command)
            return encode_command(command)

        return await self.request_frame(write, timeout_ms)

    async def request_frame(self, write: Callable[[int], bytes], timeout_ms: int) -> RemotingCommand:
        """Do as `request` for a caller that encodes the frame itself: write(opaque) returns its bytes."""
        deadline = self._loop.time() + timeout_ms / 1000
        if not self._writable.is_set() or len(self._pending) >= PENDING_MAX:
            await self._wait_for_room(deadline, timeout_ms)
        self._check_open()
        opaque = self._next_opaque()
        self._write(write(opaque))
        reply: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._pending[opaque] = reply
        timer = self._loop.call_at(deadline, self._expire, opaque, timeout_ms, self._received)
        try:
            return await reply
        finally:
            timer.cancel()
            self._pending.pop(opaque, None)

    async def oneway(self, command: RemotingCommand) -> None:
        """Set the oneway flag and send the command without waiting for a reply. Waits only while the socket is full."""
        await self._writable.wait()
        self._check_open()
        command.opaque = self._next_opaque()
        command.flag |= 2
        if self._sign is not None:
            self._sign(command)
        self._write(encode_command(command))

    def close(self) -> None:
        """Close the socket after pending writes. Requests without a reply fail with ConnectionClosed now."""
        self._lost("closed by us")

    async def wait_closed(self, timeout_ms: int = CLOSE_WAIT_MS) -> None:
        """Wait, after `close`, until the socket is closed. After timeout_ms, drop unread bytes."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._gone.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            tls_transport = TlsTransport(self._transport, self._tls)
            self._transport = cast(asyncio.Transport, tls_transport)
            self._tls.start()
            tls_transport.write_raw(self._tls.take())

    def data_received(self, data: bytes) -> None:
        self._received += 1
        self._unread = self._unread + data if self._unread else data
        if not self._waits_turn:
            self._read_on()

    def _read_on(self) -> None:
        """Read what was received, for at most TURN_S: a piece may hold thousands of frames, or of new TLS keys."""
        self._waits_turn = False
        end_s = time.monotonic() + TURN_S
        try:
            while True:
                while (frame := self._decoder.next_frame()) is not None:
                    self._on_command(decode_command(frame))
                    if time.monotonic() >= end_s:
                        self._end_turn()
                        return
                if not self._unread:
                    if self._tls is not None and self._tls.ended:
                        self._lost(f"{self.address} closed the connection")
                    return
                self._decoder.feed(self._next_piece())
                if self._unread and time.monotonic() >= end_s:
                    self._end_turn()
                    return
        except RemotingError as error:
            log.sparse.warning("connection.bytes_refused", peer=self.address, error=str(error))
            self._lost(f"{self.address} sent invalid bytes: {error}")

    def _next_piece(self) -> bytes:
        """Take unread bytes, and decrypt them."""
        if self._tls is None:
            data, self._unread = self._unread, b""
            return data
        data, self._unread = self._unread[:READ_SIZE], self._unread[READ_SIZE:]
        return self._decrypt(self._tls, data)

    def _end_turn(self) -> None:
        """Read nothing until the loop has served others."""
        if self._transport is not None and not self._closed:
            self._waits_turn = True
            self._transport.pause_reading()
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        reason = f"{self.address} closed the connection"
        if self._secured is not None and not self._secured.done():
            reason += " during the TLS handshake; check that this port accepts TLS"
        self._lost(reason + (f": {exc}" if exc else ""))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # inside

    async def _shake_hands(self) -> None:
        """Wait for the handshake. ConnectError."""
        if self._secured is None:
            return
        try:
            await self._secured
        except BaseException:
            self._lost("the TLS handshake did not complete")
            raise

    def _decrypt(self, session: TlsSession, data: bytes) -> bytes:
        """Return the decrypted bytes; write handshake messages and alerts of the session."""
        transport = cast(TlsTransport, self._transport)
        try:
            plain = session.receive(data)
        except TlsError as error:
            transport.write_raw(session.take())
            self._lost(f"{self.address}: {error}")
            return b""
        transport.write_raw(session.take())
        if session.established and self._secured is not None and not self._secured.done():
            self._secured.set_result(None)
        return plain

    def _on_command(self, command: RemotingCommand) -> None:
        if command.is_response:
            waiting = self._pending.get(command.opaque)
            if waiting is None or waiting.done():
                log.debug("connection.reply_unasked", peer=self.address, opaque=command.opaque, code=command.code)
            else:
                waiting.set_result(command)
        elif self._on_request is not None:
            self._take_request(command)

    def _take_request(self, command: RemotingCommand) -> None:
        """Serve a request of the peer in a later turn, or drop it: a peer can send more than can be served."""
        if len(self._peer_requests) + len(self._tasks) < PEER_REQUESTS_MAX:
            self._peer_requests.append(command)
            if len(self._peer_requests) == 1:
                self._loop.call_soon(self._begin_some)
            return
        self._dropped += 1
        if self._dropped.bit_count() == 1:  # 1, 2, 4, …: a flood must not fill the log
            log.warning(
                "connection.requests_dropped",
                peer=self.address,
                count=self._dropped,
                remedy=f"none here: the peer has {PEER_REQUESTS_MAX} requests without a reply and sends more",
            )

    def _begin_some(self) -> None:
        assert self._on_request is not None
        for _ in range(min(PEER_REQUESTS_A_TURN, len(self._peer_requests))):
            task = asyncio.ensure_future(self._serve(self._on_request, self._peer_requests.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._peer_requests:
            self._loop.call_soon(self._begin_some)

    async def _serve(self, on_request: OnRequest, command: RemotingCommand) -> None:
        try:
            answer = on_request(self, command)
            reply = answer if answer is None or isinstance(answer, RemotingCommand) else await answer
            if reply is None or command.is_oneway or self._closed:
                return
            reply.opaque = command.opaque
            reply.flag |= 1
            data = encode_command(reply)
            await self._writable.wait()  # a peer that reads nothing gets no further answers
            if not self._closed:
                self._write(data)
        except Exception:
            log.sparse.exception("connection.request_failed", peer=self.address, code=command.code)

    async def _wait_for_room(self, deadline: float, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._writable.wait()
        except TimeoutError:
            raise RequestTimeout(
                f"{self.address} read nothing from its socket for {timeout_ms} ms; the request was not sent", sent=False
            ) from None
        if len(self._pending) >= PENDING_MAX:
            raise RequestTimeout(
                f"{PENDING_MAX} requests to {self.address} already wait for a reply; this one was not sent", sent=False
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosed(f"connection to {self.address}: {self._reason}; not sent", sent=False)

    def _next_opaque(self) -> int:
        self._opaque = opaque = (self._opaque + 1) & OPAQUE_MASK
        return opaque

    def _write(self, data: bytes) -> None:
        self._outgoing.append(data)
        if len(self._outgoing) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def _expire(self, opaque: int, timeout_ms: int, received: int) -> None:
        waiting = self._pending.get(opaque)
        if waiting is None or waiting.done():
            return
        waiting.set_exception(
            RequestTimeout(f"no reply from {self.address} within {timeout_ms} ms; the request may have been served")
        )
        if received == self._received and timeout_ms >= SILENCE_CLOSES_MS:
            self._lost(f"{self.address} was silent for {timeout_ms} ms")

    def _lost(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._reason = reason
        self._unread = b""
        if self._secured is not None and not self._secured.done():
            self._secured.set_exception(ConnectError(f"cannot connect to {self.address}: {reason}"))
            self._outgoing.clear()
        self._flush()
        self._writable.set()
        if self._transport is not None:
            self._transport.close()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(ConnectionClosed(f"no reply: {reason}"))
        self._peer_requests.clear()
        for task in tuple(self._tasks):
            task.cancel()
        if self._on_closed is not None:
            self._on_closed(self)
