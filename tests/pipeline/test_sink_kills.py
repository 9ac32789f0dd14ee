"""Kill -9 of a task that sends, and of the broker that it sends to: no row lost, none twice."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.crash.rounds import KilledNode
from tests.pipeline.sinking import batches, bodies_of, counts, create, each_once, send, sink_options, stored_count

from mqtrail.pipeline.sink import send_task
from mqtrail.testing import embedded

ROOT = Path(__file__).parents[2]
WAIT_S_MAX = 120
COUNT = 10_000
PROGRAM = """
import sys
from tests.pipeline.sinking import bodies_of, send, sink_options
options = sink_options(sys.argv[1], inFlightMax=1, batchRowsMax=2)  # slow enough to be killed midway
print(send(bodies_of(int(sys.argv[2])), options), flush=True)
"""


@pytest.mark.slow
def test_a_task_that_is_killed() -> None:
    """The next attempt finds what the killed one stored."""
    with embedded(brokers=2) as running:
        namesrv = running.namesrv_address
        create(running, "orders")
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, namesrv, str(COUNT)], cwd=ROOT)
        try:
            until = time.monotonic() + WAIT_S_MAX
            while (count := stored_count(namesrv)) < 1_000:
                assert time.monotonic() < until
                assert process.poll() is None
                time.sleep(0.02)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert count < COUNT
        found = send(
            bodies_of(COUNT)[::-1], sink_options(namesrv, replaySettleMs=1_000, retryTimeoutMs=WAIT_S_MAX * 1_000)
        )
        assert found.found >= count
        assert found.sent > 0
        assert counts(namesrv) == each_once(bodies_of(COUNT))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_broker_that_is_killed(tmp_path: Path) -> None:
    """The task waits for the broker, asks it for what it stored, and goes on."""
    reached = [threading.Event() for _ in range(2)]

    def upstream() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(bodies_of(COUNT), 250)):
            if number in (8, 24):
                reached[number // 24].set()
            yield batch

    async with KilledNode(tmp_path / "data", tmp_path / "log", sync_flush=False) as node:
        await node.start()
        await asyncio.to_thread(create, node.namesrv, "orders")
        options = sink_options(node.namesrv, retryTimeoutMs=WAIT_S_MAX * 1_000, replaySettleMs=500, inFlightMax=4)
        sending = asyncio.create_task(asyncio.to_thread(send_task, upstream(), options, "write 1"))
        for event in reached:
            assert await asyncio.to_thread(event.wait, WAIT_S_MAX)
            await node.end(signal.SIGKILL)
            assert not sending.done()
            await node.start()
        found = await sending
        assert (found.sent, found.rejected) == (COUNT, 0)
        assert await asyncio.to_thread(counts, node.namesrv) == each_once(bodies_of(COUNT))
