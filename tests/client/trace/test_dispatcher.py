"""The dispatcher: every context is sent, in memory, spooled, or counted as lost."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtrail.client.core.config import TraceConfig
from mqtrail.client.trace.dispatcher import Dispatcher
from mqtrail.client.trace.segments import Segment
from mqtrail.client.trace.shared_spool import SharedSpool, SpoolTicket
from mqtrail.client.trace.spool import SpooledMessage
from mqtrail.client.trace.text import pub, trace_end
from tests.waiting import until

from ...loops import run
from ..helpers import TraceSink

Scenario = Callable[[Dispatcher, TraceSink], Awaitable[None]]

NAMESRV = ("127.0.0.1:9876",)
FOLDER = "127.0.0.1_9876"


def text(number: int) -> str:
    return pub(number, "R", "PG", "orders", f"id-{number}", "", "", "h:1", 5, 1, 0, "off", True)


def play(
    folder: Path, scenario: Scenario, sink: TraceSink | None = None, **settings: Any
) -> tuple[Dispatcher, TraceSink]:
    """Run a scenario on a started dispatcher and close it."""
    sink = sink or TraceSink()
    quick: dict[str, Any] = {"linger_ms": 20, "retry_ms": 5, "retry_max_ms": 20, "close_wait_ms": 2_000}
    config = TraceConfig(spool_dir=folder, **(quick | settings))
    made: list[Dispatcher] = []

    async def main() -> None:
        spool = SharedSpool.acquire(folder, NAMESRV, config.spool_size_max)
        dispatcher = Dispatcher("10.0.0.1@1#1", "start-1", sink.send, config, spool)
        made.append(dispatcher)
        dispatcher.start()
        try:
            await scenario(dispatcher, sink)
        finally:
            await dispatcher.close()
        check(dispatcher)

    run(main())
    return made[0], sink


def check(dispatcher: Dispatcher) -> None:
    counts = dispatcher.counts
    assert counts.recorded == counts.sent + counts.in_memory + counts.spooled + counts.lost, counts


def files(folder: Path) -> list[Path]:
    spool = folder / FOLDER
    return list(spool.iterdir()) if spool.exists() else []


def test_records_arrive_in_batches_with_their_keys(tmp_path: Path) -> None:
    """Contexts of one topic travel together after the message's number, and KEYS has each key once."""

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        for number in range(25):
            dispatcher.record("orders", text(number), [f"id-{number} key"], 0)
        dispatcher.record("payments", text(99), ["id-99"], 0)
        await until(lambda: sink.record_count == 26)

    dispatcher, sink = play(tmp_path, scenario, batch_count_max=10)
    assert sorted(message.record_count for message in sink.messages) == [1, 5, 10, 10]
    assert {message.topic for message in sink.messages} == {"RMQ_SYS_TRACE_TOPIC"}
    keys = {message.keys for message in sink.messages if message.business_topic == "payments"}
    assert keys == {"id-99"}
    assert sink.messages[0].keys.split().count("key") == 1
    batches = sink.of("TraceBatch")
    assert sorted(batch.sequence for batch in batches) == [1, 2, 3, 4]
    assert {(batch.client_id, batch.start_id, batch.dropped_total) for batch in batches} == {
        ("10.0.0.1@1#1", "start-1", 0)
    }
    assert sorted(record.time_stamp for record in sink.of("Pub")) == [*range(25), 99]
    assert dispatcher.counts.sent == 26


def test_a_lone_record_is_sent_after_the_linger(tmp_path: Path) -> None:
    """A single record is sent without further ones."""

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        dispatcher.record("orders", text(1), [f"id-{1}"], 0)
        assert sink.messages == []
        await until(lambda: sink.record_count == 1)

    play(tmp_path, scenario)


def test_an_outage_delays_and_loses_nothing(tmp_path: Path) -> None:
    """Records wait in memory while the broker is down; afterwards all of them are sent once."""

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        sink.down = True
        for number in range(100):
            dispatcher.record("orders", text(number), [f"id-{number}"], 0)
        await until(lambda: sink.attempts >= 3)
        check(dispatcher)
        sink.down = False
        await until(lambda: sink.record_count == 100)

    dispatcher, sink = play(tmp_path, scenario, batch_count_max=10)
    assert sorted(record.time_stamp for record in sink.of("Pub")) == list(range(100))
    assert (dispatcher.counts.sent, dispatcher.counts.lost) == (100, 0)
    assert files(tmp_path) == []


