"""AdaptiveLimit: simulated handlers whose latency grows with their number, on a clock of their own."""

import heapq
import random
from collections.abc import Callable
from statistics import fmean

import pytest

from mqtrail.client.delivery.adaptive import PROBE_WINDOWS, WINDOW_COUNT, AdaptiveLimit


def limits_over(
    limit: AdaptiveLimit,
    count: int,
    capacity: int,
    *,
    noise: float = 0.0,
    alone_s: Callable[[int], float] = lambda done: 1.0,
    offered: int = 1_000,
) -> tuple[list[int], float]:
    """Return the limit after each of count handlers, and handlers per second of the second half.

    `capacity` handlers run without delaying each other; n of them take n / capacity times as long as one alone. At most
    `offered` messages are there at once.
    """
    chance = random.Random(7)
    now, half_s, found = 0.0, 0.0, []
    running: list[tuple[float, float]] = []
    for done in range(count):
        while len(running) < min(limit.limit, offered):
            factor = max(1.0, (len(running) + 1) / capacity) * chance.uniform(1 - noise, 1 + noise)
            heapq.heappush(running, (now + alone_s(done) * factor, now))
        now, since = heapq.heappop(running)
        limit.observe(now - since, len(running) + 1, succeeded=True)
        found.append(limit.limit)
        half_s = now if done == count // 2 else half_s
    return found, count / 2 / (now - half_s)


@pytest.mark.parametrize("capacity", [5, 20, 60])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_limit_finds_the_capacity(capacity: int, noise: float) -> None:
    """The handlers stay busy, and no more than about twice as many run as can without delaying each other."""
    found, rate = limits_over(AdaptiveLimit(1, 500), 12_000, capacity, noise=noise)
    settled = found[4_000:]
    assert capacity <= fmean(settled) <= 2 * capacity
    assert max(settled) <= 2.5 * capacity
    assert rate >= 0.9 * capacity


def test_a_fixed_number_would_delay_the_work() -> None:
    """The same handlers without a limit take 25 times as long each, for the same rate."""
    fixed, rate = limits_over(AdaptiveLimit(500, 500), 12_000, 20)
    assert set(fixed) == {500}
    assert rate == pytest.approx(20, rel=0.05)


def test_the_limit_follows_the_work() -> None:
    """Work that becomes eight times slower is learned at the lower bound, and faster work by the probes."""
    found, _ = limits_over(
        AdaptiveLimit(1, 200), 30_000, 20, alone_s=lambda done: 8.0 if 6_000 <= done < 14_000 else 1.0
    )
    assert fmean(found[10_000:14_000]) == pytest.approx(30, rel=0.4)
    assert fmean(found[20_000:]) <= 45


def test_it_stays_within_its_bounds() -> None:
    """Handlers without capacity keep the lower bound, unlimited ones reach the upper one."""
    found, _ = limits_over(AdaptiveLimit(3, 50), 3_000, 1)
    assert min(found) == 3
    assert max(found[1_000:]) <= 8
    found, _ = limits_over(AdaptiveLimit(3, 50), 3_000, 10_000)
    assert found[0] == 3
    assert set(found[2_000:]) == {50, 25}, "25: a probe"


def test_few_messages_do_not_raise_it() -> None:
    """While less than half of the handlers run, their latency says nothing about more of them."""
    found, _ = limits_over(AdaptiveLimit(10, 500), 3_000, 20, offered=4)
    assert set(found) == {10}


def test_fast_failures_are_ignored_slow_ones_count() -> None:
    """Failing fast is no proof of speed; timeouts are one of overload."""
    limit = AdaptiveLimit(4, 100)
    for _ in range(WINDOW_COUNT):
        limit.observe(5.0, 4, succeeded=False)
    assert limit.baseline_s == 0
    for _ in range(8 * WINDOW_COUNT):
        limit.observe(1.0, limit.limit, succeeded=True)
    assert limit.baseline_s == 1.0
    raised = limit.limit
    assert raised > 20
    for _ in range(3 * WINDOW_COUNT):
        limit.observe(0.001, raised, succeeded=False)
    assert (limit.limit, limit.baseline_s) == (raised, 1.0)
    for _ in range(WINDOW_COUNT):
        limit.observe(30.0, raised, succeeded=False)
    assert limit.limit == raised // 2


def test_a_clock_that_stands_still_divides_nothing() -> None:
    """Latencies of 0 raise the limit."""
    limit = AdaptiveLimit(1, 100)
    for _ in range(PROBE_WINDOWS * 100):
        limit.observe(0.0, limit.limit, succeeded=True)
    assert limit.limit in (100, 50)
