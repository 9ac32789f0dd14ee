"""`console`: serves pages and the HTTP API to this machine."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .config import load
from .exits import Exit, UsageError, lake_in_use
from .imports import collector_paused, modules_hidden
from .options import ConfigFile, LakeFolder, Namesrv
from .output import say

if TYPE_CHECKING:
    from mqtrail.answers.http import Sources
    from mqtrail.lake import LakePath

PORT_DEFAULT = 9870
UNUSED = ("aiohttp", "requests")
"""HTTP clients that NiceGUI's transport imports if they are there. The console only serves."""


def console(
    lake: LakeFolder = None,
    namesrv: Namesrv = None,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free one.")] = PORT_DEFAULT,
    config: ConfigFile = None,
) -> int:
    """Serve web pages and the HTTP API on this machine, over a lake, a cluster, or both. Read-only."""
    sources = _sources(lake, namesrv, config)
    with _listen(host, port) as listening:
        with collector_paused(), modules_hidden(*UNUSED):
            import uvicorn

            from mqtrail.console import make_console

            app = make_console(sources)
        address = _address(listening)
        listening.listen()
        say(f"console on http://{address}, HTTP API described by http://{address}/openapi.json; Ctrl-C ends it")
        sys.stdout.flush()
        settings = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn ends by them, then calls what was set before
            signal.signal(number, lambda *_: None)
        uvicorn.Server(settings).run(sockets=[listening])
    return Exit.OK


def _sources(lake: str | None, namesrv: str | None, config: ConfigFile) -> Sources:
    with collector_paused():
        from mqtrail.answers.http import Sources

    settings = load(config)
    folder, servers = settings.lake(lake), settings.namesrv(namesrv, is_default_used=False)
    if folder is None and not servers:
        raise UsageError(
            "found neither --lake nor --namesrv, expected one or both: pass the folder of the lake, the name servers"
        )
    if folder is not None and not _is_lake(folder):
        with lake_in_use():
            from mqtrail.lake import Lake

            Lake.open(folder, is_whole=False)  # a wrong path is an error now, not on the first page
    return Sources.open(folder, servers, settings=settings.room("judge"), instance=settings.room("client"))


def _is_lake(folder: LakePath) -> bool:
    """Return whether a local folder has tables. Opening them imports DuckDB and Arrow, which the first page spares."""
    return isinstance(folder, Path) and (folder / "trajectories" / "_delta_log").is_dir()


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. UsageError: the address is not a loopback address."""
    from ipaddress import ip_address

    try:
        is_loopback = ip_address("127.0.0.1" if host == "localhost" else host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise UsageError(
            f"--host: found {host!r}, expected a loopback address: the console has no accounts, so it serves this "
            "machine only; from another machine use a tunnel, for example `ssh -L`"
        )
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise UsageError(
            f"--port: cannot listen on {host} port {port}: {error.strerror}; pass another --port"
        ) from None
    return made


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
