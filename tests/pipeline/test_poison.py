"""Unreadable messages in the trace topic and in a business topic are reported with position and reason, and do not
affect others."""

from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession
from tests.loops import run

from mqtrail import trail
from mqtrail.answers import Answers, Status
from mqtrail.broker import BrokerConfig
from mqtrail.client import ClientInstance, InstanceConfig, ProducerConfig, SyncAdmin
from mqtrail.client.core import Composer, unique_ids
from mqtrail.clock import now_ms
from mqtrail.lake import parquet_of
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.testing import embedded
from mqtrail.wire import TRACE_TOPIC, CompressionType, Message, TopicConfig, compress

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

TOPIC = "orders"
GOOD_ID = "C0A8010904D218B4AAC22F1C0A7B0000"
PUB = f"Pub\x011\x01R\x01shop\x01{TOPIC}\x01{GOOD_ID}\x01A\x01k\x01h:1\x015\x017\x010\x01OID\x01true\x02".encode()
ZSTD, UNKNOWN = CompressionType.ZSTD.sys_flag, 0x701
BOMB = compress(bytes(trail.TRACE_BODY_SIZE_MAX + 1), CompressionType.ZSTD)
POISON = (
    # body, sysFlag, the reason in the trace topic and the number of the record there (-1: the whole body)
    (b"no zstd", ZSTD, "not of type 2", -1),
    (b"of no type", UNKNOWN, "compression type 7", -1),
    (BOMB, ZSTD, f"expected at most {trail.TRACE_BODY_SIZE_MAX}", -1),
    (PUB + b"Pub\x01cut", 0, "fields: found 2", 1),
    (b"\xff\xfe\x00\x01\x80", 0, "record type: found", 0),
)


async def send_all(namesrv: str, topic: str) -> int:
    """Send each poison between good messages to one queue; return the number of messages."""
    composer = Composer("PRaw", ProducerConfig(), unique_ids().next)
    client = ClientInstance(namesrv, InstanceConfig())
    await client.start()
    try:
        queue = (await client.route(topic)).publish_queues[0]
        for body, sys_flag, _, _ in (*POISON, (PUB, 0, "", 0)):
            out = composer.message(Message(topic, body, keys="k"))
            out.sys_flag = sys_flag
            command = composer.command(out, queue, now_ms())
            reply = await client.pool.request(client.master(queue.broker_name), command, 10_000)
            assert reply.code == 0, reply.remark
    finally:
        await client.close()
    return queue.queue_id


def test_poison_is_reported_and_skipped(spark: SparkSession, tmp_path: Path) -> None:
    """In the trace topic each is a reject with position and reason; in a business topic it is an ordinary stored
    message, because its body is not read. Later messages are read and judged."""
    with embedded(broker=BrokerConfig(trace_topic_enable=True)) as broker:
        namesrv = broker.namesrv_address
        with SyncAdmin(namesrv) as admin:
            admin.create_topic(TopicConfig(TOPIC, 1, 1))
        trace_queue = run(send_all(namesrv, TRACE_TOPIC))
        run(send_all(namesrv, TOPIC))
        job = PipelineJob(JobConfig(namesrv=namesrv, lake=tmp_path / "lake")).use(spark)
        report = job.once()
    assert report.problems == ()
    assert (report.rejects, report.messages, report.gaps) == (len(POISON), len(POISON) + 1, 0)
    columns = "queue_id, queue_offset, record_no, reason"
    files = parquet_of(job.lake[trail.TRACE_REJECTS.name].paths())
    found = duckdb.execute(f"SELECT {columns} FROM {files} ORDER BY queue_offset").fetchall()
    for offset, ((_, _, reason, record_no), row) in enumerate(zip(POISON, found, strict=True)):
        assert row[:3] == (trace_queue, offset, record_no)
        assert reason in row[3]
    answer = Answers(tmp_path / "lake").trace(GOOD_ID, now_ms())
    assert answer.status is Status.FOUND
    [rejects] = [one for one in answer.scope.omissions if f"{len(POISON)} trace records did not decode" in one]
    assert f"{TRACE_TOPIC} broker-a/{trace_queue} at offset {len(POISON) - 1}: {POISON[-1][2]}" in rejects
