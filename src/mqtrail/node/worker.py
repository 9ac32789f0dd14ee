"""One server in a separate process: `main` of this module, run by a `WorkerProcess` in a new interpreter.

    stdin    8 bytes size, then a pickled Task; end of file means that the parent ended: the server stops cleanly
    stdout   one line of JSON: {"event": "ready", …} or {"event": "failed", "error": …}
    SIGTERM  stops the server cleanly; exit code 0, or 1 if it failed, for example its disk

The task contains passwords. It comes through a pipe because other users of the machine can read arguments.
"""

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from mqtrail.net import collect_rarely, guard_stderr, loop_factory, stop_on_signals
from mqtrail.wire import MQError

from .report import ServerReport

SIZE_BYTES = 8

OnFailure = Callable[[BaseException], None]


class WorkerServer(Protocol):
    """A server of a task. `start`, then `stop`, also if the start failed."""

    async def start(self) -> ServerReport:
        """Serve."""

    async def stop(self) -> None:
        """Stop cleanly."""


class Task(Protocol):
    """What a worker runs; it can be pickled."""

    @property
    def use_uvloop(self) -> bool:
        """Return whether to use uvloop, if it is installed."""

    def server(self, on_failure: OnFailure) -> WorkerServer:
        """Make the server. on_failure: called if it must stop."""


def pack(task: Task) -> bytes:
    """Return the bytes for a worker's stdin."""
    data = pickle.dumps(task)
    return len(data).to_bytes(SIZE_BYTES) + data


def main() -> int:
    """Run the task that stdin contains; return the exit code."""
    guard_stderr()
    size = int.from_bytes(sys.stdin.buffer.read(SIZE_BYTES))
    data = sys.stdin.buffer.read(size)
    if not size or len(data) < size:
        return 1  # the parent has ended
    task: Task = pickle.loads(data)
    try:
        with asyncio.Runner(loop_factory=loop_factory() if task.use_uvloop else None) as runner:
            return runner.run(_run(task))
    except MQError as error:
        _report({"event": "failed", "error": str(error)})
        return 1


async def _run(task: Task) -> int:
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    failures: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failures.append(error)
        ending.set()

    stop_on_signals(ending.set)
    server = task.server(fail)
    try:
        report = await server.start()
        collect_rarely()
        _report({"event": "ready", **asdict(report)})
        os.set_blocking(0, False)
        loop.add_reader(0, _stop_without_parent, ending)
        await ending.wait()
    finally:
        loop.remove_reader(0)
        await server.stop()
    return 1 if failures else 0


def _stop_without_parent(ending: asyncio.Event) -> None:
    """Stop at end of file: the parent writes nothing after the task, so a readable stdin means that it ended."""
    try:
        if not os.read(0, 1):
            ending.set()
    except BlockingIOError:
        pass
    except OSError:
        ending.set()


def _report(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(event, default=str) + "\n")
    sys.stdout.flush()
