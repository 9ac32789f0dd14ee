"""A pipeline that is killed at random times neither loses nor duplicates a row. `python -m tests.crash.pipeline`: 50
kills."""

from pathlib import Path

import pytest
from tests.crash.pipeline import kill_pipeline

KILLS, SEED = 3, 11


@pytest.mark.spark
@pytest.mark.timeout(900)  # seconds a kill, and one start of Spark, on a quiet machine
def test_kills(tmp_path: Path) -> None:
    """A few kills; the last pipeline ends with exit code 0 after SIGTERM."""
    assert kill_pipeline(tmp_path, KILLS, SEED) == []
