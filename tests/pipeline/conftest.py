"""One Spark session for all tests of the room."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqtrail.pipeline import SessionConfig, spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small session: two cores, one retry a task, the first compiler alone, its files in a folder with a blank."""
    scratch: Path = tmp_path_factory.mktemp("spark scratch")
    config = SessionConfig(
        app_name="mqtrail tests",
        master="local[2,2]",
        driver_memory="1g",
        java_options="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        scratch=scratch,
    )
    with spark_session(config) as session:
        yield session
    assert not list(scratch.iterdir())
