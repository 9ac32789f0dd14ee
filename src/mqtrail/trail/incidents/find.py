"""Finds incidents: cuts bad units into episodes, explains each by contrast, names causes, joins what belongs together.

    find_incidents(ask, settings, found_ms=…, from_ms=…, to_ms=…)

The work is bounded: counts per bucket of time, then a sample of units of each episode. Only aggregates leave SQL.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict
from zlib import crc32

from ..kinds import literal
from .cases import DIMENSIONS, Ask, error_text, make_units
from .causes import NO_SINGLE_CAUSE
from .contrast import Condition, Explanation, Search, Split, where
from .episodes import Excess, spans
from .facts import Units, cause_of, unknown_dimensions
from .incident import Incident
from .neighbours import make_neighbours, neighbours_of
from .settings import MINUTE_MS, IncidentSettings
from .symptoms import Symptom, symptoms_of

BUCKETS_MAX = 1_440
BUCKET_MS_MIN = 10_000
INCIDENTS_MAX = 50
APART_MS = 10 * MINUTE_MS  # equal incidents closer to each other are one
_ABOUT = ("group_name", "client_host", "producer_host", "broker")  # dimensions that neighbours concern


@dataclass(frozen=True, slots=True)
class Episode:
    """Bad units of one symptom and error text in a time. error: None: of any text."""

    cluster: str
    symptom: Symptom
    bit: int
    error: str | None
    span: Excess
    bucket_ms: int
    repeated: float
    """Bad units per bad message."""

    @property
    def begin_ms(self) -> int:
        """Begin of its first bucket."""
        return self.span.first * self.bucket_ms

    @property
    def end_ms(self) -> int:
        """End of its last bucket."""
        return self.span.end * self.bucket_ms


@dataclass(frozen=True, slots=True)
class Finding:
    """An incident with what decides whether it joins another one."""

    incident: Incident
    symptom: Symptom
    explanation: Explanation
    rating: float


def find_incidents(
    ask: Ask, settings: IncidentSettings, *, found_ms: int, from_ms: int, to_ms: int
) -> tuple[Incident, ...]:
    """Return the incidents of [from_ms, to_ms), the largest first.

    ask: runs SQL of DuckDB over the lake's tables, by their names, of one cluster or of several.
    """
    found = symptoms_of(settings.codes)
    make_units(ask, found, settings, from_ms, to_ms)
    make_neighbours(ask, from_ms - 2 * settings.lead_ms, to_ms)
    bucket_ms = max(BUCKET_MS_MIN, -(-(to_ms - from_ms) // BUCKETS_MAX))
    episodes = [one for symptom in found for one in _episodes(ask, found, symptom, settings, bucket_ms)]
    episodes.sort(key=lambda one: (-one.span.is_raised, -one.span.bad_count))
    frame = (found_ms, from_ms, to_ms)
    findings = [
        finding for one in episodes[: settings.episodes_max] for finding in _findings(ask, one, settings, frame)
    ]
    order = [symptom.name for symptom in found]
    joined = _joined(sorted(findings, key=lambda one: (order.index(one.symptom.name), -one.rating)))
    joined.sort(key=lambda one: (one.cause == NO_SINGLE_CAUSE.name, -one.inside_bad_count, one.begin_ms))
    return tuple(joined[:INCIDENTS_MAX])


# -- episodes ------------------------------------------------------------------------------------------------------


def _episodes(
    ask: Ask, found: Sequence[Symptom], symptom: Symptom, settings: IncidentSettings, bucket_ms: int
) -> Iterator[Episode]:
    bit, table = 1 << found.index(symptom), f"{symptom.unit}_units"
    error = f"CASE WHEN detail = '' THEN '' ELSE {error_text('detail')} END" if symptom.has_error else "''"
    bad: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for cluster, bucket, text, count in ask(
        f"""SELECT cluster, at_ms // {bucket_ms}, {error}, count(*) FROM {table} WHERE symptoms & {bit} <> 0
        GROUP BY ALL"""
    ):
        bad[cluster, text][bucket] += count
    if not bad:
        return
    [(repeated,)] = ask(f"SELECT count(*) / count(DISTINCT (cluster, msg_id)) FROM {table} WHERE symptoms & {bit} <> 0")
    every: dict[str, dict[int, int]] = defaultdict(dict)
    for cluster, bucket, count in ask(f"SELECT cluster, at_ms // {bucket_ms}, count(*) FROM {table} GROUP BY ALL"):
        every[cluster][bucket] = count
    for (cluster, text), counts in _by_error_text(bad, settings.errors_max).items():
        for span in spans(counts, every[cluster], settings.doubt, settings.bad_count_min, repeated):
            yield Episode(cluster, symptom, bit, text, span, bucket_ms, repeated)


def _by_error_text(
    bad: dict[tuple[str, str], dict[int, int]], errors_max: int
) -> dict[tuple[str, str | None], dict[int, int]]:
    """Count the bad units of each frequent error of a cluster. The rest, and a single error, have the text None."""
    kept: dict[tuple[str, str | None], dict[int, int]] = {}
    for cluster in {cluster for cluster, _ in bad}:
        texts = sorted((text for name, text in bad if name == cluster), key=lambda t: -sum(bad[cluster, t].values()))
        for number, text in enumerate(texts):
            key = (cluster, text if len(texts) > 1 and number < errors_max else None)
            into = kept.setdefault(key, defaultdict(int))
            for bucket, count in bad[cluster, text].items():
                into[bucket] += count
    return kept


# -- explanations --------------------------------------------------------------------------------------------------


def _findings(ask: Ask, episode: Episode, settings: IncidentSettings, frame: tuple[int, int, int]) -> Iterator[Finding]:
    """Explain an episode: the best conditions, then those of what they leave, and so on."""
    _make_contrast(ask, episode, settings)
    search = Search(ask, episode.symptom.unit, settings, episode.repeated)
    explained = 0
    for _ in range(settings.causes_max):
        one = search.best()
        if one is None:
            break
        explained += one.split.inside_bad
        yield _finding(ask, episode, one, settings, frame)
        ask(f"DELETE FROM contrast WHERE is_bad = 1 AND {where(one.conditions)}")
    if not explained and episode.span.is_raised:
        yield _finding(ask, episode, Explanation((), Split(0, 0, 0, 0)), settings, frame)


def _make_contrast(ask: Ask, episode: Episode, settings: IncidentSettings) -> None:
    """Create the table contrast. A good unit counts as many times as its weight says."""
    lead_ms = min(settings.lead_ms, max(5 * MINUTE_MS, episode.end_ms - episode.begin_ms))
    own = f"cluster = {literal(episode.cluster)} AND at_ms < {episode.end_ms}"
    bad = f"{own} AND at_ms >= {episode.begin_ms} AND {_is_bad(episode)}"
    good = f"{own} AND at_ms >= {episode.begin_ms - lead_ms} AND symptoms = 0"
    table = f"{episode.symptom.unit}_units"
    [(bad_count,)] = ask(f"SELECT count(*) FROM {table} WHERE {bad}")
    [(good_count,)] = ask(f"SELECT count(*) FROM {table} WHERE {good}")
    bad_step = -(-bad_count // settings.bad_sample) or 1
    good_step = -(-good_count // settings.good_sample) or 1
    names = ", ".join(DIMENSIONS[episode.symptom.unit])
    ask(
        f"""CREATE OR REPLACE TEMP TABLE contrast AS
        SELECT {names}, 1 AS is_bad, {bad_step} AS weight FROM {table} WHERE {bad} AND hash(msg_id) % {bad_step} = 0
        UNION ALL
        SELECT {names}, 0, {good_step} FROM {table} WHERE {good} AND hash(msg_id) % {good_step} = 0"""
    )


def _is_bad(episode: Episode) -> str:
    bad = f"symptoms & {episode.bit} <> 0"
    for first, end in episode.span.holes:
        bad += f" AND NOT at_ms BETWEEN {first * episode.bucket_ms} AND {end * episode.bucket_ms - 1}"
    if episode.error is None:
        return bad
    text = f"CASE WHEN detail = '' THEN '' ELSE {error_text('detail')} END"
    return f"{bad} AND {text} = {literal(episode.error)}"


def _finding(
    ask: Ask, episode: Episode, one: Explanation, settings: IncidentSettings, frame: tuple[int, int, int]
) -> Finding:
    """Count the explanation over all units, find its begin and end, name its cause."""
    table, own = f"{episode.symptom.unit}_units", f"cluster = {literal(episode.cluster)}"
    in_span = f"{own} AND at_ms >= {episode.begin_ms} AND at_ms < {episode.end_ms}"
    begin_ms, end_ms = _bounds(ask, episode, one.conditions, settings, f"FROM {table} WHERE {in_span}")
    in_time = f"{own} AND at_ms BETWEEN {begin_ms} AND {end_ms}"
    lead_ms = min(settings.lead_ms, max(5 * MINUTE_MS, end_ms - begin_ms))
    units = Units(
        ask, episode.symptom.unit, episode.bit, in_time,
        f"{own} AND at_ms BETWEEN {begin_ms - lead_ms} AND {end_ms}",
    )  # fmt: skip
    bad = f"({_is_bad(episode)})"
    inside = where(one.conditions)
    [(every, every_bad, in_every, in_bad)] = ask(
        f"""SELECT count(*), count(*) FILTER ({bad}), count(*) FILTER ({inside}), count(*) FILTER ({inside} AND {bad})
        FROM {table} WHERE {in_time} AND ({bad} OR symptoms = 0)"""
    )
    split = Split(in_every, in_bad, every - in_every, every_bad - in_bad)
    counted = replace(one, split=split)
    about = tuple(each for each in one.every if each.dimension in _ABOUT)
    beside = neighbours_of(ask, episode.cluster, about, begin_ms, end_ms + 1)
    cause = cause_of(episode.symptom.name, counted, units, beside)
    found_ms, from_ms, to_ms = frame
    incident = Incident(
        cluster=episode.cluster,
        incident_id=_id_of(episode.cluster, cause.name, one.conditions, begin_ms),
        found_ms=found_ms,
        from_ms=from_ms,
        to_ms=to_ms,
        begin_ms=begin_ms,
        end_ms=end_ms,
        symptoms=episode.symptom.name,
        cause=cause.name,
        conditions=" AND ".join(map(str, one.conditions)),
        same_conditions="; ".join(map(str, one.same)),
        wider_conditions="; ".join(map(str, one.around)),
        neighbours="; ".join(map(str, beside)),
        unknown=",".join(unknown_dimensions(units, one.conditions)),
        inside_count=split.inside,
        inside_bad_count=split.inside_bad,
        outside_count=split.outside,
        outside_bad_count=split.outside_bad,
        certainty=_certainty(counted),
        **_described(units, episode, inside, settings.examples),
    )
    return Finding(incident, episode.symptom, counted, split.rating)


def _id_of(cluster: str, cause: str, conditions: Sequence[Condition], begin_ms: int) -> str:
    """Eight hexadecimal digits. The minute of the begin counts, so that a few later rows do not change it."""
    return f"{crc32(repr((cluster, cause, sorted(conditions), begin_ms // MINUTE_MS)).encode()):08x}"


def _certainty(one: Explanation) -> int:
    """-log10 of the chance: the tail of the likelihood ratio, times the number of conditions tried."""
    if not one.conditions:
        return 0
    return max(0, int((one.split.rating - math.log(max(1, one.tried))) / math.log(10)))


class _Described(TypedDict):
    codes: str
    errors: str
    message_count: int
    group_count: int
    topic_count: int
    examples: str
    good_examples: str


def _described(units: Units, episode: Episode, inside: str, count: int) -> _Described:
    """What the bad units under the conditions are: codes, errors, extent, and ids as proof."""
    bad = f"{units.in_time} AND {inside} AND {_is_bad(episode)}"
    group = "count(DISTINCT group_name)" if units.unit == "group" else "0"
    good = f"{units.in_time} AND symptoms = 0 AND NOT ({inside})"
    [(messages, groups, topics)] = units.ask(
        f"SELECT count(DISTINCT msg_id), {group}, count(DISTINCT topic) FROM {units.table} WHERE {bad}"
    )
    codes = units.ask(
        f"""SELECT DISTINCT unnest(string_split(codes, ',')) AS code FROM {units.table} WHERE {bad} ORDER BY code"""
    )
    chosen = set(episode.symptom.codes)
    errors = units.ask(
        f"""SELECT {error_text("detail")} AS error FROM {units.table} WHERE {bad} AND detail <> '' GROUP BY error
        ORDER BY count(*) DESC, error LIMIT 3"""
    )
    return _Described(
        codes=",".join(code for (code,) in codes if code in chosen),
        errors="; ".join(text.replace(";", ",") for (text,) in errors),
        message_count=messages,
        group_count=groups,
        topic_count=topics,
        examples=_first_ids(units, bad, count),
        good_examples=_first_ids(units, good, count),
    )


def _first_ids(units: Units, where: str, count: int) -> str:
    """Return the ids of the first messages, each once: several groups may have a unit of one message."""
    found = units.ask(
        f"SELECT msg_id FROM {units.table} WHERE {where} GROUP BY msg_id ORDER BY min(at_ms), msg_id LIMIT {count}"
    )
    return ",".join(msg_id for (msg_id,) in found)


# -- what belongs together -----------------------------------------------------------------------------------------


def _joined(findings: Sequence[Finding]) -> list[Incident]:
    """Join findings of one place and time. They come in causal order: the first one keeps its conditions."""
    kept: list[Finding] = []
    for one in findings:
        for number, earlier in enumerate(kept):
            if _is_one(earlier, one):
                kept[number] = replace(earlier, incident=_both(earlier.incident, one.incident))
                break
        else:
            kept.append(one)
    return [one.incident for one in kept]


def _is_one(earlier: Finding, later: Finding) -> bool:
    """Whether both are of one cluster, overlap for half of the shorter one, and are of one place."""
    a, b = earlier.incident, later.incident
    if a.cluster != b.cluster:
        return False
    shared_ms = min(a.end_ms, b.end_ms) - max(a.begin_ms, b.begin_ms)
    if earlier.symptom == later.symptom and a.conditions and a.conditions == b.conditions:
        return shared_ms >= -APART_MS
    if shared_ms < 0 or 2 * shared_ms < min(a.end_ms - a.begin_ms, b.end_ms - b.begin_ms):
        return False
    own, other = earlier.explanation, later.explanation
    if not own.conditions or not other.conditions:
        return not own.conditions and not other.conditions and earlier.symptom == later.symptom
    if set(own.conditions) & {*other.conditions, *other.same} or set(other.conditions) & set(own.same):
        return True
    return later.symptom.name == "WAITS" and _groups_of(own) == _groups_of(other) != set()


def _groups_of(one: Explanation) -> set[str]:
    return {each.value for each in one.every if each.dimension == "group_name"}


def _both(first: Incident, second: Incident) -> Incident:
    """The first incident, with the symptoms, codes, errors and time of the second one."""
    named = second if first.cause == NO_SINGLE_CAUSE.name else first
    return replace(
        named,
        begin_ms=min(first.begin_ms, second.begin_ms),
        end_ms=max(first.end_ms, second.end_ms),
        symptoms=_union(named.symptoms, first.symptoms, second.symptoms, by=","),
        codes=_union(first.codes, second.codes, by=","),
        errors=_union(first.errors, second.errors, by="; "),
        neighbours=_union(first.neighbours, second.neighbours, by="; "),
    )


def _union(*texts: str, by: str) -> str:
    return by.join(dict.fromkeys(part for text in texts for part in text.split(by) if part))


def _bounds(
    ask: Ask, episode: Episode, conditions: Sequence[Condition], settings: IncidentSettings, units: str
) -> tuple[int, int]:
    """First and last bad unit under the conditions; single ones long before or after are left out."""
    inside = where(conditions)
    rows = ask(
        f"""SELECT at_ms // {episode.bucket_ms} AS bucket, count(*) FILTER ({_is_bad(episode)}) AS bad, count(*)
        {units} AND {inside} GROUP BY bucket"""
    )
    bad = {bucket: count for bucket, count, _ in rows if count}
    found = [one for one in spans(bad, {row[0]: row[2] for row in rows}, settings.doubt, 1) if one.is_raised]
    first, end = (found[0].first, found[-1].end) if found else (episode.span.first, episode.span.end)
    [(begin_ms, end_ms)] = ask(
        f"""SELECT min(at_ms), max(at_ms) {units} AND {inside} AND {_is_bad(episode)}
        AND at_ms >= {first * episode.bucket_ms} AND at_ms < {end * episode.bucket_ms}"""
    )
    return begin_ms, end_ms
