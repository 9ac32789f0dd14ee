"""`mcp`: read-only tools for agents, by the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from .exits import Exit
from .imports import collector_paused
from .options import ConfigFile, LakeFolder, Namesrv
from .serving import LoopbackHost, listen, serve, sources_of

PORT_DEFAULT = 9871


def mcp(
    lake: LakeFolder = None,
    namesrv: Namesrv = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP instead of standard input and output.")] = False,
    host: LoopbackHost = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on with --http; 0: any free one.")
    ] = PORT_DEFAULT,
    config: ConfigFile = None,
) -> int:
    """Serve the look-ups as tools of the Model Context Protocol (MCP), for agents. Read-only."""
    sources = sources_of(lake, namesrv, config)
    with collector_paused():
        from mqtrail.answers.mcp import make_mcp, make_mcp_app
    try:
        if http:
            with listen(host, port) as listening:
                app = make_mcp_app(sources, host)
                serve(app, listening, "MCP server on http://{address}/mcp; Ctrl-C ends it")
        else:
            make_mcp(sources).run("stdio")
    finally:
        sources.close()
    return Exit.OK
