"""Pops after a restart or a kill: an unacknowledged message is redelivered, an acknowledged one is not."""

import random
from typing import Any

import pytest

from mqtrail.store import PendingRecord, ReadResult, StoreError, StoreFull
from mqtrail.wire import PopAck, PopCheckPoint, RequestCode, ResponseCode, SendBackHeader, encode_properties

from ..helpers import Bench
from .helpers import (
    INVISIBLE_MS,
    RETRY,
    REVIVE_TOPIC,
    SETTLED_MS,
    TIMER_TOPIC,
    ack,
    ask_pop,
    bodies,
    hide,
    hold_pop,
    pop,
    send,
)


def kill(bench: Bench) -> None:
    """Start another broker on the same store and files without saving or disconnecting anything first."""
    bench.broker = bench._new_broker()


@pytest.fixture
def bench() -> Bench:
    bench = Bench(offsets_save_ms=3_600_000)
    send(bench, "first")
    for one in pop(bench):
        ack(bench, one)
    bench.store.flush()
    bench.broker.save(bench.now_ms)
    return bench


def test_restart(bench: Bench) -> None:
    """A clean stop keeps both popped messages and acknowledgements."""
    send(bench, "done", "open")
    done, _ = pop(bench)
    ack(bench, done)
    bench.restart()
    assert pop(bench) == []
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert bodies(pop(bench)) == ["open"]


def test_kill(bench: Bench) -> None:
    """After a kill, the saved offsets are old; the broker recovers the newer ones from the log."""
    send(bench, "done", "open")
    done, _ = pop(bench)
    ack(bench, done)
    kill(bench)
    assert bench.broker.pop.recovered_count == 1
    assert pop(bench) == []
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert bodies(pop(bench)) == ["open"]


