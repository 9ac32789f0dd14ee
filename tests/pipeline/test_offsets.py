"""Offset arithmetic: only forward, nothing read twice, every queue makes progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.pipeline.offsets import (
    QueueRange,
    advance,
    offsets_from_json,
    offsets_to_json,
    pack_ranges,
    ranges_between,
    split_ranges,
)
from mqtrail.wire import MessageQueue

QUEUES = [
    MessageQueue(topic, broker, queue_id) for topic in "AB" for broker in ("b.0/x", "b:1") for queue_id in (0, 10)
]
OFFSETS = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 10**6), min_size=1)


@given(OFFSETS)
def test_json_round_trip(offsets: dict[MessageQueue, int]) -> None:
    """With any broker name, offsets are read back from their JSON unchanged."""
    assert offsets_from_json(offsets_to_json(offsets)) == offsets


@pytest.mark.parametrize(
    "value",
    [[], {"t": 1}, {"t": {"b": 1}}, {"t": {"b": {"x": 1}}}, {"t": {"b": {"0": "1"}}}, {"t": {"b": {"0": True}}}],
)
def test_json_of_another_shape(value: object) -> None:
    """Anything else is refused, so that a mistyped option does not become an empty read."""
    with pytest.raises(ValueError, match="expected"):
        offsets_from_json(value)


@given(OFFSETS, OFFSETS, st.none() | st.integers(1, 2 * 10**6))
def test_advance(start: dict[MessageQueue, int], target: dict[MessageQueue, int], count_max: int | None) -> None:
    """A micro-batch never goes back or past the target, respects the limit, and makes progress while there is
    backlog."""
    end = advance(start, target, count_max)
    assert set(end) == set(start)
    for queue, at in end.items():
        assert start[queue] <= at <= max(start[queue], target.get(queue, 0))
    taken = sum(end[queue] - start[queue] for queue in start)
    backlog = sum(max(target.get(queue, 0) - start[queue], 0) for queue in start)
    assert taken <= (backlog if count_max is None else min(count_max, backlog))
    assert (taken > 0) == (backlog > 0)


def test_a_small_queue_is_not_starved() -> None:
    """Every queue with backlog makes progress in every micro-batch, however large another queue is."""
    small, large = QUEUES[:2]
    assert advance({small: 0, large: 0}, {small: 3, large: 10**9}, 100) == {small: 1, large: 99}


@given(OFFSETS, OFFSETS, st.integers(0, 20), st.none() | st.integers(1, 5))
def test_partitions_cover_exactly(
    start: dict[MessageQueue, int], end: dict[MessageQueue, int], partitions_min: int, partitions_max: int | None
) -> None:
    """Split and joined ranges cover each offset of [start, end) once, in the requested number of partitions."""
    ranges = ranges_between(start, end)
    pieces = split_ranges(ranges, partitions_min)
    hands = pack_ranges(pieces, partitions_max)
    dealt = sorted(piece for hand in hands for piece in hand)
    assert dealt == sorted(pieces)
    assert all(piece.count for piece in dealt)
    for each in ranges:
        own = [piece for piece in dealt if piece.queue == each.queue]
        assert [each.start, *(piece.end for piece in own)] == [*(piece.start for piece in own), each.end]
    total = sum(each.count for each in ranges)
    assert len(pieces) >= min(partitions_min, total)
    assert partitions_max is None or len(hands) <= partitions_max


def test_a_new_queue_is_read_from_the_next_batch_on() -> None:
    """A queue that is missing at the start is read from the next batch on: its logged offset is its first."""
    assert ranges_between({QUEUES[0]: 1}, {QUEUES[0]: 3, QUEUES[1]: 50}) == [QueueRange(QUEUES[0], 1, 3)]
