"""Stages of `trail` in shares: Spark distributes, retries and counts; DuckDB runs the stages in its tasks.

    Spark    a task a piece ──▶ a task a share ─┐     one task     ┌─▶ a task a share ─┐     one task
    DuckDB   attempts by id     `trail.rounds`: shares ──▶ whole ──┘         shares ───┴──▶ whole

`trail.rounds` decides which stages run per share and which run once. Between rounds, rows are in Parquet files below
one folder, which is deleted at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mqtrail import trail
from mqtrail.lake import LakePath, place_of, remove_tree
from mqtrail.trail import Stage

from .executors import check_seen
from .tasks import EVERY_SHARE, TaskFile, Tasks, TaskWork

WORK = "_work"  # the lake's folder for files between rounds
Files = dict[str, tuple[str, ...]]  # of each relation
OwnFiles = dict[str, tuple[tuple[str, ...], ...]]  # of each relation, by task


class Shares:
    """Runs stages in shares. `folder` is for files between rounds."""

    def __init__(
        self, tasks: Tasks, folder: LakePath, memory_limit: str, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._tasks = tasks
        self._folder = folder
        self._memory_limit = memory_limit
        self._say = say

    def run(
        self,
        stages: Sequence[Stage],
        count: int,
        *,
        pieces: Mapping[str, Sequence[str]],
        whole: Mapping[str, Sequence[str]],
        results: Mapping[str, LakePath],
    ) -> dict[str, list[LakePath]]:
        """Run stages in `count` shares; return the files of each of `results`, a stage's name to its folder.

        pieces: inputs by their files, which are divided among the tasks. whole: inputs that are read as a whole.
        """
        plan = trail.rounds(stages, pieces)
        longest = max(map(len, pieces.values()), default=0)
        piece_count = max(1, min(longest, max(count, self._tasks.parallelism)))
        self._drop()
        try:
            return self._run(plan, [piece_count] + [count] * len(plan), pieces, whole, results)
        finally:
            self._drop()

    def _drop(self) -> None:
        remove_tree(self._folder)

    def _run(
        self,
        plan: Sequence[trail.Round],
        task_counts: Sequence[int],
        pieces: Mapping[str, Sequence[str]],
        whole: Mapping[str, Sequence[str]],
        results: Mapping[str, LakePath],
    ) -> dict[str, list[LakePath]]:
        files: Files = {name: tuple(paths) for name, paths in whole.items()}
        own_files: OwnFiles = {}
        found: dict[str, list[LakePath]] = {name: [] for name in results}
        for number, (each, count) in enumerate(zip(plan, task_counts, strict=False), start=1):
            self._say(f"judging in shares: step {number} of {len(plan)}")
            gathered = [stage.name for stage in each.shares if stage.gathered]
            divided = [stage.name for stage in each.shares if stage.partition_by]
            own_files |= {name: _dealt(paths, count) for name, paths in pieces.items()}
            made: list[TaskFile] = []
            if each.shares:
                kept = (*each.kept, *gathered)
                work = self._work(each.shares, kept, results, files, own_files, share_count=task_counts[-1])
                made = self._tasks.run(work, count)
            own_files |= {name: _of_shares(made, name, task_counts[-1]) for name in (*each.kept, *divided)}
            files |= {name: _paths(made, name) for name in gathered}
            if each.whole:
                once = self._tasks.run(self._work(each.whole, each.broadcast, results, files), 1)
                files |= {name: _paths(once, name) for name in each.broadcast}
                made += once
            for name, paths in found.items():
                paths += map(place_of, _paths(made, name))
        check_seen(path for paths in found.values() for path in paths)
        return found

    def _work(
        self,
        stages: Sequence[Stage],
        kept: Sequence[str] = (),
        results: Mapping[str, LakePath] | None = None,
        files: Files | None = None,
        own_files: OwnFiles | None = None,
        share_count: int = 1,
    ) -> TaskWork:
        """Return the work of running stages, with those of `results` that they make and of `files` that they read."""
        names = {stage.name for stage in stages}
        read = {name for stage in stages for name in stage.reads} - names
        written = {name: str(folder) for name, folder in (results or {}).items() if name in names}
        assert not set(written) & set(kept), (
            f"{sorted(set(written) & set(kept))} are results, and later rounds read them"
        )
        return TaskWork(
            folder=str(self._folder),
            memory_limit=self._memory_limit,
            stages=tuple(stages),
            kept=tuple(kept),
            share_count=share_count,
            results=written,
            files={name: paths for name, paths in (files or {}).items() if name in read},
            own_files={name: paths for name, paths in (own_files or {}).items() if name in read},
        )


def _dealt(paths: Sequence[str], count: int) -> tuple[tuple[str, ...], ...]:
    """Divide files among `count` tasks."""
    return tuple(tuple(paths[number::count]) for number in range(count))


def _of_shares(files: Iterable[TaskFile], name: str, count: int) -> tuple[tuple[str, ...], ...]:
    """The files of a relation by share."""
    shares: list[list[str]] = [[] for _ in range(count)]
    for file in files:
        if file.relation == name:
            for share in range(count) if file.share == EVERY_SHARE else (file.share,):
                shares[share].append(file.path)
    return tuple(map(tuple, shares))


def _paths(files: Iterable[TaskFile], name: str) -> tuple[str, ...]:
    return tuple(file.path for file in files if file.relation == name)
