"""Dead letters: why each failed, those that failed alike, and how to send them again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.answers import DeadLetter, DeadLetterConditions, DeadLetterError, DeadLettersAnswer
from mqtrail.answers.changes import LETTERS_MAX
from mqtrail.clock import now_ms

from .frame import Desk, PagePart, PageReader, bounds, commands, frame, lacks_lake, link, section, table, tag
from .looks import UNKNOWN, count, duration

PATH: Final = "/dead-letters"
PAGE_SIZE: Final = 50
ERRORS_MAX: Final = 100
ATTEMPTS_MAX: Final = 20  # of a letter; its message page has all


async def dead_letters(desk: Desk, reader: PageReader, wanted: DeadLetterConditions) -> None:
    """Draw the dead letters that match."""
    can_resend = desk.changing is not None and desk.sources.live is not None
    view = _View(reader, replace(wanted, limit=PAGE_SIZE), can_resend)
    with frame(reader, reader.say("dead_letters")):
        if lacks_lake(desk, reader):
            return
        tag("p", reader.say("dead_letters_text"), "quiet")
        view.form()
        part = PagePart(desk, reader)
        view.commands(str(desk.sources.lake))
    lake = desk.sources.of_lake
    await ui.context.client.connected()
    await part.show(lambda: lake().dead_letters(view.wanted, now_ms()), view.draw)


@dataclass(frozen=True, slots=True)
class _View:
    """The page for one question."""

    reader: PageReader
    wanted: DeadLetterConditions
    can_resend: bool

    def form(self) -> None:
        """Draw fields for group and topic."""
        with tag("form", classes="tools", action=PATH, method="get"):
            for name, value in (("group", self.wanted.group_name), ("topic", self.wanted.topic)):
                words = self.reader.say(name)
                tag("input", name=name, value=value, maxlength="255", placeholder=words, **{"aria-label": words})
            tag("button", self.reader.say("find"), type="submit")

    def commands(self, lake: str) -> None:
        """Draw the same question as a command and as a request."""
        asked = self._parameters()
        options = [word for name, value in asked.items() for word in (f"--{name}", value)]
        commands(self.reader, ["mqtrail", "dead-letters", *options, "--lake", lake], PATH, **asked)

    def draw(self, answer: DeadLettersAnswer) -> None:
        """Draw an answer."""
        reader = self.reader
        bounds(reader, answer.scope)
        if not answer.errors:
            tag("p", reader.say("no_dead_letters"))
            return
        with section(reader.say("errors")):
            self._errors(answer)
        with section(reader.say("dead_letters")):
            self._letters(answer)

    def _errors(self, answer: DeadLettersAnswer) -> None:
        reader = self.reader
        names = ("error_text", "group", "topic", "message_count", "first_dead", "last_dead")
        with table([reader.say(name) for name in names], reader.say("errors")) as add:
            for one in answer.errors[:ERRORS_MAX]:
                topic = f"{one.cluster} / {one.topic}" if answer.scope.is_mixed else one.topic
                dates = (reader.at(one.first_dead_ms), reader.at(one.last_dead_ms))
                add([partial(self._choose, one), one.group_name, topic, count(one.message_count), *dates])
        if len(answer.errors) > ERRORS_MAX:
            tag("p", f"+ {len(answer.errors) - ERRORS_MAX}", "quiet")

    def _choose(self, one: DeadLetterError) -> None:
        """Draw an error that leads to its letters."""
        words = one.error or self.reader.say("unknown")
        link(words, PATH, group=one.group_name, topic=one.topic, error=one.error)

    def _letters(self, answer: DeadLettersAnswer) -> None:
        reader, skip = self.reader, self.wanted.skip
        last = skip + len(answer.letters)
        with tag("p", role="status"):
            tag("strong", reader.say("found_count", count=count(answer.matched_count)))
            if answer.letters:
                tag("span", f" · {reader.say('shown', first=count(skip + 1), last=count(last))}")
        names = ("since_dead", "id", "keys", "group", "cause", "attempts", "send_again")
        with tag("form", action="/change", method="get"):
            if self.can_resend and answer.letters:
                self._resend(answer.matched_count)
            with table([reader.say(name) for name in names], reader.say("dead_letters")) as add:
                for one in answer.letters:
                    self._row(one, add)
        with tag("nav", classes="tools", **{"aria-label": reader.say("older")}):
            asked = self._parameters()
            if skip:
                link(f"← {reader.say('newer')}", PATH, "button", **{**asked, "skip": str(max(0, skip - PAGE_SIZE))})
            if last < answer.matched_count:
                link(f"{reader.say('older')} →", PATH, "button", **{**asked, "skip": str(last)})

    def _resend(self, matched_count: int) -> None:
        """Draw what sends several letters of a group again: the chosen ones, or all that match."""
        reader = self.reader
        if not self.wanted.group_name:
            tag("p", reader.say("choose_group"), "quiet")
            return
        for name, value in (("action", "resend-dead-letters"), ("group", self.wanted.group_name)):
            tag("input", type="hidden", name=name, value=value)
        with tag("div", classes="tools"):
            with tag("label"):
                tag("input", type="checkbox", name="to_topic")
                tag("span", f" {reader.say('to_topic')}")
            tag("button", reader.say("send_chosen"), type="submit")
            if matched_count <= LETTERS_MAX:
                asked = {"action": "resend-dead-letters", **self._parameters()}
                link(reader.say("send_all", count=count(matched_count)), "/change", "button", **asked)

    def _row(self, one: DeadLetter, add: Callable[[Sequence[object]], None]) -> None:
        def msg_id() -> None:
            link(one.msg_id, "/message", id=one.msg_id)

        def command() -> None:
            if self.can_resend and self.wanted.group_name:
                label = f"{self.reader.say('send_again')}: {one.msg_id}"
                tag("input", type="checkbox", name="id", value=one.msg_id, **{"aria-label": label})
            if self.can_resend:
                asked = {"action": "resend-dead-letters", "group": one.group_name, "id": one.msg_id}
                link(f"{self.reader.say('send_again')} …", "/change", "act", **asked)
                tag("br")
                link(f"{self.reader.say('edit_letter')} …", "/edit", "act", group=one.group_name, id=one.msg_id)
            with tag("details"):
                tag("summary", self.reader.say("command"))
                tag("pre", shlex.join(one.resend_command), tabindex="0")
                tag("button", self.reader.say("copy"), type="button", **{"data-copy": "true"})

        cause = one.cause or UNKNOWN
        about = (" ".join(one.keys), one.group_name, cause)
        add([self.reader.at(one.dead_ms), msg_id, *about, partial(self._attempts, one), command])

    def _attempts(self, one: DeadLetter) -> None:
        """Draw the error text of each attempt."""
        if not one.attempts:
            tag("span", self.reader.say("no_attempts"))
            return
        with tag("ol"):
            for attempt in one.attempts[:ATTEMPTS_MAX]:
                with tag("li"):
                    self.reader.at(attempt.at_ms or None)()
                    took = UNKNOWN if attempt.duration_ms is None else duration(attempt.duration_ms)
                    tag("span", f" {attempt.outcome} · {took} · {attempt.detail or self.reader.say('no_error_text')}")
        if len(one.attempts) > ATTEMPTS_MAX:
            tag("p", f"+ {len(one.attempts) - ATTEMPTS_MAX}", "quiet")

    def _parameters(self) -> dict[str, str]:
        """Return the conditions as parameters of the address."""
        asked = {"group": self.wanted.group_name, "topic": self.wanted.topic}
        found = {name: value for name, value in asked.items() if value}
        return found if self.wanted.error is None else {**found, "error": self.wanted.error}
