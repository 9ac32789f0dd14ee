"""A psycopg connection that gives up on a silent server. libpq has no such limit: the kernel of a stopped server still
acknowledges what it gets, so neither keepalives nor tcp_user_timeout notice. Import it late: psycopg is an extra.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

import psycopg
from psycopg.waiting import Ready, Wait

Result = TypeVar("Result")
WAKE_S: Final = 0.1  # psycopg looks for signals so often


class PatientConnection(psycopg.Connection[Any]):
    """Closes itself after silence_s without a byte from the server while a statement is running."""

    silence_s = 35.0

    def wait(self, gen: Generator[Wait, Ready | int, Result], *args: Any, **limits: Any) -> Result:
        """Run a step of the protocol. OperationalError: the server was silent for too long."""
        return super().wait(self._bounded(gen), *args, **limits)

    def _bounded(self, gen: Generator[Wait, Ready | int, Result]) -> Generator[Wait, Ready | int, Result]:
        silent_s = 0.0
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                silent_s = 0.0 if ready else silent_s + WAKE_S
                if silent_s > self.silence_s:
                    self.close()
                    raise psycopg.OperationalError(f"the server was silent for {self.silence_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: Result = end.value
            return result
