"""Timers beyond their scenario file: stored records, slices, crashes, a store that refuses."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.broker import BrokerConfig
from mqtrail.broker.timing.records import ROLL_WINDOW_MS, delivered_record, out_ms, wait_of, waiting_record
from mqtrail.store import CommitLogConfig, CommitLogStore, ConfigFileStore, PendingRecord, StoreFull, Unit, UnitMagic
from mqtrail.store.timers.layout import SLOT, SLOT_COUNT
from mqtrail.wire import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    Perm,
    RecallHandle,
    RecallMessageHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TimerMetrics,
    TopicConfig,
    decode_head,
    decode_records,
    encode_record,
    java_string_hash,
)
from tests.store.crash_disk import CrashDisk
from tests.store.spoiling import WAYS, spoil

from ..helpers import NOW_MS, PEER, Bench

DAY_MS = 86_400_000
DUE_MS = st.integers(NOW_MS - 10_000, NOW_MS + 40 * DAY_MS)


def waiting(due_ms: int, topic: str = "orders") -> PendingRecord:
    record = PendingRecord(topic, 3, b"body", b"UNIQ_KEY\x01ID1\x02", 0, NOW_MS, PEER.address.packed())
    return waiting_record(record, due_ms)


def stored(pending: PendingRecord, store_ms: int) -> bytes:
    return encode_record(
        pending.topic,
        bytes(pending.body),
        bytes(pending.properties),
        queue_id=pending.queue_id,
        queue_offset=1,
        physical_offset=1_000,
        born_host=pending.born_host,
        store_host=pending.born_host,
        store_timestamp_ms=store_ms,
        born_timestamp_ms=pending.born_timestamp_ms,
    )


def full(*_: object) -> None:
    """A store that has no room."""
    raise StoreFull("full")


def timed(bench: Bench, body: bytes, **properties: Any) -> RemotingCommand:
    reply = bench.send(body=body, UNIQ_KEY=f"ID{body.decode()}", **properties)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return reply


def bodies(bench: Bench) -> list[bytes]:
    """Return the bodies of all messages of a queue, with as many reads as needed."""
    found: list[bytes] = []
    offset = 0
    while (read := bench.store.read("orders", 0, offset, 100, 1 << 20)).records:
        found += [message.body for message in decode_records(b"".join(read.records))]
        offset = read.next_queue_offset
    return found


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("due_ms", "slot_ms"),
    [(NOW_MS, NOW_MS - 1_000), (NOW_MS + 1, NOW_MS), (NOW_MS + 999, NOW_MS), (NOW_MS + 1_000, NOW_MS)],
)
def test_times_are_floored_as_java_does(due_ms: int, slot_ms: int) -> None:
    """An exact second waits for the one before it (HookUtils.transformTimerMessage)."""
    assert out_ms(due_ms) == slot_ms


@given(DUE_MS, st.integers(0, 999))
def test_no_wait_is_early_or_too_long(due_ms: int, past_ms: int) -> None:
    """At any time, the slot's second ends at or before the due time, lies within the wheel, and is reached."""
    store_ms = NOW_MS + past_ms
    turns = 0
    while True:
        record = stored(waiting(due_ms), store_ms)
        head = decode_head(record)
        wait = wait_of(head, record[head.properties_start : head.properties_end], store_ms)
        assert wait is not None
        assert wait.put_ms - 1_000 <= wait.slot_ms <= wait.put_ms + ROLL_WINDOW_MS
        assert (wait.topic, wait.topic_hash) == ("orders", java_string_hash("orders"))
        if not wait.magic & UnitMagic.ROLL:
            break
        assert wait.slot_ms + 1_000 <= due_ms
        store_ms = wait.slot_ms + 1_000
        turns += 1
    handed_out_ms = wait.slot_ms + 1_000
    assert handed_out_ms >= min(due_ms, store_ms - 1_000)
    assert handed_out_ms < max(due_ms, store_ms) + 1_000
    assert turns <= 21


