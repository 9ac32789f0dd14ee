"""Reports of pmq mode: topics with advice, queues, databases; the audit log; the rules of the door."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer

from ..frame import MARKS, link, section, tag
from .change import FATES
from .groups import group_limits
from .topics import topic_limits
from .view import Cell, PmqView

AUDITED: Final = 100
PARTS_MAX: Final = 100


async def reports(view: PmqView) -> None:
    """Draw the reports by topic, queue and node, each loaded by itself."""
    with view.frame(view.say("reports"), "reports_text"):
        parts = []
        for kind, words in (("topics", "topics"), ("queues", "queues"), ("nodes", "nodes")):
            with section(view.say(words)):
                parts.append(view.part())
                view.command("report", kind)
    await ui.context.client.connected()
    await view.load(parts[0], operating.topic_report, partial(_topics, view))
    await view.load(parts[1], operating.queue_report, partial(_queues, view))
    await view.load(parts[2], operating.node_report, partial(_nodes, view))


def _topics(view: PmqView, answer: DoorAnswer) -> None:
    columns: dict[str, Cell] = {
        "topic": view.link_to("topic", "/pmq/topic"),
        "state": lambda row: view.say(row["state"]),
        "queue_count": view.number("queues"),
        "message_count": view.number("messages"),
        "size": view.number("size"),
        "per_day": view.number("per_day"),
        "last_stored": view.moment("last_stored_ms"),
        "group_count": view.number("groups"),
        "advice": partial(_advice, view),
    }
    view.rows(answer.rows("topics"), columns, view.say("topics"))


def _advice(view: PmqView, row: DoorAnswer) -> object:
    """Return what leads to the plan of the advised number of queues."""
    if row["advice"] not in ("expand", "shrink"):
        return "–"
    action = "create-topic" if row["advice"] == "expand" else "shrink-topic"
    if not view.can_change:
        return f"{view.say(row['advice'])} → {row['wanted']}"
    asked = {"action": action, "topic": row["topic"], "queues": str(row["wanted"])}
    return partial(link, f"{view.say(row['advice'])} → {row['wanted']} …", "/pmq/change", **asked)


def _queues(view: PmqView, answer: DoorAnswer) -> None:
    columns: dict[str, Cell] = {
        "topic": view.link_to("topic", "/pmq/topic"),
        "queue": lambda row: row["queue"],
        "node": lambda row: row["node"],
        "table": lambda row: row["table"] or "–",
        "message_count": view.number("messages"),
        "size": view.number("size"),
        "per_day": view.number("per_day"),
        "first_stored": view.moment("first_stored_ms"),
        "last_stored": view.moment("last_stored_ms"),
    }
    view.rows(answer.rows("queues"), columns, view.say("queues"))


def _nodes(view: PmqView, answer: DoorAnswer) -> None:
    columns: dict[str, Cell] = {
        "node": lambda row: row["node"],
        "queue_count": view.number("queues"),
        "topic_count": view.number("topics"),
        "message_count": view.number("messages"),
        "size": view.number("size"),
        "per_day": view.number("per_day"),
    }
    view.rows(answer.rows("nodes"), columns, view.say("nodes"))


async def audit(view: PmqView) -> None:
    """Draw the last changes that the door recorded, the latest first."""
    with view.frame(view.say("audit"), "audit_of_door"):
        part = view.part()
        view.command("audit", "--limit", str(AUDITED))
    await ui.context.client.connected()
    await view.load(part, lambda door: operating.audited(door, AUDITED), partial(_audited, view))


def _audited(view: PmqView, answer: DoorAnswer) -> None:
    tag("p", f"{answer['line_count']} · SHA-256 {answer['last_digest']}", "bounds")
    for problem in answer.texts("problems"):
        tag("p", f"{MARKS['error']} {problem}", "problem")
    columns: dict[str, Cell] = {
        "time": lambda row: row["asked_at"],
        "who": lambda row: " ".join(word for word in (row["who"], row["address"], row["door"]) if word),
        "action": lambda row: row["action"],
        "parameters": lambda row: json.dumps(row["parameters"], ensure_ascii=False),
        "outcome": partial(_outcome, view),
        "detail": lambda row: partial(_parts, row),
    }
    view.rows(answer.rows("changes"), columns, view.say("audit"), "no_changes")


def _outcome(view: PmqView, row: DoorAnswer) -> str:
    if not row["ended_at"]:
        return f"{MARKS['warning']} {view.say('not_ended')}"
    fates = Counter(one["fate"] for one in row.rows("outcomes"))
    words = [f"{MARKS[FATES[fate]]} {view.say(fate)}: {fates[fate]}" for fate in FATES if fates[fate]]
    return " · ".join([*words, *([row["error"]] if row["error"] else [])])


def _parts(row: DoorAnswer) -> None:
    steps, outcomes = row.rows("steps"), row.rows("outcomes")
    with tag("details"):
        tag("summary", f"{len(steps)}")
        with tag("ul"):
            for step in steps[:PARTS_MAX]:
                tag("li", f"{step['target']}: {'–' if step['before'] is None else step['before']} → {step['after']}")
            for one in outcomes[:PARTS_MAX]:
                tag("li", " · ".join(str(one[name]) for name in ("target", "fate", "detail") if one[name]))


async def rules(view: PmqView) -> None:
    """Draw who asks, and the rules of topics, groups and operators, without tokens."""
    with view.frame(view.say("rules"), "rules_text"):
        who = view.part()
        part = view.part()
        view.command("rules")
    await ui.context.client.connected()
    found = await view.who(who)
    if found is None:
        part.put(lambda: None)
    else:
        part.put(partial(_rules, view, found))


def _rules(view: PmqView, answer: DoorAnswer) -> None:
    with section(view.say("operators")):
        columns: dict[str, Cell] = {
            "operator": lambda row: row["name"],
            "role": lambda row: view.say("acts_for") if row["acts_for"] else view.say(f"role_name_{row['role']}"),
            "state": lambda row: view.say("role_read_only") if row["read_only"] else "–",
            "owns": lambda row: ", ".join([*row["topics"], *row["groups"]]) or view.say("none"),
            "token_count": view.number("tokens"),
        }
        view.rows(answer.rows("operators"), columns, view.say("operators"))
    with section(view.say("topics")):
        view.rows(answer.rows("topics"), topic_limits(view), view.say("topics"), "no_rules")
    with section(view.say("groups_of")):
        view.rows(answer.rows("groups"), group_limits(view), view.say("groups_of"), "no_rules")
