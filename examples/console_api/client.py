"""A typed client of the console's HTTP API. scripts/api_client.py makes it: do not edit it."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, TypedDict, cast

import httpx


class BrokerAccessAnswer(TypedDict):
    """Users and policies of RocketMQ 5 on the masters. masters: those that answered."""

    scope: Scope
    masters: list[str]
    users: list[BrokerUser]
    policies: list[BrokerPolicy]


class BrokerChange(TypedDict):
    """An event of a broker (a row of trail.BROKER_EVENTS). evidence: as of Event; of a sample `sample:` …"""

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


class BrokerHealth(TypedDict):
    """One master broker. None or '': unknown. why: the reason if it could not be queried."""

    cluster: str
    name: str
    address: str
    version: str
    index: bool | None
    trace_topic_enable: bool | None
    delay_levels: str
    flush: str
    has_offsets: bool
    why: str


class BrokerPolicy(TypedDict):
    """What a subject, such as User:orders, may do. source_ips empty: from every address. brokers: that …"""

    subject: str
    kind: str
    resource: str
    actions: list[str]
    source_ips: list[str]
    decision: str
    brokers: list[str]


class BrokerRow(TypedDict):
    """One broker process. counters: as the broker reports them; None: it did not answer. why: the error …"""

    cluster: str
    name: str
    broker_id: int
    address: str
    version: str
    counters: dict[str, str] | None
    why: str


class BrokerSettingsAnswer(TypedDict):
    """The settings of a master, as it reports them. None: a secret."""

    scope: Scope
    broker: str
    settings: dict[str, str | None]


class BrokerUser(TypedDict):
    """A user of the access control of brokers. kind: Super, Normal. status: enable, disable. brokers: …"""

    name: str
    kind: str
    status: str
    brokers: list[str]


class BrokersAnswer(TypedDict):
    """The brokers that the name servers know."""

    scope: Scope
    brokers: list[BrokerRow]


class ClaimProof(TypedDict):
    """One claim. covered_count: subjects of which it is excluded. uncovered: reason -> subjects not …"""

    name: str
    meaning: str
    outcome: ProofResult
    found_count: int
    covered_count: int
    uncovered: dict[str, int]
    examples: list[Shown]


class ClientAnswer(TypedDict):
    """What a live consumer reports about itself. properties: None: a secret."""

    scope: Scope
    group_name: str
    client_id: str
    broker: str
    properties: dict[str, str | None]
    subscriptions: dict[str, str]
    queues: list[ClientQueue]
    topics: list[ClientTopic]
    stack: str | None
    stack_size: int


class ClientQueue(TypedDict):
    """A queue at a consumer. committed_offset: its next commit. pulled_ms, consumed_ms: last times; None: …"""

    topic: str
    broker_name: str
    queue_id: int
    committed_offset: int
    cached_count: int
    is_locked: bool
    pulled_ms: int | None
    consumed_ms: int | None


class ClientTopic(TypedDict):
    """How a consumer processes a topic: its handler's ms, messages per second, failures of the last hour."""

    topic: str
    handler_ms: float | None
    done_per_s: float
    failed_per_s: float
    failed_count: int


class ClusterLag(TypedDict):
    """The groups of a cluster, the longest lag first. problems: what was asked and not answered, with the …"""

    as_of_ms: int
    groups: list[GroupLag]
    problems: list[str]
    over_ms: int | None
    idle_groups: list[str]
    oldest: list[WaitingMessage]
    looked_at_count: int


class CodeCount(TypedDict):
    """The number of messages of a cluster with a code, with one example."""

    cluster: str
    code: str
    about: str
    severity: str
    message_count: int
    example: str
    explanation: str


class CodeHealth(TypedDict):
    """Whether a code can be judged here: 'yes' or 'no'. why: the reason of 'no'; reasons: its parts."""

    code: str
    about: str
    judged: str
    why: str
    reasons: list[DoctorFinding]


