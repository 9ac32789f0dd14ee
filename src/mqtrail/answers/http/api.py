"""The operations of the API. Each asks `answers` once, in a worker, and returns its value."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Query
from fastapi.responses import StreamingResponse

from mqtrail import __version__
from mqtrail.clock import now_ms
from mqtrail.gateway import (
    HOSTS,
    RESPONSES,
    DescribedApi,
    LocalGuard,
    Problem,
    VisibleJson,
    add_problems,
    described,
)
from mqtrail.wire import MQError, parse_duration, visible_json

from ..access import AccessDesk, KnownClusters, Right, SeenSources
from ..alerts import AlertsAnswer, read_alerts
from ..cluster import (
    BrokersAnswer,
    BrokerSettingsAnswer,
    ClientAnswer,
    GroupsAnswer,
    LagAnswer,
    MembersAnswer,
    TopicsAnswer,
)
from ..doctor import Diagnosis
from ..handling import HandledIncidents
from ..model import LatencySegment, Report, Scope, SearchAnswer, TraceAnswer
from ..operations import BrokerAccessAnswer, NameServersAnswer, ReplicationAnswer
from ..query_text import TEXT_SIZE_MAX, parse_query
from ..sources import Sources
from ..summaries import (
    DeadLetterConditions,
    DeadLettersAnswer,
    FacetsAnswer,
    FreshnessAnswer,
    IncidentsAnswer,
    LatencyComparison,
    LatencyHistory,
    NeighboursAnswer,
    ProofAnswer,
    RejectsAnswer,
    SearchNames,
    VerdictHistory,
    compared_spans,
)
from ..waiting import DelayedAnswer, PopsAnswer, TransactionsAnswer
from .changes import Changing, add_changes
from .door import API_PREFIX, AccessDoor, Seen, add_me
from .handling import add_acts
from .ranges import NAME_SIZE_MAX, Cluster, Since, Until, parsed, range_of
from .workers import Workers

LIMIT_MAX: Final = 1_000  # messages of one page
SKIP_MAX: Final = 100_000
FACET_VALUES_MAX: Final = 100
BODY_SIZE_MAX: Final = 4 << 20  # bytes of a message's body
EXPORT_LINES: Final = 1_000  # lines that are sent at once

Group = Annotated[str, Query(min_length=1, max_length=NAME_SIZE_MAX, description="Name of a consumer group.")]

Conditions = Annotated[
    str, Query(max_length=TEXT_SIZE_MAX, description="Conditions, such as `topic:orders verdict:HUNG handler>2s`.")
]
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Most messages of this answer.")]
Skip = Annotated[int, Query(ge=0, le=SKIP_MAX, description="Matches to leave out, the latest first.")]


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """Which part of the matches to return."""

    limit: Limit = 50
    skip: Skip = 0


Paging = Annotated[AnswerPart, Depends()]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContent:
    """A stored message. body_base64: the first bytes of the body; body_size: of all. why: it could not be decoded.

    is_hidden: the asker may not see the body.
    """

    scope: Scope
    msg_id: str
    place: str
    stored_ms: int
    properties: Mapping[str, str]
    body_base64: str
    body_size: int
    why: str
    is_hidden: bool


def make_api(
    sources: Sources,
    workers: Workers | None = None,
    changing: Changing | None = None,
    access: AccessDesk | None = None,
    alerts: Path | None = None,
    handled: HandledIncidents | None = None,
) -> FastAPI:
    """Return the application: the operations below API_PREFIX and /openapi.json, guarded.

    changing: adds the operations that change the cluster. access: the accounts; None: anyone who can connect may ask.
    alerts: the file of `mqtrail alerts run`; None: there is no operation for it. handled: the acknowledged and muted
    incidents; None: unknown, and there is no operation for them.
    """
    workers = workers or Workers()

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()
        sources.close()
        if changing is not None:
            changing.close()
        if access is not None:
            access.close()

    about = "Answers of mqtrail, read-only." if changing is None else "Answers of mqtrail, and changes to its cluster."
    app = DescribedApi(title="mqtrail", version=__version__, description=about, lifespan=life)
    app.state.seen = SeenSources(sources, KnownClusters(sources))
    responses = RESPONSES if access is None else RESPONSES | described(HTTPStatus.UNAUTHORIZED)
    router = APIRouter(prefix=API_PREFIX, responses=responses, default_response_class=VisibleJson)
    _add_look_ups(router, workers)
    _add_facets(router, workers)
    _add_summaries(router, workers)
    _add_comparison(router, workers)
    _add_findings(router, workers, handled)
    _add_cluster_operations(router, workers)
    _add_waiting(router, workers)
    _add_details(router, workers)
    add_me(router)
    if alerts is not None:
        _add_alerts(router, workers, alerts)
    if handled is not None:
        add_acts(router, workers, handled)
    if changing is not None:
        add_changes(router, changing)
    app.include_router(router)
    add_problems(app)
    app.add_middleware(AccessDoor, access=access)
    app.add_middleware(LocalGuard, hosts=HOSTS if access is None else HOSTS | access.config.hosts)
    return app


def _add_look_ups(router: APIRouter, workers: Workers) -> None:
    @router.get("/trace", summary="Find one message by id or key, in lake and cluster")
    async def trace(
        sources: Seen,
        asked: Annotated[str, Query(alias="id", min_length=1, max_length=1_000, description="Message id or key.")],
        cluster: Cluster = "",
    ) -> TraceAnswer:
        if not asked.strip():
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "id: found blanks, expected a message's id or a key")
        return await workers.run(lambda: sources.answers(cluster).trace(asked.strip(), now_ms()))

    @router.get("/neighbours", summary="Messages of the same batch, the same trace, or with the same keys")
    async def neighbours(
        sources: Seen,
        msg_id: Annotated[str, Query(alias="id", min_length=1, max_length=1_000, description="Message id.")],
        cluster: Cluster = "",
    ) -> NeighboursAnswer:
        return await workers.run(lambda: sources.of_lake(cluster).neighbours(msg_id, now_ms()))

    @router.get("/search", summary="Find messages of the lake, the latest first")
    async def search(
        sources: Seen,
        part: Paging,
        q: Conditions = "",
        cluster: Cluster = "",
    ) -> SearchAnswer:
        wanted = replace(parsed(lambda: parse_query(q, now_ms())), limit=part.limit, skip=part.skip)
        return await workers.run(lambda: sources.of_lake(cluster).search(wanted, now_ms()))

    @router.get(
        "/export",
        summary="The verdicts of every message, one JSON object a line",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/jsonl": {"schema": {"type": "string"}}}}},
    )
    async def export(sources: Seen, since: Since = "", until: Until = "", cluster: Cluster = "") -> StreamingResponse:
        first_ms, end_ms = range_of(since, until)
        lines = await workers.run(lambda: sources.of_lake(cluster).export(now_ms(), first_ms, end_ms))
        first = await workers.run(lambda: _some(lines))
        return StreamingResponse(_stream(lines, first, workers), media_type="application/jsonl")


def _add_facets(router: APIRouter, workers: Workers) -> None:
    @router.get("/search/facets", summary="Count the messages that match a search by topic, verdict and other fields")
    async def facets(
        sources: Seen,
        q: Conditions = "",
        values: Annotated[int, Query(ge=1, le=FACET_VALUES_MAX, description="Most values of a field.")] = 10,
        cluster: Cluster = "",
    ) -> FacetsAnswer:
        wanted = parsed(lambda: parse_query(q, now_ms()))
        return await workers.run(lambda: sources.of_lake(cluster).facets(wanted, now_ms(), values_max=values))

    @router.get("/search/names", summary="Topics, groups and other names to complete a search with")
    async def names(
        sources: Seen,
        topic: Annotated[
            str, Query(max_length=NAME_SIZE_MAX, description="Only names in messages of this topic. Default: all.")
        ] = "",
        cluster: Cluster = "",
    ) -> SearchNames:
        return await workers.run(lambda: sources.of_lake(cluster).search_names(now_ms(), topic))


def _add_summaries(router: APIRouter, workers: Workers) -> None:
    @router.get("/report", summary="Verdicts, latency, lag and the worst messages of the lake")
    async def report(
        sources: Seen,
        since: Since = "",
        until: Until = "",
        worst: Annotated[int, Query(ge=0, le=100, description="Number of worst messages.")] = 3,
        cluster: Cluster = "",
    ) -> Report:
        first_ms, end_ms = range_of(since, until)
        return await workers.run(lambda: sources.of_lake(cluster).report(now_ms(), first_ms, end_ms, worst=worst))

    @router.get("/verdicts", summary="How many messages have each verdict, by time of publication")
    async def verdicts(sources: Seen, since: Since = "", until: Until = "", cluster: Cluster = "") -> VerdictHistory:
        first_ms, end_ms = range_of(since, until)
        return await workers.run(lambda: sources.of_lake(cluster).history(now_ms(), first_ms, end_ms))

    @router.get("/freshness", summary="Until when the lake knows each of its sources")
    async def freshness(sources: Seen, cluster: Cluster = "") -> FreshnessAnswer:
        return await workers.run(lambda: sources.of_lake(cluster).freshness(now_ms()))

    @router.get("/latency", summary="How long a part of the way takes, by time, topic and group")
    async def latency(
        sources: Seen,
        part: Annotated[LatencySegment, Query(description="Stage of delivery to measure.")] = LatencySegment.HANDLER,
        since: Since = "",
        until: Until = "",
        cluster: Cluster = "",
    ) -> LatencyHistory:
        first_ms, end_ms = range_of(since, until)
        return await workers.run(lambda: sources.of_lake(cluster).latency(part, now_ms(), first_ms, end_ms))


def _add_comparison(router: APIRouter, workers: Workers) -> None:
    @router.get("/latency/compare", summary="How long each stage takes in a span, beside an earlier one of its length")
    async def compare(
        sources: Seen,
        since: Annotated[
            str,
            Query(alias="from", min_length=1, max_length=64, description="Begin: a time (UTC), or an age such as 2h."),
        ],
        against: Annotated[str, Query(min_length=1, max_length=64, description="Begin of the span to compare with.")],
        until: Annotated[str, Query(alias="to", max_length=64, description="End (exclusive). Default: now.")] = "",
        part: Annotated[LatencySegment | None, Query(description="Only this stage. Default: all.")] = None,
        cluster: Cluster = "",
    ) -> LatencyComparison:
        at_ms = now_ms()
        spans = parsed(lambda: compared_spans(since, until, against, at_ms))
        return await workers.run(lambda: sources.of_lake(cluster).compare_latency(*spans, at_ms, part))


def _add_findings(router: APIRouter, workers: Workers, handled: HandledIncidents | None) -> None:
    @router.get("/incidents", summary="Bad messages grouped by cause; by default of the last day of the lake")
    async def incidents(sources: Seen, since: Since = "", until: Until = "", cluster: Cluster = "") -> IncidentsAnswer:
        first_ms, end_ms = range_of(since, until)

        def ask() -> IncidentsAnswer:
            found = sources.of_lake(cluster).incidents(now_ms(), first_ms, end_ms, is_kept=False)
            return found if handled is None else handled.shown_in(found, now_ms())

        return await workers.run(ask)

    @router.get(
        "/dead-letters", summary="Dead letters of the lake, the error of each attempt, and equal errors counted"
    )
    async def dead_letters(
        sources: Seen,
        part: Paging,
        group: Annotated[str, Query(max_length=NAME_SIZE_MAX, description="Only this group. Default: all.")] = "",
        topic: Annotated[str, Query(max_length=NAME_SIZE_MAX, description="Only this topic. Default: all.")] = "",
        error: Annotated[
            str | None, Query(max_length=NAME_SIZE_MAX, description="Only this error, as `errors` names it.")
        ] = None,
        since: Since = "",
        until: Until = "",
        cluster: Cluster = "",
    ) -> DeadLettersAnswer:
        first_ms, end_ms = range_of(since, until)
        wanted = DeadLetterConditions(
            group_name=group,
            topic=topic,
            error=error,
            first_ms=first_ms,
            end_ms=end_ms,
            limit=part.limit,
            skip=part.skip,
        )
        return await workers.run(lambda: sources.of_lake(cluster).dead_letters(wanted, now_ms()))

    @router.get("/rejects", summary="Trace records that did not decode, with their text, the latest first")
    async def rejects(sources: Seen, part: Paging, cluster: Cluster = "") -> RejectsAnswer:
        return await workers.run(lambda: sources.of_lake(cluster).rejects(now_ms(), part.limit, part.skip))

    @router.get("/prove", summary="What the lake proves about loss, duplicates and order")
    async def prove(
        sources: Seen,
        topic: Annotated[str, Query(max_length=NAME_SIZE_MAX, description="Only this topic. Default: all.")] = "",
        since: Since = "",
        until: Until = "",
        cluster: Cluster = "",
    ) -> ProofAnswer:
        first_ms, end_ms = range_of(since, until)
        return await workers.run(lambda: sources.of_lake(cluster).prove(topic, now_ms(), first_ms, end_ms))


def _add_cluster_operations(router: APIRouter, workers: Workers) -> None:
    @router.get("/lag", summary="What groups still have to read, the longest wait first")
    async def lag(
        sources: Seen,
        group: Annotated[str, Query(max_length=NAME_SIZE_MAX, description="Only this group, with its queues.")] = "",
        over: Annotated[str, Query(max_length=16, description="Read twice with this pause, at most 10s.")] = "",
    ) -> LagAnswer:
        over_ms = parsed(lambda: parse_duration(over)) if over else None
        if over_ms is not None and not 0 < over_ms <= 10_000:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"over: found {over!r}, expected more than 0s and at most 10s"
            )
        return await workers.run(lambda: sources.of_cluster().lag(group or None, over_ms))

    @router.get("/brokers", summary="Brokers with versions and counters")
    async def brokers(sources: Seen) -> BrokersAnswer:
        return await workers.run(lambda: sources.of_cluster().brokers())

    @router.get("/settings", summary="The settings of a master, without secrets")
    async def settings(
        sources: Seen,
        broker: Annotated[str, Query(min_length=1, max_length=NAME_SIZE_MAX, description="Its name, or host:port.")],
    ) -> BrokerSettingsAnswer:
        return await workers.run(lambda: sources.of_cluster().settings(broker))

    @router.get("/replication", summary="How brokers follow their masters, and the last elections")
    async def replication(sources: Seen) -> ReplicationAnswer:
        return await workers.run(lambda: sources.of_cluster().replication())

    @router.get("/name-servers", summary="The settings of each name server, without secrets")
    async def name_servers(sources: Seen) -> NameServersAnswer:
        return await workers.run(lambda: sources.of_cluster().name_servers())

    @router.get("/broker-access", summary="Users and policies of the brokers, without passwords")
    async def broker_access(sources: Seen) -> BrokerAccessAnswer:
        return await workers.run(lambda: sources.of_cluster().broker_access())

    @router.get("/topics", summary="Topics with their queues on each master")
    async def topics(sources: Seen) -> TopicsAnswer:
        return await workers.run(lambda: sources.of_cluster().topics())

    @router.get("/groups", summary="Consumer groups with a configuration")
    async def groups(sources: Seen) -> GroupsAnswer:
        return await workers.run(lambda: sources.of_cluster().groups())

    @router.get("/client", summary="What a live consumer reports: queues, rates, subscriptions, stacks of its threads")
    async def client(
        sources: Seen,
        group: Group,
        client_id: Annotated[
            str, Query(alias="id", min_length=1, max_length=1_000, description="Its client id, as `/members` has it.")
        ],
        stack: Annotated[bool, Query(description="With the stacks of its threads; for operators.")] = False,
    ) -> ClientAnswer:
        return await workers.run(lambda: sources.of_cluster().client(group, client_id, has_stack=stack))

    @router.get("/members", summary="The live consumers of a group and their subscriptions")
    async def members(sources: Seen, group: Group) -> MembersAnswer:
        return await workers.run(lambda: sources.of_cluster().members(group))


def _add_waiting(router: APIRouter, workers: Workers) -> None:
    @router.get("/delayed", summary="Messages that wait for their time: at delay levels, and in timers")
    async def delayed(sources: Seen, limit: Limit = 100) -> DelayedAnswer:
        return await workers.run(lambda: sources.of_cluster().delayed(limit))

    @router.get("/transactions", summary="Half messages that wait for the end of their transaction")
    async def transactions(sources: Seen, limit: Limit = 100) -> TransactionsAnswer:
        return await workers.run(lambda: sources.of_cluster().transactions(limit))

    @router.get("/pops", summary="Popped messages that are not acknowledged")
    async def pops(sources: Seen, limit: Limit = 100) -> PopsAnswer:
        return await workers.run(lambda: sources.of_cluster().pops(limit))


def _add_details(router: APIRouter, workers: Workers) -> None:
    @router.get("/message", summary="A stored message: its properties and the first bytes of its body")
    async def message(
        sources: Seen,
        place: Annotated[
            str, Query(min_length=1, max_length=1_000, description="BROKER/TOPIC/QUEUE@OFFSET, as in `/trace`.")
        ],
        size: Annotated[int, Query(ge=0, le=BODY_SIZE_MAX, description="Most bytes of the body.")] = 65_536,
    ) -> MessageContent:
        found = await workers.run(lambda: sources.of_cluster().message(place, size))
        return MessageContent(
            scope=found.scope,
            msg_id=found.msg_id,
            place=found.place,
            stored_ms=found.stored_ms,
            properties=found.properties,
            body_base64=b64encode(found.body).decode(),
            body_size=found.body_size,
            why=found.why,
            is_hidden=found.is_hidden,
        )

    @router.get("/doctor", summary="What can be traced on the cluster, and why not")
    async def doctor(
        sources: Seen,
        sample: Annotated[int, Query(ge=0, le=10_000, description="Number of latest trace messages to read.")] = 1_000,
    ) -> Diagnosis:
        return await workers.run(lambda: sources.diagnosis(now_ms(), sample_count=sample))


def _add_alerts(router: APIRouter, workers: Workers, path: Path) -> None:
    @router.get("/alerts", summary="Open alerts, the last ones, and when the rules were last checked")
    async def alerts(sources: Seen, limit: Limit = 50) -> AlertsAnswer:
        def ask() -> AlertsAnswer:
            sources.check(Right.READ)
            return read_alerts(path, limit, now_ms())

        return await workers.run(ask)


def _some(lines: Iterator[dict[str, Any]]) -> tuple[str, bool]:
    """Return the text of the next lines, and whether they are the last. MQError only where nothing was read."""
    texts: list[str] = []
    try:
        for line in islice(lines, EXPORT_LINES):
            texts.append(visible_json(json.dumps(line, ensure_ascii=False)) + "\n")
    except MQError as error:
        if not texts:
            raise
        texts.append(json.dumps({"error": str(error)}) + "\n")
        return "".join(texts), True
    return "".join(texts), len(texts) < EXPORT_LINES


async def _stream(lines: Iterator[dict[str, Any]], some: tuple[str, bool], workers: Workers) -> AsyncIterator[str]:
    """Yield the lines. A failure on the way is the last line: {"error": …}."""
    while True:
        text, is_last = some
        yield text
        if is_last:
            return
        try:
            some = await workers.run(lambda: _some(lines))
        except Problem as problem:
            yield json.dumps({"error": problem.detail}) + "\n"
            return
