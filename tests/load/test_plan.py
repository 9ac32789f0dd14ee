"""Sizes, plans, bodies, and the table of fates."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.load import SIZE_MIN, InvalidPlan, LoadPlan, Sizes
from mqtrail.load.ledger import NAMED_MAX, SEEN_MAX, Ledger, SendFate, Unread
from mqtrail.load.marks import Bodies, MarkKind, mark_of
from mqtrail.load.resources import ProcessWatch, use_of

PLAN = LoadPlan(topic="T", group="G", rate=100, duration_s=10)


@pytest.mark.parametrize(
    ("text", "smallest", "largest"),
    [("512", 512, 512), ("100-4KiB", 100, 4_096), ("1KiB:9, 1MiB:1", 1_024, 1 << 20), ("64 - 64", 64, 64)],
)
def test_sizes(text: str, smallest: int, largest: int) -> None:
    """A size, a range, sizes with weights; drawn by the seed alone."""
    sizes = Sizes.parse(text)
    assert (sizes.smallest, sizes.largest) == (smallest, largest)
    draws = [sizes.draw(random.Random(5)) for _ in range(2)]
    drawn = [draws[0]() for _ in range(500)]
    assert drawn == [draws[1]() for _ in range(500)]
    assert {smallest, largest} >= {min(drawn), max(drawn)} or "-" in text
    assert smallest <= min(drawn) <= max(drawn) <= largest
    if sizes.weights:
        assert Counter(drawn)[1_024] > Counter(drawn)[1 << 20] > 0
    assert Sizes.parse(str(sizes)) == sizes


@pytest.mark.parametrize("text", ["", "-5", "5-", "9-5", "1:0", "1:2,3", "1:-2", "x", "1.5", "10GiB", "²", "1:²"])
def test_no_sizes(text: str) -> None:
    """Found, expected."""
    with pytest.raises(ValueError, match=r"found .* expected"):
        Sizes.parse(text)
    with pytest.raises(ValueError, match="at most 16"):
        Sizes.parse(",".join(["1:1"] * 17))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rate", 0.0, "more than 0"),
        ("rate", -1.0, "more than 0"),
        ("rate", float("nan"), "more than 0"),
        ("rate", 2e6, "1000000"),
        ("rate", 1e6, "shorten the run"),
        ("duration_s", 0.0, "duration"),
        ("duration_s", 90_000.0, "24h"),
        ("warm_up_s", -1.0, "warm-up"),
        ("sizes", Sizes((SIZE_MIN - 1, 100)), "at least 40"),
        ("keys", -1, "keys"),
        ("producers", 0, "producers"),
        ("consumers", 257, "consumers"),
        ("batch", 0, "batch"),
        ("in_flight", 0, "in flight"),
        ("delay_level", -1, "delay level"),
        ("drain_s", -1.0, "drain"),
        ("ordered", True, "pass --keys"),
    ],
)
def test_a_plan_that_is_not_possible(field: str, value: object, words: str) -> None:
    """Each bound has its error."""
    wrong: dict[str, Any] = {"duration_s": 60.0 if field == "rate" else PLAN.duration_s, field: value}
    with pytest.raises(InvalidPlan, match=words):
        replace(PLAN, **wrong)
    others: tuple[dict[str, Any], ...] = ({"batch": 2}, {"ordered": True, "keys": 2})
    for more in others:
        with pytest.raises(InvalidPlan, match="expected one of them"):
            replace(PLAN, delay_level=3, **more)


def test_a_send_that_is_too_large() -> None:
    """All messages of a batch together."""
    large = replace(PLAN, sizes=Sizes((40, 1_000)), batch=5)
    large.check_size(5_000)
    with pytest.raises(InvalidPlan, match="at most 4999 bytes"):
        large.check_size(4_999)


@given(st.binary(max_size=80))
def test_a_body_of_others_has_no_mark(body: bytes) -> None:
    """Whatever another program sends."""
    assert (mark_of(body) is None) == (len(body) < SIZE_MIN or not body.startswith(b"MQLD"))


@given(st.integers(0, 2**40), st.integers(SIZE_MIN, 200_000))
def test_a_changed_body_is_noticed(number: int, size: int) -> None:
    """Of any length; the mark is read back."""
    bodies = Bodies(b"12345678", 1, 200_000)
    body = bodies.make(MarkKind.LOAD, size, number, -7, 3)
    mark = mark_of(body)
    assert mark is not None
    assert len(body) == size
    assert mark[1:] == (MarkKind.LOAD, size, number, -7, 3)
    assert bodies.is_whole(body, mark)
    assert not bodies.is_whole(body + b"x", mark)
    if size > SIZE_MIN:
        assert not bodies.is_whole(body[:-1] + bytes([body[-1] ^ 1]), mark)


def test_fates() -> None:
    """Each message is counted once, whatever comes first, its answer or its delivery."""
    ledger = Ledger(keys=2)
    for number in range(8):
        ledger.begin(number)
    assert ledger.deliver(0, key=0), "before its answer"
    for number in (0, 1, 2, 3):
        ledger.settle(number, SendFate.ACKNOWLEDGED, f"id{number}")
    ledger.settle(4, SendFate.NOT_STORED)
    ledger.settle(5, SendFate.UNCERTAIN)
    ledger.settle(6, SendFate.UNCERTAIN)
    assert [ledger.deliver(number, number % 2) for number in (3, 1, 5, 3, 9_999_999, 8)] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert ledger.counts == [0, 1, 4, 1, 2]
    assert (ledger.consumed, ledger.acknowledged_consumed, ledger.unsettled_read()) == (4, 3, 1)
    assert (ledger.repeated, ledger.repeated_numbers()) == (1, (3,))
    assert (ledger.unread_count, ledger.unread()) == (1, (Unread(2, "id2"),))
    assert ledger.out_of_order == 1, "1 after 3, both of key 1"
    assert ledger.unsent_seen == 2
    for _ in range(300):
        ledger.deliver(3)
    assert ledger.repeated == 301
    assert ledger._seen[3] == SEEN_MAX


def test_ids_are_kept_of_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded: beyond the bound a message is named by its number alone."""
    monkeypatch.setattr("mqtrail.load.ledger.NAMED_MAX", 2)
    assert NAMED_MAX >= 2
    ledger = Ledger()
    for number in range(4):
        ledger.begin(number)
        ledger.settle(number, SendFate.ACKNOWLEDGED, f"id{number}")
    ledger.deliver(0)
    assert ledger.unread() == (Unread(1, "id1"), Unread(2, ""), Unread(3, ""))


def test_the_use_of_a_process(tmp_path: Path) -> None:
    """CPU between the samples and the most memory; a process that is gone, or another system, is unknown."""
    folder = tmp_path / "7"
    folder.mkdir()

    def written(ticks: int, pages: int) -> None:
        (folder / "stat").write_text(f"7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 {ticks} 5 0 0")
        (folder / "statm").write_text(f"99 {pages} 1")

    watch = ProcessWatch(7, tmp_path)
    written(100, 50)
    assert watch.sample() == 0.0
    written(300, 20)
    first = use_of(7, tmp_path)
    assert first is not None
    assert watch.sample() == watch.cpu_s == pytest.approx(200 / (305 / first.cpu_s))
    assert watch.memory_size_most == first.memory_size // 20 * 50
    (folder / "stat").write_text("torn")
    assert (watch.sample(), use_of(7, tmp_path), use_of(8, tmp_path)) == (None, None, None)
    assert watch.cpu_s is not None
    assert ProcessWatch(8, tmp_path).cpu_s is None