class CoverageTime(TypedDict):
    """A time in which trace can be missing (a row of the view `coverage`). client_id: '' if of all clients."""

    kind: str
    client_id: str
    from_ms: int | None
    to_ms: int | None
    lost_count: int | None
    reason: str


class DeadLetter(TypedDict):
    """A message that a group gave up. cause: as in trail.VERDICTS, '': unknown. attempts: those that are …"""

    cluster: str
    msg_id: str
    topic: str
    keys: list[str]
    tags: str
    group_name: str
    published_ms: int | None
    dead_ms: int | None
    cause: str
    error: str
    delivery_count: int | None
    attempts: list[Event]


class DeadLetterError(TypedDict):
    """Dead letters of a group and topic whose last attempts failed alike."""

    cluster: str
    group_name: str
    topic: str
    error: str
    message_count: int
    first_dead_ms: int | None
    last_dead_ms: int | None
    example: str


class DeadLettersAnswer(TypedDict):
    """matched_count: all dead letters that match. errors: of those that match the conditions other than …"""

    scope: Scope
    matched_count: int
    errors: list[DeadLetterError]
    letters: list[DeadLetter]


class DelayLevelRow(TypedDict):
    """The messages that wait at a delay level of a broker."""

    broker: str
    level: int
    delay_ms: int
    message_count: int


class DelayedAnswer(TypedDict):
    """Messages that wait for their time. messages: those due next, first; read_count: how many were read."""

    scope: Scope
    waiting_count: int | None
    is_lower_bound: bool
    read_count: int
    due: list[DueCount]
    levels: list[DelayLevelRow]
    timers: list[TimerCountRow]
    messages: list[DelayedMessage]


class DelayedMessage(TypedDict):
    """A message that waits for its time. topic '': it names none. level: its delay level; None: it is a …"""

    broker_name: str
    msg_id: str
    topic: str
    keys: str
    stored_ms: int
    due_ms: int
    level: int | None
    is_recalled: bool


class Diagnosis(TypedDict):
    """The result of `examine`. findings: what `advice` says, by name. why: the reason if no broker could …"""

    scope: Scope
    brokers: list[BrokerHealth]
    topics: list[str]
    trace: TraceTopicHealth
    groups: list[GroupTrace]
    codes: list[CodeHealth]
    advice: list[str]
    why: str
    findings: list[DoctorFinding]


class DoctorFinding(TypedDict):
    """A sentence of DOCTOR_FINDINGS, by its name, with the values in it."""

    name: str
    values: dict[str, str]


class DueCount(TypedDict):
    """How many of the messages that were read are due within a time from now, and after the one before it."""

    within_ms: int | None
    message_count: int


class ElectedGroup(TypedDict):
    """A group in controller mode, as its controllers know it. master_id None: it has no master."""

    broker: str
    master_id: int | None
    epoch: int
    in_sync_ids: list[int]
    elected_ms: int | None
    reason: str
    master_before: int | None


class Event(TypedDict):
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


class Facet(TypedDict):
    """The most frequent values of a field (query_text.FIELDS). value_count: of all values."""

    field: str
    values: list[FacetValue]
    value_count: int


class FacetValue(TypedDict):
    """A value of a field, and how many of the counted messages have it."""

    value: str
    message_count: int
    term: str


class FacetsAnswer(TypedDict):
    """The messages that match a search, counted by their values. counted_count: the latest ones, which …"""

    scope: Scope
    matched_count: int
    counted_count: int
    facets: list[Facet]


FreshSource = Literal["samples", "offsets", "trace", "messages"]


class FreshnessAnswer(TypedDict):
    """The sources of a lake; of each cluster those first that are the furthest behind."""

    scope: Scope
    sources: list[KnownSource]


class GroupCopies(TypedDict):
    """How many copies the retry and the dead-letter topic of a group store on the registered brokers."""

    retry_count: int | None
    dead_letter_count: int | None


