"""TLS settings of both sides, and the SSL contexts made from them.

Files are PEM. Comments give the keys of Apache's tls.properties (tls.config.file), which `read_tls_properties` reads.
The host name of a certificate is not verified unless verify_host is set, as in Java's clients and servers.

Source: TlsSystemConfig, TlsHelper, apache/rocketmq remoting/.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from mqtrail.wire import MQError, conf_keys, properties_of, read_properties, setting

from .certificates import validity

Stamp = tuple[int, int]


class TlsError(MQError):
    """A certificate, a key or a setting of TLS cannot be used, or a handshake failed."""


class TlsMode(StrEnum):
    """Which connections a port accepts: plain only, both, TLS only."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(StrEnum):
    """Whether a server requests a client certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsServerConfig:
    """TLS of a listening port. Without a certificate it accepts only plain connections."""

    mode: TlsMode = setting(
        TlsMode.PERMISSIVE,
        "DISABLED: no TLS; PERMISSIVE: with and without TLS, if there is a certificate; ENFORCING: TLS only",
        conf="tls.server.mode",
    )
    cert_path: Path | None = setting(
        None, "certificate of the server, followed by the intermediate certificates", conf="tls.server.certPath"
    )
    key_path: Path | None = setting(None, "private key of the certificate", conf="tls.server.keyPath")
    key_password: str = setting("", "password of the private key", conf="tls.server.keyPassword", secret=True)
    client_auth: ClientAuth = setting(
        ClientAuth.NONE,
        "client certificates: NONE, OPTIONAL or REQUIRE; a certificate that a client sends is always verified",
        conf="tls.server.need.client.auth",
    )
    trust_path: Path | None = setting(
        None, "certificate authorities of client certificates", conf="tls.server.trustCertPath"
    )
    self_signed: bool = setting(
        False, "without `cert_path`: create a self-signed certificate", like="tls.test.mode.enable"
    )

    def __post_init__(self) -> None:
        """TlsError: the settings contradict each other."""
        if (self.cert_path is None) != (self.key_path is None):
            raise TlsError("found one of cert_path and key_path (tls.server.certPath, keyPath), expected both or none")
        if self.self_signed and self.cert_path is not None:
            raise TlsError("found self_signed and cert_path, expected one of them")
        if self.mode is TlsMode.ENFORCING and self.cert_path is None and not self.self_signed:
            raise TlsError(
                "found TLS mode enforcing without a certificate, expected cert_path and key_path, or self_signed"
            )
        if self.client_auth is not ClientAuth.NONE and self.trust_path is None:
            raise TlsError(
                f"found client_auth {self.client_auth} without trust_path (tls.server.trustCertPath), expected the "
                "authorities that sign clients' certificates"
            )

    @property
    def on(self) -> bool:
        """Whether the port accepts TLS handshakes."""
        return self.mode is not TlsMode.DISABLED and (self.cert_path is not None or self.self_signed)

    @property
    def lets_plain_pass(self) -> bool:
        """Whether client certificates are required, but plain connections are accepted without one."""
        return self.on and self.mode is TlsMode.PERMISSIVE and self.client_auth is ClientAuth.REQUIRE

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.cert_path, self.key_path, self.trust_path) if path is not None)

    def context(self) -> ssl.SSLContext | None:
        """Return the SSL context for handshakes; None: no TLS. TlsError: a file cannot be used."""
        if self.mode is TlsMode.DISABLED or self.cert_path is None or self.key_path is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: each costs the server more than the client
        _load_chain(context, self.cert_path, self.key_path, self.key_password)
        if self.client_auth is not ClientAuth.NONE and self.trust_path is not None:
            _load_trust(context, self.trust_path)
            required = self.client_auth is ClientAuth.REQUIRE
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsClientConfig:
    """TLS of a client, for all its connections, also to name servers."""

    enable: bool = setting(False, "use TLS", conf="tls.enable")
    verify: bool = setting(
        True, "accept only servers with a trusted certificate (RocketMQ: false)", conf="tls.client.authServer"
    )
    verify_host: bool = setting(False, "also verify the host name in the certificate")
    trust_path: Path | None = setting(
        None, "trusted certificate authorities; none: those of the system", conf="tls.client.trustCertPath"
    )
    cert_path: Path | None = setting(None, "client certificate, if servers require one", conf="tls.client.certPath")
    key_path: Path | None = setting(None, "private key of the certificate", conf="tls.client.keyPath")
    key_password: str = setting("", "password of the private key", conf="tls.client.keyPassword", secret=True)

    def __post_init__(self) -> None:
        """TlsError: the settings contradict each other."""
        if (self.cert_path is None) != (self.key_path is None):
            raise TlsError("found one of cert_path and key_path (tls.client.certPath, keyPath), expected both or none")
        if self.verify_host and not self.verify:
            raise TlsError("found verify_host without verify, expected both: an unverified name proves nothing")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the client settings of Apache's tls.properties. TlsError: the file cannot be read."""
        try:
            texts = read_tls_properties(path.read_text("utf-8-sig")).client
        except (OSError, UnicodeDecodeError) as error:
            raise TlsError(
                f"{path} cannot be read ({error}): expected a tls.properties: check its path and permissions"
            ) from error
        values: dict[str, Any] = {}
        for name, text in texts.items():
            if name in ("enable", "verify"):
                values[name] = text.lower() == "true"
            else:
                values[name] = Path(text) if name.endswith("_path") and text else text or None
        return cls(**{name: value for name, value in values.items() if value is not None})

    def context(self) -> ssl.SSLContext | None:
        """Return the SSL context for handshakes; None: plain connections. TlsError: a file cannot be used."""
        if not self.enable:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verify_host
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        elif self.trust_path is not None:
            _load_trust(context, self.trust_path)
        else:
            context.load_default_certs()
        if self.cert_path is not None and self.key_path is not None:
            _load_chain(context, self.cert_path, self.key_path, self.key_password)
        return context


