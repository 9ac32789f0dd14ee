"""A controller on a socket, with connections to the other controllers and to brokers."""

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from mqtrail.broker import read_credentials
from mqtrail.controller import Call, Controller, ControllerConfig
from mqtrail.net import (
    ConnectionPool,
    Log,
    NetError,
    Server,
    ServerConfig,
    TlsClientConfig,
    split_address,
)
from mqtrail.store import MemoryDisk, RealDisk
from mqtrail.wire import (
    AccountKey,
    Accounts,
    Credentials,
    InvalidParameter,
    Level,
    MQError,
    is_loopback,
    no_accounts,
    sign,
)

from .clock import SteadyClock
from .data_folder import DataFolder
from .files import unusable_files
from .shell import Shell
from .watchdog import Watchdog

ROOM: Final = "controller"  # in the data folder
CALLS_MAX: Final = 256  # commands that wait for one address; the oldest is dropped
LINES_MAX: Final = 1_000  # addresses from which those without waiting commands are forgotten
CALL_TIMEOUT_MS: Final = 1_000  # to connect and to write one of them
CALL_PAUSE_S: Final = 0.1  # after an address could not be reached

log = Log()


class ControllerNode:
    """`start`, then `stop`. data None: keep everything in memory, for tests. port 0 is not possible: peers name it.

    host: IP address to listen on; None: that of the own address in the list of peers. credentials: in place of those in
    config. accounts: further ones that may sign.
    """

    def __init__(
        self,
        config: ControllerConfig,
        data: Path | None = None,
        host: str | None = None,
        server: ServerConfig | None = None,
        tls: TlsClientConfig | None = None,
        credentials: Credentials | None = None,
        accounts: Accounts = no_accounts,
    ) -> None:
        """InvalidParameter: the credentials are malformed, or acl is on without any."""
        self._credentials = credentials or read_credentials(config.inner_credentials)
        self._accounts = accounts
        self._admin = read_credentials(config.admin_credentials)
        acl = self._credentials is not None if config.acl is None else config.acl
        if acl and self._credentials is None:
            raise InvalidParameter(
                "found acl = true without inner_credentials in [controller], expected the account of the brokers and "
                "of all controllers of the group"
            )
        self.config = config = replace(config, acl=acl)
        self.data = data
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self.core: Controller | None = None
        own_host, self.port = split_address(config.addresses[config.self_id])
        self.host = own_host if host is None else host
        self._server_config = server
        self._tls = tls
        self._folder: DataFolder | None = None
        self._server: Server | None = None
        self._shell: Shell | None = None
        self._pool: ConnectionPool | None = None
        self._lines: dict[str, _Line] = {}
        self._role = ""

    @property
    def address(self) -> str:
        """host:port that brokers and the other controllers use."""
        return self.config.addresses[self.config.self_id]

    @property
    def is_open_to_others(self) -> bool:
        """Whether other machines reach the port, and need no account to change something."""
        return not is_loopback(self.host) and not self.config.acl

    async def start(self) -> None:
        """Open the data folder and the port, then serve.

        DataFolderError, BindError, StoreError, RaftIdentityError, RaftDamaged; everything is released then.
        """
        try:
            clock = SteadyClock("controller")
            disk: MemoryDisk | RealDisk = MemoryDisk()
            if self.data is not None:
                self._folder = DataFolder.open(self.data)
                disk = RealDisk(self._folder.room(ROOM))
            with unusable_files("the controller"):
                self.core = Controller(self.config, disk, random.random, clock(), self._account)
            self._pool = ConnectionPool(
                on_disconnect=self._disconnected,
                tls=None if self._tls is None else self._tls.context(),
                sign=None if self._credentials is None else partial(sign, credentials=self._credentials),
            )
            self._shell = Shell(self.core, clock=clock, on_change=self._changed, watchdog=Watchdog(self.core.stalls))
            self._server = Server(self._shell, self._server_config)
            self._server.bind(self.host, self.port)
            await self._server.start()
            self._shell.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close every connection and the port; unlock the data folder."""
        if self._shell is not None:
            self._shell.stop()
            self._shell = None  # connections that close from here on start no work
        lines, self._lines = self._lines, {}
        tasks = [line.task for line in lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if self.core is not None:
            self.core.raft.journal.close()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _account(self, access_key: str) -> Iterator[AccountKey]:
        """Yield the keys of an account."""
        for one, level in ((self._credentials, Level.BROKER), (self._admin, Level.ADMIN)):
            if one is not None and one.access_key == access_key:
                yield AccountKey(one.secret_key.encode(), level)
        yield from self._accounts(access_key)

    def _changed(self) -> None:
        """After each step of the core: send its calls, report its role, stop if it failed."""
        core = self.core
        assert core is not None
        for peer, why in core.take_refusals():
            log.sparse.warning("controller.refused", controller=self.config.self_id, peer=peer, found=why)
        if self._shell is None:
            return  # it stops: its connections close
        for call in core.take_calls():
            self._line(call.address).put(call)
        role = f"{core.raft.role.value} {core.raft.term}" if core.is_leader else f"of {core.raft.leader}"
        if role != self._role:
            self._role = role
            log.info(
                "controller.role",
                controller=self.config.self_id,
                role=core.raft.role.value,
                term=core.raft.term,
                leader=core.raft.leader,
            )
        if core.failure is not None and self.failure is None:
            self.failure = core.failure
            log.error("controller.failed", controller=self.config.self_id, error=str(core.failure))
            self.failed.set()

    def _line(self, address: str) -> "_Line":
        line = self._lines.get(address)
        if line is None:
            if len(self._lines) >= LINES_MAX:
                self._lines = {known: one for known, one in self._lines.items() if one.is_busy}
            assert self._pool is not None
            line = self._lines[address] = _Line(self._pool, address)
        return line

    def _disconnected(self, address: str) -> None:
        """A connection that this controller opened closed: its peer may have died."""
        if self.core is not None and self._shell is not None and self._pool is not None:
            self._shell.write(self.core.lost(address))
            self._shell.set_timer()


class _Line:
    """The commands that wait for one address, and the task that writes them in order."""

    def __init__(self, pool: ConnectionPool, address: str) -> None:
        self._pool = pool
        self._address = address
        self._calls: deque[Call] = deque(maxlen=CALLS_MAX)
        self.task: asyncio.Task[None] | None = None  # runs while a command waits

    def put(self, call: Call) -> None:
        self._calls.append(call)
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._calls:
            call = self._calls.popleft()
            try:
                await self._pool.oneway(self._address, call.command, CALL_TIMEOUT_MS)
            except (NetError, MQError, ValueError, OSError) as error:  # ValueError: a host name that cannot be one
                log.sparse.warning("controller.unreachable", address=self._address, error=str(error))
                self._drop_old()
                await asyncio.sleep(CALL_PAUSE_S)

    @property
    def is_busy(self) -> bool:
        return self.task is not None and not self.task.done()

    def _drop_old(self) -> None:
        """Drop messages of consensus: newer ones replace them."""
        kept = [call for call in self._calls if not call.of_raft]
        self._calls.clear()
        self._calls.extend(kept)