class GroupLag(TypedDict):
    """What a group still has to read."""

    group_name: str
    member_count: int | None
    topics: LagSum
    retry: LagSum
    delayed_count: int | None
    trend: Trend
    why: list[str]
    queues: list[QueueLag]


class GroupOnBroker(TypedDict):
    """A group's configuration on one broker. retry_count_max: deliveries after the first."""

    broker_name: str
    is_consume_enabled: bool
    retry_count_max: int


class GroupRow(TypedDict):
    """A consumer group with a configuration."""

    name: str
    brokers: list[GroupOnBroker]


class GroupTrace(TypedDict):
    """A consumer group with settings on the cluster: its online clients, and whether the sample has …"""

    name: str
    client_count: int | None
    is_traced: bool


class GroupVerdict(TypedDict):
    """The message's verdict in one consumer group (a row of trail.VERDICTS)."""

    group_name: str
    state: str
    codes: list[str]
    reasons: list[str]
    delivery_count: int
    first_delivered_ms: int | None
    done_ms: int | None
    retry_due_ms: int | None
    dead_cause: str
    detail: str
    client: str
    split: dict[str, int | None]
    clocks: str
    clock_error_ms: int | None


class GroupWait(TypedDict):
    """What a group still has to read in its topics and retry topics together. None: unknown."""

    group_name: str
    lag_count: int | None
    lag_ms: int | None
    is_lower_bound: bool


class GroupsAnswer(TypedDict):
    """The consumer groups of applications."""

    scope: Scope
    groups: list[GroupRow]


class HalfRow(TypedDict):
    """A half message. place: of this copy. checks_left: how often its producer is asked again; None: …"""

    broker: str
    msg_id: str
    topic: str
    producer_group: str
    keys: str
    born_ms: int
    check_count: int
    checks_left: int | None
    place: str
    is_waiting: bool | None


class IncidentAct(TypedDict):
    """One act. who: a user; without accounts an address. door: page, api or command. until_ms: of a mute, …"""

    at_ms: int
    kind: IncidentActKind
    who: str
    door: str
    why: str
    until_ms: int | None
    incident_id: str
    begin_ms: int
    end_ms: int


IncidentActKind = Literal["acknowledge", "reopen", "mute", "unmute"]


class IncidentHandling(TypedDict):
    """What people did about an incident. acknowledged, muted: the act that holds now; None: none does."""

    acknowledged: IncidentAct | None
    muted: IncidentAct | None
    history: list[IncidentAct]


class IncidentsAnswer(TypedDict):
    """The incidents of bad messages in [first_ms, end_ms), the largest first. None: the lake is empty."""

    scope: Scope
    first_ms: int | None
    end_ms: int | None
    incidents: list[ShownIncident]
    not_kept: str


class KnownSource(TypedDict):
    """One source. known_ms: until when the lake knows it; None: unknown, or never. why: it is not read …"""

    cluster: str
    source: FreshSource
    broker_name: str
    known_ms: int | None
    why: str


class LagAnswer(TypedDict):
    """The lag of all groups, or of one. waits: a row for each group of lag, in its order. copies: of one …"""

    scope: Scope
    waits: list[GroupWait]
    lag: ClusterLag
    copies: GroupCopies | None


class LagRow(TypedDict):
    """The lag of a group on a topic at its last sample."""

    cluster: str
    group_name: str
    topic: str
    sampled_ms: int
    lag_count: int | None
    lag_ms: int | None
    queue_count: int
    unknown_count: int


class LagSum(TypedDict):
    """The sum over queues. Without the unknown ones, so with unknown_count > 0 the values are lower bounds."""

    queue_count: int
    lag_count: int | None
    lag_ms: int | None
    unknown_count: int
    expired_count: int


class LatencyChange(TypedDict):
    """Percentiles of one segment of one topic and group in two spans, in ms."""

    cluster: str
    topic: str
    group_name: str
    segment: str
    before: LatencyRow | None
    after: LatencyRow | None
    p50_change_ms: float | None
    p99_change_ms: float | None
    max_change_ms: float | None