def test_a_delivered_message_tells_its_way() -> None:
    """Delivered messages keep the real topic and queue in the text and add the times of entry and exit, as Java writes
    them."""
    record = stored(waiting(NOW_MS + 5_000), NOW_MS)
    rolled = delivered_record(record, rolls=True, now_ms=NOW_MS + 1)
    assert rolled is not None
    assert (rolled.topic, rolled.queue_id) == (TIMER_TOPIC, 0)
    again = delivered_record(stored(rolled, NOW_MS + 2_500), rolls=False, now_ms=NOW_MS + 5_000)
    assert again is not None
    assert (again.topic, again.queue_id, again.body) == ("orders", 3, b"body")
    assert again.properties.decode().split("\x02") == [
        "UNIQ_KEY\x01ID1",
        "TIMER_OUT_MS\x011700000004000",
        "REAL_TOPIC\x01orders",
        "REAL_QID\x013",
        "TIMER_ENQUEUE_MS\x011700000002000",
        "TIMER_DEQUEUE_MS\x011700000005000",
        "TIMER_ROLL_TIMES\x011",
        "",
    ]


def test_a_long_properties_text_is_delivered_all_the_same() -> None:
    """A message without room for these properties is delivered without them."""
    record = PendingRecord("orders", 3, b"b", b"K\x01" + b"v" * 32_700 + b"\x02", 0, NOW_MS, PEER.address.packed())
    pending = waiting_record(record, NOW_MS + 1_000)
    delivered = delivered_record(stored(pending, NOW_MS), rolls=False, now_ms=NOW_MS)
    assert delivered is not None
    assert delivered.properties == pending.properties


# -- the broker --------------------------------------------------------------------------------------------------------


def test_a_recall_handle_is_javas() -> None:
    """base64 of "v1 topic broker time id"; its time is TIMER_OUT_MS + 1 (SendMessageProcessor.attachRecallHandle)."""
    bench = Bench()
    reply = timed(bench, b"1", TIMER_DELAY_SEC="10")
    assert reply.ext["recallHandle"] == "djEgb3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDkwMDEgSUQx"
    assert "recallHandle" not in bench.send(UNIQ_KEY="ID2").ext
    bench.broker.groups.find("g", bench.now_ms)
    retried = bench.send("%RETRY%g", UNIQ_KEY="ID3", TIMER_DELAY_SEC="10")
    assert (retried.code, "recallHandle" in retried.ext) == (ResponseCode.SUCCESS, False)


def test_a_recall_of_what_rolls_goes_with_it() -> None:
    """A message that waits longer than the wheel holds can be recalled: the recall makes the same rounds."""
    bench = Bench(offsets_save_ms=DAY_MS, statistics=False)
    handle = timed(bench, b"1", TIMER_DELAY_SEC=str(3 * 86_400)).ext["recallHandle"]
    timed(bench, b"2", TIMER_DELAY_SEC=str(3 * 86_400))
    bench.advance(5_000)
    ext = RecallMessageHeader("orders", handle).to_ext()
    reply = bench.ask(RequestCode.RECALL_MESSAGE, ext)
    assert (reply.code, reply.ext["msgId"]) == (ResponseCode.SUCCESS, "ID1")
    bench.advance(3 * DAY_MS)
    assert bodies(bench) == [b"2"]
    metrics = TimerMetrics.decode(bench.ask(RequestCode.GET_TIMER_METRICS).body)
    assert metrics.timing_count["orders"].count == 0


def test_a_recall_of_another_broker_is_refused() -> None:
    """A handle names its broker: another broker refuses it."""
    bench = Bench()
    bench.broker.topics.update(TopicConfig("orders", 4, 4, Perm.READ | Perm.WRITE), bench.now_ms)
    handle = RecallHandle("orders", "broker-b", bench.now_ms + 5_000, "ID1").encode()
    reply = bench.ask(RequestCode.RECALL_MESSAGE, {"topic": "orders", "recallHandle": handle})
    assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert reply.remark is not None
    assert "broker-b" in reply.remark


