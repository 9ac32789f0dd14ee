"""The HTTP door on a real socket: uvicorn serves the application of `gateway` on the node's event loop.

Import it late: FastAPI and uvicorn are an extra, and take long to import.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from mqtrail.gateway import HOSTS, DoorConfig, make_door
from mqtrail.net import BindError, join_address
from mqtrail.wire import UniqueIdFactory

from .addresses import is_loopback
from .broker_node import BrokerNode
from .clock import wall_clock_ms

KEEP_ALIVE_S: Final = 60
CLOSE_S: Final = 5  # for requests under way when the node stops
BACKLOG: Final = 1_024


class _Server(uvicorn.Server):
    """A server without signal handlers: the node has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpDoor:
    """`bind`, `start`, then `stop`."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.address = ""

    def bind(self) -> None:
        """Take the port; 0: any free one, see `address`. BindError."""
        made = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((self._host, self._port))
        except OSError as error:
            made.close()
            raise BindError(
                f"cannot listen on {join_address(self._host, self._port)} for HTTP: {error.strerror or error}; choose "
                "another port"
            ) from error
        self._socket = made
        self.address = join_address(self._host, made.getsockname()[1])

    async def start(self, broker: BrokerNode) -> None:
        """Serve. The broker must have been started."""
        assert self._socket is not None, "bind comes first"
        assert broker.core is not None
        config = broker.core.config
        ids = UniqueIdFactory(config.address.ip, os.getpid(), secrets.randbits(32), wall_clock_ms)
        bounds = DoorConfig(
            hosts=HOSTS if is_loopback(self._host) else None,
            body_size_max=config.message_size_max,
            request_size_max=2 * config.message_size_max,  # base64, escapes, or several messages
            trace_topic=config.trace_topic,
        )
        settings = uvicorn.Config(
            make_door(broker.caller(), ids.next, broker.name, bounds, self._stopping),
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            ws="none",
            backlog=BACKLOG,
            limit_concurrency=bounds.connections_max,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=CLOSE_S,
        )
        self._server = _Server(settings)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Answer requests under way, then close. Also after a failed start."""
        if self._server is not None and self._serving is not None:
            self._stopping.set()
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
