"""A name server on a socket."""

from dataclasses import replace
from pathlib import Path

from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.net import Log, Server, ServerConfig
from mqtrail.store import ConfigFileStore, RealDisk
from mqtrail.wire import Accounts, change_settings, no_accounts

from .clock import wall_clock_ms
from .files import unusable_files
from .shell import Shell
from .table_writer import TableWriter
from .watchdog import Watchdog

log = Log()


class NameServerNode:
    """`bind`, `start`, `stop`. The port is known after `bind`. folder None: keep no tables on disk."""

    def __init__(
        self,
        folder: Path | None = None,
        config: NameServerConfig | None = None,
        server: ServerConfig | None = None,
        accounts: Accounts = no_accounts,
    ) -> None:
        disk = None if folder is None else RealDisk(folder)
        files = None if disk is None else ConfigFileStore(disk, gathers=True)
        with unusable_files("the name server"):
            self.core = NameServer(
                replace(config or NameServerConfig()), files, now_ms=wall_clock_ms(), accounts=accounts
            )
        for found in () if files is None else files.report:
            log.warning("tables.recovered", owner="name server", report=found)
        self._tables = None if files is None else TableWriter(files, "name server")
        self._shell = Shell(
            self.core,
            hold_for_tables=None if self._tables is None else self._tables.after,
            on_change=None if self._tables is None else self._tables.save_changes,
            watchdog=Watchdog(self.core.stalls),
        )
        self._server = Server(self._shell, server)

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        return self._server.port

    def bind(self, host: str, port: int) -> None:
        """Take the port. BindError."""
        self._server.bind(host, port)
        change_settings(self.core.config, {"listen_port": self.port})

    async def start(self) -> None:
        """Serve."""
        await self._server.start()
        self._shell.start()

    async def stop(self) -> None:
        """Close every connection and the port."""
        self._shell.stop()
        if self._tables is not None:
            await self._tables.stop()
        await self._server.stop()