class LatencyComparison(TypedDict):
    """What changed between the span `before` and the span `after`: by topic and group, then by segment."""

    scope: Scope
    before: TimeSpan
    after: TimeSpan
    changes: list[LatencyChange]


class LatencyHistory(TypedDict):
    """Latency of one segment by time, topic and group. A span without a known duration has no row."""

    scope: Scope
    segment: LatencySegment
    step_ms: int
    spans: list[LatencySpan]


class LatencyRow(TypedDict):
    """Percentiles of one segment for one topic and group, in ms; upper bounds of log-histogram buckets (9 …"""

    cluster: str
    topic: str
    group_name: str
    segment: str
    message_count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


LatencySegment = Literal["send", "to_stored", "delay", "to_delivered", "retry", "handler", "total"]


class LatencySpan(TypedDict):
    """Percentiles of one segment of one topic and group that began in [at_ms, at_ms + step_ms), in ms."""

    at_ms: int
    cluster: str
    topic: str
    group_name: str
    message_count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Me(TypedDict):
    """Who asks. name: '' without accounts. csrf: what a program that uses a session's cookie sends in …"""

    name: str
    roles: list[str]
    csrf: str


class MemberRow(TypedDict):
    """A live consumer. subscriptions: topic -> expression; None: it did not answer. why: the error then, …"""

    client_id: str
    address: str
    brokers: list[str]
    language: str
    version: str
    subscriptions: dict[str, str] | None
    why: str


class MembersAnswer(TypedDict):
    """The live consumers of a group. differing: topics to which its members do not subscribe alike."""

    scope: Scope
    group_name: str
    members: list[MemberRow]
    differing: list[str]


class MessageContent(TypedDict):
    """A stored message. body_base64: the first bytes of the body; body_size: of all. why: it could not be …"""

    scope: Scope
    msg_id: str
    place: str
    stored_ms: int
    properties: dict[str, str]
    body_base64: str
    body_size: int
    why: str
    is_hidden: bool


class NameServersAnswer(TypedDict):
    """The settings of each name server, by its address. A setting None: a secret. differing: not alike on …"""

    scope: Scope
    settings: dict[str, dict[str, str | None]]
    differing: list[str]


class NeighbourMessage(TypedDict):
    """A message that shares `token` with another one: a key, the id of a batch, or a trace id of …"""

    relation: NeighbourRelation
    token: str
    cluster: str
    msg_id: str
    topic: str
    tags: str
    send_start_ms: int | None
    codes: list[str]


NeighbourRelation = Literal["batch", "trace", "key"]


class NeighboursAnswer(TypedDict):
    """Messages of the lake that belong to a message: of its batch first, then of its trace, then with its …"""

    scope: Scope
    msg_id: str
    neighbours: list[NeighbourMessage]


class PoppedGroupRow(TypedDict):
    """What members of a group hold of a topic. first_popped_ms: the oldest pop; next_visible_ms: the next …"""

    group: str
    topic: str
    message_count: int
    first_popped_ms: int
    next_visible_ms: int


class PoppedRow(TypedDict):
    """A message that a pop handed out. visible_ms: when another member gets it, unless it is acknowledged …"""

    group: str
    topic: str
    place: str
    popped_ms: int
    visible_ms: int


class PopsAnswer(TypedDict):
    """Popped messages that are not acknowledged. messages: those that return next, first."""

    scope: Scope
    brokers: list[PopsRow]
    groups: list[PoppedGroupRow]
    messages: list[PoppedRow]


class PopsRow(TypedDict):
    """The pops on a master. None: unknown. handed_out_count: messages that are not acknowledged."""

    broker: str
    handed_out_count: int | None
    behind_count: int | None
    behind_ms: int | None


class ProblemDetails(TypedDict):
    """Why there is no answer. title: the kind of problem. detail: found, expected, remedy."""

    type: str
    title: str
    status: int
    detail: str


