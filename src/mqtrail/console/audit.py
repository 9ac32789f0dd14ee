"""The audit log: who changed what, and with what result."""

from __future__ import annotations

import json
from typing import Final

from nicegui import ui

from mqtrail.answers.changes import AuditAnswer, AuditedChange, Fate
from mqtrail.answers.http import Changing
from mqtrail.gateway import Problem

from .change import FATES
from .frame import MARKS, Desk, PagePart, PageReader, commands, frame, table, tag

CHANGES_MAX: Final = 100
PARTS_MAX: Final = 100


async def audit(desk: Desk, changing: Changing, reader: PageReader) -> None:
    """Draw the last changes, the latest first."""
    with frame(reader, reader.say("audit_log")):
        tag("p", reader.say("audit_text"), "quiet")
        part = PagePart(desk, reader)
    await ui.context.client.connected()
    try:
        answer = await changing.audited(CHANGES_MAX, desk.sources)
    except Problem as problem:
        part.fail(problem.detail)
        return
    part.put(lambda: _draw(reader, answer))


def _draw(reader: PageReader, answer: AuditAnswer) -> None:
    tag("p", f"{answer.path} · {answer.line_count} · SHA-256 {answer.last_digest}", "bounds")
    for problem in answer.problems:
        tag("p", f"{MARKS['error']} {problem}", "problem")
    commands(reader, ["mqtrail", "audit", answer.path], "/audit")
    if not answer.changes:
        tag("p", reader.say("no_changes"))
        return
    names = ("time", "who", "action", "parameters", "outcome", "detail")
    with table([reader.say(name) for name in names], reader.say("audit_log")) as add:
        for one in answer.changes:
            who = " ".join(word for word in (one.who, one.address, one.door) if word)
            parameters = json.dumps(one.parameters, ensure_ascii=False)
            add([one.asked_at, who, one.action, parameters, _state(reader, one), lambda one=one: _parts(reader, one)])


def _state(reader: PageReader, one: AuditedChange) -> str:
    if not one.ended_at:
        return f"{MARKS['warning']} {reader.say('not_ended')}"
    fates = [str(outcome.get("fate")) for outcome in one.outcomes]
    counts = [f"{MARKS[FATES[fate]]} {reader.say(fate.value)}: {fates.count(fate)}" for fate in Fate if fate in fates]
    return " · ".join([*counts, *([one.error] if one.error else [])])


def _parts(reader: PageReader, one: AuditedChange) -> None:
    with tag("details"):
        tag("summary", f"{len(one.steps)}")
        with tag("ul"):
            for step in one.steps[:PARTS_MAX]:
                tag("li", f"{step.get('target')}: {step.get('before')} → {step.get('after')}")
            for outcome in one.outcomes[:PARTS_MAX]:
                words = (outcome.get(name) for name in ("target", "fate", "detail", "place"))
                tag("li", " · ".join(str(word) for word in words if word))
