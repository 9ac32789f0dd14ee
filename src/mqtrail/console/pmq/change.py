"""A change at the door: its plan, a button that makes it, and the outcome of each part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nicegui import ui
from starlette.datastructures import QueryParams

from mqtrail.clock import now_ms
from mqtrail.gateway import Problem
from mqtrail.pmq import operating
from mqtrail.pmq.operating import DoorAnswer
from mqtrail.wire import number_of, parse_moment

from ..frame import MARKS, link, section, table, tag
from ..looks import count
from .view import ROWS_MAX, PmqView

ACTIONS: Final = (
    *("create-topic", "shrink-topic", "set-topic-permission", "delete-topic", "free-tables", "move-queue"),
    "set-node",
    *("create-group", "pause-group", "delete-group", "set-offsets", "resend-messages"),
)
FATES: Final = {"DONE": "good", "FAILED": "error", "UNKNOWN": "warning", "WAITS": "open"}
COUNTS: Final = ("skipped", "repeated", "unreadable", "deleted", "pending", "offsets")
IDS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class PlannedAtDoor:
    """A change and what the door said that it would do."""

    change: dict[str, Any]
    plan: DoorAnswer


async def change(view: PmqView, asked: QueryParams) -> None:
    """Draw the plan of the change in the address. Nothing is changed before the button is pressed."""
    action = asked.get("action", "")
    with view.frame(view.say(action if action in ACTIONS else "change"), "pmq_change_text"):
        who = view.part()
        part = view.part()
        outcome = tag("div", **{"aria-live": "polite"})
    await ui.context.client.connected()
    await view.who(who)
    try:
        wanted = change_of(asked)
    except ValueError as error:
        part.fail(str(error))
        return
    plan = await view.load(part, lambda door: operating.planned(door, wanted), lambda _: None)
    if plan is not None:
        part.put(lambda: perform_button(view, PlannedAtDoor(wanted, plan), outcome))


def change_of(asked: QueryParams) -> dict[str, Any]:
    """Return the change that an address names, as the door takes it. ValueError: a text is no number or no time."""
    action = asked.get("action", "")
    found: dict[str, Any] = {"action": action}
    texts = {name: asked.get(name, "").strip()[:255] for name in ("topic", "group")}
    match action:
        case "create-topic" | "shrink-topic":
            return {**found, "topic": texts["topic"], "queues": _number(asked, "queues")}
        case "set-topic-permission":
            return {**found, "topic": texts["topic"], "permission": asked.get("permission", "")}
        case "delete-topic":
            return {**found, "topic": texts["topic"], "force": "force" in asked}
        case "free-tables":
            return {**found, "topic": texts["topic"], "drop": "drop" in asked}
        case "move-queue":
            node = asked.get("node", "").strip()[:255]
            queue = _number(asked, "queue")
            drop = bool(node) and "drop" in asked
            return {**found, "topic": texts["topic"], "queue": queue, "node": node, "drop": drop, "cancel": not node}
        case "set-node":
            state, kind = asked.get("state") or None, asked.get("kind") or None
            return {**found, "node": asked.get("node", ""), "state": state, "kind": kind, "force": "force" in asked}
        case "create-group":
            retries, mode = _number(asked, "retries_max"), asked.get("mode") or None
            return {**found, "group": texts["group"], "retries_max": retries, "mode": mode}
        case "pause-group":
            return {**found, "group": texts["group"], "paused": asked.get("paused") != "false"}
        case "delete-group":
            return {**found, "group": texts["group"], "force": "force" in asked}
        case "set-offsets":
            return {**found, **texts, **_place(asked)}
        case "resend-messages":
            to = "topic" if "to_topic" in asked else "group"
            ids, of = asked.getlist("id")[:IDS_MAX], asked.get("of", "")[:255]
            return {**found, "group": texts["group"], "ids": ids, "to": to, "failed_of": of}
    raise ValueError(f"action: found {action[:80]!r}, expected one of {', '.join(ACTIONS)}")


def _place(asked: QueryParams) -> dict[str, Any]:
    """Return where offsets are moved to."""
    if "offset" in asked:
        return {"queue": _number(asked, "queue"), "offset": _number(asked, "offset")}
    to = asked.get("to", "").strip()
    at_ms = {"first": 0, "end": -1}.get(to)
    return {"at_ms": parse_moment(to, now_ms()) if at_ms is None else at_ms}


def _number(asked: QueryParams, name: str) -> int:
    text = asked.get(name, "").strip()
    found = number_of(text)
    if found is None:
        raise ValueError(f"{name}: found {text[:80]!r}, expected a number")
    return found


def perform_button(view: PmqView, planned: PlannedAtDoor, outcome: ui.element) -> None:
    """Draw a plan, and the button that makes the change."""
    draw_steps(view, planned.plan)
    for words in planned.plan.texts("warnings"):
        tag("p", f"{MARKS['warning']} {words}")
    button = tag("button", view.say("do_change"), type="button")

    async def perform() -> None:
        button.set_visibility(False)
        await _perform(view, planned, outcome)

    button.on("click", perform)


def draw_steps(view: PmqView, report: DoorAnswer) -> None:
    """Draw each part of a change before and afterwards, and the messages that it affects."""
    steps = report.rows("steps")
    counted = [name for name in COUNTS if any(name in step.part("counts") for step in steps)]
    names = ["part_of_change", "before", "afterwards", *map(_count_name, counted)]
    with table([view.say(name) for name in names], view.say("plan")) as add:
        for step in steps[:ROWS_MAX]:
            numbers = [count(step.part("counts").get(name)) for name in counted]
            add([step["target"], "–" if step["before"] is None else step["before"], step["after"], *numbers])
    if len(steps) > ROWS_MAX:
        tag("p", f"+ {len(steps) - ROWS_MAX}", "quiet")


def _count_name(name: str) -> str:
    return "pending" if name == "pending" else f"{name}_count"


async def _perform(view: PmqView, planned: PlannedAtDoor, place: ui.element) -> None:
    """Make the change in a worker of its own; draw what came of it."""
    with place:
        waiting = tag("p", view.say("loading"), role="status")
    draw: Callable[[], None]
    try:
        ask = view.asking(lambda door: operating.changed(door, planned.change))
        report = await view.portal.changes.run(ask)
        draw = partial(_report, view, planned, report)
    except Problem as problem:
        draw = partial(_problem, problem)
    waiting.set_visibility(False)
    with place:
        draw()


def _problem(problem: Problem) -> None:
    with tag("div", classes="problem", role="alert"):
        tag("p", problem.detail)


def _report(view: PmqView, planned: PlannedAtDoor, report: DoorAnswer) -> None:
    if report.rows("steps") != planned.plan.rows("steps"):
        tag("p", f"{MARKS['warning']} {view.say('changed_since')}")
        draw_steps(view, report)
    with section(view.say("outcomes")):
        with table([view.say(name) for name in ("part_of_change", "outcome", "detail")], view.say("outcomes")) as add:
            for one in report.rows("outcomes")[:ROWS_MAX]:
                fate = one["fate"] if one["fate"] in FATES else "UNKNOWN"
                add([one["target"], f"{MARKS[FATES[fate]]} {view.say(fate)}", one["detail"]])
        with tag("p"):
            link(view.say("audit"), "/pmq/audit")
