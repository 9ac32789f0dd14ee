"""The HTTP endpoint that returns name servers: any invalid or slow answer becomes an error with a text."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mqtrail.client import NoNameServer
from mqtrail.client.core.endpoint import ask_addresses

OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@contextlib.contextmanager
def endpoint(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Return the URL of a server that answers one request."""

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            peer.recv(1 << 16)
            answer(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/rocketmq/nsaddr"
        thread.join(60)


def test_an_answer_names_the_servers() -> None:
    """The first line of the reply has the addresses."""
    with endpoint(lambda peer: peer.sendall(OK % 24 + b"10.0.0.5:9876;h:9876\nxyz")) as url:
        assert ask_addresses(url) == ("10.0.0.5:9876", "h:9876")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x01\x02",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 999 ?\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK % 3 + b"a:b",
        OK % 0,
    ],
)
def test_an_invalid_answer_is_an_error_with_a_text(answer: bytes) -> None:
    """No exception of the HTTP library reaches the application."""
    with endpoint(lambda peer: peer.sendall(answer)) as url, pytest.raises(NoNameServer, match="returned no name serv"):
        ask_addresses(url, 30_000)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX: ", OK % 60_000])
def test_an_endpoint_that_trickles_is_left_in_time(start: bytes) -> None:
    """The timeout covers the whole reply: a byte does not restart it."""
    stopped = threading.Event()

    def trickle(peer: socket.socket) -> None:
        end = time.monotonic() + 60
        peer.sendall(start)
        try:
            while time.monotonic() < end:
                peer.sendall(b"x")
                time.sleep(0.01)
        except OSError:
            stopped.set()
            raise

    with endpoint(trickle) as url:
        with pytest.raises(NoNameServer):
            ask_addresses(url, 300)
        assert stopped.wait(60), "the connection stays open"
