"""How values look on a page: times, durations, counts, CSV cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from mqtrail.answers import moment_text, number_text
from mqtrail.wire import visible

UNKNOWN: Final = "?"
_RUNS: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet runs a cell that begins with one of these as a formula; the last four are the others in full width."""


def moment(at_ms: int | None, zone: tzinfo = UTC) -> str:
    """Return a time with milliseconds, '?' if unknown."""
    return moment_text(at_ms, "%Y-%m-%d %H:%M:%S.%f", cut=3, zone=zone)


def zone_of(name: str | None) -> tzinfo:
    """Return the zone with this name, as browsers report it, such as Asia/Shanghai; UTC if there is none."""
    try:
        return ZoneInfo(name or "UTC")
    except (ValueError, OSError, KeyError):  # found no name, a folder, or nothing
        return UTC


def local_ms(text: str, zone: tzinfo) -> int | None:
    """Return the epoch ms of a field's time in a zone; None: the field is empty, or not filled in completely."""
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1_000)
    except (ValueError, OverflowError):
        return None


def duration(ms: float | None) -> str:
    """Return a duration with a unit that fits, '?' if unknown."""
    if ms is None:
        return UNKNOWN
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= size:
            return f"{number_text(ms / size)} {unit}"
    return f"{ms:.0f} ms"


def count(number: int | None, *, is_lower_bound: bool = False) -> str:
    """Return a number, '?' if unknown, '≥' before a lower bound."""
    if number is None:
        return UNKNOWN
    return f"≥ {number:,}" if is_lower_bound else f"{number:,}"


def csv_text(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV, one line a row: control and invisible characters in texts are escaped.

    A text that a spreadsheet would run gets an apostrophe before it. All texts are in quotes: where a spreadsheet
    separates cells by semicolons, as in many countries, a formula behind one would otherwise begin a cell.
    """
    to = io.StringIO()
    writer = csv.writer(to, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(headings)
    for row in rows:
        writer.writerow([_cell(one) if isinstance(one, str) else one for one in row])
    return to.getvalue()


def _cell(text: str) -> str:
    text = visible(text)
    return f"'{text}" if text.startswith(_RUNS) else text
