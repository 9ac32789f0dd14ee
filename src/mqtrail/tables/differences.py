"""What a comparison of a table with its source says: rows that differ, and how."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from mqtrail.binlog import SourceConfig
from mqtrail.client import InstanceConfig
from mqtrail.trail import ProofResult


class RowFault(StrEnum):
    """How a row differs."""

    MISSING = "missing"  # the source has it, the table does not
    EXTRA = "extra"  # the table has it, the source does not
    DIFFERENT = "different"
    LATE = "late"  # the table has not read a change of it yet
    UNKNOWN = "unknown"  # it is not known whether the table has read all changes of it


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """Both sides. state: file of `binlog run`, which says what was sent; None: not known. rows_max: rows that are named
    of each sort."""

    table: Path
    source: SourceConfig
    namesrv: str
    state: Path | None = None
    excluded: tuple[str, ...] = ()
    rows_max: int = 20
    retry_timeout_ms: int = 30_000
    instance: InstanceConfig = field(default_factory=InstanceConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A row that differs. columns: name -> [value in the source, value in the table]. position, msg_id: of the change
    that the table has. messages: ids of the row's messages in the topic, oldest first, at most MESSAGES_MAX."""

    sort: RowFault
    key: str
    columns: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    position: str = ""
    msg_id: str = ""
    messages: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """The result. counts: rows by sort. rows: examples of each sort. columns: how many different rows each column has.

    read_to: place in the binlog up to which the table has read. is_cut: it ended at DIFFERENCES_MAX. lag_ms: age of the
    oldest change that is late; 0: none is.
    """

    outcome: ProofResult
    source: str
    topic: str
    table: str
    version: int
    source_rows: int
    table_rows: int
    source_place: str
    read_to: str
    parts: int
    parts_different: int
    counts: dict[str, int]
    columns: dict[str, int]
    rows: tuple[RowDifference, ...]
    out_of_order: int
    is_cut: bool
    lag_ms: int
    notes: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class FoundRow:
    """A row that differs, before it is known why. has: what the table has of it; None: nothing."""

    key: str
    columns: dict[str, tuple[Any, Any]]
    in_source: bool
    in_table: bool


def hint_of(expected: Any, found: Any) -> str:
    """Return what may have happened to a value; '': nothing known. expected: in the source."""
    if not isinstance(expected, str) or not isinstance(found, str):
        return ""
    apart = _apart(expected, found)
    if found and len(found) < len(expected) and expected.startswith(found) and apart is None:
        return f"cut after {len(found)} of {len(expected)} characters"
    if apart is not None:
        quarter = timedelta(minutes=15)
        if apart and not apart % quarter and abs(apart) <= timedelta(hours=26):
            sign = "-" if apart < timedelta() else "+"
            minutes = abs(apart) // timedelta(minutes=1)
            return f"{sign}{minutes // 60:02}:{minutes % 60:02}, as of another time zone"
    return ""


def _apart(expected: str, found: str) -> timedelta | None:
    """Return the time between two moments, each with or without Z; None: one is none."""
    with suppress(ValueError):
        first, second = (datetime.fromisoformat(text.removesuffix("Z")) for text in (expected, found))
        return second - first if first.tzinfo is second.tzinfo is None else None
    return None
