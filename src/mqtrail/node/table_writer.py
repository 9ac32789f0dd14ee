"""The thread that saves tables, and the replies that wait for it.

Tables (topics, groups and others) change row by row and are saved whole. Changes and replies that come during a save
wait for the next one. A reply leaves when the changes that it depends on are durable. The event loop only copies the
tables; the thread encodes, writes and syncs them. It is a plain thread: an executor's futures cost more than a small
save, because their locks make two threads wait for the interpreter in turn.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from mqtrail.net import Log
from mqtrail.store import ConfigFileStore

RETRY_S: Final = 5.0  # after tables could not be saved
WAITING_MAX: Final = 100_000  # replies; further ones are answered with an error
WAITING_SIZE_MAX: Final = 256 * 1024 * 1024  # bytes of these: a list of all topics may have many
RELEASED_A_SLICE: Final = 1_000  # of them, before other requests are served

log = Log()

Refuse = Callable[[str], None]
"""Answers with an error text in place of the reply."""


@dataclass(frozen=True, slots=True)
class _SaveWaiter:
    """A reply that waits for a change of tables."""

    number: int
    release: Callable[[], None]
    refuse: Refuse
    size: int


class TableWriter:
    """Saves the changes of one ConfigFileStore. owner: named in log events."""

    def __init__(self, files: ConfigFileStore, owner: str) -> None:
        self._files = files
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_saving = False
        self._saved_once: asyncio.Event | None = None  # set at the end of each save, while `stop` waits
        self._waiting: deque[_SaveWaiter] = deque()
        self._size = 0  # bytes of these
        self._retry: asyncio.TimerHandle | None = None
        self._is_failing = False
        threading.Thread(target=self._run, name="tables", daemon=True).start()

    def after(self, number: int, release: Callable[[], None], refuse: Refuse, size: int = 0) -> None:
        """Call release once changes up to this number are durable, or refuse if the save fails and undoes them.

        size: bytes of the reply.
        """
        if number <= self._files.settled:
            release()
        elif len(self._waiting) >= WAITING_MAX or self._size + size > WAITING_SIZE_MAX:
            refuse(
                f"found {len(self._waiting)} replies of {self._size} bytes waiting for tables to be saved, expected at "
                f"most {WAITING_MAX} of {WAITING_SIZE_MAX} bytes: try again later"
            )
        else:
            self._waiting.append(_SaveWaiter(number, release, refuse, size))
            self._size += size
            self.save_changes()

    def save_changes(self) -> None:
        """Save changes, unless a save is under way: at its end this is called again."""
        if self._is_saving or self._retry is not None:
            return
        job = self._files.begin_save()
        if job is not None:
            self._is_saving = True
            self._jobs.put(job)

    async def stop(self) -> None:
        """Save the remaining changes, release waiting replies, end the thread."""
        self._cancel_retry()
        self.save_changes()
        while self._is_saving:
            self._saved_once = asyncio.Event()
            await self._saved_once.wait()
        self._cancel_retry()
        self._jobs.put(None)

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _run(self) -> None:
        """Do the jobs, in the thread."""
        while (job := self._jobs.get()) is not None:
            error: BaseException | None = None
            try:
                job()
            except BaseException as raised:
                error = raised
            self._loop.call_soon_threadsafe(self._saved, error)

    def _saved(self, error: BaseException | None) -> None:
        self._continue(self._end(error))

    def _continue(self, ending: Iterator[None]) -> None:
        """Do one slice of the end of a save, and plan the next one. Other work runs in between."""
        for _ in ending:
            self._loop.call_soon(self._continue, ending)
            return

    def _end(self, error: BaseException | None) -> Iterator[None]:
        """Do what follows from a save, then release the replies that waited for it, in slices."""
        try:
            try:
                yield from self._files.end_save_in_slices(failed=error is not None)
            except Exception:  # the save itself succeeded: its replies must leave
                log.exception("tables.follow_up_failed", owner=self._owner)
            if error is None:
                yield from self._release()
            else:
                yield from self._refuse(error)
        finally:
            self._is_saving = False
            if self._saved_once is not None:
                self._saved_once.set()
        if error is not None:
            self._retry = self._loop.call_later(RETRY_S, self._try_again)
            return
        if self._is_failing:
            self._is_failing = False
            log.info("tables.saved_again", owner=self._owner)
        self.save_changes()

    def _release(self) -> Iterator[None]:
        """Release the replies whose changes are durable."""
        # Numbers do not always rise: a reply may depend on an older change than an earlier reply does.
        for count in range(1, len(self._waiting) + 1):
            one = self._waiting.popleft()
            if one.number <= self._files.settled:
                self._size -= one.size
                one.release()
            else:
                self._waiting.append(one)
            if count % RELEASED_A_SLICE == 0:
                yield

    def _refuse(self, error: BaseException) -> Iterator[None]:
        """Replace waiting replies by the error, since their changes were undone."""
        if not self._is_failing:
            self._is_failing = True
            log.error(
                "tables.not_saved",
                owner=self._owner,
                error=str(error),
                remedy=f"free space on that disk; until then changes are rejected; retried every {RETRY_S:g} s",
            )
        for count in range(1, len(self._waiting) + 1):  # further ones wait for the next save
            one = self._waiting.popleft()
            self._size -= one.size
            one.refuse(f"the change could not be saved and was undone: {error}: free space on that disk and try again")
            if count % RELEASED_A_SLICE == 0:
                yield

    def _try_again(self) -> None:
        self._retry = None
        self.save_changes()
