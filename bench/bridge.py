"""The figure of `mqtrail migrate bridge`: records/s beside Kafka's own MirrorMaker 2, from the same Kafka.

Both copy the same records: the bridge to our broker, MirrorMaker 2 to a second Kafka. What is counted is the time from
when the first record is seen in the target until the last one is, so the start of neither counts.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from interop.jars import InteropError
from interop.kafka import KafkaServer
from interop.mirror_maker import TASKS, MirrorMaker

from bench.commands import COPY_S_MAX, rate_of, running
from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from mqtrail.client import Admin
from mqtrail.wire import MessageQueue, TopicConfig

RECORDS, RECORDS_QUICK = 300_000, 60_000
PARTITIONS = 8
VALUE_SIZE = 500
BATCH_RECORDS = 100
HEADERS = [("source", b"web"), ("trace", b"0af7651916cd43dd8448eb211c80319c")]
POLL_S = 0.02
G1 = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:-UsePerfData")
KAFKA_JVM = ("-Xms1g", "-Xmx1g", *G1)  # as kafka-server-start.sh
MIRROR_JVM = ("-Xms256m", "-Xmx2g", *G1)  # as connect-mirror-maker.sh


@figure("bridge", "Kafka → RocketMQ by mqtrail migrate bridge beside MirrorMaker 2 to another Kafka", seconds=220)
def bridge(session: Session) -> Iterator[Row]:
    """Each round has a topic of its own, which both sides copy; a first one warms up."""
    session.alone()
    folder = session.fresh_folder("bridge")
    count = RECORDS_QUICK if session.quick else RECORDS
    rates: dict[str, list[float]] = {"bridge": [], "mirror": []}
    try:
        with ExitStack() as stack:
            source = stack.enter_context(KafkaServer(folder / "source", KAFKA_JVM))
            target = stack.enter_context(KafkaServer(folder / "target", KAFKA_JVM))
            mirror = stack.enter_context(
                MirrorMaker(folder / "mirror", source.address, target.address, "bench-.*", MIRROR_JVM)
            )
            broker = stack.enter_context(OurPeer(folder / "broker"))
            for number in range(-1, session.rounds):
                topic = f"bench-{number + 1}"
                with stopped(target.pid, mirror.pid):
                    asyncio.run(fill(source.address, topic, count))
                for name in session.order(number, ("bridge", "mirror")):
                    if name == "bridge":
                        with stopped(target.pid, mirror.pid):
                            rate = bridged(folder, source.address, broker, topic, count)
                    else:
                        with stopped(broker.pid):
                            rate = asyncio.run(mirrored(target.address, topic, count))
                    if number >= 0:
                        rates[name].append(rate)
    except InteropError as error:
        raise CannotMeasure(str(error)) from error
    yield Row(
        "bridge/records",
        f"records of {VALUE_SIZE} bytes with key and 2 headers, {PARTITIONS} partitions: Kafka → RocketMQ",
        "records/s",
        rates["bridge"],
        rates["mirror"],
        f"MirrorMaker 2 of Kafka 4.1.0, {TASKS} tasks, to another Kafka",
        Bar(">=", 1.0),
        more={"records": count},
    )


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes by SIGSTOP for the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def fill(address: str, topic: str, count: int) -> None:
    """Create a topic and write records to it, partition by partition in turn."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        async with asyncio.timeout(COPY_S_MAX):
            while True:
                (found,) = await admin.describe_topics([topic])
                if not found["error_code"] and not any(one["error_code"] for one in found["partitions"]):
                    break
                await asyncio.sleep(POLL_S)
    finally:
        await admin.close()
    value = b"x" * (VALUE_SIZE - 12)
    async with AIOKafkaProducer(bootstrap_servers=address, max_batch_size=1 << 20) as producer:
        for number, first in enumerate(range(0, count, BATCH_RECORDS)):
            batch = producer.create_batch()
            for one in range(first, min(first + BATCH_RECORDS, count)):
                added = batch.append(
                    key=b"order-%d" % (one % 5000), value=b"%012d" % one + value, timestamp=None, headers=HEADERS
                )
                assert added is not None, "the batch has room"
            batch.close()
            await producer.send_batch(batch, topic, partition=number % PARTITIONS)


def bridged(folder: Path, kafka: str, broker: OurPeer, topic: str, count: int) -> float:
    """Let the command copy a topic; return its records/s."""

    async def measured() -> float:
        async with Admin(broker.namesrv_address) as admin:
            await admin.create_topic(TopicConfig(topic, PARTITIONS, PARTITIONS))
            queues: Sequence[MessageQueue] = await admin.queues(topic)

            async def copied() -> int:
                command.check()
                return sum([await admin.max_offset(queue) for queue in queues])

            own = ("--kafka", kafka, "--namesrv", broker.namesrv_address, "--folder", str(folder / topic))
            with running(folder / f"{topic}.log", "migrate", "bridge", topic, *own) as command:
                return await rate_of(copied, count)

    return asyncio.run(measured())


async def mirrored(kafka: str, topic: str, count: int) -> float:
    """Let MirrorMaker 2, which runs, copy a topic; return its records/s."""
    places = [TopicPartition(MirrorMaker.copy_of(topic), one) for one in range(PARTITIONS)]
    async with AIOKafkaConsumer(bootstrap_servers=kafka) as consumer:

        async def copied() -> int:
            try:
                if MirrorMaker.copy_of(topic) not in await consumer.topics():
                    return 0
                return sum((await consumer.end_offsets(places)).values())
            except KafkaError:  # it was stopped for long, and registers itself anew
                return 0

        return await rate_of(copied, count)
