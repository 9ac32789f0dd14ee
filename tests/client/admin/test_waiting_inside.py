"""What waits inside scripted brokers. What ended or was acknowledged is not there, and unknown is not none."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial

import pytest

from mqtrail.client import LevelCount
from mqtrail.client.admin import delays, half_messages, timer_topic
from mqtrail.wire import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    PopAck,
    PopCheckPoint,
    RemotingCommand,
    RequestCode,
    encode_properties,
)

from .test_lag import OLD_MS, Scripted, State, scripted_cluster

REVIVE = "rmq_sys_REVIVE_LOG_C"
NEXT_MS = 50_000  # the second that the timers deliver next


def put(scripted: Scripted, topic: str, properties: Mapping[str, str], body: bytes = b"", queue_id: int = 0) -> None:
    """Store a record, and let the broker report the queue's range."""
    scripted.broker.store(topic, queue_id, body, encode_properties(properties))
    ranges = scripted.states[0].ranges.setdefault(topic, {})
    ranges[queue_id] = (0, len(scripted.broker.queue({"topic": topic, "queueId": str(queue_id)}).records))


def tell(scripted: Scripted, settings: str = "", next_ms: int = NEXT_MS) -> None:
    """Let both brokers report settings and the progress of their timers."""
    bodies = {
        RequestCode.GET_BROKER_CONFIG: settings.encode(),
        RequestCode.GET_TIMER_CHECK_POINT: struct.pack(">q", next_ms) + bytes(48),
    }
    for broker, state in zip(scripted.cluster.brokers, scripted.states, strict=True):
        broker.script = partial(_answer, bodies, state)


def _answer(bodies: Mapping[RequestCode, bytes], state: State, command: RemotingCommand) -> RemotingCommand | None:
    body = bodies.get(RequestCode(command.code))
    is_refused = command.code in state.refused
    return state.script(command) if body is None or is_refused else RemotingCommand.reply_to(command, 0, body=body)


def half(msg_id: str, checks: int = 0) -> dict[str, str]:
    found = {"UNIQ_KEY": msg_id, "REAL_TOPIC": "orders", "PGROUP": "payers", "KEYS": f"k-{msg_id}"}
    return found | ({"TRANSACTION_CHECK_TIMES": str(checks)} if checks else {})


async def test_half_messages() -> None:
    """Those before the check's progress, those that op records list, and earlier copies are not open."""
    async with scripted_cluster() as scripted:
        tell(scripted, "transactionCheckMax=15\ntransactionCheckInterval=30000\ntransactionTimeOut=6000\n")
        for one in ("before", "ended", "open", "copied", "ended later"):
            put(scripted, HALF_TOPIC, half(one))
        put(scripted, HALF_TOPIC, half("copied", 1))
        put(scripted, HALF_TOPIC, half("ended later", 1))
        put(scripted, OP_HALF_TOPIC, {"TAGS": "d"}, b"2,")  # the check has passed it: it is about another time
        put(scripted, OP_HALF_TOPIC, {"TAGS": "x"}, b"2,")
        put(scripted, OP_HALF_TOPIC, {"TAGS": "d"}, b"1,4")
        scripted.states[0].offsets = {
            f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {0: 1},
            f"{OP_HALF_TOPIC}@CID_RMQ_SYS_TRANS": {0: 1},
        }
        (first, second), problems = await scripted.admin.half_messages()
        assert problems == ()
        assert first.open is not None
        assert [(one.msg_id, one.queue_offset, one.check_count) for one in first.open] == [
            ("copied", 5, 1),
            ("open", 2, 0),
        ]
        opened = first.open[1]
        assert (opened.topic, opened.producer_group, opened.keys, opened.born_ms) == (
            "orders",
            "payers",
            "k-open",
            1_000,
        )
        assert (first.check_count_max, first.check_interval_ms, first.timeout_ms) == (15, 30_000, 6_000)
        assert (first.given_up, first.given_up_count) == ((), 0)
        assert (second.broker_name, second.open, second.check_count_max) == ("broker-b", (), 15)


async def test_given_up_half_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest are listed, all are counted; what was given up is not open, though the check's progress is old."""
    monkeypatch.setattr(half_messages, "GIVEN_UP_MAX", 2)
    async with scripted_cluster() as scripted:
        tell(scripted)
        for one in ("a", "b", "c"):
            put(scripted, HALF_TOPIC, half(one))
            put(scripted, TRANS_CHECK_MAX_TIME_TOPIC, half(one, 15))
        found = (await scripted.admin.half_messages())[0][0]
        assert found.given_up is not None
        assert {one.msg_id for one in found.given_up} == {"b", "c"}
        assert found.given_up_count == 3
        assert found.open is not None
        assert [one.msg_id for one in found.open] == ["a"]