def test_the_checkpoint_is_returned() -> None:
    """60 returns Apache's 56 bytes."""
    bench = Bench()
    timed(bench, b"1", TIMER_DELAY_SEC="10")
    bench.broker.next_tick_ms()
    body = bench.ask(RequestCode.GET_TIMER_CHECK_POINT).body
    assert len(body) == 56
    assert body[8:32] == (52).to_bytes(8, "big") + 2 * (1).to_bytes(8, "big")


def test_a_crowded_second_is_delivered_in_strokes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of messages due in one second do not block others: they are delivered in slices, in order of
    arrival."""
    monkeypatch.setattr("mqtrail.broker.timing.slots.COLLECT_MAX", 100)
    monkeypatch.setattr("mqtrail.broker.timing.timers.DELIVER_MAX", 64)
    bench = Bench()
    for number in range(1_000):
        timed(bench, b"%d" % number, TIMER_DELIVER_MS=str(NOW_MS + 5_000))
    bench.now_ms = NOW_MS + 5_000
    counts = [0]
    while bench.broker.next_tick_ms() <= bench.now_ms:
        bench.broker.tick(bench.now_ms)
        counts.append(bench.store.max_offset("orders", 0))
    assert counts[-1] == 1_000
    assert max(after - before for before, after in pairwise(counts)) <= 96
    assert bodies(bench) == [b"%d" % number for number in range(1_000)]


@pytest.mark.parametrize(
    "real",
    [
        b"REAL_TOPIC\x01orders\x02REAL_QID\x01" + b"9" * 5_000 + b"\x02",
        b"REAL_TOPIC\x01orders\x02REAL_QID\x010x1\x02",
        b"REAL_TOPIC\x01\xff\x02REAL_QID\x010\x02",
    ],
    ids=["digits", "no number", "no text"],
)
def test_a_waiting_record_without_a_possible_queue_stops_no_other(real: bytes) -> None:
    """An invalid record is skipped by delay levels and by timers, for instance in a folder that another broker
    wrote."""
    bench = Bench()
    out = b"TIMER_OUT_MS\x01%d\x02" % (NOW_MS + 2_000)
    strange = [PendingRecord(name, 0, b"?", real + out, 0, NOW_MS, bytes(8)) for name in (SCHEDULE_TOPIC, TIMER_TOPIC)]
    bench.store.append(strange, NOW_MS)
    bench.send(body=b"1", DELAY="1")
    timed(bench, b"2", TIMER_DELAY_SEC="3")
    bench.advance(10_000)
    assert sorted(bodies(bench)) == [b"1", b"2"]


@pytest.mark.parametrize("real", [TIMER_TOPIC, SCHEDULE_TOPIC])
def test_a_waiting_record_cannot_lead_to_where_records_wait(real: str) -> None:
    """Any client can send such a record to the timer topic. It is dropped; otherwise it would be delivered for ever."""
    bench = Bench()
    out: dict[str, Any] = {"TIMER_OUT_MS": str(NOW_MS - 5_000), "REAL_TOPIC": real, "REAL_QID": "0"}
    assert bench.send(TIMER_TOPIC, b"x" * 1_000, **out).code == ResponseCode.SUCCESS
    bench.advance(5_000)
    end_offset = bench.store.end_offset
    bench.advance(20_000)
    assert bench.store.end_offset == end_offset
    assert bench.store.max_offset(SCHEDULE_TOPIC, 0) == 0


def test_a_store_that_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Due messages wait until the store has room; the broker retries every second, not continuously."""
    bench = Bench()
    timed(bench, b"1", TIMER_DELAY_SEC="2")
    with monkeypatch.context() as patch:
        bench.broker.next_tick_ms()
        patch.setattr(bench.store, "append", full)
        bench.now_ms += 3_000
        ticks = 0
        while (next_ms := bench.broker.next_tick_ms()) <= NOW_MS + 13_000:
            bench.now_ms = max(bench.now_ms, next_ms)
            bench.broker.tick(bench.now_ms)
            ticks += 1
        assert ticks < 20
    bench.advance(2_000)
    assert bodies(bench) == [b"1"]


