"""Acknowledged and muted incidents: how long an act holds, who may do it, its record, and what alerts make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqtrail.answers import IncidentActKind, IncidentsAnswer, Scope, ShownIncident, Sources
from mqtrail.answers.access import Grant, KnownClusters, NotAllowed, Person, SeenSources
from mqtrail.answers.alerts import AlertPhase, Rule, measure
from mqtrail.answers.alerts.history import SubjectPhase
from mqtrail.answers.alerts.rules import Measure
from mqtrail.answers.alerts.watch import step
from mqtrail.answers.changes import Actor, AuditFailed, read_audit
from mqtrail.answers.handling import (
    AmbiguousIncident,
    HandledIncidents,
    HandlingFailed,
    InvalidAct,
    UnknownIncident,
    incident_with_id,
    key_of,
)
from mqtrail.answers.http import API_PREFIX, make_api
from mqtrail.answers.lookup import Answers
from tests.answers.serving import serving

NOW_MS = 1_795_392_000_000
MIN_MS, HOUR_MS = 60_000, 3_600_000
ANN = Actor("ann", "10.0.0.1", "page")
CODES: dict[str, Any] = {"codes": ("HUNG",)}
ACKNOWLEDGE, REOPEN, MUTE, UNMUTE = IncidentActKind


def incident(begin_ms: int = NOW_MS - HOUR_MS, end_ms: int = NOW_MS - 50 * MIN_MS, **fields: Any) -> ShownIncident:
    words = ("symptoms", "what", "codes", "same_conditions", "wider_conditions", "neighbours", "errors", "unknown")
    numbers = ("message_count", "group_count", "topic_count", "inside_count", "inside_bad_count")
    known: dict[str, Any] = dict.fromkeys((*words, "examples", "good_examples"), ())
    known |= dict.fromkeys((*numbers, "outside_count", "outside_bad_count", "certainty", "found_ms"), 7)
    known |= {"cluster": "shop", "incident_id": f"{begin_ms % 2**32:08x}", "cause": "BAD_HOST", "explanation": "a host"}
    known |= {"advice": "", "lift": None, "conditions": ("client_host = 10.2.0.0",), "codes": ("HUNG",)}
    return ShownIncident(**{**known, "begin_ms": begin_ms, "end_ms": end_ms, **fields})


@pytest.fixture
def handled(tmp_path: Path) -> HandledIncidents:
    return HandledIncidents(tmp_path / "incidents.sqlite", tmp_path / "audit.jsonl")


def state(handled: HandledIncidents, one: ShownIncident, now_ms: int = NOW_MS) -> tuple[bool, bool, int]:
    """Return whether it is acknowledged, whether it is muted, and how long its history is."""
    (found,) = handled.of([one], now_ms)
    assert found.handling is not None
    return found.handling.acknowledged is not None, found.handling.muted is not None, len(found.handling.history)


def test_an_acknowledgement_is_of_one_incident(handled: HandledIncidents) -> None:
    """A later search finds it with another end and id; one that begins long after it is another one, and open."""
    handled.act(incident(), ACKNOWLEDGE, ANN, NOW_MS, why="disk is full")
    grown = incident(NOW_MS - HOUR_MS + MIN_MS, NOW_MS + HOUR_MS, message_count=900)
    assert state(handled, grown) == (True, False, 1)
    assert state(handled, incident(NOW_MS, NOW_MS + MIN_MS)) == (False, False, 1)
    assert state(handled, incident(cause="POISON_KEY")) == (False, False, 0)
    assert state(handled, incident(cluster="other")) == (False, False, 0)
    handled.act(grown, REOPEN, ANN, NOW_MS + 1)
    assert state(handled, incident()) == (False, False, 2)


def test_a_mute_holds_until_its_time_for_later_incidents_too(handled: HandledIncidents) -> None:
    handled.act(incident(), MUTE, ANN, NOW_MS, why="known", until_ms=NOW_MS + HOUR_MS)
    later = incident(NOW_MS + 30 * MIN_MS, NOW_MS + 40 * MIN_MS)
    assert state(handled, later, NOW_MS + HOUR_MS - 1) == (False, True, 1)
    assert state(handled, later, NOW_MS + HOUR_MS) == (False, False, 1)
    found = handled.act(later, UNMUTE, ANN, NOW_MS + MIN_MS)
    assert found.muted is None
    assert [(act.kind, act.who, act.why) for act in found.history] == [(UNMUTE, "ann", ""), (MUTE, "ann", "known")]


def test_without_conditions_the_symptom_tells_incidents_apart() -> None:
    one = incident(conditions=(), symptoms=("WAITS", "DISORDER"), cause="NO_SINGLE_CAUSE")
    assert key_of(one) == key_of(replace(one, symptoms=("WAITS",)))
    assert key_of(one) != key_of(replace(one, symptoms=("DISORDER",)))
    two = ("topic = a", "key = b")
    assert key_of(incident(conditions=two)) == key_of(incident(conditions=two[::-1]))


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (MUTE, {"until_ms": NOW_MS + 1}, "why: found no text"),
        (MUTE, {"why": "x", "until_ms": NOW_MS}, "expected a time within the next 90 days"),
        (MUTE, {"why": "x", "until_ms": NOW_MS + 91 * 24 * HOUR_MS}, "expected a time within the next 90 days"),
        (ACKNOWLEDGE, {"why": "x" * 501}, "found 501 characters"),
        (REOPEN, {}, "found no acknowledgement"),
        (UNMUTE, {}, "found no mute"),
    ],
)
def test_acts_that_cannot_be(
    handled: HandledIncidents, kind: IncidentActKind, settings: dict[str, Any], expected: str
) -> None:
    """They are refused, and leave nothing behind: neither an act nor a line of the audit log."""
    with pytest.raises(InvalidAct, match=expected):
        handled.act(incident(), kind, ANN, NOW_MS, **settings)
    assert state(handled, incident()) == (False, False, 0)


def test_each_act_is_in_the_audit_log_or_is_not_done(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    handled = HandledIncidents(tmp_path / "incidents.sqlite", log)
    assert state(handled, incident()) == (False, False, 0)
    assert not (tmp_path / "incidents.sqlite").exists()  # reading writes nothing
    handled.act(incident(), MUTE, ANN, NOW_MS, why="known", until_ms=NOW_MS + HOUR_MS)
    (one,) = read_audit(log).changes
    assert (one.who, one.action, one.door) == ("ann", "mute-incident", "page")
    assert one.parameters["conditions"] == "client_host = 10.2.0.0"
    assert (one.parameters["why"], one.parameters["until"]) == ("known", "2026-11-23 01:00:00 UTC")
    with pytest.raises(AuditFailed):
        HandledIncidents(tmp_path / "incidents.sqlite", tmp_path).act(incident(), ACKNOWLEDGE, ANN, NOW_MS)
    assert state(handled, incident()) == (False, True, 1)


def test_a_damaged_file_is_unknown(tmp_path: Path) -> None:
    """The incidents are shown, and the answer says that nothing is known of their handling."""
    path = tmp_path / "incidents.sqlite"
    path.write_bytes(b"no database" * 500)
    handled = HandledIncidents(path, tmp_path / "audit.jsonl")
    with pytest.raises(HandlingFailed):
        handled.of([incident()], NOW_MS)
    found = handled.shown_in(IncidentsAnswer(Scope(NOW_MS), 0, NOW_MS, (incident(),)), NOW_MS)
    assert found.incidents[0].handling is None
    assert "acknowledged and muted incidents are unknown" in found.scope.omissions[0]


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        (("operator",), True),
        (("operator@shop",), True),
        (("viewer+bodies",), False),
        (("operator@other",), False),
        (("operator@shop/orders", "viewer"), False),
    ],
)
def test_operators_of_all_topics_handle_incidents(grants: tuple[str, ...], expected: bool) -> None:
    sources = Sources.open(None, "127.0.0.1:1")
    person = Person("ann", tuple(map(Grant.parse, grants)))
    seen = SeenSources(sources, KnownClusters(sources), lambda: person)
    if expected:
        seen.check_incident(incident())
        seen.check_incident()
        return
    with pytest.raises(NotAllowed):
        seen.check_incident(incident())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[ShownIncident]:
    """What a search of the lake finds."""
    incidents = [incident()]

    def search(*_: Any, **__: Any) -> IncidentsAnswer:
        return IncidentsAnswer(Scope(NOW_MS, first_ms=0, end_ms=NOW_MS), 0, NOW_MS, tuple(incidents))

    monkeypatch.setattr(Answers, "incidents", search)
    monkeypatch.setattr(Answers, "kept_incidents", lambda *_: ())
    return incidents


def test_an_incident_of_now_comes_before_the_kept_one(
    found: list[ShownIncident], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For pages, HTTP and commands. What a search does not find is as the lake keeps it; commands take a beginning."""
    (one,) = found
    gone = incident(incident_id=f"{one.incident_id[:2]}000000", message_count=1)
    monkeypatch.setattr(Answers, "kept_incidents", lambda *_: (replace(one, message_count=1), gone))
    lake = Answers(None)
    assert incident_with_id(lake, one.incident_id, NOW_MS).message_count == one.message_count == 7
    assert incident_with_id(lake, one.incident_id[:3], NOW_MS, is_beginning=True).message_count == 7
    assert incident_with_id(lake, gone.incident_id, NOW_MS) == gone
    for wrong, settings in ((one.incident_id[:3], {}), ("none", {"is_beginning": True}), (gone.incident_id, CODES)):
        with pytest.raises(UnknownIncident, match="pass its from and to") as raised:
            incident_with_id(lake, wrong, NOW_MS, **settings)
        assert raised.value.scope.end_ms == NOW_MS
    with pytest.raises(AmbiguousIncident, match="found 2 incidents that begin with"):
        incident_with_id(lake, one.incident_id[:2], NOW_MS, is_beginning=True)


