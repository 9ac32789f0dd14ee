"""`console`: serves pages and the HTTP API to this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from .exits import Exit
from .imports import collector_paused, modules_hidden
from .options import ConfigFile, LakeFolder, Namesrv
from .serving import LoopbackHost, listen, serve, sources_of

PORT_DEFAULT = 9870
UNUSED = ("aiohttp", "requests")
"""HTTP clients that NiceGUI's transport imports if they are there. The console only serves."""


def console(
    lake: LakeFolder = None,
    namesrv: Namesrv = None,
    host: LoopbackHost = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free one.")] = PORT_DEFAULT,
    config: ConfigFile = None,
) -> int:
    """Serve web pages and the HTTP API on this machine, over a lake, a cluster, or both. Read-only."""
    sources = sources_of(lake, namesrv, config)
    with listen(host, port) as listening:
        with collector_paused(), modules_hidden(*UNUSED):
            from mqtrail.console import make_console

            app = make_console(sources)
        serve(
            app,
            listening,
            "console on http://{address}, HTTP API described by http://{address}/openapi.json; Ctrl-C ends it",
        )
    return Exit.OK
