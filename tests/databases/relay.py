"""A relay between a store and its database that breaks the connection at a commit."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self

CHUNK = 1 << 16


class Cut(Enum):
    """Where the connection breaks. BEFORE: the server never gets the COMMIT; AFTER: its reply is lost."""

    NEVER = "never"
    BEFORE = "before"
    AFTER = "after"


class Relay:
    """Listens on `port`. Set `cut`: it holds for the next COMMIT, then it is NEVER again."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cut = Cut.NEVER
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            for act in (self._requests, self._replies):
                threading.Thread(target=act, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what the store sends."""
        try:
            while data := client.recv(CHUNK):
                if b"COMMIT" in data and self.cut is not Cut.NEVER:
                    cut, self.cut = self.cut, Cut.NEVER
                    if cut is Cut.BEFORE:
                        break
                    client.shutdown(socket.SHUT_WR)  # the reply cannot be passed on any more
                    server.sendall(data)
                    break
                server.sendall(data)
        except OSError:
            pass
        finally:
            _end(client)
            with suppress(OSError):
                server.shutdown(socket.SHUT_WR)  # the server works on what it got, then it closes

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what the server replies."""
        try:
            while data := server.recv(CHUNK):
                try:
                    client.sendall(data)
                except OSError:
                    break
        except OSError:
            pass
        finally:
            _end(client)
            _end(server)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
