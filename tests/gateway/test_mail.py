"""Mails that pmq's clients ask for: to whom, how many, and what a mail server in trouble does."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from smtplib import SMTPAuthenticationError, SMTPException, SMTPRecipientsRefused
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from mqtrail.gateway import DoorConfig, Gate, GateRules, mail, mail_server, read_rules
from mqtrail.gateway.gate import GroupRule, TopicRule
from mqtrail.gateway.mail import Mail, Mailer, MailRule, deliver
from mqtrail.gateway.pmq import Members, PmqBroker, PmqInterface
from mqtrail.gateway.pmq.shapes import MailBody
from mqtrail.gateway.problems import Problem
from mqtrail.wire import Host, InvalidParameter

from ..waiting import until


class Postbox:
    """Accepts mail for every address but nobody@x."""

    def __init__(self) -> None:
        self.got: list[EmailMessage] = []
        self.to: list[str] = []

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address == "nobody@x":
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Keep a mail."""
        assert isinstance(envelope.content, bytes)
        found = message_from_bytes(envelope.content, policy=default)
        assert isinstance(found, EmailMessage)
        self.got.append(found)
        self.to = envelope.rcpt_tos
        return "250 OK"


class Talker:
    """A mail server that says the same to everybody. begun, ended: connections."""

    def __init__(self, replies: bytes) -> None:
        self.replies = replies
        self.begun = self.ended = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.begun += 1
        writer.write(self.replies)
        if self.replies:
            with suppress(ConnectionError):
                await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.ended += 1


async def serving(made: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None) -> tuple[Any, int]:
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0, ssl=tls)
    return server, server.sockets[0].getsockname()[1]


def rule(port: int, **fields: Any) -> MailRule:
    return MailRule(**{"host": "localhost", "sender": "mqtrail@x", "port": port, "tls": "none", **fields})


async def test_a_mail_by_starttls_with_a_password(tmp_path: Path) -> None:
    """A real SMTP server with a certificate; an address that it refuses does not keep others from the mail."""
    authority, postbox = trustme.CA(), Postbox()
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(own)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "password").write_text("s3cret\n")

    def check(server: SMTP, session: Session, envelope: Envelope, mechanism: str, found: LoginPassword) -> AuthResult:
        return AuthResult(success=(found.login, found.password) == (b"ann", b"s3cret"), handled=False)

    def made() -> SMTP:
        return SMTP(postbox, tls_context=own, require_starttls=True, authenticator=check, auth_required=True)

    server, port = await serving(made)
    async with server:
        files = {"password_file": f"{tmp_path}/password", "ca_file": f"{tmp_path}/ca.pem"}
        safe = rule(port, tls="starttls", user="ann", **files)
        text = "订单\n.\n.dots\nend"
        assert await deliver(safe, ["ops@x", "nobody@x"], "[ERROR] 失败", text) == 1
        (got,) = postbox.got
        assert (got["subject"], got["from"], postbox.to) == ("[ERROR] 失败", "mqtrail@x", ["ops@x"])
        assert got.get_content().splitlines() == text.splitlines()
        with pytest.raises(SMTPRecipientsRefused, match=r"550.*no such user"):
            await deliver(safe, ["nobody@x"], "s", "t")
        (tmp_path / "password").write_text("wrong")
        with pytest.raises(SMTPAuthenticationError, match="535"):
            await deliver(safe, ["ops@x"], "s", "t")
        with pytest.raises(ssl.SSLCertVerificationError):
            await deliver(rule(port, tls="starttls"), ["ops@x"], "s", "t")


