"""Apache's broker opens the folder of our broker after many rounds of kill -9."""

from pathlib import Path

import pytest
from interop.apache import ApacheBroker, ApacheNameServer
from interop.probe import wait_until
from tests.crash.rounds import BROKER, QUEUES, SEGMENT_SIZE, kill_rounds
from tests.loops import run
from tests.sim.clients import number_of
from tests.sim.cluster import TOPIC

from mqtrail.client import QueueReader
from mqtrail.wire import decode_records

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ROUNDS = 3
PROPERTIES = {"mappedFileSizeCommitLog": str(SEGMENT_SIZE), "autoCreateTopicEnable": "false"}


@pytest.mark.parametrize("sync_flush", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_apache_serves_what_kills_left(sync_flush: bool, tmp_path: Path) -> None:
    """No guarantee was broken, and Apache's broker delivers the same messages at the same offsets."""
    history, problems = run(kill_rounds(tmp_path, sync_flush=sync_flush, rounds=ROUNDS, seed=7))
    assert problems == []
    wanted = {
        (read.place.queue_id, read.place.offset): read.number
        for read in history.reads
        if read.reader == "audit" and read.place.topic == TOPIC
    }
    assert len(wanted) > 100
    namesrv = ApacheNameServer("5.3.3", tmp_path / "namesrv").start()
    broker = ApacheBroker(
        "5.3.3", tmp_path / "apache", namesrv.address, name=BROKER, store=tmp_path / "data" / BROKER,
        properties=PROPERTIES,
    )  # fmt: skip
    try:
        broker.start()
        with QueueReader(namesrv.address) as reader:
            wait_until(lambda: len(reader.queues(TOPIC)) == QUEUES, "the route", 120)
            found = {
                (message.queue_id, message.queue_offset): number_of(message.body)
                for queue in reader.queues(TOPIC)
                for result in reader.read_range(queue, *reader.range(queue))
                for message in decode_records(b"".join(result.records))
            }
        assert found == wanted
    finally:
        broker.kill()
        namesrv.kill()
