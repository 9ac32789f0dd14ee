"""One blocking connection: sends a request and waits for its reply, without event loop or thread.

For code that cannot run an event loop, such as the Python workers of Spark.
"""

import socket
import ssl
import time

from mqtrail.net import ConnectError, ConnectionClosed, RequestTimeout, split_address, tls_failure
from mqtrail.wire import (
    REPLY_HEADER_SIZE_MAX,
    Credentials,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
    sign,
)

RECEIVE_SIZE = 256 * 1024


class BlockingConnection:
    """A socket to one address, connected when first used. Not thread safe; use it on one side of a fork only.

    After any error it is closed; the next request connects again. credentials: sign requests with these. tls: context
    of the TLS handshake.
    """

    def __init__(
        self,
        address: str,
        connect_timeout_ms: int = 3_000,
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._tls = tls
        self._connect_timeout_ms = connect_timeout_ms
        self._socket: socket.socket | None = None
        self._decoder = FrameDecoder(REPLY_HEADER_SIZE_MAX)
        self._opaque = 0

    def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send command and return the reply, whatever its code. timeout_ms includes the time to connect.

        Raises ConnectError, RequestTimeout and ConnectionClosed (the request may have been sent), RemotingError.
        """
        end = time.monotonic() + timeout_ms / 1000
        if self._socket is None:
            self._connect(timeout_ms)
        assert self._socket is not None
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        command.opaque = self._opaque
        if self._credentials is not None:
            sign(command, self._credentials)
        try:
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            self._socket.sendall(encode_command(command))
            return self._receive(command.opaque, end)
        except TimeoutError:
            self.close()
            raise RequestTimeout(f"no reply from {self.address} within {timeout_ms} ms") from None
        except OSError as error:
            self.close()
            raise ConnectionClosed(f"connection to {self.address} broke: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, timeout_ms: int) -> None:
        try:
            host, port = split_address(self.address)
            seconds = min(timeout_ms, self._connect_timeout_ms) / 1000
            self._socket = socket.create_connection((host, port), timeout=seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                self._socket = self._tls.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLError as error:
            self.close()
            raise ConnectError(f"cannot connect to {self.address}: {tls_failure(error)}") from error
        except (OSError, ValueError) as error:
            self.close()
            raise ConnectError(
                f"cannot connect to {self.address}: {error}; check that a server is listening there"
            ) from error
        self._decoder = FrameDecoder(REPLY_HEADER_SIZE_MAX)

    def _receive(self, opaque: int, end: float) -> RemotingCommand:
        assert self._socket is not None
        while True:
            while (frame := self._decoder.next_frame()) is not None:
                reply = decode_command(frame)
                if reply.is_response and reply.opaque == opaque:
                    return reply
            left = end - time.monotonic()
            if left <= 0:  # a peer that keeps sending bytes, but no reply, must not block the caller
                raise TimeoutError
            self._socket.settimeout(left)
            data = self._socket.recv(RECEIVE_SIZE)
            if not data:
                raise ConnectionResetError("the peer closed it")
            self._decoder.feed(data)
