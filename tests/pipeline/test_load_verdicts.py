"""`mqtrail load --verdicts`: the pipeline judges exactly the messages of the run, and counts as the load does."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqtrail.cli.config import load
from mqtrail.cli.load_verdicts import TraceJudge
from mqtrail.client import Admin, Producer, ProducerConfig, TraceConfig
from mqtrail.load import LoadPlan, LoadRun, prepare_topic
from mqtrail.pipeline import PipelineJob
from mqtrail.testing import embedded
from mqtrail.wire import Message

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
TOPIC = "load-test"


def test_the_trace_confirms_the_counts(spark: SparkSession, tmp_path: Path) -> None:
    """Messages of others in the topic, sent before and traced too, are not judged: the lake begins with the run."""

    class Judge(TraceJudge):
        def _cycle(self) -> list[str]:
            return list(PipelineJob(self._job).use(spark).once().problems)

    trace = TraceConfig(spool_dir=tmp_path / "spool")

    async def run(namesrv: str, judge: Judge) -> LoadRun:
        producing = ProducerConfig(trace=trace)
        async with Admin(namesrv) as admin:
            await prepare_topic(admin, TOPIC, "G", create=True, queues=2)
        async with Producer("PG", namesrv, trace=True, config=producing) as producer:
            await producer.send(Message(TOPIC, b"of others", tags="A"))
        await asyncio.to_thread(judge.begin)
        plan = LoadPlan(topic=TOPIC, group="G", rate=300, duration_s=0.2, keys=3, ordered=True)
        return LoadRun(plan, namesrv, producer=producing, trace=True)

    with embedded() as server, ExitStack() as stack:
        judge = Judge.open(stack, load(environment={}), server.namesrv_address, str(tmp_path / "lake"), TOPIC)
        assert isinstance(judge, Judge)

        async def whole() -> None:
            report = await (await run(server.namesrv_address, judge)).run()
            found = await asyncio.to_thread(judge.judged, report)
            assert {one.code for one in found.reasons} <= {"RATE_MISSED"}, found.reasons
            assert found.verdicts is not None
            sent = report.counts.sent
            assert found.verdicts["messages"] == found.verdicts["complete"] == sent > 0
            assert found.verdicts["codes"]["CONSUMED"] == sent
            assert {(one["what"], one["trace"]) for one in found.verdicts["compared"]} == {
                ("acknowledged", sent),
                ("not acknowledged", 0),
                ("consumed", sent),
                ("repeated", 0),
                ("lost", 0),
            }

        asyncio.run(whole())