def test_the_http_api(handled: HandledIncidents, found: list[ShownIncident], lake_path: Path) -> None:
    """`/incidents` shows what `/incidents/acts` recorded; an unknown id and a wrong act are problems."""
    (one,) = found
    app = make_api(Sources.open(lake_path, ""), handled=handled)
    with serving(app) as url, httpx.Client(base_url=url + API_PREFIX, timeout=60) as client:

        def act(**order: Any) -> httpx.Response:
            return client.post("/incidents/acts", json={"incident_id": one.incident_id, **order})

        assert client.get("/incidents").json()["incidents"][0]["handling"]["history"] == []
        assert act(kind="acknowledge", why="disk is full").json()["acknowledged"]["why"] == "disk is full"
        shown = client.get("/incidents").json()["incidents"][0]["handling"]
        assert (shown["acknowledged"]["door"], shown["muted"]) == ("api", None)
        assert act(kind="mute").status_code == 422
        assert act(kind="unmute").status_code == 422
        assert act(kind="forget").status_code == 422
        assert act(kind="reopen", incident_id="none").status_code == 404
        assert client.get("/incidents/acts").status_code == 405


def test_an_alert_honours_a_mute(handled: HandledIncidents, found: list[ShownIncident], tmp_path: Path) -> None:
    """Nothing is raised until the mute is over; an alert that is open stays, and its end is sent."""
    rule = Rule(name="causes", measure=Measure.INCIDENTS, above=5, channels=("ops",), max_age="100000d")
    sources = Sources.open(tmp_path, "")

    def look(at_ms: int, before: dict[str, SubjectPhase]) -> tuple[dict[str, SubjectPhase], list[AlertPhase]]:
        phases, alerts = step(rule, measure(rule, sources, at_ms, handled), before, at_ms)
        return phases, [one.phase for one in alerts]

    (one,) = found
    handled.act(one, MUTE, ANN, NOW_MS, why="known", until_ms=NOW_MS + HOUR_MS)
    phases, alerts = look(NOW_MS, {})
    assert (phases, alerts) == ({}, [])
    phases, alerts = look(NOW_MS + HOUR_MS, phases)
    assert (list(phases), alerts) == (["shop BAD_HOST client_host = 10.2.0.0"], [AlertPhase.BAD])
    handled.act(one, MUTE, ANN, NOW_MS + HOUR_MS, why="known", until_ms=NOW_MS + 2 * HOUR_MS)
    phases, alerts = look(NOW_MS + HOUR_MS + 1, phases)
    assert (len(phases), alerts) == (1, [])
    found.clear()
    assert look(NOW_MS + HOUR_MS + 2, phases) == ({}, [AlertPhase.GOOD])


