"""An S3 server for tests: S3Proxy over a folder, and a door before it that injects faults.

    with ObjectServer(folder) as server, Door(forward(server.port)) as door:
        door.fault = lambda request: Fault.BUSY if request.method == "PUT" else None

S3Proxy answers conditional puts as S3 does; `tests/interop/test_object_store.py` checks that before anything else.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from interop.apache import LOGBACK, free_port
from interop.java_server import JavaServer

SET: Final = "s3proxy-4.1.0"
ACCESS_KEY: Final = "interop"
SECRET_KEY: Final = "interop-secret"
BUCKET: Final = "lakes"
TOKEN_EXPIRED: Final = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
SLOW_DOWN: Final = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class ObjectServer:
    """S3Proxy with one bucket, BUCKET, whose objects are files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._server = JavaServer("S3Proxy", SET, folder)

    def __enter__(self) -> Self:
        (self.folder / "data" / BUCKET).mkdir(parents=True)
        (self.folder / "logback.xml").write_text(LOGBACK.format(package="", path=self.folder / "server.log"))
        settings = {
            "s3proxy.endpoint": f"http://127.0.0.1:{self.port}",
            "s3proxy.authorization": "aws-v4",
            "s3proxy.identity": ACCESS_KEY,
            "s3proxy.credential": SECRET_KEY,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.identity": ACCESS_KEY,
            "jclouds.credential": SECRET_KEY,
            "jclouds.filesystem.basedir": str(self.folder / "data"),
        }
        properties = self.folder / "s3proxy.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        logback = f"-Dlogback.configurationFile={self.folder / 'logback.xml'}"
        self._server.start([logback, "org.gaul.s3proxy.Main", "--properties", str(properties)], self._is_ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.end()

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status > 0
        finally:
            connection.close()


def environment(port: int) -> dict[str, str]:
    """The variables by which a process finds the server, or a door, at a port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    }


# -- a door that injects faults ----------------------------------------------------------------------------------------


class Fault(Enum):
    """What a door does with a request."""

    BUSY = "answer 503 SlowDown; the server does not get it"
    BUSY_AFTER = "let the server do it, and answer 503"
    CUT = "close the connection; the server does not get it"
    CUT_AFTER = "let the server do it, and close the connection"
    EXPIRED = "answer that the token has expired; the server does not get it"
    SILENT = "do not answer; the server does not get it"


@dataclass(frozen=True, slots=True)
class Request:
    """path: with its query. headers: names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """size: for HEAD, whose body is empty; -1: that of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


Answer = Callable[[Request], Reply]
Faults = Callable[[Request], Fault | None]


def forward(port: int) -> Answer:
    """Pass requests on to a server of this machine, unchanged, so that their signatures stay valid."""

    def answer(request: Request) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                connection.putheader(name, value)
            connection.endheaders(request.body or None)
            found = connection.getresponse()
            return Reply(found.status, dict(found.getheaders()), found.read())
        finally:
            connection.close()

    return answer


class Door:
    """An HTTP server on a free port that answers by `answer`, unless `fault` says otherwise."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.fault: Faults = lambda request: None
        self.requests: list[str] = []
        """Method and path of each request."""
        self.ended = Event()
        self._server = _DoorServer(("127.0.0.1", 0), _DoorHandler)
        self._server.door = self
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _DoorServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    door: Door

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: clients go as they like."""


class _DoorHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _DoorServer

    def _serve(self) -> None:
        door = self.server.door
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        door.requests.append(f"{request.method} {request.path}")
        fault = door.fault(request)
        if fault in (Fault.CUT, Fault.SILENT):
            if fault is Fault.SILENT:
                door.ended.wait()
            self._hang_up()
        elif fault is Fault.BUSY:
            self._reply(Reply(503, {"Content-Type": "application/xml"}, SLOW_DOWN))
        elif fault is Fault.EXPIRED:
            self._reply(Reply(400, {"Content-Type": "application/xml"}, TOKEN_EXPIRED))
        else:
            reply = door.answer(request)
            if fault is Fault.CUT_AFTER:
                self._hang_up()
            elif fault is Fault.BUSY_AFTER:
                self._reply(Reply(503, {"Content-Type": "application/xml"}, SLOW_DOWN))
            else:
                self._reply(reply)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(2)

    def _reply(self, reply: Reply) -> None:
        self.send_response_only(reply.status)
        dropped = {"transfer-encoding", "connection", "content-length", "date"}
        headers = {name: value for name, value in reply.headers.items() if name.lower() not in dropped}
        size = next((v for k, v in reply.headers.items() if k.lower() == "content-length"), None)
        if self.command != "HEAD" or size is None:
            size = str(len(reply.body))
        for name, value in {**headers, "Date": self.date_time_string(), "Content-Length": size}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
