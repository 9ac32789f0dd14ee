"""A broker that dies in the middle of a load, and comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mqtrail.client import InstanceConfig, ProducerConfig, SyncAdmin
from mqtrail.load import LoadPlan, LoadRun, LoadVerdict
from mqtrail.testing import embedded
from mqtrail.wire import TopicConfig
from tests.waiting import until

pytestmark = pytest.mark.slow

PLAN = LoadPlan(topic="T", group="G", rate=200, duration_s=600)
QUICK = ProducerConfig(send_timeout_ms=20_000, instance=InstanceConfig(request_timeout_ms=10_000))


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_broker_that_dies(comes_back: bool, tmp_path: Path) -> None:
    """The run goes on. What failed has its kind and time; nothing acknowledged is called lost."""
    with embedded(tmp_path / "data") as server:
        with SyncAdmin(server.namesrv_address) as admin:
            assert admin.create_topic(TopicConfig("T", 2, 2)).complete
        plan = PLAN if comes_back else replace(PLAN, drain_s=0.5)  # what the dead broker has does not come
        run = LoadRun(plan, server.namesrv_address, producer=QUICK)
        running = asyncio.create_task(run.run())
        await until(lambda: running.done() or run.recorder.statuses["SEND_OK"] >= 50)
        await asyncio.to_thread(server.stop_broker)
        await until(lambda: running.done() or sum(one.count for one in run.recorder.errors) >= 20)
        if comes_back:
            await asyncio.to_thread(server.start_broker)
            count = run.recorder.statuses["SEND_OK"]
            await until(lambda: running.done() or run.recorder.statuses["SEND_OK"] >= count + 20)
        run.stop()
        report = await running
    found = {reason.code for reason in report.reasons}
    assert "NOT_ACKNOWLEDGED" in found
    assert not found & {"LOST", "DAMAGED", "NEVER_SENT"}
    assert report.verdict is LoadVerdict.FAILED
    counts = report.counts
    assert sum(one.count for one in report.errors) == counts.not_stored + counts.uncertain >= 20
    assert all(0 < one.first_s <= one.last_s for one in report.errors)
    if comes_back:
        assert counts.unread == 0, "it is read after the restart"
        assert "NOT_CONSUMED" not in found
    else:
        assert report.is_read_to_end is None
        assert report.topic_growth is None
