"""The lag of groups as of a lake's last sample: `Answers.lag` and the views `lag` and `group_lag`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mqtrail.answers import Answers
from mqtrail.answers.lake_lag import DELAYED_NOT_READ, NOT_READ, NOT_SAMPLED
from mqtrail.answers.lakeview import UnknownCluster
from mqtrail.client import OFFSETS_AT_MEMBERS, ClusterLag, GroupLag, Trend
from mqtrail.client.admin.backlog import NO_OFFSET, PAST_END
from mqtrail.pipeline.changes import NOT_ASKED
from tests.answers.lakes import AS_OF_MS, make_lake
from tests.trail.story import AS_OF, BROKER, History, at, unique_id

EARLIER = AS_OF - 700
LAST = AS_OF - 1
OVER_S = 699
RETRY = "%RETRY%"
Row = dict[str, Any]


class Shop(History):
    """One cluster with full samples at EARLIER and LAST."""

    def queue(
        self, topic: str, last: tuple[int, int], earlier: tuple[int, int] | None = None, queue_id: int = 0
    ) -> None:
        """The range of a queue in both samples; by default it did not change."""
        for time, (first, end) in ((EARLIER, earlier or last), (LAST, last)):
            place = {"broker_name": BROKER, "topic": topic, "queue_id": queue_id}
            self.sampled("queue_ranges", time, **place, min_offset=first, max_offset=end)

    def at(self, group: str, topic: str, last: int | None, earlier: int | None = None, queue_id: int = 0) -> None:
        """The group's offset of a queue in both samples; None: it has none."""
        for time, offset in ((EARLIER, earlier), (LAST, last)):
            if offset is not None:
                place = {"group_name": group, "topic": topic, "broker_name": BROKER, "queue_id": queue_id}
                self.sampled("group_offsets", time, **place, consumer_offset=offset)

    def members(self, group: str, topic: str, count: int = 1, model: str = "CLUSTERING") -> None:
        """The live members of a group at the last sample, and what they subscribe to."""
        for number in range(count):
            row = {"group_name": group, "status": "OK", "client_id": f"c{number}", "client_host": f"10.0.0.{number}:1"}
            self.sampled("clients", LAST, **row)
        row = {"group_name": group, "topic": topic, "expression": "*", "expression_type": "TAG"}
        self.sampled("subscriptions", LAST, **row, message_model=model)

    def reads(self, *topics: str) -> None:
        """The topics that the pipeline read up to the last sample."""
        self.sampled("samples", LAST, what="READ", status="OK", seen_ms=AS_OF_MS - 1_000)
        for topic in topics:
            self.sampled("samples", LAST, what="READ", topic=topic, status="OK")


def shop(cluster: str, *, delays_read: bool = True) -> dict[str, list[Row]]:
    found = Shop(cluster)
    found.queue("orders", (0, 60), (0, 50))
    found.queue("orders", (5, 8), queue_id=1)
    found.queue("stock", (4, 4))
    found.queue(f"{RETRY}billing", (0, 3))
    found.queue("news", (0, 9))
    found.at("billing", "orders", 30, 10)
    found.at("billing", "orders", 8, 8, queue_id=1)
    found.members("billing", "orders", count=2)
    found.at("wiped", "orders", 99, 99)
    found.at("half", "orders", 60, 50)
    found.members("half", "orders")
    found.at("gone", "orders", None, 60)
    found.at("done", "stock", 4, 4)
    found.members("fans", "news", model="BROADCASTING")
    for offset, msg in ((30, 1), (31, 2), (45, 3)):
        found.stored(offset, topic="orders", offset=offset, msg=msg, keys=f"k{msg}")
    found.stored(100, "RETRY", f"{RETRY}billing", 0, 4)
    waits = {"real_topic": f"{RETRY}billing", "group_name": "billing"}
    for number, due in enumerate((AS_OF - 300, AS_OF + 5, AS_OF + 60)):
        found.stored(
            200,
            "RETRY_WAIT",
            "SCHEDULE_TOPIC_XXXX",
            number,
            5 + number,
            due_ms=AS_OF_MS + int(due - AS_OF) * 1000,
            **waits,
        )
    found.reads("orders", *(["SCHEDULE_TOPIC_XXXX"] if delays_read else []))
    return found.rows


