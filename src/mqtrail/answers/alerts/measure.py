"""The value of a rule now. A value that cannot be measured is unknown, never good."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mqtrail.client.admin import Trend, TrendState
from mqtrail.wire import MQError

from ..handling import HandledIncidents, HandlingFailed
from ..model import Scope, SearchConditions, moment_text
from ..query_text import parse_query
from ..sources import Sources
from ..summaries import ShownIncident
from .rules import Measure, Rule

GROWTH_MS: Final = 5_000  # between the two readings of the lag


class AlertPhase(StrEnum):
    """The known values of a subject of a rule."""

    GOOD = "good"
    BAD = "bad"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Measured:
    """One subject of a rule: '' for all, a group, a topic with a group, an incident. value: None: unknown, see why.

    query: the search that shows its messages. is_muted: no alert is raised while it is bad.
    """

    subject: str
    value: float | None
    query: str
    why: str = ""
    is_muted: bool = False


def measure(rule: Rule, sources: Sources, now_ms: int, handled: HandledIncidents | None = None) -> list[Measured]:
    """Return the subjects with their values; a rule that cannot be measured as a whole has the subject '' alone.

    handled: knows which incidents are muted; None: none is.
    """
    query = _query(rule, now_ms)
    try:
        match rule.measure:
            case Measure.COUNT | Measure.SHARE:
                return [_found(rule, sources, now_ms, query)]
            case Measure.FRESHNESS:
                scope = sources.of_lake().search(SearchConditions(limit=1), now_ms).scope
                if scope.first_ms is None:
                    return [Measured("", None, query, "the lake contains no judged message yet")]
                return [Measured("", float(now_ms - scope.as_of_ms), query)]
            case Measure.P99:
                return list(_latency(rule, sources, now_ms))
            case Measure.INCIDENTS:
                return list(_incidents(rule, sources, now_ms, handled))
            case Measure.LAG | Measure.LAG_GROWTH:
                return list(_lag(rule, sources))
    except (MQError, OSError) as error:
        return [Measured("", None, query, str(error))]


def phase_of(rule: Rule, one: Measured, before: AlertPhase) -> AlertPhase:
    """Return what a value says. Between `below` and `above` it says what was known before."""
    if one.value is None:
        return AlertPhase.CANNOT_TELL
    if one.value > rule.above:
        return AlertPhase.BAD
    return AlertPhase.BAD if before is AlertPhase.BAD and one.value > rule.clear else AlertPhase.GOOD


def _found(rule: Rule, sources: Sources, now_ms: int, query: str) -> Measured:
    lake = sources.of_lake()
    wanted = replace(parse_query(rule.search, now_ms), first_ms=now_ms - rule.window_ms, limit=1)
    answer = lake.search(wanted, now_ms)
    value = float(answer.matched_count)
    if rule.measure is Measure.SHARE:
        all_count = lake.search(SearchConditions(first_ms=wanted.first_ms, limit=1), now_ms).matched_count
        value = value / all_count if all_count else 0.0
    why = _doubt(rule, answer.scope, now_ms)
    is_bad = value > rule.above  # what was found is there, whatever else is missing
    return Measured("", value, query) if is_bad or not why else Measured("", None, query, why)


def _latency(rule: Rule, sources: Sources, now_ms: int) -> Iterator[Measured]:
    answer = sources.of_lake().latency(rule.part, now_ms, now_ms - rule.window_ms, None)
    why = _doubt(rule, answer.scope, now_ms)
    if why:
        yield Measured("", None, _query(rule, now_ms), why)
    worst: dict[tuple[str, str], float] = {}
    for span in answer.spans:
        if rule.topic in ("", span.topic) and rule.group in ("", span.group_name):
            key = span.topic, span.group_name
            worst[key] = max(worst.get(key, 0.0), span.p99_ms)
    for (topic, group), value in sorted(worst.items()):
        words = " ".join(
            part for part in (f"topic:{_quoted(topic)}", f"group:{_quoted(group)}" if group else "") if part
        )
        subject = f"{topic} {group}".strip()
        if not why or value > rule.above:
            yield Measured(subject, value, f"{words} from:{_moment(now_ms - rule.window_ms)}")


def _incidents(rule: Rule, sources: Sources, now_ms: int, handled: HandledIncidents | None) -> Iterator[Measured]:
    """Yield each incident of the window. If it is not known which are muted, none is: that reason is in `why`."""
    answer = sources.of_lake().incidents(now_ms, now_ms - rule.window_ms, None, is_kept=False)
    found, unknown = answer.incidents, ""
    try:
        found = found if handled is None else handled.of(found, now_ms)
    except HandlingFailed as error:
        unknown = str(error)
    if why := _doubt(rule, answer.scope, now_ms):
        yield Measured("", None, "", why)
    worst: dict[str, ShownIncident] = {}
    for one in found:
        cluster, cause, *parts = one.identity
        subject = f"{cluster} {cause} {' AND '.join(parts)}"
        if subject not in worst or worst[subject].message_count < one.message_count:
            worst[subject] = one
    for subject, one in sorted(worst.items()):
        if not why or one.message_count > rule.above:
            words = " ".join(f"verdict:{code}" for code in one.codes)
            query = f"{words} from:{_moment(one.begin_ms)} to:{_moment(one.end_ms + 1_000)}".strip()
            is_muted = one.handling is not None and one.handling.muted is not None
            yield Measured(subject, float(one.message_count), query, unknown or one.explanation, is_muted)


def _lag(rule: Rule, sources: Sources) -> Iterator[Measured]:
    is_growth = rule.measure is Measure.LAG_GROWTH
    answer = sources.of_cluster().lag(rule.group or None, GROWTH_MS if is_growth else None)
    if answer.lag.problems:
        yield Measured("", None, "", "; ".join(answer.lag.problems))
    for one in answer.lag.groups:
        value = _growth(one.trend) if is_growth else one.lag_ms
        query = f"group:{_quoted(one.group_name)} verdict:WAITING"
        is_certain = value is not None and (value > rule.above or is_growth or not one.is_unknown)
        why = "" if is_certain else "; ".join(one.why) or "the lag is unknown"
        yield Measured(one.group_name, float(value) if value is not None and is_certain else None, query, why)


def _growth(trend: Trend) -> float | None:
    """Return by how many messages a second the lag grows; None: unknown."""
    if trend.consumed_per_s is None or trend.produced_per_s is None:
        return 0.0 if trend.state is TrendState.EMPTY else None
    return trend.produced_per_s - trend.consumed_per_s


def _doubt(rule: Rule, scope: Scope, now_ms: int) -> str:
    """Return why an answer of the lake proves nothing good; '' if it does."""
    if scope.first_ms is None:
        return "the lake contains no judged message yet"
    if scope.is_damaged:
        return "a part of the lake could not be read"
    if now_ms - scope.as_of_ms > rule.max_age_ms:
        return f"the lake was sampled last at {moment_text(scope.as_of_ms, '%Y-%m-%d %H:%M:%S')} UTC"
    return ""


def _query(rule: Rule, now_ms: int) -> str:
    return f"{rule.search} from:{_moment(now_ms - rule.window_ms)}".strip()


def _moment(at_ms: int) -> str:
    return moment_text(at_ms, "%Y-%m-%dT%H:%M:%S")


def _quoted(name: str) -> str:
    return f'"{name}"' if set(name) & set(' :"') else name
