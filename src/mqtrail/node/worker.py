"""One broker in a separate process, for a `ProcessNode`, which runs `main` of this module in a new interpreter.

    stdin    8 bytes size, then a pickled Task; end of file means that the parent ended: the broker stops cleanly
    stdout   one line of JSON: {"event": "ready", …} or {"event": "failed", "error": …}
    SIGTERM  stops the broker cleanly; exit code 0, or 1 if the disk failed

The task contains passwords. It comes through a pipe because other users of the machine can read arguments.
"""

import asyncio
import gc
import json
import os
import pickle
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from mqtrail.wire import MQError

from .config import NodeConfig
from .controlled_broker import make_broker
from .loop import GC_THRESHOLD, loop_factory
from .metrics_exporter import MetricsExporter
from .report import BrokerReport

SIZE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The broker that a worker runs. room: its folder; None: in memory. own_namesrv: see BrokerNode.start."""

    name: str
    port: int
    advertised: str
    room: Path | None
    namesrvs: tuple[str, ...]
    own_namesrv: str | None
    config: NodeConfig
    use_uvloop: bool = True


def pack(task: Task) -> bytes:
    """Return the bytes for a worker's stdin."""
    data = pickle.dumps(task)
    return len(data).to_bytes(SIZE_BYTES) + data


def main() -> int:
    """Run the task that stdin contains; return the exit code."""
    size = int.from_bytes(sys.stdin.buffer.read(SIZE_BYTES))
    data = sys.stdin.buffer.read(size)
    if not size or len(data) < size:
        return 1  # the parent has ended
    task = pickle.loads(data)
    assert isinstance(task, Task)
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

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    broker = make_broker(task.name, task.room, task.config, fail)
    metrics = MetricsExporter(lambda: [] if broker.core is None else [broker.core])
    broker.bind(task.config.host, task.port, task.advertised)
    try:
        await broker.start(task.namesrvs, task.own_namesrv)
        if task.config.metrics_port is not None:
            await metrics.start(task.config.host, task.config.metrics_port)
        metrics_url = f"http://{metrics.address}/metrics" if metrics.address else ""
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 20)
        _report({"event": "ready", **asdict(BrokerReport.of(broker.address, broker.store, metrics_url))})
        os.set_blocking(0, False)
        loop.add_reader(0, _stop_without_parent, ending)
        await ending.wait()
    finally:
        loop.remove_reader(0)
        await metrics.stop()
        await broker.stop()
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