@pytest.fixture(scope="module")
def lake_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clusters: `shop`; the same without reading delayed copies; the same with a message that was not read."""
    path = tmp_path_factory.mktemp("lag") / "lake"
    rows: dict[str, list[Row]] = {}
    for some in (shop("shop"), shop("undelayed", delays_read=False), shop("unread")):
        for name, own in some.items():
            rows.setdefault(name, []).extend(own)
    rows["message_meta"] = [
        row for row in rows["message_meta"] if (row["cluster"], row["queue_offset"]) != ("unread", 30)
    ]
    make_lake(path, rows)
    return path


@pytest.fixture(scope="module")
def answers(lake_path: Path) -> Answers:
    return Answers(lake_path, cluster="shop")


def by_group(found: ClusterLag) -> Mapping[str, GroupLag]:
    return {group.group_name: group for group in found.groups}


def test_numbers_of_a_group(answers: Answers) -> None:
    """Topics, retry topics and delayed copies apart; the trend is that since the earlier sample."""
    found = answers.lag(AS_OF_MS)
    assert (found.as_of_ms, found.over_ms) == (AS_OF_MS - 1_000, OVER_S * 1_000)
    billing = by_group(found)["billing"]
    assert billing.member_count == 2
    assert (billing.topics.queue_count, billing.topics.lag_count, billing.topics.lag_ms) == (
        2,
        30,
        int(LAST - 30) * 1000,
    )
    assert (billing.retry.lag_count, billing.retry.lag_ms) == (3, int(LAST - 100) * 1000)
    assert billing.delayed_count == 2
    assert billing.trend.consumed_per_s == pytest.approx(20 / OVER_S)
    assert billing.trend.produced_per_s == pytest.approx(10 / OVER_S)
    assert billing.trend.drain_s == pytest.approx(30 / (10 / OVER_S))
    assert billing.why == ()


def test_unknown_is_not_zero(answers: Answers) -> None:
    """No offset, an offset past the end, a queue that the last sample lacks, a broadcasting group."""
    groups = by_group(answers.lag(AS_OF_MS))
    for name, why in (("wiped", PAST_END), ("gone", NOT_SAMPLED), ("fans", OFFSETS_AT_MEMBERS)):
        [queue] = groups[name].queues
        assert (groups[name].topics.lag_count, groups[name].lag_ms, queue.why) == (None, None, why)
        assert groups[name].trend == Trend()
    half = groups["half"]
    assert (half.topics.lag_count, half.topics.lag_ms, half.topics.unknown_count) == (0, None, 1)
    assert [queue.why for queue in half.queues] == ["", NO_OFFSET]
    done = groups["done"]
    assert (done.topics.lag_count, done.lag_ms, done.delayed_count) == (0, 0, 0)
    assert groups["gone"].member_count is None


@pytest.mark.slow
def test_a_broker_that_has_not_answered_for_long(tmp_path: Path) -> None:
    """Its queues are unknown, although neither sample has them. Those of a broker that has left do not count."""
    found = Shop("shop")
    found.queue("orders", (0, 50))
    found.at("g", "orders", 50, 50)
    for broker, why in (("broker-b", "timeout"), ("broker-c", NOT_ASKED)):
        place = {"broker_name": broker, "topic": "orders", "queue_id": 0}
        found.sampled("queue_ranges", EARLIER - 100, **place, min_offset=0, max_offset=100)
        found.sampled("group_offsets", EARLIER - 100, **place, group_name="g", consumer_offset=0)
        failed = {"what": "OFFSETS", "broker_name": broker, "status": "FAILED", "reason": why}
        found.sampled("samples", EARLIER - 50, **failed, seen_ms=at(EARLIER - 90))
    make_lake(tmp_path / "lake", found.rows)
    answers = Answers(tmp_path / "lake", cluster="shop")
    [group] = answers.lag(AS_OF_MS).groups
    assert {queue.broker_name: queue.why for queue in group.queues} == {BROKER: "", "broker-b": NOT_SAMPLED}
    assert (group.topics.lag_count, group.lag_ms, group.trend) == (0, None, Trend())
    with answers.query("SELECT lag_count, lag_seconds, unknown_queues, trend FROM group_lag", AS_OF_MS) as answer:
        [row] = [row for batch in answer.batches for row in batch.to_pylist()]
    assert tuple(row.values()) == (0, None, 1, "UNKNOWN")


def test_delayed_copies_of_a_topic_that_is_not_read(lake_path: Path) -> None:
    """Their number is unknown, also where some were read."""
    billing = by_group(Answers(lake_path, cluster="undelayed").lag(AS_OF_MS))["billing"]
    assert (billing.delayed_count, billing.why) == (None, (DELAYED_NOT_READ,))


def test_the_messages_that_wait(answers: Answers) -> None:
    """The first of them, those of the retry topic included, with the time that they have waited."""
    found = answers.lag(AS_OF_MS, "billing", oldest_count=3)
    assert [one.msg_id for one in found.oldest] == [unique_id(1), unique_id(2), unique_id(3)]
    assert [one.keys for one in found.oldest] == ["k1", "k2", "k3"]
    assert [one.lag_ms for one in found.oldest] == [int(LAST - at) * 1000 for at in (30, 31, 45)]
    assert [group.group_name for group in found.groups] == ["billing"]
    assert answers.lag(AS_OF_MS, "nobody").groups == ()


def test_a_first_message_that_is_not_in_the_lake(lake_path: Path) -> None:
    """Messages wait, and for how long is not known."""
    billing = by_group(Answers(lake_path, cluster="unread").lag(AS_OF_MS))["billing"]
    assert (billing.topics.lag_count, billing.topics.lag_ms, billing.topics.unknown_count) == (30, None, 1)
    assert [queue.why for queue in billing.queues if queue.topic == "orders"] == [NOT_READ, ""]


@pytest.mark.slow
def test_over_another_time(answers: Answers) -> None:
    """Without a sample that old, the first one is compared."""
    assert answers.lag(AS_OF_MS, over_ms=1).over_ms == OVER_S * 1_000
    assert answers.lag(AS_OF_MS, over_ms=3_600_000).over_ms == OVER_S * 1_000


def test_views_have_the_same_numbers(answers: Answers) -> None:
    """The rules are written twice: here in SQL."""
    groups = by_group(answers.lag(AS_OF_MS))
    with answers.query("SELECT * FROM lag", AS_OF_MS) as answer:
        rows = [row for batch in answer.batches for row in batch.to_pylist()]
    of_views = {(row["group_name"], row["topic"], row["queue_id"]): row for row in rows}
    queues = {(name, one.topic, one.queue_id): one for name, group in groups.items() for one in group.queues}
    assert of_views.keys() == queues.keys()
    for place, queue in queues.items():
        row = of_views[place]
        assert (row["lag_count"], _ms(row["lag_seconds"])) == (queue.lag_count, queue.lag_ms), place
        assert _of_row(row) == _shown(queue.trend), place
    with answers.query("SELECT * FROM group_lag", AS_OF_MS) as answer:
        sums = {row["group_name"]: row for batch in answer.batches for row in batch.to_pylist()}
    assert sums.keys() == groups.keys()
    for name, group in groups.items():
        row, own, retry = sums[name], group.topics, group.retry
        assert (row["lag_count"], _ms(row["lag_seconds"]), row["unknown_queues"]) == (
            own.lag_count,
            own.lag_ms,
            own.unknown_count,
        ), name
        assert (row["retry_count"], _ms(row["retry_seconds"])) == (retry.lag_count, retry.lag_ms), name
        assert row["delayed_count"] == group.delayed_count
        assert _of_row(row) == _shown(group.trend), name


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _rounded(trend: str, *rates: float | None) -> tuple[str, list[float | None]]:
    """A trend with its rates to six digits; those of an unknown one are not shown by `Answers.lag`."""
    return trend, [None if rate is None or trend == "UNKNOWN" else round(rate, 6) for rate in rates]


def _shown(trend: Trend) -> tuple[str, list[float | None]]:
    return _rounded(trend.state, trend.consumed_per_s, trend.produced_per_s, trend.drain_s)


def _of_row(row: Row) -> tuple[str, list[float | None]]:
    return _rounded(row["trend"], row["consumed_per_second"], row["produced_per_second"], row["drain_seconds"])


def test_several_clusters(lake_path: Path) -> None:
    """One must be chosen."""
    with pytest.raises(UnknownCluster, match="--cluster"):
        Answers(lake_path).lag(AS_OF_MS)
