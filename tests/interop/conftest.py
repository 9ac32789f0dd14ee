"""Servers and clients for the tests with real peers. A module starts what it needs, one JVM at a time.

`make interop` runs four modules at once (tests/conftest.py says what stays in one process). Each has its own servers on
ports that no other process takes, and its own folders; a module needs up to 1.5 GB of memory, all together up to 5 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest
from interop.apache import ApacheCluster
from interop.driver import JavaClient
from interop.mqadmin import MqAdmin
from interop.ours import OurServer
from interop.story import SERVER_PROPERTIES

# The longest modules start first, so that none of them runs alone at the end.
LONGEST_FIRST = (
    "features/",
    "test_verdicts.py",
    "test_timer_handover.py",
    "test_pop.py",
    "test_kafka_migration.py",
    "test_killed_folder.py",
    "test_restart.py",
    "test_store_files.py",
    "test_name_servers.py",
    "test_java_client.py",
    "test_handover.py",
    "test_pop_handover.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest modules first; pytest-xdist keeps this order with --no-loadscope-reorder."""
    names = [f"tests/interop/{name}" for name in LONGEST_FIRST]
    items.sort(key=lambda item: next((n for n, name in enumerate(names) if item.nodeid.startswith(name)), len(names)))


class Server(Protocol):
    """A running name server with one broker named broker-a in DefaultCluster, Apache's or ours."""

    @property
    def namesrv_address(self) -> str: ...

    @property
    def broker_address(self) -> str: ...


class ApacheServer:
    """An Apache cluster of one broker as a Server."""

    def __init__(self, cluster: ApacheCluster) -> None:
        self.namesrv_address, self.broker_address = cluster.namesrv_address, cluster.broker.address


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    """The servers of the module, stopped in reverse order."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def server(stack: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Server]:
    """Return the module's server of a kind (`mqtrail` or `apache-<version>`), started at the first use."""
    running: dict[str, Server] = {}

    def start(kind: str) -> Server:
        if kind not in running:
            running[kind] = _start(kind, stack, tmp_path_factory.mktemp(kind))
        return running[kind]

    return start


@pytest.fixture
def java(tmp_path: Path) -> Iterator[Callable[..., JavaClient]]:
    """Return a function that starts an official client: java(version, server, binary_headers=False)."""
    with ExitStack() as clients:

        def start(version: str, server: Server, binary_headers: bool = False) -> JavaClient:
            client = JavaClient(version, tmp_path, server.namesrv_address, binary_headers=binary_headers)
            return clients.enter_context(client)

        yield start


@pytest.fixture(scope="module")
def mqadmin(stack: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Server], MqAdmin]:
    """Return a function that returns the admin tool 5.3.3 for a server, one JVM each."""
    running: dict[str, MqAdmin] = {}

    def start(server: Server) -> MqAdmin:
        address = server.namesrv_address
        if address not in running:
            running[address] = stack.enter_context(MqAdmin("5.3.3", tmp_path_factory.mktemp("mqadmin"), address))
        return running[address]

    return start


def _start(kind: str, stack: ExitStack, folder: Path) -> Server:
    if kind.startswith("apache-"):
        version = kind.removeprefix("apache-")
        return ApacheServer(stack.enter_context(ApacheCluster(version, folder, properties=SERVER_PROPERTIES)))
    return stack.enter_context(OurServer(folder))
