"""Episodes: runs of buckets in which bad units are more frequent than usual."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.trail.incidents.episodes import maximal_runs, spans

DOUBT = 0.001


def test_even_failures_are_no_episode() -> None:
    """At a constant rate there is no episode; the rest is from the first bad unit to the last."""
    chance = random.Random(1)
    bad = {bucket: 1 for bucket in range(500) if chance.random() < 0.2}
    [left] = spans(bad, dict.fromkeys(range(500), 100), DOUBT, 5)
    assert not left.is_raised
    assert left.bad_count == len(bad)


def test_burst_is_found_among_single_failures() -> None:
    """A burst of ten buckets is found exactly; the single failures are the rest."""
    chance = random.Random(2)
    bad = {bucket: 1 for bucket in range(500) if chance.random() < 0.05}
    bad = {bucket: 1 for bucket in bad if not 190 <= bucket < 220} | dict.fromkeys(range(200, 210), 30)
    burst, left = spans(bad, dict.fromkeys(range(500), 100), DOUBT, 5)
    assert (burst.first, burst.end, burst.is_raised) == (200, 210, True)
    assert left.bad_count == sum(count for bucket, count in bad.items() if not 200 <= bucket < 210)
    assert left.holes == ((200, 210),)


def test_units_of_one_message_are_no_independent_proof() -> None:
    """Eight bad units in a quiet time are an episode, but not if they are two messages of four groups."""
    bad, every = {100: 8}, dict.fromkeys(range(300), 50)
    assert [one.is_raised for one in spans(bad, every, DOUBT, 5)] == [True]
    assert not any(one.is_raised for one in spans(bad, every, DOUBT, 5, 4.0))


def test_few_bad_units_are_nothing() -> None:
    """Below the minimum there is no episode and no rest."""
    assert spans({3: 2, 9: 2}, dict.fromkeys(range(20), 10), DOUBT, 5) == []


@given(st.lists(st.integers(-5, 5), max_size=14))
def test_maximal_runs_are_those_of_the_definition(scores: list[int]) -> None:
    """The best of all runs is found; runs do not overlap, and each begins and ends with a gain."""
    runs = maximal_runs(scores)
    best = max((sum(scores[a:b]) for a, b in itertools.combinations(range(len(scores) + 1), 2)), default=0)
    assert max((score for *_, score in runs), default=0) == pytest.approx(max(best, 0))
    for first, end, score in runs:
        assert score == sum(scores[first:end]) > 0
        assert scores[first] > 0
        assert scores[end - 1] > 0
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(runs))
