"""The schedule, with a clock of the test: what is due, what is late and why, what was not sent."""

from __future__ import annotations

import itertools
import math
import random

from hypothesis import given
from hypothesis import strategies as st

from mqtrail.load import Arrivals
from mqtrail.load.schedule import INFINITE, LATE_S, Pacer, arrival_times


def pacer(rate: float, end_s: float, in_flight_max: int = 1_000, counted_from_s: float = 0.0) -> Pacer:
    times = arrival_times(Arrivals.CONSTANT, rate, end_s, random.Random(1))
    return Pacer(times, in_flight_max, counted_from_s)


def begun(one: Pacer, now_s: float) -> list[tuple[int, float]]:
    return list(iter(lambda: one.take(now_s), None))


@given(st.floats(0.5, 5_000), st.floats(0.1, 3))
def test_constant_arrivals(rate: float, end_s: float) -> None:
    """Equal distances without drift, and as many as the rate says."""
    times = list(arrival_times(Arrivals.CONSTANT, rate, end_s, random.Random(1)))
    assert abs(len(times) - rate * end_s) < 1.001
    assert times[0] == 0.0
    assert times[-1] < end_s
    assert math.isclose(times[-1], (len(times) - 1) / rate)


def test_poisson_arrivals() -> None:
    """The mean rate and the spread of a Poisson process; the same seed gives the same times."""
    times = list(arrival_times(Arrivals.POISSON, 1_000, 20, random.Random("7")))
    assert times == list(arrival_times(Arrivals.POISSON, 1_000, 20, random.Random("7")))
    assert times == sorted(times)
    assert abs(len(times) - 20_000) < 4 * math.sqrt(20_000)
    gaps = [second - first for first, second in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert abs(math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean - 1) < 0.05


def test_a_slow_cluster_does_not_slow_the_schedule() -> None:
    """Each send keeps its time while the bound holds it; it is late because of the bound. The rest is not sent."""
    one = pacer(rate=100, end_s=1, in_flight_max=10)
    assert [number for number, _ in begun(one, 0.5)] == list(range(10)), "no more than may be in flight"
    assert one.is_full
    for _ in range(10):
        one.done()
    late = begun(one, 0.8)
    assert late == [(number, number / 100) for number in range(10, 20)], "with the times of the schedule"
    one.stop(0.995)
    counts = one.lateness
    # 0 to 4 are later than 0.1 s at 0.5 s though there was room: this process came late.
    assert (counts.due, counts.started, counts.not_sent) == (100, 20, 80)
    assert (counts.by_bound, counts.by_generator) == (10, 10)
    assert one.next_s == INFINITE
    assert one.in_flight_most == 10


def test_a_busy_generator_is_told_from_a_slow_cluster() -> None:
    """Sends that begin late though there is room are late because of this process."""
    one = pacer(rate=10, end_s=1)
    begun(one, 0.45)
    assert one.lateness.by_generator == sum(0.45 - number / 10 > LATE_S for number in range(5)) == 4
    assert one.lateness.by_bound == 0


@given(st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 20)), max_size=40), st.integers(1, 20))
def test_every_send_is_counted_once(steps: list[tuple[float, int]], in_flight_max: int) -> None:
    """Whatever the clock and the answers do: due = started + not sent, in order, never more in flight than may be."""
    one, now_s, numbers = pacer(50, 2, in_flight_max, counted_from_s=0.5), 0.0, []
    for step_s, answers in steps:
        now_s += step_s
        for _ in range(min(answers, one.in_flight)):
            one.done()
        numbers += [number for number, _ in begun(one, now_s)]
        assert one.in_flight <= in_flight_max
    one.stop(min(now_s, 2.0))
    assert numbers == list(range(len(numbers)))
    counts = one.lateness
    assert counts.due == counts.started + counts.not_sent
    assert counts.due == sum(0.5 <= number / 50 <= now_s for number in range(100)), "the warm-up is not counted"
    assert counts.late <= counts.started
