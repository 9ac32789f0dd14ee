"""Metrics of what waits, each after the thing has happened, as Prometheus reads them."""

from prometheus_client.parser import text_string_to_metric_families

from mqtrail.broker import METRICS
from mqtrail.node.metrics_door import exposition
from mqtrail.wire import RecallMessageHeader, RequestCode, ResponseCode
from tests.broker.helpers import Bench
from tests.broker.pop.helpers import INVISIBLE_MS, SETTLED_MS, ack, pop, send

Samples = dict[str, dict[tuple[str, ...], float]]
WAITING = tuple(
    f"rocketmq_{what}_" for what in ("timer", "timing", "delay", "pop", "half", "commit", "rollback", "finish")
)
"""How the names begin that are seen to here."""
COMMON = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


def read(bench: Bench) -> Samples:
    """Return sample name -> values of the labels that only some have, in the metric's order -> value."""
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
    """Send a message that is to wait; return what recalls it."""
    reply = bench.send(body=body, UNIQ_KEY=f"ID{body.decode()}", TIMER_DELAY_SEC=str(delay_s))
    assert reply.code == ResponseCode.SUCCESS
    return reply.ext["recallHandle"]


def test_timers_that_wait_and_that_are_due() -> None:
    """Counted as they go into the wheel and out of it, topic by topic; a recalled one does not come out."""
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
    """What nobody took in yet, and a second that passed long ago, are as old as they are."""
    bench = Bench()
    timed(bench, b"1", 10)
    bench.advance(0)
    bench.now_ms += 3_500  # the broker sleeps
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
    """A check point and an ack go into the revive log and come out of it; what has no ack becomes a retry."""
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
    bench.advance(INVISIBLE_MS + 500)  # both came into the log, the check point a second before the ack
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
