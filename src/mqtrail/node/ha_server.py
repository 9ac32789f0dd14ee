"""The HA port of a master on real sockets: sends the log to slaves (mqtrail.broker.ha decides what).

A slave that reads slowly holds nothing here: the next bytes are read from the log when its socket takes them. One turn
sends each slave at most TURN_CHUNKS pieces, so that requests are served in between. The protocol has no authentication:
`slave_addresses` says whose connections are taken. If all places are taken, an address that has more of them than the
newcomer's gives one up.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import cast

from mqtrail.broker import HaError, LogSender, Replicas
from mqtrail.net import BindError, Log, accept_no_more, bound_socket, join_address, why_not_bound
from mqtrail.store import LogDiffers, MessageStore, StoreError
from mqtrail.wire import AddressMatcher, address_matcher

SLAVES_MAX = 32  # connections; each may cost a share of the network
TURN_CHUNKS = 16  # pieces for one slave before others are served
BUFFER_SIZE = 256 * 1024  # bytes that wait in one socket's buffer
CHECK_S = 1.0  # interval at which heartbeats and silent slaves are checked

log = Log()


class HaServer:
    """`bind`, `start`, `stop`. Call `appended` after appends: it is cheap while a turn is scheduled.

    on_acked: called when a slave has reported a new position, or was lost.
    """

    def __init__(self, name: str, clock: Callable[[], int]) -> None:
        self._name = name
        self._clock = clock
        self._socket: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._last_number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._host = ""
        self.port = 0
        self.replicas: Replicas | None = None
        self.store: MessageStore | None = None
        self.on_acked: Callable[[], None] = lambda: None
        self._turn: asyncio.Handle | None = None
        self._is_stopping = False
        self._is_allowed: AddressMatcher = lambda ip: True

    def bind(self, host: str, port: int) -> None:
        """Take the port. BindError."""
        self._socket = bound_socket(host, port)
        self._host, self.port = host, self._socket.getsockname()[1]

    async def start(self, store: MessageStore, replicas: Replicas) -> None:
        """Accept slaves. BindError: another process listens on the port now."""
        assert self._socket is not None, "bind comes first"
        self.store, self.replicas = store, replicas
        if replicas.config.slave_addresses:
            self._is_allowed = address_matcher(replicas.config.slave_addresses)
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(lambda: _Link(self), sock=self._socket)
        except OSError as error:
            raise BindError(why_not_bound(self._host, self.port, error)) from error
        self._timer = loop.call_later(CHECK_S, self._check)

    def release(self) -> None:
        """Release the port, if start was never called."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def stop(self) -> None:
        """Close all connections and the port."""
        self._is_stopping = True
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()
        if self._listener is not None:
            assert self._socket is not None
            await accept_no_more(self._socket)
            self._listener.close()
            self._listener = None
        for link in list(self._links):
            link.close()
        self.release()

    def appended(self) -> None:
        """Let the slaves have what is new, soon."""
        if self._links and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._turn = None
        for link in list(self._links):
            link.send()

    def _check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        for link in list(self._links):
            link.check()

    # For connections.

    def admit(self, link: "_Link") -> LogSender | None:
        """Add a connection. None: slave_addresses lacks its address, there are too many, or asyncio accepted it while
        the port was being closed."""
        assert self.store is not None
        assert self.replicas is not None
        if self._is_stopping:
            return None
        if not self._is_allowed(link.ip):
            log.sparse.warning(
                "ha.address_refused",
                broker=self._name,
                peer=link.peer,
                expected=self.replicas.config.slave_addresses,
                remedy="add the address to slave_addresses if it is a slave's",
            )
            return None
        if len(self._links) >= SLAVES_MAX and not self._made_room(link.ip):
            log.sparse.warning(
                "ha.too_many_slaves", broker=self._name, found=len(self._links) + 1, expected=SLAVES_MAX, peer=link.peer
            )
            return None
        sender = self.replicas.sender(self.store, self._clock())
        self._last_number += 1
        link.number = self._last_number
        self._links.add(link)
        self.replicas.add(link.peer, sender)
        return sender

    def _made_room(self, ip: str) -> bool:
        """Close a connection of the address with the most, if this one has two fewer; return whether it did."""
        counts = Counter(one.ip for one in self._links)
        most, count = counts.most_common(1)[0]
        if count <= counts[ip] + 1:
            return False
        last = min((one for one in self._links if one.ip == most), key=lambda one: (one.is_known, -one.number))
        last.give_up(f"another address needs a place, and {most} has {count} of {SLAVES_MAX}")
        return True

    def forget(self, link: "_Link", why: str) -> None:
        """Remove a connection."""
        if link in self._links:
            self._links.discard(link)
            assert self.replicas is not None
            self.replicas.remove(link.peer)
            log.sparse.warning("ha.slave_lost", broker=self._name, slave=link.peer, found=why)
            self.on_acked()

    def now_ms(self) -> int:
        return self._clock()


class _Link(asyncio.Protocol):
    """One connection of a slave."""

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._sender: LogSender | None = None
        self._paused = False
        self._why = "the connection closed"
        self.is_known = False  # it has reported
        self.number = 0  # in the order of connections
        self.ip = self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        ip, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]  # None: it is gone already
        self.ip = str(ip).removeprefix("::ffff:")
        self.peer = join_address(self.ip, int(port))
        self._transport.set_write_buffer_limits(high=BUFFER_SIZE)
        self._sender = self._server.admit(self)
        if self._sender is None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        sender = self._sender
        if sender is None:
            return
        try:
            sender.receive(data, self._server.now_ms())
        except HaError as error:
            self._refuse(error)
            return
        if not self.is_known and sender.next_offset >= 0:
            self.is_known = True
            log.sparse.info("ha.slave_joined", slave=self.peer, from_physical_offset=sender.next_offset)
        self._server.on_acked()
        self.send()

    def send(self) -> None:
        """Send what is new, at most TURN_CHUNKS pieces; the next turn sends the rest."""
        sender, transport = self._sender, self._transport
        if sender is None or transport is None:
            return
        for _ in range(TURN_CHUNKS):
            if self._paused or transport.is_closing():
                return
            try:
                frame = sender.next_bytes(self._server.now_ms())
            except (LogDiffers, StoreError, OSError) as error:
                self._refuse(error)
                return
            if frame is None:
                return
            transport.write(frame)
        self._server.appended()

    def check(self) -> None:
        """Send a heartbeat that is due; close a silent connection."""
        if self._sender is None:
            return
        try:
            self._sender.check(self._server.now_ms())
        except HaError as error:
            self._refuse(error)
            return
        self.send()

    def _refuse(self, error: Exception) -> None:
        log.sparse.error("ha.slave_refused", slave=self.peer, error=str(error))
        self.give_up(str(error))

    def give_up(self, why: str) -> None:
        """Close the connection for a reason of this side."""
        self._why = why
        self._sender = None
        self.close()
        self._server.forget(self, why)

    def close(self) -> None:
        """Close the connection; what waits in its buffer is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._server.appended()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender = None
        self._server.forget(self, self._why if exc is None else str(exc))
