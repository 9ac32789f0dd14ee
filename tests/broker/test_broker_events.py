"""BrokerEvent records: a master writes them, a slave keeps them for its master, and none is lost silently."""

from mqtrail.broker.telemetry.events import EVENTS_MAX
from mqtrail.wire import BROKER_EVENTS_KEY, TRACE_TOPIC, BrokerEvent, MQError, SystemError_, decode_trace

from .helpers import Bench

STARTED = BrokerEvent(event="STARTED", broker_id="1")


def written(bench: Bench) -> list[BrokerEvent]:
    """The records in the trace topic; none of them may be unreadable. Their key is no id that a viewer asks for."""
    found = []
    for message in bench.messages(TRACE_TOPIC):
        assert message.properties["KEYS"] == BROKER_EVENTS_KEY
        records, rejects = decode_trace(message.body)
        assert not rejects
        found += [record for record in records if isinstance(record, BrokerEvent)]
    return found


def test_a_master_writes_its_events() -> None:
    """With the names of the broker, its address and the time; once."""
    bench = Bench(broker_role="SYNC_MASTER")
    assert bench.broker.events is not None
    bench.broker.events.add(STARTED, bench.now_ms)
    at_ms = bench.now_ms
    bench.advance(1)
    bench.advance(2_000)
    config = bench.config
    assert written(bench) == [
        BrokerEvent(
            time_stamp=at_ms,
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            event="STARTED",
            broker_id="1",
            address=str(config.address),
        )
    ]


def test_events_are_written_before_the_broker_stops() -> None:
    """The last event of a master is that it stops."""
    bench = Bench(broker_role="SYNC_MASTER")
    assert bench.broker.events is not None
    bench.broker.events.add(BrokerEvent(event="STOPPED"), bench.now_ms)
    bench.broker.stop(bench.now_ms)
    assert [one.event for one in written(bench)] == ["STOPPED"]


def test_a_master_of_a_group_writes_none_while_it_stops() -> None:
    """Its replicas would not get it, and the next master would have it removed. The next role writes it."""
    bench = Bench(broker_role="SYNC_MASTER", controller_mode=True, controller_addresses="127.0.0.1:1")
    assert bench.broker.events is not None
    bench.broker.events.add(STARTED, bench.now_ms)
    bench.broker.stop(bench.now_ms)
    assert bench.store.end_offset == 0
    assert [one.event for one in bench.broker.events.take()] == ["STARTED"]


def test_who_writes_events() -> None:
    """Brokers with replicas do, and those whose own trace is on, unless broker_events is off."""
    for settings, writes in (
        ({}, False),
        ({"broker_trace": True}, True),
        ({"broker_role": "ASYNC_MASTER"}, True),
        ({"broker_role": "ASYNC_MASTER", "broker_events": False}, False),
    ):
        assert (Bench(**settings).broker.events is not None) is writes, settings


def test_a_slave_keeps_its_events() -> None:
    """It writes nothing itself; its node sends them, or hands them to the next role."""
    bench = Bench(broker_role="SLAVE", broker_id=1)
    events = bench.broker.events
    assert events is not None
    events.add(STARTED, bench.now_ms)
    events.add(BrokerEvent(event="BECAME_SLAVE"), bench.now_ms)
    bench.advance(5_000)
    bench.broker.stop(bench.now_ms)
    assert bench.store.end_offset == 0
    assert [one.event for one in events.waiting] == ["STARTED", "BECAME_SLAVE"]
    events.delivered(events.waiting[:1])
    assert [one.event for one in events.take()] == ["BECAME_SLAVE"]
    assert len(events) == 0


def test_events_wait_while_the_store_refuses_them() -> None:
    """A master without enough in-sync replicas writes them later."""
    bench = Bench(broker_role="SYNC_MASTER")
    events = bench.broker.events
    assert events is not None
    events.add(STARTED, bench.now_ms)

    def refuse(records: object) -> None:
        raise SystemError_("in-sync replicas not enough")

    events.flush(refuse, bench.now_ms)
    assert isinstance(SystemError_("x"), MQError)
    due_ms = events.next_due_ms()
    assert due_ms is not None
    assert due_ms > bench.now_ms, "it is not tried in a loop"
    bench.advance(due_ms - bench.now_ms)
    assert [one.event for one in written(bench)] == ["STARTED"]


def test_dropped_events_are_counted() -> None:
    """Above EVENTS_MAX the oldest are dropped; one event says how many, since when."""
    bench = Bench(broker_role="SLAVE", broker_id=1)
    events = bench.broker.events
    assert events is not None
    for number in range(EVENTS_MAX + 3):
        events.add(BrokerEvent(event="STARTED", epoch=number), bench.now_ms + number)
    first, *others = events.waiting
    assert (first.event, first.time_stamp, first.detail) == ("DROPPED", bench.now_ms, "4")
    assert [one.epoch for one in others] == list(range(4, EVENTS_MAX + 3))
    kept = events.take()
    assert kept == [first, *others]
    assert events.waiting == ()


def test_a_long_reason_is_cut() -> None:
    """A record stays small, whatever a controller says."""
    bench = Bench(broker_role="SYNC_MASTER")
    assert bench.broker.events is not None
    bench.broker.events.add(BrokerEvent(event="BECAME_MASTER", reason="r" * 5_000), bench.now_ms)
    bench.advance(1)
    (found,) = written(bench)
    assert found.reason == "r" * 200
