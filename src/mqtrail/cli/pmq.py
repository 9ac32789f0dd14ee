"""`mqtrail pmq`: queues as tables of a database, published and received over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .config import load
from .exits import Exit, UsageError
from .options import ConfigFile, Json
from .output import say, show_json
from .up import (
    AdvertisedHost,
    AssignedFiles,
    Assignments,
    BrokerPort,
    BrokerTrace,
    DataFolder,
    ListenHost,
    MetricsPort,
    NamesrvPort,
    StoreNodes,
    StoreReplicas,
    TlsKind,
    up,
)

DEFAULT_FILE = "messages.db"

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Database of the messages. [env: MQTRAIL_STORE_URL, default: SQLite file messages.db in the data folder]",
    ),
]
RulesFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="TOML file of tokens, addresses and limits of topics and groups. [default: none]"
    ),
]
HttpPort = Annotated[int, typer.Option(min=0, max=65_535, help="Port of the HTTP door; 0: any free port.")]


def pmq_up(
    db: DatabaseUrl = None,
    store_nodes: StoreNodes = None,
    store_replicas: StoreReplicas = None,
    data: DataFolder = None,
    host: ListenHost = None,
    port: HttpPort = 8080,
    rules: RulesFile = None,
    tls: TlsKind = None,
    advertise: AdvertisedHost = None,
    namesrv_port: NamesrvPort = None,
    broker_port: BrokerPort = None,
    broker_trace: BrokerTrace = None,
    metrics_port: MetricsPort = None,
    assign: Assignments = None,
    assign_files: AssignedFiles = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Run a name server, a broker on tables and its HTTP door until SIGINT or SIGTERM."""
    return up(
        data=data,
        host=host,
        advertise=advertise,
        namesrv_port=namesrv_port,
        broker_port=broker_port,
        store=db or _default_url(data, config),
        store_nodes=store_nodes,
        store_replicas=store_replicas,
        broker_trace=broker_trace,
        assign=[*(assign or []), f"node.http_port={port}", *([] if rules is None else [f"node.http_rules={rules}"])],
        tls=tls,
        assign_files=assign_files,
        metrics_port=metrics_port,
        config=config,
        json=json,
    )


def _default_url(data: Path | None, config: Path | None) -> str | None:
    """Return the URL of a file in the data folder; None: the settings have a URL. UsageError: the path has a `?`."""
    settings = load(config)
    if settings.room("node").store_url:
        return None
    path = settings.data(data).absolute() / DEFAULT_FILE
    if "?" in str(path):
        raise UsageError(
            f"--data: found {str(path)!r} with a question mark, expected none: pass --db, or another folder"
        )
    return f"sqlite:///{path}"


def pmq_token(json: Json = False) -> int:
    """Create a token for a topic or a group, and print its hash for the file of --rules."""
    from mqtrail.gateway import new_token

    token, token_hash = new_token()
    if json:
        show_json({"token": token, "hash": token_hash})
    else:
        say(f"token  {token}\nhash   {token_hash}")
    return Exit.OK
