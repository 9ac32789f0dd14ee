"""The values of all answers. Each view is one of them; the CLI and the console only render it.

Three results are kept apart: nothing found (NOT_FOUND), a source could not be queried (CANNOT_LOOK), and the message
was found without any trace (NOT_TRACED). Every answer has a `Scope`: the searched range, omissions, and the time it is
of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Any

from mqtrail.wire import MessageQueue, place_text


class Status(StrEnum):
    """How a look-up ended."""

    FOUND = "FOUND"
    NOT_FOUND = "NOT_FOUND"  # everything in the scope was searched
    CANNOT_LOOK = "CANNOT_LOOK"  # a source that may have it could not be queried
    NOT_TRACED = "NOT_TRACED"  # the message is stored, but no trace of it was found


class LatencySegment(StrEnum):
    """A part of a message's way (trail.LATENCY_MINUTE), in time order."""

    SEND = "send"
    TO_STORED = "to_stored"
    DELAY = "delay"
    TO_DELIVERED = "to_delivered"
    RETRY = "retry"
    HANDLER = "handler"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Scope:
    """The range and completeness of an answer.

    sources: what was read ("lake …", "broker …"). first_ms, end_ms: [first, end) of the publish times asked for, of
    the lake's if all were; None if the lake is empty or was not read. omissions: a sentence for each part that was not
    searched or is missing. is_damaged: the answer lacks rows of unreadable lake files, which omissions lists. clusters:
    those of the lake that the answer is about.
    """

    as_of_ms: int
    sources: tuple[str, ...] = ()
    first_ms: int | None = None
    end_ms: int | None = None
    omissions: tuple[str, ...] = ()
    is_damaged: bool = False
    clusters: tuple[str, ...] = ()

    @property
    def is_mixed(self) -> bool:
        """Whether the answer is about several clusters."""
        return len(self.clusters) > 1


@dataclass(frozen=True, slots=True)
class Event:
    """One attempt in a trajectory (trail.EVENT_FIELDS)."""

    at_ms: int | None
    kind: str
    group_name: str
    outcome: str
    duration_ms: int | None
    retry_times: int | None
    place: str
    detail: str
    evidence: str


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The message's verdict in one consumer group (a row of trail.VERDICTS)."""

    group_name: str
    state: str
    codes: tuple[str, ...]
    reasons: tuple[str, ...]
    delivery_count: int
    first_delivered_ms: int | None
    done_ms: int | None
    retry_due_ms: int | None
    dead_cause: str
    detail: str
    client: str
    split: Mapping[str, int | None]  # segment -> ms, in time order; the parts add up to total
    clocks: str = ""  # how the split is by one clock: AGREE, CORRECTED, ASSUMED; '': not corrected, or no such part
    clock_error_ms: int | None = None  # how far the total can be wrong by that; None: not known


