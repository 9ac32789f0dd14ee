"""Failed messages of pmq mode: where they are, and what sends them again."""

from __future__ import annotations

from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer
from mqtrail.wire import dlq_topic

from ..frame import link, section, tag
from .messages import columns_of
from .view import Cell, PmqView

COUNT: Final = 200  # messages of a page


async def failures(view: PmqView, group: str, of: str, topic: str) -> None:
    """Draw where failed messages are. group, topic: with the messages there. of: the topic that they came from."""
    with view.frame(view.say("failures"), "failures_text"):
        who = view.part()
        part = view.part()
        view.command("failure", "list")
        held = topic or (dlq_topic(group) if group else "")
        letters = tag("div")
    await ui.context.client.connected()
    await view.who(who)
    found = await view.load(part, operating.failures, partial(_failures, view, group))
    if found is None or held not in [row["topic"] for row in found.rows("failures")]:
        return
    with letters, section(f"{view.say('messages')}: {held}"):
        kept = view.part()
        view.command("message", "list", held)
    draw = partial(_letters, view, group, of)
    await view.load(kept, lambda door: operating.messages(door, held, count=COUNT), draw)


def _failures(view: PmqView, group: str, answer: DoorAnswer) -> None:
    def held(row: DoorAnswer) -> object:
        asked = {"group": row["group"], "of": row["of"], "topic": row["topic"]}
        return partial(link, row["topic"], "/pmq/failures", **asked)

    columns: dict[str, Cell] = {
        "group": view.link_to("group", "/pmq/group"),
        "from_topic": lambda row: row["of"] or view.say("all"),
        "held_in": held,
        "message_count": view.number("messages"),
    }
    rows = [row for row in answer.rows("failures") if group in ("", row["group"])]
    view.rows(rows, columns, view.say("failures"), "no_failures")


def _letters(view: PmqView, group: str, of: str, answer: DoorAnswer) -> None:
    """Draw messages with boxes to choose some; the form leads to the plan."""
    rows = answer.rows("messages")
    if not rows:
        tag("p", view.say("no_failures"))
        return
    if not view.can_change:
        view.rows(rows, columns_of(view), view.say("messages"))
        return
    with tag("form", action="/pmq/change", method="get", **{"aria-label": view.say("resend-messages")}):
        for name, value in (("action", "resend-messages"), ("group", group), ("of", of)):
            tag("input", type="hidden", name=name, value=value)
        with tag("div", classes="tools"):
            view.mark("to_topic", "to_all_groups")
            tag("button", view.say("resend_chosen"), type="submit")
            asked = {"action": "resend-messages", "group": group, "of": of}
            link(view.say("resend_all"), "/pmq/change", "button", **asked)

        def choose(row: DoorAnswer) -> object:
            label = f"{view.say('send_again')}: {row['id']}"
            return partial(tag, "input", type="checkbox", name="id", value=row["id"], **{"aria-label": label})

        view.rows(rows, {"send_again": choose, **columns_of(view)}, view.say("messages"))
