"""Topics and queues of pmq mode: what they keep, who owns them, and the forms that lead to their changes."""

from __future__ import annotations

from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer

from ..frame import link, section, tag
from .view import Cell, PmqView, owners_of

PERMISSIONS: Final = {"rw": "rw", "r": "r", "w": "w"}


async def topics(view: PmqView) -> None:
    """Draw the topics of applications."""
    with view.frame(view.say("topics")):
        who = view.part()
        part = view.part()
        if view.can_change:
            with section(view.say("create-topic")), view.form("create-topic"):
                view.field("topic", "topic", size=127)
                view.number_field("queues", "number_of_queues", "4")
        view.command("topic", "list")
    await ui.context.client.connected()
    rules = await view.who(who)
    await view.load(part, operating.topics, partial(_topics, view, rules))


def _topics(view: PmqView, rules: DoorAnswer | None, answer: DoorAnswer) -> None:
    owners = owners_of(rules, "topic")
    columns: dict[str, Cell] = {
        "topic": view.link_to("topic", "/pmq/topic"),
        "owners": lambda row: owners(row["topic"]),
        "queue_count": lambda row: view.say("queue_counts", read=row["read_queues"], write=row["write_queues"]),
        "permission": partial(_permission, view),
        "message_count": view.number("messages"),
        "last_stored": view.moment("last_stored_ms"),
        "groups_of": view.names("groups"),
    }
    view.rows(answer.rows("topics"), columns, view.say("topics"))


def _permission(view: PmqView, row: DoorAnswer) -> str:
    known = [view.say(words) for name, words in (("readable", "read"), ("writable", "write")) if row[name]]
    return " + ".join(known) or view.say("neither")


async def topic(view: PmqView, name: str) -> None:
    """Draw one topic with its queues, its groups and its rules."""
    with view.frame(f"{view.say('topic')} {name}"):
        who = view.part()
        with tag("div", classes="tools"):
            link(view.say("messages"), "/pmq/messages", "button", topic=name)
            if view.can_change:
                link(view.say("send-message"), "/pmq/send", "button", topic=name)
        part = view.part()
        limits = view.part()
        if view.can_change:
            _changes(view, name)
        _count(view, name)
        view.command("topic", "show", name)
    await ui.context.client.connected()
    rules = await view.who(who)
    await view.load(part, lambda door: operating.topic(door, name), partial(_topic, view))
    limits.put(partial(_limits, view, name, rules))


def _topic(view: PmqView, answer: DoorAnswer) -> None:
    tag("p", f"{view.say('permission')}: {_permission(view, answer)}")
    with section(view.say("queues")):
        draw_queues(view, answer.rows("queues"), leaves=("topic", "table", "size"))
    with section(view.say("groups_of")):
        columns = {
            "group": view.link_to("group", "/pmq/group"),
            "tag": lambda row: row["tag"] or "–",
            "online": view.number("online"),
            "pending": view.number("pending"),
            "state": view.state,
        }
        view.rows(answer.rows("subscriptions"), columns, view.say("groups_of"))


def _limits(view: PmqView, name: str, rules: DoorAnswer | None) -> None:
    if rules is None:  # the part above says why
        tag("p", view.say("unknown"))
        return
    rows = [row for row in rules.rows("topics") if row["topic"] == name]
    with section(view.say("limits")):
        view.rows(rows, topic_limits(view), view.say("limits"), "no_rules")


def topic_limits(view: PmqView) -> dict[str, Cell]:
    """Return the columns of the rules of topics."""
    return {
        "topic": lambda row: row["topic"],
        "owners": view.names("owners"),
        "token_count": view.number("tokens"),
        "allowed_groups": view.names("groups"),
        "rate_limit": lambda row: view.say("all") if row["messages_per_s"] is None else row["messages_per_s"],
    }


def _changes(view: PmqView, name: str) -> None:
    """Draw the forms of what can be changed of a topic."""
    with section(view.say("create-topic")), view.form("create-topic", topic=name):
        view.number_field("queues", "number_of_queues")
    with section(view.say("shrink-topic")), view.form("shrink-topic", topic=name):
        view.number_field("queues", "number_of_queues")
    with section(view.say("free-tables")), view.form("free-tables", topic=name):
        view.mark("drop", "drop")
    with section(view.say("move-queue")), view.form("move-queue", topic=name):
        view.number_field("queue", "queue")
        view.field("node", "to_node", is_needed=False)
        view.mark("drop", "drop")
    with section(view.say("set-topic-permission")), view.form("set-topic-permission", topic=name):
        view.choice("permission", "permission", PERMISSIONS)
    with section(view.say("delete-topic")), view.form("delete-topic", topic=name):
        view.mark("force", "force")


def _count(view: PmqView, name: str) -> None:
    """Draw the form that counts messages between two times."""
    with (
        section(view.say("count_between")),
        tag("form", classes="tools", action="/pmq/count", method="get", **{"aria-label": view.say("count_between")}),
    ):
        tag("input", type="hidden", name="topic", value=name)
        view.field("from", "from_time", size=64)
        view.field("to", "until_time", size=64, is_needed=False)
        tag("button", view.say("count_between"), type="submit")


async def queues(view: PmqView, topic: str) -> None:
    """Draw the queues of a topic, or all: table, node, offsets, whether they take messages."""
    with view.frame(view.say("queues")):
        with tag("form", classes="tools", action="/pmq/queues", method="get", role="search"):
            view.field("topic", "topic", value=topic, is_needed=False)
            tag("button", view.say("find"), type="submit")
        part = view.part()
        view.command("queue", "list", *(["--topic", topic] if topic else []), "--tables")
    await ui.context.client.connected()
    await view.load(
        part,
        lambda door: operating.queues(door, topic or None, tables=True),
        lambda answer: draw_queues(view, answer.rows("queues"), has_switch=view.can_change),
    )


def draw_queues(
    view: PmqView, rows: list[DoorAnswer], *, leaves: tuple[str, ...] = (), has_switch: bool = False
) -> None:
    """Draw queues. leaves: columns that are left out. has_switch: with what leads to a change of the permission."""
    columns: dict[str, Cell] = {
        "topic": view.link_to("topic", "/pmq/topic"),
        "queue": lambda row: row["queue"],
        "node": lambda row: row.get("node") or "–",
        "table": lambda row: row["table"] or "–",
        "size": view.number("size"),
        "first": view.number("first"),
        "next": view.number("next"),
        "message_count": view.number("messages"),
        "last_stored": view.moment("last_stored_ms"),
        "writable": view.yes("writable"),
        "readable": view.yes("readable"),
    }
    if not any("node" in row for row in rows):
        leaves += ("node",)
    if has_switch:
        columns["action"] = partial(_switch, view)
    view.rows(rows, {name: cell for name, cell in columns.items() if name not in leaves}, view.say("queues"))


def _switch(view: PmqView, row: DoorAnswer) -> object:
    """Return what leads to the plan: publishers may use the topic of a queue, or not."""
    words, permission = ("make_read_only", "r") if row["writable"] else ("make_read_write", "rw")
    asked = {"action": "set-topic-permission", "topic": row["topic"], "permission": permission}
    return partial(link, view.say(words), "/pmq/change", **asked)
