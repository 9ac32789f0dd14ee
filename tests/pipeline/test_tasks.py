"""Spark runs tasks of a judgement."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.test_shares import assert_same, in_shares, labelled

from mqtrail.pipeline.tasks import SparkTasks

pytestmark = pytest.mark.spark


def test_shares_in_tasks_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Spark runs the tasks and returns their results, which equal those of one connection."""
    rows, wanted = labelled(batches=False)
    assert_same(in_shares(SparkTasks(spark), rows, tmp_path, 2, batches=False), wanted)
