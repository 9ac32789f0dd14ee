"""Calls that may take long, such as reads of a database on another machine: the event loop waits only so long."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

WAIT_S: Final = 3.0  # the loop serves nothing meanwhile; a database that is slower counts as away


class InTime:
    """Runs functions in one thread and waits for each. TimeoutError: it takes longer, or one that did still runs."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._late: Future[Any] | None = None
        self._is_started = False
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def __call__(self, act: Callable[[], Any]) -> Any:
        """Return act's result."""
        return self.begin(act)()

    def begin(self, act: Callable[[], Any]) -> Callable[[], Any]:
        """Start act; return what waits for its result as a call does. TimeoutError: an earlier function still runs."""
        if self._late is not None and not self._late.done():
            raise TimeoutError
        future = self._late = self._put(act)
        return lambda: future.result(self._wait_s)

    def later(self, act: Callable[[], Any], done: Callable[[], None]) -> None:
        """Run act without waiting; then call done on the running loop, also after an error."""
        loop = asyncio.get_running_loop()

        def ended(future: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done)

        self._put(act).add_done_callback(ended)

    def _put(self, act: Callable[[], Any]) -> Future[Any]:
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._run, name="database", daemon=True).start()
        future: Future[Any] = Future()
        self._jobs.put((future, act))
        return future

    def _run(self) -> None:
        while True:
            future, act = self._jobs.get()
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)
