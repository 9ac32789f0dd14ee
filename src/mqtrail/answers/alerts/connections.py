"""Connections to channels with a time limit: without it, a server that sends a byte now and then would block all rules.

The time-out of a socket begins anew with each byte, so a timer shuts the socket down.
"""

from __future__ import annotations

import http.client
import smtplib
import socket
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from threading import Timer
from types import TracebackType
from typing import Any

from mqtrail.wire import MQError


class NotAccepted(MQError):
    """A channel refused an alert, or did not answer."""


class Deadline:
    """Shuts down the connection that it knows after some seconds; the block then raises NotAccepted."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = Timer(seconds, self._end)
        self._timer.daemon = True
        self._is_over = False
        self.find_socket: Callable[[], socket.socket | None] = lambda: None

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._is_over:
            raise NotAccepted(f"found no whole answer within {self._seconds:g} s, expected one") from None

    def _end(self) -> None:
        self._is_over = True
        if (found := self.find_socket()) is not None:
            with suppress(OSError):
                socket.socket.shutdown(found, socket.SHUT_RDWR)  # a TLS socket's own is for the thread that reads


class _Http(http.client.HTTPConnection):
    deadline: Deadline

    def connect(self) -> None:
        super().connect()
        found = self.sock  # the answer takes it over
        self.deadline.find_socket = lambda: found


class _Https(http.client.HTTPSConnection):
    deadline: Deadline

    def connect(self) -> None:
        super().connect()
        found = self.sock
        self.deadline.find_socket = lambda: found


class _HttpOpener(urllib.request.HTTPHandler):
    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made, req)

    def _made(self, host: str, **settings: Any) -> http.client.HTTPConnection:
        made = _Http(host, **settings)
        made.deadline = self._deadline
        return made


class _HttpsOpener(urllib.request.HTTPSHandler):
    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made, req)

    def _made(self, host: str, **settings: Any) -> http.client.HTTPConnection:
        made = _Https(host, **settings)
        made.deadline = self._deadline
        return made


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET without the alert, to whatever host the server names: an error instead."""

    def redirect_request(self, *arguments: Any) -> None:
        """Follow none."""


def opener(deadline: Deadline) -> urllib.request.OpenerDirector:
    """Return what opens HTTP and HTTPS connections with a deadline, and follows no redirect."""
    return urllib.request.build_opener(_HttpOpener(deadline), _HttpsOpener(deadline), _NoRedirect)


class Smtp(smtplib.SMTP):
    """Connects at once."""

    def __init__(self, deadline: Deadline, host: str, port: int, **settings: Any) -> None:
        deadline.find_socket = lambda: self.sock
        super().__init__(host, port, **settings)


class SmtpTls(smtplib.SMTP_SSL):
    """The same with TLS from the start."""

    def __init__(self, deadline: Deadline, host: str, port: int, **settings: Any) -> None:
        deadline.find_socket = lambda: self.sock
        super().__init__(host, port, **settings)
