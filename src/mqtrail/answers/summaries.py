"""Values of the answers about a whole lake: verdicts over time, incidents, proofs, dead letters.

The code that queries DuckDB is in other modules, so that the console starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mqtrail.trail import ProofResult
from mqtrail.wire import parse_moment

from .model import Event, LatencyRow, LatencySegment, Scope


@dataclass(frozen=True, slots=True)
class SpanCount:
    """The messages published in [at_ms, at_ms + step_ms) that have a code."""

    at_ms: int
    code: str
    severity: str
    message_count: int


@dataclass(frozen=True, slots=True)
class VerdictHistory:
    """Verdicts by time of publication. A span without a message has no row.

    message_count: all messages of the answer. undated_count: those without any known time, which are in no row.
    """

    scope: Scope
    step_ms: int
    message_count: int
    undated_count: int
    counts: tuple[SpanCount, ...]


class FreshSource(StrEnum):
    """What a lake gets from a cluster."""

    SAMPLES = "samples"  # the samples as a whole
    OFFSETS = "offsets"  # offsets of groups and ranges of queues of a broker
    TRACE = "trace"  # trace topics of a broker
    MESSAGES = "messages"  # of the topics that are read


@dataclass(frozen=True, slots=True)
class KnownSource:
    """One source. known_ms: until when the lake knows it; None: unknown, or never. why: it is not read now, or ''."""

    cluster: str
    source: FreshSource
    broker_name: str
    known_ms: int | None
    why: str


@dataclass(frozen=True, slots=True)
class FreshnessAnswer:
    """The sources of a lake; of each cluster those first that are the furthest behind."""

    scope: Scope
    sources: tuple[KnownSource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRecord:
    """A trace record that did not decode. record_no: in its trace message, -1: the whole message. stored_ms: of it.

    text: the record, at most 2000 characters of it. host: of the client that sent it.
    """

    cluster: str
    broker_name: str
    trace_topic: str
    queue_id: int
    queue_offset: int
    record_no: int
    stored_ms: int | None
    host: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class RejectsAnswer:
    """Trace records that did not decode, the latest first. reject_count: of all in the lake."""

    scope: Scope
    reject_count: int
    rejects: tuple[RejectedRecord, ...]


@dataclass(frozen=True, slots=True)
class LatencySpan:
    """Percentiles of one segment of one topic and group that began in [at_ms, at_ms + step_ms), in ms.

    They are upper bounds of log-histogram buckets (9 % wide).
    """

    at_ms: int
    cluster: str
    topic: str
    group_name: str
    message_count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class LatencyHistory:
    """Latency of one segment by time, topic and group. A span without a known duration has no row."""

    scope: Scope
    segment: LatencySegment
    step_ms: int
    spans: tuple[LatencySpan, ...]


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time [first_ms, end_ms)."""

    first_ms: int
    end_ms: int


