"""The verdict about a backlog, and its estimates, from values."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from mqtrail.answers.backlog import (
    Advice,
    BacklogCause,
    BacklogMember,
    RecordUnreadable,
    ReshardProgress,
    ReshardRefused,
    SkipOutcome,
    SkippedQueue,
    SkipPlan,
    TopicBacklog,
    WayOut,
    advise,
    is_forward,
    member_of,
    perform_skip,
    read_progress,
    read_record,
    scale_estimate,
    topic_backlog,
)
from mqtrail.client import Member, MessageQueue, QueueLag, QueueMove, SyncAdmin, Trend, TrendState, group_lag
from mqtrail.wire import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo, SubscriptionData

NOW_MS = 1_800_000_000_000
TOPIC = "orders"


def rates(consumed: float, produced: float) -> Trend:
    """Return a trend of one queue in which messages wait; its state is not used for sums."""
    return Trend(TrendState.STEADY, consumed, produced)


def lag(queue_id: int, count: int | None, trend: Trend | None = None, lag_ms: int | None = 60_000) -> QueueLag:
    """Return the lag of a queue; count None: unknown."""
    first, age = (None, None) if count is None else (0, lag_ms if count else 0)
    found = QueueLag(TOPIC, "broker-a", queue_id, first, first, count, first, count, age)
    return replace(found, trend=trend or Trend(), why="" if count is not None else "no offset")


def running(
    *queue_ids: int, handler_ms: float = 10, ok: float = 50, threads: str = "20", ordered: str = "false"
) -> ConsumerRunningInfo:
    """Return the running info of a member with these queues."""
    return ConsumerRunningInfo(
        {"PROP_THREADPOOL_CORE_SIZE": threads, "PROP_CONSUMEORDERLY": ordered},
        (SubscriptionData(TOPIC, "*"),),
        {MessageQueue(TOPIC, "broker-a", one): ProcessQueueInfo(cached_msg_count=7) for one in queue_ids},
        {TOPIC: ConsumeStatus(consume_rt=handler_ms, consume_ok_tps=ok, consume_failed_tps=1)},
    )


def member(name: str, *queue_ids: int, **values: Any) -> BacklogMember:
    """Return a member that answered."""
    found = member_of(Member(name, "10.0.0.1:1", "broker-a", "JAVA", 0, running(*queue_ids, **values)), TOPIC)
    assert found is not None
    return found


def backlog(lags: list[QueueLag], members: list[BacklogMember] | None) -> TopicBacklog:
    return topic_backlog(TOPIC, lags, members, group_lag("G", lags, ()).topics, NOW_MS)


def judged(lags: list[QueueLag], members: list[BacklogMember] | None) -> Advice:
    return advise("G", backlog(lags, members))


def test_a_member_reports_its_queues_and_its_speed() -> None:
    """Handler time times threads is what it could consume; in order, a queue has one handler."""
    found = member("a", 0, 1)
    assert (found.queues, found.cached_count, found.handler_ms) == (("broker-a/0", "broker-a/1"), 14, 10)
    assert (found.capacity_per_s, found.busy) == (2_000, 51 / 2_000)
    in_order = member("a", 0, 1, ordered="true")
    assert (in_order.threads, in_order.concurrency, in_order.capacity_per_s) == (20, 2, 200)


def test_what_a_member_does_not_report_is_unknown() -> None:
    """A handler time of 0, a missing setting, and a member without an answer are never 0."""
    found = member("a", 0, handler_ms=0, ok=0)
    assert (found.handler_ms, found.capacity_per_s, found.busy) == (None, None, None)
    assert "no handled message" in found.why or "1 ms" in found.why
    for threads in ("", "0", "many", "-1", "9999999"):
        assert member("a", 0, threads=threads).capacity_per_s is None
    assert member("a", 0, ordered="").concurrency == 20
    silent = member_of(Member("b", "", "broker-a", "JAVA", 0, None, OSError("no reply")), TOPIC)
    assert silent is not None
    assert (silent.queues, silent.handler_ms, silent.why) == (None, None, "it did not answer: no reply")
    other = Member("c", "", "broker-a", "JAVA", 0, running(0))
    assert member_of(other, "payments") is None


def test_owners_of_queues() -> None:
    """A queue without an owner and a member without a queue are named; with a silent member that is unknown."""
    lags = [lag(0, 5), lag(1, 5)]
    found = backlog(lags, [member("a", 0), member("idle")])
    assert (found.unowned, found.idle) == (("broker-a/1",), ("idle",))
    silent = BacklogMember("b", "", None)
    found = backlog(lags, [member("a", 0), silent])
    assert (found.unowned, [one.owners for one in found.queues]) == (None, [("a",), None])
    assert backlog(lags, None).unowned is None


def test_since_when_and_sums() -> None:
    """The oldest waiting message of all queues; the rates are those of all queues together."""
    found = backlog([lag(0, 30, rates(3, 1), 90_000), lag(1, 0, rates(1, 1))], [])
    assert found.since_ms == NOW_MS - 90_000
    assert found.trend == Trend(TrendState.DRAINS, 4, 2, 15)
    partly = backlog([lag(0, 30, rates(3, 1)), lag(1, None)], [])
    assert (partly.trend.state, partly.total.lag_count, partly.total.unknown_count) == (TrendState.UNKNOWN, 30, 1)


BOTH = [member("a", 0), member("b", 1)]


@pytest.mark.parametrize(
    ("lags", "members", "cause", "way"),
    [
        ([lag(0, 0), lag(1, 0)], BOTH, BacklogCause.EMPTY, None),
        ([lag(0, 0), lag(1, None)], BOTH, BacklogCause.UNKNOWN, WayOut.LOOK),
        ([lag(0, 9), lag(1, 9)], BOTH, BacklogCause.UNKNOWN, WayOut.LOOK),
        ([lag(0, 9), lag(1, 9)], [], BacklogCause.NO_MEMBERS, WayOut.START),
        ([lag(0, 9), lag(1, 9)], [member("a", 0)], BacklogCause.UNOWNED_QUEUE, WayOut.LOOK),
        ([lag(0, 9, rates(0, 1)), lag(1, 9, rates(0, 1))], BOTH, BacklogCause.STUCK, WayOut.LOOK),
        ([lag(0, 90, rates(1, 2)), lag(1, 3, rates(1, 1))], BOTH, BacklogCause.HOT_QUEUE, WayOut.RESHARD),
        (
            [lag(0, 9, rates(1, 2)), lag(1, 9, rates(1, 2))],
            [member("a", 0), member("b", 1, handler_ms=40)],
            BacklogCause.SLOW_MEMBER,
            WayOut.LOOK,
        ),
        ([lag(0, 9, rates(3, 2)), lag(1, 9, rates(3, 2))], BOTH, BacklogCause.DRAINS, WayOut.WAIT),
        ([lag(0, 9, rates(3, 4)), lag(1, 9, rates(3, 4))], BOTH, BacklogCause.IDLE_HANDLERS, WayOut.LOOK),
    ],
)
def test_causes(lags: list[QueueLag], members: list[BacklogMember], cause: BacklogCause, way: WayOut | None) -> None:
    """Each cause, and the way that fits best."""
    found = judged(lags, members)
    assert found.cause is cause
    assert [one.kind for one in found.ways][:1] == ([] if way is None else [way])
    changing = [one for one in found.ways if one.kind in (WayOut.SKIP, WayOut.RESHARD)]
    assert all("--dry-run" in one.command for one in changing)
    assert bool(changing) == any(one.lag_count for one in lags)


def test_too_slow_with_queues_left_is_scaled() -> None:
    """More members up to one for each queue; the estimate subtracts what arrives."""
    slow = member("a", *range(4), handler_ms=100, threads="1", ok=9, ordered="false")
    found = judged([lag(one, 90, rates(2.5, 5)) for one in range(4)], [slow])
    assert found.cause is BacklogCause.TOO_SLOW
    assert "never drains" in found.verdict
    numbers = [(one.member_count, one.queue_count, one.capacity_per_s, one.drain_s) for one in found.estimates]
    assert numbers == [(1, 4, 10, None), (2, 4, 20, None), (4, 4, 40, 18), (8, 8, 80, 6)]
    assert [one.drains for one in found.estimates] == [False, False, True, True]
    assert [one.kind for one in found.ways] == [WayOut.SCALE, WayOut.RESHARD, WayOut.SKIP]
    assert "4 members on 4 queues consume 40/s and drain it in 18 s" in found.ways[0].text


def test_too_slow_with_a_member_for_each_queue_is_resharded() -> None:
    """Members beyond the number of queues would be idle."""
    slow = [member(name, number, handler_ms=100, threads="1", ok=9) for number, name in enumerate("ab")]
    found = judged([lag(one, 90, rates(9, 20)) for one in range(2)], slow)
    assert [one.kind for one in found.ways] == [WayOut.RESHARD, WayOut.SKIP]
    assert "2 members have all 2 queues" in found.ways[0].text
    assert found.ways[0].command[-3:] == ("--queues", "4", "--dry-run")


def test_estimates_of_what_is_unknown() -> None:
    """No handler time: no capacity. No rates: no time to drain. In order: one handler for each queue."""
    lags = [lag(0, 10, rates(1, 2)), lag(1, 10, rates(1, 2))]
    unknown = scale_estimate(backlog(lags, [member("a", 0, 1, handler_ms=0)]), 2, 2)
    assert (unknown.capacity_per_s, unknown.drains, unknown.drain_s) == (None, None, None)
    without = scale_estimate(backlog([lag(0, 10), lag(1, 10)], [member("a", 0, 1)]), 2, 2)
    assert (without.capacity_per_s, without.drains) == (4_000, None)
    in_order = scale_estimate(backlog(lags, [member("a", 0, 1, ordered="true")]), 2, 2)
    assert in_order.capacity_per_s == 200
    assert scale_estimate(backlog(lags, [member("a", 0, 1)]), 9, 2).capacity_per_s == 4_000, "2 queues: 2 members work"


@pytest.mark.parametrize(
    ("kept", "consumed", "new", "forward"),
    [(0, 3, 9, True), (0, 9, 9, False), (0, 9, 3, False), (5, 3, 5, False), (5, None, 5, False), (5, None, 6, True)],
)
def test_which_queues_a_skip_moves(kept: int, consumed: int | None, new: int, forward: bool) -> None:
    """Only those in which kept messages are left out: never backward, and not over messages that expired."""
    assert is_forward(QueueMove(MessageQueue(TOPIC, "broker-a", 0), kept, consumed, new)) is forward


def test_members_that_are_faster_than_a_skip() -> None:
    """A queue that a member consumed past the planned end meanwhile is not moved back."""

    class Admin:
        def consumer_offset(self, group: str, queue: MessageQueue) -> int:
            return 12

    queue = SkippedQueue("broker-a", 0, 3, 3, 10, None, None)
    plan = SkipPlan("G", TOPIC, None, (queue,), 0)
    assert perform_skip(cast("SyncAdmin", Admin()), plan) == [SkipOutcome("broker-a/0", 12)]


@pytest.mark.parametrize("wrong", [{"next": 5}, {"targets": {"b/0": "x"}}, {"queue_count": "4"}, {"left_out": None}])
def test_a_progress_file_with_other_values_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    """It would end a run later, with a traceback."""
    path = tmp_path / "progress.json"
    progress = ReshardProgress("g", "t", "t2", 4, "", {}, {}, {})
    path.write_text(json.dumps(asdict(progress)))
    assert read_progress(path) == progress
    path.write_text(json.dumps(asdict(progress) | wrong))
    with pytest.raises(ReshardRefused, match="expected a progress file"):
        read_progress(path)


@pytest.mark.parametrize("wrong", [{}, {"first_offset": "0"}, {"broker_name": 5}])
def test_a_record_with_other_values_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    """A queue's offsets are numbers."""
    path, queue = tmp_path / "record.jsonl", SkippedQueue("broker-a", 0, None, 0, 5, None, None)
    lines = [{"event": "skip", "topic": TOPIC}, {"event": "queue"} | asdict(queue) | wrong]
    path.write_text("\n".join(map(json.dumps, lines)))
    if not wrong:
        assert read_record(path) == (TOPIC, (queue,))
        return
    with pytest.raises(RecordUnreadable, match="expected a record"):
        read_record(path)
