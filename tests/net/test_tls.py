"""TLS and plain connections on one port, certificates of both sides, and the errors when one is rejected."""

import asyncio
import contextlib
import itertools
import random
import ssl
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trustme
from structlog.testing import capture_logs

from mqtrail.net import (
    ClientAuth,
    ConnectError,
    Connection,
    ConnectionClosed,
    ConnectionPool,
    ServerConfig,
    TlsClientConfig,
    TlsError,
    TlsMode,
    TlsServerConfig,
    read_tls_properties,
    server_connection,
)
from mqtrail.net.certificates import validity
from mqtrail.net.tls_session import READ_SIZE, UNSENT_SIZE_MAX, TlsSession, TlsTransport
from mqtrail.wire import RemotingCommand, cut_frame, decode_command, encode_command
from tests.fuzz.tls_peer import HANDSHAKE, KEY_UPDATES, TlsPeer, server_config
from tests.waiting import until

from .conftest import BIG, ECHO, SILENT, serving


class Certificates:
    """An authority, a server's and a client's certificate, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        self.cert, self.key = self.issue("server", "127.0.0.1")
        self.client_cert, self.client_key = self.issue("client", "client@example.org")

    def issue(self, name: str, identity: str, authority: trustme.CA | None = None, **fields: Any) -> tuple[Path, Path]:
        made = (authority or self.authority).issue_cert(identity, **fields)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        return cert, key

    def server(self, **fields: Any) -> ServerConfig:
        tls = TlsServerConfig(**{"cert_path": self.cert, "key_path": self.key, **fields})
        return ServerConfig(tls=tls)

    def client(self, **fields: Any) -> ssl.SSLContext:
        config = TlsClientConfig(**{"enable": True, "trust_path": self.ca, **fields})
        context = config.context()
        assert context is not None
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def echo(address: str, tls: ssl.SSLContext | None, size: int = 5) -> bytes:
    connection = await Connection.open(address, tls=tls)
    try:
        return (await connection.request(RemotingCommand(ECHO, body=bytes(size)), 30_000)).body
    finally:
        connection.close()
        await connection.wait_closed()


async def test_both_kinds_on_one_port(certificates: Certificates) -> None:
    """A permissive port serves TLS and plain connections, large bodies, and concurrent requests."""
    async with serving(config=certificates.server()) as (server, application):
        assert await echo(server.address, certificates.client()) == bytes(5)
        assert await echo(server.address, None) == bytes(5)
        assert len(await echo(server.address, certificates.client(), 3_000_000)) == 3_000_000
        assert [connection.is_tls for connection in application.connections] == [True, False, True]
        pool = ConnectionPool(tls=certificates.client())
        replies = await asyncio.gather(
            *(pool.request(server.address, RemotingCommand(ECHO, body=b"%d" % n), 30_000) for n in range(300))
        )
        assert [reply.body for reply in replies] == [b"%d" % n for n in range(300)]
        big = await pool.request(server.address, RemotingCommand(BIG, {"size": "5000000"}), 30_000)
        assert len(big.body) == 5_000_000
        await pool.close()
        await until(lambda: len(application.gone) == 4)


async def test_enforcing_takes_no_plain_connection(certificates: Certificates) -> None:
    """A plain connection closes; a TLS connection is served."""
    async with serving(config=certificates.server(mode=TlsMode.ENFORCING)) as (server, application):
        assert await echo(server.address, certificates.client()) == bytes(5)
        with pytest.raises(ConnectionClosed):
            await echo(server.address, None)
        assert len(application.seen) == 1


@pytest.mark.parametrize("config", [ServerConfig(), None])
async def test_a_port_without_tls_says_so(certificates: Certificates, config: ServerConfig | None) -> None:
    """A TLS hello at a plain or disabled port closes the connection; the client's error mentions TLS."""
    async with serving(config=config or certificates.server(mode=TlsMode.DISABLED)) as (server, _):
        with pytest.raises(ConnectError, match="TLS"):
            await echo(server.address, certificates.client())


def wrong_authority(certificates: Certificates) -> ssl.SSLContext:
    other = certificates.folder / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(other)
    return certificates.client(trust_path=other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (wrong_authority, "the certificate of the peer is rejected"),
        (lambda certificates: certificates.client(verify_host=True), None),
        (lambda certificates: certificates.client(verify=False, trust_path=None), None),
    ],
)
async def test_what_a_client_takes(
    certificates: Certificates, make: Callable[[Certificates], ssl.SSLContext], message: str | None
) -> None:
    """A certificate of an unknown authority is rejected unless verify is off; the host is checked with verify_host."""
    async with serving(config=certificates.server()) as (server, _):
        if message is None:
            assert await echo(server.address, make(certificates)) == bytes(5)
            return
        with pytest.raises(ConnectError, match=message):
            await echo(server.address, make(certificates))


