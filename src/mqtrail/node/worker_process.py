"""The parent's end of a worker: one process that runs a task (worker.py)."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import Process
from typing import Any

from mqtrail.net import Log, child_environment
from mqtrail.wire import MQError

from .report import ServerReport
from .worker import Task, pack

PROGRAM = "import sys; from mqtrail.node.worker import main; sys.exit(main())"
STOP_TIMEOUT_S = 60.0  # for a worker to write its files; then it is killed

log = Log()


class WorkerEnded(MQError):
    """A worker did not start, or ended by itself."""


def how_ended(code: int) -> str:
    """Return the words for an exit code."""
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


class WorkerProcess:
    """`start`, then `stop`. title: "broker broker-a", for errors. It can be started again after it ended."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._process: Process | None = None

    @property
    def process_id(self) -> int | None:
        """Return the process id while it runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    @property
    def code(self) -> int | None:
        """Return the exit code; None: it runs, or was never started."""
        return None if self._process is None else self._process.returncode

    async def start(self, task: Task) -> ServerReport:
        """Run a task; return what it reports when it serves. WorkerEnded, with the worker's own error text."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(os.environ),
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the workers
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pack(task))
            await process.stdin.drain()
            line = await process.stdout.readline()
        except ConnectionError:
            line = b""
        event: dict[str, Any] = (
            json.loads(line) if line else {"error": f"its process {how_ended(await process.wait())}"}
        )
        if event.pop("event", "") != "ready":
            await process.wait()
            raise WorkerEnded(f"{self.title}: {event['error']}")
        return ServerReport(**event)

    async def wait(self) -> int:
        """Wait until it ends; return the exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> int:
        """End it cleanly; return the exit code. It may have ended before, or never have been started."""
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            process.terminate()
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                return await process.wait()
        except TimeoutError:
            log.error("worker.killed", worker=self.title, found=f"did not stop within {STOP_TIMEOUT_S:g} s")
            process.kill()
            return await process.wait()
