"""Virtual time: events in an order that only the seed decides.

    engine = Engine(seed)
    engine.after(5.0, lambda: ...)      # ms
    engine.run_until(60_000.0)

Two runs of one seed do the same in the same order: nothing uses the machine's time, randomness or order of sets.
"""

import heapq
import random
from collections.abc import Callable

START_MS = 1_700_000_000_000  # the wall clocks at virtual time 0


class Timer:
    """A scheduled event, which can be cancelled."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class Engine:
    """The clock, the randomness and the schedule of one simulated life."""

    def __init__(self, seed: int, *, keeps_log: bool = False) -> None:
        """keeps_log: keep every log line, to analyse a failing seed."""
        self.seed = seed
        self.start_ms = START_MS
        self.chance = random.Random(seed)
        self.now_ms = 0.0
        self.log_lines: list[str] = []
        self._keeps_log = keeps_log
        self._agenda: list[tuple[float, int, Timer]] = []
        self._number = 0

    def after(self, delay_ms: float, act: Callable[[], None]) -> Timer:
        """Call act in delay_ms."""
        self._number += 1
        timer = Timer(act)
        heapq.heappush(self._agenda, (self.now_ms + max(0.0, delay_ms), self._number, timer))
        return timer

    def run_until(self, end_ms: float) -> None:
        """Run all events that are due before end_ms."""
        while self._agenda and self._agenda[0][0] < end_ms:
            self.now_ms, _, timer = heapq.heappop(self._agenda)
            if timer.act is not None:
                timer.act()
        self.now_ms = max(self.now_ms, end_ms)

    def between(self, least: float, most: float) -> float:
        return self.chance.uniform(least, most)

    def happens(self, rate: float) -> bool:
        return rate > 0 and self.chance.random() < rate

    def log(self, text: str) -> None:
        """Keep a line with its time, if the log is kept."""
        if self._keeps_log:
            self.log_lines.append(f"{self.now_ms:10.2f} {text}")
