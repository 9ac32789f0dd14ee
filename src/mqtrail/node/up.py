"""Runs a node as a server process: `mqtrail up`. Several brokers, or a group, get a process each."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from mqtrail.net import collect_rarely, loop_factory, stop_on_signals

from .config import NodeConfig
from .node import Node

if TYPE_CHECKING:
    from .controller_node import ControllerNode
    from .group_node import GroupNode
    from .processes import ProcessNode

OPEN_FILES_WANTED = 65_536

AnyNode: TypeAlias = "Node | ProcessNode | GroupNode"
Running = TypeVar("Running", bound="Node | ProcessNode | GroupNode | ControllerNode")


def run_up(config: NodeConfig, *, on_ready: Callable[[AnyNode], None], use_uvloop: bool = True) -> int:
    """Run a node until SIGINT or SIGTERM; return the exit code: 0, or 1 if the disk failed.

    on_ready: called once the node serves clients. Raises the errors of Node.start. use_uvloop: if it is installed.
    """
    _raise_open_files()
    with asyncio.Runner(loop_factory=loop_factory() if use_uvloop else None) as runner:
        return runner.run(_run(config, on_ready, use_uvloop))


def run_controller(make: Callable[[], ControllerNode], *, on_ready: Callable[[ControllerNode], None]) -> int:
    """Run a controller until SIGINT or SIGTERM; return the exit code: 0, or 1 if it had to stop.

    make: called on the event loop. on_ready: called once it listens. Raises the errors of ControllerNode.start.
    """
    _raise_open_files()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run_controller(make, on_ready))


async def _run_controller(make: Callable[[], ControllerNode], on_ready: Callable[[ControllerNode], None]) -> int:
    return await _until_stopped(make(), on_ready)


async def _run(config: NodeConfig, on_ready: Callable[[AnyNode], None], use_uvloop: bool) -> int:
    return await _until_stopped(_node(config, use_uvloop), on_ready)


def _node(config: NodeConfig, use_uvloop: bool) -> AnyNode:
    """Return the node for the settings; import only what it needs, since each import costs memory."""
    if config.group is not None:
        from .group_node import GroupNode

        return GroupNode(config, use_uvloop=use_uvloop)
    if len(config.broker_names) > 1:
        from .processes import ProcessNode

        return ProcessNode(config, use_uvloop=use_uvloop)
    return Node(config)


async def _until_stopped(node: Running, on_ready: Callable[[Running], None]) -> int:
    """Run a node until a signal or its failure."""
    stopping = asyncio.Event()
    stop_on_signals(stopping.set)
    await node.start()
    try:
        collect_rarely()
        on_ready(node)
        waits = [asyncio.create_task(stopping.wait()), asyncio.create_task(node.failed.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        await node.stop()
    return 0 if node.failure is None else 1


def _raise_open_files() -> None:
    """Raise the soft limit of open files: a node needs more than the usual 1024, which is a limit of select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
