"""Judges many messages in shares on Spark: those with new records, and others that the state of the cluster concerns.

The stages are those of a judgement of everything (`trail.judge`). The other messages are represented by the counts of
groups (`group_folds`). Tasks write trajectories, verdicts, open ids and keys to the files that are appended to gold.
For messages with new records they also return the state of the cluster to the driver, which finds the others that it
concerns (`lake.Cycle`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from duckdb import DuckDBPyConnection

from mqtrail import trail
from mqtrail.lake import BULK_RESULTS, LakeKnown, LakePath
from mqtrail.trail import Stage, literal

from .shares import Shares

ROWS_MIN = 1_000_000  # attempts that the driver does not judge itself
SHARE_ROWS_MAX = 500_000  # attempts that a task judges at most
_BACK = ("folds", *trail.STATE)
_COPY = "made_"  # prefix of the stages that are copies of those: what shares read is no result


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesBulk:
    """The lake.Bulk of one judgement."""

    duck: DuckDBPyConnection
    known: LakeKnown
    shares: Shares
    parallelism: int
    as_of_ms: int
    settings: trail.Settings
    only_until: bool
    folder: LakePath
    """For files that the driver and the tasks exchange."""
    target: Callable[[trail.Relation, str], LakePath]
    """Returns the empty folder for the files of a part of a result."""
    rows_min: int
    say: Callable[[str], None]

    def judge(
        self, attempts: str, group_folds: str, compared: Mapping[str, str], *, batches: bool, counted: bool
    ) -> dict[str, list[str]]:
        """See lake.Bulk."""
        folder = self.folder / ("others" if counted else "new")
        folder.mkdir(parents=True)
        own, rows = self._divided(folder / "own", attempts)
        horizon_ms = self.as_of_ms - self.settings.trace_delay_ms
        inputs = {
            name: self._paths(folder, name, *self.known.sample_paths(name, horizon_ms)) for name in trail.READ_WHOLE
        }
        inputs |= {trail.GROUP_FOLDS.name: [self._written(folder, trail.GROUP_FOLDS.name, group_folds)]}
        inputs |= {name: [self._written(folder, name, found)] for name, found in compared.items()}
        if not counted:
            own += self._paths(folder, "new_attempts", *self.known.new_paths())
            rows += self.known.new_count()
        stages = trail.judge(self.as_of_ms, self.settings, batches=batches, only_until=self.only_until, counted=counted)
        back = () if counted else _BACK
        stages += [Stage(f"{_COPY}{name}", f"SELECT * FROM {name}", (name,)) for name in back]
        made = self._run(
            "judging",
            stages,
            rows,
            pieces={trail.ATTEMPTS.name: own},
            whole=inputs,
            results={relation.name: self.target(relation, folder.name) for relation in BULK_RESULTS}
            | {name: folder / name for name in (trail.LATENCY_MINUTE.name, *(_COPY + name for name in back))},
        )
        return {name.removeprefix(_COPY): paths for name, paths in made.items()}

    def count(self, attempts: str, until_ms: int | None, *, batches: bool) -> list[str]:
        """See lake.Bulk."""
        folder = self.folder / "counted"
        folder.mkdir(parents=True)
        own, rows = self._divided(folder / "own", attempts)
        name = f"{_COPY}fold_counts"
        copy = Stage(name, "SELECT * FROM fold_counts", ("fold_counts",))
        stages = [*trail.fact_stages(until_ms, batches), copy]
        pieces = {trail.ATTEMPTS.name: own}
        return self._run("counting", stages, rows, pieces, whole={}, results={name: folder / name})[name]

    def _run(
        self,
        doing: str,
        stages: Sequence[Stage],
        rows: int,
        pieces: Mapping[str, Sequence[str]],
        whole: Mapping[str, Sequence[str]],
        results: Mapping[str, LakePath],
    ) -> dict[str, list[str]]:
        """Run stages in shares of these many attempts; return the files of each of `results`."""
        count = self.parallelism * max(1, ceil(rows / (SHARE_ROWS_MAX * self.parallelism)))
        self.say(f"{doing} {rows:,} attempts in {count} shares")
        made = self.shares.run(stages, count, pieces=pieces, whole=whole, results=results)
        return {name: [str(path) for path in paths] for name, paths in made.items()}

    def _divided(self, folder: LakePath, relation: str) -> tuple[list[str], int]:
        """Write rows to files that every task can read, one a thread; return the files and the number of rows."""
        layout = "FORMAT parquet, COMPRESSION lz4, PER_THREAD_OUTPUT"
        copy = f"COPY (SELECT * FROM {relation}) TO {literal(str(folder))} ({layout})"
        [(count,)] = self.duck.execute(copy).fetchall()
        return [str(path) for path in sorted(folder.rglob("*.parquet"), key=str)], int(count)

    def _paths(self, folder: LakePath, name: str, paths: list[str], others: str) -> list[str]:
        """Return files, and one with the rows of a query if it is not empty."""
        return [*paths, self._written(folder, f"own_{name}", others)] if others else paths

    def _written(self, folder: LakePath, name: str, rows: str) -> str:
        """Write rows to a file that every task can read; return the file."""
        path = folder / f"{name}.parquet"
        self.duck.execute(f"COPY ({rows}) TO {literal(str(path))} (FORMAT parquet)")
        return str(path)
