"""`console`: serves pages and the HTTP API to this machine, or to users who log in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .config import Config, load
from .console_clusters import check_alone, clusters_in, clusters_of
from .console_users import USERS_FILE
from .exits import Exit, UsageError
from .imports import collector_paused, modules_hidden
from .incident_acts import handled_incidents
from .options import ConfigFile, LakeFolder, Namesrv
from .output import say
from .serving import listen, serve, sources_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from mqtrail.answers import Sources
    from mqtrail.answers.access import AccessDesk
    from mqtrail.answers.changes import ClusterChanges
    from mqtrail.pmq.operating import OperatedDoor

PORT_DEFAULT = 9870
UNUSED = (
    *("aiohttp", "requests"),  # NiceGUI's transport imports them to ask servers
    *("redis", "httpx._main", "watchfiles"),  # NiceGUI, httpx and uvicorn import them
    *("numpy", "pyarrow._azurefs", "pyarrow._gcsfs", "pyarrow._hdfs", "pyarrow._s3fs"),  # Arrow imports them
)
"""Modules that libraries import if they are there, and that the console has no use for: 25 MB."""

PmqUrl = Annotated[
    str | None, typer.Option("--pmq", metavar="URL", help="Address of an HTTP door: serve the pages of pmq mode.")
]
PmqTokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        readable=False,
        help="File with the token of the door's operator. [env: MQTRAIL_OPERATOR_TOKEN has the token]",
    ),
]
PmqCaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        readable=False,
        help="File of the certificates to trust for an https door. [default: those of the system]",
    ),
]


def console(
    context: typer.Context,
    lake: LakeFolder = None,
    namesrv: Namesrv = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but a loopback address needs accounts and HTTPS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free one.")] = PORT_DEFAULT,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Allow changes of the cluster; each change is recorded.")
    ] = False,
    audit_log: Annotated[
        Path | None, typer.Option(readable=False, help="File to record changes in. [default: DATA/audit.jsonl]")
    ] = None,
    clusters: Annotated[
        Path | None, typer.Option(readable=False, help="TOML file of several clusters and lakes to serve.")
    ] = None,
    pmq: PmqUrl = None,
    token_file: PmqTokenFile = None,
    ca: PmqCaFile = None,
    config: ConfigFile = None,
) -> int:
    """Serve web pages and the HTTP API, over a lake, a cluster, or both: to this machine, or to users who log in."""
    if context.invoked_subcommand is not None:
        return Exit.OK
    settings = load(config)
    if clusters is not None:
        check_alone(lake=lake, namesrv=namesrv, audit_log=audit_log, pmq=pmq)
    door = _door(pmq, token_file, ca)
    sources = None if clusters is not None else sources_of(lake, namesrv, config, is_needed=door is None)
    entries = [] if clusters is None else clusters_in(clusters, settings)
    access = access_of(settings, host, audit_log)
    has_cluster = sources is not None and (sources.namesrv or door is None)
    changes = (
        changes_of(sources, settings, audit_log) if allow_changes and sources is not None and has_cluster else None
    )
    if audit_log is not None and changes is None and access is None and sources is not None and sources.lake is None:
        raise UsageError("found --audit-log without --allow-changes, a lake or accounts, expected one of them")
    with listen(host, port, is_open=access is not None) as listening:
        with collector_paused(), modules_hidden(*UNUSED):
            from mqtrail.console import make_clusters_console

            if sources is None:
                app = make_clusters_console(clusters_of(entries, access, is_changing=allow_changes))
            else:
                portal = None if door is None else (door, allow_changes)
                app = _of_one(sources, changes, access, settings, audit_log, portal)
        tls = (access.config.tls_certificate, access.config.tls_key) if access and access.config.tls_key else None
        at = "https://{address}" if tls else "http://{address}"
        words = f"console on {at}, HTTP API described by {at}/openapi.json; Ctrl-C ends it"
        if access is not None and (token := access.first_token()):
            say(f"no user yet: open /login/first within an hour, with the token {token}")
        with modules_hidden(*UNUSED):  # DuckDB is imported by the first question
            serve(app, listening, words, tls)
    return Exit.OK


def _of_one(
    sources: Sources,
    changes: ClusterChanges | None,
    access: AccessDesk | None,
    settings: Config,
    audit_log: Path | None,
    door: tuple[OperatedDoor, bool] | None,
) -> FastAPI:
    """Return the application of one cluster and one lake, and of a door of pmq mode, with whether it may be changed."""
    from mqtrail.answers.access import SEARCHES_FILE
    from mqtrail.answers.alerts import ALERTS_FILE
    from mqtrail.console import PmqPortal, make_console

    data = settings.data(None)
    handled = handled_incidents(settings, audit_log)
    portal = None if door is None else PmqPortal(door[0], names_people=access is not None, can_change=door[1])
    return make_console(sources, changes, access, data / ALERTS_FILE, data / SEARCHES_FILE, handled, portal)


def _door(url: str | None, token_file: Path | None, ca: Path | None) -> OperatedDoor | None:
    """Return the door of pmq mode; None: there is none. UsageError."""
    if url is None:
        for option, value in (("--token-file", token_file), ("--ca", ca)):
            if value is not None:
                raise UsageError(f"found {option} without --pmq, expected both: pass the address of the door")
        return None
    from .pmq_door import door_at

    found = door_at(url, token_file, ca, "--pmq")
    if found.token is None:
        raise UsageError(
            "found --pmq without a token, expected one of an operator: set MQTRAIL_OPERATOR_TOKEN, or pass --token-file"
        )
    return found


def access_of(settings: Config, host: str, audit_log: Path | None) -> AccessDesk | None:
    """Return the accounts; None: there are none, and only this machine has access. UsageError, AuditFailed."""
    from mqtrail.answers.access import AccessConfig
    from mqtrail.wire import is_loopback

    found: AccessConfig = settings.room("console")
    is_open = not is_loopback(host)
    if is_open and not found.is_secure:
        raise UsageError(
            f"--host: found {host!r} without HTTPS, expected passwords and sessions to be encrypted: set [console] url "
            "to the https:// address that users open, and tls_certificate and tls_key unless a proxy speaks TLS"
        )
    if is_open and not found.url:
        raise UsageError(f"--host: found {host!r} without [console] url, expected the address that users open")
    users = Path(found.users).expanduser() if found.users else settings.data(None) / USERS_FILE
    if not (is_open or found.accounts or found.oidc_issuer or found.proxy_header or users.exists()):
        return None
    from mqtrail.answers.access import AccessDesk, Accounts
    from mqtrail.answers.changes import AuditLog
    from mqtrail.net import AUDIT_FILE

    known = Accounts(users)
    known.all()  # a damaged file is an error now, not at the first log-in
    return AccessDesk(found, known, AuditLog(audit_log or settings.data(None) / AUDIT_FILE))


def changes_of(sources: Sources, settings: Config, audit_log: Path | None) -> ClusterChanges:
    """Return the changes to the cluster of `sources`. UsageError: there is none. AuditFailed."""
    from mqtrail.answers.changes import AuditLog, ClusterChanges
    from mqtrail.net import AUDIT_FILE

    if not sources.namesrv:
        raise UsageError("found --allow-changes without --namesrv, expected both: pass the name servers")
    path = audit_log or settings.data(None) / AUDIT_FILE
    return ClusterChanges(sources.namesrv, AuditLog(path), sources.instance)
