"""The first page of pmq mode: what each group has consumed of each topic, and what is pending."""

from __future__ import annotations

from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer

from ..frame import keep_live, link, tag
from ..looks import count
from .view import PmqView

SHOWN: Final = {"": "show_all", "online": "show_online", "offline": "show_offline"}


async def backlog(view: PmqView, show: str) -> None:
    """Draw a row for each group and topic. show: only groups with members online, or those without."""
    show = show if show in SHOWN else ""
    with view.frame(view.say("backlog"), "backlog_text"):
        who = view.part()
        with tag("div", classes="tools"):
            for one, name in SHOWN.items():
                asked = {"show": one} if one else {}
                here = {"aria-current": "true"} if one == show else {}
                link(view.say(name), "/pmq", "button", **asked).props.update(here)
            live = ui.switch(view.say("live"), value=True)
        part = view.part()
        view.command("backlog")

    async def load() -> None:
        await view.load(part, operating.backlog, partial(_draw, view, show))

    await ui.context.client.connected()
    await view.who(who)
    await keep_live(live, load)


def _draw(view: PmqView, show: str, answer: DoorAnswer) -> None:
    every = answer.rows("backlog")
    online = {row["group"] for row in every if row["online"]}
    groups = {row["group"] for row in every}
    known = [row["pending"] for row in every if row["pending"] is not None]
    pending = count(sum(known), is_lower_bound=len(known) < len(every))
    tag(
        "p",
        view.say("totals", groups=len(groups), online=len(online), offline=len(groups - online), pending=pending),
        role="status",
    )
    rows = [row for row in every if not show or (row["group"] in online) == (show == "online")]
    columns = {
        "group": view.link_to("group", "/pmq/group"),
        "topic": view.link_to("topic", "/pmq/topic"),
        "stored_count": view.number("stored"),
        "consumed_count": view.number("consumed"),
        "pending": view.number("pending"),
        "online": view.number("online"),
        "state": view.state,
    }
    view.rows(rows, columns, view.say("backlog"))
