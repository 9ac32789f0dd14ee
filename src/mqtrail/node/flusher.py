"""The thread that makes the log durable, and what waits for it.

Replies that must not leave before their record is safe wait in a list. One fdatasync releases all that it covers
(group commit): while it runs, the next ones gather. The thread only syncs; lists are changed in the loop's thread.
fdatasync lets go of the interpreter's lock, so the loop serves on meanwhile.
Source: GroupCommitService and FlushRealTimeService, apache/rocketmq store/CommitLog.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Flushable(Protocol):
    """What the flusher asks of a store."""

    @property
    def flushed_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def flush(self) -> int:
        """Make everything appended so far durable; return up to which physical offset. Called in the thread."""
        ...


class Flusher:
    """Runs `store.flush` in a thread of its own whenever asked.

    on_failure is called in the loop's thread when a flush fails: what was appended may never be durable, nothing that
    waits is released, and no later flush is tried (the kernel may have dropped the dirty pages).
    """

    def __init__(self, store: Flushable, on_failure: Callable[[BaseException], None]) -> None:
        self._store = store
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._asked = False
        self._failed = False
        self._stopping = False
        self._wake = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def after(self, physical_offset: int, release: Callable[[], None]) -> None:
        """Call release once the log is durable up to physical_offset; at once when it is. Starts a flush if needed."""
        if physical_offset <= self._store.flushed_offset:
            release()
            return
        self._waiting.append((physical_offset, release))
        self.ask()

    def ask(self) -> None:
        """Flush soon, unless one is under way or nothing is new."""
        if not self._asked and not self._failed and not self._stopping:
            self._asked = True
            self._wake.release()

    async def stop(self) -> None:
        """Flush what is left, release what waits, end the thread."""
        if self._thread.is_alive():
            self._stopping = True
            self._wake.release()
            await self._loop.run_in_executor(None, self._thread.join)
        await asyncio.sleep(0)  # lets the last release run

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            stopping = self._stopping
            try:
                flushed = self._store.flush()
            except BaseException as error:
                self._loop.call_soon_threadsafe(self._fail, error)
                return
            self._loop.call_soon_threadsafe(self._flushed, flushed)
            if stopping:
                return

    def _flushed(self, flushed_offset: int) -> None:
        self._asked = False
        waiting = self._waiting
        # Offsets are handed out in rising order, so the list is sorted.
        while waiting and waiting[0][0] <= flushed_offset:
            waiting.popleft()[1]()
        if waiting and not self._stopping:
            self.ask()

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._waiting.clear()
        self._on_failure(error)
