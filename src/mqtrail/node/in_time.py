"""Calls that may take long, such as reads of a database on another machine: the event loop waits only so long."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final

WAIT_S: Final = 3.0  # the loop serves nothing meanwhile; a database that is slower counts as away


class InTime:
    """Runs functions in one thread and waits for each. TimeoutError: it takes longer, or an earlier one still runs."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._last: Future[Any] | None = None
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def __call__(self, act: Callable[[], Any]) -> Any:
        """Return act's result."""
        if self._last is None:
            threading.Thread(target=self._run, name="database", daemon=True).start()
        elif not self._last.done():
            raise TimeoutError
        self._last = Future()
        self._jobs.put((self._last, act))
        return self._last.result(self._wait_s)

    def _run(self) -> None:
        while True:
            future, act = self._jobs.get()
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)