def test_close_during_an_outage_spools_and_the_next_start_sends(tmp_path: Path) -> None:
    """Unsent messages are kept in the spool with their numbers, and the next process sends them."""

    async def first(dispatcher: Dispatcher, sink: TraceSink) -> None:
        sink.down = True
        for number in range(30):
            dispatcher.record("orders", text(number), [f"id-{number}"], 0)
        await until(lambda: sink.attempts >= 1)

    dispatcher, _ = play(tmp_path, first, batch_count_max=10)
    assert (dispatcher.counts.spooled, dispatcher.counts.lost) == (30, 0)
    assert len(files(tmp_path)) == 1

    async def second(dispatcher: Dispatcher, sink: TraceSink) -> None:
        await until(lambda: sink.record_count == 30)

    dispatcher, sink = play(tmp_path, second)
    assert sorted(record.time_stamp for record in sink.of("Pub")) == list(range(30))
    assert sorted(batch.sequence for batch in sink.of("TraceBatch")) == [1, 2, 3]
    assert dispatcher.counts.recorded == 0, "an earlier life's records are not counted as this one's"
    assert files(tmp_path) == []


async def test_a_close_during_a_look_into_the_spool_leaves_it_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that a closing dispatcher was reading from the shared spool remain for other dispatchers."""
    kept = SpooledMessage("RMQ_SYS_TRACE_TOPIC", "id-1", text(1).encode(), 1, "earlier", "orders")
    take = SharedSpool.take
    looking, go_on = threading.Event(), threading.Event()

    def slow_take(spool: SharedSpool) -> SpoolTicket | None:
        looking.set()
        assert go_on.wait(60)
        return take(spool)

    config = TraceConfig(spool_dir=tmp_path)
    spool, others = (SharedSpool.acquire(tmp_path, NAMESRV, config.spool_size_max) for _ in range(2))
    others.append(kept)
    monkeypatch.setattr(SharedSpool, "take", slow_take)
    dispatcher = Dispatcher("10.0.0.1@1#1", "start-1", TraceSink().send, config, spool)
    dispatcher.start()
    await until(looking.is_set)
    closing = asyncio.create_task(dispatcher.close(0))
    for _ in range(3):
        await asyncio.sleep(0)
    go_on.set()
    await closing
    ticket = others.take()
    assert ticket is not None
    assert ticket.message == kept
    ticket.done()
    others.release()


def test_memory_spills_to_the_spool_and_comes_back(tmp_path: Path) -> None:
    """Above half of its memory the dispatcher uses the spool; after the outage the same process sends the spool."""

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        sink.down = True
        for number in range(400):
            dispatcher.record("orders", text(number), [f"id-{number}"], 0)
            if number % 20 == 0:
                await until(lambda: dispatcher.counts.in_memory <= 160)  # of some 280 that it has room for
        await until(lambda: dispatcher.counts.spooled > 0)
        check(dispatcher)
        sink.down = False
        await until(lambda: sink.record_count == 400)
        assert dispatcher.counts.spooled == 0

    dispatcher, sink = play(tmp_path, scenario, batch_count_max=10, memory_size_max=20_000)
    assert (dispatcher.counts.sent, dispatcher.counts.lost) == (400, 0)
    assert sorted(record.time_stamp for record in sink.of("Pub")) == list(range(400))


def test_what_nothing_can_hold_is_counted_in_the_trace_itself(tmp_path: Path) -> None:
    """With memory and spool full, further records are lost, and the trace records their number, time and reason."""

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        sink.down = True
        for number in range(400):
            dispatcher.record("orders", text(number), [f"id-{number}"], 0)
            if number % 20 == 0:
                await asyncio.sleep(0.001)
        await until(lambda: dispatcher.counts.lost > 0)
        sink.down = False
        await until(lambda: dispatcher.counts.in_memory == 0 and dispatcher.counts.spooled == 0)

    dispatcher, sink = play(tmp_path, scenario, batch_count_max=10, memory_size_max=20_000, spool_size_max=8_000)
    counts = dispatcher.counts
    assert counts.sent + counts.lost == 400
    assert counts.lost > 0
    losses = sink.of("TraceLoss")
    assert sum(loss.count for loss in losses) == counts.lost
    assert {loss.reason for loss in losses} <= {"memory full", "spool full"}
    assert max(batch.dropped_total for batch in sink.of("TraceBatch")) == counts.lost
    assert len(sink.of("Pub")) == counts.sent


def test_a_refused_message_is_counted_and_holds_up_nothing(tmp_path: Path) -> None:
    """A trace message that the broker refuses finally is dropped and logged; the next ones are sent."""
    sink = TraceSink()
    sink.refuses = lambda message: b"id-13" in message.body

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        for number in range(30):
            dispatcher.record("orders", text(number), [f"id-{number}"], 0)
        await until(lambda: sink.of("TraceLoss"))

    dispatcher, sink = play(tmp_path, scenario, sink, batch_count_max=10)
    assert (dispatcher.counts.sent, dispatcher.counts.lost) == (20, 10)
    (loss,) = sink.of("TraceLoss")
    assert (loss.count, loss.reason) == (10, "refused by the broker")


async def test_the_last_record_follows_all_others(tmp_path: Path) -> None:
    """A client that stops normally says so after its other records, and also if it has none."""
    for count in (0, 3):
        sink = TraceSink()
        spool = SharedSpool.acquire(tmp_path, NAMESRV, 10_000)
        end = partial(trace_end, group="CG", client_id="c", start_id="s")
        dispatcher = Dispatcher("c", "s", sink.send, TraceConfig(spool_dir=tmp_path), spool, end=end)
        dispatcher.start()
        for number in range(count):
            dispatcher.record("orders", text(number), [f"id-{number}"], 0)
        assert not sink.of("TraceEnd")
        await dispatcher.close()
        check(dispatcher)
        assert len(sink.of("Pub")) == count
        assert [type(one).__name__ for one in sink.records()][-1:] == ["TraceEnd"]


def test_losses_at_close_are_left_for_the_next_start(tmp_path: Path) -> None:
    """A client that ends with a full spool keeps the count of lost records for its next start."""

    async def first(dispatcher: Dispatcher, sink: TraceSink) -> None:
        sink.down = True
        for number in range(60):
            dispatcher.record("orders", text(number), [f"id-{number}"], 0)
        await until(lambda: sink.attempts >= 1)

    dispatcher, _ = play(tmp_path, first, batch_count_max=10, spool_size_max=1_500)
    lost = dispatcher.counts.lost
    assert lost > 0

    async def second(dispatcher: Dispatcher, sink: TraceSink) -> None:
        await until(lambda: sink.of("TraceLoss"))

    _, sink = play(tmp_path, second)
    assert sum(loss.count for loss in sink.of("TraceLoss")) == lost


def test_close_waits_no_longer_than_its_limit(tmp_path: Path) -> None:
    """A broker that never replies delays the close up to the deadline, and no record is lost."""
    sink = TraceSink()

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        sink.gate = asyncio.Event()
        for number in range(10):
            dispatcher.record("orders", text(number), [f"id-{number}"], 0)
        begun = asyncio.get_running_loop().time()
        await dispatcher.close(50)
        assert asyncio.get_running_loop().time() - begun < 30

    dispatcher, _ = play(tmp_path, scenario, sink, close_wait_ms=60_000)
    assert (dispatcher.counts.spooled, dispatcher.counts.lost) == (10, 0)


def test_a_spool_that_cannot_be_written_is_a_counted_loss(tmp_path: Path) -> None:
    """Without a folder there is no spool: the records are counted as lost with that reason."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        sink.down = True
        dispatcher.record("orders", text(1), [f"id-{1}"], 0)
        await until(lambda: sink.attempts >= 1)

    dispatcher, _ = play(blocked / "spool", scenario)
    assert dispatcher.counts.lost == 1


