"""Values counted into buckets, as Prometheus draws distributions."""

from bisect import bisect_left
from collections.abc import Iterator


class Histogram:
    """bounds: the upper ends of the buckets, which belong to them, ascending; one more takes what is beyond."""

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
        """Yield each bucket's end, "+Inf" last, and how many values are at or below it."""
        count = 0
        for end, more in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            count += more
            yield end, count
