"""The Spark session, as every other test of this room uses it."""

import pytest
from pyspark.sql import SparkSession

from mqtrail.pipeline import spark_session


def test_settings(spark: SparkSession) -> None:
    """The session keeps UTC, has no open port for a browser, and takes names with blanks in its paths."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.range(3).repartition(2).count() == 3


def test_a_second_session_is_refused(spark: SparkSession) -> None:
    """Settings of a session that is already there would win in silence."""
    with pytest.raises(RuntimeError, match="already active"), spark_session():
        pass
