"""The thread that makes the log durable, and the replies that wait for it.

Replies that must not leave before their record is durable wait in a list. One fdatasync releases all replies that it
covers (group commit); later ones wait for the next one. The thread only syncs. Only the event loop's thread changes the
lists and decides what a flush covers. fdatasync releases the GIL, so the loop continues to serve.
Source: GroupCommitService and FlushRealTimeService, apache/rocketmq store/CommitLog.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from mqtrail.net import Log
from mqtrail.store import StoreBroken

LATE_MS = 5_000  # syncFlushTimeout
Late = Callable[[], Callable[[], None] | None]

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


@dataclass(slots=True)
class _FlushWaiter:
    """A reply that waits for a flush."""

    physical_offset: int
    release: Callable[[], None]
    late: Late | None
    deadline_s: float


class Flusher:
    """Runs the store's flushes and other disk jobs in one thread, one after another.

    on_failure: called in the loop's thread when a flush or another job could not sync the log. Appended records may
    never become durable then: waiting replies are not released, and no later flush is tried, because the kernel may
    have dropped the dirty pages.

    late_ms: how long a reply may wait before `late` of `after` is called.
    """

    def __init__(
        self, store: Flushable, on_failure: Callable[[BaseException], None], *, late_ms: int = LATE_MS
    ) -> None:
        self._store = store
        self._on_failure = on_failure
        self._late_s = late_ms / 1000
        self._late_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_FlushWaiter] = deque()
        self._running = False
        self._failed = False
        self._jobs: SimpleQueue[tuple[Callable[[], object], Callable[[], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()

    @property
    def waiting_count(self) -> int:
        """Number of replies that wait for a flush."""
        return len(self._waiting)

    def after(self, physical_offset: int, release: Callable[[], None], late: Late | None = None) -> None:
        """Call release once the log is durable up to physical_offset: now, or after a flush that this starts.

        late: called if that takes too long. Its result is called instead of release after the flush; None: no call.
        """
        if physical_offset <= self._store.flushed_offset:
            release()
            return
        self._waiting.append(_FlushWaiter(physical_offset, release, late, self._loop.time() + self._late_s))
        if self._late_timer is None and late is not None:
            self._late_timer = self._loop.call_later(self._late_s, self._check_late)
        if not self._running:
            self.ask()

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

    async def stop(self) -> None:
        """Finish the queued jobs, flush the rest, release waiting replies, end the thread."""
        if not self._failed and self._store.fault is None and self._thread.is_alive():
            self._jobs.put((self._store.begin_flush(), self._flushed))
        self._jobs.put(None)
        if self._late_timer is not None:
            self._late_timer.cancel()
        await self._loop.run_in_executor(None, self._thread.join)
        await asyncio.sleep(0)  # the thread scheduled its last release before it ended

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done = entry
            try:
                job()
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

    def _flushed(self) -> None:
        self._running = False
        flushed_offset, waiting = self._store.flushed_offset, self._waiting
        # Offsets nearly always rise. A smaller one behind a larger one waits with it; the next flush covers both.
        while waiting and waiting[0].physical_offset <= flushed_offset:
            waiting.popleft().release()
        if waiting:
            self.ask()

    def _check_late(self) -> None:
        """Call `late` of replies that waited too long; set the timer for the next one."""
        self._late_timer = None
        now_s = self._loop.time()
        for one in self._waiting:
            if one.late is None:
                continue
            if one.deadline_s > now_s:
                self._late_timer = self._loop.call_later(one.deadline_s - now_s, self._check_late)
                break
            late, one.late = one.late, None
            one.release = late() or _nothing

    def _fail(self, error: BaseException) -> None:
        if self._failed:
            return
        self._failed = True
        self._running = False
        self._waiting.clear()
        self._on_failure(error)


def _nothing() -> None:
    """Do nothing: the follow-up of a job without waiting replies."""
