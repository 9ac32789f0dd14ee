"""Scripts of pages run by a nonce, so that a script that was injected into a page does not run.

NiceGUI writes its scripts into the page and has no nonces: they are added to the page as it leaves. Texts of messages
are escaped there, so each `<script` is NiceGUI's or ours. Vue compiles templates in the browser, which needs
'unsafe-eval'.
"""

from __future__ import annotations

import secrets
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mqtrail.answers.http import path_within

POLICY: Final = "content-security-policy"
FILES: Final = "/_nicegui/"
INLINE: Final = "script-src 'self' 'unsafe-inline'"


class NoncedScripts:
    """An ASGI middleware for pages whose policy allows inline scripts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on; rewrite the page that comes back."""
        await self._app(scope, receive, _Nonced(send).send if scope["type"] == "http" else send)


class CompressedFiles:
    """An ASGI middleware that compresses the files of NiceGUI, and no page.

    A compressed page cannot be rewritten, and its size would tell something of its secrets beside words of the address.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressed = GZipMiddleware(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on."""
        is_file = scope["type"] == "http" and path_within(scope).startswith(FILES)
        await (self._compressed if is_file else self._app)(scope, receive, send)


class _Nonced:
    """One response."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None  # of a page, held back until its length is known
        self._body = b""

    async def send(self, message: Message) -> None:
        """Send a part on, or keep it until the page is whole."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if headers.get("content-type", "").startswith("text/html") and INLINE in headers.get(POLICY, ""):
                self._start = message
                return
        if self._start is None or message["type"] != "http.response.body":
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body", False):
            return
        nonce = secrets.token_urlsafe(18)
        body = self._body.replace(b"<script", f'<script nonce="{nonce}"'.encode())
        headers = MutableHeaders(scope=self._start)
        headers[POLICY] = headers[POLICY].replace(INLINE, f"script-src 'self' 'nonce-{nonce}'")
        headers["content-length"] = str(len(body))
        headers["cache-control"] = "no-store"
        start, self._start = self._start, None
        await self._send(start)
        await self._send({**message, "body": body})