def test_a_clock_set_back_loses_nothing() -> None:
    """New messages for a second that passed before the clock was set back are still delivered, once."""
    bench = Bench()
    bench.advance(60_000)
    timed(bench, b"1", TIMER_DELAY_SEC="2")
    bench.advance(10_000)
    bench.now_ms -= 50_000
    timed(bench, b"2", TIMER_DELAY_SEC="5")
    bench.advance(4_000)
    assert bodies(bench) == [b"1"]
    bench.advance(60_000)
    assert bodies(bench) == [b"1", b"2"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_went_forward_and_back(restarts: bool) -> None:
    """Store times do not advance meanwhile, also across a restart; later messages are not delayed."""
    bench = Bench()
    bench.now_ms += DAY_MS
    bench.send("other")
    bench.advance(1)
    bench.now_ms -= DAY_MS
    if restarts:
        bench.restart()
    bench.broker.tick(bench.now_ms)
    timed(bench, b"timed", TIMER_DELAY_SEC="2")
    bench.send("orders", b"level 1", DELAY="1")
    bench.send("orders", b"level 3", DELAY="3")
    bench.advance(4_000)
    assert sorted(bodies(bench)) == [b"level 1", b"timed"]
    bench.send("orders", b"level 3 later", DELAY="3")
    bench.advance(7_000)
    assert b"level 3" in bodies(bench)
    bench.advance(4_000)
    assert b"level 3 later" in bodies(bench)


def test_a_clock_set_back_while_a_delivery_is_tried_again() -> None:
    """A delivery that the store refused before the clock went back does not stop the timers until the old time is
    reached."""
    bench = Bench()
    timed(bench, b"1", TIMER_DELAY_SEC="60")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.store, "append", full)
        bench.now_ms += 62_000
        bench.broker.tick(bench.now_ms)
    bench.now_ms -= 60_000
    timed(bench, b"2", TIMER_DELAY_SEC="5")
    while (next_ms := bench.broker.next_tick_ms()) <= NOW_MS + 9_000:
        bench.now_ms = max(bench.now_ms, next_ms)
        bench.broker.tick(bench.now_ms)
    assert bodies(bench) == [b"2"]


def test_periodic_work_continues_after_the_clock_was_set_back() -> None:
    """Offsets are saved and held pulls answered when due by the new time, not when the clock shows the old time
    again."""
    bench = Bench()
    bench.send()
    bench.now_ms += DAY_MS
    bench.broker.tick(bench.now_ms)
    assert bench.tell(RequestCode.PULL_MESSAGE, bench.pull_ext(queue_offset=1, hold_ms=10_000)) == []
    bench.now_ms -= DAY_MS
    bench.broker.tick(bench.now_ms)
    assert bench.broker.next_tick_ms() <= bench.now_ms + bench.config.offsets_save_ms
    bench.now_ms += 10_000
    assert any(send.command.code == ResponseCode.PULL_NOT_FOUND for send in bench.broker.tick(bench.now_ms))


