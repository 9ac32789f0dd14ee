"""An incident: bad units of a time, what they share, and how sure that is. Also as a row of INCIDENTS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..columns import Relation, number, text

INCIDENTS = Relation(
    "incidents",
    "One row per incident that `mqtrail incidents` found. A later search replaces the incidents of its range and "
    "clusters. A unit is a message, or of consuming a message and group. Key: cluster, incident_id.",
    (
        text("cluster", "as in trace_events"),
        text("incident_id", "short id: of the same cluster, cause, conditions and begin"),
        number("found_ms", "time of the search"),
        number("from_ms", "begin of the searched range"),
        number("to_ms", "end of the searched range (exclusive)"),
        number("begin_ms", "first bad unit"),
        number("end_ms", "last bad unit"),
        text("symptoms", "what is bad: names of symptoms, joined by commas; the first one decides"),
        text("codes", "the verdict codes of the bad units, joined by commas"),
        text("cause", "name of the cause, or NO_SINGLE_CAUSE"),
        text("conditions", "smallest set of conditions that explains it, joined by ' AND '; '' if there is none"),
        text("same_conditions", "conditions that hold for the same units, joined by '; '"),
        text("wider_conditions", "wider conditions that hold for these units too, joined by '; '"),
        text("neighbours", "changes around the begin, joined by '; '"),
        text("errors", "most frequent error texts of the bad units, joined by '; '"),
        text("unknown", "dimensions that none of the bad units has, joined by commas: a cause in them cannot be found"),
        number("message_count", "bad messages"),
        number("group_count", "consumer groups of the bad units; 0: sends"),
        number("topic_count", "topics of the bad units"),
        number("inside_count", "units under the conditions in its time"),
        number("inside_bad_count", "bad ones of them (support)"),
        number("outside_count", "good and bad units of the same time outside of the conditions"),
        number("outside_bad_count", "bad ones of them: what the conditions leave unexplained"),
        number("certainty", "-log10 of the chance that one of all tried conditions fits as well by accident, at most"),
        text("examples", "ids of bad messages, joined by commas"),
        text("good_examples", "ids of good messages under other conditions, joined by commas"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A row of INCIDENTS. Texts are joined as there."""

    cluster: str
    incident_id: str
    found_ms: int
    from_ms: int
    to_ms: int
    begin_ms: int
    end_ms: int
    symptoms: str
    codes: str
    cause: str
    conditions: str
    same_conditions: str
    wider_conditions: str
    neighbours: str
    errors: str
    unknown: str
    message_count: int
    group_count: int
    topic_count: int
    inside_count: int
    inside_bad_count: int
    outside_count: int
    outside_bad_count: int
    certainty: int
    examples: str
    good_examples: str

    @property
    def lift(self) -> float | None:
        """How many times more frequent bad units are inside than outside; None: without conditions or none outside."""
        if not self.conditions or not self.inside_count or not self.outside_bad_count:
            return None
        return (self.inside_bad_count / self.inside_count) / (self.outside_bad_count / self.outside_count)

    @property
    def row(self) -> dict[str, Any]:
        """The row of INCIDENTS."""
        return {name: getattr(self, name) for name in INCIDENTS.names}


assert tuple(Incident.__dataclass_fields__) == INCIDENTS.names
