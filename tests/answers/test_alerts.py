"""Alerts: what a rule measures, when it changes, what each channel gets, and that nothing unknown is good."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from mqtrail.answers import Sources
from mqtrail.answers.alerts import (
    Alert,
    AlertHistory,
    AlertPhase,
    Channel,
    InvalidRules,
    Rule,
    Rules,
    measure,
    notify,
    read_alerts,
    watch,
)
from mqtrail.answers.alerts.connections import NotAccepted
from mqtrail.answers.alerts.history import KEPT_MS, SubjectPhase
from mqtrail.answers.alerts.measure import Measured, phase_of
from mqtrail.answers.alerts.notify import PartlyAccepted, payload, send, signed, text_of
from mqtrail.answers.alerts.rules import ChannelFormat, Measure, read_rules, secret_of
from mqtrail.answers.alerts.watch import step
from tests.answers.conftest import Shop
from tests.answers.lakes import NAMES

GOOD, BAD, CANNOT_TELL = AlertPhase.GOOD, AlertPhase.BAD, AlertPhase.CANNOT_TELL
NOW_MS = 1_795_392_000_000
EVIL = "<b>\u202e*x*"


def rule(**settings: Any) -> Rule:
    fields: dict[str, Any] = {"name": "stuck", "measure": Measure.COUNT, "search": "verdict:HUNG", "above": 0}
    return Rule(**{**fields, "channels": ("ops",), "max_age": "100000d", "window": "100000d", **settings})


def alert(phase: AlertPhase = BAD, **settings: Any) -> Alert:
    fields: dict[str, Any] = {"at_ms": NOW_MS, "rule": "stuck", "subject": "billing", "severity": "error"}
    return Alert(
        **{
            **fields,
            "before": GOOD,
            "phase": phase,
            "value": 3.0,
            "why": "",
            "query": "verdict:HUNG",
            "unsent": ("ops",),
            **settings,
        }
    )


@pytest.mark.parametrize(
    ("value", "before", "expected"),
    [
        (None, GOOD, CANNOT_TELL),
        (None, BAD, CANNOT_TELL),
        (11, GOOD, BAD),
        (10, GOOD, GOOD),
        (10, BAD, BAD),
        (5, BAD, GOOD),
        (5.1, BAD, BAD),
        (7, CANNOT_TELL, GOOD),
    ],
)
def test_a_value_between_the_thresholds_says_what_was_known(
    value: float | None, before: AlertPhase, expected: AlertPhase
) -> None:
    one = rule(above=10, below=5)
    assert phase_of(one, Measured("", value, ""), before) is expected


def looks(one: Rule, *found: Sequence[tuple[str, float | None]]) -> list[list[tuple[str, AlertPhase]]]:
    """Return the alerts of each look, a minute apart."""
    phases: dict[str, SubjectPhase] = {}
    alerts = []
    for number, values in enumerate(found):
        measured = [Measured(subject, value, "") for subject, value in values]
        phases, made = step(one, measured, phases, NOW_MS + number * 60_000)
        alerts.append([(each.subject, each.phase) for each in made])
    return alerts


def test_an_alert_needs_its_time_and_ends_after_it() -> None:
    """A spike raises none; a short dip ends none."""
    bad, good = [("", 1.0)], [("", 0.0)]
    one = rule(hold="1m")
    assert looks(one, bad, good, bad, bad, good, bad, good, good, good) == [
        *([], [], [], [("", BAD)], [], [], [], [("", GOOD)], []),
    ]


def test_what_cannot_be_told_is_an_alert_and_ends_none() -> None:
    """A rule that is blind as a whole leaves its subjects as they are; afterwards a missing subject is good."""
    blind: list[tuple[str, float | None]] = [("", None)]
    assert looks(rule(), [("billing", 1.0)], blind, blind, []) == [
        [("billing", BAD)],
        [("", CANNOT_TELL)],
        [],
        [("", GOOD), ("billing", GOOD)],
    ]
    assert looks(rule(), [("billing", 1.0), ("mail", None)], [("billing", None), ("mail", 0.0)]) == [
        [("billing", BAD), ("mail", CANNOT_TELL)],
        [("billing", CANNOT_TELL), ("mail", GOOD)],
    ]


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_an_alert_is_not_over_because_nothing_could_be_told_for_a_while(
    history: AlertHistory, over_a_restart: bool
) -> None:
    """Between the thresholds a value says what was known before, also before that while."""
    one, found = rule(above=10, below=5), []
    phases: dict[str, SubjectPhase] = {}
    for number, value in enumerate((11.0, None, None, 7.0, 5.0, None, 7.0)):
        phases, made = step(one, [Measured("", value, "")], phases, NOW_MS + number)
        found += [each.phase for each in made]
        if over_a_restart:
            history.keep(one.name, phases, made, NOW_MS)
            phases = history.phases(one.name)
    assert found == [BAD, CANNOT_TELL, BAD, GOOD, CANNOT_TELL, GOOD]


def test_rules_over_a_lake(lake_path: Path) -> None:
    """Counts and shares are those of the search that the alert carries."""
    sources = Sources.open(lake_path, "")
    (hung,) = measure(rule(), sources, NOW_MS)
    assert (hung.value, hung.why) == (1.0, "")
    assert hung.query.startswith("verdict:HUNG from:")
    (share,) = measure(rule(measure=Measure.SHARE), sources, NOW_MS)
    assert share.value == 1 / len(NAMES)
    (age,) = measure(rule(measure=Measure.FRESHNESS, search=""), sources, NOW_MS)
    assert age.value is not None
    assert age.value > 0
    slow = measure(rule(measure=Measure.P99, search=""), sources, NOW_MS)
    assert slow
    assert all(one.query.startswith("topic:") for one in slow)


def test_a_source_that_fails_cannot_tell(lake_path: Path, tmp_path: Path) -> None:
    """Neither an old lake, nor one that is gone, nor a cluster that is down is good."""
    sources = Sources.open(lake_path, "")
    old = rule(search="verdict:TX_PENDING topic:none", max_age="1s")
    assert measure(old, sources, NOW_MS)[0].value is None
    assert "sampled last" in measure(old, sources, NOW_MS)[0].why
    assert measure(rule(max_age="1s"), sources, NOW_MS)[0].value == 1.0  # what was found is there
    gone = Sources.open(tmp_path / "none", "127.0.0.1:1")
    for kind in Measure:
        search = "verdict:HUNG" if kind in (Measure.COUNT, Measure.SHARE) else ""
        (one,) = measure(rule(measure=kind, search=search), gone, NOW_MS)
        assert one.value is None, kind
        assert one.why, kind
    gone.close()


def test_the_lag_of_groups(shop: Shop) -> None:
    """Each group is a subject, with the search for what waits."""
    sources = Sources.open(None, shop.namesrv)
    found = {one.subject: one for one in measure(rule(measure=Measure.LAG, search="", above=-1), sources, NOW_MS)}
    assert found["billing"].query == "group:billing verdict:WAITING"
    assert found["billing"].value is not None
    sources.close()


@pytest.fixture
def history(tmp_path: Path) -> Iterator[AlertHistory]:
    one = AlertHistory(tmp_path / "alerts.sqlite")
    yield one
    one.close()


@pytest.mark.slow
def test_an_alert_is_sent_once_and_again_if_it_was_not_taken(lake_path: Path, tmp_path: Path) -> None:
    """Also over a restart; each channel gets one notification per check."""
    channels = [Channel(name=name, format=ChannelFormat.WEBHOOK, url="http://x") for name in ("ops", "dev")]
    both = ("ops", "dev")
    rules = Rules(rules=(rule(channels=both), rule(name="dead", channels=both)), channels=tuple(channels))
    sources, sent = Sources.open(lake_path, ""), []

    def look(*broken: str) -> tuple[list[tuple[str, str]], list[Alert]]:
        def deliver(channel: Channel, alerts: Sequence[Alert], console: str, until_ms: int) -> None:
            if channel.name in broken:
                raise OSError("refused")
            sent.append((channel.name, [one.rule for one in alerts]))

        history = AlertHistory(tmp_path / "alerts.sqlite")
        failed = watch(rules, sources, history, NOW_MS, deliver)
        alerts = history.latest(9)
        history.close()
        return failed, alerts

    for _ in range(2):
        failed, alerts = look("dev")
        assert failed == [("dev", "OSError: refused")]
        assert [(one.unsent, one.failure) for one in alerts] == [(("dev",), "OSError: refused")] * 2
    failed, alerts = look()
    assert failed == []
    assert [(one.unsent, one.failure) for one in alerts] == [((), "")] * 2
    look()
    assert sent == [("ops", ["stuck", "dead"]), ("dev", ["stuck", "dead"])]


def test_a_channel_that_is_away_keeps_no_other_waiting(history: AlertHistory) -> None:
    """However much waits for it, also under a name that no channel has any more; the last error of each is kept."""
    channels = tuple(Channel(name=name, format=ChannelFormat.WEBHOOK, url="http://x") for name in ("away", "ops"))
    history.keep("old", {}, [alert(unsent=("gone",))] * 600 + [alert(unsent=("away",))] * 600, NOW_MS)
    history.keep("stuck", {}, [alert(unsent=("away", "ops"))], NOW_MS)
    sent: list[int] = []

    def deliver(channel: Channel, alerts: Sequence[Alert], console: str, until_ms: int) -> None:
        if channel.name == "away":
            raise OSError("refused")
        sent.append(len(alerts))

    assert watch(Rules(rules=(), channels=channels), Sources.open(None, ""), history, NOW_MS, deliver) == [
        ("away", "OSError: refused")
    ]
    assert sent == [1]
    assert [(one.unsent, one.failure) for one in history.latest(1)] == [(("away",), "OSError: refused")]


def test_a_mail_that_some_took_is_not_sent_again(history: AlertHistory) -> None:
    """Those who took it would get it at each look; who refused it is said."""
    channel = Channel(name="ops", format=ChannelFormat.WEBHOOK, url="http://x")
    rules = Rules(rules=(), channels=(channel,))
    history.keep("stuck", {}, [alert()], NOW_MS)

    def deliver(channel: Channel, alerts: Sequence[Alert], console: str, until_ms: int) -> None:
        raise PartlyAccepted("1 of 2")

    sources = Sources.open(None, "")
    assert watch(rules, sources, history, NOW_MS, deliver) == [("ops", "PartlyAccepted: 1 of 2")]
    assert [(one.unsent, one.failure) for one in history.latest(1)] == [((), "PartlyAccepted: 1 of 2")]
    assert watch(rules, sources, history, NOW_MS, deliver) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1/services/SECRET x", "http://127.0.0.1:SECRET/"])
def test_an_address_is_in_no_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a secret, and errors are kept and shown."""
    monkeypatch.setenv("HOOK", url)
    channel = Channel(name="ops", format=ChannelFormat.SLACK, url="env:HOOK")
    with pytest.raises(NotAccepted, match="found an address") as caught:
        send(channel, [alert()], "", 0)
    assert "SECRET" not in str(caught.value)


