"""Incidents of labelled synthetic lakes: the first cause is right, and no cause is named without its evidence."""

from __future__ import annotations

import random

import pytest
from tests.trail.incident_faults import FAULTS
from tests.trail.incident_lakes import AS_OF_MS, BEGIN_MS, CLUSTER, END_MS, READ, TOPICS, IncidentLake

from mqtrail.trail.incidents import NO_SINGLE_CAUSE, Incident, IncidentSettings, find_incidents

SEEDS = range(1, 6)
SOME = 3  # of the seeds, unless the run is thorough
HIDDEN_SEEDS = range(1, 3)
FAST = ("bad host", "rebalance storm")


def incidents_of(lake: IncidentLake, settings: IncidentSettings | None = None) -> tuple[Incident, ...]:
    """Search the whole lake."""
    return find_incidents(
        lake.ask, settings or IncidentSettings(), found_ms=AS_OF_MS, from_ms=BEGIN_MS - 120_000, to_ms=END_MS + 120_000
    )


def with_fault(name: str, seed: int, *, second: bool = True) -> tuple[IncidentLake, str]:
    """Return a lake with a fault and a smaller, unrelated one in a group of another topic, and the right condition."""
    lake = IncidentLake(seed)
    group = lake.group()
    expected = FAULTS[name].put(lake, group, FAULTS[name].minutes)
    if second:
        apart = {name, "broker restart", "fail-over", "wrong clock", "consumer ahead", "deployment"}
        others = sorted(set(FAULTS) - apart)
        other = random.Random(f"{name}{seed}").choice(others)
        FAULTS[other].put(lake, f"G{(int(group[1]) + 1 + seed % (TOPICS - 1)) % TOPICS}a", 3)
    return lake, expected


def is_right(found: tuple[Incident, ...], cause: str, condition: str) -> bool:
    """Whether one incident has this cause and condition, and at most one other has a name: that of the second fault."""
    named = [one for one in found if one.cause != NO_SINGLE_CAUSE.name]
    return len(named) <= 2 and any(one.cause == cause and condition in conditions_of(one) for one in named)


def conditions_of(one: Incident) -> tuple[str, ...]:
    """The conditions of an incident and those of equal extent."""
    return (*one.conditions.split(" AND "), *one.same_conditions.split("; "))


@pytest.mark.parametrize("name", FAST)
def test_cause_is_right(name: str) -> None:
    """Each fault, beside a second one, with one seed."""
    lake, expected = with_fault(name, 0)
    found = incidents_of(lake)
    assert is_right(found, FAULTS[name].cause, expected), found
    right = next(one for one in found if one.cause == FAULTS[name].cause)
    assert right.end_ms - right.begin_ms <= (FAULTS[name].minutes + 1) * 60_000
    assert found[0].lift is None or found[0].lift >= 3
    assert found[0].inside_bad_count >= 5
    assert found[0].examples
    for ids in (one.split(",") for each in found for one in (each.examples, each.good_examples)):
        assert len(ids) == len(set(ids)), "a message that several groups consume is shown once"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_cause_is_right_in_many_lakes(name: str, thorough: bool) -> None:
    """Each fault, beside a second one, with several seeds."""
    wrong = []
    for seed in SEEDS if thorough else SEEDS[:SOME]:
        lake, expected = with_fault(name, seed)
        found = incidents_of(lake)
        if not is_right(found, FAULTS[name].cause, expected):
            wrong.append((seed, expected, [(one.cause, one.conditions) for one in found]))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_no_cause_is_named_without_its_evidence(name: str) -> None:
    """Without the evidence of its cause, an incident may be found but has no cause."""
    for seed in HIDDEN_SEEDS:
        lake, _ = with_fault(name, seed, second=False)
        for sql in FAULTS[name].hide:
            lake.ask(sql)
        found = incidents_of(lake)
        assert {one.cause for one in found} <= {NO_SINGLE_CAUSE.name}, (seed, found)


def test_poison_key_beside_a_group_that_fails() -> None:
    """Another group of the topic fails on most messages, also on those with the key: the key stays the cause."""
    lake = IncidentLake(6, messages=6_000)
    expected = FAULTS["poison key"].put(lake, "G2a", 15)
    lake.verdict(
        "codes = 'CONSUMED,CONSUMED_AFTER_RETRY', failure_count = 1, detail = 'OSError: No space left on device'",
        "group_name = 'G2b' AND hash(msg_id || 'fails') % 10 < 9",
    )
    found = incidents_of(lake)
    assert any(one.cause == "POISON_KEY" and expected in conditions_of(one) for one in found), found


@pytest.mark.parametrize("is_known", [True, False])
def test_fail_over_of_the_only_group(is_known: bool) -> None:
    """All messages are of one broker, so no condition tells the bad ones from others: the event of the broker does."""
    lake = IncidentLake(3, messages=6_000)
    lake.ask("UPDATE trajectories SET broker_name = 'broker-a'")
    FAULTS["fail-over"].put(lake, "G1a", 5)
    lake.ask("UPDATE trajectories SET broker_name = 'broker-a'")
    lake.ask("UPDATE broker_events SET event_broker_name = 'broker-a'")
    if not is_known:
        lake.ask("DELETE FROM broker_events")
    [one] = [each for each in incidents_of(lake) if each.symptoms.startswith("SENDS_FAIL")]
    assert one.cause == ("MASTER_CHANGED" if is_known else NO_SINGLE_CAUSE.name)
    assert ("changes of the master" in one.neighbours) is is_known


def test_healthy_lake_has_no_incident() -> None:
    """Single failures of every kind are no incident."""
    assert incidents_of(IncidentLake(0)) == ()


@pytest.mark.slow
def test_clusters_are_searched_apart() -> None:
    """A fault of one cluster is reported for it alone, and is not hidden by the good messages of another cluster."""
    lake = IncidentLake(4, messages=6_000)
    expected = FAULTS["bad host"].put(lake, "G2b", 15)
    other = IncidentLake(5, messages=6_000)
    for relation in READ:
        lake.duck.register("others", other.duck.sql(f"SELECT * FROM {relation.name}").to_arrow_table())
        lake.ask(f"INSERT INTO {relation.name} SELECT * REPLACE ('other' AS cluster) FROM others")
    [one] = incidents_of(lake)
    assert (one.cluster, one.cause) == (CLUSTER, "BAD_HOST")
    assert expected in conditions_of(one)


@pytest.mark.slow
def test_healthy_lakes_have_no_incident(thorough: bool) -> None:
    """Single failures of every kind are no incident, with more seeds."""
    seeds = range(1, 11 if thorough else 5)
    assert {seed: incidents_of(IncidentLake(seed)) for seed in seeds} == dict.fromkeys(seeds, ())
