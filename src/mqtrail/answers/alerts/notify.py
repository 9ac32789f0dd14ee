"""Alerts in the formats of their channels, and sending them. Values of messages are text: no markup, no links."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from http.client import InvalidURL
from typing import Any, Final
from urllib.parse import quote, quote_plus, urlencode

from mqtrail.gateway import Deadline, MailServer, send_mail
from mqtrail.wire import visible

from .connections import NotAccepted, opener
from .history import Alert
from .measure import AlertPhase
from .rules import Channel, ChannelFormat, secret_of

TIMEOUT_S: Final = 10.0  # without a byte of the server
SEND_S: Final = 30.0  # for a notification
ANSWER_SIZE_MAX: Final = 65_536
LINES_MAX: Final = 20  # alerts of one notification that are written out
TEXT_SIZE_MAX: Final = 3_800  # bytes; WeCom takes 4096
MARKS: Final = {AlertPhase.BAD: "BAD", AlertPhase.GOOD: "resolved", AlertPhase.CANNOT_TELL: "CANNOT TELL"}


class PartlyAccepted(NotAccepted):
    """Some of those behind a channel took an alert: to send it again would repeat it for them."""


def send(channel: Channel, alerts: Sequence[Alert], console: str, until_ms: int) -> None:
    """Send alerts as one notification. until_ms: how long Alertmanager holds them. Any error: not accepted."""
    if channel.format is ChannelFormat.MAIL:
        _mail(channel, alerts, console)
        return
    body = payload(channel.format, alerts, console, until_ms)
    answer = _post(_url(channel), body)
    if channel.format in (ChannelFormat.DINGTALK, ChannelFormat.WECOM):  # they answer 200 to what they refuse
        found = json.loads(answer)
        if not isinstance(found, dict) or found.get("errcode") != 0:
            raise NotAccepted(f"found {visible(answer.decode('utf-8', 'replace'))[:200]}, expected errcode 0")


def payload(kind: ChannelFormat, alerts: Sequence[Alert], console: str, until_ms: int) -> Any:
    """Return the JSON value that a channel takes."""
    match kind:
        case ChannelFormat.SLACK:
            escaped = text_of(alerts, console).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            return {"text": escaped, "mrkdwn": False}
        case ChannelFormat.DINGTALK:
            return {"msgtype": "text", "text": {"content": text_of(alerts, console)}}
        case ChannelFormat.WECOM:
            return {"msgtype": "text", "text": {"content": text_of(alerts, console)}}
        case ChannelFormat.ALERTMANAGER:
            return [_labelled(one, console, until_ms) for one in alerts]
    return {"version": 1, "alerts": [_object(one, console) for one in alerts]}


def title_of(alerts: Sequence[Alert]) -> str:
    """Return one line about all alerts."""
    counts = [(sum(one.phase is phase for one in alerts), mark) for phase, mark in MARKS.items()]
    rules = ", ".join(dict.fromkeys(one.rule for one in alerts))
    return visible(f"mqtrail: {', '.join(f'{count} {mark}' for count, mark in counts if count)} ({rules})")[:200]


def text_of(alerts: Sequence[Alert], console: str) -> str:
    """Return alerts as lines, each with the query that shows its messages; what does not fit is counted."""
    lines = [title_of(alerts)]
    for number, one in enumerate(alerts):
        value = "" if one.value is None else f" {one.value:g}"
        about = f"{MARKS[one.phase]} {one.rule} {one.subject}".strip()
        line = visible(f"{about}:{value} {one.why}".rstrip(": "))
        shown = [line, *([f"  {visible(one.query)}", f"  {link_of(one, console)}"] if one.query else [])]
        text = "\n".join(part for part in shown if part.strip())
        if number >= LINES_MAX or len("\n".join([*lines, text]).encode()) > TEXT_SIZE_MAX:
            lines.append(f"and {len(alerts) - number} more")
            break
        lines.append(text)
    return "\n".join(lines)


def link_of(one: Alert, console: str) -> str:
    """Return the address of the console's search; '' without a console."""
    return (
        f"{console.rstrip('/')}/search?{urlencode({'q': one.query}, quote_via=quote)}" if console and one.query else ""
    )


def _object(one: Alert, console: str) -> dict[str, Any]:
    words = {"rule": one.rule, "subject": one.subject, "severity": one.severity, "why": one.why, "query": one.query}
    return {
        "at": _time(one.at_ms),
        "before": one.before,
        "phase": one.phase,
        "value": one.value,
        "link": link_of(one, console),
        **{name: visible(word) for name, word in words.items()},
    }


def _labelled(one: Alert, console: str, until_ms: int) -> dict[str, Any]:
    """Return an alert as Alertmanager's API v2 takes it: over if it ends in the past."""
    labels = {"alertname": one.rule, "severity": one.severity, "subject": one.subject, "source": "mqtrail"}
    bad = one.before if one.phase is AlertPhase.GOOD else one.phase
    value = "unknown" if one.value is None else f"{one.value:g}"
    return {
        "labels": {**{name: visible(word) for name, word in labels.items() if word}, "phase": bad.value},
        "annotations": {"summary": visible(f"{value} {one.why}".strip()), "query": visible(one.query)},
        "startsAt": _time(one.at_ms),
        "endsAt": _time(one.at_ms if one.phase is AlertPhase.GOOD else until_ms),
        "generatorURL": link_of(one, console),
    }


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")


def _url(channel: Channel) -> str:
    url = secret_of(channel.url)
    if not url.startswith(("http://", "https://")):
        raise NotAccepted("found another url, expected http:// or https://")
    if channel.format is ChannelFormat.ALERTMANAGER and not url.endswith("/alerts"):
        url = f"{url.rstrip('/')}/api/v2/alerts"
    if channel.format is ChannelFormat.DINGTALK and channel.secret:
        url = signed(url, secret_of(channel.secret), round(time.time() * 1_000))
    return url


def signed(url: str, secret: str, now_ms: int) -> str:
    """Return DingTalk's address with the signature of its robots: HMAC-SHA256 of time and secret."""
    digest = hmac.new(secret.encode(), f"{now_ms}\n{secret}".encode(), hashlib.sha256).digest()
    return f"{url}&timestamp={now_ms}&sign={quote_plus(base64.b64encode(digest))}"


def _post(url: str, body: Any) -> bytes:
    headers = {"Content-Type": "application/json", "User-Agent": "mqtrail"}
    request = urllib.request.Request(url, json.dumps(body, ensure_ascii=False).encode(), headers)
    try:
        with Deadline(SEND_S) as deadline, opener(deadline).open(request, timeout=TIMEOUT_S) as answer:
            found: bytes = answer.read(ANSWER_SIZE_MAX)
            return found
    except (InvalidURL, UnicodeError):  # its text has the address, which is a secret
        raise NotAccepted("found an address with blanks or a wrong port, expected an URL: correct the url") from None


def _mail(channel: Channel, alerts: Sequence[Alert], console: str) -> None:
    message = EmailMessage()
    message["Subject"], message["From"] = title_of(alerts), channel.sender
    message["To"] = ", ".join(channel.to)
    message.set_content(text_of(alerts, console))
    password = secret_of(channel.password) if channel.user else ""
    server = MailServer(channel.host, channel.port, channel.tls, user=channel.user, password=password)
    if refused := send_mail(server, message, Deadline(SEND_S)):
        raise PartlyAccepted(f"the mail server refused {refused} of {len(channel.to)} addresses")
