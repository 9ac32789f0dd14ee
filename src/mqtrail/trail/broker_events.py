"""What happened to brokers: starts, stops, who became master when. No judgement reads it.

Two sources report it: records of mqtrail's brokers in the trace topic (BrokerEvent), and the pipeline's samples of the
routes, which show that another address is master. The latter is what there is of Apache's brokers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from mqtrail.wire import BrokerEvent

from .columns import Relation, number, text
from .kinds import literal, quoted

FROM_TRACE: Final = "trace"
FROM_SAMPLE: Final = "sample"
MASTER_EVENTS: Final = ("BECAME_MASTER", "MASTER_CHANGED", "MASTER_GONE")
"""Events of a change of the master."""
SAME_CHANGE_MS: Final = 120_000
"""How long after a broker wrote that it is master a sample may first show it."""


class SampledEvent(StrEnum):
    """event of BROKER_EVENTS in rows of samples."""

    MASTER_SEEN = "MASTER_SEEN"
    MASTER_CHANGED = "MASTER_CHANGED"
    MASTER_GONE = "MASTER_GONE"


BROKER_EVENTS = Relation(
    "broker_events",
    "One row per event of a broker: of a BrokerEvent in the trace, or of a sample in which the routes have another "
    "master than in the one before. Key: cluster, source, broker_name, trace_topic, queue_id, queue_offset, record_no; "
    "of samples cluster, source, event_broker_name, event_ms. A broker may send a record twice.",
    (
        text("cluster", "as in trace_events"),
        text("source", "trace: written by the broker; sample: seen by the pipeline in the routes"),
        text("broker_name", "broker that stores the trace message; '' in samples"),
        text("trace_topic", "topic of the trace message; '' in samples"),
        number("queue_id", "queue of the trace message; NULL in samples"),
        number("queue_offset", "offset of the trace message in its queue; NULL in samples"),
        number("record_no", "index of the record in the trace message; NULL in samples"),
        number("trace_store_ms", "when the broker stored the trace message; time of the sample"),
        number("event_ms", "time of the event, by the clock of its broker; time of the sample"),
        text("event_broker_name", "name of the broker that the event is about: all brokers of a group have one name"),
        text(
            "event",
            "STARTED, STOPPED, BECAME_MASTER, BECAME_SLAVE, TRUNCATED (the end of the log was removed), DROPPED "
            "(events were lost); in samples MASTER_SEEN (the first one), MASTER_CHANGED, MASTER_GONE",
        ),
        text("broker_id", "which broker of the group: its number at the controllers, DLedger member or id in routes"),
        text("address", "ip:port for clients; MASTER_GONE: ''"),
        number("epoch", "epoch or term of the master; NULL: there is none, or it is not known"),
        text("reason", "why: of an election that of the controllers; '' if not known"),
        text("before_id", "the master before: as broker_id; '' if not known"),
        text("before_address", "its address; '' if not known"),
        number("before_epoch", "its epoch or term; NULL: not known"),
        number("before_until_ms", "until when it was known to be master; NULL: not known"),
        number("from_offset", "BECAME_MASTER: end of its log; TRUNCATED: first removed byte of the CommitLog"),
        number("to_offset", "TRUNCATED: end of what was removed"),
        text("detail", "TRUNCATED: file with what was removed; DROPPED: number of events"),
    ),
)

_COLUMN_OF: Final = {"time_stamp": "event_ms", "broker_name": "event_broker_name"}
_EMPTY: Final[dict[str, Any]] = {column.name: "" if column.type == "string" else None for column in BROKER_EVENTS}


def event_columns(record: BrokerEvent) -> dict[str, Any]:
    """Return all columns of BROKER_EVENTS for a record, those of its place without a value."""
    row = dict(_EMPTY)
    for field in record.__struct_fields__:
        value = getattr(record, field)
        name = _COLUMN_OF.get(field, field)
        if value is not None and name in row:
            row[name] = value
    return row | {"source": FROM_TRACE}


def sampled_event(
    event: SampledEvent, broker: str, address: str, epoch: int | None, before: tuple[str, int | None, int] | None
) -> dict[str, Any]:
    """Return a row of a sample, without cluster and times. before: the last master's address, epoch and last sample."""
    known = before or ("", None, None)
    return _EMPTY | {
        "source": FROM_SAMPLE,
        "event_broker_name": broker,
        "event": event.value,
        "address": address,
        "epoch": epoch,
        "before_address": known[0],
        "before_epoch": known[1],
        "before_until_ms": known[2],
    }


def distinct_events_sql(broker_events: str) -> str:
    """SQL: the rows, each event once: a sample that shows what a broker wrote itself, and what was sent twice, is left
    out. A member of a DLedger group knows only the id of the leader before: its address is that of its own events."""
    kinds = quoted(MASTER_EVENTS)
    return f"""
SELECT e.* REPLACE (CASE WHEN e.before_address <> '' THEN e.before_address ELSE coalesce(k.own_address, '') END
  AS before_address)
FROM {broker_events} AS e LEFT JOIN (
  SELECT cluster AS own_cluster, event_broker_name AS own_name, broker_id AS own_id,
    max_by(address, event_ms) AS own_address
  FROM {broker_events} AS own WHERE broker_id <> '' AND address <> '' GROUP BY ALL
) AS k ON k.own_cluster = e.cluster AND k.own_name = e.event_broker_name AND k.own_id = e.before_id
WHERE NOT (source = {literal(FROM_SAMPLE)} AND event IN ({kinds}) AND EXISTS (
  SELECT 1 FROM {broker_events} AS w WHERE w.source = {literal(FROM_TRACE)} AND w.event = 'BECAME_MASTER'
    AND w.cluster = e.cluster AND w.event_broker_name = e.event_broker_name
    AND (w.address = e.address OR e.event = 'MASTER_GONE')
    AND w.event_ms BETWEEN coalesce(e.before_until_ms, e.event_ms) - {SAME_CHANGE_MS} AND e.event_ms + {SAME_CHANGE_MS}
))
QUALIFY row_number() OVER (
  PARTITION BY cluster, source, event_broker_name, event, event_ms, broker_id, address, epoch, from_offset
  ORDER BY trace_store_ms, broker_name, queue_id, queue_offset, record_no) = 1"""
