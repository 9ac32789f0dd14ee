"""A node as a process of its own: `mqtrail up`."""

import asyncio
import gc
import resource
import signal
from collections.abc import Callable

from mqtrail.node.config import NodeConfig
from mqtrail.node.node import Node

GC_THRESHOLD = 50_000  # allocations between two looks for garbage; the path makes none that is cyclic
OPEN_FILES_WANTED = 65_536


def run_up(config: NodeConfig, *, on_ready: Callable[[Node], None], use_uvloop: bool = True) -> int:
    """Run a node until SIGINT or SIGTERM; return the exit code: 0, or 1 when the disk failed.

    on_ready is called once clients may come. Errors of the start are raised, see Node. use_uvloop: where it is
    installed.
    """
    _raise_open_files()
    with asyncio.Runner(loop_factory=_loop_factory() if use_uvloop else None) as runner:
        return runner.run(_run(config, on_ready))


async def _run(config: NodeConfig, on_ready: Callable[[Node], None]) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    node = Node(config)
    await node.start()
    try:
        # What is alive now stays: the collector need not walk it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 20)
        on_ready(node)
        waits = [asyncio.create_task(stopping.wait()), asyncio.create_task(node.failed.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        await node.stop()
    return 0 if node.failure is None else 1


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _raise_open_files() -> None:
    """Files and sockets are many; the soft limit of 1024 is for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
