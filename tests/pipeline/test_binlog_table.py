"""A large batch of a binlog topic, read by Spark's source."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.conftest import FolderDataSource
from tests.tables.making import SOURCE, TOPIC, changed, rows

from mqtrail.client import SyncAdmin, SyncProducer
from mqtrail.tables import TableConfig, TableError, TableJob
from mqtrail.testing import embedded
from mqtrail.wire import Message, TopicConfig

pytestmark = pytest.mark.spark


def test_spark_makes_the_same_changes(spark: SparkSession, tmp_path: Path) -> None:
    """In parts, by queue; a message that cannot be merged ends the run with its own words."""
    story = [*changed(1, None, {"id": 1, "n": 1}), *changed(2, {"id": 1, "n": 1}, {"id": 2, "n": 2.5})]
    try:
        with embedded() as broker, SyncAdmin(broker.namesrv_address) as admin:
            assert admin.create_topic(TopicConfig(TOPIC, 2, 2)).complete
            address, table = broker.namesrv_address, tmp_path / "orders"
            config = TableConfig(namesrv=address, topic=TOPIC, table=table, source=SOURCE, here_count=0)
            with SyncProducer("g", address) as producer, TableJob(config) as job:
                job.use(spark)
                for message in (*story, *reversed(story)):  # the queues in turn
                    producer.send(message)
                assert job.once().changes == 6
                assert rows(job.target) == [(2, 2.5)]
                producer.send(Message(TOPIC, b"hello"))
                with pytest.raises(TableError, match=r"^found a message that is not a change .*broker-a/\d, offset \d"):
                    job.once()
    finally:
        spark.dataSource.register(FolderDataSource)
