"""Verdict codes as a table: what each is about, what it means, what to do, and the evidence it needs.

When each is owed stands in docs/design/verdicts.md; how it is computed in `messages`, `groups`, `judgement` and
`trajectories`. A code with judged=False is known and not yet computed: reports list it as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

About = Literal["send", "message", "group", "beside", "knowledge"]
Severity = Literal["good", "info", "open", "warning", "error"]
Needs = Literal["trace", "client", "messages", "retry", "offsets", "clients", "subscriptions", "ranges"]
"""trace: Apache's records. client: records only our client writes. messages: business topics read. retry: %RETRY%,
%DLQ% and schedule topics read. offsets, clients, subscriptions, ranges: samples."""


@dataclass(frozen=True, slots=True)
class Code:
    """One verdict code. about: 'group' codes are states (a group has exactly one), 'beside' ones are said beside it."""

    name: str
    about: About
    severity: Severity
    explanation: str
    advice: str
    needs: tuple[Needs, ...]
    judged: bool = True


CODES: dict[str, Code] = {
    code.name: code
    for code in (
        Code("SEND_OK", "send", "good", "An attempt to send was acknowledged with SEND_OK.", "", ("trace",)),
        Code(
            "SEND_SLOW",
            "send",
            "warning",
            "The acknowledgement took a second or more, failed attempts included.",
            "Compare brokers and hosts in the latency split; look at disk flush and at the client's pauses.",
            ("trace",),
        ),
        Code(
            "SEND_DEGRADED",
            "send",
            "warning",
            "Acknowledged although flush or replica were not confirmed in time.",
            "Look at the broker's disk and at its replica; until then a power loss may take the message.",
            ("trace",),
        ),
        Code(
            "SEND_RETRIED",
            "send",
            "warning",
            "One send needed more than one attempt.",
            "Look at the outcome of the failed attempts: which broker, which answer.",
            ("client",),
        ),
        Code(
            "SEND_FAILED",
            "send",
            "error",
            "Every attempt was refused or never left the client; there is no copy.",
            "Send it again: the application was told that it failed.",
            ("client", "messages"),
        ),
        Code(
            "SEND_UNCERTAIN",
            "send",
            "error",
            "No attempt was acknowledged and one may have arrived.",
            "See what was found: a stored copy, or none up to a time. Make consumers idempotent before resending.",
            ("client", "messages"),
        ),
        Code(
            "TX_COMMITTED", "message", "good", "The transaction was committed at the broker.", "", ("messages",), False
        ),
        Code(
            "TX_ROLLED_BACK",
            "message",
            "info",
            "The transaction was rolled back at the broker.",
            "",
            ("messages",),
            False,
        ),
        Code(
            "TX_PENDING",
            "message",
            "open",
            "The half message is neither committed nor rolled back.",
            "Look whether a producer of the group is alive to be asked.",
            ("messages",),
            False,
        ),
        Code(
            "TX_CHECKS_EXHAUSTED",
            "message",
            "error",
            "The broker gave up asking for the transaction's outcome.",
            "Look at the producer's transaction checker.",
            ("messages",),
            False,
        ),
        Code("SCHEDULED", "message", "open", "Not due yet.", "", ("messages", "retry")),
        Code(
            "DELIVERED_LATE",
            "message",
            "warning",
            "It became visible three seconds or more after it was due.",
            "Look at the broker's load and at the backlog of its delay level.",
            ("messages", "retry"),
        ),
        Code("RECALLED", "message", "info", "Recalled before it was due.", "", ("messages", "retry"), False),
        Code(
            "WAITING",
            "group",
            "open",
            "Stored, not handed to a handler; the group has a live client.",
            "Look at the group's lag and at what its handlers are busy with.",
            ("messages", "offsets", "clients"),
        ),
        Code(
            "NO_CONSUMER",
            "group",
            "error",
            "Stored, not handed to a handler; the group has no live client.",
            "Start a consumer of the group.",
            ("messages", "offsets", "clients"),
        ),
        Code(
            "IN_FLIGHT",
            "group",
            "open",
            "Handed to a handler that has not ended yet; its client is alive.",
            "",
            ("trace", "clients"),
        ),
        Code(
            "HUNG",
            "group",
            "error",
            "Handed to a handler long ago that has not ended; its client is alive.",
            "Take a stack dump of the client named; it holds back its queue.",
            ("trace", "clients"),
        ),
        Code(
            "RETRYING",
            "group",
            "warning",
            "A handler failed; the next attempt is to come.",
            "Read the error text of the failure; see when the retry is due.",
            ("trace", "retry"),
        ),
        Code("CONSUMED", "group", "good", "A handler succeeded.", "", ("trace",)),
        Code(
            "DEAD_LETTERED",
            "group",
            "error",
            "It stands in the group's dead-letter queue.",
            "Mend the cause, then put it back with its id.",
            ("retry",),
        ),
        Code("FILTERED", "group", "info", "The group's subscription excludes it.", "", ("messages", "subscriptions")),
        Code(
            "SKIPPED",
            "group",
            "warning",
            "The group's offset was moved past it by hand.",
            "",
            ("offsets", "ranges"),
            False,
        ),
        Code(
            "EXPIRED",
            "group",
            "error",
            "Retention removed it unread.",
            "Raise the retention, or add consumers.",
            ("offsets", "ranges"),
            False,
        ),
        Code(
            "LOST",
            "group",
            "error",
            "Acknowledged, and gone without any of the above.",
            "",
            ("messages", "offsets"),
            False,
        ),
        Code(
            "UNKNOWN",
            "group",
            "warning",
            "The evidence does not tell; its reason does.",
            "See the reason: trace off, records lost, topic not read.",
            (),
        ),
        Code(
            "CONSUMED_SLOW",
            "beside",
            "warning",
            "The handler took a second or more.",
            "Compare with the group's other messages; look at what it calls.",
            ("trace",),
        ),
        Code(
            "CONSUMED_AFTER_RETRY",
            "beside",
            "warning",
            "It succeeded after an earlier attempt failed.",
            "Read the error text of the earlier attempts.",
            ("trace",),
        ),
        Code("RESENT", "beside", "info", "An operator put it back under its id.", "", ("messages", "retry"), False),
        Code(
            "DUPLICATE_DELIVERY",
            "beside",
            "warning",
            "Handed out again although no failed attempt asked for it.",
            "Rebalances and killed consumers do this; handlers must be idempotent.",
            ("trace",),
        ),
        Code(
            "DUPLICATE_PROCESSING",
            "beside",
            "error",
            "More than one handler of the group succeeded.",
            "Check what the handler did twice; make it idempotent by the message's id or key.",
            ("trace",),
        ),
        Code("DUPLICATE_SEND", "message", "warning", "Stored more than once by producers.", "", ("messages",), False),
        Code(
            "OUT_OF_ORDER", "beside", "warning", "A later message of its key was finished first.", "", ("trace",), False
        ),
        Code("COMPLETE", "knowledge", "good", "Every record a history of this shape has is there.", "", ("trace",)),
        Code(
            "INCOMPLETE",
            "knowledge",
            "warning",
            "Something that must have happened has no record.",
            "See the reasons.",
            (),
        ),
    )
}
"""Every code, in the order reports list them. UNKNOWN is also a knowledge: no evidence at all (said by look-ups)."""

STATES = tuple(code.name for code in CODES.values() if code.about == "group")
GROUP_CODES = tuple(code.name for code in CODES.values() if code.about in ("group", "beside") and code.judged)
NOT_YET_JUDGED = tuple(code.name for code in CODES.values() if not code.judged)

TRANSITIONS: dict[str, frozenset[str]] = {
    "CONSUMED": frozenset({"DEAD_LETTERED", "RETRYING", "UNKNOWN"}),
    "DEAD_LETTERED": frozenset({"CONSUMED"}),
    "FILTERED": frozenset({"CONSUMED", "IN_FLIGHT", "HUNG", "RETRYING", "DEAD_LETTERED", "UNKNOWN"}),
}
"""What an ended state may still become as evidence arrives: a said success whose retry copy is read later, a dead
letter put back, a filter that a later subscription widened. Open states and UNKNOWN may become any state."""
