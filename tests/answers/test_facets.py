"""Facets of a search, and names to complete it with: equal to what searches find, bounded, confined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pytest

from mqtrail.answers import Answers, FacetsAnswer, SearchConditions, Sources, Trajectory, parse_query
from mqtrail.answers.access import Grant, KnownClusters, NotAllowed, Person, SeenSources
from mqtrail.answers.facets import _counted_range, _latest_hours
from mqtrail.answers.lakeview import LakeView
from mqtrail.answers.search import condition
from mqtrail.trail import CODES
from tests.answers.lakes import BY_NAME


@pytest.fixture(scope="module")
def sources(lake_path: Path) -> Iterator[Sources]:
    """The lake, kept open between questions."""
    opened = Sources.open(lake_path, "")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def answers(sources: Sources) -> Answers:
    return sources.of_lake()


def counts(answer: FacetsAnswer) -> dict[str, dict[str, int]]:
    """Return the counts by field and value."""
    return {one.field: {each.value: each.message_count for each in one.values} for one in answer.facets}


def expected(found: tuple[Trajectory, ...], group: str) -> dict[str, Counter[str]]:
    """Return the counts of messages. group: the one of the search; then verdicts of others do not count."""
    result: dict[str, Counter[str]] = {
        name: Counter() for name in ("verdict", "topic", "group", "tag", "broker", "reason")
    }
    for one in found:
        groups = [each for each in one.groups if group in ("", each.group_name)]
        codes = {*one.send_codes, *one.message_codes, one.knowledge, *(code for each in groups for code in each.codes)}
        reasons = {*one.reasons, *(reason for each in groups for reason in each.reasons)}
        for name, values in {
            "verdict": codes,
            "topic": {one.topic},
            "group": {one.producer_group, *(each.group_name for each in one.groups)},
            "tag": {one.tags},
            "broker": {one.place.partition("/")[0]},
            "reason": {reason.partition("(")[0] for reason in reasons},
        }.items():
            result[name].update(values - {""})
    return result


@pytest.mark.parametrize("text", ["", "group:CG2", "verdict:CONSUMED", "topic:none"])
def test_counts_are_those_of_the_matches(answers: Answers, text: str) -> None:
    """Each message counts once for a value. A field that the search has already is left out."""
    wanted = parse_query(text, 0)
    answer = answers.facets(wanted, 0, values_max=100)
    found = answers.search(replace(wanted, limit=100), 0)
    assert (answer.matched_count, answer.counted_count) == (found.matched_count, found.matched_count)
    own = text.partition(":")[0]
    rows = expected(found.trajectories, wanted.group_name)
    assert counts(answer) == {name: dict(some) for name, some in rows.items() if name != own}


def test_a_term_finds_what_was_counted(answers: Answers) -> None:
    """A click adds the term of a value to the search, which then finds that many messages."""
    asked = "tag:TagA group:CG"
    answer = answers.facets(parse_query(asked, 0), 0, values_max=100)
    for facet in answer.facets:
        assert facet.value_count == len(facet.values)
        for one in facet.values[-1:]:
            found = answers.search(parse_query(f"{asked} {one.term}", 0), 0)
            assert found.matched_count == one.message_count, one.term


def test_values_are_bounded_the_most_frequent_first(answers: Answers) -> None:
    """The answer says how many values it leaves out."""
    answer = answers.facets(SearchConditions(), 0, values_max=2)
    verdicts = answer.facets[0]
    assert [one.value for one in verdicts.values] == ["SEND_OK", "COMPLETE"]
    assert verdicts.value_count > 2
    left = f"verdict: {verdicts.value_count - 2} of {verdicts.value_count} values are left out, the rarest"
    assert left in answer.scope.omissions


def test_of_many_matches_the_latest_are_counted(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> None:
    """The answer says how many, and of how many: what is not counted is never shown as 0."""
    monkeypatch.setattr("mqtrail.answers.facets.COUNTED_MAX", 5)
    answer = answers.facets(SearchConditions(), 0)
    assert (answer.matched_count, answer.counted_count) == (len(BY_NAME), 5)
    assert any(one.startswith(f"the latest 5 of {len(BY_NAME)} matching") for one in answer.scope.omissions)
    assert counts(answer)["topic"] == {"orders": 5}


def test_the_condition_is_evaluated_once(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> None:
    """A search reads its files once for the counts; only with very many matches also for their number."""
    asked: list[SearchConditions] = []

    def counted(wanted: SearchConditions) -> tuple[str, list[Any]]:
        asked.append(wanted)
        return condition(wanted)

    monkeypatch.setattr("mqtrail.answers.facets.condition", counted)
    answers.facets(SearchConditions(topic="orders"), 0)
    assert asked == [SearchConditions(topic="orders")]


def test_the_latest_seconds_are_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a second that would exceed the bound nothing is counted, unless it is the latest one: then a part."""
    duck = duckdb.connect()
    columns = "send_start_ms bigint, stored_ms bigint, visible_ms bigint, last_event_ms bigint"
    duck.execute(f"CREATE TABLE trajectories ({columns})")
    at_ms = [9_999, 9_000, 8_500, 8_400, 8_000, 5_000, 5_001, 5_002]
    duck.executemany("INSERT INTO trajectories VALUES (?, NULL, NULL, 0)", [[one] for one in at_ms])
    view = SimpleNamespace(define_views=lambda *_: None, connection=duck)
    found = {}
    for most in (1, 2, 4, 5, 7, 8):
        monkeypatch.setattr("mqtrail.answers.facets.COUNTED_MAX", most)
        found[most] = _counted_range(cast("LakeView", view), SearchConditions())
    assert found == {1: (8, 9_000), 2: (8, 9_000), 4: (8, 9_000), 5: (8, 8_000), 7: (8, 8_000), 8: (8, None)}