@pytest.mark.parametrize(
    "code", [RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_TOPIC_STATS_INFO, RequestCode.PULL_MESSAGE]
)
async def test_half_messages_that_are_unknown(code: RequestCode) -> None:
    """A broker that refuses a question has an unknown number of them, not none."""
    async with scripted_cluster() as scripted:
        put(scripted, HALF_TOPIC, half("a"))
        scripted.states[0].refused = (int(code),)
        found, problems = await scripted.admin.half_messages()
        assert (found[0].open, found[1].open) == (None, ())
        assert "not allowed" in found[0].why
        assert any("not allowed" in one for one in problems)


async def test_too_many_half_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of them would show ended transactions as open, so that none is read."""
    monkeypatch.setattr(half_messages, "READ_MAX", 2)
    async with scripted_cluster() as scripted:
        for number in range(3):
            put(scripted, HALF_TOPIC, half(str(number)))
        found, problems = await scripted.admin.half_messages()
        assert found[0].open is None
        assert found[0].why in problems
        assert "at most 2 are read" in found[0].why
        assert RequestCode.PULL_MESSAGE not in scripted.asked()


def timer(msg_id: str, out_ms: int, topic: str = "orders") -> dict[str, str]:
    return {"UNIQ_KEY": msg_id, "REAL_TOPIC": topic, "REAL_QID": "0", "TIMER_OUT_MS": str(out_ms)}


async def test_delayed_messages() -> None:
    """Delivered ones are not there, one that was stored again is there once, a recalled one says so."""
    async with scripted_cluster() as scripted:
        tell(scripted, "messageDelayLevel=1s 7s\n")
        for number in range(3):
            put(scripted, SCHEDULE_TOPIC, {"UNIQ_KEY": f"level-{number}", "REAL_TOPIC": "orders"}, queue_id=1)
        scripted.states[0].levels = {2: 1}
        for one in (timer("delivered", NEXT_MS - 1_000), timer("rolled", NEXT_MS), timer("rolled", NEXT_MS)):
            put(scripted, TIMER_TOPIC, one)
        for one in (timer("new", 60_000), timer("old", 60_000), timer("other", 60_000)):
            put(scripted, TIMER_TOPIC, one)
        put(scripted, TIMER_TOPIC, timer("r1", 60_000) | {"TIMER_DEL_UNIQKEY": "orders+new"})
        put(scripted, TIMER_TOPIC, timer("r2", 60_000) | {"TIMER_DEL_UNIQKEY": "old"})
        put(scripted, TIMER_TOPIC, timer("r3", 61_000) | {"TIMER_DEL_UNIQKEY": "orders+other"})
        put(scripted, TIMER_TOPIC, timer("ck", 60_000, REVIVE))
        scripted.states[0].timers = {"orders": 4, REVIVE: 1, "empty": 0}
        (first, second), problems = await scripted.admin.delays()
        assert problems == ()
        assert (first.levels, first.timers) == ((LevelCount(2, 7_000, 2),), {"orders": 4})
        assert (second.levels, second.timers, second.messages) == ((), {}, [])
        assert sorted((one.msg_id, one.due_ms, one.level, one.is_recalled) for one in first.messages) == [
            ("level-1", OLD_MS + 7_000, 2, False),
            ("level-2", OLD_MS + 7_000, 2, False),
            ("new", 61_000, None, True),
            ("old", 61_000, None, True),
            ("other", 61_000, None, False),
            ("rolled", NEXT_MS + 1_000, None, False),
        ]


async def test_delayed_messages_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted, and the answer says that they are not listed."""
    monkeypatch.setattr(delays, "LEVEL_READ_MAX", 2)
    monkeypatch.setattr(timer_topic, "READ_MAX", 2)
    async with scripted_cluster() as scripted:
        tell(scripted)
        for number in range(3):
            put(scripted, SCHEDULE_TOPIC, {"UNIQ_KEY": f"level-{number}"})
            put(scripted, TIMER_TOPIC, timer(f"timer-{number}", 60_000))
        scripted.states[0].timers = {"orders": 3}
        found, problems = await scripted.admin.delays()
        assert found[0].levels is not None
        assert (found[0].levels[0].message_count, found[0].timers) == (3, {"orders": 3})
        assert {one.msg_id for one in found[0].messages} == {"level-0", "level-1", "timer-1", "timer-2"}
        assert any("3 messages wait at delay level 1" in one for one in problems)
        assert any("counts 3 timers" in one for one in problems)
        assert any("delay levels: times are of the usual ones" in one for one in problems)


