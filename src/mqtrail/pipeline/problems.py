"""Keeps in the lake when each problem of the pipeline began and ended: what its cycles could not read or ask."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from mqtrail import trail
from mqtrail.lake import Change, Lake, arrow_rows, connect, lake_errors, own_folder, relation_of, write_parquet

APP: Final = "problems"
"""App of its batches, which are numbered from 1."""
_COUNT: Final = re.compile(r"^\d+ ")  # a sentence that begins with a count is the same problem with another count


class ProblemLog:
    """Writes the table `problems` of one lake. Call it as the lake's writer."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._open: dict[str, dict[str, str]] = {}  # cluster -> problem without its count -> the sentence in the lake

    def note(self, cluster: str, problems: Iterable[str], at_ms: int) -> None:
        """Record which problems of a cluster began and ended since the last call, or since the last run."""
        if cluster not in self._open:
            self._open[cluster] = self._load(cluster)
        known, now = self._open[cluster], {_COUNT.sub("", problem): problem for problem in problems}
        begun = [now[name] for name in now if name not in known]
        ended = [known[name] for name in known if name not in now]
        if begun or ended:
            stamp = {"cluster": cluster, "noted_ms": at_ms}
            rows = [stamp | {"problem": problem, "status": "BEGUN"} for problem in begun]
            self._commit([*rows, *(stamp | {"problem": problem, "status": "ENDED"} for problem in ended)])
            self._open[cluster] = {name: known.get(name, problem) for name, problem in now.items()}

    def _load(self, cluster: str) -> dict[str, str]:
        table = self._lake[trail.PROBLEMS.name]
        table.refresh()
        query = f"""SELECT problem FROM ({relation_of(table, cluster=cluster)}) AS noted GROUP BY problem
            HAVING max_by(status, noted_ms) = 'BEGUN'"""
        with lake_errors(self._lake.path):
            found = connect(threads=1).execute(query).fetchall()
        return {_COUNT.sub("", problem): problem for (problem,) in found}

    def _commit(self, rows: list[dict[str, Any]]) -> None:
        last = self._lake.batches.last(APP)
        number = last.number + 1 if last else 1
        table = self._lake[trail.PROBLEMS.name]
        with lake_errors(self._lake.path):
            file = own_folder(table.path / f"batch={APP}-{number}") / "part-0.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_parquet(arrow_rows(trail.PROBLEMS, rows), file)
        self._lake.batches.commit(APP, number, {table.table.name: Change(added=[file])}, {})
