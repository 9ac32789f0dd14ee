"""`mqtrail pipeline table` in a process that is killed while it merges."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mqtrail.client import SyncAdmin, SyncProducer
from mqtrail.tables import DeltaTarget, TableConfig, TableJob
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import TopicConfig
from tests.waiting import wait_until

from .making import SOURCE, TOPIC, changed, rows

pytestmark = pytest.mark.slow

QUEUES, KEYS, CHANGES, BATCH = 3, 60, 900, 30
KILLS = 3


@pytest.fixture
def broker() -> Iterator[Embedded]:
    with embedded() as running, SyncAdmin(running.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES)).complete
        yield running


def send(broker: Embedded) -> dict[int, int]:
    """Send changes of rows, deletions among them; return the rows that are left."""
    chance = random.Random(7)
    left: dict[int, int] = {}
    with SyncProducer("g", broker.namesrv_address) as producer:
        for at in range(1, CHANGES + 1):
            key = chance.randrange(KEYS)
            before = {"id": key, "n": left[key]} if key in left else None
            after = None if before and chance.random() < 0.3 else {"id": key, "n": at}
            for message in changed(at, before, after):
                producer.send(message, order_key=message.keys[0])
            left.pop(key, None)
            if after is not None:
                left[key] = at
    return left


def files(folder: Path) -> set[Path]:
    """Files of rows, also of a merge that is not committed."""
    return set(folder.glob("*.parquet"))


def is_further(folder: Path, known: set[Path], process: subprocess.Popen[bytes]) -> bool:
    """Whether there are further files, or the process has ended."""
    return bool(files(folder) - known) or process.poll() is not None


def test_killed_in_a_merge_and_continued(broker: Embedded, tmp_path: Path) -> None:
    """kill -9 as soon as a merge has written a file: each change is in the table once, and none is lost."""
    expected = send(broker)
    config = TableConfig(namesrv=broker.namesrv_address, topic=TOPIC, table=tmp_path / "orders", source=SOURCE)
    command = [sys.executable, "-m", "mqtrail", "pipeline", "table", "--follow", "--batch", str(BATCH)]
    command += ["--topic", TOPIC, "--table", str(config.table), "--source", SOURCE]
    environment = os.environ | {"NAMESRV_ADDR": broker.namesrv_address}
    read: list[int] = []
    for _ in range(KILLS):
        before = files(config.table)
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until(partial(is_further, config.table, before, process))
            assert process.poll() is None, (tmp_path / "log").read_text()
        finally:
            process.kill()
            process.wait()
        found = DeltaTarget.open(config.table)
        assert found is not None
        read.append(sum(found.offset(queue) or 0 for queue in found.queues))
        assert read[-1] < CHANGES, "it was killed before it was done"
    with TableJob(config) as job:
        report = job.once()
        assert (report.messages, report.behind) == (CHANGES - read[-1], 0)
        assert rows(job.target) == sorted(expected.items())
        [(keys, count)] = job.target.rows("SELECT count(DISTINCT _mq_key), count(*) FROM t")
        assert keys == count, "no row twice"
        assert sum(job.target.offset(queue) or 0 for queue in job.target.queues) == CHANGES
