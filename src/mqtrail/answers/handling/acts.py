"""Who acknowledged or muted which incident, when and why: a SQLite file that console, commands and alerts share.

Acts are only added. A search finds an incident anew each time, with other counts and perhaps another end, so an act is
kept under what stays: cluster, cause and conditions. A mute holds for all incidents of these until its time. An
acknowledgement holds for the incident that was there, not for one that comes later.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqtrail.net import Actor, AuditLog
from mqtrail.trail.incidents import APART_MS, IncidentSettings
from mqtrail.wire import MQError

from ..databases import open_database
from ..model import Scope, moment_text
from ..summaries import IncidentAct, IncidentActKind, IncidentHandling, IncidentsAnswer, ShownIncident

if TYPE_CHECKING:
    from ..lookup import Answers

HANDLED_FILE: Final = "incidents.sqlite"  # in the data folder
WHY_SIZE_MAX: Final = 500  # characters
MUTED_MS_MAX: Final = 90 * 24 * 3_600_000
KEPT_MS: Final = 400 * 24 * 3_600_000
NAMES_MAX: Final = 10  # incidents that an error names
HISTORY_MAX: Final = 50  # acts of an incident that are shown, the latest ones
_COLUMNS: Final = tuple(IncidentAct.__dataclass_fields__)
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS acts (
    number INTEGER PRIMARY KEY, key TEXT, at_ms INTEGER, kind TEXT, who TEXT, door TEXT, why TEXT, until_ms INTEGER,
    incident_id TEXT, begin_ms INTEGER, end_ms INTEGER);
CREATE INDEX IF NOT EXISTS acts_of_key ON acts (key, number);
CREATE INDEX IF NOT EXISTS acts_at ON acts (at_ms);
"""


class HandlingFailed(MQError):
    """The file of the acts cannot be read or written."""


class InvalidAct(MQError):
    """The act is impossible: a parameter is wrong, or the incident is not in the state that the act ends."""


class UnknownIncident(MQError):
    """No incident has this id. scope: what was searched."""

    def __init__(self, words: str, scope: Scope) -> None:
        super().__init__(words)
        self.scope = scope


class AmbiguousIncident(MQError):
    """Several incidents have an id that begins so."""


def key_of(one: ShownIncident) -> str:
    """Return a digest of what identifies an incident in every search."""
    return sha256(repr(one.identity).encode()).hexdigest()[:16]


class HandledIncidents:
    """The file. Thread safe, also with other processes. audit: the log in which each act is recorded first.

    cluster: name of the cluster in a console with several.
    """

    def __init__(self, path: Path, audit: Path, cluster: str = "") -> None:
        self.path = path
        self._audit = audit
        self._cluster = cluster
        self._lock = threading.Lock()

    def of(self, incidents: Iterable[ShownIncident], now_ms: int) -> tuple[ShownIncident, ...]:
        """Return incidents with what people did about them. HandlingFailed."""
        chosen = tuple(incidents)
        if not self.path.exists():
            return tuple(replace(one, handling=IncidentHandling(None, None, ())) for one in chosen)
        with self._opened() as file:
            return tuple(replace(one, handling=_handling(one, _acts(file, one), now_ms)) for one in chosen)

    def shown_in(self, answer: IncidentsAnswer, now_ms: int) -> IncidentsAnswer:
        """Return an answer with what people did; an omission if that cannot be read."""
        try:
            return replace(answer, incidents=self.of(answer.incidents, now_ms))
        except HandlingFailed as error:
            scope = replace(answer.scope, omissions=(*answer.scope.omissions, str(error)))
            return replace(answer, scope=scope)

    def act(
        self, one: ShownIncident, kind: IncidentActKind, actor: Actor, now_ms: int, *, why: str = "", until_ms: int = 0
    ) -> IncidentHandling:
        """Record an act, and return what holds then. InvalidAct, HandlingFailed, AuditFailed: nothing was recorded.

        until_ms: of a mute.
        """
        words = why.strip()
        check_act(kind, words, until_ms, now_ms)
        until = until_ms if kind is IncidentActKind.MUTE else None
        who = actor.name or actor.address
        made = IncidentAct(now_ms, kind, who, actor.door, words, until, one.incident_id, one.begin_ms, one.end_ms)
        with self._lock, self._opened() as file:
            file.execute("BEGIN IMMEDIATE")
            known = _handling(one, _acts(file, one), now_ms)
            if kind is IncidentActKind.REOPEN and known.acknowledged is None:
                raise InvalidAct(f"incident {one.incident_id}: found no acknowledgement to take back")
            if kind is IncidentActKind.UNMUTE and known.muted is None:
                raise InvalidAct(f"incident {one.incident_id}: found no mute to end")
            names = ("key", *_COLUMNS)
            file.execute(
                f"INSERT INTO acts ({', '.join(names)}) VALUES (:{', :'.join(names)})",
                {**asdict(made), "kind": kind.value, "key": key_of(one)},
            )
            file.execute("DELETE FROM acts WHERE at_ms < ?", [now_ms - KEPT_MS])
            found = _handling(one, _acts(file, one), now_ms)
            parameters = {"incident": one.incident_id, "cluster": one.cluster, "cause": one.cause}
            parameters |= {"conditions": " AND ".join(one.conditions), "why": words}
            parameters |= {} if until is None else {"until": f"{moment_text(until, '%Y-%m-%d %H:%M:%S')} UTC"}
            AuditLog(self._audit, self._cluster).note(actor, f"{kind}-incident", parameters)
            file.execute("COMMIT")
            return found

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            file = open_database(self.path, _SCHEMA, isolation_level=None)  # reasons may name customers
            try:
                yield file
            finally:
                file.close()  # without COMMIT nothing is kept
        except (sqlite3.Error, OSError, ValueError) as error:
            raise HandlingFailed(
                f"acknowledged and muted incidents are unknown: cannot use {str(self.path)!r}: {error}"
            ) from None


