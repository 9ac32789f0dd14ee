"""The judgements that a lake holds: whether the last one is complete, and with which thresholds each was made.

A judgement is one batch of the lake, whose number is its instant. Its tables are committed one after the other: between
two of these commits, and after a crash there, the tables contain judgements of different instants. The batch's notes
say which silver files it has seen: of each writer, those up to a number.

The thresholds are a property of the verdicts table. Each judgement has an instant, later than all earlier ones, and its
rows contain that instant. So the property lists from which instant on which settings applied. It survives compaction.
It is written before the verdicts: a crash in between leaves an entry without rows.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mqtrail.trail import APPENDED, GROUP_FOLDS, VERDICTS, Settings

from .batches import FOLDER as BATCHES
from .batches import LakeBatch
from .edge import RESTORE
from .errors import LakeDamaged, LakeError
from .lake import Lake
from .tables import LakeTable, has_log

KEY: Final = "mqtrail.judged"
CHANGES_MAX: Final = 100  # older entries are dropped; the thresholds of their rows are then unknown

JUDGED_APP: Final = "gold"
"""App of a judgement's commits; their batch is the instant of the judgement, epoch ms."""
JUDGED: Final = APPENDED
"""What a judgement appends to."""
_REFRESH_MAX: Final = 3  # how often the tables are read again while a judgement is being committed

_BATCH_FOLDER: Final = re.compile(r"batch=([^/]+)-(\d+)/")  # the folder of a batch; writers make others below it

Notes = list[tuple[int, dict[str, int]]]
"""(first instant in epoch ms, setting name -> value), oldest first."""


def is_judged(path: str, notes: Mapping[str, Any]) -> bool:
    """Return whether a judgement with these notes has seen a file of silver. Only such files are joined with others."""
    found = _BATCH_FOLDER.match(path)
    return found is None or int(found[2]) <= notes["attempts"].get(found[1], -1)


def seen_up_to(paths: Iterable[str], notes: Mapping[str, Any]) -> dict[str, int]:
    """Return the last number of silver files by writer, in the notes and in these files."""
    seen: dict[str, int] = dict(notes.get("attempts", {}))
    for path in paths:
        if found := _BATCH_FOLDER.match(path):
            seen[found[1]] = max(seen.get(found[1], -1), int(found[2]))
    return seen


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


def last_judgement(lake: Lake) -> LakeBatch | None:
    """Return the judgement whose counts a reader's snapshot has. None: there is none, or it cannot be read."""
    number = lake[GROUP_FOLDS.name].last_batch(JUDGED_APP) if not lake[GROUP_FOLDS.name].is_lost else None
    if number is None or not has_log(lake.path / BATCHES):
        return None
    for _ in range(_REFRESH_MAX):
        try:
            lake.batches.refresh()
            last = lake.batches.last(JUDGED_APP)
        except LakeError:  # a writer has replaced the record meanwhile, or it is damaged
            continue
        return last if last is not None and last.number == number else None
    return None


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