class TlsFiles:
    """A server's SSL context, reloaded when its files change. `current`: the context of the next handshake."""

    def __init__(self, config: TlsServerConfig) -> None:
        self.config = config
        self._stamps = self._stamps_now()
        self.current = config.context()

    def reload(self) -> bool:
        """Check the files; return whether the context was replaced. TlsError, once per change: the old one stays."""
        stamps = self._stamps_now()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self.current = self.config.context()
        return True

    def _stamps_now(self) -> dict[Path, Stamp]:
        found = {}
        for path in self.config.files:
            try:
                status = path.stat()
            except OSError:
                continue
            found[path] = (status.st_mtime_ns, status.st_ino)
        return found


def _load_chain(context: ssl.SSLContext, cert: Path, key: Path, password: str) -> None:
    for path in (cert, key):
        _readable(path)
    _check_validity(cert)
    try:
        # A callable, because OpenSSL prompts at the terminal for an encrypted key if the password is an empty string.
        context.load_cert_chain(cert, key, lambda: password)
    except ssl.SSLError as error:
        raise TlsError(
            f"{cert} and {key} cannot be used ({_reason(error)}): expected a PEM certificate, its unencrypted key or "
            "one that key_password decrypts, and that the two match"
        ) from error


def _load_trust(context: ssl.SSLContext, path: Path) -> None:
    _readable(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsError(
            f"{path} holds no certificate authority ({_reason(error)}): expected PEM certificates"
        ) from error


def _readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise TlsError(
            f"{path} cannot be read ({error.strerror}): expected a PEM file that this user can read: check its path "
            "and permissions"
        ) from error


def _check_validity(path: Path) -> None:
    try:
        first, last = validity(path.read_text("ascii", "replace"))
    except ValueError as error:
        raise TlsError(f"{path} holds no certificate ({error}): expected a PEM file") from error
    now = datetime.now(UTC)
    if now > last:
        raise TlsError(f"{path}: the certificate expired at {last:%Y-%m-%d %H:%M} UTC: expected a valid one")
    if now < first:
        raise TlsError(f"{path}: the certificate is not valid before {first:%Y-%m-%d %H:%M} UTC: expected a valid one")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


# tls.properties.

_SERVER: Final = {key: one.name for key, one in conf_keys(TlsServerConfig).items()}
_CLIENT: Final = {key: one.name for key, one in conf_keys(TlsClientConfig).items()}


@dataclass(frozen=True, slots=True)
class TlsProperties:
    """The settings of a tls.properties: field -> text of each side. notes: keys without effect, as sentences."""

    server: Mapping[str, str]
    client: Mapping[str, str]
    notes: tuple[str, ...]


def read_tls_properties(text: str) -> TlsProperties:
    """Return the settings of `key=value` or `key: value` lines. TlsError: a line is malformed."""
    for number, key, value in read_properties(text):
        if not value and not key.startswith("tls."):
            raise TlsError(f"line {number} of tls.properties: found {key!r}, expected key=value")
    return tls_settings(properties_of(text))


def tls_settings(properties: Mapping[str, str]) -> TlsProperties:
    """Return the settings of keys of tls.properties, from any file."""
    server: dict[str, str] = {}
    client: dict[str, str] = {}
    notes = []
    for key, value in properties.items():
        if key in _SERVER:
            server[_SERVER[key]] = value
        elif key in _CLIENT:
            client[_CLIENT[key]] = value
        elif key == "tls.test.mode.enable" and value.lower() == "true":
            if "tls.server.certPath" in properties:
                notes.append(f"{key}=true has no effect beside tls.server.certPath: that certificate is used")
            else:
                server["self_signed"] = "true"
        elif (
            key == "tls.server.authClient"
            and value.lower() != "true"
            and properties.get("tls.server.need.client.auth", "none") not in ("", "none")
        ):
            notes.append(f"{key}=false has no effect: a requested client certificate is always verified")
        elif key not in ("tls.test.mode.enable", "tls.server.authClient"):
            notes.append(f"{key} has no effect here")
    return TlsProperties(server, client, tuple(notes))
