"""Facts that a cause needs beside its conditions: counted over all units under the conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..kinds import quoted
from .cases import DIMENSIONS, Ask
from .causes import CAUSES, MASTER_CHANGED, NO_SINGLE_CAUSE, SENDING, IncidentCause
from .contrast import Condition, Explanation, where
from .neighbours import Neighbour

KNOWN_SHARE = 0.9  # of bad units that must have a dimension which a cause says to know
USUAL_FACTOR, USUAL_MS = 1.5, 20  # handlers take as long as usual up to this
HOT_FACTOR = 2.0  # a queue is hot with this many times the units of the median of the others
SPREAD_UNITS_MIN = 5  # units of a value that count


@dataclass(frozen=True, slots=True)
class Units:
    """The units of an episode. bit: of its symptom; in_time: SQL, units of the episode; before: of it and its lead."""

    ask: Ask
    unit: str
    bit: int
    in_time: str
    before: str

    @property
    def table(self) -> str:
        """The table of the units."""
        return f"{self.unit}_units"

    @property
    def is_bad(self) -> str:
        """SQL: the unit has the symptom."""
        return f"symptoms & {self.bit} <> 0"


def cause_of(symptom: str, found: Explanation, units: Units, beside: Sequence[Neighbour]) -> IncidentCause:
    """Return the first cause that applies and has its evidence."""
    if not found.conditions:
        return MASTER_CHANGED if symptom in SENDING and _are_of_changed(units, beside) else NO_SINGLE_CAUSE
    leading = {one.dimension for one in found.conditions}
    for cause in CAUSES:
        if symptom not in cause.symptoms or not leading & set(cause.dimensions):
            continue
        if found.split.purity < cause.purity_min:
            continue
        if not all(_is_known(units, found.conditions, name) for name in cause.knows):
            continue
        if all(_holds(fact, found, units, beside) for fact in cause.facts):
            return cause
    return NO_SINGLE_CAUSE


def _are_of_changed(units: Units, beside: Sequence[Neighbour]) -> bool:
    """Whether nearly all bad units are of brokers whose master changed.

    The brokers of a cluster can be of one group: then no condition tells bad units from others.
    """
    changed = _changed_brokers(units, beside)
    if not changed:
        return False
    [(of_changed, every)] = units.ask(
        f"""SELECT count(*) FILTER (broker IN ({quoted(changed)})), count(*) FILTER (broker <> '') FROM {units.table}
        WHERE {units.in_time} AND {units.is_bad}"""
    )
    return bool(every) and of_changed >= KNOWN_SHARE * every


def _changed_brokers(units: Units, beside: Sequence[Neighbour]) -> set[str]:
    """Return the names of brokers whose master changed, and their addresses: a failed try may only know that."""
    names = {one.about.value for one in beside if one.kind == "MASTER_CHANGED"}
    if not names:
        return names
    rows = units.ask(
        f"""SELECT DISTINCT unnest([address, before_address]) FROM broker_events
        WHERE event_broker_name IN ({quoted(sorted(names))})"""
    )
    return names | {address for (address,) in rows if address}


def unknown_dimensions(units: Units, conditions: Sequence[Condition]) -> tuple[str, ...]:
    """Return the dimensions that no bad unit under the conditions has."""
    names = [name for name in DIMENSIONS[units.unit] if name not in ("key", "version", "started", "tag", "hour")]
    picks = ", ".join(f"count(*) FILTER ({name} <> '')" for name in names)
    [counts] = units.ask(
        f"SELECT {picks} FROM {units.table} WHERE {units.in_time} AND {units.is_bad} AND {where(conditions)}"
    )
    return tuple(name for name, count in zip(names, counts, strict=True) if not count)


def _is_known(units: Units, conditions: Sequence[Condition], name: str) -> bool:
    [(known, every)] = units.ask(
        f"""SELECT count(*) FILTER ({name} <> ''), count(*) FROM {units.table}
        WHERE {units.in_time} AND {units.is_bad} AND {where(conditions)}"""
    )
    return bool(every) and known >= KNOWN_SHARE * every


def _holds(fact: str, found: Explanation, units: Units, beside: Sequence[Neighbour]) -> bool:
    match fact:
        case "master_changed":
            brokers = {one.value for one in found.conditions if one.dimension == "broker"}
            return bool(brokers & _changed_brokers(units, beside))
        case "broker_changed":
            return any(one.kind in ("BROKER_SILENT", "QUEUE_RECREATED") for one in beside)
        case "clients_change_often":
            return any(one.kind in ("CLIENT_CAME", "CLIENT_LEFT") and one.is_many for one in beside)
        case "handlers_as_usual":
            return _handlers_as_usual(units, found.conditions)
        case "is_hot":
            return _is_hot(units, found)
    dimension = {"queues_spread": "queue", "hosts_spread": "client_host", "brokers_spread": "broker"}[fact]
    leading = {one.dimension for one in found.conditions}
    if dimension == "queue" and leading & {"client_host", "client"}:
        return True  # a host holds some of the queues
    return _is_spread(units, found, dimension)


def _handlers_as_usual(units: Units, conditions: Sequence[Condition]) -> bool:
    """Whether handlers of bad units take as long as those of good ones under the same conditions."""
    [(bad, good)] = units.ask(
        f"""SELECT median(cost_ms) FILTER ({units.is_bad} AND {units.in_time}), median(cost_ms) FILTER (symptoms = 0)
        FROM {units.table} WHERE {units.before} AND {where(conditions)}"""
    )
    return bad is not None and good is not None and bad <= USUAL_FACTOR * good + USUAL_MS


def _is_spread(units: Units, found: Explanation, dimension: str) -> bool:
    """Whether most values of a dimension, and at least two, have bad units about as often as all."""
    rows = units.ask(
        f"""SELECT count(*), count(*) FILTER ({units.is_bad}) FROM {units.table} WHERE {units.in_time}
        AND {where(found.conditions)} AND {dimension} <> ''
        GROUP BY {dimension} HAVING count(*) >= {SPREAD_UNITS_MIN}"""
    )
    every, bad = sum(row[0] for row in rows), sum(row[1] for row in rows)
    alike = [row for row in rows if row[1] * every * 2 >= bad * row[0]]
    return len(rows) >= 2 and bool(bad) and len(alike) * 10 >= len(rows) * 6


def _is_hot(units: Units, found: Explanation) -> bool:
    """Whether the queue has many more units than the others of its topic."""
    [queue] = [one.value for one in found.every if one.dimension == "queue"][:1] or [""]
    topic = queue.split("/")[1] if queue.count("/") >= 2 else ""
    beside = [Condition("topic", topic), *(one for one in found.every if one.dimension == "group_name")]
    counts: dict[str, int] = dict(
        units.ask(
            f"""SELECT queue, count(*) FROM {units.table}
            WHERE {units.in_time} AND queue <> '' AND {where(beside)} GROUP BY queue"""
        )
    )
    others = sorted(count for name, count in counts.items() if name != queue)
    return bool(others) and counts.get(queue, 0) >= HOT_FACTOR * others[len(others) // 2]