async def test_the_host_is_checked_if_configured(certificates: Certificates) -> None:
    """Only verify_host rejects another host's certificate."""
    cert, key = certificates.issue("elsewhere", "elsewhere.example.org")

    async with serving(config=certificates.server(cert_path=cert, key_path=key)) as (server, _):
        assert await echo(server.address, certificates.client()) == bytes(5)
        with pytest.raises(ConnectError, match="is rejected"):
            await echo(server.address, certificates.client(verify_host=True))


async def test_client_certificates(certificates: Certificates) -> None:
    """REQUIRE needs a client certificate, OPTIONAL does not; both reject one of an unknown authority."""
    stranger = certificates.issue("stranger", "stranger@example.org", trustme.CA())
    expired = certificates.issue("expired", "late@example.org", not_after=datetime.now(UTC) - timedelta(days=1))

    known = certificates.client(cert_path=certificates.client_cert, key_path=certificates.client_key)
    unknown = certificates.client(cert_path=stranger[0], key_path=stranger[1])
    for auth in (ClientAuth.OPTIONAL, ClientAuth.REQUIRE):
        async with serving(config=certificates.server(client_auth=auth, trust_path=certificates.ca)) as (server, _):
            assert await echo(server.address, known) == bytes(5)
            with pytest.raises((ConnectError, ConnectionClosed)):
                await echo(server.address, unknown)
            if auth is ClientAuth.OPTIONAL:
                assert await echo(server.address, certificates.client()) == bytes(5)
            else:
                with pytest.raises((ConnectError, ConnectionClosed), match="client certificate"):
                    await echo(server.address, certificates.client())
    with pytest.raises(TlsError, match="expired at"):
        certificates.client(cert_path=expired[0], key_path=expired[1])