def test_text_beyond_utf8_cannot_stop_the_trace(tmp_path: Path) -> None:
    """A lone surrogate in a key or tag is replaced, and the record is sent."""

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        dispatcher.record("orders", text(1).replace("id-1", "id-\ud800"), ["id-\ud800"], 0)
        await until(lambda: sink.record_count == 1)

    _, sink = play(tmp_path, scenario)
    assert sink.of("Pub")[0].msg_id == "id-?"


def test_a_segment_that_cannot_be_composed_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its contexts are counted and reported; the other segments of the same tick are sent, and so are later ones."""
    keys = Segment.keys

    def failing(segment: Segment, size_max: int) -> str:
        if segment.topic == "bad":
            raise RuntimeError("unwritable")
        return keys(segment, size_max)

    monkeypatch.setattr(Segment, "keys", failing)

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        for number, topic in enumerate(("orders", "bad", "payments")):
            dispatcher.record(topic, text(number), [f"id-{number}"], 0)
        await until(lambda: len(sink.of("Pub")) == 2 and sink.of("TraceLoss"))
        check(dispatcher)
        dispatcher.record("orders", text(3), ["id-3"], 0)
        await until(lambda: len(sink.of("Pub")) == 3)

    dispatcher, sink = play(tmp_path, scenario)
    assert {message.business_topic for message in sink.messages} >= {"orders", "payments"}
    assert [(loss.count, loss.reason) for loss in sink.of("TraceLoss")] == [(1, "not composed")]
    assert dispatcher.counts.lost == 1
    numbers = [batch.sequence for batch in sink.of("TraceBatch")]
    assert sorted(numbers) == list(range(1, len(numbers) + 1)), "a gap would look like a lost message"


def test_losses_that_cannot_be_reported_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If even the record of a loss cannot be composed, the dispatcher neither hangs nor raises."""

    def failing(segment: Segment, size_max: int) -> str:
        raise RuntimeError("unwritable")

    monkeypatch.setattr(Segment, "keys", failing)

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        dispatcher.record("orders", text(1), ["id-1"], 0)
        await until(lambda: dispatcher.counts.lost == 1)

    dispatcher, sink = play(tmp_path, scenario)
    assert (dispatcher.counts.lost, sink.messages) == (1, [])


