"""A labelled corpus on the embedded broker, judged live, once after the fact, and by the trace alone. Without Spark.

SCENARIOS=name,name runs some of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession
from tests.loops import run
from tests.pipeline.labelled import consuming, lacking, operating, sending
from tests.pipeline.labelled.judged import Found, found_in, wrong
from tests.pipeline.labelled.scenario import SCENARIOS
from tests.pipeline.labelled.scene import Owed, Play, Scene
from tests.waiting import wait_until

from mqtrail import trail
from mqtrail.broker import BrokerConfig
from mqtrail.client import Admin, Producer, ProducerConfig, TraceConfig
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.pipeline.sampling import ClusterSample
from mqtrail.pipeline.spool import SampleSpool
from mqtrail.testing import embedded

STORIES = (consuming, lacking, operating, sending)
"""Their import adds their scenarios."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]
NO_SPARK = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))
SETTINGS = trail.Settings(trace_delay_ms=1_500, hung_ms=5_000)
BROKER = BrokerConfig(
    property_filter=True,
    message_delay_level="1s " * 17 + "2h",
    transaction_timeout_ms=300_000,
    transaction_check_ms=1_000,
    transaction_check_max=3,
    transaction_op_delay_ms=100,
)


class Corpus:
    """The scenarios on one broker, and the lakes that looked at them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owed: list[Owed] = []
        self.found: dict[str, dict[str, Found]] = {}
        self.problems: list[BaseException] = []
        self._over, self._release = Event(), Event()
        self._samples = self._cycles = 0

    def play(self, names: list[str], patch: pytest.MonkeyPatch) -> None:
        with embedded(broker=BROKER) as broker:
            config = JobConfig(
                namesrv=broker.namesrv_address,
                lake=self.folder / "live",
                settings=SETTINGS,
                sample_interval_ms=500,
                fail_on_data_loss=False,
            )
            live = PipelineJob(config).use(NO_SPARK)
            live.once()
            put = SampleSpool.put

            def counted(spool: SampleSpool, cluster: str, found: ClusterSample) -> None:
                put(spool, cluster, found)
                self._samples += 1

            patch.setattr(SampleSpool, "put", counted)
            actors = Thread(target=self._act, args=(broker.namesrv_address, names), daemon=True)
            try:
                with live.sampling():
                    actors.start()
                    while not self._over.wait(1):
                        live.once()
                        self._cycles += 1
                    end = self._samples + 6
                    due = time.monotonic() + 2 * SETTINGS.trace_delay_ms / 1_000
                    while self._samples < end or time.monotonic() < due:
                        live.once()
                    self._look("live", live)
                    for way, topics in (("once", None), ("trace", ())):
                        self._look(way, PipelineJob(replace(config, lake=self.folder / way, topics=topics)))
                    self._release.set()
                    actors.join()
                    end = self._samples + 6
                    wait_until(lambda: self._samples >= end)
                    time.sleep(2 * SETTINGS.trace_delay_ms / 1_000)  # what is missing then is missed
                    self._look("live-later", live)
            finally:
                self._release.set()
                actors.join()
            for way, topics in (("once-later", None), ("trace-later", ())):
                self._look(way, PipelineJob(replace(config, lake=self.folder / way, topics=topics)))

    def _look(self, way: str, job: PipelineJob) -> None:
        job.use(NO_SPARK).once()
        self.found[way] = found_in(job.lake)

    def _act(self, namesrv: str, names: list[str]) -> None:
        try:
            run(self._act_all(namesrv, names))
        except BaseException as error:  # of another thread
            self.problems.append(error)
        finally:
            self._over.set()

    async def _act_all(self, namesrv: str, names: list[str]) -> None:
        traced = TraceConfig(spool_dir=self.folder / "spool", linger_ms=20, retry_ms=50)
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(namesrv))
            config = ProducerConfig(trace=traced, send_timeout_ms=20_000)
            producer = await stack.enter_async_context(Producer("P", namesrv, trace=True, config=config))
            play = Play(namesrv, self.folder, admin, producer, stack, lambda: self._samples, lambda: self._cycles)
            await play.sampled()
            begun = asyncio.Semaphore(8)

            async def one(name: str) -> None:
                async with begun:
                    try:
                        await SCENARIOS[name](Scene(play, name))
                    except Exception as error:
                        self.problems.append(AssertionError(f"scenario {name}: {error!r}"))
                        self.problems[-1].__cause__ = error

            await asyncio.gather(*(one(name) for name in names))
            self.owed = play.owed
            self._over.set()
            await asyncio.to_thread(self._release.wait)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    chosen = os.environ.get("SCENARIOS", "")
    made = Corpus(tmp_path_factory.mktemp("labelled"))
    with pytest.MonkeyPatch.context() as patch:
        made.play(chosen.split(",") if chosen else list(SCENARIOS), patch)
    return made


def test_every_scenario_happened(corpus: Corpus) -> None:
    if corpus.problems:
        raise ExceptionGroup("scenarios", [one for one in corpus.problems if isinstance(one, Exception)])
    assert corpus.owed


@pytest.mark.parametrize("way", ["live", "once", "trace", "live-later", "once-later", "trace-later"])
def test_verdicts(corpus: Corpus, way: str) -> None:
    """Live exactly what is owed is said; otherwise nothing false."""
    found = corpus.found[way]
    problems = [
        text
        for owed in corpus.owed
        for text in wrong(owed, found.get(owed.msg_id), is_live=way == "live", is_later=way.endswith("later"))
    ]
    assert not problems, f"{len(problems)} of {len(corpus.owed)} messages\n" + "\n".join(problems)
