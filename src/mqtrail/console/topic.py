"""One topic: its configuration on each broker, and what changes it."""

from __future__ import annotations

from functools import partial

from nicegui import ui

from mqtrail.answers import TopicsAnswer
from mqtrail.wire import Perm

from .frame import Desk, PagePart, PageReader, bounds, frame, lacks_cluster, link, section, table, tag


async def topic(desk: Desk, reader: PageReader, name: str) -> None:
    """Draw one topic. Its form leads to the plan of the change."""
    with frame(reader, f"{reader.say('topic')} {name}"):
        if lacks_cluster(desk, reader):
            return
        with tag("div", classes="tools"):
            link(reader.say("search"), "/search", "button", q=f'topic:"{name}"')
        part = PagePart(desk, reader)
        if desk.can_administer:
            with section(reader.say("set-topic")):
                topic_form(reader, name)
            with section(reader.say("delete-topic")):
                link(f"{reader.say('delete-topic')} …", "/change", "button", action="delete-topic", topic=name)
    await ui.context.client.connected()
    await part.show(desk.sources.of_cluster().topics, partial(_draw, reader, name))


def _draw(reader: PageReader, name: str, answer: TopicsAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    found = [at for one in answer.topics if one.name == name for at in one.brokers]
    if not found:
        tag("p", reader.say("not_found"))
        return
    with table([reader.say(one) for one in ("broker", "queues", "permission")], reader.say("topic")) as add:
        for at in found:
            queues = reader.say("queue_counts", read=at.read_queue_count, write=at.write_queue_count)
            add([at.broker_name, queues, permission(reader, at.perm)])


def permission(reader: PageReader, perm: int) -> str:
    """Return a permission in words."""
    known = [reader.say(name) for bit, name in ((Perm.READ, "read"), (Perm.WRITE, "write")) if perm & bit]
    return " + ".join(known) or reader.say("neither")


def topic_form(reader: PageReader, name: str = "") -> None:
    """Draw a form that leads to the plan: create a topic, or change one."""
    with tag("form", classes="tools", action="/change", method="get"):
        tag("input", type="hidden", name="action", value="set-topic")
        words = reader.say("topic")
        tag("input", name="topic", value=name, maxlength="127", required="", placeholder=words, **{"aria-label": words})
        for field in ("read_queues", "write_queues"):
            with tag("label"):
                tag("span", f"{reader.say(field)} ")
                tag("input", type="number", name=field, value="8", min="1", max="16384", required="")
        with tag("label"):
            tag("span", f"{reader.say('permission')} ")
            with tag("select", name="permission"):
                for value in ("rw", "r", "w"):
                    tag("option", value, value=value)
        words = reader.say("on_broker")
        tag("input", name="broker", maxlength="255", placeholder=words, **{"aria-label": words})
        tag("button", reader.say("plan_it"), type="submit")
