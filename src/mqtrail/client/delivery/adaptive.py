"""AdaptiveLimit: a number of handlers that follows their latency, between two bounds.

    window    max(50, limit) calls of handlers; their average is the short-term latency
    baseline  the long-term latency, of handlers that do not delay each other
    step      after each window. Short-term latency within 1.5 baselines: limit + sqrt(limit), otherwise
              limit * 1.5 baselines / latency, at least half. No step if fewer than half of the handlers were running.
    probe     each 50th window has half the limit. If its handlers are faster, they were delaying each other, and the
              baseline follows.

A faster window moves the baseline by a tenth of the difference, one twice as fast by all of it. A slower one moves it
only at the lower bound: there the handlers cannot delay each other, so the work itself has become slower. An average of
all windows would follow an overload, and the limit would drift to its upper bound.
Source: Gradient2Limit of Netflix/concurrency-limits has the ratio, its bounds, the rule of half the handlers, and such
an average.
"""

from math import sqrt
from typing import Final

WINDOW_COUNT: Final = 50
PROBE_WINDOWS: Final = 50
TOLERANCE: Final = 1.5
FOLLOW: Final = 0.1  # part of the difference by which a faster window moves the baseline
RELEARN: Final = 0.5  # the same for a slower one at the lower bound, or in a probe and within the tolerance


class AdaptiveLimit:
    """The limit of one consumer. It starts at the lower bound, where the baseline is learned."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._exact = float(least)
        self._probed = 0.0  # the limit before the probe; 0: no probe
        self._windows = 0
        self._skipped = 0  # handlers left that began under another limit
        self._sum_s = 0.0
        self._count = 0
        self._peak = 0
        self.limit = least
        self.baseline_s = 0.0  # 0: unknown

    def observe(self, latency_s: float, running: int, *, succeeded: bool) -> None:
        """Add the latency of a handler. running: number of handlers that ran when it ended, itself included.

        A failed handler counts only if it was slow: failing fast does not mean that the work is fast.
        """
        if not succeeded and (not self.baseline_s or latency_s <= TOLERANCE * self.baseline_s):
            return
        if self._skipped:
            self._skipped -= 1
            return
        self._sum_s += latency_s
        self._count += 1
        self._peak = max(self._peak, running)
        if self._count >= max(WINDOW_COUNT, self.limit):
            self._end_window(self._sum_s / self._count)
            self._sum_s, self._count, self._peak = 0.0, 0, 0

    def _end_window(self, short_s: float) -> None:
        self._learn(short_s)
        is_busy = self._peak >= self.limit / 2  # otherwise the latency says nothing about more handlers
        if self._probed:
            self._exact, self._probed, is_busy = self._probed, 0.0, False
        self._windows += 1
        if is_busy:
            free_s = TOLERANCE * self.baseline_s
            faster = short_s <= free_s
            self._exact = self._exact + sqrt(self._exact) if faster else self._exact * max(0.5, free_s / short_s)
            self._exact = min(float(self._most), max(float(self._least), self._exact))
        if is_busy and self._windows % PROBE_WINDOWS == 0 and self._exact >= 2 * self._least:
            self._probed, self._skipped = self._exact, self.limit
            self._exact /= 2
        self.limit = int(self._exact)

    def _learn(self, short_s: float) -> None:
        slower_s = short_s - self.baseline_s
        if not self.baseline_s or (self._probed and slower_s < 0) or short_s < self.baseline_s / 2:
            self.baseline_s = short_s
        elif slower_s < 0:
            self.baseline_s += FOLLOW * slower_s
        elif self.limit <= self._least or (self._probed and short_s <= TOLERANCE * self.baseline_s):
            self.baseline_s += RELEARN * slower_s
