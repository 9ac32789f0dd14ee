"""What a Spark task that writes files knows of itself. Each attempt writes to files of its own."""

from __future__ import annotations

import os
import tempfile
from typing import NamedTuple
from uuid import uuid4

from pyspark import TaskContext


class TaskAttempt(NamedTuple):
    """number: of the partition. name: unique among all attempts. scratch: folder for temporary files."""

    number: int
    name: str
    scratch: str


def new_run_id() -> str:
    """Return an id for the names of attempts.

    Spark counts attempts from 0 after a restart, while a worker of a driver that was killed can still be writing.
    """
    return uuid4().hex[:8]


def this_attempt(run_id: str) -> TaskAttempt:
    """Return the attempt that this worker runs. run_id: from the driver."""
    context = TaskContext.get()
    assert context is not None
    number = context.partitionId()
    scratch = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
    return TaskAttempt(number, f"{number}-{context.taskAttemptId()}-{run_id}", scratch)