async def test_an_expired_certificate_is_named_on_both_sides(certificates: Certificates, tmp_path: Path) -> None:
    """The server does not start with an expired one; a client that gets one reports it."""
    cert, key = certificates.issue("old", "127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(TlsError, match=r"old\.pem: the certificate expired at"):
        certificates.server(cert_path=cert, key_path=key).tls.context()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(ConnectError, match="certificate has expired"):
        await echo(f"127.0.0.1:{port}", certificates.client())
    listener.close()


async def test_changed_files_are_taken_for_new_connections(certificates: Certificates, tmp_path: Path) -> None:
    """New connections get a new certificate; a malformed file keeps the old one in use."""
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    cert.write_bytes(certificates.cert.read_bytes())
    key.write_bytes(certificates.key.read_bytes())

    async with serving(config=certificates.server(cert_path=cert, key_path=key)) as (server, _):
        old = await Connection.open(server.address, tls=certificates.client())
        authority = trustme.CA()
        made = authority.issue_cert("127.0.0.1")
        cert.write_bytes(made.cert_chain_pems[0].bytes())
        with capture_logs() as logs:
            server.reload_tls()  # the key does not match yet: nothing changes
        assert [(line["event"], str(cert) in line["error"]) for line in logs] == [("server.tls_not_reloaded", True)]
        assert await echo(server.address, certificates.client()) == bytes(5)
        key.write_bytes(made.private_key_pem.bytes())
        server.reload_tls()
        with pytest.raises(ConnectError, match="is rejected"):
            await echo(server.address, certificates.client())
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        assert await echo(server.address, certificates.client(trust_path=tmp_path / "ca.pem")) == bytes(5)
        assert (await old.request(RemotingCommand(ECHO, body=b"x"), 30_000)).body == b"x"
        old.close()


@pytest.mark.parametrize("cut", [1, 100, READ_SIZE, 1 << 20])
def test_any_split_of_records(certificates: Certificates, cut: int) -> None:
    """The result does not depend on the boundaries of socket reads and TLS records."""
    context = certificates.server().tls.context()
    assert context is not None
    server = TlsSession(context, server_side=True)
    client = TlsSession(certificates.client(), server_side=False, host="127.0.0.1")
    client.start()
    while not (client.established and server.established):
        server.receive(client.take())
        client.receive(server.take())
    sent = [b"a", b"b" * (READ_SIZE - 1), b"c" * READ_SIZE, b"d" * (READ_SIZE + 1), b"e" * 100_000, b"f"]
    stream = b"".join(map(client.send, sent)) + client.close()
    received = b"".join(server.receive(stream[start : start + cut]) for start in range(0, len(stream), cut))
    assert received == b"".join(sent)
    assert server.ended


def peer_and_server() -> tuple[TlsPeer, TlsSession]:
    """Return a client of TLS 1.3 that makes its records itself, and a server, after their handshake."""
    context = server_config().context()
    assert context is not None
    server = TlsSession(context, server_side=True)
    peer = next(made for seed in itertools.count() if (made := TlsPeer(random.Random(seed))).is_new)
    received = b""
    while not (peer.established and server.established):
        server.receive(peer.shake_hands(received))
        received = server.take()
    assert peer.decrypted(received) == b""  # tickets
    return peer, server


def test_what_is_written_in_the_middle_of_new_keys_waits() -> None:
    """OpenSSL encrypts nothing between two records of one handshake message. A server that raised here lost the answers
    of others, a client the request."""
    peer, server = peer_and_server()
    first, second = (peer.record(HANDSHAKE, half) for half in (KEY_UPDATES[0][:4], KEY_UPDATES[0][4:]))
    assert server.receive(first) == b""
    sent = [b"one", b"two" * READ_SIZE]
    assert b"".join(map(server.send, sent)) == b""
    assert server.receive(second) == b""
    assert peer.decrypted(server.take()) == b"".join(sent)
    assert peer.decrypted(server.send(b"three")) == b"three"


async def test_what_waits_for_new_keys_is_bounded() -> None:
    """Then the connection ends. Its writer gets no error: it may be serving others."""
    peer, server = peer_and_server()
    server.receive(peer.record(HANDSHAKE, KEY_UPDATES[0][:4]))
    aborted: list[bool] = []
    fake = SimpleNamespace(is_closing=lambda: False, write=lambda data: None, abort=lambda: aborted.append(True))
    transport = TlsTransport(cast(asyncio.Transport, fake), server)
    transport.write(bytes(UNSENT_SIZE_MAX))
    assert aborted == []
    transport.write(b"x")
    assert aborted == [True]


async def test_a_client_decrypts_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also bytes without a frame: a server can send thousands of new keys at once, which took 350 ms of CPU."""
    monkeypatch.setattr("mqtrail.net.client.TURN_S", 0.0)
    sizes: list[int] = []

    def receive(data: bytes) -> bytes:
        sizes.append(len(data))
        return b""

    session = SimpleNamespace(start=lambda: None, take=lambda: b"", receive=receive, established=True, ended=False)
    transport = SimpleNamespace(
        get_extra_info=lambda name: None,
        set_write_buffer_limits=lambda high: None,
        pause_reading=lambda: None,
        resume_reading=lambda: None,
        is_closing=lambda: False,
    )
    connection = Connection("127.0.0.1:1", None, None, tls=cast(TlsSession, session))
    connection.connection_made(cast(asyncio.Transport, transport))
    connection.data_received(bytes(2 * READ_SIZE + 1))
    assert sizes == [READ_SIZE]
    await until(lambda: sizes == [READ_SIZE, READ_SIZE, 1])


@pytest.mark.parametrize("turn_s", [60.0, 0.0])
async def test_what_came_with_the_end_is_read_by_a_client(
    turn_s: float, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replies and the end of the session may come in one piece, which may take several turns to read."""
    monkeypatch.setattr("mqtrail.net.client.TURN_S", turn_s)
    async with serving(config=certificates.server()) as (server, application):
        connection = await Connection.open(server.address, tls=certificates.client())
        asked = [asyncio.create_task(connection.request(RemotingCommand(SILENT), 60_000)) for _ in range(5)]
        await until(lambda: len(application.seen) == len(asked))
        (served,) = application.connections
        replies = [RemotingCommand.reply_to(one, 0, body=b"last") for one in application.seen]
        served.write(b"".join(map(encode_command, replies)))
        served.close()
        assert [(await one).body for one in asked] == [b"last"] * len(asked)


@pytest.mark.parametrize("cut", [1, 3, 7])
async def test_any_split_of_a_handshake(certificates: Certificates, cut: int) -> None:
    """The bytes of a hello may arrive one by one."""
    async with serving(config=certificates.server()) as (server, _):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = certificates.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        async with asyncio.timeout(60):
            while True:
                try:
                    session.do_handshake()
                except ssl.SSLWantReadError:
                    data = outgoing.read()
                    for start in range(0, len(data), cut):
                        writer.write(data[start : start + cut])
                        await writer.drain()
                        await asyncio.sleep(0)
                    incoming.write(await reader.read(65_536))
                else:
                    break
        assert session.version() == "TLSv1.3"
        writer.close()


async def shake_hands(
    session: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:  # fmt: skip
    while True:
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(65_536))
        else:
            return


async def test_what_came_with_the_end_is_answered(certificates: Certificates) -> None:
    """A peer that sends a request together with close_notify gets its reply, then the connection closes."""
    async with serving(config=certificates.server()) as (server, application):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = certificates.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        async with asyncio.timeout(60):
            await shake_hands(session, incoming, outgoing, reader, writer)
            session.write(encode_command(RemotingCommand(ECHO, body=b"last", opaque=3)))
            with contextlib.suppress(ssl.SSLWantReadError):
                session.unwrap()
            writer.write(outgoing.read())
            while data := await reader.read(65_536):
                incoming.write(data)
        raw = session.read(65_536)
        assert decode_command(cut_frame(raw, 0, len(raw))).body == b"last"
        writer.close()
        await until(lambda: bool(application.gone))
        application.connections[0].write(b"too late")  # a reply that waited for the disk


async def test_writing_behind_the_end_does_nothing(certificates: Certificates) -> None:
    """A reply after this side has closed, and before the socket is closed, is dropped, like on a plain connection."""
    async with serving(config=certificates.server()) as (server, application):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = certificates.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        async with asyncio.timeout(60):
            await shake_hands(session, incoming, outgoing, reader, writer)
            session.write(encode_command(RemotingCommand(ECHO, body=b"x")))
            writer.write(outgoing.read())
            await until(lambda: bool(application.seen))
            (connection,) = application.connections
            connection.close()
            connection.write(b"too late")
            while await reader.read(65_536):
                pass
        writer.close()


async def test_decryption_takes_turns(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that take long to decrypt wait for the next turn; they are served in order, and others in between."""
    time_s, iteration, is_counting = [0.0], [0], [True]
    turns: list[int] = []
    receive = TlsSession.receive

    def slow(session: TlsSession, data: bytes) -> bytes:
        time_s[0] += 1
        turns.append(iteration[0])
        return receive(session, data)

    def count() -> None:
        iteration[0] += 1
        if is_counting[0]:
            loop.call_soon(count)

    loop = asyncio.get_running_loop()
    async with serving(config=certificates.server()) as (server, application):
        server.clock = lambda: time_s[0]
        reader, writer = await asyncio.open_connection(server.host, server.port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = certificates.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        async with asyncio.timeout(60):
            await shake_hands(session, incoming, outgoing, reader, writer)
        writer.write(outgoing.read())
        monkeypatch.setattr(TlsSession, "receive", slow)
        count()
        requests = [RemotingCommand(SILENT, body=bytes(100), opaque=number) for number in range(2_000)]
        for request in requests:
            session.write(encode_command(request))
        writer.write(outgoing.read())
        await until(lambda: len(application.seen) == len(requests))
        assert [command.opaque for command in application.seen] == list(range(len(requests)))
        assert len(turns) == len(set(turns)) > 10
        is_counting[0] = False
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_handshake_has_a_deadline(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """A peer needs no certificate to connect, so it loses its place if it does not finish the handshake in time. Plain
    connections that are silent stay where they are accepted."""
    monkeypatch.setattr(server_connection, "HANDSHAKE_S", 0.05)
    mode = TlsMode.PERMISSIVE if sent else TlsMode.ENFORCING
    async with serving(config=certificates.server(mode=mode)) as (server, application):
        silent = await Connection.open(server.address)  # plain: it has sent nothing yet
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(sent)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert await reader.read(1_000) == b""
        writer.close()
        monkeypatch.undo()
        if mode is TlsMode.PERMISSIVE:
            assert (await silent.request(RemotingCommand(ECHO, body=b"x"), 30_000)).body == b"x"
            assert await echo(server.address, certificates.client()) == bytes(5)
            assert 1 not in application.gone
        silent.close()


async def test_a_closed_connection_leaves_nothing(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """The TLS session is freed when the connection closes, not at the deadline of its handshake: peers that connect
    again and again would fill the memory."""
    sessions: weakref.WeakSet[TlsSession] = weakref.WeakSet()

    class Watched(TlsSession):
        def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
            super().__init__(context, server_side=server_side)
            sessions.add(self)

    monkeypatch.setattr(server_connection, "TlsSession", Watched)
    monkeypatch.setattr(server_connection, "HANDSHAKE_S", 10_000.0)
    async with serving(config=certificates.server()) as (server, application):
        assert await echo(server.address, certificates.client()) == bytes(5)
        assert len(sessions) == 1
        application.connections.clear()
        await until(lambda: bool(application.gone) and not sessions)


def test_keys_are_not_negotiated_again(certificates: Certificates) -> None:
    """A client of TLS 1.2 could let the server compute without end."""
    context = certificates.server().tls.context()
    assert context is not None
    assert context.options & ssl.OP_NO_RENEGOTIATION


async def test_garbage_behind_a_hello_is_closed(certificates: Certificates) -> None:
    """A malformed TLS record closes its connection and affects no other."""
    async with serving(config=certificates.server()) as (server, _):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"\x16\x03\x01\x00\x05hello")
        async with asyncio.timeout(60):
            while await reader.read(1_000):
                pass
        writer.close()
        assert await echo(server.address, certificates.client()) == bytes(5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cert_path": Path("a.pem"), "key_path": None}, "expected both or none"),
        ({"cert_path": None, "key_path": None, "mode": TlsMode.ENFORCING}, "enforcing without a certificate"),
        ({"client_auth": ClientAuth.REQUIRE}, "without trust_path"),
    ],
)
def test_settings_that_could_not_work_are_refused(
    certificates: Certificates, fields: dict[str, object], message: str
) -> None:
    """Contradictory settings are refused when they are created, with a text."""
    with pytest.raises(TlsError, match=message):
        certificates.server(**fields)


def test_files_that_cannot_be_used_are_named(certificates: Certificates, tmp_path: Path) -> None:
    """A missing file, a file without a certificate, another's key, a wrong password: the error names the file."""
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for fields in (
        {"cert_path": tmp_path / "missing.pem"},
        {"cert_path": empty},
        {"key_path": certificates.client_key},
        {"key_path": empty},
        {"client_auth": ClientAuth.REQUIRE, "trust_path": empty},
    ):
        with pytest.raises(TlsError, match=r"\.(pem|key)"):
            certificates.server(**fields).tls.context()


def test_reads_apaches_file() -> None:
    """Keys of tls.properties become settings of both sides; keys without effect are reported."""
    properties = read_tls_properties(
        "# of the broker\ntls.server.mode=enforcing\ntls.server.certPath = /s.pem\ntls.server.keyPath: /s.key\n"
        "tls.client.authServer=true\ntls.client.trustCertPath=/ca.pem\ntls.test.mode.enable=true\ntls.enable=true\n"
        "tls.provider=JDK\n"
    )
    assert properties.server == {"mode": "enforcing", "cert_path": "/s.pem", "key_path": "/s.key"}
    assert properties.client == {"verify": "true", "trust_path": "/ca.pem", "enable": "true"}
    assert [note.split(" ")[0].rstrip(":=true") for note in properties.notes] == ["tls.test.mode.enabl", "tls.provid"]
    properties = read_tls_properties("tls.test.mode.enable=true\ntls.server.mode=enforcing\n")
    assert properties.server == {"mode": "enforcing", "self_signed": "true"}
    assert properties.notes == ()
    with pytest.raises(TlsError, match="line 1"):
        read_tls_properties("nonsense")


def test_a_client_reads_apaches_file(tmp_path: Path) -> None:
    """One call from tls.properties to a client's config."""
    file = tmp_path / "tls.properties"
    file.write_text("tls.enable=true\ntls.client.authServer=true\ntls.client.trustCertPath=/ca.pem\n")
    assert TlsClientConfig.read(file) == TlsClientConfig(enable=True, trust_path=Path("/ca.pem"))
    file.write_text("tls.enable=TRUE\ntls.client.authServer=false\ntls.client.keyPassword=\n")
    assert TlsClientConfig.read(file) == TlsClientConfig(enable=True, verify=False)
    with pytest.raises(TlsError, match="cannot be read"):
        TlsClientConfig.read(tmp_path / "none")


def test_validity_is_read(certificates: Certificates) -> None:
    """The two times of a certificate equal those of OpenSSL."""
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    cert, _ = certificates.issue("dated", "127.0.0.1", not_after=end)
    first, last = validity(cert.read_text())
    assert last == end
    assert first < last
    with pytest.raises(ValueError, match="BEGIN"):
        validity("nothing")
    with pytest.raises(ValueError, match="truncated"):
        validity("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")


def test_passwords_are_in_no_repr(certificates: Certificates) -> None:
    """A config in a log shows no password."""
    server = certificates.server(key_password="sesame").tls
    assert "sesame" not in repr(server) + repr(TlsClientConfig(key_password="sesame"))
