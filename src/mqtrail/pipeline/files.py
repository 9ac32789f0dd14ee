"""Files of the judgement: tasks write them, one commit of a table makes them visible.

The files of one batch and table are in `<table>/batch=<app>-<number>/`. Files that a crash left there without a commit
are overwritten when the batch is repeated. Committed files are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from mqtrail.lake import Lake, LakePath, note_settings
from mqtrail.trail import VERDICTS, Relation, Settings


class Committer:
    """Commits batches to the tables of one lake. Threads commit one at a time; they write files side by side."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._lock = Lock()

    def is_committed(self, relation: Relation, app: str, batch: int) -> bool:
        """Whether the table has this batch of app, or a later one."""
        with self._lock:
            return self._lake[relation.name].is_committed(app, batch)

    def commit(self, relation: Relation, files: Sequence[LakePath], app: str, batch: int) -> None:
        """Commit files of a batch."""
        with self._lock:
            self._lake[relation.name].commit(files, app=app, batch=batch)

    def note_settings(self, settings: Settings, as_of_ms: int) -> None:
        """Record the settings of verdicts from as_of_ms on."""
        with self._lock:
            note_settings(self._lake[VERDICTS.name], settings, as_of_ms)

    def folder(self, relation: Relation, app: str, batch: int) -> LakePath:
        """The folder of one batch of a table."""
        return self._lake[relation.name].path / f"batch={app}-{batch}"
