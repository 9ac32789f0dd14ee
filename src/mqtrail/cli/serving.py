"""What `console` and `mcp` share: their sources, and serving HTTP to this machine alone."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .config import Config, load
from .exits import UsageError, lake_in_use
from .imports import collector_paused
from .output import say

if TYPE_CHECKING:
    from mqtrail.answers import Sources
    from mqtrail.lake import LakePath

CONNECTIONS_MAX: Final = 1_000  # of browsers and programs on this machine

LoopbackHost = Annotated[str, typer.Option(help="Loopback address to listen on.")]


def serve(app: Any, listening: socket.socket, words: str, tls: tuple[str, str] | None = None) -> None:
    """Print `words` with the address for {address}, and serve an ASGI application until a signal ends it.

    tls: PEM files of the certificate and of its key.
    """
    import uvicorn

    from mqtrail.gateway import http_settings

    listening.listen()
    say(words.format(address=_address(listening)))
    sys.stdout.flush()
    settings = http_settings(app, CONNECTIONS_MAX, websockets=True)
    if tls is not None:
        settings.ssl_certfile, settings.ssl_keyfile = tls
        try:
            settings.load()
        except OSError as error:
            raise UsageError(
                f"[console] tls_certificate: {error}: expected PEM files of a certificate and its key"
            ) from None
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn ends by them, then calls what was set before
        signal.signal(number, lambda *_: None)
    uvicorn.Server(settings).run(sockets=[listening])


def sources_of(lake: str | None, namesrv: str | None, config: Path | None, *, is_needed: bool = True) -> Sources:
    """Return the sources that the options name. UsageError, SourceUnavailable: there is none, or no lake there."""
    return sources_in(load(config), lake, namesrv, is_needed=is_needed)


def sources_in(
    settings: Config, lake: str | None = None, namesrv: str | None = None, *, is_needed: bool = True
) -> Sources:
    """Return the sources that the options or else the settings name. is_needed: it is an error if there is none.

    UsageError, SourceUnavailable.
    """
    with collector_paused():
        from mqtrail.answers import Sources

    folder, servers = settings.lake(lake), settings.namesrv(namesrv, is_default_used=False)
    if is_needed and folder is None and not servers:
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


def listen(host: str, port: int, *, is_open: bool = False) -> socket.socket:
    """Return a listening socket. UsageError: the address is not a loopback address, unless is_open."""
    from mqtrail.wire import is_loopback

    if not is_open and not is_loopback(host):
        raise UsageError(
            f"--host: found {host!r}, expected a loopback address: it has no accounts, so it serves this "
            "machine only; from another machine use a tunnel, for example `ssh -L`"
        )
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except (OSError, UnicodeError) as error:
        made.close()
        why = error.strerror if isinstance(error, OSError) else "not an address"
        raise UsageError(f"--port: cannot listen on {host} port {port}: {why}; pass another --port") from None
    return made


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
