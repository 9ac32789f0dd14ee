"""Judges the messages that are due, and appends their results from silver to gold.

Messages are due if they have new attempts, or if the state of the cluster may change their verdict (`lake.Cycle`). One
DuckDB in the driver judges them, with `task_memory` of memory; larger data goes to files. If there are many attempts,
tasks of Spark judge the messages with new ones (`bulk`).
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace

from duckdb import DuckDBPyConnection

from mqtrail import trail
from mqtrail.lake import (
    BULK_RESULTS,
    JUDGED_APP,
    Change,
    Cycle,
    Lake,
    LakeKnown,
    LakePath,
    StatePrint,
    connect,
    copy,
    copy_hours,
    define_lag,
    emptied,
    is_remote,
    lake_errors,
    lost_judgements,
    remove_tree,
)

from .bulk import ROWS_MIN, SharesBulk
from .files import Committer
from .shares import WORK, Shares
from .tasks import Tasks

RESULTS = trail.APPENDED
EXCHANGE = "_judging"  # the lake's folder for what the driver and the tasks of a large judgement exchange
APP = JUDGED_APP
LAG_APP = "lag"


class Judge:
    """Judges the messages of a lake, one cluster at a time: no judgement has evidence of another one."""

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
        self._shares = Shares(tasks, lake.path / WORK, task_memory, say)
        self._database: DuckDBPyConnection | None = None  # kept between judgements; see _duck
        self._prints: dict[str, tuple[int, Mapping[str, StatePrint]]] = {}  # cluster -> instant of the last one, state
        self._spill = tempfile.mkdtemp(prefix="mqtrail-judge-")
        weakref.finalize(self, shutil.rmtree, self._spill, ignore_errors=True)

    def run(self, cluster: str, as_of_ms: int, *, only_until: bool = False) -> int:
        """Judge the messages of a cluster that are due as of as_of_ms; return their number.

        only_until: leave out later attempts. An instant that was judged before is not judged again.
        """
        known = LakeKnown(self._lake, cluster)
        if known.is_state_lost:
            self._say(
                "the state of the last judgement is missing or damaged: judging every message of cluster "
                f"{cluster} again"
            )
        if known.last is not None and known.last.as_of_ms >= as_of_ms:
            return 0
        number, last = known.number(as_of_ms), known.last
        seen = self._prints.get(cluster)
        if last is not None and seen is not None and last.as_of_ms == seen[0]:
            last = replace(last, prints=seen[1])
        with self._duck() as duck:
            try:
                bulk = self._bulk(duck, known, as_of_ms, only_until=only_until)
                cycle = Cycle(duck, known, as_of_ms, self._settings, last, only_until=only_until, bulk=bulk)
                count = cycle.run()
                if not count and not known.new_files:
                    return 0
                changes = {
                    relation.name: Change([*files, *self._write(duck, relation, number)])
                    for relation in RESULTS
                    for files in [cycle.bulk_files.get(relation.name, ()) if relation in BULK_RESULTS else ()]
                }
                if count:
                    changes[trail.CLOCK_BOUNDS.name] = Change(self._clock_bounds(duck, cycle, number))
                known.keep_state(duck, as_of_ms)
            finally:
                remove_tree(self._lake.path / EXCHANGE)
        self._committer.note_settings(cluster, self._settings, as_of_ms)
        notes = known.notes(as_of_ms, self._settings, only_until=only_until)
        self._lake.batches.commit(APP, number, changes, notes)
        known.drop_states()
        self._prints[cluster] = as_of_ms, cycle.prints
        return count

    def judge_again(self, read: Collection[str]) -> None:
        """Judge clusters whose results a rebuild has removed as of their last judgement, except those of `read`."""
        for cluster, last in lost_judgements(self._lake).items():
            if cluster not in read:
                self._say(f"judging cluster {cluster} again, which is not read any more")
                self.run(cluster, last.as_of_ms + 1, only_until=last.only_until)

    def _bulk(self, duck: DuckDBPyConnection, known: LakeKnown, as_of_ms: int, *, only_until: bool) -> SharesBulk:
        remove_tree(self._lake.path / EXCHANGE)
        return SharesBulk(
            duck=duck,
            known=known,
            shares=self._shares,
            parallelism=self._tasks.parallelism,
            as_of_ms=as_of_ms,
            settings=self._settings,
            folder=self._lake.path / EXCHANGE,
            target=lambda relation, part: self._empty_folder(relation, APP, known.number(as_of_ms), part),
            only_until=only_until,
            rows_min=self._bulk_rows_min,
            say=self._say,
        )

    def lag(self, cluster: str, sampled_ms: int) -> None:
        """Add the lag of one sample of a cluster, which has no lag yet."""
        last = self._committer.last_batch(trail.LAG, LAG_APP)
        number = sampled_ms if last is None else max(sampled_ms, last + 1)
        target = emptied(self._committer.folder(trail.LAG, LAG_APP, number)) / "part-0.parquet"
        target.parent.mkdir(parents=True)
        with self._duck() as duck:
            define_lag(duck, self._lake, cluster, sampled_ms)
            copy(duck, f"SELECT * FROM {trail.LAG.name}", target, self._lake[trail.LAG.name].table)
        self._committer.commit(trail.LAG, [target], LAG_APP, number)

    @contextmanager
    def _duck(self) -> Iterator[DuckDBPyConnection]:
        """A connection with temporary tables of its own, to a DuckDB that is kept for the next judgement.

        A new DuckDB takes 20 ms of CPU, and reads the footers of all files again. After an error it is not kept: some
        errors invalidate it. In an object store it is not kept either, because there it takes files for unchanged, and
        the names of files that tasks exchange come again.
        """
        with lake_errors(self._lake.path):
            database = self._database or self._new_database()
            self._database = None
            with closing(database.cursor()) as duck:
                yield duck
            if not is_remote(self._lake.path):
                self._database = database

    def _new_database(self) -> DuckDBPyConnection:
        database = connect(memory_limit=self._memory)
        database.execute("SET temp_directory = ?", [self._spill])
        database.execute("SET preserve_insertion_order = false")
        database.execute("SET parquet_metadata_cache = true")
        return database

    def _empty_folder(self, relation: trail.Relation, app: str, batch: int, part: str) -> LakePath:
        """The folder of a part of a batch, without the files that a crash left there before their commit."""
        return emptied(self._committer.folder(relation, app, batch) / part)

    def _clock_bounds(self, duck: DuckDBPyConnection, cycle: Cycle, number: int) -> list[LakePath]:
        """Write how far clocks differ, by the messages that were judged; return the files."""
        folder = self._empty_folder(trail.CLOCK_BOUNDS, APP, number, "driver")
        folder.mkdir(parents=True)
        copy(duck, cycle.clock_bounds(), folder / "part-0.parquet", self._lake[trail.CLOCK_BOUNDS.name].table)
        return [folder / "part-0.parquet"]

    def _write(self, duck: DuckDBPyConnection, relation: trail.Relation, number: int) -> list[LakePath]:
        """Write the rows that a judgement appends to a table; return the files."""
        table = self._lake[relation.name].table
        folder = self._empty_folder(relation, APP, number, "driver")
        rows = f"SELECT {', '.join(relation.names)} FROM append_{relation.name}"
        [(count,)] = duck.execute(f"SELECT count(*) FROM append_{relation.name}").fetchall()
        if not count:
            return []
        if table.partition_by:
            return copy_hours(duck, rows, folder, table, count)
        folder.mkdir(parents=True)
        copy(duck, rows, folder / "part-0.parquet", table, count)
        return [folder / "part-0.parquet"]
