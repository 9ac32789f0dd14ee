"""A slave's connection to its master's HA port (mqtrail.broker.ha decides what is appended and reported).

It connects again after every failure. A problem is logged when it changes, not at every attempt: a master that is
down, a log that does not continue this one, a full disk. Nothing that was appended is removed here: in controller mode
the connection ends when this log has bytes that the master does not have, and the broker is started again without them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from mqtrail.broker import BrokerConfig, Follower, Following, TailDiffers
from mqtrail.net import Log, NetError, split_address
from mqtrail.store import MessageStore
from mqtrail.wire import MQError

from .flusher import Flusher

RETRY_S = 1.0  # pause before the next attempt
CONNECT_TIMEOUT_S = 3.0
READ_SIZE = 256 * 1024  # bytes of one read, after which requests are served
CHECK_S = 0.5  # interval at which a due report and the silence of the master are checked

log = Log()


@dataclass(frozen=True, slots=True)
class SlaveParts:
    """What the connection calls. appended: after each append. check: before each connection; LogDiffers, NetError: the
    log must not be continued from this master now. following: kept up to date. follower: makes the slave's end of a
    connection. cut: called with the physical offset from which on the master has something else; then it ends."""

    appended: Callable[[], None]
    check: Callable[[], Awaitable[None]]
    following: Following
    follower: Callable[[int], Follower]
    cut: Callable[[int], None] = lambda physical_offset: None


class HaClient:
    """`start`, `stop`. master: host:port of the HA port; "": wait until `follow` gives it."""

    def __init__(
        self,
        store: MessageStore,
        flusher: Flusher,
        config: BrokerConfig,
        clock: Callable[[], int],
        parts: SlaveParts,
        master: str = "",
    ) -> None:
        self._name = config.broker_name
        self._store = store
        self._flusher = flusher
        self._config = config
        self._clock = clock
        self._parts = parts
        self._is_fixed = bool(master)
        self._address = master
        self._known = asyncio.Event()
        if master:
            self._known.set()
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._logged = ""

    def start(self) -> None:
        """Start to follow."""
        self._task = asyncio.create_task(self._run())

    def follow(self, address: str | None) -> None:
        """Take the address of the master's HA port from a name server. A configured address has precedence."""
        if self._is_fixed or not address or address == self._address:
            return
        self._address = address
        self._known.set()
        if self._writer is not None:
            self._writer.transport.abort()  # the next attempt connects to the new master

    async def stop(self) -> None:
        """Close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._known.wait()
            address = self._address
            try:
                await self._follow(address)
            except TailDiffers as error:
                self._report(address, error)
                self._parts.cut(error.common_end)
                return
            except (OSError, TimeoutError, ValueError, NetError, MQError) as error:
                self._report(address, error)
            except Exception:  # a fault must not end replication for good: log it, and connect again
                log.sparse.exception("ha.follow_failed", broker=self._name, master=address)
            await asyncio.sleep(RETRY_S)

    def _report(self, address: str, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if text != self._logged:
            self._logged = text
            log.error(
                "ha.not_following",
                broker=self._name,
                master=address,
                physical_offset=self._store.end_offset,
                found=text,
                remedy=f"none needed if the master returns; retried every {RETRY_S:g} s, and nothing is removed",
            )

    async def _follow(self, address: str) -> None:
        """Follow until the connection ends, which raises one of the errors above."""
        if self._config.sync_flush:
            await self._flushed()
        await self._parts.check()
        host, port = split_address(address)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
        self._writer = writer
        self._parts.following.master = address
        follower = self._parts.follower(self._clock())
        try:
            await self._copy(address, follower, reader, writer)
        finally:
            self._writer = None
            self._parts.following.is_connected = False
            writer.transport.abort()

    async def _copy(
        self, address: str, follower: Follower, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(follower.hello())
        self._send(follower, writer)
        while True:
            data = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    data = await reader.read(READ_SIZE)
                    if not data:
                        raise ConnectionError("the master closed the connection; its log has the reason")
            now_ms = self._clock()
            if data:
                end_offset = self._store.end_offset
                try:
                    follower.receive(data, now_ms)
                finally:
                    if self._store.end_offset > end_offset:
                        self._parts.appended()
                self._parts.following.read_ms = now_ms
                if follower.confirm_offset > self._parts.following.confirm_offset:
                    self._parts.following.confirm_offset = follower.confirm_offset
                    self._flusher.replicated()
                if not self._parts.following.is_connected:
                    self._parts.following.is_connected, self._logged = True, ""
                    log.info("ha.following", broker=self._name, master=address, physical_offset=end_offset)
            follower.check(now_ms)
            if self._config.sync_flush and follower.position < self._store.end_offset:
                self._flusher.when_flushed(self._store.end_offset, lambda: self._send(follower, writer))
            self._send(follower, writer)
            await writer.drain()
            await asyncio.sleep(0)  # serve requests also while bytes keep coming

    def _send(self, follower: Follower, writer: asyncio.StreamWriter) -> None:
        if not writer.is_closing() and (report := follower.report(self._clock())) is not None:
            writer.write(report)
            self._parts.following.reported_ms = self._clock()

    async def _flushed(self) -> None:
        done = asyncio.Event()
        self._flusher.when_flushed(self._store.end_offset, done.set)
        await done.wait()
