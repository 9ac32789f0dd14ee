"""Finds out what can and cannot be traced on a cluster, and why. Read-only: routes, settings, newest trace messages.

A code can be judged if all the evidence that it needs (trail.CODES) is available. Whether a group traces is known only
from the sample. A group without a record may have had nothing to trace, so it is not reported as untraced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mqtrail import trail
from mqtrail.client import InstanceConfig, PullStatus, RouteNotFound, SyncAdmin
from mqtrail.wire import (
    TRACE_TOPIC,
    ConsumerNotOnline,
    MessageExt,
    MessageQueue,
    MQError,
    Pub,
    PubAttempt,
    SubAfter,
    SubBefore,
    TraceBatch,
    TraceReject,
    business_topics,
    iter_trace,
    open_record,
)

from .model import Scope

PULL_COUNT = 32
GROUPS_MAX = 500  # most groups whose clients are queried
NAMES_MAX = 10  # groups that one sentence names
DOCTOR_FINDINGS: Final[dict[str, str]] = {
    "index_off": "{broker}: messageIndexEnable is false, so look-ups find only messages in the lake",
    "silent_groups": "online groups without a record in the sample: {groups}; check that their consumers enable trace",
    "many_silent_groups": "online groups without a record in the sample: {groups} and {more} more; check that their "
    "consumers enable trace",
    "unnumbered": "no client numbers its trace messages, so records that a client dropped cannot be detected",
    "rejects": "{rejects} records did not decode: {reasons}",
    "read_only": "the pipeline reads the trace topic and the topics given with --topic; it writes nothing to this "
    "cluster",
    "trace_topic_unknown": "topic {topic} could not be queried",
    "trace_topic_missing": "topic {topic} does not exist: set traceTopicEnable=true on a broker, or create it",
    "no_trace_records": "no trace record in the newest {sampled} messages of {topic}: enable trace in clients",
    "no_client_records": "only the mqtrail client writes these records; the sample contains none",
    "brokers_silent": "broker {brokers} did not answer",
    "no_topics": "there is no business topic yet",
}
"""What the doctor advises, and why a code cannot be judged. The console has these sentences in other languages."""


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """One master broker. None or '': unknown. why: the reason if it could not be queried."""

    cluster: str
    name: str
    address: str
    version: str = ""
    index: bool | None = None
    trace_topic_enable: bool | None = None
    delay_levels: str = ""
    flush: str = ""
    has_offsets: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class TraceTopicHealth:
    """The trace topic and a sample of its newest messages.

    records: 'type/fields' (such as Pub/14) -> count in the sample. numbered_clients: clients that number their trace
    messages, which makes lost ones detectable.
    """

    name: str
    exists: bool | None  # None: unknown
    queue_count: int = 0
    message_count: int = 0
    sampled_count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    records: Mapping[str, int] = field(default_factory=dict)
    rejects: int = 0
    reject_reasons: tuple[str, ...] = ()
    numbered_clients: int = 0
    producer_groups: tuple[str, ...] = ()
    consumer_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """A consumer group with settings on the cluster: its online clients, and whether the sample has records of it.

    client_count: None: unknown, as no broker that may have some could be queried.
    """

    name: str
    client_count: int | None
    is_traced: bool


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A sentence of DOCTOR_FINDINGS, by its name, with the values in it."""

    name: str
    values: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the sentence in English."""
        return DOCTOR_FINDINGS[self.name].format_map(self.values)


@dataclass(frozen=True, slots=True)
class CodeHealth:
    """Whether a code can be judged here: 'yes' or 'no'. why: the reason of 'no'; reasons: its parts."""

    code: str
    about: str
    judged: str
    why: str = ""
    reasons: tuple[DoctorFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of `examine`. findings: what `advice` says, by name. why: the reason if no broker could be queried."""

    scope: Scope
    brokers: tuple[BrokerHealth, ...] = ()
    topics: tuple[str, ...] = ()
    trace: TraceTopicHealth = TraceTopicHealth(TRACE_TOPIC, None)
    groups: tuple[GroupTrace, ...] = ()
    codes: tuple[CodeHealth, ...] = ()
    advice: tuple[str, ...] = ()
    why: str = ""
    findings: tuple[DoctorFinding, ...] = ()


def examine(
    namesrv: str,
    now_ms: int,
    *,
    trace_topic: str = TRACE_TOPIC,
    sample_count: int = 1_000,
    instance: InstanceConfig | None = None,
) -> Diagnosis:
    """Examine a cluster. sample_count: number of newest trace messages to read. Problems become omissions."""
    try:
        with SyncAdmin(namesrv, config=instance) as admin:
            return _examine(admin, namesrv, now_ms, trace_topic, sample_count)
    except (MQError, OSError) as error:
        why = f"cluster {namesrv} could not be queried: {error}"
        return Diagnosis(Scope(now_ms, (), omissions=(why,)), why=why)


