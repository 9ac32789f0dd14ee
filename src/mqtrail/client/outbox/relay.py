"""OutboxRelay: sends the messages of an outbox, and marks them.

    a step    renew the lease -> read at most batch_count_max rows -> send -> mark, and renew the lease

Only the relay with the lease sends. Within a step the rows of one order key are sent one after another, and different
keys and rows without a key at the same time. A relay that is killed between a send and its mark leaves the row unsent:
the next one sends it again, under the same id. So consumers see a message at least once, and recognise a repeat by its
id (`Inbox` and `Idempotent` do by default).
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import MQError, SendStatus, setting

from ..core import ClientError, Connect, SqlConnection, keep_going, transaction
from ..producer import Producer
from .table import Outbox, OutboxEntry

log = Log()

T = TypeVar("T")

PRUNED_AT_ONCE: Final = 1_000  # rows that are deleted in one transaction
LEASE_SHARE: Final = 0.5  # of the lease's time; after it a relay begins no further send before it renews the lease


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """Settings of an OutboxRelay."""

    batch_count_max: int = setting(100, "maximum number of messages read and sent in one step")
    poll_ms: int = setting(200, "delay before the table is read again when there is nothing to send")
    lease_ms: int = setting(30_000, "time after which another relay takes over from one that died")
    retry_ms: int = setting(1_000, "delay after a failed send; doubles with each failure of the message")
    retry_max_ms: int = setting(60_000, "maximum delay between two attempts")
    keep_ms: int = setting(24 * 60 * 60 * 1000, "time that sent rows are kept")
    prune_ms: int = setting(60_000, "interval at which sent rows are deleted, at most 1 000 each time")


class RelayCounts(NamedTuple):
    """Since the start. sent: acknowledged by a broker. failed: failed sends; their messages are tried again."""

    sent: int
    failed: int
    pruned: int


class OutboxRelay:
    """Sends the messages of an outbox. Run one in each process, or in a process of its own: one at a time works.

    connect: opens a connection with commit, rollback and close; it is called in a thread. producer: a started one,
    which must not degrade: a message in a local file is not sent.
    """

    def __init__(
        self, outbox: Outbox, connect: Connect, producer: Producer, *, config: RelayConfig | None = None
    ) -> None:
        self.config = config or RelayConfig()
        if self.config.batch_count_max < 1 or self.config.lease_ms < 1:
            raise ClientError("found batch_count_max or lease_ms below 1, expected at least 1")
        if producer.config.degrade:
            raise ClientError("found a producer with degrade, expected one without: a message in its file is not sent")
        if self.config.lease_ms * LEASE_SHARE < producer.config.send_timeout_ms:
            raise ClientError(
                f"found lease_ms {self.config.lease_ms} and a send_timeout_ms of {producer.config.send_timeout_ms}, "
                "expected a lease of at least twice the timeout: another relay would take over during a send"
            )
        self._outbox = outbox
        self._connect = connect
        self._producer = producer
        self._owner = f"{producer.client_id[:40]}#{secrets.token_hex(8)}"
        self._closing = asyncio.Event()
        self._idle = True
        self._lease_ends_s = 0.0
        self._next_prune_s = 0.0
        self._unmarked: list[int] = []  # sent
        self._unmarked_failures: list[tuple[OutboxEntry, str]] = []
        self._sent = self._failed = self._pruned = 0

    @property
    def counts(self) -> RelayCounts:
        """Counts since its start."""
        return RelayCounts(self._sent, self._failed, self._pruned)

    async def run(self) -> None:
        """Send until `close`. A failure of the database is logged, and the step is tried again."""
        try:
            await keep_going("outbox.relay", self._turn, self._closing.is_set, table=self._outbox.table)
        finally:
            await self._let_go()

    def close(self) -> None:
        """Let `run` end after its current step."""
        self._closing.set()

    async def step(self) -> int:
        """Do one step; return how many messages were sent. 0: none is due, or another relay has the lease.

        Raises the errors of the database. A failed send is noted in its row, and does not raise.
        """
        if self._idle and not self._unmarked and not await self._database(self._outbox.has_due, now_ms()):
            return 0
        if self._unmarked or self._unmarked_failures:  # the database was away
            await self._write_marks()
        entries = await self._database(self._read)
        self._idle = not entries
        if not entries:
            return 0
        chains: dict[int | str, list[OutboxEntry]] = {}
        for entry in entries:
            chains.setdefault(entry.id if entry.order_key is None else entry.order_key, []).append(entry)
        before = self._sent
        try:
            async with asyncio.TaskGroup() as tasks:
                for chain in chains.values():
                    tasks.create_task(self._send_in_order(chain))
        finally:  # also when the step is cancelled: what is sent is marked
            await _to_its_end(self._write_marks())
        return self._sent - before

    async def waiting(self) -> int:
        """Return how many messages are not sent yet."""
        return await self._database(self._outbox.waiting)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        if time.monotonic() >= self._next_prune_s:
            self._next_prune_s = time.monotonic() + self.config.prune_ms / 1000
            self._pruned += await self._database(self._prune)
        if await self.step():
            return
        try:
            async with asyncio.timeout(self.config.poll_ms / 1000):
                await self._closing.wait()
        except TimeoutError:
            pass

    async def _send_in_order(self, chain: list[OutboxEntry]) -> None:
        """Send messages one after another. A failure ends it: what follows must not overtake."""
        for entry in chain:
            if time.monotonic() >= self._lease_ends_s:
                return  # another relay may have the lease
            try:
                result = await self._producer.send(entry.message, order_key=entry.order_key)
            except MQError as error:
                self._failed += 1
                self._unmarked_failures.append((entry, str(error)))
                log.sparse.warning(
                    "outbox.send_failed",
                    id=entry.id,
                    topic=entry.message.topic,
                    attempts=entry.attempts + 1,
                    error=str(error),
                    remedy="none needed: it is retried; to stop retrying, delete the row",
                )
                return
            if result.status is not SendStatus.SEND_OK:
                log.sparse.warning("outbox.stored_less_safely", id=entry.id, status=result.status.value)
            self._sent += 1
            self._unmarked.append(entry.id)

    async def _write_marks(self) -> None:
        """Mark what was sent or failed. If the database fails, the marks are kept for the next step."""
        await self._database(self._mark)
        self._unmarked.clear()
        self._unmarked_failures.clear()

    def _read(self, sql: SqlConnection) -> list[OutboxEntry]:
        begun_s = time.monotonic()
        if not self._outbox.lease(sql, self._owner, self.config.lease_ms):
            return []
        self._lease_ends_s = begun_s + self.config.lease_ms * LEASE_SHARE / 1000
        return self._outbox.due(sql, now_ms(), self.config.batch_count_max)

    def _mark(self, sql: SqlConnection) -> None:
        now = now_ms()
        self._outbox.mark_sent(sql, self._unmarked, now)
        for entry, error in self._unmarked_failures:
            delay_ms = min(self.config.retry_ms << min(entry.attempts, 16), self.config.retry_max_ms)
            self._outbox.mark_failed(sql, entry.id, error, now + delay_ms)

    def _prune(self, sql: SqlConnection) -> int:
        return self._outbox.prune(sql, now_ms() - self.config.keep_ms, PRUNED_AT_ONCE)

    async def _let_go(self) -> None:
        try:
            await self._database(self._outbox.unlease, self._owner)
        except Exception as error:  # the lease ends by itself
            log.sparse.warning("outbox.lease_kept", table=self._outbox.table, error=repr(error))

    async def _database(self, act: Callable[..., T], *args: Any) -> T:
        """Run act with a connection, in one transaction, in a thread."""

        def work() -> T:
            with transaction(self._connect) as connection:
                return act(SqlConnection(connection), *args)

        return await asyncio.to_thread(work)


async def _to_its_end(work: Coroutine[Any, Any, object]) -> None:
    """Wait until work is done, also if this is cancelled meanwhile; then raise."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