def test_history_is_kept_for_90_days(history: AlertHistory) -> None:
    """Open alerts are those whose subject is still not good."""
    history.keep("stuck", {"billing": SubjectPhase(BAD, BAD, 0)}, [alert(at_ms=NOW_MS - KEPT_MS)], NOW_MS)
    history.keep("dead", {}, [alert(rule="dead"), alert(GOOD, rule="dead")], NOW_MS)
    assert [one.rule for one in history.open()] == ["stuck"]
    assert len(history.latest(10)) == 3
    history.keep("dead", {}, [], NOW_MS + 1)
    assert [one.rule for one in history.latest(10)] == ["dead", "dead"]
    history.forget(["dead"])
    assert history.phases("stuck") == {}
    assert history.path.stat().st_mode & 0o777 == 0o600


def test_no_alert_is_not_all_well_where_nobody_looks(tmp_path: Path, lake_path: Path) -> None:
    """Without a look, or with an old one, the answer has an omission."""
    path = tmp_path / "alerts.sqlite"
    assert "ever" in read_alerts(path, 9, NOW_MS).scope.omissions[0]
    assert not path.exists()
    history = AlertHistory(path)
    assert "never" in read_alerts(path, 9, NOW_MS).scope.omissions[0]
    channel = Channel(name="ops", format=ChannelFormat.WEBHOOK, url="http://x")
    rules = Rules(rules=(rule(),), channels=(channel,))
    watch(rules, Sources.open(lake_path, ""), history, NOW_MS, lambda *_: None)
    history.close()
    found = read_alerts(path, 9, NOW_MS + 1)
    assert (found.scope.as_of_ms, found.scope.omissions) == (NOW_MS, ())
    assert [one.rule for one in found.open] == ["stuck"]
    assert "last checked" in read_alerts(path, 9, NOW_MS + 600_000).scope.omissions[0]


