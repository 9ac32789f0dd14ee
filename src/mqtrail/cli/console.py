"""`console`: serves pages and the HTTP API to this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from .exits import Exit
from .imports import collector_paused, modules_hidden
from .options import ConfigFile, LakeFolder, Namesrv
from .serving import LoopbackHost, listen, serve, sources_of

PORT_DEFAULT = 9870
UNUSED = (
    *("aiohttp", "requests"),  # NiceGUI's transport imports them to ask servers
    *("numpy", "pyarrow._azurefs", "pyarrow._gcsfs", "pyarrow._hdfs", "pyarrow._s3fs"),  # Arrow imports them
)
"""Modules that libraries import if they are there, and that the console has no use for: 15 MB."""


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
        words = "console on http://{address}, HTTP API described by http://{address}/openapi.json; Ctrl-C ends it"
        with modules_hidden(*UNUSED):  # DuckDB and Arrow are imported by the first question
            serve(app, listening, words)
    return Exit.OK
