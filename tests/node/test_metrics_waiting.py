"""Metrics of waiting messages, checked in the Prometheus text after each event."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mqtrail.broker import METRICS
from mqtrail.node.metrics_exporter import exposition
from mqtrail.wire import RecallMessageHeader, RequestCode, ResponseCode
from tests.broker.helpers import Bench
from tests.broker.pop.helpers import INVISIBLE_MS, SETTLED_MS, ack, pop, send
from tests.broker.transactions.test_transactions import COMMIT, ROLLBACK, end, half

Samples = dict[str, dict[tuple[str, ...], float]]
WAITING = tuple(
    f"rocketmq_{what}_" for what in ("timer", "timing", "delay", "pop", "half", "commit", "rollback", "finish")
)
"""How the names begin that are seen to here."""
COMMON = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


def read(bench: Bench) -> Samples:
    """Return sample name -> values of its own labels, in the metric's order -> value."""
    found: Samples = {}
    for family in text_string_to_metric_families(exposition(lambda: [bench.broker], bench.now_ms).decode()):
        for sample in family.samples:
            assert sample.labels.items() >= COMMON.items()
            metric = METRICS.get(family.name) or METRICS[f"{family.name}_total"]
            names = (*metric.labels, "le") if sample.name.endswith("_bucket") else metric.labels
            assert sample.labels.keys() == {*names, *COMMON}, sample
            values = tuple(sample.labels[name] for name in names if not name.startswith("storage_"))
            found.setdefault(sample.name, {})[values] = sample.value
    return found


# -- timers ------------------------------------------------------------------------------------------------------------


def timed(bench: Bench, body: bytes, delay_s: int) -> str:
    """Send a delayed message; return its recall handle."""
    reply = bench.send(body=body, UNIQ_KEY=f"ID{body.decode()}", TIMER_DELAY_SEC=str(delay_s))
    assert reply.code == ResponseCode.SUCCESS
    return reply.ext["recallHandle"]


def test_timers_that_wait_and_that_are_due() -> None:
    """Enqueued and dequeued timer messages are counted per topic; a recalled one is not dequeued."""
    bench = Bench()
    for body, delay_s in ((b"1", 4), (b"2", 200), (b"3", 200), (b"4", 90_000)):
        handle = timed(bench, body, delay_s)
        if body == b"3":
            reply = bench.ask(RequestCode.RECALL_MESSAGE, RecallMessageHeader("orders", handle).to_ext())
            assert reply.code == ResponseCode.SUCCESS
    bench.advance(1_000)
    found = read(bench)
    assert found["rocketmq_timer_enqueue_lag"] == {(): 0}
    assert found["rocketmq_timer_enqueue_latency_milliseconds"] == {(): 0}
    assert found["rocketmq_timer_enqueue_total"] == {("orders",): 5}
    assert "rocketmq_timer_dequeue_total" not in found
    assert found["rocketmq_timer_dequeue_lag"] == {(): 3}
    assert found["rocketmq_timer_dequeue_latency_milliseconds"] == {(): 0}
    assert found["rocketmq_timing_messages"] == {("orders",): 3}
    snapshot = {bound: count for (bound,), count in found["rocketmq_timer_message_snapshot"].items()}
    assert list(snapshot) == ["5", "60", "300", "900", "3600", "14400", "28800", "86400"]
    assert {bound: count for bound, count in snapshot.items() if count} == {"5": 1, "300": 1}
    delays = found["rocketmq_delay_message_latency_seconds_bucket"]
    assert [delays["orders", end] for end in ("60.0", "600.0", "86400.0", "259200.0", "+Inf")] == [1, 4, 4, 5, 5]
    assert found["rocketmq_delay_message_latency_seconds_count"] == {("orders",): 5}
    bench.advance(300_000)
    found = read(bench)
    assert found["rocketmq_timer_dequeue_total"] == {("orders",): 2}
    assert found["rocketmq_timer_dequeue_lag"] == {(): 1}
    assert found["rocketmq_timing_messages"] == {("orders",): 1}


def test_timers_that_are_behind() -> None:
    """The age of messages that are not in the wheel yet, and of due ones, is their real age."""
    bench = Bench()
    timed(bench, b"1", 10)
    bench.advance(0)
    bench.now_ms += 3_500  # the broker is paused
    timed(bench, b"2", 10)
    bench.now_ms += 500
    found = read(bench)
    assert found["rocketmq_timer_enqueue_lag"] == {(): 1}
    assert found["rocketmq_timer_enqueue_latency_milliseconds"] == {(): 500}
    assert found["rocketmq_timer_dequeue_latency_milliseconds"] == {(): 0}
    bench.now_ms += 10_000
    found = read(bench)
    assert found["rocketmq_timer_dequeue_lag"] == {(): 1}
    assert found["rocketmq_timer_dequeue_latency_milliseconds"] == {(): 4}


# -- pop ---------------------------------------------------------------------------------------------------------------