def test_damage_of_the_history_is_said(tmp_path: Path) -> None:
    (tmp_path / "alerts.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(Exception, match="alerts"):
        AlertHistory(tmp_path / "alerts.sqlite")


def test_the_formats_of_channels() -> None:
    """Each has the query and a link; names from messages are text."""
    ones = [alert(subject=EVIL), alert(CANNOT_TELL, value=None, why="the lake is old")]
    console, link = "https://console.example/", "https://console.example/search?q=verdict%3AHUNG"
    text = text_of(ones, console)
    assert "verdict:HUNG" in text
    assert link in text
    assert "CANNOT TELL stuck billing: the lake is old" in text
    assert "\u202e" not in text
    slack = payload(ChannelFormat.SLACK, ones, console, 0)["text"]
    assert "&lt;b&gt;" in slack
    for kind in (ChannelFormat.DINGTALK, ChannelFormat.WECOM):
        assert payload(kind, ones, console, 0) == {"msgtype": "text", "text": {"content": text}}
    hook = payload(ChannelFormat.WEBHOOK, ones, console, 0)["alerts"]
    assert (hook[0]["phase"], hook[0]["link"], hook[1]["value"]) == ("bad", link, None)
    fired, ended = payload(ChannelFormat.ALERTMANAGER, [alert(), alert(GOOD, before=BAD)], console, NOW_MS + 1)
    assert fired["labels"] == ended["labels"]
    assert fired["endsAt"] > fired["startsAt"] == ended["endsAt"]
    many = text_of([alert(subject="组" * 90)] * 500, console)
    assert len(many.encode()) < 4_096
    assert "more" in many.splitlines()[-1]


def test_the_signature_of_dingtalk() -> None:
    """HMAC-SHA256 of time, line break and secret."""
    asked = parse_qs(urlsplit(signed("https://x/robot/send?access_token=t", "SEC", 5)).query)
    expected = base64.b64encode(hmac.new(b"SEC", b"5\nSEC", hashlib.sha256).digest()).decode()
    assert (asked["timestamp"], asked["sign"]) == (["5"], [expected])


@dataclass
class Hook:
    """A server of a channel. answer: what it says to everything."""

    answer: bytes = b'{"errcode": 0}'
    status: int = 200
    url: str = ""
    got: list[tuple[str, Any]] = field(default_factory=list)


@contextmanager
def hooked() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            hook.got.append((self.path, json.loads(body)))
            self.send_response(hook.status)
            if hook.status != 200:
                self.send_header("location", f"{hook.url}/elsewhere")
            self.end_headers()
            self.wfile.write(hook.answer)

        def do_GET(self) -> None:
            hook.got.append((self.path, None))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/hook"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield hook
        server.shutdown()
        thread.join()


def test_what_a_server_gets_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """WeCom and DingTalk answer 200 to what they refuse: that is a failure. A secret comes from the environment."""
    with hooked() as hook:
        monkeypatch.setenv("HOOK", hook.url)
        send(Channel(name="ops", format=ChannelFormat.ALERTMANAGER, url="env:HOOK"), [alert()], "", NOW_MS)
        assert hook.got[0][0] == "/hook/api/v2/alerts"
        wecom = Channel(name="ops", format=ChannelFormat.WECOM, url=hook.url)
        send(wecom, [alert()], "", 0)
        hook.answer = b'{"errcode": 93000, "errmsg": "invalid webhook url"}'
        with pytest.raises(NotAccepted, match="93000"):
            send(wecom, [alert()], "", 0)
    with pytest.raises(OSError, match="refused"):
        send(wecom, [alert()], "", 0)


def test_a_redirect_is_no_answer() -> None:
    """It would lead to a request without the alert, to any address that the server names."""
    with hooked() as hook:
        hook.status = 302
        with pytest.raises(OSError, match="302"):
            send(Channel(name="ops", format=ChannelFormat.WEBHOOK, url=hook.url), [alert()], "", 0)
        assert [path for path, _ in hook.got] == ["/hook"]


@contextmanager
def dripping(head: bytes, drip: bytes) -> Iterator[int]:
    """A server that answers a connection with a head, then with a few bytes now and then, without end."""
    is_over = threading.Event()

    def serve(listening: socket.socket) -> None:
        with listening.accept()[0] as peer, suppress(OSError):
            peer.sendall(head)
            while not is_over.wait(0.01):
                peer.sendall(drip)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            is_over.set()
            thread.join()


@pytest.mark.parametrize(
    ("scheme", "head", "drip"),
    [
        ("http", b"HTTP/1.1 200 OK\r\n", b"a"),
        ("http", b"HTTP/1.1 200 OK\r\n\r\n", b"a"),
        ("http", b"", b"H"),
        ("https", b"\x16\x03\x03\x40\x00", b"\x02"),
    ],
)
def test_a_server_that_drips_holds_nobody(
    monkeypatch: pytest.MonkeyPatch, scheme: str, head: bytes, drip: bytes
) -> None:
    """A socket's time-out begins anew with each byte; the deadline does not, also in a TLS handshake."""
    monkeypatch.setattr(notify, "SEND_S", 0.3)
    with dripping(head, drip) as port:
        channel = Channel(name="ops", format=ChannelFormat.WEBHOOK, url=f"{scheme}://127.0.0.1:{port}")
        with pytest.raises(TimeoutError, match="no whole answer within 0"):
            send(channel, [alert()], "", 0)


def test_a_mail_server_that_drips_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greeting may have any number of lines."""
    monkeypatch.setattr(notify, "SEND_S", 0.3)
    with dripping(b"", b"220-hello\r\n") as port:
        fields: dict[str, Any] = {"name": "ops", "format": ChannelFormat.MAIL, "host": "127.0.0.1", "port": port}
        with pytest.raises(TimeoutError, match="no whole answer within 0"):
            send(Channel(**fields, sender="a@x", to=("b@x",), tls="none"), [alert()], "", 0)


def test_a_channel_that_is_away_takes_no_place_of_others(history: AlertHistory) -> None:
    """However many alerts wait for it."""
    waiting = [alert(unsent=("dead",), why=str(number)) for number in range(1_001)]
    history.keep("stuck", {}, [*waiting, alert(unsent=("ops", "dead"), why="new")], NOW_MS)
    assert [one.why for one in history.unsent("ops")] == ["new"]
    assert len(history.unsent("dead")) == 1_000


class Mailbox:
    """Accepts mail for every address but nobody@x."""

    def __init__(self) -> None:
        self.got: list[EmailMessage] = []

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Take or refuse an address."""
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
        return "250 OK"


async def test_mail_by_starttls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real SMTP server with a certificate and a password; an address that it refuses is a failure."""
    authority, mailbox = trustme.CA(), Mailbox()
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(own)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    monkeypatch.setattr(ssl, "create_default_context", lambda cafile: trusting)
    monkeypatch.setenv("MAIL", "s3cret")

    def check(server: SMTP, session: Session, envelope: Envelope, mechanism: str, found: LoginPassword) -> AuthResult:
        return AuthResult(success=(found.login, found.password) == (b"ann", b"s3cret"), handled=False)

    def made() -> SMTP:
        return SMTP(mailbox, tls_context=own, require_starttls=True, authenticator=check, auth_required=True)

    async with await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0) as server:
        fields: dict[str, Any] = {"name": "ops", "format": ChannelFormat.MAIL, "host": "localhost"}
        fields |= {"port": server.sockets[0].getsockname()[1], "user": "ann", "password": "env:MAIL"}

        async def mail(one: Alert, *to: str) -> None:
            channel = Channel(**fields, sender="mqtrail@x", to=to)
            await asyncio.to_thread(send, channel, [one], "https://console.example", 0)

        await mail(alert(subject="订单\r\nBcc: evil@x"), "ops@x", "dev@x")
        with pytest.raises(NotAccepted, match="1 of 2"):
            await mail(alert(), "ops@x", "nobody@x")
        monkeypatch.setenv("MAIL", "wrong")
        with pytest.raises(smtplib.SMTPAuthenticationError):
            await mail(alert(), "ops@x")
    got = mailbox.got[0]
    assert (got["subject"], got["to"], got["bcc"]) == ("mqtrail: 1 BAD (stuck)", "ops@x, dev@x", None)
    assert "订单\\x0d\\nBcc: evil@x" in got.get_content()
    assert "https://console.example/search?q=verdict%3AHUNG" in got.get_content()


def test_wrong_rules(tmp_path: Path) -> None:
    """Found, expected: before anything is watched."""
    channel = '[[channels]]\nname = "ops"\nformat = "slack"\nurl = "http://x"\n'
    head = '[[rules]]\nname = "a"\nabove = 1\nchannels = ["ops"]\n'
    path = tmp_path / "alerts.toml"
    path.write_text(head + 'measure = "count"\nsearch = "verdict:HUNG"\nfor = "5m"\n' + channel)
    assert read_rules(path).rules[0].hold_ms == 300_000
    for wrong in (
        "",
        "x",
        head + 'measure = "count"\n' + channel,
        head + 'measure = "lag"\nsearch = "a"\n' + channel,
        head + 'measure = "count"\nsearch = "verdict:NONE"\n' + channel,
        head + 'measure = "count"\nsearch = "from:2h"\n' + channel,
        head + 'measure = "lag"\nbelow = 2\n' + channel,
        head + 'measure = "lag"\nfor = "soon"\n' + channel,
        head + 'measure = "lag"\nfour = "5m"\n' + channel,
        head + 'measure = "lag"\n' + channel.replace("ops", "dev"),
        head + 'measure = "lag"\n' + channel.replace('url = "http://x"', ""),
        head + 'measure = "lag"\n' + head + 'measure = "lag"\n' + channel,
        head + 'measure = "lag"\n' + channel.replace("slack", "mail"),
        'interval = "10ms"\n' + head + 'measure = "lag"\n' + channel,
    ):
        path.write_text(wrong)
        with pytest.raises(InvalidRules):
            read_rules(path)
    with pytest.raises(InvalidRules):
        secret_of("env:NONE", {})
    (tmp_path / "secret").write_text("s3\n")
    assert [secret_of(f"file:{tmp_path}/secret"), secret_of("http://x")] == ["s3", "http://x"]