def test_kill_before_the_first_save() -> None:
    """The first pop of a group is recorded before it is answered."""
    bench = Bench(offsets_save_ms=3_600_000)
    send(bench, "done")
    for one in pop(bench):
        ack(bench, one)
    kill(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert pop(bench) == []


def test_kill_during_the_first_save() -> None:
    """A check point of an unanswered first pop advances the group's offset, so the message is delivered once.

    Found by the simulator (cluster 4693510065): it was popped again from its queue, and revived as well.
    """
    bench = Bench(offsets_save_ms=3_600_000)
    send(bench, "unseen")
    pop(bench)
    bench.disk.remove("config/consumerOffset.json")  # as if it had never been written
    kill(bench)
    assert bench.broker.pop.recovered_count == 1
    assert pop(bench) == []
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert bodies(pop(bench)) == ["unseen"]
    bench.store.flush()
    bench.broker.save(bench.now_ms)
    kill(bench)
    assert bench.broker.pop.recovered_count == 0


@pytest.mark.parametrize("pops_between", [False, True])
def test_kill_twice_around_the_first_save(pops_between: bool) -> None:
    """The ends of the logs are not saved before the offsets that were recovered from the logs.

    Found by the simulator (cluster 4769970119): after the second kill it was popped again, and revived as well.
    """
    bench = Bench(offsets_save_ms=3_600_000)
    bench.flushes = False
    send(bench, "unseen")
    pop(bench)
    bench.disk.remove("config/consumerOffset.json")  # as if it had never been written
    kill(bench)
    if pops_between:
        assert bodies(pop(bench, consumer_group="other")) == ["unseen"]
    bench.broker.save(bench.now_ms)
    kill(bench)
    assert bench.broker.pop.recovered_count == 1 + pops_between
    assert pop(bench) == []
    bench.store.flush()
    bench.broker.save(bench.now_ms)
    kill(bench)
    assert bench.broker.pop.recovered_count == 0


def test_kill_before_the_group_is_saved() -> None:
    """A group that a pop created exists only in its check point. Its message is revived although no member reconnected.

    Found by the simulator (cluster 4699170099): revive dropped the check point as if the group had been deleted.
    """
    bench = Bench(offsets_save_ms=3_600_000)
    send(bench, "unseen")
    pop(bench)
    for name in ("consumerOffset", "subscriptionGroup"):
        bench.disk.remove(f"config/{name}.json")  # as if it had never been written
    kill(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert bodies(pop(bench)) == ["unseen"]


def test_ack_after_the_clock_was_set_back(bench: Bench) -> None:
    """A check point and its ack keep their order: neither waits for the time that the clock showed before.

    Found by the simulator (cluster 910000237).
    """
    bench.advance(60_000)
    send(bench, "before")
    [before] = pop(bench)
    ack(bench, before)
    bench.broker.tick(bench.now_ms)
    bench.now_ms -= 40_000
    send(bench, "done")
    [done] = pop(bench)
    bench.broker.next_tick_ms()
    bench.now_ms += INVISIBLE_MS // 2
    bench.broker.tick(bench.now_ms)
    ack(bench, done)
    bench.advance(60_000)
    assert pop(bench) == []


def test_kill_after_revive(bench: Bench) -> None:
    """A message that was revived, popped again and acknowledged before a kill is not revived a second time."""
    send(bench, "again")
    pop(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    for one in pop(bench):
        ack(bench, one)
    kill(bench)
    bench.advance(60_000)
    assert pop(bench) == []
    assert len(bench.messages(RETRY)) == 1


def test_kill_between_copy_and_save(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the copy and the save delivers the copy twice and loses none."""
    send(bench, "again")
    pop(bench)
    bench.advance(INVISIBLE_MS - 1_000)
    monkeypatch.setattr(bench.files, "note", lambda name, document: None)
    bench.advance(1_000 + SETTLED_MS)
    monkeypatch.undo()
    kill(bench)
    bench.advance(SETTLED_MS)
    assert bodies(pop(bench)) == ["again", "again"]


def test_offsets_wait_for_the_log(bench: Bench) -> None:
    """Offsets saved before a power loss do not skip records that the power loss removed: a pop, or a copy."""
    send(bench, "again", "next")
    bench.store.flush()
    pop(bench, max_msg_nums=1)
    bench.broker.save(bench.now_ms)
    assert _saved(bench, "orders@g")[0] == 1
    bench.store.flush()
    bench.broker.save(bench.now_ms)
    assert _saved(bench, "orders@g")[0] == 2
    revived = f"{REVIVE_TOPIC}@CID_RMQ_SYS_REVIVE_GROUP"
    before = _saved(bench, revived)
    bench.flushes = False
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    bench.broker.save(bench.now_ms)
    assert len(bench.messages(RETRY)) == 1
    assert _saved(bench, revived) == before
    bench.flushes = True
    bench.advance(1_000)
    assert _saved(bench, revived) != before


def _saved(bench: Bench, name: str) -> dict[int, int]:
    document = bench.files.load("consumerOffset.json")
    assert document is not None
    return {int(queue_id): offset for queue_id, offset in document["offsetTable"].get(name, {}).items()}


def test_check_point_that_comes_twice(bench: Bench) -> None:
    """A check point that the timer store delivers twice after a kill is processed once."""
    send(bench, "again")
    [one] = pop(bench)
    bench.advance(INVISIBLE_MS)
    record = bench.messages(REVIVE_TOPIC, one.handle.revive_queue_id)[-1]
    assert record.tags == "ck"
    properties = encode_properties(record.properties).encode()
    twice = PendingRecord(REVIVE_TOPIC, record.queue_id, record.body, properties, 3176, bench.now_ms, b"\0" * 8)
    bench.broker.writer.write([twice], bench.now_ms)
    bench.advance(2 * SETTLED_MS)
    assert len(bench.messages(RETRY)) == 1


def test_records_that_come_again_after_later_ones(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read to its last record: a check point that precedes later ones still waits for its ack."""
    monkeypatch.setattr("mqtrail.broker.pop.revive_queue.SCAN_COUNT", 1)
    send(bench, "done")
    due_ms = bench.now_ms - 30_000
    point = PopCheckPoint(1, due_ms - 10_000, 10_000, 0, 1, 0, "orders", "g", diffs=(0,), broker_name="broker-a")
    later = PopAck(99, 99, "g", "orders", 3, 1, "broker-a")
    its_ack = PopAck(1, 1, "g", "orders", 0, due_ms - 10_000, "broker-a")
    for tag, body, deliver_ms in (
        ("ack", later.encode(), bench.now_ms),
        ("ck", point.encode(), due_ms - 1_000),
        ("ack", its_ack.encode(), due_ms),
    ):
        properties = encode_properties({"TAGS": tag, "TIMER_DELIVER_MS": str(deliver_ms)}).encode()
        record = PendingRecord(REVIVE_TOPIC, 5, body, properties, 3176, bench.now_ms, b"\0" * 8)
        bench.broker.writer.write([record], bench.now_ms)
    bench.advance(SETTLED_MS)
    assert bench.messages(RETRY) == []


@pytest.mark.parametrize(
    ("point", "deliver_ms"),
    [
        ({}, "9" * 5_000),
        ({}, "\u00b2"),
        ({"count": 1 << 40, "diffs": None}, "1"),
        ({"count": -1, "diffs": None}, "1"),
        ({"diffs": (0,) * 128}, "1"),
        ({"start_offset": 1 << 60, "re_puts": "9" * 5_000}, "1"),
        ({"start_offset": 1 << 60, "re_puts": "\u00b2"}, "1"),
    ],
)
def test_a_hostile_record_of_the_log(bench: Bench, point: dict[str, Any], deliver_ms: str) -> None:
    """Any producer can send one. A later message of the same queue of the log still comes again, also after a kill."""
    send(bench, "again")
    pop(bench)
    fields = {"start_offset": 1, "pop_time_ms": 1, "invisible_ms": 1, "count": 1, "topic": "orders", "group": "g"}
    body = PopCheckPoint(**{"diffs": (0,), **fields, **point}).encode()
    properties = encode_properties({"TAGS": "ck", "TIMER_DELIVER_MS": deliver_ms}).encode()
    for queue in bench.broker.pop.revive.queues:
        record = PendingRecord(REVIVE_TOPIC, queue.queue_id, body, properties, 3176, bench.now_ms, b"\0" * 8)
        bench.broker.writer.write([record], bench.now_ms)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert "again" in [message.body.decode() for message in bench.messages(RETRY)]
    kill(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)


def test_first_save_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pop of a broker is refused until the files that a start needs are saved."""
    bench = Bench(offsets_save_ms=3_600_000)
    send(bench, "done")
    replace = bench.disk.replace

    def replace_others(path: str, data: bytes) -> None:
        if path == "config/consumerOffset.json":
            raise OSError("the disk fails")
        replace(path, data)

    monkeypatch.setattr(bench.disk, "replace", replace_others)
    with pytest.raises(OSError, match="the disk fails"):
        pop(bench)
    monkeypatch.undo()
    for one in pop(bench):
        ack(bench, one)
    kill(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert pop(bench) == []


def test_reset_then_kill(bench: Bench) -> None:
    """A pop before a reset does not undo the reset; a pop after it advances the offset."""
    send(bench, "a", "b", "c")
    pop(bench)
    bench.broker.offsets.reset("g", "orders", 0, 1)
    assert bodies(pop(bench, max_msg_nums=1)) == ["a"]
    kill(bench)
    assert bodies(pop(bench)) == ["b", "c"]


def test_another_broker_in_between(bench: Bench) -> None:
    """A check point without our mark was written by another broker: the saved offset applies."""
    send(bench, "a", "b")
    pop(bench, max_msg_nums=1)
    point = PopCheckPoint(2, bench.now_ms, 10_000, 0, 1, 0, "orders", "g", diffs=(0,), broker_name="broker-a")
    properties = encode_properties({"TAGS": "ck", "REAL_TOPIC": REVIVE_TOPIC, "REAL_QID": "0"}).encode()
    record = PendingRecord("rmq_sys_wheel_timer", 0, point.encode(), properties, 3176, bench.now_ms, b"\0" * 8)
    bench.store.append([record], bench.now_ms)
    kill(bench)
    assert bench.broker.pop.recovered_count == 0
    assert bodies(pop(bench)) == ["a", "b"]


def test_long_stop(bench: Bench) -> None:
    """After a long stop, an ack that precedes its check point in the log still counts."""
    send(bench, "late", "open")
    late, _ = pop(bench)
    bench.broker.stop(bench.now_ms)
    bench.now_ms += 3_600_000
    kill(bench)
    assert ack(bench, late).code == 0
    bench.advance(SETTLED_MS)
    assert bodies(pop(bench)) == ["open"]


def test_hidden_outlives_a_kill(bench: Bench) -> None:
    send(bench, "later")
    [one] = pop(bench)
    hide(bench, one, 60_000)
    kill(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert pop(bench) == []
    bench.advance(60_000)
    assert bodies(pop(bench)) == ["later"]


def test_orders_outlive_a_kill(bench: Bench) -> None:
    """An acknowledged message of an ordered pop is not redelivered either."""
    send(bench, "a", "b", queue_id=1)
    a, _ = pop(bench, order=True, queue_id=1)
    ack(bench, a)
    kill(bench)
    assert bodies(pop(bench, order=True, queue_id=1)) == ["b"]


def test_ack_of_what_a_kill_forgot(bench: Bench) -> None:
    """An ordered pop that was not saved is unknown after a kill: its ack does not advance the group."""
    send(bench, "a", "b", "c", queue_id=1)
    _, _, c = pop(bench, order=True, queue_id=1)
    kill(bench)
    assert ack(bench, c).code == ResponseCode.SUCCESS
    assert bodies(pop(bench, order=True, queue_id=1)) == ["a", "b", "c"]


def test_acks_that_orders_do_not_know(bench: Bench) -> None:
    """Acks after the last save of the orders are known by the offset only: the next ack does not move the group
    back."""
    send(bench, "a", "b", "c", queue_id=1)
    a, b, c = pop(bench, order=True, queue_id=1)
    bench.store.flush()
    bench.broker.save(bench.now_ms)
    ack(bench, a)
    ack(bench, b)
    kill(bench)
    assert bench.broker.offsets.get("g", "orders", 1) == 2
    ack(bench, c)
    assert bench.broker.offsets.get("g", "orders", 1) == 3


def test_send_back_of_another_message_at_the_same_place(bench: Bench) -> None:
    """The check point of a message that a power loss removed does not deliver the message now stored there."""
    for topic, queue_id in ((TIMER_TOPIC, 0), (REVIVE_TOPIC, bench.broker.pop.revive.queues[0].queue_id)):
        send(bench, "x")
        pop(bench)
        bench.advance(INVISIBLE_MS)
        [first, *_] = bench.messages(topic, queue_id) or bench.messages(topic, 1)
        header = SendBackHeader(first.physical_offset, "g", 0, origin_topic="orders")
        reply = bench.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
        assert (reply.code, "which groups never receive" in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_orders_outlive_a_restart(bench: Bench) -> None:
    """A blocked queue stays blocked across a clean stop, and is unblocked when its time is up."""
    send(bench, "a", queue_id=1)
    pop(bench, order=True, queue_id=1)
    bench.restart()
    assert pop(bench, order=True, queue_id=1) == []
    bench.advance(INVISIBLE_MS)
    assert bodies(pop(bench, order=True, queue_id=1)) == ["a"]


def test_lost_end_of_the_revive_log(bench: Bench) -> None:
    """A committed offset beyond the log's end does not hide records that are appended there later."""
    bench.broker.offsets.commit("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC, 0, 99)
    bench.restart()
    send(bench, "a")
    for _ in range(8):
        pop(bench)
        bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert len(bench.messages(RETRY)) == 8


def test_full_store(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store refuses check points, nothing is delivered, and nothing is lost."""
    send(bench, "a", "b")
    [one] = pop(bench, max_msg_nums=1)
    monkeypatch.setattr(bench.store, "append", _refuse)
    assert ask_pop(bench).code == 14
    assert ack(bench, one).code == 14
    bench.advance(60_000)
    monkeypatch.undo()
    bench.advance(SETTLED_MS)
    assert sorted(bodies(pop(bench))) == ["a", "b"]


def test_acks_that_could_not_be_handed_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store refuses due acks, a check point whose time is up waits for them."""
    send(bench, "done")
    [done] = pop(bench)
    ack(bench, done)
    append = bench.store.append
    refused = []

    def append_others(records: list[PendingRecord], now_ms: int) -> Any:
        if any(record.topic == REVIVE_TOPIC and b"\x01ack" in bytes(record.properties) for record in records):
            refused.append(now_ms)
            _refuse()
        return append(records, now_ms)

    monkeypatch.setattr(bench.store, "append", append_others)
    bench.advance(INVISIBLE_MS + 2 * SETTLED_MS)
    assert refused
    monkeypatch.undo()
    bench.advance(SETTLED_MS)
    assert pop(bench) == []
    assert bench.messages(RETRY) == []


def _refuse(*args: object) -> None:
    raise StoreFull("found a full disk")


def test_copy_that_does_not_fit(bench: Bench) -> None:
    """A message without room for another property is redelivered without it."""
    send(bench, "probe", big="x")
    [probe] = pop(bench)
    ack(bench, probe)
    room = 32_767 - len(encode_properties(probe.message.properties))
    send(bench, "a", big="x" * (room - 10))
    [one] = pop(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    [again] = pop(bench)
    assert again.body == one.body
    assert "1ST_POP_TIME" not in again.message.properties


def test_message_that_cannot_be_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged message gets its own check point with growing delays and is reported; others are delivered in time."""
    send(bench, "damaged", "good")
    pop(bench)
    read = bench.store.read

    def read_badly(topic: str, queue_id: int, queue_offset: int, *args: Any, **more: Any) -> ReadResult:
        if (topic, queue_offset) == ("orders", 1):
            raise StoreError("found damage")
        return read(topic, queue_id, queue_offset, *args, **more)

    monkeypatch.setattr(bench.store, "read", read_badly)
    with pytest.raises(StoreError, match="damage"):  # raised to the node, which logs it
        bench.advance(INVISIBLE_MS + SETTLED_MS)
    bench.advance(SETTLED_MS)
    assert bodies(pop(bench, queue_id=1, invisible_time=600_000)) == ["good"]
    points = [PopCheckPoint.decode(one.body) for one in bench.messages("rmq_sys_wheel_timer") if one.tags == "ck"]
    [again] = [point for point in points if point.re_puts is not None]
    assert (again.start_offset, again.re_puts, again.invisible_ms) == (1, "1", INVISIBLE_MS + 10_000)
    monkeypatch.undo()
    bench.advance(10_000)
    assert bodies(pop(bench, queue_id=1)) == ["damaged"]


def test_broken_log_records(bench: Bench) -> None:
    """Invalid records of the revive log are skipped."""
    for tag, body in (("ck", b"no json"), ("ck", b"{}"), ("ack", b"[]"), ("what", b"")):
        properties = encode_properties({"TAGS": tag}).encode()
        record = PendingRecord(REVIVE_TOPIC, 0, body, properties, 0, bench.now_ms, b"\0" * 8)
        bench.broker.writer.write([record], bench.now_ms)
    bench.advance(SETTLED_MS)
    assert bench.broker.pop.revive.behind_count() == 0


def test_idle_broker_does_nothing(bench: Bench) -> None:
    """Without pending check points no tick is needed."""
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert bench.broker.pop.next_due_ms() is None


@pytest.mark.parametrize("seed", range(8))
def test_random_lives(seed: int) -> None:
    """Acknowledged messages are never redelivered; every other message is redelivered until it is acknowledged."""
    chance = random.Random(seed)
    bench = Bench(retry_topic_v2=seed % 2 == 1)
    send(bench, "0")
    sent = 1
    open_ = {}
    acked: set[str] = set()
    for _ in range(150):
        match chance.choice(["send", "pop", "pop", "pop", "ack", "ack", "hide", "wait", "wait", "restart", "kill"]):
            case "send":
                count = chance.randrange(5)
                send(bench, *(f"{sent + number}" for number in range(count)), queue_id=chance.randrange(4))
                sent += count
            case "pop":
                for one in pop(bench, max_msg_nums=chance.randint(1, 32), invisible_time=chance.choice([2_000, 9_000])):
                    assert one.body not in acked, f"{one.body} was acknowledged, {seed=}"
                    open_[one.body] = one
            case "ack" if open_:
                one = open_.pop(chance.choice(sorted(open_)))
                if bench.now_ms < one.handle.pop_time_ms + one.handle.invisible_ms:
                    assert ack(bench, one).code == 0
                    acked.add(one.body)
            case "hide" if open_:
                one = open_.pop(chance.choice(sorted(open_)))
                if bench.now_ms < one.handle.pop_time_ms + one.handle.invisible_ms:
                    assert hide(bench, one, chance.randrange(20_000)).code == 0
            case "wait":
                bench.advance(chance.randrange(6_000))
            case "restart":
                bench.restart()
            case "kill":
                while bench.broker.pop.revive.is_saving:  # what was revived a moment ago would come twice
                    bench.advance(100)
                kill(bench)
    bench.advance(60_000)
    for _ in range(200):
        for one in pop(bench):
            assert one.body not in acked, f"{one.body} was acknowledged, {seed=}"
            assert ack(bench, one).code == 0
            acked.add(one.body)
    assert acked == {str(number) for number in range(sent)}, f"messages are lost, {seed=}"


def test_many_held_and_forgotten(bench: Bench) -> None:
    """Finished waits leave no entry in any table."""
    for _ in range(100):
        hold_pop(bench)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    assert len(bench.broker.writer.watched) == 0
    assert bench.broker.pop.next_due_ms() is None
