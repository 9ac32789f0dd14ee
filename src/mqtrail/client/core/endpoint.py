"""Name servers by HTTP: an endpoint that returns their addresses, for clusters whose name servers move.

    GET http://jmenv.tbsite.net:8080/rocketmq/nsaddr   ->   10.0.0.5:9876;10.0.0.6:9876

Source: DefaultTopAddressing, MixAll.getWSAddr, apache/rocketmq common/.
"""

import asyncio
import contextlib
import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Final

from mqtrail.net import parse_namesrv

from .config import InstanceConfig
from .errors import NoNameServer

ANSWER_SIZE_MAX: Final = 64 * 1024  # bytes
FETCH_TIMEOUT_MS: Final = 3_000
PORT_DEFAULT: Final = 8080


def endpoint_url(namesrv: str | Sequence[str], config: InstanceConfig) -> str | None:
    """Return the URL that lists the name servers; None if namesrv contains their addresses.

    The URL is namesrv itself if that is a URL with a path, else it is built from the configured domain.
    """
    text = namesrv.strip() if isinstance(namesrv, str) else ""
    scheme, separator, rest = text.partition("://")
    if separator and scheme in ("http", "https") and rest.partition("/")[2]:
        return text
    if text or not isinstance(namesrv, str) or not config.namesrv_domain:
        return None
    domain = config.namesrv_domain
    port = "" if ":" in domain else f":{PORT_DEFAULT}"
    unit = f"-{config.unit_name}?nofix=1" if config.unit_name else ""
    return f"http://{domain}{port}/rocketmq/{config.namesrv_subgroup}{unit}"


async def fetch_addresses(url: str, timeout_ms: int = FETCH_TIMEOUT_MS) -> tuple[str, ...]:
    """As `ask_addresses`, in a thread."""
    return await asyncio.to_thread(ask_addresses, url, timeout_ms)


def ask_addresses(url: str, timeout_ms: int = FETCH_TIMEOUT_MS) -> tuple[str, ...]:
    """Ask url for the name servers: the first line of the answer. Raises NoNameServer with what was found."""
    try:
        text = _get(url, timeout_ms)
        return parse_namesrv(text.strip().partition("\n")[0].strip())
    except (OSError, ValueError, http.client.HTTPException) as error:  # URLError is an OSError
        raise NoNameServer(
            f"endpoint {url} returned no name servers: {error}; expected the answer host:port;host:port. "
            "Check the URL and the service behind it"
        ) from error


class _Deadline:
    """Closes connections at a deadline. A socket's timeout starts again with each byte, so it does not bound a call."""

    def __init__(self) -> None:
        self.passed = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def guard(self, one: socket.socket) -> None:
        with self._lock:
            self._sockets.append(one)
        if self.passed:
            self.end()

    def end(self) -> None:
        with self._lock:
            self.passed = True
            for one in self._sockets:
                with contextlib.suppress(OSError):  # closed already
                    socket.socket.shutdown(one, socket.SHUT_RDWR)


def _opener(deadline: _Deadline) -> urllib.request.OpenerDirector:
    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            deadline.guard(self.sock)

    class Secure(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            deadline.guard(self.sock)

    class OpenPlain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, req)

    class OpenSecure(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Secure, req)

    no_proxy = urllib.request.ProxyHandler({})  # the endpoint is in the local network
    return urllib.request.build_opener(no_proxy, OpenPlain, OpenSecure)


def _get(url: str, timeout_ms: int) -> str:
    """Return the answer. OSError, ValueError, HTTPException: no complete, valid answer within timeout_ms."""
    deadline = _Deadline()
    timer = threading.Timer(timeout_ms / 1000, deadline.end)
    timer.daemon = True
    timer.start()
    try:
        with _opener(deadline).open(url, timeout=timeout_ms / 1000) as reply:
            data = reply.read(ANSWER_SIZE_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(f"HTTP status {error.code}") from None
    finally:
        timer.cancel()
    if deadline.passed:
        raise ValueError(f"no whole answer within {timeout_ms} ms")
    return str(data, "utf-8", "replace")
