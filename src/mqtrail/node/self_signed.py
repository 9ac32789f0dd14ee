"""A self-signed certificate that a node makes, so that TLS works without a certificate authority.

    <data>/tls/server.pem         key and certificate in one file, mode 0600: a renewal replaces both at once
    <data>/tls/certificate.pem    the certificate alone, for `trust_path` of clients

The certificate names every address and host name that clients may use. Connections are encrypted; the server is
authenticated only to clients that trust this file. At start, and every CHECK_S of a running node, a certificate that
expires within RENEW_BEFORE or lacks a name is replaced; servers reload it like any other changed file. Without a data
folder the files are in a temporary folder, which is deleted at the end.

RocketMQ: tls.test.mode.enable.
"""

import asyncio
import ipaddress
import shutil
import socket
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from mqtrail.net import Log, TlsError, TlsServerConfig, replace_file

if TYPE_CHECKING:
    from cryptography import x509

FOLDER = "tls"
FOLDER_MODE = 0o700
KEY_MODE = 0o600
CERTIFICATE_MODE = 0o644
VALIDITY = timedelta(days=365)
RENEW_BEFORE = timedelta(days=30)
CLOCK_SKEW = timedelta(hours=1)  # clients' clocks may be behind by as much
CHECK_S = 3_600.0

log = Log()


class SelfSigned:
    """`open`, then `close`. In between, the certificate is checked every CHECK_S."""

    def __init__(self, data: Path | None, hosts: Iterable[str]) -> None:
        """data: the data folder; None: a temporary one. hosts: addresses and host names that the certificate names."""
        self._temporary = None if data is not None else Path(tempfile.mkdtemp(prefix="mqtrail-tls-"))
        self._folder = self._temporary or (data or Path()) / FOLDER
        self._hosts = tuple(dict.fromkeys(hosts))
        self._timer: asyncio.TimerHandle | None = None

    @property
    def server_path(self) -> Path:
        """Key and certificate."""
        return self._folder / "server.pem"

    @property
    def certificate_path(self) -> Path:
        """The certificate alone."""
        return self._folder / "certificate.pem"

    def open(self, config: TlsServerConfig) -> TlsServerConfig:
        """Make the files if needed; return the settings with their paths. TlsError."""
        try:
            self.renew(datetime.now(UTC))
        except ModuleNotFoundError as error:
            raise TlsError(
                f"found no {error.name!r}, which a self-signed certificate requires: install it with "
                "`pip install 'mqtrail[tls]'`, or set cert_path and key_path"
            ) from error
        except OSError as error:
            raise TlsError(f"{error.filename}: cannot write the self-signed certificate: {error.strerror}") from error
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        return replace(config, self_signed=False, cert_path=self.server_path, key_path=self.server_path)

    def close(self) -> None:
        """Stop checking; delete a temporary folder."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def renew(self, now: datetime) -> bool:
        """Make key and certificate unless those on disk are valid; return whether they are new. OSError."""
        if (kept := self._valid(now)) is not None:
            if self._trusted() != kept:  # a copy of it, which clients trust
                replace_file(self.certificate_path, kept, CERTIFICATE_MODE)
            return False
        key, certificate = make_certificate(self._hosts, now)
        self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        replace_file(self.certificate_path, certificate, CERTIFICATE_MODE)
        replace_file(self.server_path, key + certificate, KEY_MODE)
        return True

    def _valid(self, now: datetime) -> bytes | None:
        """Return the certificate as PEM text; None: it must be replaced, or its key is not there."""
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

        try:
            text = self.server_path.read_bytes()
            certificate = x509.load_pem_x509_certificate(text)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            is_pair = load_pem_private_key(text, None).public_key() == certificate.public_key()
        except (FileNotFoundError, ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound):
            return None
        has = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
        lasts = certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc - RENEW_BEFORE
        is_kept = is_pair and lasts and has.issuperset(self._hosts)
        return certificate.public_bytes(Encoding.PEM) if is_kept else None

    def _trusted(self) -> bytes | None:
        try:
            return self.certificate_path.read_bytes()
        except FileNotFoundError:
            return None

    def _check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        try:
            if self.renew(datetime.now(UTC)):
                log.info("tls.certificate_renewed", path=str(self.certificate_path))
        except OSError as error:
            log.error(
                "tls.certificate_not_renewed",
                error=str(error),
                remedy="free space on that disk, or correct the owner of the folder",
            )


def self_signed_hosts(host: str, advertised: str) -> list[str]:
    """Return the names and addresses for the certificate: advertised, listened on, and this machine's own."""
    found = [advertised, "127.0.0.1", "::1", "localhost", socket.gethostname()]
    try:
        if ipaddress.ip_address(host).is_unspecified:
            return found
    except ValueError:
        pass
    return [*found, host]


def make_certificate(hosts: Iterable[str], now: datetime) -> tuple[bytes, bytes]:
    """Return a new key and its certificate as PEM texts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mqtrail self-signed")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return text, certificate.public_bytes(serialization.Encoding.PEM)


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