async def test_a_mail_by_tls_from_the_start(tmp_path: Path) -> None:
    authority, postbox = trustme.CA(), Postbox()
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(own)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server, port = await serving(lambda: SMTP(postbox), own)
    async with server:
        assert await deliver(rule(port, tls="tls", ca_file=f"{tmp_path}/ca.pem"), ["ops@x"], "s", "t") == 0
    assert [one.get_content() for one in postbox.got] == ["t\r\n"]


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        (b"554 go away\r\n", "554.*go away"),
        (b"220 " + b"x" * 9_000, "Line too long"),
        (b"", "Connection unexpectedly closed"),
        (b"220 ok\r\n250 ok\r\n", "STARTTLS extension not supported"),
    ],
)
async def test_mail_servers_that_make_no_sense(replies: bytes, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error each, with what was found."""
    monkeypatch.setattr(mail_server, "SILENCE_S", 0.2)  # some do not answer QUIT
    talker = Talker(replies)
    async with await asyncio.start_server(talker, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SMTPException, match=expected):
            await deliver(rule(port, tls="starttls"), ["ops@x"], "s", "t")
        await until(lambda: talker.ended == talker.begun)


class Post:
    """A mailer with a clock and a delivery of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        self.reported: list[tuple[str, object]] = []
        self.sent: list[str] = []
        self.failure: Exception | None = None
        monkeypatch.setattr(mail, "deliver", self._deliver)
        self.mailer = Mailer(
            lambda: rule(25), lambda event, fields: self.reported.append((event, fields["found"])), lambda: self.now_s
        )

    async def _deliver(self, rule: MailRule, to: Any, subject: str, text: str) -> int:
        if self.failure is not None:
            raise self.failure
        self.sent.append(text)
        return 0

    def take(self, key: str) -> None:
        self.mailer.take(Mail(("ops@x",), "s", key, (key,)))


async def test_mails_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """None twice within ten minutes, a hundred in an hour; the next one says how many were left out."""
    post = Post(monkeypatch)
    post.mailer.start()
    for number in range(100):
        post.take(str(number))
    await until(lambda: len(post.sent) == 100)
    for key in ("100", "101", "0"):
        post.take(key)
    post.now_s += 3_600
    post.take("0")
    await until(lambda: len(post.sent) == 101)
    await post.mailer.stop()
    assert post.sent[-1] == "0\n\n2 further mails were left out: there were too many."
    assert dict(post.mailer.counts) == {"sent": 101, "failed": 0, "repeated": 1, "dropped": 2}
    assert post.reported == [("mail.dropped", "too many mails")] * 2


async def test_a_mail_server_that_fails_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported and counted, and the next mail is tried. A stop reports what waits."""
    post = Post(monkeypatch)
    post.failure = ConnectionRefusedError("refused")
    post.mailer.start()
    post.take("1")
    await until(lambda: post.mailer.counts["failed"])
    post.failure = None
    post.take("2")
    await until(lambda: post.sent)
    await post.mailer.stop()
    post.take("3")
    await post.mailer.stop()
    assert post.sent == ["2"]
    assert post.reported == [("mail.cannot_send", "refused"), ("mail.dropped", "the door stops")]
    assert dict(post.mailer.counts) == {"sent": 1, "failed": 1, "repeated": 0, "dropped": 1}


async def test_any_failure_leaves_the_sender_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the only one: a failure that no one thought of is reported too, and the next mail is sent."""
    post = Post(monkeypatch)
    post.failure = RuntimeError("can't start new thread")
    post.mailer.start()
    post.take("1")
    await until(lambda: post.mailer.counts["failed"])
    post.failure = None
    post.take("2")
    await until(lambda: post.sent)
    await post.mailer.stop()
    assert post.reported == [("mail.cannot_send", "can't start new thread")]


async def test_files_are_read_outside_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the password and of the authority may be on a slow disk, and the door serves clients meanwhile."""
    (tmp_path / "password").write_text("s3cret")
    threads: dict[str, threading.Thread] = {}

    def read(path: Path, encoding: str) -> str:
        threads["password"] = threading.current_thread()
        return "s3cret"

    def context(cafile: str | None) -> ssl.SSLContext:
        threads["authority"] = threading.current_thread()
        raise FileNotFoundError(cafile)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(ssl, "create_default_context", context)
    with pytest.raises(FileNotFoundError):
        await deliver(rule(25, user="ann", password_file=f"{tmp_path}/password", ca_file="ca.pem"), ["a@x"], "s", "t")
    assert threading.main_thread() not in threads.values()
    assert len(threads) == 2


@pytest.mark.parametrize(
    ("tls", "replies"),
    [("none", b"22"), ("tls", b"\x16\x03"), ("starttls", b"220 ok\r\n250-x\r\n250 STARTTLS\r\n220 go\r\n")],
)
async def test_a_mail_server_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch, tls: str, replies: bytes) -> None:
    """After SEND_S, whatever it has sent until then: also in the middle of a TLS handshake."""
    monkeypatch.setattr(mail, "SEND_S", 0.05)
    monkeypatch.setattr(mail_server, "SILENCE_S", 3_600)  # so that only SEND_S ends it
    reported: list[tuple[str, object]] = []
    talker = Talker(replies)
    async with await asyncio.start_server(talker, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        mailer = Mailer(lambda: rule(port, tls=tls), lambda event, fields: reported.append((event, fields["found"])))
        mailer.start()
        mailer.take(Mail(("ops@x",), "s", "t", ("k",)))
        await until(lambda: reported)
        await mailer.stop()
        await until(lambda: talker.ended == talker.begun)
    assert reported == [("mail.cannot_send", "found no whole answer within 0.05 s, expected one")]


async def test_who_gets_the_mails_of_pmqs_clients() -> None:
    """The addresses of the group, else of the topic, and the operator's; only warnings and errors; texts are texts."""
    rules = GateRules(
        {"t": TopicRule(mail=("topic@x",))},
        {"g": GroupRule(deny=("10.0.0.1",), mail=("group@x", "ops@x"))},
        mail=rule(25, to=("ops@x",)),
    )
    nothing: Any = SimpleNamespace()
    config, gate = DoorConfig(hosts=None), Gate(rules)
    got: list[Mail] = []
    interface = PmqInterface(nothing, nothing, nothing, "b", asyncio.Event(), gate, config, Members(nothing, config))
    interface.on_mail = got.append

    async def ask(ip: str = "10.0.0.9", **fields: Any) -> Any:
        return (await interface.send_mail(MailBody(**fields), PmqBroker(nothing, Host(ip, 1))))["suc"]

    assert await ask(type=2, consumer_group_name="g", topic_name="t", subject="a\r\nBcc: evil@x", content="b\n\x1bc")
    assert await ask(type=1, topic_name="t", subject="slow")
    assert await ask(type=0, topic_name="t", subject="told")
    assert await ask(type=2, topic_name="other")
    with pytest.raises(Problem):
        await ask("10.0.0.1", type=2, consumer_group_name="g")
    gate.rules = GateRules()
    assert await ask(type=2, topic_name="t")
    assert [one.to for one in got] == [("group@x", "ops@x"), ("topic@x", "ops@x"), ("ops@x",)]
    assert got[0].subject == "[ERROR] a\\x0d\\nBcc: evil@x"
    assert got[0].text == "group g, topic t, client 10.0.0.9\n\nb\n\\x1bc"
    assert got[1].subject == "[WARN] slow"


@pytest.mark.parametrize(
    "text",
    [
        '[mail]\nhost = "x"',
        '[mail]\nhost = "x"\nsender = "no address"',
        '[mail]\nhost = "x"\nsender = "a@x"\nto = ["a@x\\r\\nDATA"]',
        '[mail]\nhost = "x"\nsender = "a@x"\ntls = "none"\nuser = "ann"',
        '[mail]\nhost = "x"\nsender = "a@x"\nport = 0',
        '[groups.g]\nmail = ["a b@x"]',
    ],
)
def test_rules_of_mails_that_cannot_be_used(text: str) -> None:
    with pytest.raises(InvalidParameter, match="found rules that cannot be used"):
        read_rules(text, "rules.toml")


def test_rules_of_mails() -> None:
    text = '[mail]\nhost = "x"\nsender = "a@x"\nto = ["ops@x"]\n[topics.t]\nmail = ["t@x"]'
    found = read_rules(text, "rules.toml")
    assert (found.mail, found.topics["t"].mail) == (MailRule("x", "a@x", to=("ops@x",)), ("t@x",))