class ProofAnswer(TypedDict):
    """The proof for messages of a topic ('': all) that were published in [first_ms, end_ms)."""

    scope: Scope
    topic: str
    first_ms: int | None
    end_ms: int | None
    message_count: int
    pair_count: int
    words: dict[str, int]
    claims: list[ClaimProof]
    limits: list[str]
    outcome: ProofResult


ProofResult = Literal["FOUND", "NONE", "CANNOT_TELL"]


class QueueLag(TypedDict):
    """What a group still has to read in one queue."""

    topic: str
    broker_name: str
    queue_id: int
    consumer_offset: int | None
    min_offset: int | None
    max_offset: int | None
    next_offset: int | None
    lag_count: int | None
    lag_ms: int | None
    expired_count: int
    why: str
    trend: Trend


class RejectedRecord(TypedDict):
    """A trace record that did not decode. record_no: in its trace message, -1: the whole message. …"""

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


class RejectsAnswer(TypedDict):
    """Trace records that did not decode, the latest first. reject_count: of all in the lake."""

    scope: Scope
    reject_count: int
    rejects: list[RejectedRecord]


class ReplicaRow(TypedDict):
    """A broker's part in its group. The fields are those of client.ReplicaInfo. why: the broker's error, …"""

    broker: str
    broker_id: int
    address: str
    is_master: bool | None
    end_offset: int | None
    lag_bytes: int | None
    lag_ms: int | None
    epoch: int | None
    is_in_sync: bool | None
    why: str


class ReplicationAnswer(TypedDict):
    """How brokers follow their masters. groups: those in controller mode."""

    scope: Scope
    replicas: list[ReplicaRow]
    groups: list[ElectedGroup]


class Report(TypedDict):
    """A summary of a lake."""

    scope: Scope
    message_count: int
    judged_with: list[VerdictThresholds]
    codes: list[CodeCount]
    latency: list[LatencyRow]
    lag: list[LagRow]
    worst: list[Trajectory]
    rejects: int
    gaps: list[str]
    broker_changes: list[BrokerChange]


class Scope(TypedDict):
    """The range and completeness of an answer."""

    as_of_ms: int
    sources: list[str]
    first_ms: int | None
    end_ms: int | None
    omissions: list[str]
    is_damaged: bool
    clusters: list[str]


class SearchAnswer(TypedDict):
    """The latest matching messages. matched_count: all matches in the scope."""

    scope: Scope
    matched_count: int
    trajectories: list[Trajectory]


class SearchNames(TypedDict):
    """Names that a search can have, by field (query_text.FIELDS)."""

    scope: Scope
    names: dict[str, list[str]]


class Shown(TypedDict):
    """A subject that shows a claim: a message, or with group_name a pair of message and group."""

    cluster: str
    msg_id: str
    group_name: str
    topic: str
    keys: str
    place: str
    codes: str
    reasons: str


class ShownIncident(TypedDict):
    """A row of trail.incidents.INCIDENTS with its lists, its cause in words and what to do."""

    cluster: str
    incident_id: str
    begin_ms: int
    end_ms: int
    found_ms: int
    cause: str
    explanation: str
    advice: str
    symptoms: list[str]
    what: list[str]
    codes: list[str]
    conditions: list[str]
    same_conditions: list[str]
    wider_conditions: list[str]
    neighbours: list[str]
    errors: list[str]
    unknown: list[str]
    message_count: int
    group_count: int
    topic_count: int
    inside_count: int
    inside_bad_count: int
    outside_count: int
    outside_bad_count: int
    lift: float | None
    certainty: int
    examples: list[str]
    good_examples: list[str]
    handling: IncidentHandling | None


class SpanCount(TypedDict):
    """The messages published in [at_ms, at_ms + step_ms) that have a code."""

    at_ms: int
    code: str
    severity: str
    message_count: int


Status = Literal["FOUND", "NOT_FOUND", "CANNOT_LOOK", "NOT_TRACED"]


class TimeSpan(TypedDict):
    """The time [first_ms, end_ms)."""

    first_ms: int
    end_ms: int


