"""Incidents of a lake: searched for in a range of time, or read from the table in which they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mqtrail import trail
from mqtrail.lake import Lake, fetch, keep_incidents, relation_of, with_waiting
from mqtrail.trail import HOUR_MS, UNKNOWN_HOUR
from mqtrail.trail.incidents import (
    INCIDENT_CAUSES,
    INCIDENTS,
    NO_SINGLE_CAUSE,
    SYMPTOMS,
    Incident,
    IncidentSettings,
    find_incidents,
)

from .lakeview import LATER_HOURS, LakeView
from .summaries import IncidentsAnswer, ShownIncident

EARLIER_HOURS: Final = 36
"""Messages of so many hours before the range are read too: they may be delivered in it."""
_BY_HOUR: Final = (trail.TRAJECTORIES.name, trail.VERDICTS.name, trail.ATTEMPTS.name)
_SYMPTOM_TEXTS: Final = {symptom.name: symptom.text for symptom in SYMPTOMS}


def search_incidents(
    view: LakeView, now_ms: int, first_ms: int | None, end_ms: int | None, settings: IncidentSettings
) -> tuple[IncidentsAnswer, tuple[Incident, ...]]:
    """Search [first_ms, end_ms), by default the last day of the lake. Return also the rows to keep."""
    bounds = view.searched_range(first_ms, end_ms)
    if bounds is None:
        return IncidentsAnswer(view.scope(now_ms), None, None, ()), ()
    from_ms, to_ms = bounds
    _define_inputs(view, from_ms, to_ms)
    duck = view.connection
    found = find_incidents(
        lambda sql: duck.execute(sql).fetchall(), settings, found_ms=now_ms, from_ms=from_ms, to_ms=to_ms
    )
    return IncidentsAnswer(view.scope(now_ms), from_ms, to_ms, tuple(map(shown, found))), found


def kept_incidents(view: LakeView, incident_id: str = "") -> tuple[ShownIncident, ...]:
    """Return the incidents that the lake keeps, the latest first; incident_id: those whose id begins so."""
    rows = with_waiting(
        view.path, fetch(view.connection, f"SELECT * FROM ({relation_of(view.lookup.lake[INCIDENTS.name])}) AS kept")
    )
    found = [row for row in rows if row["incident_id"].startswith(incident_id) and view.cluster in ("", row["cluster"])]
    found.sort(key=lambda row: (-row["begin_ms"], row["incident_id"]))
    return tuple(shown(Incident(**row)) for row in found)


def keep(view: LakeView, found: Sequence[Incident], first_ms: int, end_ms: int, now_ms: int) -> None:
    """Keep what a search of a range has found. LakeBusy: a pipeline writes the lake, and too many searches wait."""
    keep_incidents(Lake.open(view.path), found, view.scope_clusters, first_ms, end_ms, now_ms=now_ms)


def shown(one: Incident) -> ShownIncident:
    """Return an incident with its lists and words."""
    cause = INCIDENT_CAUSES.get(one.cause, NO_SINGLE_CAUSE)
    symptoms = _parts(one.symptoms, ",")
    return ShownIncident(
        explanation=cause.text,
        advice=cause.advice,
        symptoms=symptoms,
        what=tuple(_SYMPTOM_TEXTS.get(name, f"messages are {name}") for name in symptoms),
        codes=_parts(one.codes, ","),
        conditions=_parts(one.conditions, " AND "),
        same_conditions=_parts(one.same_conditions, "; "),
        wider_conditions=_parts(one.wider_conditions, "; "),
        neighbours=_parts(one.neighbours, "; "),
        errors=_parts(one.errors, "; "),
        unknown=_parts(one.unknown, ","),
        examples=_parts(one.examples, ","),
        good_examples=_parts(one.good_examples, ","),
        lift=one.lift,
        **{name: getattr(one, name) for name in _SAME},
    )


_SAME: Final = (
    "cluster",
    "incident_id",
    "begin_ms",
    "end_ms",
    "found_ms",
    "cause",
    "message_count",
    "group_count",
    "topic_count",
    "inside_count",
    "inside_bad_count",
    "outside_count",
    "outside_bad_count",
    "certainty",
)


def _parts(text: str, by: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(by) if part)


def _define_inputs(view: LakeView, from_ms: int, to_ms: int) -> None:
    """Define the lake's tables as views; of the large ones only the hours that matter."""
    view.define_views()
    hours = [UNKNOWN_HOUR, *range(from_ms // HOUR_MS - EARLIER_HOURS, to_ms // HOUR_MS + LATER_HOURS + 1)]
    for name in _BY_HOUR:
        table = view.lookup.lake[name]
        chosen: dict[str, Any] = {"files": table.files(hours), "cluster": view.cluster}
        view.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {relation_of(table, **chosen)}")
