"""Rows of events of brokers: from the trace, each once, and read by no judgement."""

import duckdb
import pytest

from mqtrail import trail
from mqtrail.lake import arrow_rows
from mqtrail.trail import SampledEvent
from mqtrail.wire import BrokerEvent, Stored, encode_trace

PLACE = trail.TracePlace("c", "broker-a", "RMQ_SYS_TRACE_TOPIC", 0, 7, 900, 950, "10.0.0.1:10911")
EVENT = BrokerEvent(
    time_stamp=1_000,
    cluster_name="DefaultCluster",
    broker_name="broker-a",
    event="BECAME_MASTER",
    broker_id="3",
    address="10.0.0.3:10911",
    epoch=5,
    reason="connection_closed",
    before_id="1",
    before_address="10.0.0.1:10911",
    before_epoch=4,
    before_until_ms=800,
    from_offset=77,
)


def test_a_record_becomes_a_row() -> None:
    """Beside the rows of the other records of its message, which do not change."""
    stored = Stored(time_stamp=990, broker_name="broker-a", topic="orders", msg_id="ID", kind="NORMAL")
    rows = list(trail.trace_rows(PLACE, encode_trace([stored, EVENT])))
    assert rows[:1] == list(trail.trace_rows(PLACE, encode_trace([stored])))
    [(relation, row)] = rows[1:]
    assert relation is trail.BROKER_EVENTS
    assert set(row) == set(trail.BROKER_EVENTS.names)
    assert {name: value for name, value in row.items() if value not in (None, "")} == {
        "cluster": "c",
        "source": "trace",
        "broker_name": "broker-a",
        "trace_topic": "RMQ_SYS_TRACE_TOPIC",
        "queue_id": 0,
        "queue_offset": 7,
        "record_no": 1,
        "trace_store_ms": 950,
        "event_ms": 1_000,
        "event_broker_name": "broker-a",
        "event": "BECAME_MASTER",
        "broker_id": "3",
        "address": "10.0.0.3:10911",
        "epoch": 5,
        "reason": "connection_closed",
        "before_id": "1",
        "before_address": "10.0.0.1:10911",
        "before_epoch": 4,
        "before_until_ms": 800,
        "from_offset": 77,
    }


def test_no_judgement_reads_them() -> None:
    """Verdicts are the same with and without events of brokers."""
    assert trail.BROKER_EVENTS not in trail.EVIDENCE
    assert trail.BROKER_EVENTS.name not in {*trail.INPUTS, *trail.READ_WHOLE}
    assert not any(trail.BROKER_EVENTS.name in stage.sql for stage in trail.judge(0))


def test_a_number_that_is_none_is_a_reject() -> None:
    """As for every record of ours, with what was found and what was expected."""
    text = encode_trace([EVENT]).replace("\x015\x01", "\x01five\x01")
    [(relation, row)] = trail.trace_rows(PLACE, text)
    assert relation is trail.TRACE_REJECTS
    assert row["reason"].startswith("epoch: found 'five'")


def test_the_address_of_a_leader_that_is_known_by_its_id() -> None:
    """It is that of the events which the member wrote itself."""
    texts = (
        BrokerEvent(time_stamp=1, broker_name="broker-a", event="STARTED", broker_id="n2", address="10.0.0.2:10911"),
        BrokerEvent(time_stamp=2, broker_name="broker-b", event="STARTED", broker_id="n2", address="10.0.0.8:10911"),
        BrokerEvent(time_stamp=3, broker_name="broker-a", event="BECAME_MASTER", broker_id="n1", before_id="n2"),
    )
    duck = duckdb.connect()
    rows = [row for _, row in trail.trace_rows(PLACE, encode_trace(texts))]
    duck.register("broker_events", arrow_rows(trail.BROKER_EVENTS, rows))
    found = duck.execute(
        f"SELECT event_ms, before_address FROM ({trail.distinct_events_sql('broker_events')}) ORDER BY ALL"
    ).fetchall()
    assert found == [(1, ""), (2, ""), (3, "10.0.0.2:10911")]


def sampled(event: SampledEvent, address: str, at_ms: int, until_ms: int | None) -> dict[str, object]:
    before = None if until_ms is None else ("10.0.0.1:10911", None, until_ms)
    row = trail.sampled_event(event, "broker-a", address, None, before)
    return row | {"cluster": "c", "event_ms": at_ms, "trace_store_ms": at_ms}


@pytest.mark.parametrize(
    ("row", "is_shown"),
    [
        (sampled(SampledEvent.MASTER_CHANGED, "10.0.0.3:10911", 9_000, 500), False),
        (sampled(SampledEvent.MASTER_GONE, "", 900, 500), False),
        (sampled(SampledEvent.MASTER_CHANGED, "10.0.0.2:10911", 9_000, 500), True),
        (sampled(SampledEvent.MASTER_CHANGED, "10.0.0.3:10911", 9_000_000, 8_000_000), True),
        (sampled(SampledEvent.MASTER_SEEN, "10.0.0.3:10911", 9_000, None), True),
    ],
    ids=["the same change", "gone meanwhile", "another broker", "much later", "the first sample"],
)
def test_each_event_is_shown_once(row: dict[str, object], is_shown: bool) -> None:
    """A sample that shows what a broker wrote is left out, and so is a record that was sent twice."""
    [(_, first)] = trail.trace_rows(PLACE, encode_trace([EVENT]))
    again = first | {"queue_offset": 8}
    duck = duckdb.connect()
    duck.register("broker_events", arrow_rows(trail.BROKER_EVENTS, [again, first, row]))
    found = duck.execute(
        f"SELECT source, queue_offset FROM ({trail.distinct_events_sql('broker_events')}) ORDER BY ALL"
    ).fetchall()
    assert found == [("sample", None)] * is_shown + [("trace", 7)]
