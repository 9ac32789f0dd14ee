"""The judgements that a lake holds: whether the last one is complete, and with which thresholds each was made.

A judgement is committed to one gold table after the other, under one app and its instant. Between two of these commits,
and after a crash there, the tables hold judgements of different instants.

The thresholds are a note at the table of verdicts.

Each judgement is of one instant, later than those before it, and its rows carry it. So the note need only say from
which instant on which settings were in force. It is a property of the Delta table: kept as long as the table is,
compacted or not. It is written before the verdicts; a judgement that dies in between leaves a note no row asks for.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final

from mqtrail.trail import KEY_INDEX, LATENCY_MINUTE, TRAJECTORIES, VERDICTS, Settings

from .edge import RESTORE
from .errors import LakeDamaged
from .tables import Lake, LakeTable

KEY: Final = "mqtrail.judged"
CHANGES_MAX: Final = 100  # older ones are forgotten: what they were in force for is not known then

JUDGED_APP: Final = "gold"
"""App of a judgement's commits; their batch is the instant of the judgement, epoch ms."""
JUDGED: Final = (TRAJECTORIES, VERDICTS, LATENCY_MINUTE, KEY_INDEX)
"""What a judgement replaces, in the order of its commits."""
_REFRESH_MAX: Final = 3  # how often a judgement that is being committed is looked at again

Notes = list[tuple[int, dict[str, int]]]
"""From which instant on (epoch ms), and every setting by its name; oldest first."""


def note_settings(table: LakeTable, settings: Settings, as_of_ms: int) -> None:
    """Note what a judgement as of an instant is made with, unless that is in force already. table: the verdicts."""
    notes = _read(table)
    values = settings.values()
    kept = [note for note in notes if note[0] < as_of_ms]  # what was noted for later ones was never judged
    if not kept or kept[-1][1] != values:
        kept.append((as_of_ms, values))
    if kept != notes:
        table.note(KEY, json.dumps(kept[-CHANGES_MAX:]))


def settings_at(lake: Lake, instants: Iterable[int]) -> dict[int, Mapping[str, int] | None]:
    """Return instant -> every setting with which the verdicts as of it were judged; None: the lake does not tell."""
    notes = _read(lake[VERDICTS.name])
    firsts = [first_ms for first_ms, _ in notes]
    places = {as_of_ms: bisect_right(firsts, as_of_ms) for as_of_ms in instants}
    return {as_of_ms: notes[place - 1][1] if place else None for as_of_ms, place in places.items()}


def _read(table: LakeTable) -> Notes:
    text = table.noted(KEY)
    try:
        return [] if text is None else [(int(first_ms), dict(values)) for first_ms, values in json.loads(text)]
    except (ValueError, TypeError) as error:
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
