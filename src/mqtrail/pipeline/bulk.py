"""Judges many messages with new records in shares on Spark.

The stages are those of a judgement of everything (`trail.judge`). The other messages are represented by the counts of
groups (`group_folds`). Tasks write trajectories, verdicts, open ids and keys to the files that are appended to gold.
They return the state of the cluster to the driver, which finds the other messages that it concerns (`lake.Cycle`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from duckdb import DuckDBPyConnection

from mqtrail import trail
from mqtrail.lake import BULK_RESULTS, LakeKnown, LakePath
from mqtrail.trail import Stage

from .shares import Shares
from .tasks import quoted

ROWS_MIN = 1_000_000  # attempts that the driver does not judge itself
SHARE_ROWS_MAX = 500_000  # attempts that a task judges at most
PIECES = (trail.ATTEMPTS.name,)
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
    target: Callable[[trail.Relation], LakePath]
    """Returns the folder for the files of a result."""
    rows_min: int = ROWS_MIN

    def judge(
        self, attempts_before: str, group_folds: str, compared: Mapping[str, str], *, batches: bool
    ) -> dict[str, list[str]]:
        """See lake.Bulk."""
        self.folder.mkdir(parents=True)
        before, before_count = self._written("attempts_before", f"SELECT * FROM {attempts_before}")
        folds, _ = self._written(trail.GROUP_FOLDS.name, group_folds)
        horizon_ms = self.as_of_ms - self.settings.trace_delay_ms
        inputs = {name: self._paths(name, *self.known.sample_paths(name, horizon_ms)) for name in trail.READ_WHOLE}
        new = self._paths("new_attempts", *self.known.new_paths())
        inputs |= {trail.ATTEMPTS.name: [*new, before], trail.GROUP_FOLDS.name: [folds]}
        inputs |= {name: [self._written(name, rows)[0]] for name, rows in compared.items()}
        stages = trail.judge(self.as_of_ms, self.settings, batches=batches, only_until=self.only_until)
        stages += [Stage(f"{_COPY}{name}", f"SELECT * FROM {name}", (name,)) for name in _BACK]
        made = self.shares.run(
            stages,
            self._share_count(self.known.new_count() + before_count),
            pieces={name: inputs[name] for name in PIECES},
            whole={name: inputs[name] for name in inputs if name not in PIECES},
            results={relation.name: self.target(relation) for relation in BULK_RESULTS}
            | {name: self.folder / name for name in (trail.LATENCY_MINUTE.name, *(_COPY + name for name in _BACK))},
        )
        return {name.removeprefix(_COPY): [str(path) for path in paths] for name, paths in made.items()}

    def _paths(self, name: str, paths: list[str], others: str) -> list[str]:
        """Return files, and one with the rows of a query if it is not empty."""
        return [*paths, self._written(f"own_{name}", others)[0]] if others else paths

    def _written(self, name: str, rows: str) -> tuple[str, int]:
        """Write rows to a file that every task can read; return the file and the number of rows."""
        path = self.folder / f"{name}.parquet"
        [(count,)] = self.duck.execute(f"COPY ({rows}) TO '{quoted(path)}' (FORMAT parquet)").fetchall()
        return str(path), int(count)

    def _share_count(self, rows: int) -> int:
        """Return the number of shares for this number of attempts: a multiple of the number of cores."""
        return self.parallelism * max(1, ceil(rows / (SHARE_ROWS_MAX * self.parallelism)))
