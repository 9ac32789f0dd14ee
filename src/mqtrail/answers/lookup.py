"""Finds one message in the lake and, for newer evidence, in the cluster. Both use the judgement of `trail`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mqtrail import trail
from mqtrail.client import ClusterLag, InstanceConfig, SyncAdmin
from mqtrail.lake import Lake, LakeError, LakePath, connect, fetch
from mqtrail.trail.incidents import IncidentSettings
from mqtrail.wire import TRACE_TOPIC, IdError, MQError, parse_offset_msg_id

from . import dead_letters as dying
from . import facets as counting
from . import incidents, proving, queries
from . import neighbours as near
from . import rejects as refused
from . import search as searching
from .broker_changes import broker_changes, with_broker_changes
from .clocks import host_clocks, with_clocks
from .coverage import with_coverage
from .freshness import freshness
from .history import latency_comparison, latency_history, verdict_history
from .lag_sql import OVER_MS
from .lake_lag import lake_lag
from .lakeview import LakeView, UnknownCluster, read_trajectories
from .live import LiveEvidence, Row, gather
from .model import (
    BrokerChanges,
    LatencySegment,
    Report,
    Scope,
    SearchAnswer,
    SearchConditions,
    Status,
    TraceAnswer,
    Trajectory,
    VerdictThresholds,
    trajectory_of,
)
from .summaries import (
    ClocksAnswer,
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
    ShownIncident,
    TimeSpan,
    VerdictHistory,
)

if TYPE_CHECKING:
    from .openlake import OpenLake

T = TypeVar("T")
KEY_IDS_MAX = 20  # most messages shown for one key
PORT_MAX = 65_535


class Answers:
    """Look-ups in a lake, a cluster, or both. `search`, `report` and `export` need a lake.

    lake: its folder. namesrv: the cluster's name servers. cluster: its name in the lake, to answer for it only; '': for
    all of them. settings: thresholds for judgements made here. instance: client settings for the cluster (credentials,
    TLS). UnknownCluster: the lake does not have it.
    """

    def __init__(
        self,
        lake: LakePath | None = None,
        namesrv: str = "",
        *,
        cluster: str = "",
        settings: trail.Settings | None = None,
        trace_topic: str = TRACE_TOPIC,
        instance: InstanceConfig | None = None,
        opened: OpenLake | None = None,
    ) -> None:
        self._lake_path = lake
        self._opened = opened
        self._namesrv = namesrv
        self._cluster = cluster
        self._settings = settings or trail.Settings()
        self._trace_topic = trace_topic
        self._instance = instance

    def search(self, wanted: SearchConditions, now_ms: int) -> SearchAnswer:
        """Return the lake's messages that match. LakeError."""
        return self._ask(lambda view: searching.search(view, wanted, now_ms))

    def facets(self, wanted: SearchConditions, now_ms: int, *, values_max: int = 10) -> FacetsAnswer:
        """Return the lake's messages that match, counted by field and value, the most frequent first. LakeError.

        values_max: most values of a field. Of very many matches only the latest are counted (facets.COUNTED_MAX).
        """
        return self._ask(lambda view: counting.facets(view, wanted, now_ms, values_max))

    def search_names(self, now_ms: int, topic: str = "") -> SearchNames:
        """Return the names of the lake's last day that a search can have. topic: only of its messages. LakeError."""
        return self._ask(lambda view: counting.search_names(view, now_ms, topic), ("search_names", topic))

    def report(
        self,
        now_ms: int,
        first_ms: int | None = None,
        end_ms: int | None = None,
        *,
        worst: int = 3,
        is_last_day: bool = False,
    ) -> Report:
        """Return the lake's summary of messages published in [first_ms, end_ms). LakeError.

        is_last_day: without bounds, of the last day of the lake instead of all.
        """
        question = ("report", first_ms, end_ms, worst, is_last_day)
        return self._ask(
            lambda view: searching.report(view, now_ms, *_range(view, first_ms, end_ms, is_last_day), worst), question
        )

    def prove(
        self, topic: str, now_ms: int, first_ms: int | None = None, end_ms: int | None = None, *, examples_max: int = 10
    ) -> ProofAnswer:
        """Return what the lake proves about messages of a topic ('': all) published in [first_ms, end_ms). LakeError.

        examples_max: most subjects that are shown for a claim.
        """
        return self._ask(lambda view: proving.prove(view, topic, now_ms, first_ms, end_ms, examples_max))

    def incidents(
        self,
        now_ms: int,
        first_ms: int | None = None,
        end_ms: int | None = None,
        *,
        settings: IncidentSettings | None = None,
        is_kept: bool = True,
        recent_s: float | None = None,
    ) -> IncidentsAnswer:
        """Search the causes of bad messages in [first_ms, end_ms), by default in the last day of the lake. LakeError.

        What the search finds with default settings is kept in the lake's table; if a pipeline writes the lake, after
        its next cycle. is_kept=False: it writes nothing, and is shared with others; recent_s: how old it may be.
        """
        wanted = settings or IncidentSettings()
        question = None if is_kept else ("incidents", first_ms, end_ms, wanted)
        with self._lent() as view:
            answer, found = self._answer(
                view,
                lambda read: incidents.search_incidents(read, now_ms, first_ms, end_ms, wanted),
                question,
                recent_s,
            )
            if not is_kept or answer.first_ms is None or answer.end_ms is None or wanted != IncidentSettings():
                return answer
            if answer.scope.is_damaged:
                return replace(answer, not_kept="a part of the lake could not be read")
            try:
                incidents.keep(view, found, answer.first_ms, answer.end_ms, now_ms)
            except LakeError as error:
                return replace(answer, not_kept=str(error))
            return answer

    def kept_incidents(self, incident_id: str = "") -> tuple[ShownIncident, ...]:
        """Return the incidents that the lake keeps, the latest first; incident_id: how their id begins. LakeError."""
        return self._ask(lambda view: incidents.kept_incidents(view, incident_id))

    def history(
        self, now_ms: int, first_ms: int | None = None, end_ms: int | None = None, *, is_last_day: bool = False
    ) -> VerdictHistory:
        """Return how many messages published in [first_ms, end_ms) have each code, by time. LakeError.

        is_last_day: as in `report`.
        """
        question = ("history", first_ms, end_ms, is_last_day)
        return self._ask(
            lambda view: verdict_history(view, now_ms, *_range(view, first_ms, end_ms, is_last_day)), question
        )

    def broker_changes(
        self, now_ms: int, first_ms: int | None = None, end_ms: int | None = None, *, broker: str = ""
    ) -> BrokerChanges:
        """Return the starts, stops and changes of the role of brokers in [first_ms, end_ms). LakeError."""
        return self._ask(lambda view: broker_changes(view, now_ms, first_ms, end_ms, broker))

    def freshness(self, now_ms: int) -> FreshnessAnswer:
        """Return until when the lake knows each of its sources. LakeError."""
        return self._ask(lambda view: freshness(view, now_ms), ("freshness",))

    def latency(
        self, segment: LatencySegment, now_ms: int, first_ms: int | None = None, end_ms: int | None = None
    ) -> LatencyHistory:
        """Return the latency of a segment (trail.LATENCY_MINUTE) by time, topic and group. LakeError."""
        question = ("latency", segment, first_ms, end_ms)
        return self._ask(lambda view: latency_history(view, segment, now_ms, first_ms, end_ms), question)

    def compare_latency(
        self, before: TimeSpan, after: TimeSpan, now_ms: int, segment: LatencySegment | None = None
    ) -> LatencyComparison:
        """Return the latency of two spans of whole minutes side by side. segment: None: every one. LakeError."""
        return self._ask(lambda view: latency_comparison(view, now_ms, before, after, segment))

    def clocks(self, now_ms: int, first_ms: int | None = None, end_ms: int | None = None) -> ClocksAnswer:
        """Return how far the clocks of hosts differ from those of brokers in [first_ms, end_ms). LakeError."""
        return self._ask(lambda view: host_clocks(view, now_ms, first_ms, end_ms))

    def lag(
        self, now_ms: int, group: str | None = None, *, over_ms: int = OVER_MS, oldest_count: int = 0
    ) -> ClusterLag:
        """Return the lag of groups as of the lake's last sample of one cluster (lake_lag.py). LakeError.

        Its problems name the damaged parts of the lake.
        UnknownCluster: the lake has several, and none was chosen.
        """
        with self._lent() as view:
            names = view.scope_clusters
            if len(names) != 1:
                damaged = "".join(f"; {one}" for one in view.damage_shown())
                found = f"found {len(names)} clusters in {view.path}, expected one: pass --cluster{damaged}"
                raise UnknownCluster(found)
            lag = view.read(lambda read: lake_lag(read, names[0], now_ms, group, over_ms, oldest_count))
            return replace(lag, problems=(*lag.problems, *view.damage_shown()))

    def rejects(self, now_ms: int, limit: int = 50, skip: int = 0) -> RejectsAnswer:
        """Return trace records that did not decode, the latest first: `limit` after the first `skip`. LakeError."""
        return self._ask(lambda view: refused.rejects(view, now_ms, limit, skip))

    def dead_letters(self, wanted: DeadLetterConditions, now_ms: int) -> DeadLettersAnswer:
        """Return the dead letters that match, with the error of each attempt. LakeError."""
        return self._ask(lambda view: dying.dead_letters(view, wanted, now_ms))

    def neighbours(self, msg_id: str, now_ms: int) -> NeighboursAnswer:
        """Return the messages that share a batch, a trace or a key with a message. LakeError."""
        return self._ask(lambda view: near.neighbours(view, msg_id, now_ms))

    def export(self, now_ms: int, first_ms: int | None = None, end_ms: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield one JSON object per message of the lake (docs/reference/cli.md). LakeError.

        LakeDamaged after the last line: files could not be read, and the lines come from the others.
        """
        del now_ms  # each line has the time of its own judgement
        return searching.export(self._view(), first_ms, end_ms)

    def query(self, text: str, now_ms: int) -> AbstractContextManager[queries.QueryAnswer]:
        """Run one SELECT over the documented views (views.py) while a `with` block reads. QueryError, LakeError."""
        queries.check(text)
        return queries.query(self._view(), text, now_ms)

    def _ask(self, ask: Callable[[LakeView], T], question: Hashable = None) -> T:
        """Return ask(view). question: what is asked, if the answer may be shared with others. LakeError."""
        with self._lent() as view:
            return self._answer(view, ask, question)

    def _answer(
        self, view: LakeView, ask: Callable[[LakeView], T], question: Hashable, recent_s: float | None = None
    ) -> T:
        if self._opened is None or question is None:
            return view.read(ask)
        return self._opened.shared((self._cluster, question), view, ask, recent_s)

    @contextmanager
    def _lent(self) -> Iterator[LakeView]:
        """Lend a view of the lake for one question."""
        if self._opened is None:
            yield self._view()
        else:
            with self._opened.view(self._cluster) as view:
                yield view

    def _view(self) -> LakeView:
        """Return a view with a database of its own."""
        assert self._lake_path is not None, "only a lake can be searched as a whole"
        return LakeView(self._lake_path, self._cluster)

    def trace(self, asked: str, now_ms: int) -> TraceAnswer:
        """Find a message id (of the client or the broker) or a key. Problems of lake or cluster become omissions."""
        with ExitStack() as lent:
            return self._trace(asked, now_ms, lent)

    def _trace(self, asked: str, now_ms: int, lent: ExitStack) -> TraceAnswer:
        scope = Scope(now_ms)
        view: LakeView | None = None
        live: LiveEvidence | None = None
        found: list[Trajectory] = []
        judged_with: tuple[VerdictThresholds, ...] = ()
        is_whole = True
        if self._lake_path is not None:
            try:
                view = lent.enter_context(self._lent())
                found, scope = view.read(lambda read: _from_lake(read, asked, now_ms))
                judged_with = view.judged_with(Counter((one.cluster, one.as_of_ms) for one in found))
                is_whole = view.is_searched_whole(trail.TRAJECTORIES.name, trail.KEY_INDEX.name)
            except LakeError as error:
                is_whole = False
                scope = replace(scope, omissions=(f"lake: {error}",))
        if self._namesrv:
            name, live, problem = self._ask_cluster(asked, found, view, now_ms)
            is_whole = is_whole and live is not None and live.is_reachable
            scope = _with_cluster(scope, live, problem, now_ms)
            if live is not None and (live.is_traced or live.knows_message):
                kept = [one for one in found if one.cluster != name]
                own = [one for one in found if one.cluster == name]
                try:
                    own = self._judge(view, name, own, live, now_ms)
                except LakeError as error:
                    scope = replace(scope, omissions=(*scope.omissions, f"judged without the lake: {error}"))
                    own = self._judge(None, name, own, live, now_ms)
                found = [*own, *kept]
                judged_with = (VerdictThresholds(len(own), self._settings.changed()),)
                if kept and view is not None:
                    judged_with += view.judged_with(Counter((one.cluster, one.as_of_ms) for one in kept))
        elif view is not None:
            omission = "messages newer than the lake were not searched: pass --namesrv to query the cluster"
            scope = replace(scope, omissions=(*scope.omissions, omission))
        found = self._explained(view, found, [] if live is None else live.broker_events)
        return replace(_conclude(asked, found, live, scope, is_whole), judged_with=judged_with if found else ())

    @staticmethod
    def _explained(view: LakeView | None, found: Sequence[Trajectory], events: Sequence[Row]) -> list[Trajectory]:
        """Return trajectories with what explains them. events: rows of trail.BROKER_EVENTS of the cluster."""

        def explained(read: LakeView) -> list[Trajectory]:
            return with_broker_changes(read, with_coverage(read, with_clocks(read, found)), events)

        if view is not None:
            with suppress(LakeError):  # which the scope says already
                return view.read(explained)
        return with_broker_changes(None, with_clocks(None, found), events)

    def _ask_cluster(
        self, asked: str, found: Sequence[Trajectory], view: LakeView | None, now_ms: int
    ) -> tuple[str, LiveEvidence | None, str]:
        """Return the cluster's name in the lake, its evidence, and the problem if there is none."""
        try:
            with SyncAdmin(self._namesrv, config=self._instance) as admin:
                names = sorted(admin.cluster().cluster_addr_table)
                name = self._cluster or _name_in_lake(view, names[0] if names else "")
                topics = [one.topic for one in found if one.cluster == name]
                live = gather(admin, asked, topics[0] if topics else "", name, now_ms, self._trace_topic)
                return name, live, ""
        except (MQError, OSError) as error:
            return "", None, f"cluster {self._namesrv} could not be queried: {error}"

    def _judge(
        self, view: LakeView | None, cluster: str, known: Sequence[Trajectory], live: LiveEvidence, now_ms: int
    ) -> list[Trajectory]:
        """Judge the evidence of lake and cluster together, as of now."""
        from mqtrail.lake import judge_messages, stored_rows  # with Arrow

        duck = connect()
        copies = stored_rows(duck, live.stored, cluster, live.delays_ms, now_ms)
        evidence = live.rows | {trail.MESSAGE_META.name: copies}
        ids = sorted({one.msg_id for one in known} | live.ids)

        def judged(lake: Lake | None) -> list[Trajectory]:
            judge_messages(lake, ids, now_ms, evidence, duck, self._settings, cluster=cluster)
            return read_trajectories(duck, "true", tail="ORDER BY t.send_start_ms, t.msg_id")

        return judged(None) if view is None else view.read(lambda read: judged(read.lookup.lake))


def _range(
    view: LakeView, first_ms: int | None, end_ms: int | None, is_last_day: bool
) -> tuple[int | None, int | None]:
    if is_last_day and first_ms is None and end_ms is None:
        return view.searched_range(None, None) or (None, None)
    return first_ms, end_ms


def _name_in_lake(view: LakeView | None, registered: str) -> str:
    """Return the name that the lake has for a cluster, so that rows of both belong to the same message. UnknownCluster.

    registered: its name with the name server.
    """
    try:
        clusters = () if view is None else view.clusters
    except LakeError:
        clusters = ()
    if len(clusters) > 1 and registered not in clusters:
        raise UnknownCluster(
            f"found a cluster that is registered as {registered!r}, expected one of the lake's, {', '.join(clusters)}: "
            "pass --cluster with its name in the lake"
        )
    return clusters[0] if len(clusters) == 1 else registered


def _from_lake(view: LakeView, asked: str, now_ms: int) -> tuple[list[Trajectory], Scope]:
    lookup = view.lookup
    answer = lookup.trajectories(asked)
    opened = answer.opened
    extra: list[str] = []
    ids = [asked] if answer.rows else []
    if not ids:
        by_key = lookup.ids_of_key(asked, KEY_IDS_MAX + 1)
        opened += by_key.opened
        ids = list(dict.fromkeys(row["msg_id"] for row in by_key.rows))
        if len(ids) > KEY_IDS_MAX:
            extra.append(f"the key is on more than {KEY_IDS_MAX} messages, the newest {KEY_IDS_MAX} are shown")
    if not ids and _may_be_offset_id(asked):
        view.define_views()
        ids = [row["msg_id"] for row in fetch(view.connection, _BY_OFFSET_ID, [asked])]
    found = []
    for msg_id in ids[:KEY_IDS_MAX]:
        rows = answer.rows
        if msg_id != asked:
            answer_of_id = lookup.trajectories(msg_id)
            rows, opened = answer_of_id.rows, opened + answer_of_id.opened
        verdicts = lookup.verdicts(msg_id)
        opened += verdicts.opened
        found += [
            trajectory_of(row, [one for one in verdicts.rows if one["cluster"] == row["cluster"]])
            for row in _latest(rows)
            if view.cluster in ("", row["cluster"])
        ]
    scope = view.scope(now_ms, extra)
    source = f"lake {view.path} ({len(set(opened))} files opened)"
    return found, replace(scope, sources=(source,))


_BY_OFFSET_ID = "SELECT DISTINCT msg_id FROM trajectories WHERE offset_msg_id = ?"


def _may_be_offset_id(asked: str) -> bool:
    """Return whether a text can be a broker's message id. A client's id has the same length, but no port in it."""
    try:
        host, _ = parse_offset_msg_id(asked)
    except IdError:
        return False
    return 0 < host.port <= PORT_MAX


def _latest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the latest judgement of each cluster and message."""
    latest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        key = (row["cluster"], row["msg_id"])
        if key not in latest or latest[key]["as_of_ms"] < row["as_of_ms"]:
            latest[key] = row
    return list(latest.values())


def _with_cluster(scope: Scope, live: LiveEvidence | None, problem: str, now_ms: int) -> Scope:
    """Return the scope including the cluster, or the reason why the cluster could not be queried."""
    if live is None:
        return replace(scope, omissions=(*scope.omissions, problem))
    omissions = [*scope.omissions, *live.omissions]
    if not scope.sources and live.knows_message:
        omissions.append(
            "without a lake it is unknown which groups read the topic when the message was stored: a group without a "
            "traced delivery is not judged"
        )
    sources = (*scope.sources, *dict.fromkeys(live.sources))
    return replace(scope, as_of_ms=now_ms, sources=sources, omissions=tuple(dict.fromkeys(omissions)))


def _conclude(
    asked: str, found: Sequence[Trajectory], live: LiveEvidence | None, scope: Scope, is_whole: bool
) -> TraceAnswer:
    if found:
        if any(_is_traced(one) for one in found):
            return TraceAnswer(asked, Status.FOUND, scope, tuple(found))
        if live is not None and live.has_unread_trace:
            why = "The message is stored, but trace messages about it could not be read: it is unknown what they say."
            return TraceAnswer(asked, Status.CANNOT_LOOK, scope, tuple(found), why)
        why = (
            "The message is stored, but no trace of it is available: trace is off in its producer and consumers, or "
            "its records were lost or have expired."
        )
        return TraceAnswer(asked, Status.NOT_TRACED, scope, tuple(found), why)
    if live is not None and live.has_unread_trace:
        stored = "The message is stored, but" if live.knows_message else "No such message was found, but"
        why = f"{stored} trace messages about it could not be read: it is unknown what they say."
        return TraceAnswer(asked, Status.CANNOT_LOOK, scope, (), why)
    if live is not None and live.knows_message:
        why = "The message is stored but not traced. Check that its producer and consumers enable trace."
        return TraceAnswer(asked, Status.NOT_TRACED, scope, (), why)
    if not is_whole or not scope.sources:
        why = "Nothing was found, but not everything could be searched: the message may still exist."
        return TraceAnswer(asked, Status.CANNOT_LOOK, scope, (), why)
    why = f"No message with the id or key {asked!r} was found in the sources searched."
    return TraceAnswer(asked, Status.NOT_FOUND, scope, (), why)


def _is_traced(one: Trajectory) -> bool:
    """Whether any trace record is about the message."""
    return any(event.evidence.startswith("trace:") for event in one.events)