def test_a_clock_set_back_while_a_second_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that arrive for that second wait for it; messages for an earlier one are delivered before it."""
    monkeypatch.setattr("mqtrail.broker.timing.slots.COLLECT_MAX", 10)
    bench = Bench()
    numbers = [b"%d" % number for number in range(30)]
    for number in numbers:
        timed(bench, number, TIMER_DELIVER_MS=str(NOW_MS + 60_000))
    bench.broker.tick(NOW_MS + 60_000)
    timed(bench, b"same second", TIMER_DELIVER_MS=str(NOW_MS + 60_000))
    timed(bench, b"earlier", TIMER_DELIVER_MS=str(NOW_MS + 50_000))
    bench.advance(49_000)
    assert bodies(bench) == []
    bench.advance(60_000)
    assert bodies(bench) == [b"earlier", *numbers, b"same second"]


def test_a_lost_log_is_built_again_from_the_queue() -> None:
    """The rebuilt log uses the checkpoint: no delivered message is redelivered, and no waiting one is lost."""
    disk = CrashDisk()
    bench = Bench(offsets_save_ms=DAY_MS, statistics=False)
    open_store(bench, disk)
    timed(bench, b"1", TIMER_DELAY_SEC="2")
    timed(bench, b"2", TIMER_DELAY_SEC="60")
    timed(bench, b"3", TIMER_DELAY_SEC=str(3 * 86_400))
    bench.advance(10_000)
    stop(bench)
    disk.remove("timerlog")
    open_store(bench, disk)
    bench.advance(3 * DAY_MS)
    assert bodies(bench) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("path", ["timerwheel", "timerlog/00000000000000000000"])
@pytest.mark.parametrize("how", WAYS)
def test_damaged_files_lose_and_repeat_nothing(path: str, how: str) -> None:
    """After a clean stop: what was delivered stays so, what waits is delivered once, and the damage is reported."""
    disk = CrashDisk()
    bench = Bench(statistics=False)
    open_store(bench, disk)
    timed(bench, b"1", TIMER_DELAY_SEC="2")
    timed(bench, b"2", TIMER_DELAY_SEC="60")
    timed(bench, b"3", TIMER_DELAY_SEC="60")
    timed(bench, b"4", TIMER_DELAY_SEC="70")
    bench.advance(10_000)
    stop(bench)
    spoil(disk, path, how, NOW_MS // 1_000 % SLOT_COUNT * SLOT.size if path == "timerwheel" else 0)
    open_store(bench, disk)
    reports = [] if bench.store.timers.report is None else [bench.store.timers.report]
    bench.broker.own.report_to(reports.append)
    bench.advance(100_000)
    assert bodies(bench) == [b"1", b"2", b"3", b"4"]
    (report,) = reports
    assert path.partition("/")[0] in report
    assert report.endswith(" is lost")
    assert bench.broker.timers.counts.waiting() == {"orders": 0}
    stop(bench)
    open_store(bench, disk)
    assert bench.store.timers.report is None


def test_a_missing_first_file_of_the_log_loses_and_repeats_nothing() -> None:
    """It does not pass for an expired one: what was delivered stays so, and what waits is delivered once."""
    disk = CrashDisk()
    bench = Bench(statistics=False)
    open_store(bench, disk)
    timed(bench, b"0", TIMER_DELAY_SEC="2")
    bench.advance(10_000)
    numbers = [b"%d" % number for number in range(1, 30)]  # 20 units are in a file
    for number in numbers:
        timed(bench, number, TIMER_DELAY_SEC="60")
    bench.advance(10_000)
    stop(bench)
    spoil(disk, "timerlog/00000000000000000000", "gone")
    open_store(bench, disk)
    assert bench.store.timers.report is not None
    bench.advance(100_000)
    assert bodies(bench) == [b"0", *numbers]
    assert bench.broker.timers.counts.waiting() == {"orders": 0}
    stop(bench)
    open_store(bench, disk)
    assert bench.store.timers.report is None


def test_a_chain_that_stays_damaged_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is built again once for a second; if its chain is still damaged, the others are delivered."""
    bench = Bench(statistics=False)
    reports: list[str] = []
    bench.broker.own.report_to(reports.append)
    timed(bench, b"1", TIMER_DELAY_SEC="5")
    timed(bench, b"2", TIMER_DELAY_SEC="8")
    bad_ms = bench.now_ms + 5_000
    unit = bench.store.timers.log.unit

    def bad_unit(position: int) -> Unit | None:
        found = unit(position)
        return None if found is not None and found.slot_ms < bad_ms else found

    monkeypatch.setattr(bench.store.timers.log, "unit", bad_unit)
    bench.advance(20_000)
    assert bodies(bench) == [b"2"]
    assert [report.rpartition(":")[2] for report in reports] == [
        " the last days of timer messages are read again, none is lost",
        " the record is passed",
    ]


def test_a_kill_after_the_clock_was_set_back() -> None:
    """A saved message for a second before the one already reached is found again."""
    disk = CrashDisk()
    bench = Bench(offsets_save_ms=DAY_MS, statistics=False)
    open_store(bench, disk)
    timed(bench, b"1", TIMER_DELAY_SEC="55")
    bench.advance(57_000)
    stop(bench)
    bench.now_ms -= 50_000
    open_store(bench, disk)
    timed(bench, b"2", TIMER_DELAY_SEC="5")
    bench.broker.next_tick_ms()
    bench.store.flush()
    bench.store.timers.log.write()
    bench.store.abandon()
    disk.close()
    open_store(bench, disk)
    bench.advance(100_000)
    assert bodies(bench) == [b"1", b"2"]


