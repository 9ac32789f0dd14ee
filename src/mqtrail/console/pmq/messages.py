"""Stored messages of pmq mode: lists, one message with its body, and the send tool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nicegui import ui
from starlette.datastructures import QueryParams

from mqtrail.clock import now_ms
from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer
from mqtrail.wire import number_of, parse_moment, visible_lines

from ..frame import link, section, tag
from ..message import lines
from .change import PlannedAtDoor, perform_button
from .view import Cell, PmqView

COUNT: Final = 100  # messages of a page
SHOWN_MAX: Final = 100_000  # characters of a body
TYPED_MAX: Final = 100_000  # characters of a body that is sent
VALUE: Final = "event => emit(event.target.value)"


@dataclass(frozen=True, slots=True)
class AskedMessages:
    """What the address of the page asks for. Texts as they came."""

    topic: str
    queue: str
    offset: str
    since: str
    key: str
    id: str

    @classmethod
    def of(cls, asked: QueryParams) -> AskedMessages:
        """Return it."""
        names = ("topic", "queue", "offset", "from", "key", "id")
        return cls(*(asked.get(name, "").strip()[:1_000] for name in names))

    def question(self) -> dict[str, Any]:
        """Return the parameters of the question. ValueError: a text is no number, or no time."""
        found: dict[str, Any] = {"key": self.key or None}
        for name, text in (("queue", self.queue), ("offset", self.offset)):
            number = number_of(text) if text else None
            if text and number is None:
                raise ValueError(f"{name}: found {text[:80]!r}, expected a number")
            found[name] = number
        found["from_ms"] = parse_moment(self.since, now_ms()) if self.since else None
        return found

    def words(self) -> list[str]:
        """Return the same as options of the command."""
        options = (("--queue", self.queue), ("--offset", self.offset), ("--from", self.since), ("--key", self.key))
        if self.id:
            return ["message", "show", self.topic, "--id", self.id]
        return ["message", "list", self.topic, *(word for name, text in options if text for word in (name, text))]


async def messages(view: PmqView, asked: AskedMessages) -> None:
    """Draw messages of a topic: the newest, those from an offset or time on, those with a key, or one by its id."""
    with view.frame(view.say("messages")):
        _form(view, asked)
        if not asked.topic:
            return
        part = view.part()
        view.command(*asked.words())
    await ui.context.client.connected()
    try:
        question = asked.question()
    except ValueError as error:
        part.fail(str(error))
        return
    if asked.id:
        await view.load(
            part, lambda door: operating.messages_with_id(door, asked.topic, asked.id), partial(_whole, view)
        )
    else:
        await view.load(
            part, lambda door: operating.messages(door, asked.topic, count=COUNT, **question), partial(_list, view)
        )


def _form(view: PmqView, asked: AskedMessages) -> None:
    with tag("form", classes="tools", action="/pmq/messages", method="get", role="search"):
        view.field("topic", "topic", value=asked.topic)
        view.field("queue", "queue", value=asked.queue, size=5, is_needed=False)
        view.field("offset", "from_offset", value=asked.offset, size=18, is_needed=False)
        view.field("from", "from_time", value=asked.since, size=64, is_needed=False)
        view.field("key", "key", value=asked.key, is_needed=False)
        view.field("id", "id", value=asked.id, is_needed=False)
        tag("button", view.say("find"), type="submit")


def _list(view: PmqView, answer: DoorAnswer) -> None:
    view.rows(answer.rows("messages"), columns_of(view), view.say("messages"), "nothing_here")


def columns_of(view: PmqView) -> dict[str, Cell]:
    """Return the columns of a list of messages."""

    def place(row: DoorAnswer) -> object:
        at = {"topic": row["topic"], "queue": str(row["queue"]), "offset": str(row["offset"])}
        return partial(link, f"{row['queue']}@{row['offset']}", "/pmq/message", **at)

    return {
        "where": place,
        "stored_at": view.moment("stored_ms"),
        "id": lambda row: row["id"],
        "key": lambda row: row.get("key", ""),
        "tag": lambda row: row.get("tag", ""),
        "attempt": view.number("attempt"),
        "size": view.number("size"),
    }


async def message(view: PmqView, topic: str, queue: str, offset: str) -> None:
    """Draw the message at an offset, with body and properties, if the reader may see them."""
    with view.frame(f"{view.say('message')} {topic} {queue}@{offset}"):
        part = view.part()
        view.command("message", "show", topic, "--queue", queue, "--offset", offset)
    await ui.context.client.connected()
    at = (number_of(queue), number_of(offset))
    if at[0] is None or at[1] is None:
        part.fail(f"queue, offset: found {queue[:80]!r} and {offset[:80]!r}, expected numbers")
        return
    number, place = at[0], at[1]
    await view.load(part, lambda door: operating.message(door, topic, number, place), partial(_whole, view))


def _whole(view: PmqView, answer: DoorAnswer) -> None:
    rows = answer.rows("messages")
    view.rows(rows, columns_of(view), view.say("messages"))
    for row in rows:
        with section(view.say("body" if "body" in row else "body_base64")):
            body = str(row.get("body", row.get("body_base64", "")))
            if len(body) > SHOWN_MAX:
                tag("p", view.say("body_cut", shown=f"{SHOWN_MAX:,}", size=f"{len(body):,}"))
            lines(visible_lines(body[:SHOWN_MAX]))
        with section(view.say("properties")):
            properties = row.part("properties") if "properties" in row else DoorAnswer()
            found = [DoorAnswer(name=name, value=value) for name, value in sorted(properties.items())]
            columns: dict[str, Cell] = {"property": lambda one: one["name"], "value": lambda one: one["value"]}
            view.rows(found, columns, view.say("properties"))


async def send(view: PmqView, topic: str) -> None:
    """Draw the form of a message; its body is sent by the page's connection, not in an address."""
    typed = {"topic": topic, "body": "", "key": "", "tag": ""}
    with view.frame(view.say("send-message")):
        who = view.part()
        with tag("div", classes="tools"):
            for name in ("topic", "key", "tag"):
                label = view.say(name)
                made = tag("input", value=typed[name], maxlength="255", placeholder=label, **{"aria-label": label})
                made.on("change", partial(_type, typed, name), js_handler=VALUE)
        label = view.say("body")
        area = tag("textarea", rows="8", maxlength=str(TYPED_MAX), **{"aria-label": label}).style("width: 100%")
        area.on("change", partial(_type, typed, "body"), js_handler=VALUE)
        button = tag("button", view.say("plan"), type="button")
        plan = view.part()
        outcome = tag("div", **{"aria-live": "polite"})
        plan.put(lambda: None)
    await ui.context.client.connected()
    await view.who(who)

    async def show() -> None:
        outcome.clear()
        change = {"action": "send-message", **typed}
        answer = await view.load(plan, lambda door: operating.planned(door, change), lambda _: None)
        if answer is not None:
            plan.put(lambda: perform_button(view, PlannedAtDoor(change, answer), outcome))

    button.on("click", show)


def _type(typed: dict[str, str], name: str, event: Any) -> None:
    typed[name] = str(event.args)[:TYPED_MAX]


async def count(view: PmqView, asked: QueryParams) -> None:
    """Draw how many messages of a topic were stored between two times."""
    topic = asked.get("topic", "")[:255]
    since, until = (asked.get(name, "").strip()[:64] for name in ("from", "to"))
    with view.frame(f"{view.say('count_between')}: {topic}"):
        part = view.part()
        view.command("topic", "count", topic, "--from", since, *(["--to", until] if until else []))
    await ui.context.client.connected()
    try:
        from_ms = parse_moment(since, now_ms())
        until_ms = parse_moment(until, now_ms()) if until else now_ms()
    except ValueError as error:
        part.fail(str(error))
        return
    await view.load(part, lambda door: operating.message_count(door, topic, from_ms, until_ms), partial(_counted, view))


def _counted(view: PmqView, answer: DoorAnswer) -> None:
    first, end = (view.reader.moment(answer[name]) for name in ("from_ms", "until_ms"))
    tag("p", view.say("counted", count=f"{answer['messages']:,}", first=first, end=end), role="status")
