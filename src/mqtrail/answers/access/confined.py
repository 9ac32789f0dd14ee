"""Look-ups in the lake for a person who may read some topics or clusters only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from mqtrail.client import ClusterLag

from ..lookup import Answers
from ..model import (
    BrokerChanges,
    LatencySegment,
    Report,
    SearchAnswer,
    SearchConditions,
    Status,
    TraceAnswer,
    Trajectory,
)
from ..queries import QueryAnswer
from ..sources import Sources
from ..summaries import (
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
from .model import NotAllowed, Person, Right


def confined(sources: Sources, person: Person, cluster: str, *, is_live: bool) -> Answers:
    """Return look-ups in a cluster of the lake, on the topics that a person may read there. NotAllowed.

    cluster: '': the only one that the person's roles name. is_live: the person may read the live cluster too.
    """
    named = {one.cluster for one in person.grants}
    if not cluster and "" not in named and len(named) == 1:
        (cluster,) = named
    if person.may(Right.READ, cluster):
        return sources.answers(cluster) if is_live else _in_lake(sources, cluster)
    if not any(one.cluster in ("", cluster) for one in person.grants):
        clusters = ", ".join(sorted(named)) or "none"
        raise NotAllowed(f"found the cluster {cluster or 'all'!r}, expected one that your roles name: {clusters}")
    return ConfinedAnswers(sources, person, cluster)


def _in_lake(sources: Sources, cluster: str) -> Answers:
    return Answers(
        sources.lake, cluster=cluster, settings=sources.settings, instance=sources.instance, opened=sources.opened()
    )


class ConfinedAnswers(Answers):
    """Look-ups that can be confined to topics; the others raise NotAllowed."""

    def __init__(self, sources: Sources, person: Person, cluster: str) -> None:
        super().__init__(sources.lake, cluster=cluster, settings=sources.settings, opened=sources.opened())
        self._person = person
        self._of_cluster = cluster

    def search(self, wanted: SearchConditions, now_ms: int) -> SearchAnswer:
        """Return the messages of one topic that match."""
        return super().search(replace(wanted, topic=self._topic(wanted.topic or "")), now_ms)

    def facets(self, wanted: SearchConditions, now_ms: int, *, values_max: int = 10) -> FacetsAnswer:
        """Return the messages of one topic that match, counted by field and value."""
        confined = replace(wanted, topic=self._topic(wanted.topic or ""))
        return super().facets(confined, now_ms, values_max=values_max)

    def search_names(self, now_ms: int, topic: str = "") -> SearchNames:
        """Return the names in the messages of one topic."""
        return super().search_names(now_ms, self._topic(topic))

    def dead_letters(self, wanted: DeadLetterConditions, now_ms: int) -> DeadLettersAnswer:
        """Return the dead letters of one topic that match."""
        return super().dead_letters(replace(wanted, topic=self._topic(wanted.topic)), now_ms)

    def prove(
        self, topic: str, now_ms: int, first_ms: int | None = None, end_ms: int | None = None, *, examples_max: int = 10
    ) -> ProofAnswer:
        """Return what the lake proves about one topic."""
        return super().prove(self._topic(topic), now_ms, first_ms, end_ms, examples_max=examples_max)

    def trace(self, asked: str, now_ms: int) -> TraceAnswer:
        """Return the messages of an id or key whose topics the person may read."""
        found = super().trace(asked, now_ms)
        kept = tuple(one for one in found.trajectories if self._may_read(one))
        if len(kept) == len(found.trajectories):
            return found
        status = found.status if kept else Status.CANNOT_LOOK
        why = "your roles do not show all messages with this id or key"
        return replace(found, trajectories=kept, status=status, why=why)

    def neighbours(self, msg_id: str, now_ms: int) -> NeighboursAnswer:
        """Return the neighbours whose topics the person may read."""
        if not self.trace(msg_id, now_ms).trajectories:
            raise NotAllowed("your roles do not show this message")
        found = super().neighbours(msg_id, now_ms)
        kept = tuple(one for one in found.neighbours if self._person.may(Right.READ, one.cluster, one.topic))
        return replace(found, neighbours=kept)

    def report(self, *arguments: Any, **settings: Any) -> Report:
        """Refuse: it is about all topics."""
        raise self._refused()

    def incidents(self, *arguments: Any, **settings: Any) -> IncidentsAnswer:
        """Refuse: it is about all topics."""
        raise self._refused()

    def history(self, *arguments: Any, **settings: Any) -> VerdictHistory:
        """Refuse: it is about all topics."""
        raise self._refused()

    def broker_changes(self, *arguments: Any, **settings: Any) -> BrokerChanges:
        """Refuse: it is about all topics."""
        raise self._refused()

    def freshness(self, now_ms: int) -> FreshnessAnswer:
        """Refuse: it is about all topics."""
        raise self._refused()

    def latency(
        self, segment: LatencySegment, now_ms: int, first_ms: int | None = None, end_ms: int | None = None
    ) -> LatencyHistory:
        """Refuse: it is about all topics."""
        raise self._refused()

    def compare_latency(
        self, before: TimeSpan, after: TimeSpan, now_ms: int, segment: LatencySegment | None = None
    ) -> LatencyComparison:
        """Refuse: it is about all topics."""
        raise self._refused()

    def rejects(self, now_ms: int, limit: int = 50, skip: int = 0) -> RejectsAnswer:
        """Refuse: it is about all topics."""
        raise self._refused()

    def clocks(self, now_ms: int, first_ms: int | None = None, end_ms: int | None = None) -> ClocksAnswer:
        """Refuse: it is about the hosts of all topics."""
        raise self._refused()

    def lag(self, *arguments: Any, **settings: Any) -> ClusterLag:
        """Refuse: it is about all topics."""
        raise self._refused()

    def export(self, now_ms: int, first_ms: int | None = None, end_ms: int | None = None) -> Iterator[dict[str, Any]]:
        """Refuse: it is about all topics."""
        raise self._refused()

    def kept_incidents(self, incident_id: str = "") -> tuple[ShownIncident, ...]:
        """Refuse: it is about all topics."""
        raise self._refused()

    def query(self, text: str, now_ms: int) -> AbstractContextManager[QueryAnswer]:
        """Refuse: it can read all topics."""
        raise self._refused()

    def _may_read(self, one: Trajectory) -> bool:
        return self._person.may(Right.READ, one.cluster, one.topic)

    def _topic(self, topic: str) -> str:
        """Return the topic to ask for; '': the only one that the roles name. NotAllowed."""
        named = {one.topic for one in self._person.grants if one.cluster in ("", self._of_cluster)}
        if not topic and len(named) == 1:
            (topic,) = named
        if not topic or topic.endswith("*") or not self._person.may(Right.READ, self._of_cluster, topic):
            known = ", ".join(sorted(named))
            raise NotAllowed(f"found the topic {topic or 'all'!r}, expected one that your roles name: {known}")
        return topic

    def _refused(self) -> NotAllowed:
        return NotAllowed("this is about all topics together: it needs a role for all topics")
