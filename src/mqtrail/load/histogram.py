"""A histogram of durations in bounded memory, with a bounded error of its percentiles.

Values are whole microseconds. Below 256 each value has its own bucket. From there on each doubling has 128 buckets, so
a bucket is at most 1/128 of its values wide. A percentile is the upper end of its bucket: never below the exact value,
and at most 1/128 (0.8 %) above it. Minimum, maximum, count and mean are exact.

It is our own because it is short: no library is a dependency for it, and DuckDB would need all values in memory.
"""

from __future__ import annotations

import math
from typing import Final

SUB_BITS: Final = 7
VALUE_MAX: Final = (1 << 40) - 1  # microseconds: 12 days; larger values are counted as this one
_EXACT_END: Final = 2 << SUB_BITS
_LENGTH: Final = ((VALUE_MAX.bit_length() - SUB_BITS - 1) << SUB_BITS) + _EXACT_END


class LatencyHistogram:
    """Counts of microseconds. Two histograms of parts merge into that of the whole."""

    __slots__ = ("_counts", "_sum", "count", "largest", "smallest")

    def __init__(self) -> None:
        self._counts = [0] * _LENGTH
        self._sum = 0
        self.count = 0
        self.smallest = VALUE_MAX
        self.largest = 0

    def add(self, value: int) -> None:
        """Count a value; a negative one as 0."""
        value = 0 if value < 0 else min(value, VALUE_MAX)
        self._counts[_bucket(value)] += 1
        self._sum += value
        self.count += 1
        if value > self.largest:
            self.largest = value
        if value < self.smallest:
            self.smallest = value

    def merge(self, other: LatencyHistogram) -> None:
        """Count the other's values too."""
        self._counts = [mine + more for mine, more in zip(self._counts, other._counts, strict=True)]
        self._sum += other._sum
        self.count += other.count
        self.largest = max(self.largest, other.largest)
        self.smallest = min(self.smallest, other.smallest)

    def percentile(self, share: float) -> int | None:
        """Return the value that `share` (0 to 1) of the values do not exceed; None without values."""
        if not self.count:
            return None
        rank = min(self.count, max(1, math.ceil(share * self.count)))
        for bucket, count in enumerate(self._counts):
            rank -= count
            if rank <= 0:
                return min(_end(bucket), self.largest)
        raise AssertionError("the counts have the sum `count`")

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return self._sum / self.count if self.count else None


def _bucket(value: int) -> int:
    if value < _EXACT_END:
        return value
    shift = value.bit_length() - SUB_BITS - 1
    return (shift << SUB_BITS) + (value >> shift)


def _end(bucket: int) -> int:
    """Return the largest value of a bucket."""
    if bucket < _EXACT_END:
        return bucket
    shift = (bucket >> SUB_BITS) - 1
    first = (bucket - (shift << SUB_BITS)) << shift
    return first + (1 << shift) - 1
