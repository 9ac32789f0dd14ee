"""A topic of which one broker leaves: what that broker stored last is not known. Without Spark."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from mqtrail import trail
from mqtrail.client import SyncAdmin, SyncProducer
from mqtrail.lake import connect, relation_of
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.testing import embedded
from mqtrail.wire import Message, MessageQueue, TopicConfig

NO_SPARK = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))


def reading(job: PipelineJob) -> str:
    """Whether the topic is read to its end, as the lake has it."""
    job.lake.refresh()
    samples = relation_of(job.lake[trail.SAMPLES.name])
    query = f"SELECT max_by(status, sampled_ms) FROM ({samples}) AS s WHERE what = 'READ' AND topic = 'orders'"
    [(status,)] = connect().execute(query).fetchall()
    return str(status)


@pytest.mark.slow
def test_the_topic_is_not_read_to_its_end(tmp_path: Path) -> None:
    """All was read while both brokers were there; after one has left it is unknown, until the broker is back."""
    with embedded(tmp_path / "data", brokers=2) as cluster:
        with SyncAdmin(cluster.namesrv_address) as admin, SyncProducer("shop", cluster.namesrv_address) as producer:
            assert admin.create_topic(TopicConfig("orders", 1, 1)).complete
            for broker in cluster.broker_names:
                producer.send(Message("orders", b"body"), queue=MessageQueue("orders", broker, 0))
        job = PipelineJob(JobConfig(namesrv=cluster.namesrv_address, lake=tmp_path / "lake")).use(NO_SPARK)
        job.once()
        assert reading(job) == "OK"
        cluster.stop_broker("broker-b")
        job.once()
        assert reading(job) == "FAILED"
        cluster.start_broker("broker-b")
        job.once()
        assert reading(job) == "OK"
        assert not job.lake[trail.LAG.name].files()  # no group reads the topic: no cycle writes a lag without rows