class TimerCountRow(TypedDict):
    """The timers of a topic on a broker, as the broker counts them."""

    broker: str
    topic: str
    message_count: int


class TopicOnBroker(TypedDict):
    """A topic's configuration on one broker. perm: bits 4 read, 2 write."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int


class TopicRow(TypedDict):
    """A topic. is_business: an application's, neither of the system nor a retry or dead-letter topic."""

    name: str
    is_business: bool
    brokers: list[TopicOnBroker]


class TopicsAnswer(TypedDict):
    """The topics of all masters."""

    scope: Scope
    topics: list[TopicRow]


class TraceAnswer(TypedDict):
    """The answer to "where is this message?". why: one sentence for every status except FOUND."""

    asked: str
    status: Status
    scope: Scope
    trajectories: list[Trajectory]
    why: str
    judged_with: list[VerdictThresholds]


class TraceTopicHealth(TypedDict):
    """The trace topic and a sample of its newest messages."""

    name: str
    exists: bool | None
    queue_count: int
    message_count: int
    sampled_count: int
    first_ms: int | None
    last_ms: int | None
    records: dict[str, int]
    rejects: int
    reject_reasons: list[str]
    numbered_clients: int
    producer_groups: list[str]
    consumer_groups: list[str]


class Trajectory(TypedDict):
    """The path of one message as of as_of_ms (a row of trail.TRAJECTORIES and its verdicts)."""

    cluster: str
    msg_id: str
    topic: str
    keys: list[str]
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
    send_codes: list[str]
    message_codes: list[str]
    knowledge: str
    reasons: list[str]
    groups: list[GroupVerdict]
    events: list[Event]
    coverage: list[CoverageTime]
    broker_changes: list[BrokerChange]


class TransactionsAnswer(TypedDict):
    """Half messages without an end: the oldest first. given_up: those that brokers gave up, the latest …"""

    scope: Scope
    brokers: list[TransactionsRow]
    open: list[HalfRow]
    given_up: list[HalfRow]


class TransactionsRow(TypedDict):
    """The transactions of a master. None: unknown. oldest_ms: when its oldest open half message was born."""

    broker: str
    open_count: int | None
    oldest_ms: int | None
    given_up_count: int | None
    check_count_max: int | None
    check_interval_ms: int | None
    timeout_ms: int | None
    why: str


class Trend(TypedDict):
    """Messages per second between two readings. drain_s: seconds until nothing waits at these rates; …"""

    state: TrendState
    consumed_per_s: float | None
    produced_per_s: float | None
    drain_s: float | None


TrendState = Literal["UNKNOWN", "EMPTY", "DRAINS", "GROWS", "STEADY"]


class VerdictHistory(TypedDict):
    """Verdicts by time of publication. A span without a message has no row."""

    scope: Scope
    step_ms: int
    message_count: int
    undated_count: int
    counts: list[SpanCount]


class VerdictThresholds(TypedDict):
    """The thresholds of message_count verdicts. changed: those that differ from the defaults; None: …"""

    message_count: int
    changed: dict[str, int] | None


class WaitingMessage(TypedDict):
    """A message that a group has not read. is_accepted: by its tag; None: the filter is unknown, or not …"""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str
    keys: str
    store_ms: int
    lag_ms: int
    is_accepted: bool | None


