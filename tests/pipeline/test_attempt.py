"""What the attempts of Spark tasks are called, and where they keep temporary files."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mqtrail.pipeline import attempt
from mqtrail.pipeline.attempt import TaskAttempt, new_run_id, this_attempt


def test_attempts_of_one_partition_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number, attempt and run are in the name; the scratch folder is the first of Spark's."""
    context = SimpleNamespace(partitionId=lambda: 3, taskAttemptId=lambda: 17)
    monkeypatch.setattr(attempt, "TaskContext", SimpleNamespace(get=lambda: context))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/scratch/a,/scratch/b")
    assert this_attempt("0c1d2e3f") == TaskAttempt(3, "3-17-0c1d2e3f", "/scratch/a")
    assert new_run_id() != new_run_id()
