"""When each send is due, and which may begin now. No clock in here: times are arguments, seconds from the begin.

The times do not depend on answers: that is what makes the load open. A send that cannot begin at its time, because too
many are in flight or because this process is busy, begins later, and its latency counts from its time. One that could
not begin until the end is counted as not sent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .plan import Arrivals

LATE_S: Final = 0.1  # a send that begins this much after its time is late
ROUNDING_S: Final = 1e-9  # sums such as 0.1 + 0.05 must not give one send more
INFINITE: Final = float("inf")


def arrival_times(arrivals: Arrivals, rate: float, end_s: float, chance: random.Random) -> Iterator[float]:
    """Yield the times of sends, `rate` a second, below end_s."""
    number, at_s = 0, chance.expovariate(rate) if arrivals is Arrivals.POISSON else 0.0
    end_s -= ROUNDING_S
    while at_s < end_s:
        yield at_s
        number += 1
        at_s = at_s + chance.expovariate(rate) if arrivals is Arrivals.POISSON else number / rate


@dataclass(slots=True)
class Lateness:
    """Numbers of sends. due: their time came. by_bound: late because in_flight sends had no answer. by_generator: late
    because this process was busy. not_sent: their time came, and they did not begin until the end."""

    due: int = 0
    started: int = 0
    by_bound: int = 0
    by_generator: int = 0
    not_sent: int = 0

    @property
    def late(self) -> int:
        """Those that began late."""
        return self.by_bound + self.by_generator


class Pacer:
    """Says which send may begin. counted_from_s: earlier ones (the warm-up) are not counted in `lateness`."""

    def __init__(self, times: Iterator[float], in_flight_max: int, counted_from_s: float = 0.0) -> None:
        self._times = times
        self._in_flight_max = in_flight_max
        self._counted_from_s = counted_from_s
        self._next_s = next(times, INFINITE)
        self._held_until_s = -INFINITE  # sends whose time is not after this had to wait for the bound
        self._number = 0
        self.in_flight = 0
        self.in_flight_most = 0
        self.lateness = Lateness()

    @property
    def next_s(self) -> float:
        """Time of the next send; infinite after the last."""
        return self._next_s

    @property
    def is_full(self) -> bool:
        """Whether as many sends are in flight as may be."""
        return self.in_flight >= self._in_flight_max

    def take(self, now_s: float) -> tuple[int, float] | None:
        """Begin the next send if it is due and there is room: return its number and its time."""
        at_s = self._next_s
        if at_s > now_s:
            return None
        if self.in_flight >= self._in_flight_max:
            self._held_until_s = now_s
            return None
        number = self._number
        self._number += 1
        self._next_s = next(self._times, INFINITE)
        self.in_flight += 1
        self.in_flight_most = max(self.in_flight_most, self.in_flight)
        if at_s >= self._counted_from_s:
            counts = self.lateness
            counts.due += 1
            counts.started += 1
            if now_s - at_s > LATE_S:
                if at_s <= self._held_until_s:
                    counts.by_bound += 1
                else:
                    counts.by_generator += 1
        return number, at_s

    def done(self) -> None:
        """A send has ended, with or without an acknowledgement."""
        self.in_flight -= 1

    def stop(self, now_s: float) -> None:
        """Begin no more sends. Those that were due until now are not sent."""
        while self._next_s <= now_s:
            if self._next_s >= self._counted_from_s:
                self.lateness.due += 1
                self.lateness.not_sent += 1
            self._next_s = next(self._times, INFINITE)
        self._next_s = INFINITE
