"""The table of symptoms: codes, or measures, that one cause produces together.

A symptom is seen in units. `send`: one unit per message. `group`: one per message and consumer group. The order is
causal: an earlier symptom explains a later one of the same place and time, as slow handlers explain waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..codes import CODES

UnitKind = Literal["send", "group"]


@dataclass(frozen=True, slots=True)
class Symptom:
    """One symptom.

    measure: SQL over the columns of a unit, for what no code says. has_error: its units have error texts.
    """

    name: str
    unit: UnitKind
    text: str
    codes: tuple[str, ...] = ()
    measure: str = ""
    has_error: bool = False


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "SEND_CLOCK",
        "send",
        "stored before the send began, or after it was acknowledged",
        measure="stored_ms < send_start_ms - {clock_ms} OR stored_ms > acked_ms + {clock_ms}",
    ),
    Symptom(
        "DELIVERY_CLOCK",
        "group",
        "the clock of the consumer differs from that of the broker",
        measure="to_delivered_ms < -{clock_ms} OR clock_low_ms > {clock_ms} OR clock_high_ms < -{clock_ms}",
    ),
    Symptom("SENDS_FAIL", "send", "sends fail", ("SEND_FAILED", "SEND_UNCERTAIN", "SEND_RETRIED"), has_error=True),
    Symptom("SENDS_SLOW", "send", "sends are slow", ("SEND_SLOW", "SEND_DEGRADED")),
    Symptom("TRANSACTIONS_OPEN", "send", "transactions are not ended", ("TX_CHECKS_EXHAUSTED",)),
    Symptom("DELAYS_LATE", "send", "delayed messages are late", ("DELIVERED_LATE",)),
    Symptom("SENT_TWICE", "send", "messages are sent twice", ("DUPLICATE_SEND",)),
    Symptom("NO_CONSUMER", "group", "no consumer is online", ("NO_CONSUMER",)),
    Symptom("GONE_UNREAD", "group", "messages are gone unread", ("LOST", "EXPIRED", "SKIPPED")),
    Symptom(
        "HANDLERS_FAIL",
        "group",
        "handlers fail",
        ("DEAD_LETTERED", "RETRYING", "CONSUMED_AFTER_RETRY"),
        has_error=True,
    ),
    Symptom("HANDLERS_SLOW", "group", "handlers are slow", ("HUNG", "CONSUMED_SLOW")),
    Symptom("DELIVERED_TWICE", "group", "messages are delivered twice", ("DUPLICATE_DELIVERY", "DUPLICATE_PROCESSING")),
    Symptom("DISORDER", "group", "messages are out of order", ("OUT_OF_ORDER",)),
    Symptom(
        "WAITS",
        "group",
        "messages wait long for a handler",
        measure="clock_changed = 0 AND to_delivered_ms - coalesce(clock_offset_ms, 0) >= {wait_ms} "
        "OR state = 'WAITING' AND as_of_ms - visible_ms >= {wait_ms}",
    ),
)
"""Every symptom, in causal order."""

BAD_CODES = tuple(
    code.name for code in CODES.values() if code.severity in ("warning", "error") and code.name != "UNKNOWN"
)
"""The codes of bad messages. UNKNOWN is a lack of evidence, not a fault."""


def symptoms_of(codes: Iterable[str] | None) -> tuple[Symptom, ...]:
    """Return the symptoms of these codes, each with the chosen codes only; None: all symptoms, measures included.

    A code of no symptom becomes a symptom of its own.
    """
    if codes is None:
        return SYMPTOMS
    chosen = tuple(dict.fromkeys(codes))
    found = [
        Symptom(one.name, one.unit, one.text, tuple(code for code in one.codes if code in chosen), "", one.has_error)
        for one in SYMPTOMS
        if set(one.codes) & set(chosen)
    ]
    known = {code for one in found for code in one.codes}
    for code in chosen:
        if code not in known:
            unit: UnitKind = "group" if CODES[code].about in ("group", "beside") else "send"
            found.append(Symptom(code, unit, f"messages are {code}", (code,)))
    return tuple(found)
