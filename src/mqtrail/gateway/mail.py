"""Mails that pmq's clients ask for, to the addresses that the operator's rules name.

A client names a topic or a group, never an address. Mails wait in a bounded queue, and one task sends them:
a mail server that fails or hangs delays no client. Mails that are not sent are counted and reported. A mail that a
client repeats within REPEAT_S is not sent again, and an hour has at most MAILS_AN_HOUR: the mail that follows states
how many were left out.

Source: ToolController and EmailServiceImpl of pmq.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from mqtrail.wire import is_loopback, visible, visible_lines

from .config import Report
from .mail_server import Deadline, MailServer, send_mail
from .tasks import end_task

SEND_S: Final = 30.0  # for one mail, with its connection
WAITING_MAX: Final = 1_000
REPEAT_S: Final = 600.0
MAILS_AN_HOUR: Final = 100
HOUR_S: Final = 3_600.0
SUBJECT_LENGTH_MAX: Final = 200
TEXT_LENGTH_MAX: Final = 20_000
FOUND_LENGTH_MAX: Final = 300  # of what a mail server says
ADDRESSES_MAX: Final = 100

Address = Annotated[str, msgspec.Meta(pattern=r"^[!-;=?-~]+@[!-;=?-~]+$", max_length=254)]
Addresses = Annotated[tuple[Address, ...], msgspec.Meta(max_length=ADDRESSES_MAX)]


class MailRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The mail server. to: who gets each mail, besides the addresses of its topic or group.

    tls: starttls, tls from the start, or none. password_file: of the user; it is read for each mail. ca_file: whom to
    trust, if the server's certificate is not of a public authority.
    """

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    sender: Address
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 587
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password_file: str = ""
    ca_file: str = ""
    to: Addresses = ()

    def __post_init__(self) -> None:
        if self.user and self.tls == "none" and not (is_loopback(self.host) or self.host == "localhost"):
            raise ValueError(
                "mail: found a user with tls none, expected starttls or tls: the password would be readable"
            )


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail to send. key: mails with the same one are repetitions."""

    to: tuple[str, ...]
    subject: str
    text: str
    key: tuple[str, ...]


class Mailer:
    """`start`, any number of `take`, `stop`. rule: returns the mail server, as the rules name it now."""

    def __init__(
        self, rule: Callable[[], MailRule | None], report: Report, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rule = rule
        self._report = report
        self._clock = clock
        self._waiting: deque[Mail] = deque()
        self._arrived = asyncio.Event()
        self._taken_s: dict[tuple[str, ...], float] = {}  # of REPEAT_S, so at most MAILS_AN_HOUR
        self._sent_s: deque[float] = deque()
        self._left_out = 0
        self._sender: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter({"sent": 0, "failed": 0, "repeated": 0, "dropped": 0})
        """Outcomes since the start: sent, failed (the server did not take it), repeated, dropped (too many)."""

    def start(self) -> None:
        self._sender = asyncio.create_task(self._send_all())

    async def stop(self) -> None:
        """Send nothing more. Mails that still wait are reported."""
        await end_task(self._sender)
        if self._waiting:
            self.counts["dropped"] += len(self._waiting)
            self._report("mail.dropped", {"count": len(self._waiting), "found": "the door stops"})

    def take(self, mail: Mail) -> None:
        """Send a mail soon, unless it repeats one or there are too many."""
        now_s = self._clock()
        self._taken_s = {key: at_s for key, at_s in self._taken_s.items() if now_s - at_s < REPEAT_S}
        if mail.key in self._taken_s:
            self.counts["repeated"] += 1
            return
        while self._sent_s and now_s - self._sent_s[0] >= HOUR_S:
            self._sent_s.popleft()
        if len(self._sent_s) >= MAILS_AN_HOUR or len(self._waiting) >= WAITING_MAX:
            self.counts["dropped"] += 1
            self._left_out += 1
            self._report("mail.dropped", {"count": 1, "found": "too many mails", "subject": mail.subject})
            return
        self._taken_s[mail.key] = now_s
        self._sent_s.append(now_s)
        self._waiting.append(mail)
        self._arrived.set()

    async def _send_all(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                await self._send(self._waiting.popleft())

    async def _send(self, mail: Mail) -> None:
        rule = self._rule()
        if rule is None:  # the operator has removed it meanwhile
            self.counts["dropped"] += 1
            return
        left_out, self._left_out = self._left_out, 0
        further = f"\n\n{left_out} further mails were left out: there were too many." if left_out else ""
        try:
            refused = await deliver(rule, mail.to, mail.subject, mail.text + further)
        except Exception as error:  # whatever it is: this is the only task that sends, and the next mail may go
            self._left_out += left_out
            self.counts["failed"] += 1
            found = visible(str(error) or type(error).__name__)[:FOUND_LENGTH_MAX]
            self._report("mail.cannot_send", {"subject": mail.subject, "found": found, "server": rule.host})
            return
        self.counts["sent"] += 1
        if refused:
            self._report("mail.partly_sent", {"subject": mail.subject, "refused": refused, "server": rule.host})


async def deliver(rule: MailRule, to: Sequence[str], subject: str, text: str) -> int:
    """Send a mail; return how many addresses the server refused. OSError, ValueError: it was not sent."""
    message = EmailMessage(policy=SMTP.clone(cte_type="7bit"))
    message["Subject"], message["From"], message["To"] = subject, rule.sender, ", ".join(to)
    message.set_content(text.rstrip("\n") + "\n")
    deadline = Deadline(SEND_S)
    try:
        return await asyncio.to_thread(_send, rule, message, deadline)  # it reads files, and waits for the server
    except asyncio.CancelledError:
        deadline.end()  # the thread ends too
        raise


def _send(rule: MailRule, message: EmailMessage, deadline: Deadline) -> int:
    password = Path(rule.password_file).read_text("utf-8").strip() if rule.user and rule.password_file else ""
    server = MailServer(rule.host, rule.port, rule.tls, rule.ca_file, rule.user, password)
    return send_mail(server, message, deadline)


def mail_of(kind: int, names: Sequence[str], to: Sequence[str], subject: str, content: str, key: str) -> Mail:
    """Return the mail that a client asks for. kind: 1 a warning, 2 an error. names: of topic, group and client."""
    level = "ERROR" if kind == 2 else "WARN"
    line = visible(f"[{level}] {subject}")[:SUBJECT_LENGTH_MAX]
    about = visible(", ".join(filter(None, names)))
    text = visible_lines(content[:TEXT_LENGTH_MAX])
    return Mail(tuple(dict.fromkeys(to)), line, f"{about}\n\n{text}", (str(kind), *names[:2], key or subject))
