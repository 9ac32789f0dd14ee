"""The histogram beside the sorted values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.load import LatencyHistogram
from mqtrail.load.histogram import VALUE_MAX

values = st.lists(st.integers(0, VALUE_MAX) | st.integers(0, 2_000), min_size=1, max_size=200)


def histogram(of: list[int]) -> LatencyHistogram:
    found = LatencyHistogram()
    for value in of:
        found.add(value)
    return found


def exact(of: list[int], share: float) -> int:
    return sorted(of)[min(len(of), max(1, math.ceil(share * len(of)))) - 1]


@given(values, st.floats(0, 1))
def test_a_percentile_is_at_most_an_128th_too_high(of: list[int], share: float) -> None:
    """It is never too low, and never above the largest value. Small values, and the largest, are exact."""
    found, wanted = histogram(of).percentile(share), exact(of, share)
    assert found is not None
    assert wanted <= found <= min(max(of), wanted + wanted // 128)
    if wanted < 256:
        assert found == wanted
    assert histogram(of).percentile(1.0) == max(of)


@given(values, values)
def test_parts_merge_into_the_whole(one: list[int], other: list[int]) -> None:
    """Every figure of the merged histogram is that of all values together."""
    merged, whole = histogram(one), histogram([*one, *other])
    merged.merge(histogram(other))
    assert merged.mean == pytest.approx(sum([*one, *other]) / len([*one, *other]))
    assert (merged.count, merged.smallest, merged.largest) == (
        len(one) + len(other),
        min([*one, *other]),
        max([*one, *other]),
    )
    assert [merged.percentile(share) for share in (0.01, 0.5, 0.99)] == [
        whole.percentile(share) for share in (0.01, 0.5, 0.99)
    ]


def test_without_values_and_out_of_range() -> None:
    """Nothing is unknown, not 0. A clock that went back counts as 0, days count as the maximum."""
    empty = LatencyHistogram()
    assert (empty.percentile(0.5), empty.mean) == (None, None)
    found = histogram([-5, VALUE_MAX * 2])
    assert (found.smallest, found.largest, found.count) == (0, VALUE_MAX, 2)