@dataclass(frozen=True, slots=True)
class CoverageTime:
    """A time in which trace can be missing (a row of the view `coverage`). client_id: '' if of all clients.

    from_ms: None: not known. to_ms: None: it lasts.
    """

    kind: str
    client_id: str
    from_ms: int | None
    to_ms: int | None
    lost_count: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """An event of a broker (a row of trail.BROKER_EVENTS). evidence: as of Event; of a sample `sample:` and its time.

    broker: the name that all brokers of a group have. broker_id: which one. before_until_ms: until when the master
    before was known to be it. None and '': not known, or not part of such an event.
    """

    at_ms: int | None
    broker: str
    event: str
    broker_id: str
    address: str
    epoch: int | None
    reason: str
    before_id: str
    before_address: str
    before_epoch: int | None
    before_until_ms: int | None
    from_offset: int | None
    to_offset: int | None
    detail: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The path of one message as of as_of_ms (a row of trail.TRAJECTORIES and its verdicts)."""

    cluster: str
    msg_id: str
    topic: str
    keys: tuple[str, ...]
    tags: str
    traceparent: str
    as_of_ms: int
    producer_group: str
    producer_host: str
    place: str
    offset_msg_id: str
    send_start_ms: int | None
    stored_ms: int | None
    visible_ms: int | None
    due_ms: int | None
    send_ms: int | None
    send_codes: tuple[str, ...]
    message_codes: tuple[str, ...]
    knowledge: str
    reasons: tuple[str, ...]
    groups: tuple[GroupVerdict, ...] = ()
    events: tuple[Event, ...] = ()
    coverage: tuple[CoverageTime, ...] = ()  # of one that is not COMPLETE: times that may explain what is missing
    broker_changes: tuple[BrokerChange, ...] = ()  # of the masters of its brokers, during its time


@dataclass(frozen=True, slots=True)
class VerdictThresholds:
    """The thresholds of message_count verdicts. changed: those that differ from the defaults; None: unknown."""

    message_count: int
    changed: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class TraceAnswer:
    """The answer to "where is this message?". why: one sentence for every status except FOUND."""

    asked: str
    status: Status
    scope: Scope
    trajectories: tuple[Trajectory, ...] = ()
    why: str = ""
    judged_with: tuple[VerdictThresholds, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerChanges:
    """Events of brokers, the latest first. matched_count: all in the scope."""

    scope: Scope
    matched_count: int
    changes: tuple[BrokerChange, ...]


def change_line(one: BrokerChange) -> str:
    """Return an event of a broker as one line: which broker, what happened, why, and who was master before."""
    words = [f"{one.broker}:", named_broker(one.address, one.broker_id), CHANGE_TEXTS.get(one.event, one.event.lower())]
    facts = [] if one.epoch is None else [f"epoch {one.epoch}"]
    facts += [one.reason] if one.reason else []
    text = " ".join(word for word in words if word) + (f" ({', '.join(facts)})" if facts else "")
    if one.event == "TRUNCATED" and one.from_offset is not None and one.to_offset is not None:
        text += f": {one.to_offset - one.from_offset} bytes from {one.from_offset}, kept in {one.detail or '?'}"
    before = named_broker(one.before_address, one.before_id)
    if before:
        known = moment_text(one.before_until_ms, "%H:%M:%S.%f", cut=3)
        epoch = "" if one.before_epoch is None else f" (epoch {one.before_epoch})"
        text += f"; before: {before}{epoch}, known as master until {known}"
    return text


def named_broker(address: str, broker_id: str) -> str:
    """Return the address and the id of a broker, as far as they are known; '' for none."""
    return f"{address} [{broker_id}]" if address and broker_id else address or broker_id


CHANGE_TEXTS = {
    "STARTED": "started",
    "STOPPED": "stopped",
    "BECAME_MASTER": "became master",
    "BECAME_SLAVE": "became slave",
    "TRUNCATED": "removed the end of its log",
    "DROPPED": "lost events",
    "MASTER_SEEN": "is master",
    "MASTER_CHANGED": "is the new master",
    "MASTER_GONE": "has no master",
}
"""Event of a broker -> what the line about it says."""

SPLIT_SEGMENTS = ("to_stored", "delay", "to_delivered", "retry", "handler", "total")


def codes_of(text: str | None) -> tuple[str, ...]:
    """Return the codes of a comma-joined column."""
    return tuple(code for code in (text or "").split(",") if code)


def reasons_of(text: str | None) -> tuple[str, ...]:
    """Return the reasons of a ';'-joined column."""
    return tuple(reason for reason in (text or "").split(";") if reason)


def group_of(row: Mapping[str, Any]) -> GroupVerdict:
    """Return the verdict of one group from a row of the verdicts table."""
    return GroupVerdict(
        group_name=row["group_name"],
        state=row["state"],
        codes=codes_of(row["codes"]),
        reasons=reasons_of(row["reasons"]),
        delivery_count=row["delivery_count"] or 0,
        first_delivered_ms=row["first_delivered_ms"],
        done_ms=row["done_ms"],
        retry_due_ms=row["retry_due_ms"],
        dead_cause=row["dead_cause"] or "",
        detail=row["detail"] or "",
        client=row["client"] or "",
        split={segment: row[f"{segment}_ms"] for segment in SPLIT_SEGMENTS},
    )


def trajectory_of(row: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> Trajectory:
    """Return a trajectory from its row and the rows of its groups' verdicts."""
    queue = MessageQueue(row["topic"], row["broker_name"], row["queue_id"]) if row["broker_name"] else None
    return Trajectory(
        cluster=row["cluster"],
        msg_id=row["msg_id"],
        topic=row["topic"] or "",
        keys=tuple((row["keys"] or "").split()),
        tags=row["tags"] or "",
        traceparent=row["traceparent"] or "",
        as_of_ms=row["as_of_ms"],
        producer_group=row["producer_group"] or "",
        producer_host=row["producer_host"] or "",
        place="" if queue is None else place_text(queue, row["queue_offset"]),
        offset_msg_id=row["offset_msg_id"] or "",
        send_start_ms=row["send_start_ms"],
        stored_ms=row["stored_ms"],
        visible_ms=row["visible_ms"],
        due_ms=row["due_ms"],
        send_ms=row["send_ms"],
        send_codes=codes_of(row["send_codes"]),
        message_codes=codes_of(row["message_codes"]),
        knowledge=row["knowledge"],
        reasons=reasons_of(row["reasons"]),
        groups=tuple(group_of(verdict) for verdict in sorted(verdicts, key=lambda one: one["group_name"])),
        events=tuple(Event(**event) for event in row["events"] or ()),
    )


