"""`mcp`: read-only tools for agents, by the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .config import load
from .console_clusters import check_alone, clusters_in, mcp_clusters_of
from .exits import Exit
from .imports import collector_paused
from .options import ConfigFile, LakeFolder, Namesrv
from .serving import LoopbackHost, listen, serve, sources_of

if TYPE_CHECKING:
    from mqtrail.answers import Sources
    from mqtrail.answers.mcp import McpClusters

PORT_DEFAULT = 9871


def mcp(
    lake: LakeFolder = None,
    namesrv: Namesrv = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP instead of standard input and output.")] = False,
    host: LoopbackHost = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on with --http; 0: any free one.")
    ] = PORT_DEFAULT,
    clusters: Annotated[
        Path | None, typer.Option(readable=False, help="TOML file of several clusters and lakes to serve.")
    ] = None,
    config: ConfigFile = None,
) -> int:
    """Serve the look-ups as tools of the Model Context Protocol (MCP), for agents. Read-only."""
    sources: Sources | McpClusters
    if clusters is None:
        sources = sources_of(lake, namesrv, config)
    else:
        check_alone(lake=lake, namesrv=namesrv)
        sources = mcp_clusters_of(clusters_in(clusters, load(config)))
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
