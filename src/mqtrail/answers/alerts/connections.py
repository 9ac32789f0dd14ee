"""HTTP connections with a time limit: without it, a server that sends a byte now and then would block all rules."""

from __future__ import annotations

import http.client
import urllib.request
from typing import Any

from mqtrail.gateway import Deadline
from mqtrail.wire import MQError


class NotAccepted(MQError):
    """A channel refused an alert."""


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
