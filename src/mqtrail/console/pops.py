"""POP: messages that members hold without an acknowledgement, when they return, and how late brokers are with that."""

from __future__ import annotations

from functools import partial
from typing import Final

from mqtrail.answers import PoppedGroupRow, PoppedRow, PopsAnswer
from mqtrail.answers.access import SeenCluster
from mqtrail.answers.changes import SHARED_MAX

from .frame import (
    MARKS,
    Desk,
    PageReader,
    bounds,
    link,
    section,
    table,
    tag,
)
from .looks import UNKNOWN, count, duration
from .of_brokers import ask_brokers

LATE_MS: Final = 10_000  # a revive log that is behind by more is marked


async def pops(desk: Desk, reader: PageReader) -> None:
    """Draw what is handed out by all brokers, and load it again while the page is live."""

    def form() -> None:
        if desk.can_administer:
            with section(reader.say("set-consume-mode")):
                _form(reader)

    draw = partial(_draw, reader)
    await ask_brokers(desk, reader, "pops", "pops_text", ("group", "pops", "/pops"), SeenCluster.pops, draw, form)


def _form(reader: PageReader) -> None:
    """Draw a form that leads to the plan."""
    with tag("form", classes="tools", action="/change", method="get"):
        tag("input", type="hidden", name="action", value="set-consume-mode")
        for field, size in (("group", "120"), ("topic", "127")):
            words = reader.say(field)
            tag("input", name=field, maxlength=size, required="", placeholder=words, **{"aria-label": words})
        with tag("label"):
            tag("span", f"{reader.say('mode')} ")
            with tag("select", name="mode"):
                for value in ("POP", "PULL"):
                    tag("option", value, value=value)
        with tag("label"):
            tag("span", f"{reader.say('share_queues')} ")
            tag("input", type="number", name="share", value="0", min="0", max=str(SHARED_MAX), required="")
        words = reader.say("on_broker")
        tag("input", name="broker", maxlength="255", placeholder=words, **{"aria-label": words})
        tag("button", reader.say("plan_it"), type="submit")


def _draw(reader: PageReader, answer: PopsAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    with section(reader.say("brokers")):
        names = ("broker", "handed_out", "behind_records", "behind_time")
        with table([reader.say(name) for name in names], reader.say("brokers")) as add:
            for one in answer.brokers:
                late = duration(one.behind_ms)
                if one.behind_ms is not None and one.behind_ms > LATE_MS:
                    late = f"{MARKS['warning']} {late}"
                add([one.broker, count(one.handed_out_count), count(one.behind_count), late])
    if not answer.messages:
        is_unknown = any(one.handed_out_count is None for one in answer.brokers)
        tag("p", f"{reader.say('handed_out')}: {UNKNOWN}" if is_unknown else reader.say("nothing_popped"))
        return
    with section(reader.say("groups")):
        group_names = ("group", "topic", "handed_out", "first_popped", "next_visible")
        with table([reader.say(name) for name in group_names], reader.say("groups")) as add:
            for row in answer.groups:

                def name(row: PoppedGroupRow = row) -> None:
                    link(row.group, "/group", name=row.group)

                times = (reader.at(row.first_popped_ms), reader.at(row.next_visible_ms))
                add([name, row.topic, count(row.message_count), *times])
    with section(reader.say("handed_out")):
        names = ("next_visible", "group", "where", "first_popped")
        with table([reader.say(name) for name in names], reader.say("handed_out")) as add:
            for popped in answer.messages:

                def place(popped: PoppedRow = popped) -> None:
                    link(popped.place, "/stored", evidence=f"message:{popped.place}")

                add([reader.at(popped.visible_ms), popped.group, place, reader.at(popped.popped_ms)])
        total = sum(one.handed_out_count or 0 for one in answer.brokers)
        if total > len(answer.messages):
            tag("p", f"+ {count(total - len(answer.messages))}", "quiet")
