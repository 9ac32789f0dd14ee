"""Groups and subscriptions of pmq mode: offsets, members, lists, and the forms that lead to their changes."""

from __future__ import annotations

from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer
from mqtrail.wire import is_business_topic

from ..frame import MARKS, link, section, tag
from ..looks import count
from .view import Cell, PmqView, owners_of

MODES: Final = ("cluster", "broadcast")


async def groups(view: PmqView) -> None:
    """Draw the groups of applications."""
    with view.frame(view.say("groups_of")):
        who = view.part()
        part = view.part()
        if view.can_change:
            with section(view.say("create-group")), view.form("create-group"):
                view.field("group", "group", size=120)
                _settings(view, "16")
        view.command("group", "list")
    await ui.context.client.connected()
    rules = await view.who(who)
    await view.load(part, operating.groups, partial(_groups, view, rules))


def _settings(view: PmqView, retries: str = "") -> None:
    view.number_field("retries_max", "retries_max", retries)
    view.choice("mode", "mode", {"": view.say("mode_same")} | {one: one for one in MODES})


def _groups(view: PmqView, rules: DoorAnswer | None, answer: DoorAnswer) -> None:
    owners = owners_of(rules, "group")
    columns: dict[str, Cell] = {
        "group": view.link_to("group", "/pmq/group"),
        "owners": lambda row: owners(row["group"]),
        "mode": lambda row: row["mode"],
        "state": view.state,
        "retries_max": view.number("retries_max"),
        "topics": view.names("topics"),
        "online": view.number("online"),
        "pending": view.number("pending"),
        "retrying": view.number("retrying"),
        "dead": view.number("dead_letters"),
    }
    view.rows(answer.rows("groups"), columns, view.say("groups_of"))


async def group(view: PmqView, name: str) -> None:
    """Draw one group: its members, its offset on each queue, its rules."""
    with view.frame(f"{view.say('group')} {name}"):
        who = view.part()
        with tag("div", classes="tools"):
            link(view.say("subscriptions"), "/pmq/subscriptions", "button", group=name)
            link(view.say("failures"), "/pmq/failures", "button", group=name)
        part = view.part()
        limits = view.part()
        if view.can_change:
            _changes(view, name)
        view.command("group", "show", name)
    await ui.context.client.connected()
    rules = await view.who(who)
    await view.load(part, lambda door: operating.group(door, name), partial(_group, view))
    limits.put(partial(_limits, view, name, rules))


def _group(view: PmqView, answer: DoorAnswer) -> None:
    pending = f"{view.say('pending')}: {count(answer['pending'])}"
    dead = f"{view.say('dead')}: {count(answer['dead_letters'])}"
    tag("p", " · ".join([answer["mode"], view.state(answer), f"{view.say('retries_max')}: {answer['retries_max']}"]))
    tag("p", f"{pending} · {view.say('retrying')}: {count(answer['retrying'])} · {dead}", role="status")
    if view.can_change:
        _switches(view, answer)
    with section(view.say("queues")):
        _places(view, answer)
    with section(view.say("members")):
        of_member: dict[str, Cell] = {
            "client": lambda row: row["client"],
            "address": lambda row: row["address"],
            "interface": lambda row: row["interface"],
        }
        view.rows(answer.rows("members"), of_member, view.say("members"), "no_members")


def _switches(view: PmqView, answer: DoorAnswer) -> None:
    """Draw what leads to the plans of a pause, and of skipping the backlog."""
    name = answer["group"]
    with tag("div", classes="tools"):
        words, paused = ("resume", "false") if answer["paused"] else ("pause", "true")
        link(view.say(words), "/pmq/change", "button", action="pause-group", group=name, paused=paused)
        waiting = [row["topic"] for row in answer.rows("queues") if row["pending"] and is_business_topic(row["topic"])]
        for topic in dict.fromkeys(waiting):
            asked = {"action": "set-offsets", "group": name, "topic": topic, "to": "end"}
            link(view.say("skip_all", topic=topic), "/pmq/change", "button", **asked)


