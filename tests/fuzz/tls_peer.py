"""A TLS client that encrypts its records by itself, so that it can send what no library sends.

The handshake is that of the `ssl` module, which tells its secrets by its key log. Sources: RFC 8446, 5 and 7 (TLS 1.3),
RFC 5246, 5 and 6, and RFC 5288 (TLS 1.2).
"""

import contextlib
import functools
import hmac
import random
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trustme
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mqtrail.net import TlsServerConfig

ALERT, HANDSHAKE, DATA = 21, 22, 23
CLOSE_NOTIFY: Final = b"\x01\x00"
FIRST_HANDSHAKE: Final = b"\x00\xff"  # a cipher that says so
KEY_UPDATES: Final = (b"\x18\x00\x00\x01\x00", b"\x18\x00\x00\x01\x01")  # without and with the request of one
PLAIN_SIZE_MAX: Final = 1 << 14  # bytes of a record's text
EMPTY_MAX: Final = 30  # records without text in a row; OpenSSL takes 32
FLOOD_SIZE: Final = 250_000  # bytes of records that a server may read at once
PIECES_MAX: Final = 3_000  # records of one frame
RENEGOTIATIONS: Final = 3


class Keys(Protocol):
    """What encrypts the records of one direction."""

    def record(self, kind: int, text: bytes, padding: int = 0) -> bytes:
        """Return an encrypted record."""
        ...


class Keys13:
    """TLS 1.3: each key update derives the next keys."""

    def __init__(self, secret: bytes) -> None:
        self._hash = "sha384" if len(secret) == 48 else "sha256"
        self._set(secret)

    def _set(self, secret: bytes) -> None:
        self._secret = secret
        self._aead = AESGCM(self._expanded(b"key", 32 if self._hash == "sha384" else 16))
        self._iv = int.from_bytes(self._expanded(b"iv", 12))
        self._sequence = 0

    def _expanded(self, label: bytes, size: int) -> bytes:
        name = b"tls13 " + label
        info = size.to_bytes(2) + len(name).to_bytes(1) + name + b"\x00\x01"
        return hmac.digest(self._secret, info, self._hash)[:size]

    def record(self, kind: int, text: bytes, padding: int = 0) -> bytes:
        inner = text + bytes((kind,)) + bytes(padding)
        head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2)
        nonce = (self._iv ^ self._sequence).to_bytes(12)
        self._sequence += 1
        return head + self._aead.encrypt(nonce, inner, head)

    def update(self, message: bytes) -> bytes:
        """Return the record of a key update; later records have the new keys."""
        record = self.record(HANDSHAKE, message)
        self._set(self._expanded(b"traffic upd", len(self._secret)))
        return record


class Keys12:
    """TLS 1.2 with AES-GCM, after the handshake."""

    def __init__(self, master: bytes, randoms: bytes, cipher: str) -> None:
        """randoms: of the server, then of the client."""
        size, digest = (32, "sha384") if cipher.endswith("SHA384") else (16, "sha256")
        seed = b"key expansion" + randoms
        block, link = b"", seed
        while len(block) < 2 * size + 8:
            link = hmac.digest(master, link, digest)
            block += hmac.digest(master, link + seed, digest)
        self._aead = AESGCM(block[:size])
        self._salt = block[2 * size :][:4]
        self._sequence = 1  # 0 was the end of the handshake

    def record(self, kind: int, text: bytes, padding: int = 0) -> bytes:
        number = self._sequence.to_bytes(8)
        self._sequence += 1
        head = bytes((kind,)) + b"\x03\x03"
        sealed = self._aead.encrypt(self._salt + number, text, number + head + len(text).to_bytes(2))
        return head + (len(sealed) + 8).to_bytes(2) + number + sealed


@dataclass(frozen=True, slots=True)
class Sent:
    """records: the bytes on the wire. text: what the server may serve. ends: whether it must close the connection."""

    records: bytes
    text: bytes
    ends: bool


