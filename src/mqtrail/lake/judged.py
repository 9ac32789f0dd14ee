"""The judgements that a lake holds: whether the last one is complete, and with which thresholds each was made.

A judgement is one batch of the lake, of one cluster. Its tables are committed one after the other: between two of these
commits, and after a crash there, the tables contain judgements of different instants. The batch's notes have the last
judgement of each cluster: its instant, and which silver files it has seen, of each writer those up to a number.

The thresholds are a property of the verdicts table. Each judgement of a cluster has a later instant than those before
it, and its rows contain that instant. So the property lists from which instant on which settings applied to which
cluster. It survives compaction. It is written before the verdicts: a crash in between leaves an entry without rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from mqtrail.trail import APPENDED, GROUP_FOLDS, VERDICTS, Settings

from .batches import FOLDER as BATCHES
from .batches import LakeBatch
from .edge import RESTORE
from .errors import LakeDamaged, LakeError
from .lake import Lake
from .tables import DataFile, LakeTable, cluster_of, has_log

KEY: Final = "mqtrail.judged"
CHANGES_MAX: Final = 100  # older entries are dropped; the thresholds of their rows are then unknown

JUDGED_APP: Final = "gold"
"""App of a judgement's commits."""
JUDGED: Final = APPENDED
"""What a judgement appends to."""
_REFRESH_MAX: Final = 3  # how often the tables are read again while a judgement is being committed

_BATCH_FOLDER: Final = re.compile(r"batch=([^/]+)-(\d+)/")  # the folder of a batch; writers make others below it

Notes = list[tuple[int, dict[str, int], str | None]]
"""(first instant in epoch ms, setting name -> value, cluster; None: every cluster), in the order of writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The last judgement of a cluster.

    number: of its batch. attempts: the last number seen of each writer of silver.
    """

    as_of_ms: int
    number: int
    attempts: Mapping[str, int]
    settings: Mapping[str, int]
    only_until: bool

    def has_seen(self, path: str) -> bool:
        """Return whether it has seen a file of silver, of its cluster."""
        found = _BATCH_FOLDER.match(path)
        return found is None or int(found[2]) <= self.attempts.get(found[1], -1)


@dataclass(frozen=True, slots=True)
class Judgements:
    """The last judgement of each cluster, as of one batch.

    before: that of an earlier version, which knew one cluster and did not note its name. It holds for any cluster that
    has no newer one: of others it has seen nothing, as they came later.
    """

    by_cluster: Mapping[str, Judgement] = field(default_factory=dict)
    before: Judgement | None = None

    @classmethod
    def of_batch(cls, batch: LakeBatch | None) -> Self:
        """Read a batch of JUDGED_APP."""
        if batch is None:
            return cls()
        if "clusters" not in batch.notes:
            return cls({}, Judgement(as_of_ms=batch.number, number=batch.number, **batch.notes))
        before = batch.notes.get("before")
        clusters = {name: Judgement(**values) for name, values in batch.notes["clusters"].items()}
        return cls(clusters, Judgement(**before) if before else None)

    def notes(self) -> dict[str, Any]:
        """The notes of a batch."""
        clusters = {name: asdict(one) for name, one in sorted(self.by_cluster.items())}
        return {"clusters": clusters} | ({"before": asdict(self.before)} if self.before else {})

    def of(self, cluster: str) -> Judgement | None:
        """The last judgement of a cluster; None: there is none."""
        return self.by_cluster.get(cluster, self.before)

    def with_one(self, cluster: str, judgement: Judgement) -> Self:
        """Return these with a newer judgement of a cluster."""
        return replace(self, by_cluster={**self.by_cluster, cluster: judgement})

    def every(self) -> list[Judgement]:
        """All of them."""
        return [*self.by_cluster.values(), *([self.before] if self.before else ())]

    def have_seen(self, file: DataFile) -> bool:
        """Return whether the judgements of its clusters have seen a file of silver. Only such files are joined."""
        if (cluster := cluster_of(file)) is not None:
            one = self.of(cluster)
            return one is not None and one.has_seen(file.path)
        every = self.every()
        return bool(every) and all(one.has_seen(file.path) for one in every)


def seen_up_to(paths: Iterable[str], judgement: Judgement | None) -> dict[str, int]:
    """Return the last number of silver files by writer, in a judgement and in these files."""
    seen = dict(judgement.attempts) if judgement else {}
    for path in paths:
        if found := _BATCH_FOLDER.match(path):
            seen[found[1]] = max(seen.get(found[1], -1), int(found[2]))
    return seen


def note_settings(table: LakeTable, cluster: str, settings: Settings, as_of_ms: int) -> None:
    """Store the settings of a judgement as of an instant, if they changed. table: the verdicts."""
    notes = _read(table)
    values = settings.values()
    # Later entries of the cluster are of judgements that never committed.
    kept = [note for note in notes if note[2] != cluster or note[0] < as_of_ms]
    if _at(kept, cluster, as_of_ms) != values:
        kept.append((as_of_ms, values, cluster))
    if kept != notes:
        table.note(KEY, json.dumps(kept[-CHANGES_MAX:]))


def settings_at(lake: Lake, instants: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Mapping[str, int] | None]:
    """Return (cluster, instant) -> settings with which verdicts as of it were judged; None: unknown."""
    notes = _read(lake[VERDICTS.name])
    return {(cluster, as_of_ms): _at(notes, cluster, as_of_ms) for cluster, as_of_ms in instants}


def _at(notes: Notes, cluster: str, as_of_ms: int) -> Mapping[str, int] | None:
    found = [note for note in notes if note[2] in (None, cluster) and note[0] <= as_of_ms]
    return max(found, key=lambda note: note[0])[1] if found else None


def last_judgement(lake: Lake, cluster: str) -> Judgement | None:
    """Return the judgement of a cluster whose counts a reader's snapshot has.

    None: there is none, or it cannot be read.
    """
    number = lake[GROUP_FOLDS.name].last_batch(JUDGED_APP) if not lake[GROUP_FOLDS.name].is_lost else None
    if number is None or not has_log(lake.path / BATCHES):
        return None
    for _ in range(_REFRESH_MAX):
        try:
            lake.batches.refresh()
            last = lake.batches.last(JUDGED_APP)
        except LakeError:  # a writer has replaced the record meanwhile, or it is damaged
            continue
        return Judgements.of_batch(last).of(cluster) if last is not None and last.number == number else None
    return None


def _read(table: LakeTable) -> Notes:
    text = table.noted(KEY)
    try:
        found = [] if text is None else json.loads(text)
        return [(int(note[0]), dict(note[1]), note[2] if len(note) > 2 else None) for note in found]
    except (ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise LakeDamaged(f"{table.path}: found no list of settings under {KEY} ({error}): {RESTORE}") from error


def unfinished_judgement(lake: Lake) -> tuple[int, list[str]] | None:
    """Return the number of the last judgement and the tables that lack it; None: all have it, or cannot be read.

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