def _examine(admin: SyncAdmin, namesrv: str, now_ms: int, trace_topic: str, sample_count: int) -> Diagnosis:
    known = admin.cluster()
    masters = {name: one.master for name, one in sorted(known.broker_addr_table.items()) if one.master is not None}
    brokers = tuple(_broker(admin, known.broker_addr_table[name].cluster, name, masters[name]) for name in masters)
    if not brokers:
        why = f"the name server {namesrv} knows no master broker; check that one is registered there"
        return Diagnosis(Scope(now_ms, (), omissions=(why,)), why=why)
    topics = tuple(business_topics(admin.topics(), known.cluster_addr_table, known.broker_addr_table))
    omissions = [f"broker {broker.name}: {broker.why}" for broker in brokers if broker.why]
    trace = _trace_topic(admin, trace_topic, sample_count, omissions)
    groups = _groups(admin, masters, set(trace.consumer_groups), omissions)
    available = _available(brokers, trace, topics)
    scope = Scope(
        now_ms,
        (
            f"cluster {', '.join(sorted(known.cluster_addr_table))} by {namesrv}",
            f"{trace.sampled_count} trace messages",
        ),
        trace.first_ms,
        None if trace.last_ms is None else trace.last_ms + 1,
        tuple(omissions),
    )
    codes = tuple(_code(code, available) for code in trail.CODES.values())
    findings = tuple(_advice(brokers, trace, groups))
    return Diagnosis(scope, brokers, topics, trace, groups, codes, tuple(map(str, findings)), findings=findings)


def _broker(admin: SyncAdmin, cluster: str, name: str, address: str) -> BrokerHealth:
    found = BrokerHealth(cluster, name, address)
    try:
        found = replace(found, version=admin.runtime_info(address).get("brokerVersionDesc", ""))
        settings = admin.broker_config(address)
        found = replace(
            found,
            index=_switch(settings, "messageIndexEnable"),
            trace_topic_enable=_switch(settings, "traceTopicEnable"),
            delay_levels=settings.get("messageDelayLevel", ""),
            flush=settings.get("flushDiskType", ""),
        )
        admin.committed_offsets(address)
    except (MQError, OSError) as error:
        return replace(found, why=str(error))
    return replace(found, has_offsets=True)


def _switch(settings: Mapping[str, str], key: str) -> bool | None:
    return None if key not in settings else settings[key].strip().lower() == "true"