class TlsPeer:
    """A client of one connection. First pass bytes between it and the server until `established`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._is_new = chance.random() < 0.6
        version = ssl.TLSVersion.TLSv1_3 if self._is_new else ssl.TLSVersion.TLSv1_2
        context, self._log = _client_context(version)
        self._log.write_bytes(b"")
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing)
        self._hello = self._answer = self._second_hello = b""
        self._keys: Keys | None = None

    @property
    def is_new(self) -> bool:
        """Whether it speaks TLS 1.3."""
        return self._is_new

    @property
    def established(self) -> bool:
        return self._keys is not None

    def record(self, kind: int, text: bytes) -> bytes:
        """Return one record."""
        assert self._keys is not None
        return self._keys.record(kind, text)

    def decrypted(self, received: bytes) -> bytes:
        """Return the text of the server's records."""
        self._incoming.write(received)
        found = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                found.append(self._session.read(PLAIN_SIZE_MAX))
        return b"".join(found)

    def shake_hands(self, received: bytes) -> bytes:
        """Take the server's bytes; return the next ones for it."""
        self._answer = self._answer or received
        self._incoming.write(received)
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            sent = self._outgoing.read()
            self._hello = self._hello or sent
            return sent
        self._keys = self._agreed()
        return self._outgoing.read()

    def _agreed(self) -> Keys:
        secrets = dict(line.split()[::2] for line in self._log.read_text().splitlines() if line[0] != "#")
        if self._is_new:
            return Keys13(bytes.fromhex(secrets["CLIENT_TRAFFIC_SECRET_0"]))
        cipher = self._session.cipher()
        finished = self._session.get_channel_binding("tls-unique")
        assert cipher is not None
        assert finished is not None
        self._second_hello = _second_hello(self._hello[5:], finished)
        randoms = self._answer[11:43] + self._hello[11:43]  # behind the heads of the record and of its message
        return Keys12(bytes.fromhex(secrets["CLIENT_RANDOM"]), randoms, cipher[0])

    def is_negotiating_again(self, written: bytes) -> bool:
        """Return whether the server's records after the handshake of TLS 1.2 begin another one."""
        at = 0
        while not self._is_new and at < len(written):
            if written[at] == HANDSHAKE:
                return True
            at += 5 + int.from_bytes(written[at + 3 : at + 5])
        return False

    def encrypted(self, frame: bytes) -> Sent:
        """Return a frame as records of any sizes, with key updates and whatever else TLS allows; rarely its end."""
        chance, keys = self._chance, self._keys
        assert keys is not None
        found = []
        for piece in self._pieces(frame):
            if chance.random() < 0.02:
                found.append(self._between(keys))
            found.append(keys.record(DATA, piece, chance.choice((0, 0, 1, 200)) if len(piece) < 1_000 else 0))
        drawn = chance.random()
        if drawn < 0.005:
            found.append(self._flood(keys))
        elif drawn < 0.05:
            return Sent(b"".join((*found, self._end(keys))), frame, ends=True)
        return Sent(b"".join(found), frame, ends=False)

    def _pieces(self, frame: bytes) -> list[bytes]:
        size_max = self._chance.choice((1, 5, 100, 4_096, PLAIN_SIZE_MAX, PLAIN_SIZE_MAX))
        size_max = min(max(size_max, len(frame) // PIECES_MAX), PLAIN_SIZE_MAX)
        pieces, at = [], 0
        while at < len(frame):
            size = self._chance.randint(1, size_max)
            pieces.append(frame[at : at + size])
            at += size
        return pieces

    def _between(self, keys: Keys) -> bytes:
        """Return records that may come at any time and hold no text."""
        empty = b"".join(keys.record(DATA, b"") for _ in range(self._chance.randrange(EMPTY_MAX)))
        if isinstance(keys, Keys13):
            return empty + keys.update(self._chance.choice(KEY_UPDATES))
        return empty + keys.record(HANDSHAKE, self._second_hello)

    def _flood(self, keys: Keys) -> bytes:
        """Return as many records as a server may read at once, each of which costs it more than its bytes."""
        if not isinstance(keys, Keys13):
            return b"".join(keys.record(HANDSHAKE, self._second_hello) for _ in range(RENEGOTIATIONS))
        found: list[bytes] = []
        size = 0
        while size < FLOOD_SIZE:
            found.append(keys.update(KEY_UPDATES[0]))
            size += len(found[-1])
        return b"".join(found)

    def _end(self, keys: Keys) -> bytes:
        """Return records after which the server must close."""
        finished = b"\x14\x00\x00\x0c" + self._chance.randbytes(12)
        kind, text = self._chance.choice(
            (
                (ALERT, CLOSE_NOTIFY),
                (ALERT, b"\x02\x28"),  # fatal: the handshake failed
                (99, b"of no kind"),
                (HANDSHAKE, finished),  # out of turn
                (DATA, b"damaged"),
                (DATA, b"too long"),
            )
        )
        record = keys.record(kind, text)
        if text == b"damaged":
            return record[:-1] + bytes((record[-1] ^ 1,))
        if text == b"too long":
            return record[:3] + b"\xff\xff" + bytes(70_000)
        return record + keys.record(DATA, b"behind the end") if self._chance.random() < 0.5 else record


def _second_hello(hello: bytes, finished: bytes) -> bytes:
    """Return the message that begins a second handshake; finished: the end of the first one (RFC 5746)."""
    at = 39 + hello[38]  # behind the session id
    size = int.from_bytes(hello[at : at + 2])
    listed = hello[at + 2 : at + 2 + size]
    ciphers = b"".join(listed[n : n + 2] for n in range(0, size, 2) if listed[n : n + 2] != FIRST_HANDSHAKE)
    rest = at + 2 + size + 4  # behind the one compression method and the size of the extensions
    extensions = hello[rest:] + b"\xff\x01" + (len(finished) + 1).to_bytes(2) + len(finished).to_bytes(1) + finished
    parts = (hello[4:at], _sized(ciphers), hello[rest - 4 : rest - 2], _sized(extensions))
    body = b"".join(parts)
    return hello[:1] + len(body).to_bytes(3) + body


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(2) + data


@functools.cache
def server_config() -> TlsServerConfig:
    """A server's certificate, in a folder of this process."""
    folder = _folder()
    made = trustme.CA().issue_cert("127.0.0.1")
    cert, key = folder / "server.pem", folder / "server.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return TlsServerConfig(cert_path=cert, key_path=key)


@functools.cache
def _client_context(version: ssl.TLSVersion) -> tuple[ssl.SSLContext, Path]:
    """Return the context for a version, and the file where it notes the secrets of its handshakes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ECDHE+AESGCM")  # of TLS 1.2
    log = _folder() / f"{version.name}.log"
    context.keylog_filename = str(log)
    return context, log


@functools.cache
def _kept_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _folder() -> Path:
    return Path(_kept_folder().name)
