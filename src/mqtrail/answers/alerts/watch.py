"""Checks all rules, records what changed, and sends it: a channel gets one notification per check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..handling import HandledIncidents
from ..sources import Sources
from .history import Alert, AlertHistory, SubjectPhase
from .measure import AlertPhase, Measured, measure, phase_of
from .notify import PartlyAccepted, send
from .rules import Channel, ChannelFormat, Rule, Rules

Send = Callable[[Channel, Sequence[Alert], str, int], None]


def watch(
    rules: Rules,
    sources: Sources,
    history: AlertHistory,
    now_ms: int,
    deliver: Send = send,
    handled: HandledIncidents | None = None,
) -> list[tuple[str, str]]:
    """Check the rules once; return the channels that failed, with the reason. AlertsFailed.

    handled: knows which incidents are muted.
    """
    history.forget([one.name for one in rules.rules])
    for rule in rules.rules:
        phases, alerts = step(rule, measure(rule, sources, now_ms, handled), history.phases(rule.name), now_ms)
        history.keep(rule.name, phases, alerts, now_ms)
    history.looked(now_ms)
    return [failed for channel in rules.channels if (failed := _deliver(rules, channel, history, now_ms, deliver))]


def step(
    rule: Rule, found: Sequence[Measured], before: dict[str, SubjectPhase], now_ms: int
) -> tuple[dict[str, SubjectPhase], list[Alert]]:
    """Return the new phases of a rule's subjects, and an alert for each that changed.

    A subject that is not among the measured ones is good, unless the rule as a whole cannot tell: then it stays.
    """
    by_subject = {one.subject: one for one in found}
    is_blind = "" in by_subject and by_subject[""].value is None
    phases: dict[str, SubjectPhase] = {}
    alerts: list[Alert] = []
    for subject in sorted(by_subject.keys() | before.keys()):
        known = before.get(subject, SubjectPhase(AlertPhase.GOOD, AlertPhase.GOOD, now_ms))
        one = by_subject.get(subject)
        if one is None and is_blind:
            phases[subject] = known
            continue
        wanted = AlertPhase.GOOD if one is None else phase_of(rule, one, known.last_known)
        if one is not None and one.is_muted and wanted is AlertPhase.BAD:
            wanted = known.phase  # an alert that is open stays open; once the mute is over, one is raised
        since_ms = known.since_ms if wanted is known.next else now_ms
        if wanted is known.phase:
            known = SubjectPhase(wanted, wanted, now_ms, known.last_known)
        elif now_ms - since_ms >= rule.hold_ms:
            value, why, query = (one.value, one.why, one.query) if one is not None else (None, "", "")
            alerts.append(
                Alert(now_ms, rule.name, subject, rule.severity, known.phase, wanted, value, why, query, rule.channels)
            )
            known = SubjectPhase(
                wanted, wanted, now_ms, known.last_known if wanted is AlertPhase.CANNOT_TELL else wanted
            )
        else:
            known = replace(known, next=wanted, since_ms=since_ms)
        if known != SubjectPhase(AlertPhase.GOOD, AlertPhase.GOOD, now_ms):
            phases[subject] = known
    return phases, alerts


def _deliver(
    rules: Rules, channel: Channel, history: AlertHistory, now_ms: int, deliver: Send
) -> tuple[str, str] | None:
    """Send what a channel did not take yet, and note it; return its name and why it failed."""
    waiting = history.unsent(channel.name)
    shown = waiting
    if channel.format is ChannelFormat.ALERTMANAGER:  # it forgets what is not repeated
        users = {rule.name for rule in rules.rules if channel.name in rule.channels}
        numbers = {one.number for one in waiting}
        shown = [*waiting, *(one for one in history.open() if one.rule in users and one.number not in numbers)]
    if not shown:
        return None
    failure, is_taken = "", True
    try:
        deliver(channel, shown, rules.console, now_ms + 4 * rules.interval_ms)
    except Exception as error:  # of any kind of server: the next look tries again
        failure, is_taken = f"{type(error).__name__}: {error}"[:500], isinstance(error, PartlyAccepted)
    history.sent(waiting, channel.name, failure, is_taken=is_taken)
    return (channel.name, failure) if failure else None
