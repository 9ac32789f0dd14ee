"""Mail to an SMTP server with a time limit, by Python's smtplib.

The time-out of a socket begins anew with each byte, so a timer shuts the socket down. smtplib keeps no socket while it
shakes hands for TLS, so each socket is made known as soon as it is there.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from threading import Timer
from types import TracebackType
from typing import Any, Final

SILENCE_S: Final = 10.0  # without a byte of the server
OWN_NAME: Final = "[127.0.0.1]"  # for EHLO; smtplib would ask the name service for one


class Deadline:
    """Shuts down the socket that it watches after some seconds; the block then raises TimeoutError."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = Timer(seconds, self.end)
        self._timer.daemon = True
        self._is_over = False
        self._watched: socket.socket | None = None

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._is_over:
            raise TimeoutError(f"found no whole answer within {self._seconds:g} s, expected one") from None

    def watch(self, made: socket.socket) -> None:
        """Shut down this socket at the end, instead of the one before; at once if the end was before."""
        self._watched = made
        if self._is_over:  # after the line above: `end` in another thread then knows the socket, or this does it
            self.end()

    def end(self) -> None:
        """Shut the connection down now. Other threads may call this."""
        self._is_over = True
        if self._watched is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._watched, socket.SHUT_RDWR)  # TLS's own is for the thread that reads

    def watch_handshakes(self, context: ssl.SSLContext) -> None:
        """Watch the TLS sockets of a context, each from before its handshake on."""

        class WatchedSocket(ssl.SSLSocket):
            def do_handshake(own, block: bool = False) -> None:
                self.watch(own)
                super().do_handshake(block)

        context.sslsocket_class = WatchedSocket


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where mail is sent. tls: starttls, tls (from the start) or none. user '': without logging in.

    ca_file: whom to trust; "": the public authorities.
    """

    host: str
    port: int
    tls: str
    ca_file: str = ""
    user: str = ""
    password: str = ""


def send_mail(server: MailServer, message: EmailMessage, deadline: Deadline) -> int:
    """Send a mail to its `To`; return how many of these addresses the server refused. OSError, which SMTPException and
    TimeoutError are: it was not sent."""
    context = ssl.create_default_context(cafile=server.ca_file or None)
    deadline.watch_handshakes(context)
    with deadline, _connected(server, context, deadline) as connection:
        if server.tls == "starttls":
            connection.starttls(context=context)
        if server.user:
            connection.login(server.user, server.password)
        return len(connection.send_message(message))


class _Smtp(smtplib.SMTP):
    def __init__(self, deadline: Deadline, host: str, port: int, **settings: Any) -> None:
        self._deadline = deadline
        super().__init__(host, port, **settings)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        made: socket.socket = super()._get_socket(host, port, timeout)  # type: ignore[misc] # typeshed lacks it
        self._deadline.watch(made)
        return made


def _connected(server: MailServer, context: ssl.SSLContext, deadline: Deadline) -> _Smtp | smtplib.SMTP_SSL:
    host, port = server.host, server.port
    if server.tls == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=SILENCE_S, local_hostname=OWN_NAME, context=context)
    return _Smtp(deadline, host, port, timeout=SILENCE_S, local_hostname=OWN_NAME)