def _trace_topic(admin: SyncAdmin, name: str, sample_count: int, omissions: list[str]) -> TraceTopicHealth:
    try:
        queues = admin.queues(name)
    except RouteNotFound:
        return TraceTopicHealth(name, exists=False)
    except MQError as error:
        omissions.append(f"the trace topic could not be queried: {error}")
        return TraceTopicHealth(name, exists=None)
    sample = _TraceSample()
    message_count = 0
    for queue in queues:
        try:
            first, end = max(0, admin.min_offset(queue)), admin.max_offset(queue)
            message_count += max(0, end - first)
            _read(admin, queue, max(first, end - -(-sample_count // len(queues))), end, sample)
        except MQError as error:
            omissions.append(f"trace queue {queue.broker_name}/{queue.queue_id} could not be read: {error}")
    return TraceTopicHealth(
        name,
        exists=True,
        queue_count=len(queues),
        message_count=message_count,
        sampled_count=sample.messages,
        first_ms=sample.first_ms,
        last_ms=sample.last_ms,
        records=dict(sorted(sample.records.items())),
        rejects=sum(sample.reasons.values()),
        reject_reasons=tuple(reason for reason, _ in sample.reasons.most_common(5)),
        numbered_clients=len(sample.clients),
        producer_groups=tuple(sorted(sample.producers)),
        consumer_groups=tuple(sorted(sample.consumers)),
    )


@dataclass(slots=True)
class _TraceSample:
    """Counts of the newest trace messages."""

    messages: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    records: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    clients: set[str] = field(default_factory=set)
    producers: set[str] = field(default_factory=set)
    consumers: set[str] = field(default_factory=set)

    def add(self, message: MessageExt) -> None:
        """Count one trace message."""
        stored_ms = message.store_timestamp_ms
        self.messages += 1
        self.first_ms = stored_ms if self.first_ms is None else min(self.first_ms, stored_ms)
        self.last_ms = stored_ms if self.last_ms is None else max(self.last_ms, stored_ms)
        problem = message.undecodable or trail.oversize_problem(message.body)
        if problem is not None:
            self.reasons[problem] += 1
            return
        pieces = message.body.decode("utf-8", "replace").split("\x02")
        for record_no, record in iter_trace(message.body):
            if isinstance(record, TraceReject):
                self.reasons[record.reason] += 1
                continue
            fields = pieces[record_no].count("\x01") + 1 if record_no < len(pieces) else 0
            self.records[f"{type(record).__name__}/{fields}"] += 1
            if isinstance(record, TraceBatch):
                self.clients.add(record.client_id or "")
            elif isinstance(record, Pub | PubAttempt):
                self.producers.add(record.group_name or "")
            elif isinstance(record, SubBefore | SubAfter) and record.group_name:
                self.consumers.add(record.group_name)


def _read(admin: SyncAdmin, queue: MessageQueue, offset: int, end: int, sample: _TraceSample) -> None:
    while offset < end:
        pulled = admin.pull(queue, offset, min(PULL_COUNT, end - offset))
        if pulled.status is not PullStatus.FOUND or pulled.next_offset <= offset:
            return
        for record in pulled.records:
            sample.add(open_record(record, queue.broker_name))
        offset = pulled.next_offset


def _groups(
    admin: SyncAdmin, masters: Mapping[str, str], traced: set[str], omissions: list[str]
) -> tuple[GroupTrace, ...]:
    """Return the consumer groups of brokers' settings and of the sample, with their online clients."""
    names = set(traced)
    for name, address in masters.items():
        try:
            names |= admin.groups(address).business_groups()
        except MQError as error:
            omissions.append(f"groups of {name} could not be queried: {error}")
    if len(names) > GROUPS_MAX:
        omissions.append(f"only the first {GROUPS_MAX} of {len(names)} groups were queried for their clients")
    found = []
    for group in sorted(names)[:GROUPS_MAX]:
        clients: set[str] = set()
        is_known = True
        for address in masters.values():
            try:
                clients |= {one.client_id for one in admin.consumer_connections(group, address).connection_set}
            except ConsumerNotOnline:
                continue
            except MQError as error:
                is_known = False
                omissions.append(f"clients of {group!r} could not be queried: {error}")
        found.append(GroupTrace(group, len(clients) if clients or is_known else None, group in traced))
    return tuple(found)


def _available(
    brokers: tuple[BrokerHealth, ...], trace: TraceTopicHealth, topics: tuple[str, ...]
) -> dict[str, DoctorFinding | None]:
    """Evidence (trail's needs) -> None if it is available, else why not."""
    types = {name.split("/")[0] for name in trace.records}
    no_trace = None
    if trace.exists is None:
        no_trace = DoctorFinding("trace_topic_unknown", {"topic": trace.name})
    elif not trace.exists:
        no_trace = DoctorFinding("trace_topic_missing", {"topic": trace.name})
    elif not types & {"Pub", "SubBefore", "SubAfter"}:
        no_trace = DoctorFinding("no_trace_records", {"sampled": f"{trace.sampled_count}", "topic": trace.name})
    no_client = no_trace
    if not no_client and not types & {"PubAttempt", "SubResult", "TraceBatch"}:
        no_client = DoctorFinding("no_client_records")
    unreachable = [broker.name for broker in brokers if not broker.has_offsets]
    is_silent = len(unreachable) == len(brokers)
    sampled = DoctorFinding("brokers_silent", {"brokers": ", ".join(unreachable)}) if is_silent else None
    return {
        "trace": no_trace,
        "client": no_client,
        "messages": None if topics else DoctorFinding("no_topics"),
        "retry": sampled,
        "offsets": sampled,
        "clients": sampled,
        "subscriptions": sampled,
        "ranges": sampled,
    }


def _code(code: trail.Code, available: Mapping[str, DoctorFinding | None]) -> CodeHealth:
    reasons: list[DoctorFinding] = []
    for need in code.needs:
        why = available[need]
        if why is not None and why not in reasons:
            reasons.append(why)
    words = "; ".join(map(str, reasons))
    return CodeHealth(code.name, code.about, "no" if reasons else "yes", words, tuple(reasons))


def _advice(
    brokers: tuple[BrokerHealth, ...], trace: TraceTopicHealth, groups: tuple[GroupTrace, ...]
) -> Iterable[DoctorFinding]:
    for broker in brokers:
        if broker.index is False:
            yield DoctorFinding("index_off", {"broker": broker.name})
    silent = [group.name for group in groups if group.client_count and not group.is_traced]
    if trace.sampled_count and silent:
        names, more = ", ".join(silent[:NAMES_MAX]), len(silent) - NAMES_MAX
        if more > 0:
            yield DoctorFinding("many_silent_groups", {"groups": names, "more": f"{more}"})
        else:
            yield DoctorFinding("silent_groups", {"groups": names})
    if trace.records and not trace.numbered_clients:
        yield DoctorFinding("unnumbered")
    if trace.rejects:
        yield DoctorFinding("rejects", {"rejects": f"{trace.rejects}", "reasons": "; ".join(trace.reject_reasons)})
    yield DoctorFinding("read_only")
