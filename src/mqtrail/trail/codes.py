"""The table of verdict codes: subject, severity, explanation, advice, and the evidence that each code needs.

docs/design/verdicts.md says when each code is given; `messages`, `groups`, `judgement` and `trajectories` compute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

About = Literal["send", "message", "group", "beside", "knowledge"]
Severity = Literal["good", "info", "open", "warning", "error"]
Needs = Literal["trace", "client", "messages", "retry", "offsets", "clients", "subscriptions", "ranges"]
"""trace: Apache's records. client: records that only mqtrail's client writes. messages: business topics are read.
retry: %RETRY%, %DLQ% and schedule topics are read. offsets, clients, subscriptions, ranges: samples."""


@dataclass(frozen=True, slots=True)
class Code:
    """One verdict code. about: 'group' codes are states (one per group); 'beside' codes are added to the state."""

    name: str
    about: About
    severity: Severity
    explanation: str
    advice: str
    needs: tuple[Needs, ...]


CODES: dict[str, Code] = {
    code.name: code
    for code in (
        Code("SEND_OK", "send", "good", "An attempt to send was acknowledged with SEND_OK.", "", ("trace",)),
        Code(
            "SEND_SLOW",
            "send",
            "warning",
            "The send took a second or more, failed attempts included.",
            "Compare brokers and hosts in the latency split; check disk flushes and pauses of the client.",
            ("trace",),
        ),
        Code(
            "SEND_DEGRADED",
            "send",
            "warning",
            "Acknowledged, but the flush or the replica was not confirmed in time.",
            "Check the disk and the replica of the broker; a power failure may lose the message.",
            ("trace",),
        ),
        Code(
            "SEND_RETRIED",
            "send",
            "warning",
            "One send needed more than one attempt.",
            "Check the broker and the result of each failed attempt.",
            ("client",),
        ),
        Code(
            "SEND_FAILED",
            "send",
            "error",
            "Every attempt was rejected or never left the client; no copy is stored.",
            "Send it again: the application received an error.",
            ("client", "messages"),
        ),
        Code(
            "SEND_UNCERTAIN",
            "send",
            "error",
            "No attempt was acknowledged, but one may have been stored.",
            "Check whether a stored copy was found. Make consumers idempotent before you resend.",
            ("client", "messages"),
        ),
        Code("TX_COMMITTED", "message", "good", "The transaction was committed at the broker.", "", ("messages",)),
        Code(
            "TX_ROLLED_BACK",
            "message",
            "info",
            "The transaction was rolled back at the broker.",
            "",
            ("messages",),
        ),
        Code(
            "TX_PENDING",
            "message",
            "open",
            "The half message is neither committed nor rolled back.",
            "Check that a producer of the group is online to answer checks.",
            ("messages",),
        ),
        Code(
            "TX_CHECKS_EXHAUSTED",
            "message",
            "error",
            "The broker stopped checking the transaction after the maximum number of checks.",
            "Check the transaction checker of the producer.",
            ("messages",),
        ),
        Code("SCHEDULED", "message", "open", "Not due yet.", "", ("messages", "retry")),
        Code(
            "DELIVERED_LATE",
            "message",
            "warning",
            "It became visible three seconds or more after it was due.",
            "Check the load of the broker and the backlog of its delay level.",
            ("messages", "retry"),
        ),
        Code("RECALLED", "message", "info", "Recalled before it was due.", "", ("messages", "retry")),
        Code(
            "WAITING",
            "group",
            "open",
            "Stored, not delivered to a handler; the group has an online client.",
            "Check the lag of the group and its running handlers.",
            ("messages", "offsets", "clients"),
        ),
        Code(
            "NO_CONSUMER",
            "group",
            "error",
            "Stored, not delivered to a handler; the group has no online client.",
            "Start a consumer of the group.",
            ("messages", "offsets", "clients"),
        ),
        Code(
            "IN_FLIGHT",
            "group",
            "open",
            "Delivered to a handler that is still running; its client is online.",
            "",
            ("trace", "clients"),
        ),
        Code(
            "HUNG",
            "group",
            "error",
            "Delivered to a handler that has been running too long; its client is online.",
            "Take a stack dump of the named client; the message blocks its queue.",
            ("trace", "clients"),
        ),
        Code(
            "RETRYING",
            "group",
            "warning",
            "A handler failed; another attempt will follow.",
            "Read the error of the handler, and when the retry is due.",
            ("trace", "retry"),
        ),
        Code("CONSUMED", "group", "good", "A handler succeeded.", "", ("trace",)),
        Code(
            "DEAD_LETTERED",
            "group",
            "error",
            "It is in the dead-letter queue of the group.",
            "Fix the cause, then resend it with `mqtrail message resend`.",
            ("retry",),
        ),
        Code("FILTERED", "group", "info", "The group's subscription excludes it.", "", ("messages", "subscriptions")),
        Code(
            "SKIPPED",
            "group",
            "warning",
            "The offset of the group was moved past it while the group had no client.",
            "Ask who reset the offset. Reset it back to consume the message.",
            ("trace", "offsets", "clients", "ranges"),
        ),
        Code(
            "EXPIRED",
            "group",
            "error",
            "It was removed before the group read it: by retention, or with its topic.",
            "Raise the retention, or add consumers.",
            ("offsets", "clients", "ranges"),
        ),
        Code(
            "LOST",
            "group",
            "error",
            "Acknowledged, but the broker lost it before the group read it.",
            "Send it again. Check crashes and fail-overs of the broker, its flush mode and its replicas.",
            ("trace", "messages", "offsets", "clients"),
        ),
        Code(
            "UNKNOWN",
            "group",
            "warning",
            "The evidence is not sufficient; see the reason.",
            "Check the reason: trace off, records lost, or topic not read.",
            (),
        ),
        Code(
            "CONSUMED_SLOW",
            "beside",
            "warning",
            "The handler took a second or more.",
            "Compare other messages of the group; check what the handler calls.",
            ("trace",),
        ),
        Code(
            "CONSUMED_AFTER_RETRY",
            "beside",
            "warning",
            "It succeeded after an earlier attempt failed.",
            "Read the errors of the earlier attempts.",
            ("trace",),
        ),
        Code("RESENT", "beside", "info", "An operator put it back under its id.", "", ("messages", "retry")),
        Code(
            "DUPLICATE_DELIVERY",
            "beside",
            "warning",
            "Delivered again although no attempt had failed.",
            "Rebalances and killed consumers cause this; handlers must be idempotent.",
            ("trace",),
        ),
        Code(
            "DUPLICATE_PROCESSING",
            "beside",
            "error",
            "More than one handler of the group succeeded.",
            "Check what the handler did twice; make it idempotent by message id or key.",
            ("trace",),
        ),
        Code(
            "DUPLICATE_SEND",
            "message",
            "warning",
            "Producers stored it more than once.",
            "A retry after a timeout, or a second send: make consumers idempotent by message id or key.",
            ("messages",),
        ),
        Code(
            "OUT_OF_ORDER",
            "beside",
            "warning",
            "The group consumes in order, but finished a later message of its sharding key or queue first.",
            "Look for two clients that hold the queue at once (queue locks), and handlers whose work continues "
            "after they return.",
            ("trace", "messages", "clients"),
        ),
        Code("COMPLETE", "knowledge", "good", "Every expected record is present.", "", ("trace",)),
        Code(
            "INCOMPLETE",
            "knowledge",
            "warning",
            "An event that must have happened has no record.",
            "See the reasons.",
            (),
        ),
    )
}
"""Every code, in the order of reports. UNKNOWN is also a value of knowledge: a look-up found no evidence at all."""

STATES = tuple(code.name for code in CODES.values() if code.about == "group")
GROUP_CODES = tuple(code.name for code in CODES.values() if code.about in ("group", "beside"))

_NOT_HANDED = frozenset({"CONSUMED", "IN_FLIGHT", "HUNG", "RETRYING", "DEAD_LETTERED", "UNKNOWN"})

TRANSITIONS: dict[str, frozenset[str]] = {
    "CONSUMED": frozenset({"DEAD_LETTERED", "RETRYING", "UNKNOWN"}),
    "DEAD_LETTERED": frozenset({"CONSUMED"}),
    "EXPIRED": _NOT_HANDED,
    "LOST": _NOT_HANDED,
    "SKIPPED": _NOT_HANDED | {"WAITING", "NO_CONSUMER"},
    "FILTERED": _NOT_HANDED | {"WAITING", "NO_CONSUMER"},
}
"""Final state → states that later evidence can change it to: a retry copy of a recorded success is read later, a dead
letter is sent again, a later sample has another subscription, a client had a removed or lost message in its memory, an
offset is reset back. Open states and UNKNOWN can change to any state."""