class ApiError(Exception):
    """The API refused a request. status: of HTTP. detail: what was found and what was expected."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"HTTP {status}: {detail}")
        self.status = status
        self.detail = detail


class ConsoleApi:
    """The questions of the API. Each raises ApiError, and httpx.HTTPError if the console does not answer."""

    def __init__(self, url: str, token: str = "", timeout_s: float = 60.0) -> None:
        """url: of the console, with /c/NAME for one of several clusters. token: an API token, if it has accounts."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url.rstrip("/") + "/api/v1", headers=headers, timeout=timeout_s)

    def __enter__(self) -> ConsoleApi:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def _get(self, path: str, parameters: dict[str, object] | None = None) -> Any:
        asked = {name: value for name, value in (parameters or {}).items() if value is not None}
        answer = self._http.get(path, params=cast(Any, asked))
        if answer.status_code != 200:
            is_problem = answer.headers.get("content-type", "").startswith("application/problem+json")
            raise ApiError(answer.status_code, answer.json()["detail"] if is_problem else answer.text[:500])
        return answer.json()

    def trace(self, *, id: str, cluster: str = "") -> TraceAnswer:
        """Find one message by id or key, in lake and cluster."""
        return cast("TraceAnswer", self._get("/trace", {"id": id, "cluster": cluster}))

    def neighbours(self, *, id: str, cluster: str = "") -> NeighboursAnswer:
        """Messages of the same batch, the same trace, or with the same keys."""
        return cast("NeighboursAnswer", self._get("/neighbours", {"id": id, "cluster": cluster}))

    def search(self, *, q: str = "", cluster: str = "", limit: int = 50, skip: int = 0) -> SearchAnswer:
        """Find messages of the lake, the latest first."""
        return cast("SearchAnswer", self._get("/search", {"q": q, "cluster": cluster, "limit": limit, "skip": skip}))

    def search_facets(self, *, q: str = "", values: int = 10, cluster: str = "") -> FacetsAnswer:
        """Count the messages that match a search by topic, verdict and other fields."""
        return cast("FacetsAnswer", self._get("/search/facets", {"q": q, "values": values, "cluster": cluster}))

    def search_names(self, *, topic: str = "", cluster: str = "") -> SearchNames:
        """Topics, groups and other names to complete a search with."""
        return cast("SearchNames", self._get("/search/names", {"topic": topic, "cluster": cluster}))

    def report(self, *, from_: str = "", to: str = "", worst: int = 3, cluster: str = "") -> Report:
        """Verdicts, latency, lag and the worst messages of the lake."""
        return cast("Report", self._get("/report", {"from": from_, "to": to, "worst": worst, "cluster": cluster}))

    def verdicts(self, *, from_: str = "", to: str = "", cluster: str = "") -> VerdictHistory:
        """How many messages have each verdict, by time of publication."""
        return cast("VerdictHistory", self._get("/verdicts", {"from": from_, "to": to, "cluster": cluster}))

    def freshness(self, *, cluster: str = "") -> FreshnessAnswer:
        """Until when the lake knows each of its sources."""
        return cast("FreshnessAnswer", self._get("/freshness", {"cluster": cluster}))

    def latency(
        self, *, part: LatencySegment = "handler", from_: str = "", to: str = "", cluster: str = ""
    ) -> LatencyHistory:
        """How long a part of the way takes, by time, topic and group."""
        return cast(
            "LatencyHistory", self._get("/latency", {"part": part, "from": from_, "to": to, "cluster": cluster})
        )

    def latency_compare(
        self, *, from_: str, against: str, to: str = "", part: LatencySegment | None = None, cluster: str = ""
    ) -> LatencyComparison:
        """How long each stage takes in a span, beside an earlier one of its length."""
        return cast(
            "LatencyComparison",
            self._get(
                "/latency/compare", {"from": from_, "against": against, "to": to, "part": part, "cluster": cluster}
            ),
        )

    def incidents(self, *, from_: str = "", to: str = "", cluster: str = "") -> IncidentsAnswer:
        """Bad messages grouped by cause; by default of the last day of the lake."""
        return cast("IncidentsAnswer", self._get("/incidents", {"from": from_, "to": to, "cluster": cluster}))

    def dead_letters(
        self,
        *,
        group: str = "",
        topic: str = "",
        error: str | None = None,
        from_: str = "",
        to: str = "",
        cluster: str = "",
        limit: int = 50,
        skip: int = 0,
    ) -> DeadLettersAnswer:
        """Dead letters of the lake, the error of each attempt, and equal errors counted."""
        return cast(
            "DeadLettersAnswer",
            self._get(
                "/dead-letters",
                {
                    "group": group,
                    "topic": topic,
                    "error": error,
                    "from": from_,
                    "to": to,
                    "cluster": cluster,
                    "limit": limit,
                    "skip": skip,
                },
            ),
        )

    def rejects(self, *, cluster: str = "", limit: int = 50, skip: int = 0) -> RejectsAnswer:
        """Trace records that did not decode, with their text, the latest first."""
        return cast("RejectsAnswer", self._get("/rejects", {"cluster": cluster, "limit": limit, "skip": skip}))

    def prove(self, *, topic: str = "", from_: str = "", to: str = "", cluster: str = "") -> ProofAnswer:
        """What the lake proves about loss, duplicates and order."""
        return cast("ProofAnswer", self._get("/prove", {"topic": topic, "from": from_, "to": to, "cluster": cluster}))

    def lag(self, *, group: str = "", over: str = "") -> LagAnswer:
        """What groups still have to read, the longest wait first."""
        return cast("LagAnswer", self._get("/lag", {"group": group, "over": over}))

    def brokers(
        self,
    ) -> BrokersAnswer:
        """Brokers with versions and counters."""
        return cast("BrokersAnswer", self._get("/brokers"))

    def settings(self, *, broker: str) -> BrokerSettingsAnswer:
        """The settings of a master, without secrets."""
        return cast("BrokerSettingsAnswer", self._get("/settings", {"broker": broker}))

    def replication(
        self,
    ) -> ReplicationAnswer:
        """How brokers follow their masters, and the last elections."""
        return cast("ReplicationAnswer", self._get("/replication"))

    def name_servers(
        self,
    ) -> NameServersAnswer:
        """The settings of each name server, without secrets."""
        return cast("NameServersAnswer", self._get("/name-servers"))

    def broker_access(
        self,
    ) -> BrokerAccessAnswer:
        """Users and policies of the brokers, without passwords."""
        return cast("BrokerAccessAnswer", self._get("/broker-access"))

    def topics(
        self,
    ) -> TopicsAnswer:
        """Topics with their queues on each master."""
        return cast("TopicsAnswer", self._get("/topics"))

    def groups(
        self,
    ) -> GroupsAnswer:
        """Consumer groups with a configuration."""
        return cast("GroupsAnswer", self._get("/groups"))

    def client(self, *, group: str, id: str, stack: bool = False) -> ClientAnswer:
        """What a live consumer reports: queues, rates, subscriptions, stacks of its threads."""
        return cast("ClientAnswer", self._get("/client", {"group": group, "id": id, "stack": stack}))

    def members(self, *, group: str) -> MembersAnswer:
        """The live consumers of a group and their subscriptions."""
        return cast("MembersAnswer", self._get("/members", {"group": group}))

    def delayed(self, *, limit: int = 100) -> DelayedAnswer:
        """Messages that wait for their time: at delay levels, and in timers."""
        return cast("DelayedAnswer", self._get("/delayed", {"limit": limit}))

    def transactions(self, *, limit: int = 100) -> TransactionsAnswer:
        """Half messages that wait for the end of their transaction."""
        return cast("TransactionsAnswer", self._get("/transactions", {"limit": limit}))

    def pops(self, *, limit: int = 100) -> PopsAnswer:
        """Popped messages that are not acknowledged."""
        return cast("PopsAnswer", self._get("/pops", {"limit": limit}))

    def message(self, *, place: str, size: int = 65536) -> MessageContent:
        """A stored message: its properties and the first bytes of its body."""
        return cast("MessageContent", self._get("/message", {"place": place, "size": size}))

    def doctor(self, *, sample: int = 1000) -> Diagnosis:
        """What can be traced on the cluster, and why not."""
        return cast("Diagnosis", self._get("/doctor", {"sample": sample}))

    def me(
        self,
    ) -> Me:
        """The user who sends the request, and its roles."""
        return cast("Me", self._get("/me"))