def test_names_of_the_lake(answers: Answers) -> None:
    """Those of messages and of groups that only samples show; all verdict codes; addresses of hosts."""
    found = answers.search_names(0)
    assert found.names["topic"] == ("orders",)
    assert found.names["group"] == ("CG", "CG2", "PG")
    assert found.names["host"] == ("10.0.0.1", "10.0.0.2")
    assert found.names["broker"] == ("broker-a",)
    assert "GROUP_NOT_TRACED" in found.names["reason"]
    assert found.names["verdict"] == tuple(sorted(CODES))
    assert f"tags, reasons and producer groups are those of {len(BY_NAME)} messages" in " ".join(found.scope.omissions)
    assert found.scope.first_ms is not None


def test_names_come_from_the_latest_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as have enough messages together; earlier files are not read."""
    files = [SimpleNamespace(hour=hour, row_count=30) for hour in (7, 9, None, 8, 9)]
    table = SimpleNamespace(files=lambda: files)
    view = cast("LakeView", SimpleNamespace(lookup=SimpleNamespace(lake={"trajectories": table})))
    found = {}
    for most in (1, 60, 61, 90, 1_000):
        monkeypatch.setattr("mqtrail.answers.facets.COUNTED_MAX", most)
        found[most] = _latest_hours(view)
    assert found == {1: [9], 60: [9], 61: [9, 8], 90: [9, 8], 1_000: [9, 8, 7]}


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch, lake_path: Path) -> None:
    monkeypatch.setattr("mqtrail.answers.facets.VALUES_MAX", 2)
    found = Answers(lake_path).search_names(0)
    assert found.names["group"] == ("CG", "CG2")
    assert "group: more than 2 names are known, the first ones are listed" in found.scope.omissions


def test_a_role_on_a_topic_sees_its_values_alone(sources: Sources) -> None:
    """Other topics are neither counted nor named, nor are hosts, which are about all topics."""

    def seen(grant: str) -> Answers:
        person = Person("ann", (Grant.parse(grant),))
        return SeenSources(sources, KnownClusters(sources), lambda: person).of_lake()

    orders, parcels = seen("viewer/orders"), seen("viewer/parcels")
    assert orders.facets(SearchConditions(), 0).matched_count == len(BY_NAME)
    assert parcels.facets(SearchConditions(), 0).matched_count == 0
    names = parcels.search_names(0).names
    assert names["topic"] == ("parcels",)
    assert (names["group"], names["host"], names["broker"]) == ((), (), ())
    for refused in (
        lambda: parcels.facets(SearchConditions(topic="orders"), 0),
        lambda: parcels.search_names(0, "orders"),
    ):
        with pytest.raises(NotAllowed):
            refused()