def test_popped_messages_that_are_acknowledged_and_that_come_again() -> None:
    """A check point and an ack are counted into and out of the revive log; a missing ack becomes a retry."""
    bench = Bench()
    bench.broker.groups.find("g", bench.now_ms)
    send(bench, "a", "b", "c")
    popped = pop(bench)
    ack(bench, popped[0])
    found = read(bench)
    assert found["rocketmq_pop_revive_in_message_total"] == {
        ("g", "orders", "CK", "PUT_OK"): 1,
        ("g", "orders", "ACK", "PUT_OK"): 1,
    }
    assert "rocketmq_pop_revive_out_message_total" not in found
    assert "rocketmq_pop_revive_retry_messages_total" not in found
    assert set(found["rocketmq_pop_revive_lag_milliseconds"].values()) == {0}
    assert set(found["rocketmq_pop_revive_latency_milliseconds"].values()) == {0}
    bench.advance(INVISIBLE_MS + 500)  # both were written to the log, the check point a second before the ack
    found = read(bench)
    assert sum(found["rocketmq_pop_revive_lag_milliseconds"].values()) == 2
    assert max(found["rocketmq_pop_revive_latency_milliseconds"].values()) == 1_500
    bench.advance(SETTLED_MS)
    found = read(bench)
    out = {(*key[:2], key[3]): count for key, count in found["rocketmq_pop_revive_out_message_total"].items()}
    assert out == {("g", "orders", "CK"): 1, ("g", "orders", "ACK"): 1}
    assert found["rocketmq_pop_revive_retry_messages_total"] == {("g", "orders", "PUT_OK"): 2}
    bench.advance(SETTLED_MS)
    found = read(bench)
    assert set(found["rocketmq_pop_revive_lag_milliseconds"].values()) == {0}
    assert set(found["rocketmq_pop_revive_latency_milliseconds"].values()) == {0}
    # No consumer: its offset is the last one finished, so it would always be one behind.
    assert not any(key[0] == "CID_RMQ_SYS_REVIVE_GROUP" for key in found["rocketmq_consumer_lag_messages"])


# -- transactions ------------------------------------------------------------------------------------------------------


def test_half_messages_that_end_and_that_do_not() -> None:
    """A commit, a rollback, one that stays open; the duration of the commit."""
    bench = Bench()
    first, second = half(bench, b"1"), half(bench, b"2")
    half(bench, b"3")
    found = read(bench)
    assert found["rocketmq_half_messages"] == {("orders",): 3}
    assert "rocketmq_commit_messages_total" not in found
    bench.now_ms += 7_900
    end(bench, first, COMMIT)
    end(bench, first, COMMIT)  # has no effect
    end(bench, second, ROLLBACK)
    found = read(bench)
    assert found["rocketmq_half_messages"] == {("orders",): 1}
    assert found["rocketmq_commit_messages_total"] == {("orders",): 1}
    assert found["rocketmq_rollback_messages_total"] == {("orders",): 1}
    assert found["rocketmq_finish_message_latency_milliseconds_count"] == {("orders",): 1}
    assert found["rocketmq_finish_message_latency_milliseconds_sum"] == {("orders",): 7}
    buckets = found["rocketmq_finish_message_latency_milliseconds_bucket"]
    assert [buckets["orders", bound] for bound in ("5.0", "60.0", "+Inf")] == [0, 1, 1]


def test_open_half_messages_while_they_are_asked_about() -> None:
    """Copies by the check loop count for their original.

    A message that is given up is no longer open, and 0 is reported.
    """
    bench = Bench(transaction_check_max=3)
    half(bench, b"1")
    end(bench, half(bench, b"2"))
    for _ in range(2):
        bench.advance(bench.config.transaction_check_ms + 1_000)
        assert read(bench)["rocketmq_half_messages"] == {("orders",): 1}
    bench.advance(5 * bench.config.transaction_check_ms)
    assert read(bench)["rocketmq_half_messages"] == {("orders",): 0}


def test_open_half_messages_of_an_earlier_life_are_not_known_at_once() -> None:
    """The ended ones are unknown until a round has read past them: there is no sample instead of a wrong one."""
    bench = Bench()
    end(bench, half(bench, b"1"))
    sent = half(bench, b"2")
    bench.restart()
    half(bench, b"3")
    assert "rocketmq_half_messages" not in read(bench)
    bench.advance(bench.config.transaction_check_ms + bench.config.transaction_timeout_ms)
    assert read(bench)["rocketmq_half_messages"] == {("orders",): 2}
    end(bench, sent)
    assert read(bench)["rocketmq_half_messages"] == {("orders",): 1}


def test_many_open_half_messages_take_several_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request reads a limited number. There is no sample until all are known, or if ends were forgotten."""
    monkeypatch.setattr("mqtrail.broker.transactions.counts.READ_MAX", 4)
    monkeypatch.setattr("mqtrail.broker.transactions.check.ENDED_MAX", 2)
    bench = Bench()
    sent = [half(bench, b"%d" % number) for number in range(6)]
    assert "rocketmq_half_messages" not in read(bench)
    assert read(bench)["rocketmq_half_messages"] == {("orders",): 6}
    for one in sent[:3]:
        assert "rocketmq_half_messages" in read(bench)
        end(bench, one)
    assert "rocketmq_half_messages" not in read(bench)


# -- all of them -------------------------------------------------------------------------------------------------------


def test_every_metric_of_what_waits_can_be_seen() -> None:
    """After a timer, a revived pop and ended transactions each metric has a sample."""
    bench = Bench()
    bench.broker.groups.find("g", bench.now_ms)
    send(bench, "a")
    pop(bench)
    timed(bench, b"t", 4)
    end(bench, half(bench, b"1"), COMMIT)
    end(bench, half(bench, b"2"), ROLLBACK)
    half(bench, b"3")
    bench.advance(INVISIBLE_MS + SETTLED_MS)
    families = text_string_to_metric_families(exposition(lambda: [bench.broker], bench.now_ms).decode())
    seen = {family.name: family.type for family in families}
    for name, metric in METRICS.items():
        if name.startswith(WAITING):
            assert seen[name.removesuffix("_total") if metric.kind == "counter" else name] == metric.kind
