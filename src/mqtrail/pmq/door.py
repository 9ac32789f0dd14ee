"""Requests to the HTTP door: one connection pool, repeats until a deadline, errors that say what is known."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpx

from mqtrail.wire import MQError

PAUSE_S: Final = 0.1  # before the first repeat; it doubles up to PAUSE_MAX_S
PAUSE_MAX_S: Final = 2.0
SLACK_S: Final = 5.0  # beyond the time that the door may hold a request
NOTHING_DONE: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
REPEATABLE: Final = (
    HTTPStatus.CONFLICT,  # the same request is under way
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class PmqError(MQError):
    """A request to the door did not succeed."""


class RequestRefused(PmqError):
    """The door refused a request, and would refuse it again. status: of HTTP."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class RequestFailed(PmqError):
    """No success within the time. maybe_done: whether the request may have been executed."""

    def __init__(self, what: str, *, maybe_done: bool) -> None:
        state = "it may have been done" if maybe_done else "nothing was done"
        super().__init__(f"{what}; {state}: check that the door runs and its database answers, then try again")
        self.maybe_done = maybe_done


@dataclass(frozen=True, slots=True, kw_only=True)
class PmqConfig:
    """timeout_s: for a request with all its repeats. token: for a door that asks for one. tls: for https, if the
    certificate is not of a public authority. connections_max: to the door. hold_max_s: how long a subscriber extends a
    message that is not settled."""

    timeout_s: float = 30.0
    token: str = ""
    tls: ssl.SSLContext | None = None
    connections_max: int = 100
    hold_max_s: float = 900.0


class DoorClient:
    """`start`, then any number of `ask` at a time, then `close`."""

    def __init__(self, url: str, config: PmqConfig) -> None:
        """PmqError: the URL is not that of a door."""
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.path not in ("", "/", "/v1"):
            raise PmqError(f"found the address {url!r}, expected http://host:port: pass that of `mqtrail pmq up`")
        self._base_url = parsed.copy_with(path="/v1")
        self.config = config
        self._http: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Make the connection pool."""
        if self._http is None:
            limits = httpx.Limits(max_connections=self.config.connections_max, keepalive_expiry=30)
            token = self.config.token
            self._http = httpx.AsyncClient(
                base_url=self._base_url,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                verify=self.config.tls or True,
                limits=limits,
                trust_env=False,
            )

    async def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def ask(
        self,
        path: str,
        body: Any,
        *,
        hold_s: float = 0,
        headers: Mapping[str, str] | None = None,
        repeats: bool = True,
        method: str = "POST",
    ) -> Any:
        """Send a JSON body; return the JSON of the answer. RequestRefused, RequestFailed.

        hold_s: how long the door may hold the request. repeats: it may be done twice; else it is repeated only if
        nothing was done.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + hold_s + self.config.timeout_s
        pause_s, maybe_done = PAUSE_S, False
        while True:
            try:
                answer = await self._send(path, body, headers, hold_s, deadline_s - loop.time(), method)
            except httpx.TransportError as error:
                what = (
                    f"found no answer of {self._base_url.host}:{self._base_url.port} ({error or type(error).__name__})"
                )
                maybe_done |= not isinstance(error, NOTHING_DONE)
            else:
                if answer.status_code == HTTPStatus.OK:
                    return answer.json()
                what = _detail(answer)
                if answer.status_code not in REPEATABLE:
                    raise RequestRefused(answer.status_code, what)
                maybe_done |= answer.status_code != HTTPStatus.TOO_MANY_REQUESTS
                pause_s = max(pause_s, _retry_after_s(answer))
            if loop.time() + pause_s >= deadline_s or (maybe_done and not repeats):
                raise RequestFailed(what, maybe_done=maybe_done)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _send(
        self, path: str, body: Any, headers: Mapping[str, str] | None, hold_s: float, left_s: float, method: str
    ) -> httpx.Response:
        if self._http is None:
            await self.start()
        assert self._http is not None
        timeout = httpx.Timeout(
            max(0.1, min(left_s, hold_s + SLACK_S + PAUSE_MAX_S)), connect=max(0.1, min(left_s, SLACK_S))
        )
        return await self._http.request(method, path, json=body, headers=headers, timeout=timeout)


def _detail(answer: httpx.Response) -> str:
    """Return the detail of a problem; of another body, its beginning."""
    try:
        found = answer.json()
        return str(found["detail"])
    except (ValueError, KeyError, TypeError):
        return (
            f"found status {answer.status_code} with {answer.text[:100]!r}, expected an answer of mqtrail's HTTP door"
        )


def _retry_after_s(answer: httpx.Response) -> float:
    found = answer.headers.get("retry-after", "")
    return float(found) if found.isdecimal() else 0.0
