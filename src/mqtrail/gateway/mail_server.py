"""Mail to an SMTP server with a time limit, by Python's smtplib.

The time-out of a socket begins anew with each byte, so a timer shuts the socket down.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from threading import Timer
from types import TracebackType
from typing import Any, Final

SILENCE_S: Final = 10.0  # without a byte of the server
OWN_NAME: Final = "[127.0.0.1]"  # for EHLO; smtplib would ask the name service for one


class Deadline:
    """Shuts down the connection that it knows after some seconds; the block then raises TimeoutError."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = Timer(seconds, self.end)
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
            raise TimeoutError(f"found no whole answer within {self._seconds:g} s, expected one") from None

    def end(self) -> None:
        """Shut the connection down now. Other threads may call this."""
        self._is_over = True
        if (found := self.find_socket()) is not None:
            with suppress(OSError):
                socket.socket.shutdown(found, socket.SHUT_RDWR)  # a TLS socket's own is for the thread that reads


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where mail is sent. tls: starttls, tls (from the start) or none. user '': without logging in."""

    host: str
    port: int
    tls: str
    context: ssl.SSLContext
    user: str = ""
    password: str = ""


def send_mail(server: MailServer, message: EmailMessage, deadline: Deadline) -> int:
    """Send a mail to its `To`; return how many of these addresses the server refused. OSError, which SMTPException and
    TimeoutError are: it was not sent."""
    with deadline, _connected(server, deadline) as connection:
        if server.tls == "starttls":
            connection.starttls(context=server.context)
        if server.user:
            connection.login(server.user, server.password)
        return len(connection.send_message(message))


class _Smtp(smtplib.SMTP):
    def __init__(self, deadline: Deadline, host: str, port: int, **settings: Any) -> None:
        deadline.find_socket = lambda: self.sock
        super().__init__(host, port, **settings)


class _SmtpTls(smtplib.SMTP_SSL):
    def __init__(self, deadline: Deadline, host: str, port: int, **settings: Any) -> None:
        deadline.find_socket = lambda: self.sock
        super().__init__(host, port, **settings)


def _connected(server: MailServer, deadline: Deadline) -> _Smtp | _SmtpTls:
    host, port = server.host, server.port
    if server.tls == "tls":
        return _SmtpTls(deadline, host, port, timeout=SILENCE_S, local_hostname=OWN_NAME, context=server.context)
    return _Smtp(deadline, host, port, timeout=SILENCE_S, local_hostname=OWN_NAME)
