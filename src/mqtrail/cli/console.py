"""`console`: serves pages and the HTTP API to this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .audit import AUDIT_FILE
from .config import Config, load
from .exits import Exit, UsageError
from .imports import collector_paused, modules_hidden
from .options import ConfigFile, LakeFolder, Namesrv
from .serving import LoopbackHost, listen, serve, sources_of

if TYPE_CHECKING:
    from mqtrail.answers import Sources
    from mqtrail.answers.changes import ClusterChanges

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
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let its users change the cluster: each change is recorded.")
    ] = False,
    audit_log: Annotated[
        Path | None, typer.Option(readable=False, help="File that changes are recorded in. [default: DATA/audit.jsonl]")
    ] = None,
    config: ConfigFile = None,
) -> int:
    """Serve web pages and the HTTP API on this machine, over a lake, a cluster, or both."""
    sources = sources_of(lake, namesrv, config)
    changes = changes_of(sources, load(config), audit_log) if allow_changes else None
    if audit_log is not None and changes is None:
        raise UsageError("found --audit-log without --allow-changes, expected both")
    with listen(host, port) as listening:
        with collector_paused(), modules_hidden(*UNUSED):
            from mqtrail.console import make_console

            app = make_console(sources, changes)
        words = "console on http://{address}, HTTP API described by http://{address}/openapi.json; Ctrl-C ends it"
        with modules_hidden(*UNUSED):  # DuckDB and Arrow are imported by the first question
            serve(app, listening, words)
    return Exit.OK


def changes_of(sources: Sources, settings: Config, audit_log: Path | None) -> ClusterChanges:
    """Return the changes to the cluster of `sources`. UsageError: there is none. AuditFailed."""
    from mqtrail.answers.changes import AuditLog, ClusterChanges

    if not sources.namesrv:
        raise UsageError("found --allow-changes without --namesrv, expected both: pass the name servers")
    path = audit_log or settings.data(None) / AUDIT_FILE
    return ClusterChanges(sources.namesrv, AuditLog(path), sources.instance)