def test_a_lost_checkpoint_delivers_all_again() -> None:
    """Without a checkpoint messages are delivered twice rather than lost, and the report says so."""
    disk = CrashDisk()
    bench = Bench()
    open_store(bench, disk)
    timed(bench, b"1", TIMER_DELAY_SEC="2")
    timed(bench, b"2", TIMER_DELAY_SEC="60")
    bench.advance(10_000)
    stop(bench)
    disk.remove("config/timercheck")
    open_store(bench, disk)
    assert bench.store.timers.report is not None
    bench.advance(60_000)
    assert bodies(bench) == [b"1", b"1", b"2"]


# -- crashes -----------------------------------------------------------------------------------------------------------

CONFIG = CommitLogConfig(
    segment_size=1 << 18,
    queue_entries=200,
    index_slots=16,
    index_entries=64,
    message_size_max=16 * 1024,
    timer_log_file_size=52 * 20 + 16,
)


def open_store(bench: Bench, disk: CrashDisk) -> None:
    bench.store = CommitLogStore(disk, CONFIG)
    bench.files = ConfigFileStore(disk)
    bench.broker = bench._new_broker()


def stop(bench: Bench) -> None:
    bench.broker.stop(bench.now_ms)
    bench.store.close()


def first_stored(bench: Bench) -> dict[bytes, int]:
    """Return the first store time of each message in its queue, by body."""
    found: dict[bytes, int] = {}
    offset = 0
    while (read := bench.store.read("orders", 0, offset, 100, 1 << 20)).records:
        for message in decode_records(b"".join(read.records)):
            found.setdefault(message.body, message.store_timestamp_ms)
        offset = read.next_queue_offset
    return found


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
def test_no_timer_message_is_lost_or_early(seed: int) -> None:
    """After stops, kills and power losses at any time, every acknowledged message is delivered, and none before it is
    due.

    A message whose recall was acknowledged is not delivered.
    """
    chance = random.Random(seed)
    disk = CrashDisk()
    bench = Bench(offsets_save_ms=2_000)
    open_store(bench, disk)
    due: dict[bytes, int] = {}
    recalled: set[bytes] = set()

    for number in range(80):
        match chance.choice(["send", "send", "send", "recall", "advance", "advance", "flush", "kill", "power", "stop"]):
            case "send":
                body = b"%d" % number
                delay_ms = chance.choice([0, 500, 1_000, 7_123, 60_000, 2 * DAY_MS + 5])
                due[body] = bench.now_ms + delay_ms
                reply = timed(bench, body, TIMER_DELIVER_MS=str(due[body]))
                bench.store.flush()
                if delay_ms > 1_000 and chance.random() < 0.2:
                    handle = reply.ext["recallHandle"]
                    reply = bench.ask(RequestCode.RECALL_MESSAGE, {"topic": "orders", "recallHandle": handle})
                    assert reply.code == ResponseCode.SUCCESS
                    bench.store.flush()
                    recalled.add(body)
            case "advance":
                bench.advance(chance.choice([100, 1_500, 9_000, 50_000]))
            case "flush":
                bench.store.flush()
            case "kill":
                bench.store.abandon()
                disk.close()
                open_store(bench, disk)
            case "power":
                bench.store.abandon()
                disk.crash(chance)
                open_store(bench, disk)
            case "stop":
                stop(bench)
                if chance.random() < 0.3:
                    bench.now_ms += chance.choice([5_000, 3 * DAY_MS, 20 * DAY_MS])
                open_store(bench, disk)
    bench.broker.stop(bench.now_ms)
    bench.config = BrokerConfig(offsets_save_ms=DAY_MS, statistics=False)
    bench.broker = bench._new_broker()
    bench.advance(3 * DAY_MS)
    arrived = first_stored(bench)
    assert arrived.keys() == due.keys() - recalled
    assert all(arrived[body] >= due_ms for body, due_ms in due.items() if body in arrived)
