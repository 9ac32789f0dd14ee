"""A node without a certificate makes a self-signed one on request, keeps it, and renews it."""

import asyncio
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from mqtrail.net import ClientAuth, ServerConfig, TlsClientConfig, TlsError, TlsMode, TlsServerConfig
from mqtrail.node import Node, NodeConfig
from mqtrail.node.self_signed import RENEW_BEFORE, VALIDITY, SelfSigned, make_certificate, self_signed_hosts
from tests.loops import run

from .helpers import broker_of, running
from .test_security import instance, send

NOW = datetime.now(UTC).replace(microsecond=0)
HOSTS = ("127.0.0.1", "localhost")


def test_it_is_kept_until_it_nearly_expires(tmp_path: Path) -> None:
    """A valid one survives restarts; one that expires soon, lacks a host or is damaged is replaced completely."""
    made = SelfSigned(tmp_path, HOSTS)
    assert made.renew(NOW)
    first = made.server_path.read_bytes()
    assert not SelfSigned(tmp_path, HOSTS).renew(NOW + VALIDITY - RENEW_BEFORE)
    assert made.server_path.read_bytes() == first
    assert made.renew(NOW + VALIDITY - RENEW_BEFORE + timedelta(seconds=1))
    assert made.server_path.read_bytes() != first
    assert SelfSigned(tmp_path, (*HOSTS, "broker.example.org")).renew(NOW + VALIDITY)
    made.server_path.write_text("damaged")
    assert made.renew(NOW + VALIDITY)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made.server_path)
    assert made.certificate_path.read_bytes() in made.server_path.read_bytes()


def test_a_damaged_key_is_replaced(tmp_path: Path) -> None:
    """A key that cannot be read, or that belongs to another certificate, would keep the node from starting."""
    made = SelfSigned(tmp_path, HOSTS)
    made.renew(NOW)
    kept = made.server_path.read_bytes()
    other, _ = make_certificate(HOSTS, NOW)
    for damaged in (kept[:60] + b"AAAA" + kept[64:], other + made.certificate_path.read_bytes(), kept[10:]):
        made.server_path.write_bytes(damaged)
        assert made.renew(NOW)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made.server_path)
        assert made.certificate_path.read_bytes() in made.server_path.read_bytes()


def test_the_file_that_clients_trust_is_the_served_certificate(tmp_path: Path) -> None:
    """A truncated or missing copy is written again from the served one, so clients that have it still trust it."""
    made = SelfSigned(tmp_path, HOSTS)
    made.renew(NOW)
    served = made.certificate_path.read_bytes()
    made.certificate_path.write_bytes(b"")
    assert not made.renew(NOW)
    assert made.certificate_path.read_bytes() == served
    made.certificate_path.unlink()
    assert not made.renew(NOW)
    assert made.certificate_path.read_bytes() == served


def test_the_key_is_its_owners_alone(tmp_path: Path) -> None:
    """Folder 0700, key 0600, whatever modes existing files have."""
    folder = tmp_path / "tls"
    folder.mkdir(mode=0o755)
    (folder / "server.pem.tmp").write_text("left by a crash")
    (folder / "server.pem.tmp").chmod(0o644)
    made = SelfSigned(tmp_path, HOSTS)
    made.renew(NOW)
    assert made.server_path.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE KEY" not in made.certificate_path.read_bytes()


def test_it_names_all_hosts() -> None:
    """The advertised address, the listening address, and this machine's names."""
    hosts = self_signed_hosts("192.0.2.8", "192.0.2.7")
    assert {"192.0.2.7", "192.0.2.8", "127.0.0.1", "::1", "localhost"} <= set(hosts)
    assert "0.0.0.0" not in self_signed_hosts("0.0.0.0", "192.0.2.7")
    _, pem = make_certificate(hosts, NOW)
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)][:1] == ["192.0.2.7"]
    assert "localhost" in names.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_node_serves_tls_at_once(tmp_path: Path, mode: TlsMode, in_memory: bool) -> None:
    """Clients can send if they trust the file, also with host name check, or verify nothing; others cannot."""
    server = ServerConfig(tls=TlsServerConfig(mode=mode, self_signed=True))
    async with running(server=server, data=None if in_memory else tmp_path) as (node, _):
        assert node.certificate is not None
        trusting = TlsClientConfig(enable=True, verify_host=True, trust_path=node.certificate)
        await send(node, instance(None, trusting))
        await send(node, instance(None, TlsClientConfig(enable=True, verify=False)))
        with pytest.raises(Exception, match="certificate of the peer is rejected"):
            await send(node, instance(None, TlsClientConfig(enable=True)))
        kept = node.certificate
    assert kept.exists() is not in_memory


async def test_a_renewed_certificate_is_served(tmp_path: Path) -> None:
    """The servers use the renewed file after their next check."""
    server = ServerConfig(tls=TlsServerConfig(self_signed=True))
    async with running(server=server, data=tmp_path) as (node, _):
        made, broker = node._self_signed, broker_of(node)
        assert made is not None
        assert broker._server is not None
        old = made.certificate_path.read_bytes()
        made.renew(NOW + VALIDITY)
        assert broker._server.tls is not None
        # A certificate of the future is not yet valid and would be refused, so the test uses one of today.
        made.renew(datetime.now(UTC))
        assert broker._server.tls.reload()
        assert made.certificate_path.read_bytes() != old
        host, _, port = broker.address.rpartition(":")
        served = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
        assert ssl.PEM_cert_to_DER_cert(served) == ssl.PEM_cert_to_DER_cert(made.certificate_path.read_text())


async def test_without_the_library_the_start_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """cryptography is optional: only this feature needs it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    server = ServerConfig(tls=TlsServerConfig(self_signed=True))
    with pytest.raises(TlsError, match=r"mqtrail\[tls\]"):
        await Node(NodeConfig(data=tmp_path, namesrv_port=0, broker_port=0, server=server)).start()


def test_required_client_certificates_and_plain_connections_are_warned_of(tmp_path: Path) -> None:
    """PERMISSIVE serves plain connections without a certificate and warns; ENFORCING does neither."""
    made = SelfSigned(tmp_path, HOSTS)
    made.renew(NOW)

    async def warnings(mode: TlsMode) -> list[str]:
        tls = TlsServerConfig(
            mode=mode, self_signed=True, client_auth=ClientAuth.REQUIRE, trust_path=made.certificate_path
        )
        with capture_logs() as logs:
            async with running(server=ServerConfig(tls=tls), fast_port=False):
                pass
        return [line["event"] for line in logs if line["log_level"] == "warning"]

    assert "node.plain_connections" in run(warnings(TlsMode.PERMISSIVE))
    assert "node.plain_connections" not in run(warnings(TlsMode.ENFORCING))


def test_one_certificate_at_most() -> None:
    """Own certificate files and a self-signed one exclude each other."""
    with pytest.raises(TlsError, match="one of them"):
        TlsServerConfig(self_signed=True, cert_path=Path("c.pem"), key_path=Path("k.pem"))
