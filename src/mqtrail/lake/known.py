"""The rows of a lake that a judgement of changed messages reads, as SQL over its files.

<lake>/_state/<instant>/<relation>.parquet    the state of the cluster, as the judgement of that instant saw it
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from mqtrail import trail

from .cycles import LastJudgement
from .errors import LakeUnreadable
from .judged import JUDGED_APP, is_judged, seen_up_to
from .lake import Lake
from .parquet import parquet_of, quoted, rows_of
from .places import LakePath, parquet_source, remove_tree
from .samples import sample_files
from .storeerrors import ObjectStoreError
from .tables import DataFile

STATES: Final = "_state"


class LakeKnown:
    """One snapshot of a lake, and its last judgement. If the state of that judgement is lost, every message is due."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        lake.refresh()
        last = lake.batches.last(JUDGED_APP)
        self._notes: Mapping[str, Any] | None = last.notes if last else None
        self._sampled: tuple[int, dict[str, list[DataFile]]] | None = None  # files from a horizon on
        self._attempts = lake[trail.ATTEMPTS.name]
        files = self._attempts.files()
        self.last = _last(last.number, last.notes) if last else None
        self.is_state_lost = self.last is not None and not self._has_state(self.last.as_of_ms)
        self._judged_files = [] if self.is_state_lost else [file for file in files if self._is_judged(file)]
        judged = {file.path for file in self._judged_files}
        self.new_files = [file for file in files if file.path not in judged]

    def notes(self, settings: trail.Settings, *, only_until: bool) -> dict[str, Any]:
        """The notes of a judgement that has seen all files of this snapshot."""
        seen = seen_up_to((file.path for file in self._attempts.files()), self._notes or {})
        return {"attempts": seen, "settings": settings.values(), "only_until": only_until}

    def new_count(self) -> int:
        """See cycles.Known."""
        return sum(file.row_count for file in self.new_files)

    def new_attempts(self) -> str:
        """See cycles.Known."""
        return rows_of(self._attempts, self.new_files)

    def judged_attempts(self, hours: Collection[int]) -> str:
        """See cycles.Known."""
        return rows_of(self._attempts, _of_hours(self._judged_files, hours))

    def batch_items(self, hours: Collection[int]) -> str:
        """See cycles.Known."""
        files = [file for file in _of_hours(self._judged_files, hours) if file.maximum.get("batch_id") != ""]
        return rows_of(self._attempts, files)

    def results(self, name: str, hours: Collection[int] | None = None) -> str:
        """See cycles.Known."""
        table = self._lake[name]
        files = table.files()
        return rows_of(table, files if hours is None or not table.table.partition_by else _of_hours(files, hours))

    def state(self, name: str) -> str:
        """See cycles.Known."""
        assert self.last is not None, "there is no judgement yet"
        return f"SELECT * FROM {parquet_of([str(self._folder(self.last.as_of_ms) / f'{name}.parquet')])}"

    def samples(self, name: str, horizon_ms: int) -> str:
        """See cycles.Known."""
        return rows_of(self._lake[name], self._sample_files(name, horizon_ms))

    def sample_paths(self, name: str, horizon_ms: int) -> list[str]:
        """The files of `samples`."""
        return self._lake[name].paths(self._sample_files(name, horizon_ms))

    def new_paths(self) -> list[str]:
        """The files of `new_attempts`."""
        return self._attempts.paths(self.new_files)

    def _sample_files(self, name: str, horizon_ms: int) -> list[DataFile]:
        if name not in trail.SAMPLED:
            return self._lake[name].files()
        if self._sampled is None or self._sampled[0] != horizon_ms:
            self._sampled = (horizon_ms, sample_files(self._lake, horizon_ms))
        return self._sampled[1][name]

    def keep_state(self, duck: duckdb.DuckDBPyConnection, as_of_ms: int) -> None:
        """Write the state that a judgement saw, before it is committed."""
        folder = self._folder(as_of_ms)
        remove_tree(folder)
        folder.mkdir(parents=True)
        for name in trail.STATE:
            duck.execute(f"COPY {name} TO '{quoted(folder / f'{name}.parquet')}' (FORMAT parquet)")

    def drop_states(self, but_ms: int) -> None:
        """Delete the states of other judgements, after the commit."""
        for folder in (self._lake.path / STATES).iterdir():
            if folder.name != str(but_ms):
                remove_tree(folder)

    def _folder(self, as_of_ms: int) -> LakePath:
        return self._lake.path / STATES / str(as_of_ms)

    def _has_state(self, as_of_ms: int) -> bool:
        try:
            for name in trail.STATE:
                pq.read_metadata(parquet_source(self._folder(as_of_ms) / f"{name}.parquet"))
        except ObjectStoreError as error:
            raise LakeUnreadable(str(error)) from None
        except (OSError, pa.ArrowException):
            return False
        return True

    def _is_judged(self, file: DataFile) -> bool:
        return self._notes is not None and is_judged(file.path, self._notes)


def _of_hours(files: Collection[DataFile], hours: Collection[int]) -> list[DataFile]:
    wanted = set(hours)
    return [file for file in files if file.hour in wanted]


def _last(as_of_ms: int, notes: Mapping[str, Any]) -> LastJudgement:
    return LastJudgement(as_of_ms, dict(notes["settings"]), bool(notes["only_until"]))
