"""A minimal remoting client that checks whether a server is up, independent of the code under test."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

_opaques = itertools.count(1)


def request(
    address: str, code: int, ext: dict[str, str] | None = None, *, body: bytes = b"", timeout_s: float = 3.0
) -> tuple[dict[str, Any], bytes]:
    """Send one JSON request on a new connection; return the reply's header and body. OSError: no server answers."""
    header = json.dumps(
        {"code": code, "language": "OTHER", "version": 479, "opaque": next(_opaques), "flag": 0, "extFields": ext or {}}
    ).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        size, marked = struct.unpack(">ii", _exactly(connection, 8))
        rest = _exactly(connection, size - 4)
    header_size = marked & 0xFFFFFF
    return json.loads(rest[:header_size]), rest[header_size:]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float, interval_s: float = 0.05) -> None:
    """Return once the condition holds; OSError means not yet. TimeoutError names `what`: not within timeout_s."""
    deadline = time.monotonic() + timeout_s
    last: OSError | None = None
    while True:
        try:
            if condition():
                return
        except OSError as error:
            last = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s" + (f" (last: {last})" if last else ""))
        time.sleep(interval_s)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
    return data