async def test_contexts_whose_collection_fails_hold_up_no_others(tmp_path: Path) -> None:
    """If an owner fails to hand over its contexts, the failure is reported and the contexts handed over are sent."""

    def failing() -> None:
        if collecting:
            raise RuntimeError("cannot hand over")

    collecting = [True]
    config = TraceConfig(spool_dir=tmp_path, linger_ms=20)
    sink, spool = TraceSink(), SharedSpool.acquire(tmp_path, NAMESRV, config.spool_size_max)
    dispatcher = Dispatcher("10.0.0.1@1#1", "start-1", sink.send, config, spool, failing)
    dispatcher.start()
    dispatcher.record("orders", text(1), ["id-1"], 0)
    await until(lambda: sink.record_count == 1)
    collecting.clear()
    await dispatcher.close()


steps = st.lists(
    st.sampled_from(["record", "record", "record", "burst", "down", "up", "turn", "turn", "flush"]), max_size=40
)


@settings(max_examples=40)
@given(steps, st.sampled_from([3_000, 20_000]), st.sampled_from([0, 2_000, 100_000]))
def test_every_context_is_accounted_for(
    tmp_path_factory: Any, script: list[str], memory_size_max: int, spool_size_max: int
) -> None:
    """For any order of records, outages and turns of the loop, every context is accounted for, also at the close."""
    folder = tmp_path_factory.mktemp("spool")

    async def scenario(dispatcher: Dispatcher, sink: TraceSink) -> None:
        number = 0
        for step in script:
            if step in ("record", "burst"):
                for _ in range(1 if step == "record" else 30):
                    dispatcher.record("orders", text(number), [f"id-{number}"], 0)
                    number += 1
            elif step == "flush":
                dispatcher.flush()
            elif step == "turn":
                await asyncio.sleep(0.001)
            else:
                sink.down = step == "down"
            check(dispatcher)

    dispatcher, sink = play(
        folder, scenario, batch_count_max=5, memory_size_max=memory_size_max, spool_size_max=spool_size_max
    )
    counts = dispatcher.counts
    assert counts.in_memory == 0
    assert counts.sent == len(sink.of("Pub"))

    def reported(*sinks: TraceSink) -> int:
        return sum(loss.count for one in sinks for loss in one.of("TraceLoss"))

    async def later(dispatcher: Dispatcher, again: TraceSink) -> None:
        await until(lambda: len(again.of("Pub")) == counts.spooled and reported(sink, again) == counts.lost)

    _, again = play(folder, later)
    arrived = [record.time_stamp for record in sink.of("Pub") + again.of("Pub")]
    assert len(set(arrived)) == len(arrived) == counts.recorded - counts.lost
    assert reported(sink, again) == counts.lost
