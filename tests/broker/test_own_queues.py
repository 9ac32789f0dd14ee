"""Damaged records in the broker's own queues: each is passed once, counted and reported; the others go on."""

from collections.abc import Callable
from typing import Any

import pytest

from mqtrail.store import ReadResult, StoreError
from mqtrail.wire import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, decode_records

from .helpers import Bench
from .pop.helpers import INVISIBLE_MS, RETRY, REVIVE_TOPIC, SETTLED_MS, ask_pop, send
from .transactions.test_transactions import end, half, questions

CHECK_MS = 120_000  # after this time half messages without an end are checked
SIZE, MAGIC, QUEUE_ID, QUEUE_OFFSET, STORE_TIME, BODY_SIZE, BODY = 0, 4, 12, 20, 56, 84, 88  # offsets in a record
PLACES = (
    (SIZE, False),
    (MAGIC + 3, True),
    (QUEUE_ID + 3, True),
    (QUEUE_OFFSET, False),
    (QUEUE_OFFSET + 7, True),
    (BODY_SIZE, False),
    (BODY, False),
)


def damage(bench: Bench, topic: str, at: int, *, is_checked: bool, queue_offset: int = 1) -> None:
    """Change a byte of a record. is_checked: as of an old one, which the store checks when it is read."""
    log = bench.store._log
    ((physical_offset, _, _),) = bench.store.entries(topic, 0, queue_offset, 1)
    log.put(physical_offset + at, bytes([log.read(physical_offset, BODY + 8)[at] ^ 0x55]))
    if is_checked:
        log.checked_from = log.end_offset


def delivered(bench: Bench, topic: str = "orders", queue_id: int = 0) -> list[str]:
    found = bench.store.read(topic, queue_id, 0, 100, 1 << 20)
    return [message.body.decode() for message in decode_records(b"".join(found.records))]


def of_delays(bench: Bench, hit: Callable[[str], None]) -> list[str]:
    for body in (b"0", b"1", b"2"):
        bench.send(body=body, DELAY="1")
    hit(SCHEDULE_TOPIC)
    bench.advance(5_000)
    return delivered(bench)


def of_timers(bench: Bench, hit: Callable[[str], None]) -> list[str]:
    """The record is damaged before it is taken in."""
    for body in (b"0", b"1", b"2"):
        bench.send(body=body, TIMER_DELAY_SEC="5")
    hit(TIMER_TOPIC)
    bench.advance(10_000)
    return delivered(bench)


def of_slots(bench: Bench, hit: Callable[[str], None]) -> list[str]:
    """It is damaged while it waits in its slot."""
    for body in (b"0", b"1", b"2"):
        bench.send(body=body, TIMER_DELAY_SEC="5")
    bench.advance(1_000)
    hit(TIMER_TOPIC)
    bench.advance(10_000)
    return delivered(bench)


def of_halves(bench: Bench, hit: Callable[[str], None]) -> list[str]:
    """Return the half messages whose producer is asked."""
    bench.heartbeat()
    for body in (b"0", b"1", b"2"):
        half(bench, body)
    hit(HALF_TOPIC)
    asked = questions(bench.advance(CHECK_MS))
    return sorted({(question.transaction_id or "").removeprefix("ID") for question in asked})


def of_ops(bench: Bench, hit: Callable[[str], None]) -> list[str]:
    """Return the half messages whose end the op records still tell: their producer is not asked again."""
    bench.heartbeat()
    for body in (b"0", b"1", b"2"):
        end(bench, half(bench, body))
        bench.advance(5_000)
    hit(OP_HALF_TOPIC)
    asked = {question.transaction_id for question in questions(bench.advance(CHECK_MS))}
    return [body for body in "012" if f"ID{body}" not in asked]


def of_check_points(bench: Bench, hit: Callable[[str], None]) -> list[str]:
    """Return the messages that come again."""
    send(bench, "0", "1", "2")
    for _ in range(3):
        assert ask_pop(bench, max_msg_nums=1).code == 0
    while bench.store.max_offset(REVIVE_TOPIC, 0) < 3:
        bench.advance(100)
    hit(REVIVE_TOPIC)
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    return delivered(bench, RETRY)


WORK = (of_delays, of_timers, of_slots, of_halves, of_ops, of_check_points)


@pytest.mark.parametrize(("at", "is_checked"), PLACES)
@pytest.mark.parametrize("work", WORK)
def test_a_damaged_record_is_passed_and_reported_once(
    work: Callable[[Bench, Callable[[str], None]], list[str]], at: int, is_checked: bool
) -> None:
    """The records before and behind it have their effect, and later ticks neither fail nor report it again."""
    bench = Bench(revive_queue_nums=1)
    reports: list[str] = []
    bench.broker.own.report_to(reports.append)
    damaged: list[str] = []

    def hit(topic: str) -> None:
        damaged.append(topic)
        damage(bench, topic, at, is_checked=is_checked)

    assert work(bench, hit) == ["0", "2"]
    assert dict(bench.broker.own.passed) == dict.fromkeys(damaged, 1)
    (report,) = reports
    assert report.endswith("the record is passed")
    bench.advance(20_000)
    assert len(reports) == 1


def test_a_start_passes_a_damaged_record() -> None:
    """A finished check point that is damaged does not stop the start; it is reported to whoever asks first."""
    bench = Bench(revive_queue_nums=1)
    assert of_check_points(bench, lambda _: None) == ["0", "1", "2"]
    damage(bench, REVIVE_TOPIC, QUEUE_OFFSET, is_checked=True)
    bench.store.timers.checkpoint = None  # lost: all check points may be repeated
    bench.broker = bench._new_broker()
    reports: list[str] = []
    bench.broker.own.report_to(reports.append)
    assert len(reports) == bench.broker.own.passed[REVIVE_TOPIC] == 1


def test_a_damaged_queue_file_is_reported_once_and_nothing_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages come when the file is right again."""
    bench = Bench()
    reports: list[str] = []
    bench.broker.own.report_to(reports.append)
    read = bench.store.read

    def refuses(topic: str, queue_id: int, *rest: Any) -> ReadResult:
        if (topic, queue_id) in ((TIMER_TOPIC, 0), (SCHEDULE_TOPIC, 0)):
            raise StoreError("found a damaged file")
        return read(topic, queue_id, *rest)

    bench.send(body=b"0", TIMER_DELAY_SEC="5")
    bench.send(body=b"1", DELAY="2")
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "read", refuses)
        bench.advance(20_000)
    assert delivered(bench) == ["1"]
    found = [f"{topic} is not read on: found a damaged file" for topic in (f"{SCHEDULE_TOPIC}/0", f"{TIMER_TOPIC}/0")]
    assert sorted(reports) == found
    bench.advance(2_000)
    assert delivered(bench) == ["1", "0"]
    assert not bench.broker.own.passed