def check_act(kind: IncidentActKind, why: str, until_ms: int, now_ms: int) -> None:
    """Raise InvalidAct for a reason or a time that cannot be."""
    if len(why) > WHY_SIZE_MAX:
        raise InvalidAct(f"why: found {len(why)} characters, expected at most {WHY_SIZE_MAX}")
    if kind is not IncidentActKind.MUTE:
        return
    if not why:
        raise InvalidAct("why: found no text, expected the reason of the mute")
    if not now_ms < until_ms <= now_ms + MUTED_MS_MAX:
        raise InvalidAct(
            f"until: found {moment_text(until_ms, '%Y-%m-%d %H:%M:%S')} UTC, expected a time within the next 90 days"
        )


def incident_with_id(
    lake: Answers,
    incident_id: str,
    now_ms: int,
    first_ms: int | None = None,
    end_ms: int | None = None,
    *,
    codes: Sequence[str] = (),
    is_beginning: bool = False,
) -> ShownIncident:
    """Return the incident with this id: as a search finds it now, else as the lake keeps it.

    This order, for pages, HTTP and commands alike: what is kept has the counts and the end of an earlier search.
    codes: search only messages with these, and nothing kept. is_beginning: the id's first characters are enough.
    UnknownIncident, AmbiguousIncident, LakeError.
    """
    settings = IncidentSettings(codes=tuple(codes)) if codes else None
    found = lake.incidents(now_ms, first_ms, end_ms, settings=settings, is_kept=False)
    known = {} if codes else {one.incident_id: one for one in lake.kept_incidents(incident_id)}
    known |= {one.incident_id: one for one in found.incidents}
    if incident_id in known:
        return known[incident_id]
    same = [one for name, one in sorted(known.items()) if name.startswith(incident_id)] if is_beginning else []
    if len(same) > 1:
        names = ", ".join(one.incident_id for one in same[:NAMES_MAX])
        raise AmbiguousIncident(f"found {len(same)} incidents that begin with {incident_id!r}, expected one: {names}")
    if not same:
        where = "in the searched time" if codes else "in the searched time, nor in the lake"
        raise UnknownIncident(f"found no incident {incident_id!r} {where}: pass its from and to", found.scope)
    return same[0]


def _acts(file: sqlite3.Connection, one: ShownIncident) -> list[IncidentAct]:
    """Return the acts on an incident of this key, the latest first."""
    rows = file.execute(f"SELECT {', '.join(_COLUMNS)} FROM acts WHERE key = ? ORDER BY number DESC", [key_of(one)])
    return [_act(row) for row in rows.fetchall()]


def _act(row: Sequence[Any]) -> IncidentAct:
    at_ms, kind, *rest = row
    return IncidentAct(at_ms, IncidentActKind(kind), *rest)


def _handling(one: ShownIncident, acts: list[IncidentAct], now_ms: int) -> IncidentHandling:
    kinds = IncidentActKind
    muting = next((act for act in acts if act.kind in (kinds.MUTE, kinds.UNMUTE)), None)
    is_muted = muting is not None and muting.until_ms is not None and now_ms < muting.until_ms
    own = (act for act in acts if act.kind in (kinds.ACKNOWLEDGE, kinds.REOPEN) and _is_same(one, act))
    decided = next(own, None)
    is_acknowledged = decided is not None and decided.kind is kinds.ACKNOWLEDGE
    return IncidentHandling(
        decided if is_acknowledged else None, muting if is_muted else None, tuple(acts[:HISTORY_MAX])
    )


def _is_same(one: ShownIncident, act: IncidentAct) -> bool:
    """Whether an act was on this very incident: a search joins equal ones that are not further apart."""
    return one.begin_ms <= act.end_ms + APART_MS and act.begin_ms <= one.end_ms + APART_MS
