"""From silver to gold: judges the messages that are due, and appends their results to the lake.

Due are messages with new attempts, and those whose verdict the state of the cluster changed (`lake.Cycle`). One DuckDB
in the driver judges them, with `task_memory` of memory; what needs more goes to files. If there are many attempts,
tasks of Spark judge those that are new (`bulk`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from duckdb import DuckDBPyConnection

from mqtrail import trail
from mqtrail.lake import (
    BULK_RESULTS,
    JUDGED_APP,
    Change,
    Cycle,
    Lake,
    LakeKnown,
    connect,
    copy,
    copy_hours,
    lake_errors,
    sample_files,
)

from .bulk import ROWS_MIN, SharesBulk
from .files import Committer
from .shares import WORK, Shares
from .tasks import DriverTasks, Tasks

LAG_INPUTS = (trail.GROUP_OFFSETS.name, trail.QUEUE_RANGES.name, trail.SAMPLES.name)
RESULTS = trail.APPENDED
EXCHANGE = "_judging"  # the lake's folder for what the driver and the tasks of a large judgement exchange
APP = JUDGED_APP  # its batches are numbered by the instant of judgement


class Judge:
    """Judges what a lake holds."""

    def __init__(
        self,
        tasks: Tasks,
        lake: Lake,
        committer: Committer,
        settings: trail.Settings,
        task_memory: str = "1GB",
        say: Callable[[str], None] = lambda text: None,
        bulk_rows_min: int = ROWS_MIN,
    ) -> None:
        self._say = say
        self._lake = lake
        self._committer = committer
        self._settings = settings
        self._tasks = tasks
        self._memory = task_memory
        self._bulk_rows_min = bulk_rows_min
        self._shares = Shares(tasks, lake.path / WORK, task_memory)
        self._shares_here = Shares(DriverTasks(), lake.path / WORK, task_memory)

    def run(self, as_of_ms: int, *, only_until: bool = False) -> int:
        """Judge what is due as of as_of_ms; return the number of messages.

        only_until: leave out what happened later. An instant that was judged before is not judged again.
        """
        known = LakeKnown(self._lake)
        if known.is_state_lost:
            self._say("the state of the last judgement is missing or damaged: judging every message of the lake again")
        if known.last is not None and known.last.as_of_ms >= as_of_ms:
            return 0
        with tempfile.TemporaryDirectory(prefix="mqtrail-judge-") as spill, lake_errors(self._lake.path):
            duck = connect(memory_limit=self._memory)
            try:
                duck.execute("SET temp_directory = ?", [spill])
                duck.execute("SET preserve_insertion_order = false")
                bulk = self._bulk(duck, known, as_of_ms, only_until=only_until)
                cycle = Cycle(duck, known, as_of_ms, self._settings, known.last, only_until=only_until, bulk=bulk)
                count = cycle.run()
                if not count and not known.new_files:
                    return 0
                changes = {
                    relation.name: Change([*files, *self._write(duck, relation, as_of_ms)])
                    for relation in RESULTS
                    for files in [cycle.bulk_files.get(relation.name, ()) if relation in BULK_RESULTS else ()]
                }
                known.keep_state(duck, as_of_ms)
            finally:
                duck.close()
                shutil.rmtree(self._lake.path / EXCHANGE, ignore_errors=True)
        self._committer.note_settings(self._settings, as_of_ms)
        self._lake.batches.commit(APP, as_of_ms, changes, known.notes(self._settings, only_until=only_until))
        known.drop_states(as_of_ms)
        return count

    def _bulk(self, duck: DuckDBPyConnection, known: LakeKnown, as_of_ms: int, *, only_until: bool) -> SharesBulk:
        shutil.rmtree(self._lake.path / EXCHANGE, ignore_errors=True)
        return SharesBulk(
            duck=duck,
            known=known,
            shares=self._shares,
            parallelism=self._tasks.parallelism,
            as_of_ms=as_of_ms,
            settings=self._settings,
            folder=self._lake.path / EXCHANGE,
            target=lambda relation: self._empty_folder(relation, APP, as_of_ms) / "shares",
            only_until=only_until,
            rows_min=self._bulk_rows_min,
        )

    def lag(self, sampled_ms: int) -> None:
        """Add the lag of one sample."""
        if self._committer.is_committed(trail.LAG, "lag", sampled_ms):
            return
        samples = self._sample_paths(sampled_ms)
        copies = trail.MESSAGE_META.name
        inputs = {name: samples[name] for name in LAG_INPUTS} | {copies: self._lake[copies].paths()}
        is_large = sum(file.row_count for file in self._lake[copies].files()) >= self._bulk_rows_min
        made = (self._shares if is_large else self._shares_here).run(
            trail.lag_stages(sampled_ms),
            max(1, min(len(inputs[copies]), self._tasks.parallelism)) if is_large else 1,
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

    def _write(self, duck: DuckDBPyConnection, relation: trail.Relation, as_of_ms: int) -> list[Path]:
        """Write what a judgement appends to a table; return the files."""
        table, folder = self._lake[relation.name].table, self._committer.folder(relation, APP, as_of_ms) / "driver"
        shutil.rmtree(folder, ignore_errors=True)
        rows = f"SELECT {', '.join(relation.names)} FROM append_{relation.name}"
        [(count,)] = duck.execute(f"SELECT count(*) FROM append_{relation.name}").fetchall()
        if not count:
            return []
        if table.partition_by:
            return copy_hours(duck, rows, folder, table, count)
        folder.mkdir(parents=True)
        copy(duck, rows, folder / "part-0.parquet", table, count)
        return [folder / "part-0.parquet"]
