"""A name server and brokers inside a test: real sockets on free ports, in memory unless a folder is given.

with embedded() as broker:                       # runs in its own thread
    Producer("group", broker.namesrv_address)

async with embedded_async() as broker:           # runs in the caller's event loop
    ...
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from mqtrail.broker import BrokerConfig
from mqtrail.node import Node, NodeConfig
from mqtrail.store import CommitLogConfig

SEGMENT_SIZE = 64 * 1024 * 1024
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0

T = TypeVar("T")


class Embedded:
    """A running node. A broker that is stopped and started keeps its port, but loses messages in memory."""

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._loop = loop

    @property
    def namesrv_address(self) -> str:
        """The name server address for clients."""
        return self._node.namesrv_address

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """host:port of each running broker."""
        return self._node.broker_addresses

    @property
    def http_url(self) -> str:
        """http://host:port of the HTTP door."""
        assert self._node.http_url, "started without http"
        return self._node.http_url

    @property
    def broker_names(self) -> tuple[str, ...]:
        """The names of the running brokers."""
        return tuple(self._node.brokers)

    @property
    def node(self) -> Node:
        """The node. Use it only in its own event loop."""
        return self._node

    def stop_broker(self, name: str = "broker-a") -> None:
        """Stop one broker. Do not call this in the node's event loop."""
        self._wait(self._node.stop_broker(name))

    def start_broker(self, name: str = "broker-a") -> None:
        """Start a stopped broker again. Do not call this in the node's event loop."""
        self._wait(self._node.start_broker(name))

    def _wait(self, act: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(STOP_TIMEOUT_S)


def embedded_config(
    data: Path | None = None,
    *,
    brokers: int = 1,
    broker: BrokerConfig | None = None,
    store: CommitLogConfig | None = None,
    store_url: str = "",
    http: bool = False,
    http_rules: Path | None = None,
) -> NodeConfig:
    """Return the settings of an embedded node: free ports on 127.0.0.1, small files, brokers broker-a, broker-b, ...

    broker None: the default settings with SQL92 filters enabled. store_url: database that keeps the messages. http:
    with an HTTP door. http_rules: file of its rules.
    """
    return NodeConfig(
        data=data,
        namesrv_port=0,
        broker_port=0,
        broker_names=tuple(f"broker-{chr(ord('a') + index)}" for index in range(brokers)),
        broker=broker or BrokerConfig(property_filter=True),
        store=store or CommitLogConfig(segment_size=SEGMENT_SIZE),
        store_url=store_url,
        http_port=0 if http else None,
        http_rules=http_rules,
        http_wake_local=True,
    )


@asynccontextmanager
async def embedded_async(
    data: Path | None = None,
    *,
    brokers: int = 1,
    broker: BrokerConfig | None = None,
    store: CommitLogConfig | None = None,
    store_url: str = "",
    http: bool = False,
    http_rules: Path | None = None,
) -> AsyncIterator[Embedded]:
    """Run a node in the caller's event loop. data None: in memory. broker, store: settings of every broker.

    store_url: URL of a database that keeps the messages in tables, for one broker (docs/how-to/tables.md).
    http: with an HTTP door, for one broker (docs/how-to/http.md). http_rules: file of its rules.
    """
    node = Node(
        embedded_config(
            data, brokers=brokers, broker=broker, store=store, store_url=store_url, http=http, http_rules=http_rules
        )
    )
    await node.start()
    try:
        yield Embedded(node, asyncio.get_running_loop())
    finally:
        await node.stop()


@contextmanager
def embedded(
    data: Path | None = None,
    *,
    brokers: int = 1,
    broker: BrokerConfig | None = None,
    store: CommitLogConfig | None = None,
    store_url: str = "",
    http: bool = False,
    http_rules: Path | None = None,
) -> Iterator[Embedded]:
    """Run a node in a thread with its own event loop, for plain tests. Parameters: see embedded_async."""
    config = embedded_config(
        data, brokers=brokers, broker=broker, store=store, store_url=store_url, http=http, http_rules=http_rules
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mqtrail-embedded", daemon=True)
    thread.start()

    def call(act: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return asyncio.run_coroutine_threadsafe(act, loop).result(timeout_s)

    async def make() -> Node:
        node = Node(config)
        await node.start()
        return node

    try:
        node = call(make(), START_TIMEOUT_S)
        try:
            yield Embedded(node, loop)
        finally:
            call(node.stop(), STOP_TIMEOUT_S)
    finally:
        call(loop.shutdown_default_executor(), STOP_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_TIMEOUT_S)
        loop.close()
