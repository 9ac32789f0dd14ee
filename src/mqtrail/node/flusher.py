"""The thread that makes the log durable, and the replies that wait for it, and for slaves.

Replies that must not leave before their record is durable wait in a list. One fdatasync releases all replies that it
covers (group commit), in slices; later ones wait for the next one. The thread only syncs. Only the event loop's thread
changes the lists and decides what a flush covers. fdatasync releases the GIL, so the loop continues to serve.

With a SYNC_MASTER the same replies also wait until slaves have their records (SYNC_FLUSH: in addition): what releases
them is the lower one of both positions. A read waits like the send of its newest record, but not longer than that; in
controller mode it waits until its records are replicated, because another master may not have them.
Source: GroupCommitService and FlushRealTimeService, apache/rocketmq store/CommitLog.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Protocol

from mqtrail.broker.ha import EVERYTHING
from mqtrail.net import Log
from mqtrail.store import StoreAway, StoreBroken, StoreBusy
from mqtrail.wire import ResponseCode

LATE_MS = 5_000  # syncFlushTimeout
AWAY_PAUSE_S: Final = 0.5  # between two attempts to reach a database that is away
JOIN_S: Final = 0.1
WAITING_MAX: Final = 100_000  # replies
WAITING_SIZE_MAX: Final = 256 * 1024 * 1024  # bytes of these
RELEASED_A_SLICE: Final = 500  # of them, before other requests are served
Late = Callable[[ResponseCode], Callable[[], None] | None]

log = Log()


class Flushable(Protocol):
    """The part of a store that the flusher uses."""

    @property
    def flushed_offset(self) -> int: ...

    @property
    def fault(self) -> str | None:
        """Why the log can no longer be made durable; None: it can."""
        ...

    def begin_flush(self) -> Callable[[], int]:
        """Note the present end of the log; return a function for the flush thread that makes it durable so far."""
        ...


class Replication(Protocol):
    """The part of a master's replicas that the flusher uses."""

    @property
    def replicated_offset(self) -> int:
        """The physical offset up to which enough slaves have the log, or up to which a DLedger group committed it."""
        ...

    @property
    def is_missing(self) -> bool:
        """Whether there is no slave to wait for."""
        ...

    @property
    def hides_unconfirmed(self) -> bool:
        """Whether no one may read what is not replicated, however long that takes."""
        ...


@dataclass(slots=True)
class _FlushWaiter:
    """A reply that waits for a flush."""

    physical_offset: int
    release: Callable[[], None]
    late: Late | None
    deadline_s: float
    size: int


