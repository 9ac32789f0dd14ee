"""A member of a DLedger group on a socket, with connections to the other members, and its log on a disk."""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from mqtrail.net import ConnectionPool, Log, NetError, Server, ServerConfig, TlsClientConfig, split_address
from mqtrail.raft.dledger import LedgerCommand, LedgerConfig, LedgerMember, LedgerPort
from mqtrail.store import StoreFull
from mqtrail.store.dledger import LedgerLog
from mqtrail.wire import (
    InvalidParameter,
    LedgerCode,
    LedgerMetadata,
    LedgerMetadataReply,
    LedgerStatus,
    MQError,
    RemotingCommand,
    decode_ledger_reply,
)

from .clock import SteadyClock
from .shell import Shell

FLUSH_S: Final = 0.5  # between two flushes, if no answer waits for one
CHECKPOINT_S: Final = 3.0
IDENTITY_S: Final = 5.0  # between two looks who answers at the own address

log = Log()


class LedgerNode:
    """`start`, then `stop`. addresses: id -> host:port of all members. first_body: see LedgerMember.

    host: IP address to listen on; None: that of the own address. The log belongs to the caller, who closes it.
    """

    def __init__(
        self,
        config: LedgerConfig,
        addresses: Mapping[str, str],
        ledger: LedgerLog,
        first_body: Callable[[int], bytes],
        host: str | None = None,
        server: ServerConfig | None = None,
        tls: TlsClientConfig | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """on_change: called after each step of the member, before anything is sent."""
        self.config = config
        self._on_change = on_change
        self.on_cut: Callable[[str, int, int], None] = lambda path, first, end: None
        """Called after the end of the log was removed: the file that has it, its first physical offset and its end."""
        self.ledger = ledger
        ledger.defers_cuts = True
        self._log_lock = asyncio.Lock()  # while another thread flushes the log or cuts it
        self._cutting: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        own_host, self.port = split_address(addresses[config.self_id])
        self.host = own_host if host is None else host
        self.clock = SteadyClock(f"dledger-{config.self_id}")
        self.member = LedgerMember(config, ledger, random.random, first_body, self.clock(), dict(addresses))
        self.member.instance = secrets.token_hex(8)
        self._core = LedgerPort(self.member)
        self._addresses = dict(addresses)
        self._names = {address: name for name, address in addresses.items()}
        self._server_config = server
        self._tls = tls
        self._server: Server | None = None
        self._shell: Shell | None = None
        self._pool: ConnectionPool | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._flushing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._job: asyncio.Future[object] | None = None  # a flush in another thread
        self._written = asyncio.Event()
        self._role = ""
        self.disconnected: set[str] = set()
        """Members to which a connection closed, and that have not answered since."""

    def admit(self, allows: Callable[[str], bool]) -> None:
        """Serve only requests from IP addresses that it allows."""
        self._core.allows = allows

    async def start(self) -> None:
        """Open the port, then serve. BindError; InvalidParameter: another process is this member.

        Everything is released then.
        """
        try:
            self._pool = ConnectionPool(
                on_disconnect=self._disconnected, tls=None if self._tls is None else self._tls.context()
            )
            self._shell = Shell(self._core, clock=self.clock, on_change=self._changed)
            self._server = Server(self._shell, self._server_config)
            self._server.bind(self.host, self.port)
            await self._server.start()
            await self._check_own_address()
            self._flushing = asyncio.create_task(self._flush())
            self._looking = asyncio.create_task(self._look())
            self._shell.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close every connection and the port. A flush that runs is waited for."""
        if self._shell is not None:
            self._shell.stop()
            self._shell = None  # connections that close from here on start no work
        tasks, self._asking = self._asking, set()
        if self._flushing is not None:
            self._flushing.cancel()
            tasks.add(self._flushing)
            self._flushing = None
        if self._looking is not None:
            tasks.add(self._looking)
            self._looking = None
        if self._cutting is not None:
            tasks.add(self._cutting)
            self._cutting = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._job is not None:
            await asyncio.gather(self._job, return_exceptions=True)
        self.ledger.end_truncate()  # of a cut that its task did not see end
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        if self._server is not None:
            await self._server.stop()
            self._server = None

    async def _check_own_address(self) -> None:
        """InvalidParameter: another process answers at this member's address, so two have one id: both could lead in
        one term. An address that this machine does not reach proves nothing."""
        config, address = self.config, self._addresses[self.config.self_id]
        request = LedgerMetadata(group=config.group, remote_id=config.self_id)
        command = RemotingCommand(LedgerCode.METADATA, body=request.encode())
        assert self._pool is not None
        try:
            reply = await self._pool.request(address, command, config.call_ms)
            found = decode_ledger_reply(LedgerCode.METADATA, reply.body)
        except (NetError, MQError, ValueError, OSError):
            return
        if not isinstance(found, LedgerMetadataReply) or found.code != LedgerStatus.SUCCESS:
            return
        if found.instance != self.member.instance:
            raise InvalidParameter(
                f"found another process at {address} that is member {config.self_id} of group {config.group}, expected "
                "this one: two members have one dLegerSelfId, or dLegerPeers has a wrong address for it; correct one "
                "of them, with an empty folder if this one has been a member"
            )

    async def _look(self) -> None:
        """Stop the member if another process takes its address later."""
        with suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(IDENTITY_S)
                try:
                    await self._check_own_address()
                except InvalidParameter as error:
                    self.failure = error
                    log.error("dledger.failed", member=self.config.self_id, error=str(error))
                    self.failed.set()
                    return

    def resign(self, why: str) -> None:
        """Lead no longer; see LedgerMember.resign."""
        self.member.resign(why, self.clock())
        self.advance()

    def advance(self) -> None:
        """Send what is due after entries were appended."""
        if self._shell is not None:
            self._shell.write(self._core.advance(self.clock()))
            self._shell.set_timer()

    def _changed(self) -> None:
        """After each step of the core: send its calls, flush what was written, report."""
        self._on_change()
        for problem in self._core.take_problems():
            log.sparse.warning("dledger.problem", member=self.config.self_id, found=problem)
        for call in self._core.take_calls():
            if self._shell is None:
                continue  # it stops
            task = asyncio.get_running_loop().create_task(self._ask(call))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        if self.ledger.flushed_position < self.ledger.end_position:
            self._written.set()
        if self.ledger.is_cutting and self._cutting is None:
            self._cutting = asyncio.get_running_loop().create_task(self._cut())
        member = self.member
        role = f"{member.role.value} {member.term} {member.leader}"
        if role != self._role:
            self._role = role
            log.info(
                "dledger.role",
                member=self.config.self_id,
                role=member.role.value,
                term=member.term,
                leader=member.leader,
            )

    async def _ask(self, call: LedgerCommand) -> None:
        reply: RemotingCommand | None = None
        pool = self._pool
        assert pool is not None
        try:
            reply = await pool.request(self._addresses[call.target], call.command, self.config.call_ms)
        except (NetError, MQError, ValueError, OSError) as error:  # ValueError: a host name that cannot be one
            log.sparse.warning("dledger.unreachable", member=call.target, error=str(error))
        if reply is not None:
            self.disconnected.discard(call.target)
        if self._shell is not None:
            self._shell.write(self._core.replied(call.number, reply, self.clock()))
            self._shell.set_timer()

    def _disconnected(self, address: str) -> None:
        """A connection that this member opened closed: the other one may have died."""
        name = self._names.get(address)
        if name is not None and self._shell is not None:
            self.disconnected.add(name)
            self._shell.write(self._core.lost(name, self.clock()))
            self._shell.set_timer()

    async def _cut(self) -> None:
        """Cut off what the leader asked for, in another thread. Without space for the file that keeps it, the log stays
        as it was."""
        async with self._log_lock:
            end = self.ledger.end_position
            self._job = asyncio.get_running_loop().run_in_executor(None, self.ledger.begin_truncate())
            try:
                await asyncio.shield(self._job)
            except (MQError, OSError) as error:
                log.sparse.error("dledger.not_cut", member=self.config.self_id, error=str(error), remedy="free space")
            self._job = self._cutting = None
            path = self.ledger.end_truncate()
            if path is not None:
                self.on_cut(path, self.ledger.end_position, end)
            if self._shell is not None:
                self._shell.write(self._core.end_cut(path, self.clock()))
                self._shell.set_timer()

    async def _flush(self) -> None:
        """Flush the log, and write checkpoints, in another thread. The first failure is final: the member stops.

        Without space for the note of a checkpoint the log is durable, and the next checkpoint tries again.
        """
        loop = asyncio.get_running_loop()
        checkpoint_s = loop.time() + CHECKPOINT_S
        try:
            while True:
                pause_s = checkpoint_s - loop.time()
                try:
                    async with asyncio.timeout(max(0.0, pause_s)):
                        await self._written.wait()
                except TimeoutError:
                    pass
                self._written.clear()
                if not self.config.waits_for_flush:
                    await asyncio.sleep(FLUSH_S)
                async with self._log_lock:
                    is_due = loop.time() >= checkpoint_s
                    if is_due:
                        checkpoint_s = loop.time() + CHECKPOINT_S
                    await self._flush_once(with_checkpoint=is_due)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = error
            log.error("dledger.failed", member=self.config.self_id, error=str(error))
            self.failed.set()

    async def _flush_once(self, *, with_checkpoint: bool) -> None:
        ledger = self.ledger
        job: Callable[[], object]
        job = ledger.begin_checkpoint(ledger.committed_index) if with_checkpoint else ledger.begin_flush()
        self._core.begin_flush()
        self._job = asyncio.get_running_loop().run_in_executor(None, job)
        try:
            await asyncio.shield(self._job)
        except StoreFull as error:
            if ledger.fault is not None:
                raise
            log.sparse.error(
                "dledger.checkpoint_failed",
                member=self.config.self_id,
                error=str(error),
                remedy="free space; the checkpoint is retried and no message is lost",
            )
        self._job = None
        if self._shell is not None:
            self._shell.write(self._core.end_flush(self.clock()))
            self._shell.set_timer()
