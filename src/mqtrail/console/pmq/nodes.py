"""The broker behind a door: its databases, and which process may write."""

from __future__ import annotations

from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer

from ..frame import MARKS, section, tag
from ..looks import UNKNOWN, count
from .view import Cell, PmqView

STATES: Final = ("read-write", "read-only", "closed")
KINDS: Final = ("normal", "failure")


async def nodes(view: PmqView) -> None:
    """Draw the broker, its database, the nodes of the store, and their tables by state."""
    with view.frame(view.say("nodes"), "nodes_text"):
        part = view.part()
        view.command("node")
        view.command("node", "list")
    await ui.context.client.connected()
    await view.load(part, operating.node, partial(_nodes, view))


def _nodes(view: PmqView, answer: DoorAnswer) -> None:
    if answer["away"]:
        tag("p", f"{MARKS['error']} {view.say('does_not_answer', why=answer['away'])}", "problem")
        return
    tag("p", f"{answer['broker']} · {answer['version']}")
    database = answer.part("database")
    if not database:
        tag("p", view.say("unknown"))
        return
    with section(view.say("free_tables")):
        for name, number in database.part("tables_by_state").items():
            words = view.say(f"state_{name}") if name in ("free", "used", "released") else name
            tag("p", f"{words}: {count(number)}")
    with section(view.say("nodes")):
        columns: dict[str, Cell] = {
            "node": lambda row: row["name"],
            "kind": lambda row: row["kind"],
            "state": lambda row: row["state"],
            "queue_count": view.number("queues"),
            "parked": view.number("parked"),
            "answer": partial(_answer, view),
        }
        nodes = database.rows("nodes")
        view.rows(nodes, columns, view.say("nodes"), "one_database")
        if nodes and view.can_change:
            with view.form("set-node"):
                view.choice("node", "node", {row["name"]: row["name"] for row in nodes})
                view.choice("state", "state", {"": view.say("as_it_is")} | {one: one for one in STATES})
                view.choice("kind", "kind", {"": view.say("as_it_is")} | {one: one for one in KINDS})
                view.mark("force", "force_node")
    with section(view.say("database")):
        values = [DoorAnswer(name=name, value=value) for name, value in database.items() if _is_fact(value)]
        facts: dict[str, Cell] = {
            "property": lambda row: row["name"].replace("_", " "),
            "value": partial(_fact, view),
        }
        view.rows(values, facts, view.say("database"))


def _answer(view: PmqView, row: DoorAnswer) -> str:
    if row["away"]:
        return f"{MARKS['error']} {view.say('does_not_answer', why=row['away'])}"
    return f"{MARKS['good']} {view.say('answers')}"


def _is_fact(value: object) -> bool:
    return not isinstance(value, dict | list)


def _fact(view: PmqView, row: DoorAnswer) -> object:
    value = row["value"]
    if row["name"].endswith("_ms"):
        return view.reader.at(value or None)
    if isinstance(value, bool):
        return view.say("yes" if value else "no")
    return UNKNOWN if value is None else value


async def lock(view: PmqView) -> None:
    """Draw which process may write to the database, and which could before."""
    with view.frame(view.say("lock"), "lock_text"):
        part = view.part()
        view.command("lock")
    await ui.context.client.connected()
    await view.load(part, operating.lock, partial(_lock, view))


def _lock(view: PmqView, answer: DoorAnswer) -> None:
    columns: dict[str, Cell] = {
        "writer": lambda row: (
            f"{MARKS['good']} {row['writer']}" if row["writer"] == answer["writer"] else row["writer"]
        ),
        "started": view.moment("started_ms"),
        "host": lambda row: row["host"],
        "process": lambda row: row["pid"],
        "version": lambda row: row["mqtrail"],
    }
    view.rows(answer.rows("starts"), columns, view.say("lock"))