class Flusher:
    """Runs the store's flushes and other disk jobs in one thread, one after another.

    on_failure: called in the loop's thread when a flush or another job could not sync the log. Appended records may
    never become durable then: waiting replies are not released, and no later flush is tried, because the kernel may
    have dropped the dirty pages.

    A database that is unreachable (StoreAway) is retried until it answers; replies wait until it is back.

    late_ms: how long a reply may wait before `late` of `after` is called. late_code: what `late` gets if the record is
    not on enough slaves, or not committed by a DLedger group. replication: replies wait for it too; None: for the flush
    alone. flushes: whether replies wait for the flush; False only with a replication.
    """

    def __init__(
        self,
        store: Flushable,
        on_failure: Callable[[BaseException], None],
        *,
        late_ms: int = LATE_MS,
        late_code: ResponseCode = ResponseCode.FLUSH_SLAVE_TIMEOUT,
        replication: Replication | None = None,
        flushes: bool = True,
    ) -> None:
        self._store = store
        self._replication = replication
        self._flushes = flushes
        self._late_code = late_code
        self._on_failure = on_failure
        self._late_s = late_ms / 1000
        self._late_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_FlushWaiter] = deque()
        self._unflushed: deque[tuple[int, Callable[[], None]]] = deque()  # of `when_flushed`
        self._overdue: deque[_FlushWaiter] = deque()  # `late` was called; the rest of them still waits
        self._size = 0  # bytes of both
        self._is_releasing = False
        self._running = False
        self._failed = False
        self._is_away = False
        self._jobs: SimpleQueue[tuple[Callable[[], object], Callable[[], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()

    @property
    def waiting_count(self) -> int:
        """Number of replies that wait for a flush."""
        return len(self._waiting) + len(self._overdue)

    @property
    def waiting_size(self) -> int:
        """Bytes of these replies."""
        return self._size

    def after(
        self,
        physical_offset: int,
        release: Callable[[], None],
        late: Late | None = None,
        refuse: Callable[[], None] | None = None,
        size: int = 0,
    ) -> None:
        """Call release once the log is durable up to physical_offset: now, or after a flush that this starts.

        late: called with the code to answer if that takes too long, or if there is no slave to wait for. Its result is
        called instead of release after the flush; None: no call. refuse: called at once if too many replies wait.
        size: bytes of the reply.
        """
        if physical_offset <= self._done_offset():
            release()
            return
        if refuse is not None and (self.waiting_count >= WAITING_MAX or self._size + size > WAITING_SIZE_MAX):
            refuse()
            return
        self._size += size
        self._waiting.append(_FlushWaiter(physical_offset, release, late, self._loop.time() + self._late_s, size))
        if self._late_timer is None and late is not None:
            self._late_timer = self._loop.call_later(self._late_s, self._check_late)
        if not self._running and physical_offset > self._flushed_offset():
            self.ask()
        elif self._replication is not None and self._replication.is_missing:
            self.replicated()

    def when_flushed(self, physical_offset: int, done: Callable[[], None]) -> None:
        """Call done once the log is durable up to physical_offset, whatever slaves have."""
        if physical_offset <= self._store.flushed_offset:
            done()
            return
        self._unflushed.append((physical_offset, done))
        self.ask()

    def _flushed_offset(self) -> int:
        """Return the position up to which no reply waits for a flush."""
        return self._store.flushed_offset if self._flushes else EVERYTHING

    def _done_offset(self) -> int:
        """Return the position up to which no reply waits."""
        flushed_offset = self._flushed_offset()
        return flushed_offset if self._replication is None else min(flushed_offset, self._replication.replicated_offset)

    def _read_offset(self) -> int:
        """Return the position up to which reads need not wait: that of replies if unconfirmed records are hidden, else
        the flushed one."""
        is_hidden = self._replication is not None and self._replication.hides_unconfirmed
        return self._done_offset() if is_hidden else self._flushed_offset()

    def replicated(self) -> None:
        """Release what slaves have now, or what has no slave to wait for."""
        if not self._is_releasing and (self._waiting or self._overdue):
            self._is_releasing = True
            self._loop.call_soon(self._release)

    def ask(self) -> None:
        """Flush now, unless a flush is under way."""
        if not self._running and not self._failed:
            try:
                job = self._store.begin_flush()
            except StoreBroken as error:  # an append or another job found the fault first
                self._fail(error)
                return
            self._running = True
            self._jobs.put((job, self._flushed))

    def run(self, job: Callable[[], object]) -> None:
        """Run another job in the thread. A failure is logged."""
        self._jobs.put((job, _nothing))

    async def stop(self, stuck_s: float | None = None) -> None:
        """Finish the queued jobs, flush the rest, release waiting replies, end the thread.

        stuck_s: how long to wait for a flush that makes no progress; None: without a limit, since a disk answers.
        """
        if not self._failed and self._store.fault is None and self._thread.is_alive():
            self._jobs.put((self._store.begin_flush(), self._flushed))
        self._jobs.put(None)
        if self._late_timer is not None:
            self._late_timer.cancel()
        await self._join(stuck_s)
        await asyncio.sleep(0)  # the thread scheduled its last release before it ended
        while self._is_releasing:
            await asyncio.sleep(0)

    async def _join(self, stuck_s: float | None) -> None:
        """Wait for the end of the thread. If it is stuck, it ends with the process."""
        flushed_offset, moved_s = self._store.flushed_offset, self._loop.time()
        while self._thread.is_alive():
            await self._loop.run_in_executor(None, self._thread.join, JOIN_S)
            if flushed_offset != self._store.flushed_offset:
                flushed_offset, moved_s = self._store.flushed_offset, self._loop.time()
            elif stuck_s is not None and self._loop.time() - moved_s > stuck_s:
                return

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done = entry
            try:
                job()
            except StoreAway as error:
                self._loop.call_soon_threadsafe(self._away, error)
                continue
            except BaseException as error:
                if done is _nothing and self._store.fault is None:
                    log.error(
                        "store.job_failed",
                        error=str(error),
                        remedy="none needed: the job is retried and no message is lost",
                    )
                    continue
                self._loop.call_soon_threadsafe(self._fail, error)
                return
            self._loop.call_soon_threadsafe(done)

    def _away(self, error: StoreAway) -> None:
        """Flush again after a pause."""
        if not (self._is_away or isinstance(error, StoreBusy)):
            self._is_away = True
            log.error("store.away", error=str(error), remedy="start the database; replies wait until it answers")
        self._loop.call_later(AWAY_PAUSE_S, self._ask_again)

    def _ask_again(self) -> None:
        self._running = False
        self.ask()

    def _flushed(self) -> None:
        self._running = False
        if self._is_away:
            self._is_away = False
            log.info("store.back")
        while self._unflushed and self._unflushed[0][0] <= self._store.flushed_offset:
            self._unflushed.popleft()[1]()
        if self._unflushed:
            self.ask()
        if self._waiting and self._waiting[-1].physical_offset > self._flushed_offset():
            self.ask()
        if not self._is_releasing:
            self._release()

    def _release(self) -> None:
        """Release a slice of the replies that have what they wait for; a later turn of the loop continues."""
        self._is_releasing = False
        flushed_offset, done_offset = self._flushed_offset(), self._done_offset()
        read_offset = self._read_offset()
        is_missing = self._replication is not None and self._replication.is_missing
        for _ in range(RELEASED_A_SLICE):
            # An overdue read may wait for more than what follows it: then the others go first.
            is_readable = bool(self._overdue) and self._overdue[0].physical_offset <= read_offset
            line = self._overdue if is_readable or not self._waiting else self._waiting
            # Offsets nearly always rise. A smaller one behind a larger one waits with it; the next flush covers both.
            if not line or line[0].physical_offset > flushed_offset:
                if line:
                    self.ask()
                return
            if line is self._overdue and not is_readable:
                return
            if line is self._waiting and line[0].physical_offset > done_offset:
                if not is_missing:
                    return
                self._call_late(line.popleft(), ResponseCode.SLAVE_NOT_AVAILABLE)
                continue
            one = line.popleft()
            self._size -= one.size
            one.release()
        self._is_releasing = True
        self._loop.call_soon(self._release)

    def _check_late(self) -> None:
        """Call `late` of a slice of the replies that waited too long; set the timer for the next one."""
        self._late_timer = None
        now_s, done_offset = self._loop.time(), self._done_offset()
        replicated_offset = EVERYTHING if self._replication is None else self._replication.replicated_offset
        for _ in range(RELEASED_A_SLICE):
            if not self._waiting or self._waiting[0].deadline_s > now_s:
                break
            if self._waiting[0].physical_offset <= done_offset:
                self.replicated()  # the replicas to wait for may have become fewer without a report of any
                break
            one = self._waiting.popleft()
            is_replicated = one.physical_offset <= replicated_offset
            code = ResponseCode.FLUSH_DISK_TIMEOUT if is_replicated else self._late_code
            self._call_late(one, code)
        if self._waiting:
            wait_s = max(0.0, self._waiting[0].deadline_s - now_s)
            self._late_timer = self._loop.call_later(wait_s, self._check_late)

    def _call_late(self, one: _FlushWaiter, code: ResponseCode) -> None:
        """Answer the sends of a reply that waits no longer. The rest of it waits as a read."""
        if one.late is not None:
            rest = one.late(code)
            if rest is None:
                self._size -= one.size
                return
            one.release = rest
        if one.physical_offset <= self._read_offset():
            self._size -= one.size
            one.release()
        else:
            self._overdue.append(one)

    def _fail(self, error: BaseException) -> None:
        if self._failed:
            return
        self._failed = True
        self._running = False
        self._unflushed.clear()
        self._waiting.clear()
        self._overdue.clear()
        self._size = 0
        self._on_failure(error)


def _nothing() -> None:
    """Do nothing: the follow-up of a job without waiting replies."""
