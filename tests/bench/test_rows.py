"""Rows are compared by the ratio of medians, and the table has the latest row of each figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.rows import Bar, Row

from bench import table

STAMP = {
    "machine": {"cpu": "C", "cores": 2, "memory_gib": 8.0, "kernel": "6", "python": "3.11"},
    "commit": "abc",
    "when": "2026-01-02T03:04:05+00:00",
}


def test_the_ratio_is_of_medians_and_its_range_of_rounds() -> None:
    """A slow round of one side moves the range, not the ratio."""
    row = Row("a", "b", "messages/s", [200, 100, 220], [100, 100, 200], "peer", Bar(">=", 2.0)).to_json()
    assert (row["ours"], row["peer"], row["ratio"], row["met"]) == (200, 100, 2.0, True)
    assert row["ratio_range"] == [1.0, 2.0]
    assert row["ours_range"] == [100, 220]
    assert row["bar"] == ">= 2×"


@pytest.mark.parametrize(("errors", "met"), [((0, 0), True), ((0, 9), True), ((1, 0), False)])
def test_an_error_of_ours_misses_the_bar(errors: tuple[int, int], met: bool) -> None:
    """A rate with errors misses its target; errors of the peer are only reported."""
    row = Row("a", "b", "ms", [1.0], [2.0], "peer", Bar("<=", 0.7), errors=errors)
    assert row.met is met


def test_a_bar_without_a_peer_is_for_our_median() -> None:
    """Without a peer there is no ratio, and a target for it cannot be reached."""
    row = Row("a", "b", "ms", [40.0, 60.0, 45.0], bar=Bar("<=", 50, of="ours"))
    assert row.met is True
    assert row.ratio is None
    assert Row("a", "b", "ms", [40.0], bar=Bar("<=", 50)).met is False
    assert Row("a", "b", "ms", [40.0]).met is None


def test_the_table_holds_the_latest_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is written between the markers, and replaced by the next one."""
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "README", tmp_path / "README.md")
    for day, rate in (("2026-01-01", 1_000.0), ("2026-01-02", 123_456.0)):
        row = {**Row("sends", "sends/s", "messages/s", [rate], [500.0], "Apache", Bar(">=", 1.1)).to_json(), **STAMP}
        (tmp_path / f"{day}.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "README.md").write_text(f"before\n{table.BEGIN}\n{table.END}\nafter\n")
    for _ in range(2):
        assert table.write_table() == 0
        text = (tmp_path / "README.md").read_text()
        assert text.startswith("before\n")
        assert text.endswith("\nafter\n")
        assert text.count("| sends |") == 1
        assert "123\u202f500" in text
        assert "1\u202f000 " not in text


def test_every_figure_is_registered() -> None:
    """The names that docs and Makefile use exist."""
    from bench.__main__ import register
    from bench.registry import FIGURES

    missing = register()
    assert set(missing) <= {"pipeline_bench"}
    assert {"sends", "cpu", "sync-flush", "pulls", "batches", "java", "latency", "start", "look-up"} <= FIGURES.keys()