def test_an_alert_is_raised_once_whatever_the_order_of_conditions(found: list[ShownIncident], tmp_path: Path) -> None:
    """A later search may name the conditions in another order, with more messages and another end."""
    rule = Rule(name="causes", measure=Measure.INCIDENTS, above=5, channels=("ops",), max_age="100000d")
    sources = Sources.open(tmp_path, "")
    two = ("topic = orders", "client_host = 10.2.0.0")
    raised: list[int] = []
    phases: dict[str, SubjectPhase] = {}
    for number, conditions in enumerate((two, two[::-1])):
        found[:] = [incident(conditions=conditions, message_count=7 + number, end_ms=NOW_MS + number)]
        phases, alerts = step(rule, measure(rule, sources, NOW_MS + number), phases, NOW_MS + number)
        raised.append(len(alerts))
    assert raised == [1, 0]
    assert list(phases) == ["shop BAD_HOST client_host = 10.2.0.0 AND topic = orders"]


def test_unknown_mutes_silence_nothing(found: list[ShownIncident], tmp_path: Path) -> None:
    """An alert is raised, and says that the mutes could not be read."""
    path = tmp_path / "incidents.sqlite"
    path.write_bytes(b"no database" * 500)
    rule = Rule(name="causes", measure=Measure.INCIDENTS, above=5, channels=("ops",), max_age="100000d")
    handled = HandledIncidents(path, tmp_path / "audit.jsonl")
    (one,) = measure(rule, Sources.open(tmp_path, ""), NOW_MS, handled)
    assert (one.value, one.is_muted) == (7.0, False)
    assert "are unknown" in one.why
    assert one.query == "verdict:HUNG from:2026-11-22T23:00:00 to:2026-11-22T23:10:01"
