"""Alerts as an answer: what is open, what was, and when the rules were checked last."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..model import Scope, moment_text
from .history import Alert, AlertHistory

LOOK_AGE_MS_MAX: Final = 5 * 60_000


@dataclass(frozen=True, slots=True)
class AlertsAnswer:
    """The open alerts, and the last ones. scope.as_of_ms: when the rules were last checked."""

    scope: Scope
    open: tuple[Alert, ...]
    latest: tuple[Alert, ...]


def read_alerts(path: Path, count_max: int, now_ms: int) -> AlertsAnswer:
    """Return the alerts of a file. An omission reports that the rules are not checked at present: then
    "no alert" does not mean that all is well.

    AlertsFailed.
    """
    hint = "start `mqtrail alerts run`"
    if not path.exists():
        return AlertsAnswer(Scope(now_ms, omissions=(f"no rule was ever checked: {hint}",)), (), ())
    history = AlertHistory(path)
    try:
        looked_ms = history.last_look_ms()
        omissions = []
        if looked_ms is None or now_ms - looked_ms > LOOK_AGE_MS_MAX:
            at = "never" if looked_ms is None else f"{moment_text(looked_ms, '%Y-%m-%d %H:%M:%S')} UTC"
            omissions.append(f"the rules were last checked: {at}; since then nothing is known: {hint}")
        scope = Scope(looked_ms or now_ms, (f"alerts {path}",), omissions=tuple(omissions))
        return AlertsAnswer(scope, tuple(history.open()), tuple(history.latest(count_max)))
    finally:
        history.close()
