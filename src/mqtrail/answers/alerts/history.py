"""The phases of all subjects, and the history of alerts for 90 days: a SQLite file.

A restart neither forgets an alert nor sends it twice. What could not be sent waits here, and is sent again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mqtrail.wire import MQError

from ..databases import open_database
from .measure import AlertPhase

ALERTS_FILE: Final = "alerts.sqlite"  # in the data folder
KEPT_MS: Final = 90 * 24 * 3_600_000
UNSENT_MAX: Final = 1_000  # of a channel, that are sent again at once
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS phases (
    rule TEXT, subject TEXT, phase TEXT, next TEXT, since_ms INTEGER, PRIMARY KEY (rule, subject));
CREATE TABLE IF NOT EXISTS alerts (
    number INTEGER PRIMARY KEY, at_ms INTEGER, rule TEXT, subject TEXT, severity TEXT, before TEXT, phase TEXT,
    value REAL, why TEXT, query TEXT, unsent TEXT, failure TEXT);
CREATE TABLE IF NOT EXISTS looks (one INTEGER PRIMARY KEY CHECK (one = 1), at_ms INTEGER);
CREATE INDEX IF NOT EXISTS alerts_at ON alerts (at_ms);
CREATE INDEX IF NOT EXISTS alerts_of_subject ON alerts (rule, subject, number);
"""

_COLUMNS: Final = (
    *("at_ms", "rule", "subject", "severity", "before", "phase", "value", "why", "query", "unsent", "failure"),
)


class AlertsFailed(MQError):
    """The file of alerts cannot be read or written."""


@dataclass(frozen=True, slots=True)
class SubjectPhase:
    """A subject of a rule. next: what it is about to become, since since_ms; the phase itself: nothing.

    last_known: the phase; during *cannot tell*, the one before it.
    """

    phase: AlertPhase
    next: AlertPhase
    since_ms: int
    last_known: AlertPhase = AlertPhase.GOOD


@dataclass(frozen=True, slots=True)
class Alert:
    """A change of phase. value: None: unknown, for the reason why. query: the search that shows its messages.

    unsent: channels that did not take it yet. failure: the last error of one of them.
    """

    at_ms: int
    rule: str
    subject: str
    severity: str
    before: AlertPhase
    phase: AlertPhase
    value: float | None
    why: str
    query: str
    unsent: tuple[str, ...]
    failure: str = ""
    number: int = 0


class AlertHistory:
    """The file. Call it from one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors():
            self._file = open_database(path, _SCHEMA)  # queries name keys of messages

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def phases(self, rule: str) -> dict[str, SubjectPhase]:
        """Return what is known of the subjects of a rule."""
        last = (
            "SELECT before FROM alerts a WHERE a.rule = p.rule AND a.subject = p.subject ORDER BY number DESC LIMIT 1"
        )
        asked = f"SELECT subject, phase, next, since_ms, ({last}) FROM phases p WHERE rule = ?"
        with self._errors():
            found: dict[str, SubjectPhase] = {}
            for subject, phase, after, since_ms, before in self._file.execute(asked, [rule]).fetchall():
                is_blind = phase == AlertPhase.CANNOT_TELL and before is not None
                last_known = AlertPhase(before if is_blind else phase)
                found[subject] = SubjectPhase(AlertPhase(phase), AlertPhase(after), since_ms, last_known)
            return found

    def keep(self, rule: str, phases: dict[str, SubjectPhase], alerts: Sequence[Alert], now_ms: int) -> None:
        """Store the phases of a rule and their alerts in one transaction; delete alerts after 90 days."""
        kept = [(rule, subject, one.phase, one.next, one.since_ms) for subject, one in phases.items()]
        added = [
            {**{name: getattr(one, name) for name in _COLUMNS}, "unsent": json.dumps(one.unsent)} for one in alerts
        ]
        with self._errors(), self._file:
            self._file.execute("DELETE FROM phases WHERE rule = ?", [rule])
            self._file.executemany("INSERT INTO phases VALUES (?, ?, ?, ?, ?)", kept)
            self._file.executemany(
                f"INSERT INTO alerts ({', '.join(_COLUMNS)}) VALUES (:{', :'.join(_COLUMNS)})", added
            )
            self._file.execute("DELETE FROM alerts WHERE at_ms < ?", [now_ms - KEPT_MS])

    def forget(self, rules: Sequence[str]) -> None:
        """Delete the phases of rules that are not in the file any more."""
        with self._errors(), self._file:
            for (rule,) in self._file.execute("SELECT DISTINCT rule FROM phases").fetchall():
                if rule not in rules:
                    self._file.execute("DELETE FROM phases WHERE rule = ?", [rule])

    def looked(self, now_ms: int) -> None:
        """Record that all rules were checked."""
        with self._errors(), self._file:
            self._file.execute("INSERT OR REPLACE INTO looks VALUES (1, ?)", [now_ms])

    def last_look_ms(self) -> int | None:
        """Return when all rules were last checked; None: never."""
        with self._errors():
            row = self._file.execute("SELECT at_ms FROM looks").fetchone()
            return None if row is None else int(row[0])

    def sent(self, alerts: Sequence[Alert], channel: str, failure: str, *, is_taken: bool) -> None:
        """Record whether a channel accepted alerts, or why not. The error of another channel stays while it waits."""
        asked = "SELECT unsent, failure FROM alerts WHERE number = ?"
        with self._errors(), self._file:
            for one in alerts:
                row = self._file.execute(asked, [one.number]).fetchone()
                if row is None:
                    continue
                left = [name for name in json.loads(row[0]) if name != channel or not is_taken]
                words = failure or (row[1] if left else "")
                self._file.execute(
                    "UPDATE alerts SET unsent = ?, failure = ? WHERE number = ?", [json.dumps(left), words, one.number]
                )

    def unsent(self, channel: str) -> list[Alert]:
        """Return alerts that a channel did not take yet, the oldest first, at most UNSENT_MAX."""
        waits = "EXISTS (SELECT 1 FROM json_each(alerts.unsent) WHERE value = ?)"
        return self._alerts(f"WHERE unsent <> '[]' AND {waits} ORDER BY number LIMIT {UNSENT_MAX}", (channel,))

    def latest(self, count_max: int) -> list[Alert]:
        """Return the last alerts, the latest first."""
        return self._alerts("ORDER BY number DESC LIMIT ?", (count_max,))

    def open(self) -> list[Alert]:
        """Return the alerts that are not over: the last one of each subject whose phase is not good."""
        last = "SELECT max(number) FROM alerts GROUP BY rule, subject"
        known = "SELECT 1 FROM phases p WHERE p.rule = alerts.rule AND p.subject = alerts.subject"
        return self._alerts(f"WHERE number IN ({last}) AND phase <> 'good' AND EXISTS ({known}) ORDER BY number", ())

    def _alerts(self, tail: str, values: Sequence[object]) -> list[Alert]:
        names = (*_COLUMNS, "number")
        with self._errors():
            rows = self._file.execute(f"SELECT {', '.join(names)} FROM alerts {tail}", values).fetchall()
            return [_alert(dict(zip(names, row, strict=True))) for row in rows]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            raise AlertsFailed(f"alerts {str(self.path)!r}: {error}") from None


def _alert(row: dict[str, Any]) -> Alert:
    phases = {name: AlertPhase(row[name]) for name in ("before", "phase")}
    return Alert(**{**row, **phases, "unsent": tuple(json.loads(row["unsent"]))})
