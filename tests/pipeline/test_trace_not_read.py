"""A broker whose trace topic cannot be read: what its records may say is not claimed to be missing. Without Spark."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from tests.loops import run

from mqtrail import trail
from mqtrail.client import Consumer, Producer
from mqtrail.lake import connect, relation_of
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.pipeline.bounds import bounds_of
from mqtrail.testing import embedded
from mqtrail.wire import TRACE_TOPIC, Message

NO_SPARK = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))
LIMIT_S = 60.0
NOT_READ = "END_MAY_BE_LOST;TRACE_NOT_READ_"


@pytest.mark.slow
def test_a_hung_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is HUNG while the trace is read, UNKNOWN while it is not, and its end counts once it is read."""
    config = JobConfig(namesrv="", lake=tmp_path / "lake", settings=trail.Settings(hung_ms=1))

    async def main() -> None:
        begun, ending = asyncio.Event(), asyncio.Event()

        async def handler(delivery: Any) -> None:
            begun.set()
            await ending.wait()

        with embedded() as broker:
            job = PipelineJob(replace(config, namesrv=broker.namesrv_address)).use(NO_SPARK)
            async with (
                Producer("shop", broker.namesrv_address, trace=True) as producer,
                Consumer("points", broker.namesrv_address, {"orders": "*"}, trace=True) as consumer,
            ):
                consuming = asyncio.create_task(consumer.run(handler))
                await producer.send(Message("orders", b"body"))
                await asyncio.wait_for(begun.wait(), LIMIT_S)
                await until(job, "HUNG", "")

                def without_trace(*words: Any, **named: Any) -> Any:
                    found = bounds_of(*words, **named)
                    for queue in [queue for queue in found if queue.topic == TRACE_TOPIC]:
                        del found[queue]
                    return found

                with monkeypatch.context() as patched:
                    patched.setattr("mqtrail.pipeline.ingest.bounds_of", without_trace)
                    await asyncio.to_thread(job.once)
                    [(state, reasons)] = verdicts(job)
                    assert (state, reasons[: len(NOT_READ)]) == ("UNKNOWN", NOT_READ)
                await asyncio.to_thread(job.once)
                assert verdicts(job) == [("HUNG", "")]
                ending.set()
                await until(job, "CONSUMED", "")
                consuming.cancel()

    run(main())


async def until(job: PipelineJob, *verdict: str) -> None:
    """Run the job until it gives a verdict."""
    end_s = time.monotonic() + LIMIT_S
    while verdicts(job) != [verdict]:
        assert time.monotonic() < end_s
        await asyncio.to_thread(job.once)


def verdicts(job: PipelineJob) -> list[tuple[str, str]]:
    """The states of all groups, and their reasons."""
    job.lake.refresh()
    rows = trail.latest_sql(trail.VERDICTS, f"({relation_of(job.lake[trail.VERDICTS.name])})")
    return connect().sql(f"SELECT state, reasons FROM ({rows})").fetchall()
