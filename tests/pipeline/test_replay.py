"""The sink's look-ups with brokers that do not answer, have no index or no timers."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.pipeline.queues import A0
from tests.pipeline.sinking import sink_options

from mqtrail.client import RouteNotFound
from mqtrail.pipeline import SinkFailed
from mqtrail.pipeline.replay import Replay, rows_since
from mqtrail.pipeline.rowids import TaskIds
from mqtrail.wire import TIMER_TOPIC, MessageQueue, MQError

IDS = TaskIds("write 1", 0)


class Brokers:
    """As much of Admin as a replay asks: one topic on broker-a."""

    def __init__(self, *, found: tuple[int, ...] = (), failures: dict[str, Exception] | None = None) -> None:
        self.found = [SimpleNamespace(store_timestamp_ms=at) for at in found]
        self.failures = failures or {}
        self.timers = True

    async def query(self, topic: str, key: str, *, unique: bool) -> Any:
        assert unique
        return SimpleNamespace(messages=self.found, failures=self.failures)

    async def queues(self, topic: str) -> list[MessageQueue]:
        if topic == TIMER_TOPIC and not self.timers:
            raise RouteNotFound("no route")
        return [A0]


def replay(brokers: Any, cluster: Any = None, **more: object) -> Replay:
    options = sink_options("h:1", **({"retryTimeoutMs": 100} | more))
    return Replay(options, IDS, brokers, lambda: cluster)


async def test_brokers_without_an_index() -> None:
    """A marker that was stored and is not found fails the task before another row is sent."""
    with pytest.raises(SinkFailed, match="set messageIndexEnable to true"):
        await replay(Brokers()).wait_for("orders", "m")


async def test_brokers_that_do_not_answer() -> None:
    """A task that cannot know what is stored sends nothing."""
    brokers = Brokers(failures={"broker-b": MQError("it is down")})
    with pytest.raises(SinkFailed, match=r"broker broker-b: it is down.*Check that all brokers"):
        await replay(brokers).stored("orders", "m")
    with pytest.raises(SinkFailed, match="broker broker-b does not answer whether it stored m"):
        await replay(brokers).has("orders", "m", "broker-b")
    assert not await replay(brokers).has("orders", "m", "broker-a")


async def test_a_broker_that_is_in_no_route() -> None:
    """It may have stored the message, and nobody knows."""
    with pytest.raises(SinkFailed, match="broker broker-c is in no route of orders now"):
        await replay(Brokers()).has("orders", "m", "broker-c")


async def test_brokers_without_timers() -> None:
    """They would deliver the message at once."""
    brokers = Brokers()
    brokers.timers = False
    with pytest.raises(SinkFailed, match=r"expected brokers of 5\.x with timers"):
        await replay(brokers).stored(TIMER_TOPIC, "m")


async def test_what_is_read_begins_at_the_marker(cluster: Any) -> None:
    """Less the difference of clocks; rows of other tasks and other messages are not counted."""
    first, other = IDS.row(1, "x"), TaskIds("write 2", 0).row(1, "x")
    for row_id in (first, IDS.row(2, "y"), other):
        cluster.append(A0, b"b", properties={"UNIQ_KEY": row_id})
    cluster.append(A0, b"b", properties={"UNIQ_KEY": IDS.marker("orders", "orders"), "SPARK_ROW_ID": IDS.row(3, "z")})
    cluster.append(A0, b"b")
    t0 = 1_700_000_000_005
    assert list(rows_since(cluster, "orders", t0, IDS, 100)) == [first, IDS.row(2, "y"), IDS.row(3, "z")]
    before = await replay(Brokers(found=(t0 + 5, t0 + 3)), cluster, clockSkewMaxMs=1, replaySettleMs=1).stored(
        "orders", "m"
    )
    assert before is not None
    assert [before.take(IDS.row(9, content)) for content in "xyz"] == [False, True, True]


def test_a_queue_that_gives_nothing(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that claims messages and returns none fails the look-up."""
    cluster.append(A0, b"b")
    monkeypatch.setattr(type(cluster), "bounds", lambda self, queue: (0, 9))
    with pytest.raises(MQError, match="although its broker has later ones"):
        list(rows_since(cluster, "orders", 0, IDS, 100))
