"""Clusters whose offsets decrease: recreated topics, wiped brokers, lost tails, slaves that lag; and wrong clocks."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.pipeline.test_backfills import FIRST_MS, Filler, history
from tests.pipeline.test_ingest import ORDERS, T0, Reader, fill, reader, trace
from tests.pipeline.test_ingest import msg_id as msg_id_of
from tests.pipeline.test_judging import AS_OF_MS, Gold

from mqtrail import trail
from mqtrail.pipeline import JobFailed
from mqtrail.pipeline.ingest import RECREATED
from mqtrail.pipeline.rewinds import CHECKED_MAX, IDLE_CHECKED_MAX
from mqtrail.wire import MessageQueue, decode_head

__all__ = ["reader"]

LATER_MS = FIRST_MS + 10**9


def read_on(reader: Reader) -> int:
    """One cycle of `run`; return the number of gaps."""
    return reader.run(fail_on_data_loss=False).of(trail.GAPS)


def stored(reader: Reader) -> list[tuple[Any, ...]]:
    return reader.rows(trail.MESSAGE_META, "queue_offset, store_ms")


def recreated(reader: Reader) -> list[tuple[Any, ...]]:
    found = reader.rows(trail.GAPS, "topic, first_offset, end_offset, reason")
    return [row[:3] for row in found if row[3] == RECREATED]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5])
def test_a_topic_made_anew(reader: Reader, cluster: Any, count: int) -> None:
    """Its messages are read from the first one on, once each; a gap reports that old ones may be missing."""
    fill(cluster)
    reader.run()
    before = stored(reader)
    cluster.recreate(ORDERS)
    assert read_on(reader) == 0, "nothing to compare with, and nothing to read"
    cluster.append(ORDERS, *[b"new"] * count, store_timestamp_ms=LATER_MS)
    assert read_on(reader) == 1
    assert stored(reader) == sorted([*before, *((offset, LATER_MS) for offset in range(count))], key=repr)
    assert recreated(reader) == [("orders", 6, 6)]
    cluster.append(ORDERS, *[b"new"] * 9, store_timestamp_ms=LATER_MS)
    assert read_on(reader) == 0
    assert len(stored(reader)) == len(before) + count + 9


def test_a_broker_wiped_and_refilled(reader: Reader, cluster: Any) -> None:
    """The trace topic is wiped too, in one step with the restart of the pipeline."""
    fill(cluster)
    cluster.append(T0, trace([20]), trace([21]), trace([22]))
    reader.run()
    for queue in (T0, ORDERS):
        cluster.recreate(queue)
        cluster.append(queue, trace([40]) if queue is T0 else b"x", store_timestamp_ms=LATER_MS)
    folder = reader.lake.path.parent
    assert isinstance(folder, Path)
    restarted = Reader(folder, cluster)
    assert read_on(restarted) == 2
    assert (0, LATER_MS) in stored(restarted)
    assert LATER_MS in {ms for (ms,) in restarted.rows(trail.TRACE_EVENTS, "trace_store_ms")}
    assert restarted.ingest.position("c").offsets[T0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("left", range(6))
def test_a_broker_that_lost_its_last_messages(reader: Reader, cluster: Any, left: int) -> None:
    """The lake keeps the lost messages; new messages at these offsets are read, and nothing is read again."""
    fill(cluster)
    reader.run()
    before = stored(reader)
    first, records = cluster._load(ORDERS)
    cluster._save(ORDERS, first, records[:left])
    assert read_on(reader) == 0
    assert stored(reader) == before
    cluster.append(ORDERS, b"new", store_timestamp_ms=LATER_MS)
    if left < 5:
        assert read_on(reader) == 1
        assert stored(reader) == sorted([*before, (left, LATER_MS)], key=repr)
        assert recreated(reader) == [("orders", 6, 6)]


def test_a_slave_that_lags(reader: Reader, cluster: Any) -> None:
    """The slave has only messages that the lake has: no gap, nothing twice, and the master's messages are read when it
    is back."""
    fill(cluster)
    reader.run()
    before = stored(reader)
    first, records = cluster._load(ORDERS)
    cluster._save(ORDERS, first, records[:3])
    assert read_on(reader) == 0
    cluster._save(ORDERS, first, records)
    cluster.append(ORDERS, b"x", store_timestamp_ms=LATER_MS)
    assert read_on(reader) == 0
    assert stored(reader) == sorted([*before, (6, LATER_MS)], key=repr)


@pytest.mark.parametrize("count", [6, 7, 40])
def test_a_topic_made_anew_that_is_as_long_as_before(reader: Reader, cluster: Any, count: int) -> None:
    """Its messages below the offset reached are read, too, whether the pipeline restarts or not."""
    fill(cluster)
    reader.run()
    before = stored(reader)
    cluster.recreate(ORDERS)
    cluster.append(ORDERS, *[b"new"] * count, store_timestamp_ms=LATER_MS)
    assert read_on(reader) == 1
    assert stored(reader) == sorted([*before, *((offset, LATER_MS) for offset in range(count))], key=repr)
    assert recreated(reader) == [("orders", 6, 6)]
    assert not reader.run().rows, "it is compared with its own last record now"


def test_once_fails_if_a_queue_has_another_last_record(reader: Reader, cluster: Any) -> None:
    """The error names the queue and the remedy."""
    fill(cluster)
    reader.run()
    cluster.recreate(ORDERS)
    cluster.append(ORDERS, *[b"new"] * 9, store_timestamp_ms=LATER_MS)
    with pytest.raises(JobFailed, match=r"orders.* another record at offset 5 .*--no-fail-on-data-loss"):
        reader.run()


@pytest.mark.slow
def test_queues_that_are_compared_later_are_not_read_on(cluster: Any, tmp_path: Path) -> None:
    """Otherwise their messages below the offset reached would be skipped."""
    queues = [MessageQueue("orders", "broker-a", number) for number in range(CHECKED_MAX + 5)]
    for queue in queues:
        cluster.append(queue, b"x", b"y")
    reader = Reader(tmp_path, cluster)
    reader.run()
    for queue in queues:
        cluster.recreate(queue)
        cluster.append(queue, *[b"z"] * 3, store_timestamp_ms=LATER_MS)
    assert [read_on(reader) for _ in range(3)] == [CHECKED_MAX, 5, 0]
    assert len(stored(reader)) == 5 * len(queues)


@pytest.mark.slow
def test_idle_queues_are_compared_in_turns(cluster: Any, tmp_path: Path) -> None:
    """Each queue is compared after as many cycles as there are turns."""
    queues = [MessageQueue("orders", "broker-a", number) for number in range(2 * IDLE_CHECKED_MAX + 1)]
    for queue in queues:
        cluster.append(queue, b"x")
    reader = Reader(tmp_path, cluster)
    reader.run()
    for queue in queues:
        cluster.recreate(queue)
        cluster.append(queue, b"z", store_timestamp_ms=LATER_MS)
    assert [read_on(reader) for _ in range(4)] == [IDLE_CHECKED_MAX, IDLE_CHECKED_MAX, 1, 0]
    assert len(stored(reader)) == 2 * len(queues)


@pytest.mark.slow
def test_an_old_copy_of_a_queue_that_is_back(reader: Reader, cluster: Any) -> None:
    """The lake has both last records: reading goes on behind them."""
    fill(cluster)
    reader.run()
    first, records = cluster._load(ORDERS)
    cluster.recreate(ORDERS)
    cluster.append(ORDERS, *[b"new"] * 6, store_timestamp_ms=LATER_MS)
    assert read_on(reader) == 1
    cluster._save(ORDERS, first, records)
    assert read_on(reader) == 0
    cluster.append(ORDERS, b"x", store_timestamp_ms=LATER_MS + 1)
    assert read_on(reader) == 0
    assert (6, LATER_MS + 1) in stored(reader)


def change(cluster: Any, random: Random, at_ms: int) -> None:
    """Recreate a queue, or let it lose its last messages, or its first ones, and store some messages."""
    first, records = cluster._load(ORDERS)
    match random.choice(["recreate", "lose", "expire", "append", "append"]):
        case "recreate":
            cluster.recreate(ORDERS)
        case "lose":
            cluster._save(ORDERS, first, records[: random.randint(0, len(records))])
        case "expire":
            cluster.expire(ORDERS, random.randint(first, first + len(records)))
    count = random.choice([0, 1, 3, 9, 20])
    for number in range(count):
        cluster.append(ORDERS, b"x", store_timestamp_ms=at_ms + number)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_random_cycles_of_a_queue_that_is_recreated(cluster: Any, tmp_path: Path, seed: int) -> None:
    """Each message that the broker has when the pipeline reads is in the lake, once."""
    random = Random(seed)
    reader = Reader(tmp_path, cluster)
    cluster.append(ORDERS, b"x", store_timestamp_ms=FIRST_MS)
    seen: set[tuple[int, int]] = set()
    for cycle in range(12):
        for number in range(random.randint(0, 2)):
            change(cluster, random, FIRST_MS + 1_000 * cycle + 100 * number)
        if random.random() < 0.3:
            reader = Reader(tmp_path, cluster)
        read_on(reader)
        _, records = cluster._load(ORDERS)
        heads = [decode_head(record) for record in records]
        seen |= {(head.queue_offset, head.store_timestamp_ms) for head in heads}
        assert stored(reader) == sorted(seen, key=repr), cycle


def test_once_fails_by_default(reader: Reader, cluster: Any) -> None:
    """The error names the queue and the remedy."""
    fill(cluster)
    reader.run()
    cluster.recreate(ORDERS)
    with pytest.raises(JobFailed, match=r"ends at 0 and was read up to 6: .*failOnDataLoss"):
        reader.run()


@pytest.mark.slow
def test_what_was_left_out_of_a_topic_made_anew(cluster: Any, tmp_path: Path) -> None:
    """The range cannot be read any more: it becomes a gap, and no backfill reads new messages for it."""
    history(cluster, 6)
    reader = Filler(tmp_path, cluster)
    reader.run()
    history(cluster, 2, first=6)
    reader.run()
    cluster.recreate(T0)
    cluster.append(T0, trace([50]), store_timestamp_ms=LATER_MS)
    assert read_on(reader) == 2
    assert recreated(reader) == [("TRACE", 0, 6), ("TRACE", 8, 8)]
    assert T0 not in reader.ingest.position("c").unread
    reader.files.add(0, 2 * LATER_MS)
    reader.fill_all()
    times = reader.rows(trail.TRACE_EVENTS, "trace_store_ms, broker_name, queue_offset")
    assert sum(row == (LATER_MS, "broker-a", 0) for row in times) == 3


@pytest.mark.slow
def test_many_queues_are_compared_in_turns(cluster: Any, tmp_path: Path) -> None:
    """A wiped broker with many queues does not delay the cycle."""
    queues = [MessageQueue("orders", "broker-a", number) for number in range(CHECKED_MAX + 5)]
    for queue in queues:
        cluster.append(queue, b"x", b"y")
    reader = Reader(tmp_path, cluster)
    reader.run()
    for queue in queues:
        cluster.recreate(queue)
        cluster.append(queue, b"z", store_timestamp_ms=LATER_MS)
    assert [read_on(reader) for _ in range(3)] == [CHECKED_MAX, 5, 0]
    assert len(stored(reader)) == 3 * len(queues)


@pytest.mark.slow
@pytest.mark.parametrize("at_ms", [0, 1, 4_102_444_800_000, 2**62, -1])
def test_times_of_1970_and_2100(reader: Reader, cluster: Any, tmp_path: Path, at_ms: int) -> None:
    """Whatever a broker's or client's clock shows, all messages are read and judged once."""
    fill(cluster)
    cluster.append(ORDERS, b"x", store_timestamp_ms=at_ms, born_timestamp_ms=at_ms)
    cluster.append(T0, trace([30]), store_timestamp_ms=at_ms, born_timestamp_ms=at_ms)
    fill(cluster, first=6, count=2)
    counts = reader.run()
    assert (counts.of(trail.MESSAGE_META), counts.of(trail.TRACE_EVENTS), counts.of(trail.GAPS)) == (9, 27, 0)
    assert not reader.run().rows
    gold = Gold(tmp_path / "lake", tmp_path)
    gold.judge.run("c", AS_OF_MS)
    ids = {row[0] for row in reader.rows(trail.ATTEMPTS, "msg_id")}
    reader.lake.refresh()
    assert {row[0] for row in reader.rows(trail.TRAJECTORIES, "msg_id")} == ids
    assert len(ids) == 10
    sound = reader.rows(trail.VERDICTS, "msg_id, state, codes")
    assert {state for msg_id, state, _ in sound if msg_id in {msg_id_of(number) for number in range(8)}} == {"CONSUMED"}