def compared_spans(since: str, until: str, against: str, now_ms: int) -> tuple[TimeSpan, TimeSpan]:
    """Return the span that begins at `against`, then [since, until) of the same length.

    Each is a time (UTC) or an age; until: '': now. ValueError: a text is neither, or the span is empty.
    """
    first_ms, end_ms = parse_moment(since, now_ms), parse_moment(until, now_ms) if until else now_ms
    if end_ms <= first_ms:
        raise ValueError(f"found an end {(first_ms - end_ms) / 1000:g} s before the begin, expected one after it")
    begin_ms = parse_moment(against, now_ms)
    return TimeSpan(begin_ms, begin_ms + end_ms - first_ms), TimeSpan(first_ms, end_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyChange:
    """Percentiles of one segment of one topic and group in two spans, in ms.

    before, after: None: no duration is known. The changes are after - before, None if one of them is not known; both
    are upper bounds of buckets that are 9 % wide, so a change of one bucket may be none.
    """

    cluster: str
    topic: str
    group_name: str
    segment: str
    before: LatencyRow | None
    after: LatencyRow | None
    p50_change_ms: float | None
    p99_change_ms: float | None
    max_change_ms: float | None


@dataclass(frozen=True, slots=True)
class LatencyComparison:
    """What changed between the span `before` and the span `after`: by topic and group, then by segment."""

    scope: Scope
    before: TimeSpan
    after: TimeSpan
    changes: tuple[LatencyChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
    """The clock of a host minus that of a broker: in [low_ms, high_ms] in the window that begins at at_ms.

    offset_ms: 0 if the clocks can agree, else the middle; None: not known (trail.clocks_sql). jump_ms: the greatest
    jump; jumped_ms: begin of the window in which it was seen, None without one.
    """

    cluster: str
    host: str
    broker_name: str
    at_ms: int
    state: str
    low_ms: int | None
    high_ms: int | None
    offset_ms: int | None
    error_ms: int | None
    jump_ms: int
    jumped_ms: int | None


@dataclass(frozen=True, slots=True)
class ClocksAnswer:
    """Clocks of hosts: those that jumped first, then the greatest difference first."""

    scope: Scope
    clocks: tuple[HostClock, ...]


class IncidentActKind(StrEnum):
    """What a person does about an incident."""

    ACKNOWLEDGE = "acknowledge"  # somebody works on it
    REOPEN = "reopen"  # takes that back
    MUTE = "mute"  # no alerts about it until a time
    UNMUTE = "unmute"


@dataclass(frozen=True, slots=True)
class IncidentAct:
    """One act. who: a user; without accounts an address. door: page, api or command. until_ms: of a mute, else None.

    incident_id, begin_ms, end_ms: of the incident, as the person saw it.
    """

    at_ms: int
    kind: IncidentActKind
    who: str
    door: str
    why: str
    until_ms: int | None
    incident_id: str
    begin_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class IncidentHandling:
    """What people did about an incident. acknowledged, muted: the act that holds now; None: none does.

    history: the acts on incidents of the same cluster, cause and conditions, also earlier ones, the latest first.
    """

    acknowledged: IncidentAct | None
    muted: IncidentAct | None
    history: tuple[IncidentAct, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownIncident:
    """A row of trail.incidents.INCIDENTS with its lists, its cause in words and what to do.

    handling: None: unknown.
    """

    cluster: str
    incident_id: str
    begin_ms: int
    end_ms: int
    found_ms: int
    cause: str
    explanation: str
    advice: str
    symptoms: tuple[str, ...]
    what: tuple[str, ...]
    codes: tuple[str, ...]
    conditions: tuple[str, ...]
    same_conditions: tuple[str, ...]
    wider_conditions: tuple[str, ...]
    neighbours: tuple[str, ...]
    errors: tuple[str, ...]
    unknown: tuple[str, ...]
    message_count: int
    group_count: int
    topic_count: int
    inside_count: int
    inside_bad_count: int
    outside_count: int
    outside_bad_count: int
    lift: float | None
    certainty: int
    examples: tuple[str, ...]
    good_examples: tuple[str, ...]
    handling: IncidentHandling | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """The parts that are equal in all searches: cluster, cause and conditions; without these, the first symptom."""
        return self.cluster, self.cause, *(sorted(self.conditions) or self.symptoms[:1])


@dataclass(frozen=True, slots=True)
class IncidentsAnswer:
    """The incidents of bad messages in [first_ms, end_ms), the largest first. None: the lake is empty.

    not_kept: why they were not kept in the lake's table; '' if they were, or if that was not wanted.
    """

    scope: Scope
    first_ms: int | None
    end_ms: int | None
    incidents: tuple[ShownIncident, ...]
    not_kept: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A subject that shows a claim: a message, or with group_name a pair of message and group."""

    cluster: str
    msg_id: str
    group_name: str
    topic: str
    keys: str
    place: str
    codes: str
    reasons: str


@dataclass(frozen=True, slots=True)
class ClaimProof:
    """One claim. covered_count: subjects of which it is excluded. uncovered: reason -> subjects not covered for it."""

    name: str
    meaning: str
    outcome: ProofResult
    found_count: int
    covered_count: int
    uncovered: Mapping[str, int]
    examples: tuple[Shown, ...]

    @property
    def uncovered_count(self) -> int:
        """Subjects that neither show the claim nor exclude it."""
        return sum(self.uncovered.values())


@dataclass(frozen=True, slots=True)
class ProofAnswer:
    """The proof for messages of a topic ('': all) that were published in [first_ms, end_ms).

    limits: a sentence for each thing that may hide messages or records; with one, nothing is excluded. words: Jepsen's
    words for sends -> number of messages.
    """

    scope: Scope
    topic: str
    first_ms: int | None
    end_ms: int | None
    message_count: int
    pair_count: int
    words: Mapping[str, int]
    claims: tuple[ClaimProof, ...]
    limits: tuple[str, ...]
    outcome: ProofResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterConditions:
    """The conditions of dead letters, combined by AND. [first_ms, end_ms): time of publication.

    error: as in `DeadLetterError`; '': letters whose error is unknown; None: any. skip: number of the latest matches to
    omit.
    """

    group_name: str = ""
    topic: str = ""
    error: str | None = None
    first_ms: int | None = None
    end_ms: int | None = None
    limit: int = 50
    skip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterError:
    """Dead letters of a group and topic whose last attempts failed alike.

    error: the text of the failure without quoted parts and numbers; '': unknown. first_dead_ms, last_dead_ms: when they
    were stored as dead letters; None: unknown.
    """

    cluster: str
    group_name: str
    topic: str
    error: str
    message_count: int
    first_dead_ms: int | None
    last_dead_ms: int | None
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that a group gave up. cause: as in trail.VERDICTS, '': unknown. attempts: those that are traced.

    delivery_count: deliveries to the group.
    """

    cluster: str
    msg_id: str
    topic: str
    keys: tuple[str, ...]
    tags: str
    group_name: str
    published_ms: int | None
    dead_ms: int | None
    cause: str
    error: str
    delivery_count: int | None
    attempts: tuple[Event, ...]

    @property
    def resend_command(self) -> tuple[str, ...]:
        """The words of the command that sends it to its group again."""
        return ("mqtrail", "message", "resend", self.group_name, "--id", self.msg_id)


@dataclass(frozen=True, slots=True)
class DeadLettersAnswer:
    """matched_count: all dead letters that match. errors: of those that match the conditions other than `error`."""

    scope: Scope
    matched_count: int
    errors: tuple[DeadLetterError, ...]
    letters: tuple[DeadLetter, ...]


class NeighbourRelation(StrEnum):
    """What two messages share."""

    BATCH = "batch"
    TRACE = "trace"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class NeighbourMessage:
    """A message that shares `token` with another one: a key, the id of a batch, or a trace id of OpenTelemetry."""

    relation: NeighbourRelation
    token: str
    cluster: str
    msg_id: str
    topic: str
    tags: str
    send_start_ms: int | None
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NeighboursAnswer:
    """Messages of the lake that belong to a message: of its batch first, then of its trace, then with its keys."""

    scope: Scope
    msg_id: str
    neighbours: tuple[NeighbourMessage, ...]


@dataclass(frozen=True, slots=True)
class FacetValue:
    """A value of a field, and how many of the counted messages have it.

    term: the condition that asks for it; '': none can.
    """

    value: str
    message_count: int
    term: str


@dataclass(frozen=True, slots=True)
class Facet:
    """The most frequent values of a field (query_text.FIELDS). value_count: of all values."""

    field: str
    values: tuple[FacetValue, ...]
    value_count: int


@dataclass(frozen=True, slots=True)
class FacetsAnswer:
    """The messages that match a search, counted by their values. counted_count: the latest ones, which are counted."""

    scope: Scope
    matched_count: int
    counted_count: int
    facets: tuple[Facet, ...]


@dataclass(frozen=True, slots=True)
class SearchNames:
    """Names that a search can have, by field (query_text.FIELDS)."""

    scope: Scope
    names: Mapping[str, tuple[str, ...]]
