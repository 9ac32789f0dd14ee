"""Trajectories as OpenTelemetry spans, with the attributes of its semantic conventions for messaging.

One message is one trace: a root span with the verdicts, below it a PRODUCER span for each send and a CONSUMER span for
each delivery, linked to the first send. If the message carries a context of OpenTelemetry (`traceparent`), the root is
linked to the application's span. What takes no time (a stored copy, a retry of a send, a dead letter) is an
event of the root span. Ids follow from the cluster and the message id, so that a message that is exported twice has the
same spans. Times are epoch ms.

Source: OpenTelemetry semantic conventions 1.21 (old names) and 1.44 (new names), chapter messaging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from mqtrail import trail

from ..model import Event, Trajectory

AttributeValue = str | int | tuple[str, ...]
Attributes = Mapping[str, AttributeValue]
Values = dict[str, AttributeValue | None]


class SpanNames(StrEnum):
    """The attribute names: those of version 1.21 of the conventions, the present ones, or both."""

    OLD = "old"
    NEW = "new"
    BOTH = "both"


class SpanKind(StrEnum):
    """Kinds of spans that this module makes."""

    INTERNAL = "INTERNAL"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


class SpanLink(NamedTuple):
    """The ids of a span that another one refers to."""

    trace_id: bytes
    span_id: bytes


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one time in a span."""

    name: str
    at_ms: int
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """One span. parent_id: b'' for the root. links: other spans, also of other traces. error: None, or what failed."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    kind: SpanKind
    start_ms: int
    end_ms: int
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    error: str | None = None


_OLD_NAMES: Final = {
    "messaging.operation.type": "messaging.operation",
    "messaging.consumer.group.name": "messaging.rocketmq.client_group",
    "messaging.client.id": "messaging.client_id",
}
"""Present name -> name in 1.21, where they differ."""
_OLD_OPERATIONS: Final = {"send": "publish"}
_NEW_ONLY: Final = "messaging.operation.name"
_MOMENTS: Final = {
    "SEND_TRY": "send attempt",
    "STORED": "stored",
    "RESULT": "result",
    "SENT_BACK": "sent back",
    "DEAD_LETTERED": "dead lettered",
    "END_TRANSACTION": "transaction ended",
    "RECALL": "recalled",
}
"""Kind of an attempt -> name of its event in the root span. SEND and HANDLED are spans."""


def spans_of(trajectory: Trajectory, names: SpanNames) -> list[Span]:
    """Return the spans of a message, the root first; none if the message has no known time."""
    known = [event for event in trajectory.events if event.at_ms]
    return _Trace(trajectory, known, names).spans() if known else []


class _Trace:
    """The spans of one message."""

    def __init__(self, trajectory: Trajectory, known: Sequence[Event], names: SpanNames) -> None:
        self._of = trajectory
        self._known = known
        self._names = names
        self._trace_id = _digest(16, trajectory.cluster, trajectory.msg_id)
        self._root_id = self._id("root")
        self._groups = {group.group_name: group for group in trajectory.groups}

    def spans(self) -> list[Span]:
        sends = [self._send(event) for event in self._known if event.kind == "SEND"]
        links = tuple(SpanLink(one.trace_id, one.span_id) for one in sends[:1])
        deliveries = [self._delivery(event, links) for event in self._known if event.kind == "HANDLED"]
        return [self._root(), *sends, *deliveries]

    def _root(self) -> Span:
        of = self._of
        attributes: Values = {
            "mqtrail.codes": (*of.send_codes, *of.message_codes),
            "mqtrail.knowledge": of.knowledge,
            "mqtrail.reasons": of.reasons,
            "mqtrail.judged_at_ms": of.as_of_ms,
            **{f"mqtrail.group.{group.group_name}.codes": group.codes for group in of.groups},
        }
        return Span(
            trace_id=self._trace_id,
            span_id=self._root_id,
            parent_id=b"",
            name=f"message {of.topic}".rstrip(),
            kind=SpanKind.INTERNAL,
            start_ms=min(_start_ms(event) for event in self._known),
            end_ms=max(_end_ms(event) for event in self._known),
            attributes=self._attributes(attributes),
            events=tuple(_moment(event) for event in self._known if event.kind in _MOMENTS),
            links=_context(of.traceparent),
            error=", ".join(self._errors()) or None,
        )

    def _errors(self) -> list[str]:
        """Return the codes of the message and of its groups that are errors."""
        of = self._of
        codes = [*of.send_codes, *of.message_codes, *(code for group in of.groups for code in group.codes)]
        return [code for code in dict.fromkeys(codes) if trail.CODES[code].severity == "error"]

    def _send(self, event: Event) -> Span:
        attributes: Values = {
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "mqtrail.codes": self._of.send_codes,
            "mqtrail.producer.group": self._of.producer_group,
            "mqtrail.producer.address": self._of.producer_host,
        }
        return self._child(event, f"send {self._of.topic}", SpanKind.PRODUCER, attributes)

    def _delivery(self, event: Event, links: tuple[SpanLink, ...]) -> Span:
        group = self._groups.get(event.group_name)
        attributes: Values = {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": event.group_name,
            "messaging.client.id": event.place,
            "mqtrail.outcome": event.outcome,
            "mqtrail.retry_times": event.retry_times,
            "mqtrail.codes": () if group is None else group.codes,
        }
        return self._child(event, f"process {self._of.topic}", SpanKind.CONSUMER, attributes, links)

    def _child(
        self,
        event: Event,
        name: str,
        kind: SpanKind,
        attributes: Values,
        links: tuple[SpanLink, ...] = (),
    ) -> Span:
        return Span(
            trace_id=self._trace_id,
            span_id=self._id(event.kind, event.group_name, event.at_ms, event.retry_times, event.place, event.evidence),
            parent_id=self._root_id,
            name=name.rstrip(),
            kind=kind,
            start_ms=_start_ms(event),
            end_ms=_end_ms(event),
            attributes=self._attributes({**attributes, "mqtrail.evidence": event.evidence}),
            links=links,
            error=(event.detail or event.outcome) if event.outcome == "FAILED" else None,
        )

    def _attributes(self, more: Values) -> Attributes:
        """Return these attributes and those of the message under the selected names, without empty ones."""
        of = self._of
        values: Values = {
            "messaging.system": "rocketmq",
            "messaging.destination.name": of.topic,
            "messaging.message.id": of.msg_id,
            "messaging.rocketmq.message.keys": of.keys,
            "messaging.rocketmq.message.tag": of.tags,
            "mqtrail.cluster": of.cluster,
            "mqtrail.place": of.place,
            **more,
        }
        named: dict[str, AttributeValue] = {}
        for name, value in values.items():
            if value is None or value == "" or value == ():
                continue
            if self._names is not SpanNames.NEW and name != _NEW_ONLY:
                is_operation = name == "messaging.operation.type"
                named[_OLD_NAMES.get(name, name)] = _OLD_OPERATIONS.get(str(value), value) if is_operation else value
            if self._names is not SpanNames.OLD:
                named[name] = value
        return named

    def _id(self, *parts: object) -> bytes:
        return _digest(8, self._of.cluster, self._of.msg_id, *parts)


def _digest(size: int, *parts: object) -> bytes:
    """Return an id of so many bytes."""
    text = "\0".join("" if part is None else str(part) for part in parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def _context(traceparent: str) -> tuple[SpanLink, ...]:
    """Return the link to the application's span that the message carries."""
    if not traceparent:
        return ()
    _, trace_id, span_id, _ = traceparent.split("-")
    return (SpanLink(bytes.fromhex(trace_id), bytes.fromhex(span_id)),)


def _start_ms(event: Event) -> int:
    return event.at_ms or 0


def _end_ms(event: Event) -> int:
    return _start_ms(event) + max(event.duration_ms or 0, 0)


def _moment(event: Event) -> SpanEvent:
    values: Values = {
        "mqtrail.group": event.group_name,
        "mqtrail.outcome": event.outcome,
        "mqtrail.place": event.place,
        "mqtrail.retry_times": event.retry_times,
        "mqtrail.duration_ms": event.duration_ms,
        "mqtrail.detail": event.detail,
        "mqtrail.evidence": event.evidence,
    }
    attributes = {name: value for name, value in values.items() if value not in (None, "")}
    return SpanEvent(_MOMENTS[event.kind], _start_ms(event), attributes)
