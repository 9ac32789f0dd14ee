"""A report on a terminal of 80 columns: what is wrong is on the first screen, whatever the number of groups."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from mqtrail import trail
from mqtrail.answers import CodeCount, LagRow, LatencyRow, Report, Scope
from mqtrail.cli.draw_report import report
from mqtrail.cli.options import REPORT_ROWS

WIDTH = 80
SCREEN_LINES = 60
GROUPS = [f"group-{number:02}" for number in range(75)]
SEGMENTS = ("to_stored", "delay", "to_delivered", "retry", "handler", "total")


def codes() -> tuple[CodeCount, ...]:
    """Two codes of each group, the worst first."""
    return tuple(
        CodeCount(
            "c", code, group, trail.CODES[code].severity, 10_000, "C00002022DDD227371A2728FDC780066", "It happened."
        )
        for code in ("DUPLICATE_PROCESSING", "CONSUMED")
        for group in GROUPS
    )


FOUND = Report(
    scope=Scope(1_700_000_000_000, ("lake x",)),
    message_count=750_000,
    judged_with=(),
    codes=codes(),
    latency=tuple(
        LatencyRow("c", "orders", group, segment, 10_000, 5.0, 100.0 + number, 20_000.0)
        for number, group in enumerate(GROUPS)
        for segment in SEGMENTS
    ),
    lag=tuple(LagRow("c", group, "orders", 1_700_000_000_000, 7, None, 8) for group in GROUPS),
    worst=(),
    rejects=0,
    gaps=tuple(f"gap {number}" for number in range(40)),
)


def drawn(found: Report, rows_max: int = REPORT_ROWS) -> list[str]:
    """Return the lines of a report."""
    to = StringIO()
    Console(file=to, width=WIDTH, color_system=None).print(report(found, rows_max))
    return to.getvalue().splitlines()


def test_many_groups_fit_one_screen() -> None:
    """Each cut table has the number of omitted rows; codes and ids are complete; the worst rows are shown."""
    lines = drawn(FOUND)
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert text.count("DUPLICATE_PROCESSING  group-") == REPORT_ROWS
    assert "C00002022DDD227371A2728FDC780066" in text
    for note in ("142 more codes", "67 more topics and groups", "67 more groups and topics", "35 further gaps"):
        assert note in text
    assert "group-74" in text  # the slowest


def test_ids_can_be_copied_beside_long_names() -> None:
    """A long name of a group is broken, and not the id beside it."""
    name = "consumer-of-payments-and-refunds"
    lines = drawn(replace(FOUND, codes=tuple(replace(row, about=name) for row in codes()[:3])))
    assert sum("C00002022DDD227371A2728FDC780066" in line for line in lines) == 3
    assert max(map(len, lines)) <= WIDTH


def test_all_rows_on_request() -> None:
    """All rows are shown, without a line about omitted ones."""
    text = "\n".join(drawn(FOUND, 1_000))
    assert " more " not in text
    assert text.count("CONSUMED ") == len(GROUPS)


def test_unknown_lag_is_no_lag_of_zero() -> None:
    """A group whose age is unknown stays in the table; one without lag is only counted."""
    rows = (
        LagRow("c", "unknown", "t", 1, 0, None, 1),
        LagRow("c", "idle", "t", 1, 0, 0, 1),
        LagRow("c", "late", "t", 1, 3, 4_000, 1),
        LagRow("c", "beyond", "t", 1, None, None, 2, 2),
        LagRow("c", "partly", "t", 1, 5, None, 2, 1),
    )
    text = "\n".join(drawn(replace(FOUND, lag=rows)))
    assert "idle" not in text
    assert "1 groups and topics without lag" in text
    [line] = [line for line in text.splitlines() if line.startswith("unknown  t")]
    assert line.split()[-1] == "unknown"
    [line] = [line for line in text.splitlines() if line.startswith("beyond")]
    assert line.split()[-2:] == ["unknown", "unknown"]
    [line] = [line for line in text.splitlines() if line.startswith("partly")]
    assert line.split()[-3:] == ["≥", "5", "unknown"]
