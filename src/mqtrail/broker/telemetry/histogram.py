"""Histograms as in Prometheus: counts of values by bucket."""

from bisect import bisect_left
from collections.abc import Iterator


class Histogram:
    """bounds: inclusive upper bounds of the buckets, ascending; a last bucket counts larger values."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Yield the upper bound of each bucket, "+Inf" last, and the number of values up to it."""
        count = 0
        for end, more in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            count += more
            yield end, count
