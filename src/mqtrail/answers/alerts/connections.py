"""HTTP connections with a time limit: without it, a server that sends a byte now and then would block all rules."""

from __future__ import annotations

import http.client
import ssl
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
        self.deadline.watch(self.sock)


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
        context = ssl.create_default_context()
        self._deadline.watch_handshakes(context)
        return http.client.HTTPSConnection(host, context=context, **settings)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET without the alert, to whatever host the server names: an error instead."""

    def redirect_request(self, *arguments: Any) -> None:
        """Follow none."""


def opener(deadline: Deadline) -> urllib.request.OpenerDirector:
    """Return what opens HTTP and HTTPS connections with a deadline, and follows no redirect."""
    return urllib.request.build_opener(_HttpOpener(deadline), _HttpsOpener(deadline), _NoRedirect)
