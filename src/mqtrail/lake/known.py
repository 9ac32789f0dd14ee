"""The rows of a lake that a judgement of changed messages reads, as SQL over its files.

<lake>/_state/<number>/<relation>.parquet    the state of a cluster, as the judgement with that number saw it
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import duckdb

from mqtrail import trail

from .cycles import LastJudgement
from .edge import arrow_errors
from .errors import LakeUnreadable
from .judged import JUDGED_APP, Judgement, Judgements, seen_up_to
from .lake import Lake
from .parquet import of_cluster, parquet_of, rows_of
from .places import LakePath, parquet_source, remove_tree
from .samples import sample_files
from .storeerrors import ObjectStoreError
from .tables import DataFile, LakeTable, cluster_of

STATES: Final = "_state"


def lost_judgements(lake: Lake) -> dict[str, LastJudgement]:
    """Return the last judgement of each cluster whose state is lost: all its messages are due, as after a rebuild."""
    judged = Judgements.of_batch(lake.batches.last(JUDGED_APP)).by_cluster
    every = {name: LakeKnown(lake, name) for name in judged}
    return {name: one.last for name, one in every.items() if one.is_state_lost and one.last is not None}


class LakeKnown:
    """One snapshot of what a lake has of one cluster, and its last judgement.

    If the state of that judgement is lost, every message of the cluster is due.
    """

    def __init__(self, lake: Lake, cluster: str) -> None:
        self._lake = lake
        self._cluster = cluster
        lake.refresh()
        batch = lake.batches.last(JUDGED_APP)
        self._judgements = Judgements.of_batch(batch)
        self._last = self._judgements.of(cluster)
        self._next_number = batch.number + 1 if batch else 0
        self._sampled: tuple[int, dict[str, list[DataFile]]] | None = None  # files from a horizon on
        self._attempts = lake[trail.ATTEMPTS.name]
        files = of_cluster(self._attempts.files(), cluster)
        self.last = _last(self._last)
        self.is_state_lost = self._last is not None and not self._has_state(self._last.number)
        is_blank = self._last is None or self.is_state_lost
        self._judged_files = [] if is_blank else [file for file in files if self._has_seen(file)]
        judged = {file.path for file in self._judged_files}
        self.new_files = [file for file in files if file.path not in judged]

    def number(self, as_of_ms: int) -> int:
        """The number of a judgement as of an instant: the instant, or a later one if another judgement has that."""
        return max(as_of_ms, self._next_number)

    def notes(self, as_of_ms: int, settings: trail.Settings, *, only_until: bool) -> dict[str, Any]:
        """The notes of a judgement that has seen all files of this snapshot."""
        made = Judgement(
            as_of_ms=as_of_ms,
            number=self.number(as_of_ms),
            attempts=seen_up_to((file.path for file in self._attempts.files()), self._last),
            settings=settings.values(),
            only_until=only_until,
        )
        self._judgements = self._judgements.with_one(self._cluster, made)
        return self._judgements.notes()

    def new_count(self) -> int:
        """See cycles.Known."""
        return sum(file.row_count for file in self.new_files)

    def new_attempts(self) -> str:
        """See cycles.Known."""
        return rows_of(self._attempts, self.new_files, self._cluster)

    def judged_attempts(self, hours: Collection[int] | None = None) -> str:
        """See cycles.Known."""
        files = self._judged_files if hours is None else _of_hours(self._judged_files, hours)
        return rows_of(self._attempts, files, self._cluster)

    def batch_items(self, hours: Collection[int]) -> str:
        """See cycles.Known."""
        files = [file for file in _of_hours(self._judged_files, hours) if file.maximum.get("batch_id") != ""]
        return rows_of(self._attempts, files, self._cluster)

    def results(self, name: str, hours: Collection[int] | None = None) -> str:
        """See cycles.Known."""
        table = self._lake[name]
        files = table.files()
        if hours is not None and table.table.partition_by:
            files = _of_hours(files, hours)
        return rows_of(table, files, self._cluster)

    def state(self, name: str) -> str:
        """See cycles.Known."""
        assert self._last is not None, "there is no judgement yet"
        rows = f"SELECT * FROM {parquet_of([str(self._folder(self._last.number) / f'{name}.parquet')])}"
        is_own = self._cluster in self._judgements.by_cluster
        return rows if is_own else f"{rows} WHERE cluster = {trail.literal(self._cluster)}"

    def samples(self, name: str, horizon_ms: int) -> str:
        """See cycles.Known."""
        return rows_of(self._lake[name], self._sample_files(name, horizon_ms), self._cluster)

    def sample_paths(self, name: str, horizon_ms: int) -> tuple[list[str], str]:
        """The files of `samples` that can be read as they are, and SQL for the rows of the others.

        The others have rows of other clusters, too, or may lack columns.
        """
        return self._divided(self._lake[name], self._sample_files(name, horizon_ms))

    def new_paths(self) -> tuple[list[str], str]:
        """The same of `new_attempts`."""
        return self._divided(self._attempts, self.new_files)

    def _divided(self, table: LakeTable, files: Collection[DataFile]) -> tuple[list[str], str]:
        whole = [] if table.later_columns else [file for file in files if cluster_of(file) == self._cluster]
        mixed = [file for file in files if file not in whole]
        return table.paths(whole), rows_of(table, mixed, self._cluster) if mixed else ""

    def _sample_files(self, name: str, horizon_ms: int) -> list[DataFile]:
        if name not in trail.SAMPLED:
            return of_cluster(self._lake[name].files(), self._cluster)
        if self._sampled is None or self._sampled[0] != horizon_ms:
            self._sampled = (horizon_ms, sample_files(self._lake, horizon_ms, self._cluster))
        return self._sampled[1][name]

    def keep_state(self, duck: duckdb.DuckDBPyConnection, as_of_ms: int) -> None:
        """Write the state that a judgement saw, before it is committed."""
        folder = self._folder(self.number(as_of_ms))
        remove_tree(folder)
        folder.mkdir(parents=True)
        for name in trail.STATE:
            duck.execute(f"COPY {name} TO {trail.literal(str(folder / f'{name}.parquet'))} (FORMAT parquet)")

    def drop_states(self) -> None:
        """Delete the states that no later judgement reads, after the commit."""
        kept = {str(one.number) for one in self._judgements.every()}
        for folder in (self._lake.path / STATES).iterdir():
            if folder.name not in kept:
                remove_tree(folder)

    def _folder(self, number: int) -> LakePath:
        return self._lake.path / STATES / str(number)

    def _has_state(self, number: int) -> bool:
        import pyarrow.parquet as pq

        try:
            for name in trail.STATE:
                pq.read_metadata(parquet_source(self._folder(number) / f"{name}.parquet"))
        except ObjectStoreError as error:
            raise LakeUnreadable(str(error)) from None
        except arrow_errors():
            return False
        return True

    def _has_seen(self, file: DataFile) -> bool:
        return self._last is not None and self._last.has_seen(file.path)


def _last(one: Judgement | None) -> LastJudgement | None:
    return LastJudgement(one.as_of_ms, dict(one.settings), one.only_until) if one else None


def _of_hours(files: Collection[DataFile], hours: Collection[int]) -> list[DataFile]:
    wanted = set(hours)
    return [file for file in files if file.hour in wanted]