def _places(view: PmqView, answer: DoorAnswer) -> None:
    """Draw the offset of a group on each queue."""
    columns: dict[str, Cell] = {
        "topic": view.link_to("topic", "/pmq/topic"),
        "queue": lambda row: row["queue"],
        "offset": lambda row: f"{MARKS['error']} {row['offset']:,}" if row["offset"] > row["next"] else row["offset"],
        "next": view.number("next"),
        "pending": view.number("pending"),
        "last_consumed": view.moment("last_consumed_ms"),
        "messages": lambda row: partial(
            link,
            view.say("messages"),
            "/pmq/messages",
            topic=row["topic"],
            queue=str(row["queue"]),
            offset=str(row["offset"]),
        ),
    }
    view.rows(answer.rows("queues"), columns, view.say("queues"))


def _limits(view: PmqView, name: str, rules: DoorAnswer | None) -> None:
    if rules is None:  # the part above says why
        tag("p", view.say("unknown"))
        return
    rows = [row for row in rules.rows("groups") if row["group"] == name]
    with section(view.say("limits")):
        view.rows(rows, group_limits(view), view.say("limits"), "no_rules")


def group_limits(view: PmqView) -> dict[str, Cell]:
    """Return the columns of the rules of groups."""
    return {
        "group": lambda row: row["group"],
        "owners": view.names("owners"),
        "token_count": view.number("tokens"),
        "allow_list": view.names("allow", "all"),
        "deny_list": view.names("deny"),
    }


def _changes(view: PmqView, name: str) -> None:
    """Draw the forms of what can be changed of a group."""
    with section(view.say("set-offsets")):
        with view.form("set-offsets", group=name):
            view.field("topic", "topic")
            view.field("to", "to_place", size=64)
        with view.form("set-offsets", group=name):
            view.field("topic", "topic")
            view.number_field("queue", "queue")
            view.field("offset", "new_offset", size=18)
    with section(view.say("create-group")), view.form("create-group", group=name):
        _settings(view)
    with section(view.say("delete-group")), view.form("delete-group", group=name):
        view.mark("force", "force")


async def subscriptions(view: PmqView, group: str, topic: str) -> None:
    """Draw which group consumes which topic."""
    with view.frame(view.say("subscriptions")):
        with tag("form", classes="tools", action="/pmq/subscriptions", method="get", role="search"):
            view.field("group", "group", value=group, is_needed=False)
            view.field("topic", "topic", value=topic, is_needed=False)
            tag("button", view.say("find"), type="submit")
        part = view.part()
        chosen = [*(["--group", group] if group else []), *(["--topic", topic] if topic else [])]
        view.command("subscription", "list", *chosen)
    await ui.context.client.connected()
    await view.load(
        part,
        lambda door: operating.subscriptions(door, group or None, topic or None),
        partial(_subscriptions, view),
    )


def _subscriptions(view: PmqView, answer: DoorAnswer) -> None:
    columns = {
        "group": view.link_to("group", "/pmq/group"),
        "topic": view.link_to("topic", "/pmq/topic"),
        "tag": lambda row: row["tag"] or "–",
        "online": view.number("online"),
        "pending": view.number("pending"),
        "state": view.state,
    }
    view.rows(answer.rows("subscriptions"), columns, view.say("subscriptions"))


async def members(view: PmqView, group: str) -> None:
    """Draw the clients that are online, of a group or of all."""
    with view.frame(view.say("members")):
        with tag("form", classes="tools", action="/pmq/members", method="get", role="search"):
            view.field("group", "group", value=group, is_needed=False)
            tag("button", view.say("find"), type="submit")
        part = view.part()
        view.command("member", "list", *(["--group", group] if group else []))
    await ui.context.client.connected()
    await view.load(part, lambda door: operating.members(door, group or None), partial(_members, view))


def _members(view: PmqView, answer: DoorAnswer) -> None:
    columns: dict[str, Cell] = {
        "group": view.link_to("group", "/pmq/group"),
        "client": lambda row: row["client"],
        "address": lambda row: row["address"],
        "interface": lambda row: row["interface"],
        "client_language": lambda row: row["language"] or "–",
        "version": lambda row: row["version"] or "–",
        "heartbeat": lambda row: "–" if row["seen_ms"] is None else view.reader.at(row["seen_ms"]),
    }
    view.rows(answer.rows("members"), columns, view.say("members"), "no_members")
