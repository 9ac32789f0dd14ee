"""Cuts the bad units of one symptom into episodes: times in which they are more frequent than usual.

The input is a count of all and of bad units per bucket of time. A bucket scores the logarithm of how much better a
raised rate explains it than the usual one. An episode is a maximal run of buckets by the sum of scores, as in
Ruzzo and Tompa's "all maximal scoring subsequences", that passes a bound corrected for the number of buckets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RAISED = 4.0
"""The raised rate, in usual rates."""
ROUNDS = 3
"""How often the usual rate is estimated again without the episodes found."""


Bucket = tuple[int, int]
"""Bad and all units of a bucket."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Buckets [first, end) with their bad units.

    is_raised: they are more frequent than usual; otherwise it is what is left beside the raised spans, its holes.
    """

    first: int
    end: int
    bad_count: int
    is_raised: bool
    holes: tuple[tuple[int, int], ...] = ()


def spans(
    bad: Mapping[int, int], all_units: Mapping[int, int], doubt: float, bad_count_min: float, repeated: float = 1.0
) -> list[Excess]:
    """Return the raised spans in order, and the range of the remaining bad units if they are enough.

    bad, all_units: bucket -> count; a bucket without units is missing. repeated: bad units per bad message. Those of
    one message are no independent proof, so the bounds rise with it.
    """
    buckets = sorted(all_units.keys() | bad.keys())
    series = [(bad.get(bucket, 0), all_units.get(bucket, 0)) for bucket in buckets]
    bound = math.log(max(1, len(buckets)) ** 2 / doubt) * repeated  # so many runs are possible
    found: list[Excess] = []
    for _ in range(ROUNDS):
        usual = _usual_rate(
            [one for bucket, one in zip(buckets, series, strict=True) if not _is_in(found, bucket)], series
        )
        before, found = found, []
        for run in _runs(series, 0, len(series), usual, RAISED * usual):
            first, end = _core(series, run, usual)
            count, units = _sums(series[first:end])
            if count >= bad_count_min * repeated and _gain(count, units, usual, count / max(1, units)) >= bound:
                found.append(Excess(buckets[first], buckets[end - 1] + 1, count, True))
        if found == before:
            break
    left = [bucket for bucket in buckets if bad.get(bucket) and not _is_in(found, bucket)]
    count = sum(bad[bucket] for bucket in left)
    if count >= bad_count_min * repeated:
        holes = tuple((span.first, span.end) for span in found)
        found.append(Excess(left[0], left[-1] + 1, count, False, holes))
    return found


def _is_in(found: Sequence[Excess], bucket: int) -> bool:
    return any(span.first <= bucket < span.end for span in found)


def _sums(series: Sequence[Bucket]) -> Bucket:
    return sum(bad for bad, _ in series), sum(units for _, units in series)


def _usual_rate(quiet: Sequence[Bucket], series: Sequence[Bucket]) -> float:
    """The mean rate of the quiet buckets, or their median if it is lower and not 0; never 0 itself."""
    least = 1.0 / max(1, _sums(series)[1])
    bad, units = _sums(quiet)
    if not units:
        return least
    rates = sorted(bad / max(1, units) for bad, units in quiet)
    median = rates[len(rates) // 2]
    return min(0.5, max(min(bad / units, median) if median else bad / units, least))


def _runs(series: Sequence[Bucket], first: int, end: int, usual: float, raised: float) -> list[tuple[int, int]]:
    """Return the runs [first, end) that a raised rate explains best."""
    scores = [_gain(bad, units, usual, min(raised, 0.9)) for bad, units in series[first:end]]
    return [(first + a, first + b) for a, b, _ in maximal_runs(scores)]


def _core(series: Sequence[Bucket], run: tuple[int, int], usual: float) -> tuple[int, int]:
    """Cut single failures beside a burst: look again with a rate between the usual one and that of the run."""
    bad, units = _sums(series[run[0] : run[1]])
    raised = max(RAISED * usual, math.sqrt(usual * bad / max(1, units)))
    runs = _runs(series, *run, usual, raised)
    return max(runs, key=lambda one: _sums(series[one[0] : one[1]])[0], default=run)


def _gain(bad: int, units: int, usual: float, rate: float) -> float:
    """How much better a rate explains the units than the usual one; 0 if it is not the higher one."""
    return bad * math.log(rate / usual) - units * (rate - usual) if rate > usual else 0.0


def maximal_runs(scores: Sequence[float]) -> list[tuple[int, int, float]]:
    """Return the maximal scoring runs [first, end) with their sums, in order."""
    runs: list[tuple[int, int, float, float]] = []  # first, end, sum before the run, sum with the run
    total = 0.0
    for place, score in enumerate(scores):
        before, total = total, total + score
        if score <= 0:
            continue
        first, low, high = place, before, total
        while True:
            index = next((i for i in range(len(runs) - 1, -1, -1) if runs[i][2] < low), None)
            if index is None or runs[index][3] >= high:
                break
            first, low = runs[index][0], runs[index][2]
            del runs[index:]
        runs.append((first, place + 1, low, high))
    return [(first, end, high - low) for first, end, low, high in runs]
