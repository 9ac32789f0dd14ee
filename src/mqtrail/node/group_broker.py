"""The base of a broker whose role its group decides: in controller mode and in DLedger mode."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mqtrail.broker import Broker
from mqtrail.net import bound_socket, join_address

from .broker_node import BrokerNode
from .config import NodeConfig
from .role_changes import RoleChanges


class GroupBroker:
    """The place of the broker, its port, and the node of its present role. Subclasses decide the role."""

    def __init__(
        self, name: str, folder: Path, config: NodeConfig, on_failure: Callable[[BaseException], None]
    ) -> None:
        self.name = name
        self._folder = folder
        self._config = config
        self._broker_config = replace(config.broker, broker_name=name)
        self._on_failure = on_failure
        self._socket: socket.socket | None = None
        self._host = self._advertised = ""
        self._namesrvs: Sequence[str] = ()
        self._own_namesrv: str | None = None
        self._node: BrokerNode | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._serves: asyncio.Future[None] | None = None  # what `start` waits for
        self._changing = asyncio.Lock()  # while the broker is being started or stopped
        self._wake = asyncio.Event()
        self._role_changes = RoleChanges()
        self.port = 0

    @property
    def address(self) -> str:
        """host:port that is advertised to clients."""
        return join_address(self._advertised, self.port)

    @property
    def core(self) -> Broker | None:
        """The core of the broker that serves; None: it is being started, or waits for a master."""
        return None if self._node is None else self._node.core

    def _take_port(self, host: str, port: int, advertised: str) -> None:
        """Keep the port for the node of each role. BindError."""
        self._host, self._advertised = host, advertised
        self._socket = bound_socket(host, port)
        self.port = self._socket.getsockname()[1]

    def _release(self) -> None:
        """Give up the port: the node of a role binds it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _end_tasks(self) -> None:
        async with self._changing:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
