"""One TLS connection without a socket: bytes in, bytes out, for use in any asyncio protocol.

Pass received bytes to `receive`, which returns the plain text. `send` returns the encrypted bytes of a plain text.
After every call, write the bytes of `take`: they belong to the handshake, a session ticket or an alert.
"""

import asyncio
import contextlib
import ssl
from typing import Final

from .tls import TlsError

READ_SIZE: Final = 16 * 1024  # most plain bytes of one record, so that a read takes a whole record
UNSENT_SIZE_MAX: Final = 1 << 20  # plain bytes that wait before more of them end the session


class TlsSession:
    """Either side of one connection. After a TlsError of any call, write the bytes of `take`, then close."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=host if not server_side else None
        )
        self.established = False
        self.ended = False  # the peer sent close_notify
        self._unsent = b""  # plain bytes that wait until a message of the peer's handshake is complete

    def start(self) -> None:
        """Start the handshake with the client's hello."""
        self._handshake()

    def receive(self, data: bytes) -> bytes:
        """Pass in received bytes; return the plain text, which may be empty."""
        self._incoming.write(data)
        if not self.established:
            self._handshake()
            if not self.established:
                return b""
        pieces = []
        read, incoming = self._object.read, self._incoming
        try:
            # Check `pending` first: a read without data costs as much as a record, because OpenSSL raises an error.
            while incoming.pending:
                piece = read(READ_SIZE)
                if not piece:
                    self.ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise tls_failure(error) from error
        if self._unsent:
            unsent, self._unsent = self._unsent, b""
            self._encrypt(unsent)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes) -> bytes:
        """Return the encrypted bytes of data, and other pending bytes. Call it only after the handshake.

        While a message of the peer's handshake is incomplete (new keys, a ticket), OpenSSL encrypts nothing: the bytes
        wait for the next `receive`.
        """
        if not self._unsent:
            self._encrypt(data)
        elif len(self._unsent) < UNSENT_SIZE_MAX:
            self._unsent += data
        else:
            raise TlsError(
                f"found {len(self._unsent)} bytes that wait for the rest of a handshake message of the peer, expected "
                f"at most {UNSENT_SIZE_MAX}"
            )
        return self._outgoing.read()

    def _encrypt(self, data: bytes) -> None:
        written = 0
        try:
            written = self._object.write(data)
            while written < len(data):  # OpenSSL may accept only one record
                written += self._object.write(memoryview(data)[written:])
        except ssl.SSLWantReadError:
            self._unsent = data[written:]
        except ssl.SSLError as error:
            raise tls_failure(error) from error

    def take(self) -> bytes:
        """Return pending bytes of the handshake, a ticket or an alert."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def close(self) -> bytes:
        """Return the last bytes, with close_notify."""
        if self.established:
            with contextlib.suppress(ssl.SSLError):  # it also expects the peer's close_notify, which is not awaited
                self._object.unwrap()
        return self.take()

    def _handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise tls_failure(error) from error
        self.established = True


class TlsTransport:
    """Encrypts what a connection writes to its transport. Has only the methods that connections use."""

    __slots__ = ("_session", "_transport")

    def __init__(self, transport: asyncio.Transport, session: TlsSession) -> None:
        self._transport = transport
        self._session = session

    def write(self, data: bytes) -> None:
        """Encrypt and write data. After `close`, do nothing. A session that cannot encrypt it is closed: to raise would
        stop the work for other connections."""
        if self._transport.is_closing():
            return
        try:
            self._transport.write(self._session.send(data))
        except TlsError:
            self._transport.abort()

    def write_raw(self, data: bytes) -> None:
        """Write bytes that the session returned."""
        if data:
            self._transport.write(data)

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._session.close())
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str) -> object:
        return self._transport.get_extra_info(name)


_REMEDIES: Final = {
    "CERTIFICATE_REQUIRED": "the server requires a client certificate: set cert_path and key_path",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server requires a client certificate: set cert_path and key_path",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate: set tls.client.certPath and keyPath there",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the authority of our certificate: add it to its trust store",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired: renew it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer rejects our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer rejects our certificate: add its authority to the peer's trust store",
    "WRONG_VERSION_NUMBER": "the peer does not use TLS on this port",
    "UNSUPPORTED_PROTOCOL": "the peer's TLS is too old: expected TLS 1.2 or 1.3",
    "NO_SHARED_CIPHER": "the two sides have no cipher in common",
}


def tls_failure(error: ssl.SSLError) -> TlsError:
    """Return the error of a failed handshake or record, with a remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(
            f"the certificate of the peer is rejected: {error.verify_message}; expected a valid one signed by an "
            "authority in the trust store (trust_path)"
        )
    reason = error.reason or str(error)
    remedy = _REMEDIES.get(reason)
    words = reason.replace("_", " ").lower()
    return TlsError(f"TLS failed: {words}" + (f": {remedy}" if remedy else ""))
