"""Restarts tasks whose Python workers did not connect within Spark's 10 s (`early_worker`) on a busy machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from .config import JobFailed

WORKER_STARTS_MAX = 4
"""Maximum number of starts of a task."""
_WORKER_LATE = re.compile("Python worker (failed )?to connect back")

T = TypeVar("T")


def started(tasks: Callable[[], T], say: Callable[[str], None] = lambda text: None) -> T:
    """Return what tasks return. JobFailed: their workers were late WORKER_STARTS_MAX times."""
    for attempt in range(1, WORKER_STARTS_MAX + 1):
        try:
            return tasks()
        except (PySparkException, Py4JJavaError) as error:  # the second one: a failure that Python did not raise
            if not _WORKER_LATE.search(str(error)):
                raise
        say(f"Python workers did not start in time: attempt {attempt} of {WORKER_STARTS_MAX}")
    raise JobFailed(
        f"found no Python worker of Spark that started within Spark's 10 s, in {WORKER_STARTS_MAX} attempts: the "
        "machine is too busy. Run it again when there is less to do, or with fewer cores (--master 'local[1,4]'): "
        "committed data is kept"
    )
