"""The report of a load, and its verdict. Times are milliseconds, or seconds from the begin of the load (`_s`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from .histogram import LatencyHistogram
from .ledger import Unread

LATE_SHARE_MAX: Final = 0.01  # of the messages may be late or not sent; above it the rate was missed
BUSY_CORES: Final = 0.9  # above it this process has no CPU time left: one event loop uses one core


class LoadVerdict(StrEnum):
    """OK: all that was asked is true. FAILED: something is not. UNKNOWN: something could not be found out."""

    OK = "OK"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class LoadReason:
    """Why a verdict is not OK."""

    code: str
    verdict: LoadVerdict
    text: str


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """A distribution in ms. Percentiles are at most 0.8 % too high, count, mean and maximum exact. None: no values."""

    count: int
    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    max_ms: float | None

    @classmethod
    def of(cls, found: LatencyHistogram) -> LatencySummary:
        """Return the summary of a histogram."""
        if not found.count:
            return cls(0, None, None, None, None, None, None)
        values = (found.mean, *map(found.percentile, (0.5, 0.9, 0.99, 0.999)), found.largest)
        return cls(found.count, *(None if value is None else round(value / 1000, 3) for value in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCounts:
    """Messages of the whole run, the warm-up included, but without the probes.

    uncertain: sent without an answer, so perhaps stored. unread: acknowledged, not consumed. unsettled_read: consumed,
    though not acknowledged. repeated: deliveries after the first of a message. damaged: deliveries with another body.
    unsent_read: deliveries of a number that was not sent. foreign: deliveries of messages of others.
    """

    sent: int
    acknowledged: int
    not_stored: int
    uncertain: int
    consumed: int = 0
    unread: int = 0
    unsettled_read: int = 0
    repeated: int = 0
    out_of_order: int = 0
    damaged: int = 0
    unsent_read: int = 0
    foreign: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPace:
    """Messages after the warm-up: how well the schedule was kept.

    due: their time came. late: their send began more than 0.1 s after its time, because `in_flight` sends had no answer
    (by_bound), or because this process was busy (by_generator). not_sent: not begun until the end.
    """

    due: int
    late_by_bound: int
    late_by_generator: int
    not_sent: int
    acknowledged: int
    acknowledged_a_second: float | None
    in_flight_most: int

    @property
    def missed_share(self) -> float:
        """Share of the messages that were late or not sent."""
        return (self.late_by_bound + self.late_by_generator + self.not_sent) / self.due if self.due else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSecond:
    """About one second of the load; it begins at at_s. failed: sends without an acknowledgement, in messages.

    p50 and p99: of what was acknowledged or consumed in it, from the intended time. cores: CPU time by process.
    """

    at_s: float
    seconds: float
    sent: int
    acknowledged: int
    failed: int
    consumed: int
    in_flight: int
    acknowledged_p50_ms: float | None
    acknowledged_p99_ms: float | None
    consumed_p50_ms: float | None
    consumed_p99_ms: float | None
    cores: Mapping[str, float | None]

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened in it."""
        return not (self.sent or self.acknowledged or self.failed or self.consumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadErrors:
    """The sends that failed in one way. example: the text of the first."""

    kind: str
    count: int
    first_s: float
    last_s: float
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What a process used during the load. process_id None: it does not run on this machine, or is not ours to read."""

    name: str
    process_id: int | None
    cores: float | None
    memory_size_most: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCounts:
    """A broker's own counts over the run, of all its topics: messages stored and read. None: it did not say."""

    name: str
    stored: int | None
    read: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """All of one load. topic_growth: messages that the topic's queues got during the load, by their offsets.

    is_read_to_end: whether the group had consumed all that the queues have at the end; None: unknown. verdicts: what
    the trace says, if it was asked.
    """

    run_id: str
    topic: str
    group: str
    begin_ms: int
    wanted: Mapping[str, Any]
    seconds_run: float
    is_ended_early: bool
    pace: LoadPace
    counts: LoadCounts
    latency: Mapping[str, LatencySummary]
    statuses: Mapping[str, int]
    errors: tuple[LoadErrors, ...]
    unread: tuple[Unread, ...]
    repeated: tuple[int, ...]
    topic_growth: int | None
    is_read_to_end: bool | None
    processes: tuple[ProcessUse, ...]
    brokers: tuple[BrokerCounts, ...]
    by_second: tuple[LoadSecond, ...]
    is_consumed: bool
    is_ordered: bool
    verdict: LoadVerdict = LoadVerdict.UNKNOWN
    reasons: tuple[LoadReason, ...] = ()
    verdicts: Mapping[str, Any] | None = field(default=None)


def decided(report: LoadReport, more: tuple[LoadReason, ...] = ()) -> LoadReport:
    """Return the report with its verdict. more: reasons from elsewhere, such as the trace."""
    reasons = (*_sending(report), *(_consuming(report) if report.is_consumed else ()), *more)
    found = {reason.verdict for reason in reasons}
    verdict = next((one for one in (LoadVerdict.FAILED, LoadVerdict.UNKNOWN) if one in found), LoadVerdict.OK)
    return replace(report, verdict=verdict, reasons=reasons)


def _failed(code: str, text: str) -> LoadReason:
    return LoadReason(code, LoadVerdict.FAILED, text)


def _sending(report: LoadReport) -> tuple[LoadReason, ...]:
    counts, pace = report.counts, report.pace
    reasons: list[LoadReason] = []
    if not counts.sent and report.is_ended_early:
        return (LoadReason("NOTHING_SENT", LoadVerdict.UNKNOWN, "the run ended before its first message"),)
    if counts.not_stored or counts.uncertain:
        reasons.append(
            _failed(
                "NOT_ACKNOWLEDGED",
                f"{counts.not_stored + counts.uncertain} of {counts.sent} messages were not acknowledged: "
                f"{counts.not_stored} are not stored, {counts.uncertain} may be",
            )
        )
    if pace.missed_share > LATE_SHARE_MAX:
        reasons.append(_failed("RATE_MISSED", _why_missed(report)))
    return tuple(reasons)


def _why_missed(report: LoadReport) -> str:
    pace, wanted = report.pace, report.wanted
    late = pace.late_by_bound + pace.late_by_generator
    text = f"of {pace.due} messages {late} were late and {pace.not_sent} not sent"
    own = next((one.cores for one in report.processes if one.name == "generator"), None)
    if own is not None and own > BUSY_CORES:
        return (
            f"{text}: this process used {own:.2f} of one core, so the generator itself may be the limit; lower --rate, "
            "raise --batch, or start several"
        )
    if pace.late_by_generator > pace.late_by_bound:
        return f"{text}: the generator was not scheduled in time; this machine is too busy for this rate"
    return (
        f"{text}: {wanted['in_flight']} sends had no answer, so the cluster is too slow for this rate, or --in-flight "
        "is too low"
    )


def _consuming(report: LoadReport) -> tuple[LoadReason, ...]:
    counts = report.counts
    reasons: list[LoadReason] = []
    if counts.unread and report.is_read_to_end:
        text = f"{counts.unread} acknowledged messages were not delivered, and the group has read all queues to the end"
        reasons.append(_failed("LOST", text))
    elif counts.unread:
        reasons.append(
            LoadReason(
                "NOT_CONSUMED",
                LoadVerdict.UNKNOWN,
                f"{counts.unread} acknowledged messages were not consumed when the drain ended"
                + (": the queues still had messages" if report.is_read_to_end is False else "")
                + "; wait longer with --drain, or look at `mqtrail lag`",
            )
        )
    if counts.repeated:
        reasons.append(_failed("DUPLICATES", f"{counts.repeated} deliveries repeated a message"))
    if counts.out_of_order and report.is_ordered:
        reasons.append(_failed("OUT_OF_ORDER", f"{counts.out_of_order} messages came after a later one of their key"))
    if counts.damaged:
        reasons.append(_failed("DAMAGED", f"{counts.damaged} deliveries had another body than was sent"))
    if counts.unsent_read:
        reasons.append(_failed("NEVER_SENT", f"{counts.unsent_read} deliveries have the number of no sent message"))
    return tuple(reasons)
