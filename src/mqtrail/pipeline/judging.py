"""From silver to gold: the stages of `trail` over the hours that are due, whose rows in gold are replaced.

Spark distributes, DuckDB judges in its tasks (`shares`).
"""

from __future__ import annotations

import shutil
from math import ceil
from pathlib import Path

import pyarrow.parquet as pq

from mqtrail import trail
from mqtrail.lake import JUDGED, JUDGED_APP, Lake, LakeTable, sample_files

from .files import Committer
from .hours import JudgedHours
from .ingest import hours_of
from .shares import WORK, Shares
from .tasks import Tasks

SHARE_ROWS_MAX = 500_000  # attempts of one share; with more a task spills to disk
SHARE_ROWS_MIN = 20_000  # with fewer, starting the task costs more than its work
LAG_INPUTS = (trail.GROUP_OFFSETS.name, trail.QUEUE_RANGES.name, trail.SAMPLES.name)
PIECES = (trail.ATTEMPTS.name, trail.TRACE_EVENTS.name)  # inputs whose files are divided among the tasks
RESULTS = JUDGED
APP = JUDGED_APP  # its batches are numbered by the instant of judgement


class Judge:
    """Judges what a lake holds."""

    def __init__(
        self,
        tasks: Tasks,
        lake: Lake,
        committer: Committer,
        judged: JudgedHours,
        settings: trail.Settings,
        task_memory: str = "1GB",
    ) -> None:
        self._lake = lake
        self._committer = committer
        self._judged = judged
        self._settings = settings
        self._tasks = tasks
        self._shares = Shares(tasks, lake.path / WORK, task_memory)

    def run(self, as_of_ms: int, *, only_until: bool = False) -> int:
        """Judge the hours that are due, as of as_of_ms; return the number of their trajectories.

        only_until: leave out what happened later. An instant that was judged before is not judged again.
        """
        hours = self._judged.due
        if not hours or self._committer.is_committed(trail.KEY_INDEX, APP, as_of_ms):
            return 0
        self._lake.refresh()
        table = self._lake[trail.ATTEMPTS.name]
        files = table.files(hours)
        paths = table.paths(files)
        due = [relation for relation in RESULTS if not self._committer.is_committed(relation, APP, as_of_ms)]
        folders = {relation.name: self._empty_folder(relation, APP, as_of_ms) for relation in due}
        batches = any(has_batches(Path(path)) for path in paths)
        inputs = {name: self._lake[name].paths() for name in trail.INPUTS if name not in trail.SAMPLED}
        inputs |= self._sample_paths(as_of_ms - self._settings.trace_delay_ms) | {trail.ATTEMPTS.name: paths}
        made = self._shares.run(
            trail.judge(as_of_ms, self._settings, batches=batches, only_until=only_until),
            self._share_count(sum(file.row_count for file in files)),
            pieces={name: inputs[name] for name in PIECES},
            whole={name: inputs[name] for name in inputs if name not in PIECES},
            results=folders,
        )
        if trail.VERDICTS in due:
            self._committer.note_settings(self._settings, as_of_ms)
        for relation in due:
            found = made[relation.name]
            self._committer.commit(relation, found, APP, as_of_ms, replace_hours=hours | hours_of(found))
        trajectories, verdicts = (self._lake[relation.name] for relation in (trail.TRAJECTORIES, trail.VERDICTS))
        self._judged.judged(hours, _open_hours(trajectories, hours) | _open_hours(verdicts, hours))
        return sum(file.row_count for file in trajectories.files(hours))

    def lag(self, sampled_ms: int) -> None:
        """Add the lag of one sample."""
        if self._committer.is_committed(trail.LAG, "lag", sampled_ms):
            return
        samples = self._sample_paths(sampled_ms)
        copies = trail.MESSAGE_META.name
        inputs = {name: samples[name] for name in LAG_INPUTS} | {copies: self._lake[copies].paths()}
        made = self._shares.run(
            trail.lag_stages(sampled_ms),
            max(1, min(len(inputs[copies]), self._tasks.parallelism)),
            pieces={copies: inputs.pop(copies)},
            whole=inputs,
            results={trail.LAG.name: self._empty_folder(trail.LAG, "lag", sampled_ms)},
        )
        self._committer.commit(trail.LAG, made[trail.LAG.name], "lag", sampled_ms)

    def _sample_paths(self, from_ms: int) -> dict[str, list[str]]:
        """The files of each sampled relation that every instant from from_ms on reads."""
        return {name: self._lake[name].paths(files) for name, files in sample_files(self._lake, from_ms).items()}

    def _empty_folder(self, relation: trail.Relation, app: str, batch: int) -> Path:
        """The folder of a batch, without the files that a crash left there before their commit."""
        folder = self._committer.folder(relation, app, batch)
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def _share_count(self, rows: int) -> int:
        """How many shares to make of so many attempts: the same number for each core if there are many."""
        cores = self._tasks.parallelism
        turns = ceil(rows / (SHARE_ROWS_MAX * cores))
        return max(1, min(turns * cores, rows // SHARE_ROWS_MIN))


def has_batches(file: Path) -> bool:
    """Whether a file of attempts has a row with a batch_id, from its statistics; true if these are missing."""
    metadata = pq.read_metadata(file)
    place = metadata.schema.names.index("batch_id")
    statistics = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
    return any(each is None or not each.has_min_max or each.max != "" for each in statistics)


def _open_hours(table: LakeTable, hours: set[int]) -> set[int]:
    """The hours in which the table has open states."""
    return {
        file.hour
        for file in table.files(hours)
        if file.hour is not None
        and 1 in pq.read_table(table.path / file.path, columns=["is_open"])["is_open"].unique().to_pylist()
    }
