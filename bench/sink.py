"""Figure of the Spark sink: rows/s of one task beside the same producer in plain Python."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from bench.apache import TOPIC
from bench.broker import BOTH_CORES
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from mqtrail.client import Producer
from mqtrail.pipeline import JavaNotFound, RocketMQDataSource, SessionConfig, spark_session
from mqtrail.pipeline.sinkoptions import SinkOptions
from mqtrail.wire import Message

ROWS, ROWS_QUICK = 200_000, 5_000
WARM_ROUNDS = 1
BODY = "concat('order ', id, ' ', repeat('x', 100)) AS body"
# One task, so that both use one core for Python.
SESSION = SessionConfig(app_name="mqtrail bench", master="local[1]", driver_memory="2g")


@figure("sink", "Spark sink, one task: rows/s beside the same producer in plain Python", seconds=90)
def sink(session: Session) -> Iterator[Row]:
    """Equal bodies, batches and requests in flight; the broker is ours. Apache is stopped."""
    count = ROWS_QUICK if session.quick else ROWS
    options = SinkOptions(name_server="", topic=TOPIC)
    rates: dict[str, list[float]] = {"sink": [], "plain": []}
    pair = session.pair(BOTH_CORES)
    with pair.only("ours") as server:
        namesrv = server.namesrv_address
        pair.settle("ours")
        try:
            with spark_session(SESSION) as spark:
                spark.dataSource.register(RocketMQDataSource)
                rows = spark.range(0, count, 1, 1).selectExpr(BODY)
                writer = rows.write.format("rocketmq").mode("append").options(nameServer=namesrv, topic=TOPIC)
                for number in range(-WARM_ROUNDS, session.rounds):
                    for name in session.order(number, ("sink", "plain")):
                        began_s = time.perf_counter()
                        if name == "sink":
                            writer.save()
                        else:
                            asyncio.run(plain(namesrv, count, options))
                        if number >= 0:
                            rates[name].append(count / (time.perf_counter() - began_s))
        except JavaNotFound as error:
            raise CannotMeasure(str(error)) from error
    yield Row(
        "sink/rows",
        "rows of 110 bytes written by one Spark task; the peer sends the same batches from plain Python",
        "rows/s",
        rates["sink"],
        rates["plain"],
        "the same producer in plain Python",
        Bar(">=", 0.9),
        more={"rows": count, "batchRows": options.batch_rows_max, "inFlight": options.in_flight_max},
    )


async def plain(namesrv: str, count: int, options: SinkOptions) -> None:
    """Send as many messages with one producer. Raises if one is not acknowledged."""
    permits = asyncio.Semaphore(options.in_flight_max)

    async def send(start: int) -> None:
        end = min(start + options.batch_rows_max, count)
        messages = [Message(TOPIC, f"order {number} {'x' * 100}".encode()) for number in range(start, end)]
        try:
            await producer.send(messages)
        finally:
            permits.release()

    async with Producer("plain", namesrv) as producer, asyncio.TaskGroup() as tasks:
        for start in range(0, count, options.batch_rows_max):
            await permits.acquire()
            tasks.create_task(send(start))
