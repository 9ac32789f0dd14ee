"""The figure of `TeeProducer`: records/s beside the bare producer of its deciding side, and what it adds to a send.

Both write the same records to a real Kafka, and the tee to our broker too: a send waits for the deciding side only, and
the time of a round ends when all copies arrived.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from aiokafka import AIOKafkaProducer
from interop.jars import InteropError
from interop.kafka import KafkaServer

from bench.bridge import KAFKA_JVM, PARTITIONS, fill
from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import CannotMeasure, Row
from bench.session import Session
from mqtrail.client import Admin, Message, Producer
from mqtrail.migrate import KafkaConfig, TeeConfig, TeeProducer, TeeSide
from mqtrail.wire import TopicConfig

RECORDS, RECORDS_QUICK = 20_000, 2_000
SENDERS = 64  # sends at once
VALUE = b"x" * 500
Send = Callable[[bytes, bytes], Awaitable[object]]


@figure("tee", "records/s of a tee to Kafka and RocketMQ beside a bare producer of the deciding side", seconds=120)
def tee(session: Session) -> Iterator[Row]:
    """Each round and side has a topic of its own; a first round warms up."""
    session.alone()
    folder = session.fresh_folder("tee")
    count = RECORDS_QUICK if session.quick else RECORDS
    try:
        with ExitStack() as stack:
            kafka = stack.enter_context(KafkaServer(folder / "kafka", KAFKA_JVM))
            broker = stack.enter_context(OurPeer(folder / "broker"))
            for decides in TeeSide:
                found: dict[str, list[tuple[float, float]]] = {"tee": [], "bare": []}
                for number in range(-1, session.rounds):
                    for name in session.order(number, ("tee", "bare")):
                        topic = f"{decides}-{name}-{number + 1}"
                        one = asyncio.run(
                            measured(kafka.address, broker.namesrv_address, folder, topic, decides, name, count)
                        )
                        if number >= 0:
                            found[name].append(one)
                peer = "aiokafka's producer" if decides is TeeSide.KAFKA else "our Producer"
                yield Row(
                    f"tee/{decides}/records",
                    f"records of {len(VALUE)} bytes to both sides, {decides} decides, {SENDERS} sends at once, until "
                    "the last copy arrived",
                    "records/s",
                    [rate for rate, _ in found["tee"]],
                    [rate for rate, _ in found["bare"]],
                    f"{peer}, to {decides} alone",
                    more={"records": count},
                )
                yield Row(
                    f"tee/{decides}/send",
                    f"send → answer of a tee, p50, {decides} decides, {SENDERS} sends at once",
                    "ms",
                    [ms for _, ms in found["tee"]],
                    [ms for _, ms in found["bare"]],
                    f"{peer}, to {decides} alone",
                    more={"records": count},
                )
    except InteropError as error:
        raise CannotMeasure(str(error)) from error


async def measured(
    kafka: str, namesrv: str, folder: Path, topic: str, decides: TeeSide, name: str, count: int
) -> tuple[float, float]:
    """Create the topic on both sides and send; return records/s, and the ms of a send, p50."""
    await fill(kafka, topic, 0)
    async with Admin(namesrv) as admin:
        await admin.create_topic(TopicConfig(topic, PARTITIONS, PARTITIONS))
        queues = await admin.queues(topic)
    if name == "tee":
        config = TeeConfig(
            kafka=KafkaConfig(kafka), topic=topic, target=topic, folder=folder / f"of-{topic}", decides=decides
        )
        async with TeeProducer(config, namesrv) as one:
            found = await _sent(lambda key, value: one.send(value, key=key), count, one.drain)
            if one.counts.copied != count:
                raise CannotMeasure(f"found {one.counts}, expected {count} copied")
            return found
    if decides is TeeSide.KAFKA:
        async with AIOKafkaProducer(bootstrap_servers=kafka, acks="all", enable_idempotence=True) as to_kafka:
            return await _sent(lambda key, value: to_kafka.send_and_wait(topic, value, key=key), count, None)
    async with Producer("bench", namesrv) as producer:

        def send(key: bytes, value: bytes) -> Awaitable[object]:
            queue = queues[hash(key) % len(queues)]
            return producer.send(Message(topic, value, keys=key.decode()), queue=queue)

        return await _sent(send, count, None)


async def _sent(send: Send, count: int, drain: Callable[[], Awaitable[object]] | None) -> tuple[float, float]:
    numbers = iter(range(count))
    took_ms: list[float] = []

    async def sender() -> None:
        for number in numbers:
            at_s = time.perf_counter()
            await send(b"order-%d" % (number % 5_000), VALUE)
            took_ms.append((time.perf_counter() - at_s) * 1_000)

    begun_s = time.perf_counter()
    await asyncio.gather(*[sender() for _ in range(SENDERS)])
    if drain is not None:
        await drain()
    return count / (time.perf_counter() - begun_s), median(took_ms)
