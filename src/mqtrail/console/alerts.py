"""Alerts: what is open now, what was, and whether the rules are checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from nicegui import ui

from mqtrail.answers.access import Right
from mqtrail.answers.alerts import Alert, AlertPhase, AlertsAnswer, read_alerts
from mqtrail.clock import now_ms

from .frame import MARKS, Desk, PagePart, PageReader, bounds, commands, frame, keep_live, link, section, table, tag

SHOWN_MAX: Final = 100
LIVE_S: Final = 15.0
PHASES: Final = {
    AlertPhase.BAD: ("error", "alert_bad"),
    AlertPhase.GOOD: ("good", "alert_over"),
    AlertPhase.CANNOT_TELL: ("warning", "cannot_look"),
}


async def alerts(desk: Desk, reader: PageReader) -> None:
    """Draw open alerts and the last ones; load them again while the page is live."""
    path = desk.alerts
    assert path is not None, "the page exists only with a file"
    with frame(reader, reader.say("alerts")):
        tag("p", reader.say("alerts_text"), "quiet")
        live = ui.switch(reader.say("live"), value=True)
        part = PagePart(desk, reader)
        own = ["env", f"MQTRAIL_DATA={path.parent}"] if reader.cluster is not None else []
        commands(reader, [*own, "mqtrail", "alerts", "list"], "/alerts")

    def ask() -> AlertsAnswer:
        desk.sources.check(Right.READ)
        return read_alerts(path, SHOWN_MAX, now_ms())

    await keep_live(live, lambda: part.show(ask, partial(_draw, reader)), LIVE_S)


def _draw(reader: PageReader, answer: AlertsAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    with section(reader.say("open_alerts")):
        if answer.open or not answer.scope.omissions:
            _table(reader, answer.open, "no_open_alerts", "open_alerts")
        else:
            tag("p", f"{MARKS['warning']} {reader.say('cannot_look')}")
    with section(reader.say("alert_history")):
        _table(reader, answer.latest, "no_alerts", "alert_history")


def _table(reader: PageReader, alerts: Sequence[Alert], empty: str, label: str) -> None:
    if not alerts:
        tag("p", reader.say(empty))
        return
    names = ("time", "state", "rule", "subject", "value", "why", "alert_messages")
    with table([reader.say(name) for name in names], reader.say(label)) as add:
        for one in alerts:
            mark, words = PHASES[one.phase]
            value = "?" if one.value is None else f"{one.value:g}"
            shown = partial(link, one.query, "/search", q=one.query) if one.query else ""
            state = f"{MARKS[mark]} {reader.say(words)}"
            add([reader.at(one.at_ms), state, one.rule, one.subject, value, one.why, shown])
