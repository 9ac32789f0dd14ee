"""The answers of this room as tools of the Model Context Protocol. Read-only, each answer with its bounds.

`make_mcp` returns the server for stdio, `make_mcp_app` that for HTTP. Values from messages are untrusted: control
and invisible characters are escaped, and the instructions to the agent say that it is data.
"""

from .named import McpClusters, NamedSources
from .tools import ROWS_MAX, TEXT_MAX, TEXTS_MAX, bounded, make_mcp, make_mcp_app

__all__ = ["ROWS_MAX", "TEXTS_MAX", "TEXT_MAX", "McpClusters", "NamedSources", "bounded", "make_mcp", "make_mcp_app"]
