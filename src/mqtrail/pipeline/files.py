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

    def last_batch(self, relation: Relation, app: str) -> int | None:
        """The last batch of an app in a table; None: it has none."""
        with self._lock:
            self._lake[relation.name].refresh()
            return self._lake[relation.name].last_batch(app)

    def commit(self, relation: Relation, files: Sequence[LakePath], app: str, batch: int) -> None:
        """Commit files of a batch."""
        with self._lock:
            self._lake[relation.name].commit(files, app=app, batch=batch)

    def note_settings(self, cluster: str, settings: Settings, as_of_ms: int) -> None:
        """Record the settings of verdicts of a cluster from as_of_ms on."""
        with self._lock:
            note_settings(self._lake[VERDICTS.name], cluster, settings, as_of_ms)

    def folder(self, relation: Relation, app: str, batch: int) -> LakePath:
        """The folder of one batch of a table."""
        return self._lake[relation.name].path / f"batch={app}-{batch}"
