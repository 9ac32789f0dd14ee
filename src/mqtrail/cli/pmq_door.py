"""Options of the commands of `mqtrail pmq` that name an HTTP door, or its database."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Final

import typer

from mqtrail.pmq.operating import OperatedDoor, door_url

from .config import has_password, operator_token
from .exits import UsageError
from .output import warn

URL_DEFAULT: Final = "http://127.0.0.1:8080"

DoorUrl = Annotated[
    str | None, typer.Option("--url", metavar="URL", help=f"Address of the HTTP door. [default: {URL_DEFAULT}]")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        readable=False,
        help="File with the operator's token. [env: MQTRAIL_OPERATOR_TOKEN has the token]",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        readable=False,
        help="File of the certificates to trust for an https door. [default: those of the system]",
    ),
]
DatabaseOf = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="Read this database directly instead of a door; no broker needs to run."),
]


def door_at(url: str | None, token_file: Path | None, ca: Path | None, option: str = "--url") -> OperatedDoor:
    """Return the door of a command's options. UsageError."""
    text = url or URL_DEFAULT
    found = door_url(text)
    if found is None:
        raise UsageError(f"{option}: found {text!r}, expected the address of a door, for example {URL_DEFAULT}")
    return OperatedDoor(found, operator_token(token_file), _tls(ca), option=option)


def _tls(ca: Path | None) -> ssl.SSLContext | None:
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca: {ca} cannot be read ({error}), expected certificates in PEM") from None


def check_database_url(url: str, remedy: str = "ask the door with --url") -> None:
    """Warn about a password that other users can see."""
    if has_password(url):
        warn(f"found a password in a URL on the command line, which other users can read there; {remedy}")