def export_line(trajectory: Trajectory) -> dict[str, Any]:
    """Return the JSON object of one message that `mqtrail export` prints (docs/reference/cli.md)."""
    return {
        "msg_id": trajectory.msg_id,
        "topic": trajectory.topic,
        "keys": list(trajectory.keys),
        "send": list(trajectory.send_codes),
        "message": list(trajectory.message_codes),
        "groups": {group.group_name: list(group.codes) for group in trajectory.groups},
        "knowledge": trajectory.knowledge,
        "reasons": sorted({*trajectory.reasons, *(reason for group in trajectory.groups for reason in group.reasons)}),
        "as_of": trajectory.as_of_ms,
    }


def as_json(value: Any) -> dict[str, Any]:
    """Return a dataclass of this module as plain JSON values."""
    return asdict(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConditions:
    """The conditions of a search, combined by AND. codes: any of them. [first_ms, end_ms): time of publication.

    key: a key, the id of a message, that of its batch, or its trace id of OpenTelemetry. host: address of the producer
    or of a consumer, or its beginning. broker, queue_id: of its first visible copy. reason: the name of one, without
    parameters. handler_ms_min: a handler took, or has been running, at least this long. total_ms_min: a group was done
    with it so long after its send, or later. deliveries_over: a group got it more than this many times. These, codes
    and reason with group_name: in that group. body_size_over: its body has more bytes. skip: number of the latest
    matches to omit.
    """

    key: str = ""
    topic: str = ""
    group_name: str = ""
    codes: tuple[str, ...] = ()
    tag: str = ""
    host: str = ""
    broker: str = ""
    queue_id: int | None = None
    reason: str = ""
    handler_ms_min: int | None = None
    total_ms_min: int | None = None
    deliveries_over: int | None = None
    body_size_over: int | None = None
    first_ms: int | None = None
    end_ms: int | None = None
    limit: int = 50
    skip: int = 0


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The latest matching messages. matched_count: all matches in the scope."""

    scope: Scope
    matched_count: int
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True)
class CodeCount:
    """The number of messages of a cluster with a code, with one example."""

    cluster: str
    code: str
    about: str
    severity: str
    message_count: int
    example: str
    explanation: str


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """Percentiles of one segment for one topic and group, in ms; upper bounds of log-histogram buckets (9 % wide)."""

    cluster: str
    topic: str
    group_name: str
    segment: str
    message_count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class LagRow:
    """The lag of a group on a topic at its last sample.

    lag_count: unread messages in the queues of which that is known, None if it is known of none. lag_ms: age of the
    oldest, None if unknown. unknown_count: queues of unknown lag: the group's offset is past their end.
    """

    cluster: str
    group_name: str
    topic: str
    sampled_ms: int
    lag_count: int | None
    lag_ms: int | None
    queue_count: int
    unknown_count: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """A summary of a lake."""

    scope: Scope
    message_count: int
    judged_with: tuple[VerdictThresholds, ...]  # thresholds used by the pipeline
    codes: tuple[CodeCount, ...]
    latency: tuple[LatencyRow, ...]
    lag: tuple[LagRow, ...]
    worst: tuple[Trajectory, ...]
    rejects: int  # trace records that did not decode
    gaps: tuple[str, ...] = field(default=())
    broker_changes: tuple[BrokerChange, ...] = ()  # the latest changes of masters, stops and removed ends of logs


def moment_text(at_ms: int | None, form: str, *, cut: int = 0, zone: tzinfo = UTC) -> str:
    """Format a time by strftime's form, without the last `cut` characters; '?' if unknown.

    Clients can send any int64 as a time. A value outside the calendar is shown as a number.
    """
    if at_ms is None:
        return "?"
    try:
        text = datetime.fromtimestamp(at_ms / 1000, zone).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
    return text[: len(text) - cut]


def change_text(before_ms: float | None, after_ms: float | None) -> str:
    """Return two durations and their difference, such as `12 ms → 30 ms (+18 ms)`; '?' for one that is not known."""
    words = f"{duration_text(before_ms)} → {duration_text(after_ms)}"
    if before_ms is None or after_ms is None:
        return words
    change_ms = after_ms - before_ms
    sign = "+" if change_ms > 0 else "-" if change_ms < 0 else "±"
    return f"{words} ({sign}{duration_text(abs(change_ms))})"


def duration_text(ms: float | None) -> str:
    """Return a duration in ms, s, min or h, '?' if unknown."""
    if ms is None:
        return "?"
    for limit, unit, size in ((1_000, "ms", 1), (120_000, "s", 1_000), (7_200_000, "min", 60_000)):
        if abs(ms) < limit:
            return f"{number_text(ms / size)} {unit}" if size > 1 else f"{ms:.0f} ms"
    return f"{number_text(ms / 3_600_000)} h"


def number_text(number: float) -> str:
    """Return a number with three digits, or all that it has before the point: `1.23`, `45,678`."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"
