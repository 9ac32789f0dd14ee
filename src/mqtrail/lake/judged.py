"""The judgements that a lake holds: whether the last one is complete, and with which thresholds each was made.

A judgement is committed to one gold table after the other, under one app and its instant. Between two of these commits,
and after a crash there, the tables contain judgements of different instants.

The thresholds are a property of the verdicts table. Each judgement has an instant, later than all earlier ones, and its
rows contain that instant. So the property lists from which instant on which settings applied. It survives compaction.
It is written before the verdicts: a crash in between leaves an entry without rows.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final

from mqtrail.trail import KEY_INDEX, LATENCY_MINUTE, TRAJECTORIES, VERDICTS, Settings

from .edge import RESTORE
from .errors import LakeDamaged
from .lake import Lake
from .tables import LakeTable

KEY: Final = "mqtrail.judged"
CHANGES_MAX: Final = 100  # older entries are dropped; the thresholds of their rows are then unknown

JUDGED_APP: Final = "gold"
"""App of a judgement's commits; their batch is the instant of the judgement, epoch ms."""
JUDGED: Final = (TRAJECTORIES, VERDICTS, LATENCY_MINUTE, KEY_INDEX)
"""What a judgement replaces, in the order of its commits."""
_REFRESH_MAX: Final = 3  # how often a judgement that is being committed is looked at again

Notes = list[tuple[int, dict[str, int]]]
"""(first instant in epoch ms, setting name -> value), oldest first."""


def note_settings(table: LakeTable, settings: Settings, as_of_ms: int) -> None:
    """Store the settings of a judgement as of an instant, if they changed. table: the verdicts."""
    notes = _read(table)
    values = settings.values()
    kept = [note for note in notes if note[0] < as_of_ms]  # later entries are of judgements that never committed
    if not kept or kept[-1][1] != values:
        kept.append((as_of_ms, values))
    if kept != notes:
        table.note(KEY, json.dumps(kept[-CHANGES_MAX:]))


def settings_at(lake: Lake, instants: Iterable[int]) -> dict[int, Mapping[str, int] | None]:
    """Return instant -> settings with which verdicts as of it were judged; None: unknown."""

    notes = _read(lake[VERDICTS.name])
    firsts = [first_ms for first_ms, _ in notes]
    places = {as_of_ms: bisect_right(firsts, as_of_ms) for as_of_ms in instants}
    return {as_of_ms: notes[place - 1][1] if place else None for as_of_ms, place in places.items()}


def _read(table: LakeTable) -> Notes:
    text = table.noted(KEY)
    try:
        return [] if text is None else [(int(first_ms), dict(values)) for first_ms, values in json.loads(text)]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise LakeDamaged(f"{table.path}: found no list of settings under {KEY} ({error}): {RESTORE}") from error


def unfinished_judgement(lake: Lake) -> tuple[int, list[str]] | None:
    """Return the instant of the last judgement and the tables that lack it; None: all have it, or cannot be read.

    A writer may be committing it: the tables are read again, so that they agree as soon as it has.
    """
    tables = [lake[relation.name] for relation in JUDGED if not lake[relation.name].damage]
    for attempt in range(_REFRESH_MAX):
        if attempt:
            lake.refresh()
        instants = [table.last_batch(JUDGED_APP) for table in tables]
        if len(set(instants)) <= 1:
            return None
    last_ms = max(instant for instant in instants if instant is not None)
    return last_ms, [table.table.name for table, instant in zip(tables, instants, strict=True) if instant != last_ms]
