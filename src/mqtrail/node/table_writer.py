"""The thread that saves tables, and what waits for it.

Topics, groups and the like change one by one and are saved whole. While one save runs, the changes and the replies of
the next one gather; a reply leaves when what it follows from is durable. The loop only takes note of the tables: JSON,
writes and syncs are the thread's.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from mqtrail.net import Log
from mqtrail.store import ConfigFileStore

RETRY_S: Final = 5.0  # after tables could not be saved
WAITING_MAX: Final = 100_000  # replies; further ones are refused

log = Log()

Refuse = Callable[[str], None]
"""Answers in a reply's place why there is none."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A reply that waits for a change of tables."""

    number: int
    release: Callable[[], None]
    refuse: Refuse


class TableWriter:
    """Saves what changes in one ConfigFileStore. owner: whose tables they are, for the log."""

    def __init__(self, files: ConfigFileStore, owner: str) -> None:
        self._files = files
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tables")
        self._saving: asyncio.Future[None] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._is_failing = False

    def after(self, number: int, release: Callable[[], None], refuse: Refuse) -> None:
        """Call release once the changes up to a number are durable; refuse if they cannot be saved and are undone."""
        if number <= self._files.settled:
            release()
        elif len(self._waiting) >= WAITING_MAX:
            refuse(
                f"found {len(self._waiting)} replies waiting for tables to be saved, expected fewer: try again later"
            )
        else:
            self._waiting.append(_Waiting(number, release, refuse))
            self.look()

    def look(self) -> None:
        """Save what has changed, unless a save is under way: that one looks again when it ends."""
        if self._saving is not None or self._retry is not None:
            return
        job = self._files.begin_save()
        if job is not None:
            self._saving = self._loop.run_in_executor(self._thread, job)
            self._saving.add_done_callback(self._saved)

    async def stop(self) -> None:
        """Save what is left, answer what waits, end the thread."""
        self._cancel_retry()
        self.look()
        while (saving := self._saving) is not None:
            await asyncio.wait([saving])  # `_saved` is called before this returns
        self._cancel_retry()
        self._thread.shutdown(wait=False)

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _saved(self, saving: "asyncio.Future[None]") -> None:
        self._saving = None
        error = saving.exception()
        try:
            self._files.end_save(failed=error is not None)
        except Exception:
            log.exception("tables.follow_up_failed", owner=self._owner)
        if error is not None:
            self._failed(error)
            return
        if self._is_failing:
            self._is_failing = False
            log.info("tables.saved_again", owner=self._owner)
        # Numbers rise with one exception: an answer may follow from an older change than the one before it did.
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if one.number <= self._files.settled:
                one.release()
            else:
                self._waiting.append(one)
        self.look()

    def _failed(self, error: BaseException) -> None:
        """The changes were undone: say so to those who wait, and bring the files to that state later."""
        if not self._is_failing:
            self._is_failing = True
            log.error(
                "tables.not_saved",
                owner=self._owner,
                error=str(error),
                remedy=f"free space on that disk; until then changes are rejected; retried every {RETRY_S:g} s",
            )
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.refuse(f"the change could not be saved and was undone: {error}: free space on that disk and try again")
        self._retry = self._loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.look()
