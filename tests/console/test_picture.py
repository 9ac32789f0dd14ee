"""The picture of a trajectory: lanes, bars, waits, and events without a known time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mqtrail.answers import Event, GroupVerdict, Trajectory
from mqtrail.console.picture import BARS_MAX, Tone, picture_of

MESSAGE = Trajectory(
    cluster="c",
    msg_id="7F",
    topic="orders",
    keys=(),
    tags="",
    traceparent="",
    as_of_ms=60_000,
    producer_group="shop",
    producer_host="10.0.0.1:1",
    place="broker-a/orders/0@7",
    offset_msg_id="",
    send_start_ms=1_000,
    stored_ms=1_010,
    visible_ms=3_010,
    due_ms=None,
    send_ms=20,
    send_codes=("SEND_OK",),
    message_codes=(),
    knowledge="COMPLETE",
    reasons=(),
)


def event(kind: str, at_ms: int | None, outcome: str = "OK", *, took: int | None = None, group: str = "") -> Event:
    return Event(at_ms, kind, group, outcome, took, None, "broker-a/orders/0@7", "", "trace:x")


SENT = event("SEND", 1_000, took=20, group="shop")
STORED = event("STORED", 1_010, "NORMAL")


def test_retries_and_dead_letters_are_arrows() -> None:
    """Up from a group that sends back or gives up, down from a broker to a retry; attempts have the clocks' error."""
    failed = event("HANDLED", 3_500, "FAILED", took=100, group="billing")
    some = (
        *(failed, event("SENT_BACK", 3_600, "", group="billing")),
        *(event("STORED", 3_601, "RETRY_WAIT", group="billing"), event("STORED", 4_000, "RETRY", group="billing")),
        *(event("DEAD_LETTERED", 4_300, "", group="billing"), event("STORED", 4_301, "DLQ", group="billing")),
    )
    known = GroupVerdict("billing", "", (), (), 1, None, None, None, "", "", "", {}, "AGREE", 7)
    picture = picture_of(replace(MESSAGE, events=(SENT, STORED, *some), groups=(known,)))
    assert picture is not None
    broker, group = picture.lanes[1:]
    marks = [(bar.first_ms, bar.tone) for bar in broker.bars if bar.tone is not Tone.WAIT]
    assert marks == [(1_010, Tone.MARK), (3_601, Tone.MARK), (4_000, Tone.AGAIN), (4_301, Tone.DEAD)]
    attempts = [(bar.tone, bar.error_ms) for bar in group.bars if bar.tone is not Tone.WAIT]
    assert attempts == [(Tone.BAD, 7), (Tone.BACK, None), (Tone.DEAD, None)]


def test_lanes_and_waits() -> None:
    """Producer, broker and group have a lane; delay and the times between attempts are waits."""
    failed = event("HANDLED", 3_500, "FAILED", took=100, group="billing")
    done = event("HANDLED", 5_000, took=50, group="billing")
    picture = picture_of(replace(MESSAGE, events=(SENT, STORED, failed, done)))
    assert picture is not None
    assert (picture.first_ms, picture.end_ms) == (1_000, 5_050)
    assert [(lane.kind, lane.name) for lane in picture.lanes] == [
        ("producer", "shop"),
        ("broker", "broker-a"),
        ("group", "billing"),
    ]
    found = [[(bar.first_ms, bar.end_ms, bar.tone) for bar in lane.bars] for lane in picture.lanes]
    assert found == [
        [(1_000, 1_020, Tone.GOOD)],
        [(1_010, 1_010, Tone.MARK), (1_010, 3_010, Tone.WAIT)],
        [
            (3_010, 3_500, Tone.WAIT),
            (3_500, 3_600, Tone.BAD),
            (3_600, 5_000, Tone.WAIT),
            (5_000, 5_050, Tone.GOOD),
        ],
    ]
    assert picture.place(picture.first_ms) == 0
    assert picture.place(picture.end_ms) == 100
    assert picture.ticks()[0] == picture.first_ms
    assert picture.ticks()[-1] == picture.end_ms


def test_a_handler_that_still_runs_reaches_the_time_of_the_judgement() -> None:
    hung = event("HANDLED", 4_000, "OPEN", group="billing")
    picture = picture_of(replace(MESSAGE, events=(STORED, hung)))
    assert picture is not None
    bar = picture.lanes[-1].bars[-1]
    assert (bar.first_ms, bar.end_ms, bar.tone) == (4_000, MESSAGE.as_of_ms, Tone.OPEN)


def test_an_event_of_unknown_time_is_not_at_zero() -> None:
    """Such an event is only in the table; the time line does not start in 1970."""
    picture = picture_of(replace(MESSAGE, events=(SENT, event("HANDLED", None), event("HANDLED", 0, group="a"))))
    assert picture is not None
    assert picture.first_ms == 1_000
    assert picture_of(replace(MESSAGE, visible_ms=None, events=(event("SEND", None),))) is None


@pytest.mark.parametrize("moments", [1, 2, BARS_MAX + 50])
def test_ticks_and_bars_are_bounded(moments: int) -> None:
    """A message with thousands of attempts has a picture too, with the number of omitted bars."""
    events = tuple(event("HANDLED", 3_010 + number, group="g") for number in range(moments))
    picture = picture_of(replace(MESSAGE, visible_ms=None, events=events))
    assert picture is not None
    shown = sum(len(lane.bars) for lane in picture.lanes)
    assert shown <= BARS_MAX
    assert picture.left_out >= moments - BARS_MAX
    assert list(picture.ticks()) == sorted(picture.ticks())
