"""How operators' requests reach an HTTP door: its operators' interface, with an operator's token."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from mqtrail.wire import ACTS_FOR_HEADER, OPERATOR_PATH, MQError

TIMEOUT_S: Final = 60.0
ANSWER_SIZE_MAX: Final = 256 << 20


class DoorRefused(MQError):
    """The door answered that it does not do it. status: of HTTP."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


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
    """A door. url: without a path. token: of an operator; None: there is none. tls: None: what the system trusts.

    acts_for: the operator for whom a console asks; None: the one of the token. option: what names the door in remedies.
    """

    url: str
    token: str | None = field(repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    acts_for: str | None = None
    option: str = "--url"

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
        if self.acts_for is not None:
            request.add_header(ACTS_FOR_HEADER, quote(self.acts_for, safe=""))
        try:
            opener = build_opener(_NoRedirects, HTTPSHandler(context=self.tls))
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return _read(answer.read(ANSWER_SIZE_MAX + 1), self)
        except HTTPError as error:
            with error:
                raise DoorRefused(error.code, _problem_of(error, self)) from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            done = "" if body is None else "; the request may have been executed"
            raise DoorFailed(
                f"found no answer from {self.url} ({reason}){done}, expected one: start `mqtrail pmq up`, or correct "
                f"{self.option}"
            ) from None


def door_url(text: str) -> str | None:
    """Return the address of a door without a final slash; None: it is none."""
    text = text.rstrip("/")
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.path and not parts.query
        return text if is_one and parts.username is None and parts.port != 0 else None
    except ValueError:
        return None


def segment(text: str) -> str:
    """Return a name as a part of a path."""
    return quote(text, safe="")


def _text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(data: bytes, door: OperatedDoor) -> DoorAnswer:
    if len(data) > ANSWER_SIZE_MAX:
        raise DoorFailed(
            f"found an answer of more than {ANSWER_SIZE_MAX} bytes from {door.url}, expected less: request less data"
        )
    with suppress(ValueError, RecursionError):
        found = json.loads(data, object_hook=DoorAnswer)
        if isinstance(found, DoorAnswer):
            return found
    shown = data[:40].decode("utf-8", "replace")
    raise DoorFailed(
        f"found the answer {shown!r} of {door.url}, expected a JSON object of a door: correct {door.option}"
    )


def _problem_of(error: HTTPError, door: OperatedDoor) -> str:
    """Return what a door says of a request that it does not do."""
    try:
        detail = json.loads(error.read(1 << 20))["detail"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError, HTTPException):
        detail = None
    if not isinstance(detail, str) or detail == "Not Found":
        return (
            f"found status {error.code} of {door.url}, expected a door with the operators' interface: correct "
            f"{door.option}"
        )
    return detail