@pytest.mark.parametrize(
    ("code", "levels", "timers"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, None, None),
        (RequestCode.GET_ALL_DELAY_OFFSET, None, {}),
        (RequestCode.GET_TIMER_METRICS, (), None),
    ],
)
async def test_delays_that_are_unknown(code: RequestCode, levels: object, timers: object) -> None:
    """What a broker refuses to tell is None."""
    async with scripted_cluster() as scripted:
        tell(scripted)
        put(scripted, SCHEDULE_TOPIC if code is RequestCode.GET_ALL_DELAY_OFFSET else TIMER_TOPIC, timer("a", 60_000))
        scripted.states[0].refused = (int(code),)
        found, problems = await scripted.admin.delays()
        assert (found[0].levels, found[0].timers) == (levels, timers)
        assert any("not allowed" in one for one in problems)


def point(start: int, count: int) -> bytes:
    return PopCheckPoint(
        start_offset=start, pop_time_ms=40_000, invisible_ms=21_000, count=count, queue_id=3, topic="orders", group="CG"
    ).encode()


def ack(start: int, *offsets: int) -> bytes:
    one = {"offset": offsets[0]} if len(offsets) == 1 else {"offsets": offsets}
    return PopAck(start_offset=start, group="CG", topic="orders", queue_id=3, pop_time_ms=40_000, **one).encode()


async def test_popped_messages() -> None:
    """Those of check points that wait, and of those that are due, without the acknowledged ones."""
    async with scripted_cluster() as scripted:
        tell(scripted, "enablePopBufferMerge=true\n")
        put(scripted, TIMER_TOPIC, timer("p", 60_000, REVIVE) | {"TAGS": "ck"}, point(10, 4))
        put(scripted, TIMER_TOPIC, timer("q", 60_000, REVIVE) | {"TAGS": "ack"}, ack(10, 11))
        put(scripted, TIMER_TOPIC, timer("r", 60_000, REVIVE) | {"TAGS": "bAck"}, ack(10, 10, 13))
        put(scripted, TIMER_TOPIC, timer("m", 60_000), b"a message")
        put(scripted, TIMER_TOPIC, timer("bad", 60_000, REVIVE) | {"TAGS": "ck"}, b"{")
        for start in (90, 50):
            put(scripted, REVIVE, {"TAGS": "ck"}, point(start, 1))
        scripted.states[0].offsets = {f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {0: 0}}
        (first, second), problems = await scripted.admin.pops()
        assert first.handed_out is not None
        assert [one.offsets for one in first.handed_out] == [(12,), (50,)]
        one = first.handed_out[0]
        assert (one.group, one.topic, one.queue_id, one.popped_ms, one.visible_ms) == (
            "CG",
            "orders",
            3,
            40_000,
            61_000,
        )
        assert first.behind_count == 1
        assert first.behind_ms is not None
        assert first.behind_ms > 1_000
        assert (second.handed_out, second.behind_count, second.behind_ms) == ((), 0, 0)
        words = "has enablePopBufferMerge=true, so more messages may be handed out"
        assert sorted(problems) == [f"broker broker-a {words}", f"broker broker-b {words}"]


async def test_pops_that_are_unknown() -> None:
    """A broker that does not tell where its log was read to, hands out an unknown number."""
    async with scripted_cluster() as scripted:
        put(scripted, REVIVE, {"TAGS": "ck"}, point(0, 1))
        scripted.states[0].refused = (int(RequestCode.GET_ALL_CONSUMER_OFFSET),)
        found, problems = await scripted.admin.pops()
        assert (found[0].handed_out, found[0].behind_count) == (None, None)
        assert any("not allowed" in one for one in problems)


async def test_the_progress_of_timers_that_cannot_be_read() -> None:
    """Then this host's clock says what is due."""
    async with scripted_cluster() as scripted:
        put(scripted, TIMER_TOPIC, timer("past", 60_000))
        put(scripted, TIMER_TOPIC, timer("future", 1 << 44))
        found, problems = await scripted.admin.delays()
        assert [one.msg_id for one in found[0].messages] == ["future"]
        assert any("progress of timers" in one for one in problems)
