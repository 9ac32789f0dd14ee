"""Finds the stored message that an event names as its evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mqtrail.wire import MessageQueue, place_text

_PLACE: Final = re.compile(
    r"(?:message:(?P<of>[^/]+)/(?P<topic>[^/]+)/|trace:(?P<by>[^/]+)/)(?P<queue>\d{1,9})@(?P<offset>\d{1,18})(?:#(?P<record>\d{1,9}))?"
)


@dataclass(frozen=True, slots=True)
class EvidencePlace:
    """A stored message. record_no: the trace record in its body, from 0; None: the message itself is the evidence."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    record_no: int | None = None

    @property
    def place(self) -> str:
        """`broker/topic/queue@offset`, as ClusterAnswers.message reads it."""
        return place_text(MessageQueue(self.topic, self.broker_name, self.queue_id), self.queue_offset)


def evidence_place(evidence: str, trace_topic: str) -> EvidencePlace | None:
    """Return the place that an event's evidence names; None if it names none. trace_topic: of records of the trace."""
    found = _PLACE.fullmatch(evidence)
    if found is None:
        return None
    record = found["record"]
    return EvidencePlace(
        found["topic"] or trace_topic,
        found["of"] or found["by"],
        int(found["queue"]),
        int(found["offset"]),
        None if record is None else int(record),
    )
