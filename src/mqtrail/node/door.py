"""The HTTP door on a real socket: uvicorn serves the application of `gateway` on the node's event loop.

Import it late: FastAPI and uvicorn are an extra, and take long to import.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from mqtrail.gateway import (
    HOSTS,
    DoorConfig,
    DoorDatabase,
    Facts,
    Gate,
    GateRules,
    http_settings,
    make_door,
    read_rules,
)
from mqtrail.net import AUDIT_FILE, AuditLog, BindError, Log, join_address
from mqtrail.wire import InvalidParameter, UniqueIdFactory, is_loopback

from .broker_node import BrokerNode
from .clock import wall_clock_ms
from .config import NodeConfig

WATCH_S: Final = 1.0  # between two looks at the rules

log = Log()


class _Server(uvicorn.Server):
    """A server without signal handlers: the node has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpDoor:
    """`bind`, `start`, then `stop`."""

    def __init__(self, config: NodeConfig, port: int) -> None:
        """config: with a certificate in `server.tls`, the door speaks HTTPS only."""
        self._config = config
        self._host = config.host
        self._port = port
        self._tls = config.server.tls.context()
        self._rules = config.http_rules
        self._store_url = config.store_url
        self._data = config.data
        self._gate = Gate()
        self._watching: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.address = ""
        self.mails: Mapping[str, int] = {}
        """Mails by outcome, since the start."""

    @property
    def url(self) -> str:
        """The address, with http or https."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    def bind(self) -> None:
        """Take the port; 0: any free one, see `address`. BindError. InvalidParameter: the rules cannot be used."""
        if self._rules is not None:
            self._gate.rules = _read(self._rules)
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
            address_percent=self._config.http_address_percent,
            proxies=self._config.http_proxies,
            wakes_local=self._config.http_wake_local,
            creates_groups=config.auto_create_group,
            report=_report,
        )
        database = None
        if self._store_url:
            from .queue_tables import BrokerTables  # SQLAlchemy is an extra, and takes long to import

            database = DoorDatabase(_facts_of(self._store_url), BrokerTables(broker, self._store_url))
        audit = None if self._data is None else AuditLog(self._data / AUDIT_FILE)
        door = make_door(broker.caller(), ids.next, broker.name, bounds, self._stopping, self._gate, database, audit)
        self.mails = door.state.mails
        settings = http_settings(
            door, bounds.connections_max, websockets=False, shares=bounds.shares(bounds.connections_max)
        )
        settings.load()
        settings.ssl = self._tls
        if self._rules is not None:
            self._watching = asyncio.create_task(self._watch(self._rules))
        self._server = _Server(settings)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.01)

    async def _watch(self, path: Path) -> None:
        """Take over changes of the rules. A file that cannot be used changes nothing, and is reported once."""
        seen = _state_of(path)
        while True:
            await asyncio.sleep(WATCH_S)
            if (state := _state_of(path)) == seen:
                continue
            seen = state
            try:
                self._gate.rules = _read(path)
                log.info("door.rules_read", path=str(path))
            except InvalidParameter as error:
                log.error(
                    "door.rules_unusable", found=str(error), remedy="repair the file; previous rules stay in force"
                )

    async def stop(self) -> None:
        """Answer requests under way, then close. Also after a failed start."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._server is not None and self._serving is not None:
            self._stopping.set()
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _facts_of(url: str) -> Facts:
    """Return what asks a database for its facts, in any thread."""
    from mqtrail.store.sql import look_at  # an extra, which is installed: the broker's store is of it

    return lambda queues, sizes: look_at(url, queues=queues, sizes=sizes)


def _read(path: Path) -> GateRules:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(
            f"{path}: found no readable rules ({error}), expected a TOML file: correct http_rules"
        ) from error
    return read_rules(text, str(path))


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _report(event: str, fields: Mapping[str, object]) -> None:
    log.sparse.warning(event, **fields)
