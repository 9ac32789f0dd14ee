"""Tasks of our Spark sink on Apache's servers: their index finds its ids, and a replay sends only what is missing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from interop.apache import ApacheCluster
from tests.pipeline.sinking import (
    batches,
    bodies_of,
    breaking,
    counts,
    create,
    each_once,
    send,
    sink_options,
    stored_count,
)

from mqtrail.client import AttemptFailure, Message, Producer, SendFailed, SendResult
from mqtrail.pipeline import SinkFailed
from mqtrail.pipeline.sink import send_task
from mqtrail.wire import SCHEDULE_TOPIC, TIMER_TOPIC, SendOutcome

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

SLOW: dict[str, object] = {"replaySettleMs": 1_000, "retryTimeoutMs": 60_000}


@pytest.fixture(scope="module", params=["5.3.3", "4.9.7"])
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A cluster of one broker."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp(f"apache-{request.param}")
        yield stack.enter_context(ApacheCluster(request.param, folder))


def settled(namesrv: str, topic: str, count: int) -> Counter[bytes]:
    """Return the bodies of a topic, once it has so many: the broker shows a message some time after it stored it."""
    until = time.monotonic() + 60
    while stored_count(namesrv, topic) < count and time.monotonic() < until:
        time.sleep(0.05)
    return counts(namesrv, topic)


def test_attempts_that_fail_midway(apache: ApacheCluster) -> None:
    """Plain rows in batches, in another order the second time, and rows with order keys."""
    namesrv = apache.namesrv_address
    create(namesrv, "SinkPlain", "SinkOrdered")
    for topic, rows in {
        "SinkPlain": [*bodies_of(300), *bodies_of(20)],
        "SinkOrdered": [{"body": b"%d" % n, "orderKey": n % 5} for n in range(300)],
    }.items():
        options = sink_options(namesrv, topic=topic, **SLOW)
        with pytest.raises(RuntimeError):
            send_task(breaking(batches(rows, 40), 5), options, "write 1")
        found = send(rows[::-1] if topic == "SinkPlain" else rows, options)
        assert found.found > 0
        assert found.sent > 0
        assert settled(namesrv, topic, len(rows)) == each_once(rows)


@pytest.mark.parametrize(("column", "place"), [("delayLevel", SCHEDULE_TOPIC), ("deliverAt", TIMER_TOPIC)])
def test_delayed_rows(apache: ApacheCluster, column: str, place: str) -> None:
    """They are found where the broker keeps them. Brokers of 4.x have no timers: nothing is sent."""
    namesrv = apache.namesrv_address
    create(namesrv, "SinkDelayed")
    later = datetime.now(UTC) + timedelta(hours=1)
    rows = [{"body": b"%d" % n, column: 18 if column == "delayLevel" else later} for n in range(40)]
    options = sink_options(namesrv, topic="SinkDelayed", **SLOW)
    if place == TIMER_TOPIC and apache.version.startswith("4"):
        with pytest.raises(SinkFailed, match=r"expected brokers of 5\.x with timers"):
            send(rows, options)
        assert not counts(namesrv, "SinkDelayed")
        return
    with pytest.raises(RuntimeError):
        send_task(breaking(batches(rows, 10), 2), options, "write 1")
    assert send(rows[::-1], options).found > 0
    assert settled(namesrv, place, len(rows)) == each_once(rows)


def test_an_answer_that_is_lost(apache: ApacheCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third request is stored or not, without an answer."""
    namesrv, calls = apache.namesrv_address, 0
    create(namesrv, "SinkLost")
    real = Producer.send

    async def losing(self: Producer, message: Any, **more: Any) -> SendResult:
        nonlocal calls
        calls += 1
        if calls % 3:
            return await real(self, message, **more)
        if calls % 2:
            await real(self, message, **more)
        first = message if isinstance(message, Message) else message[0]
        failure = AttemptFailure(apache.broker.name, "", SendOutcome.TIMEOUT, None, "no answer", 1)
        raise SendFailed(first.topic, "id", [failure])

    monkeypatch.setattr(Producer, "send", losing)
    rows = bodies_of(200)
    assert send(rows, sink_options(namesrv, topic="SinkLost", batchRowsMax=20, **SLOW)).sent == 200
    assert settled(namesrv, "SinkLost", 200) == each_once(rows)
