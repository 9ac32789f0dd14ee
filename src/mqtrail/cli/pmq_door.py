"""How the commands of `mqtrail pmq` reach an HTTP door: its operators' interface, with an operator's token."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any, Final, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import typer

from mqtrail.wire import OPERATOR_PATH, MQError

from .config import has_password, operator_token
from .exits import UsageError
from .output import warn

URL_DEFAULT: Final = "http://127.0.0.1:8080"
TIMEOUT_S: Final = 60.0
ANSWER_SIZE_MAX: Final = 256 << 20

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


class DoorRefused(MQError):
    """The door answered that it does not do it."""


class DoorFailed(MQError):
    """The door cannot be reached, or gave no answer that can be read."""


class DoorAnswer(dict[str, Any]):
    """An object in a door's answer. DoorFailed: it lacks what is read, as the answer of another kind of server does."""

    def __missing__(self, name: str) -> Any:
        raise DoorFailed(f"found an answer without {name!r}, expected that of a door of this version: correct --url")

    def rows(self, name: str) -> list[DoorAnswer]:
        """Return a list of objects."""
        return cast(
            "list[DoorAnswer]", self._of(name, lambda found: _is_list_of(found, DoorAnswer), "a list of objects")
        )

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        return cast("list[str]", self._of(name, lambda found: _is_list_of(found, str), "a list of texts"))

    def part(self, name: str) -> DoorAnswer:
        """Return an object within this one; an empty one in place of null."""
        found = self._of(name, lambda found: found is None or isinstance(found, DoorAnswer), "an object")
        return cast("DoorAnswer", found or DoorAnswer())

    def _of(self, name: str, is_right: Callable[[object], bool], expected: str) -> object:
        if not is_right(found := self[name]):
            raise DoorFailed(
                f"found {name!r} of type {type(found).__name__} in an answer, expected {expected} as of a door of this "
                "version: correct --url"
            )
        return found


def _is_list_of(found: object, kind: type) -> bool:
    return isinstance(found, list) and all(isinstance(one, kind) for one in found)


class _NoRedirects(HTTPRedirectHandler):
    """A door redirects nothing: the token would go to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class OperatedDoor:
    """A door. url: without a path. token: of an operator; None: there is none."""

    url: str
    token: str | None
    ca: Path | None = None

    def get(self, path: str, **query: object) -> DoorAnswer:
        """Return the answer to a question. DoorRefused, DoorFailed."""
        return self._ask("GET", path, query, None)

    def post(self, path: str, body: object, **query: object) -> DoorAnswer:
        """Return the answer to a request with a body. DoorRefused, DoorFailed."""
        return self._ask("POST", path, query, json.dumps(body).encode())

    def _ask(self, method: str, path: str, query: dict[str, object], body: bytes | None) -> DoorAnswer:
        words = urlencode([(name, _text_of(value)) for name, value in query.items() if value is not None])
        request = Request(f"{self.url}{OPERATOR_PATH}/{path}{'?' if words else ''}{words}", data=body, method=method)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            opener = build_opener(_NoRedirects, HTTPSHandler(context=self._tls()))
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return _read(answer.read(ANSWER_SIZE_MAX + 1), self.url)
        except HTTPError as error:
            with error:
                raise DoorRefused(_problem_of(error, self.url)) from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            done = "" if body is None else "; the request may have been executed"
            raise DoorFailed(
                f"found no answer from {self.url} ({reason}){done}, expected one: start `mqtrail pmq up`, or correct "
                "--url"
            ) from None

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"--ca: {self.ca} cannot be read ({error}), expected certificates in PEM") from None


def door_at(url: str | None, token_file: Path | None, ca: Path | None) -> OperatedDoor:
    """Return the door of a command's options. UsageError."""
    text = (url or URL_DEFAULT).rstrip("/")
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.path and not parts.query
        is_one = is_one and parts.username is None and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise UsageError(f"--url: found {text!r}, expected the address of a door, for example {URL_DEFAULT}")
    return OperatedDoor(text, operator_token(token_file), ca)


def check_database_url(url: str, remedy: str = "ask the door with --url") -> None:
    """Warn about a password that other users can see."""
    if has_password(url):
        warn(f"found a password in a URL on the command line, which other users can read there; {remedy}")


def segment(text: str) -> str:
    """Return a name as a part of a path."""
    return quote(text, safe="")


def _text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(data: bytes, url: str) -> DoorAnswer:
    if len(data) > ANSWER_SIZE_MAX:
        raise DoorFailed(
            f"found an answer of more than {ANSWER_SIZE_MAX} bytes from {url}, expected less: request less data"
        )
    with suppress(ValueError, RecursionError):
        found = json.loads(data, object_hook=DoorAnswer)
        if isinstance(found, DoorAnswer):
            return found
    shown = data[:40].decode("utf-8", "replace")
    raise DoorFailed(f"found the answer {shown!r} of {url}, expected a JSON object of a door: correct --url")


def _problem_of(error: HTTPError, url: str) -> str:
    """Return what a door says of a request that it does not do."""
    try:
        detail = json.loads(error.read(1 << 20))["detail"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError, HTTPException):
        detail = None
    if not isinstance(detail, str) or detail == "Not Found":
        return f"found status {error.code} of {url}, expected a door with the operators' interface: correct --url"
    return detail
