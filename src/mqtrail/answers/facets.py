"""Counts of the messages that match a search by the values of their fields, and names to complete a search with.

A count is what a search with the value's term added finds, if all matches were counted. Of more than COUNTED_MAX only
the latest are counted, and the answer states it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final

from mqtrail import trail
from mqtrail.lake import fetch

from .lakeview import LakeView
from .model import SearchConditions
from .query_text import FACETS, FIELDS, term_text
from .search import condition, reason_names
from .summaries import Facet, FacetsAnswer, FacetValue, SearchNames
from .views import PUBLISHED_MS

COUNTED_MAX: Final = 100_000  # messages
VALUES_MAX: Final = 500  # values of a field in an answer

_MINE: Final = "SELECT cluster, msg_id, {} AS value FROM counted_groups WHERE {}"
_COLUMNS: Final = (
    "t.cluster, t.msg_id, t.topic, t.tags, t.broker_name, t.producer_group, t.send_codes, t.message_codes, "
    "t.group_codes, t.knowledge, t.reasons"
)


def facets(view: LakeView, wanted: SearchConditions, now_ms: int, values_max: int) -> FacetsAnswer:
    """Return for each of FACETS that the search does not have its most frequent values. values_max: to VALUES_MAX."""
    asked_ms = wanted.first_ms
    view.define_views(asked_ms, wanted.end_ms)
    matched = counted = _define_counted(view, wanted, COUNTED_MAX + 1)
    if matched > COUNTED_MAX:
        matched, first_ms = _counted_range(view, wanted)
        if first_ms is not None:
            view.define_views(first_ms, wanted.end_ms)  # fewer files
            wanted = replace(wanted, first_ms=first_ms)
        counted = _define_counted(view, wanted, COUNTED_MAX)
    found = _facets_of(view, wanted, min(values_max, VALUES_MAX))
    extra = [
        f"{one.field}: {one.value_count - len(one.values)} of {one.value_count} values are left out, the rarest"
        for one in found
        if one.value_count > len(one.values)
    ]
    if matched > counted:
        extra.insert(0, f"the latest {counted} of {matched} matching messages are counted: narrow the search for all")
    scope = view.scope(now_ms, extra, first_ms=asked_ms, end_ms=wanted.end_ms)
    return FacetsAnswer(scope, matched, counted, tuple(found))


def _counted_range(view: LakeView, wanted: SearchConditions) -> tuple[int, int | None]:
    """Return the number of matches, and since when those to count were published; None: all are counted."""
    where, values = condition(wanted)
    [row] = fetch(
        view.connection,
        f"""SELECT coalesce(sum(n), 0)::bigint AS matched, min(second) FILTER (so_far <= {COUNTED_MAX}) AS since,
          max(second) AS latest
        FROM (SELECT second, n, sum(n) OVER (ORDER BY second DESC NULLS LAST) AS so_far
          FROM (SELECT {PUBLISHED_MS} // 1000 AS second, count(*) AS n FROM trajectories AS t
            WHERE {where} GROUP BY second))""",
        values,
    )
    matched: int = row["matched"]
    since = row["latest"] if row["since"] is None else row["since"]
    return matched, None if matched <= COUNTED_MAX or since is None else since * 1000


def _define_counted(view: LakeView, wanted: SearchConditions, most: int) -> int:
    """Define the table `counted`, of the messages to count, at most so many; return their number."""
    where, values = condition(wanted)
    view.connection.execute(
        f"CREATE OR REPLACE TEMP TABLE counted AS SELECT {_COLUMNS} FROM trajectories AS t WHERE {where} "
        f"LIMIT {most}",  # of more in one second any
        values,
    )
    [row] = fetch(view.connection, "SELECT count(*) AS n FROM counted")
    return int(row["n"])


def _facets_of(view: LakeView, wanted: SearchConditions, values_max: int) -> list[Facet]:
    """Return the facets that a search does not have yet, of the messages in `counted`."""
    view.connection.execute(
        "CREATE OR REPLACE TEMP TABLE counted_groups AS SELECT v.cluster, v.msg_id, v.group_name, v.codes, v.reasons "
        "FROM verdicts AS v SEMI JOIN counted USING (cluster, msg_id)"
    )
    names = [name for name in FACETS if not getattr(wanted, FIELDS[name].attribute)]
    return [_facet(view, name, wanted, values_max) for name in names]


def _facet(view: LakeView, name: str, wanted: SearchConditions, values_max: int) -> Facet:
    source, values = _values_sql(name, wanted)
    rows = fetch(
        view.connection,
        f"""SELECT value, count(*) AS n, count(*) OVER () AS value_count
        FROM (SELECT DISTINCT cluster, msg_id, value FROM ({source}) WHERE value <> '')
        GROUP BY value ORDER BY n DESC, value LIMIT {values_max}""",
        values,
    )
    some = tuple(FacetValue(row["value"], int(row["n"]), term_text(name, row["value"])) for row in rows)
    return Facet(name, some, int(rows[0]["value_count"]) if rows else 0)


def _values_sql(name: str, wanted: SearchConditions) -> tuple[str, list[Any]]:
    """Return SQL for the values of each message, by the rules of `search`, and its values."""
    of_all = "SELECT cluster, msg_id, {} AS value FROM counted"
    in_group, mine = ("group_name = ?", [wanted.group_name]) if wanted.group_name else ("true", [])
    match name:
        case "group":
            return f"{of_all.format('producer_group')} UNION ALL {_MINE.format('group_name', 'true')}", []
        case "verdict":
            own = "unnest(string_split(concat_ws(',', send_codes, message_codes, knowledge), ','))"
            groups = _MINE.format("unnest(string_split(codes, ','))", in_group)
            return f"{of_all.format(own)} UNION ALL {groups}", mine
        case "reason":
            names = f"unnest({reason_names('reasons')})"
            return f"{of_all.format(names)} UNION ALL {_MINE.format(names, in_group)}", mine
    column = {"topic": "topic", "tag": "tags", "broker": "broker_name"}[name]
    return of_all.format(column), []


def search_names(view: LakeView, now_ms: int, topic: str) -> SearchNames:
    """Return the names that a search can have, each field's in order. topic: only those of its messages.

    Topics, groups, brokers and hosts are those of the lake's last day; with a topic, and all others, those of its
    latest messages.
    """
    first_ms, end_ms = view.searched_range(None, None) or (None, None)
    wanted = SearchConditions(topic=topic, first_ms=first_ms, end_ms=end_ms)
    if topic:
        answer = facets(view, wanted, now_ms, VALUES_MAX)
        scope, found = answer.scope, list(answer.facets)
    else:
        view.lookup.define_views(cluster=view.cluster, hours=_latest_hours(view))
        read = _define_counted(view, wanted, COUNTED_MAX)
        extra = [f"tags, reasons and producer groups are those of {read} messages of the latest hours"]
        scope = view.scope(now_ms, extra, first_ms=first_ms, end_ms=end_ms)
        found = _facets_of(view, wanted, VALUES_MAX)
    names: dict[str, set[str]] = {name: set() for name in (*FACETS, "host")}
    for one in found:
        names[one.field] |= {each.value for each in one.values}
    names["verdict"] |= set(trail.CODES)
    if topic:
        names["topic"].add(topic)
    else:
        _add_known(view, names, first_ms or 0)
    cut = [
        f"{name}: more than {VALUES_MAX} names are known, the first ones are listed"
        for name, some in names.items()
        if len(some) > VALUES_MAX
    ]
    return SearchNames(
        replace(scope, omissions=(*scope.omissions, *cut)),
        {name: tuple(sorted(some)[:VALUES_MAX]) for name, some in names.items()},
    )


def _latest_hours(view: LakeView) -> list[int]:
    """Return the latest publish hours that have COUNTED_MAX messages together: what was sent before is not read."""
    rows = Counter[int]()
    for file in view.lookup.lake[trail.TRAJECTORIES.name].files():
        if file.hour is not None:
            rows[file.hour] += file.row_count
    hours: list[int] = []
    for hour in sorted(rows, reverse=True):
        if sum(rows[one] for one in hours) >= COUNTED_MAX:
            break
        hours.append(hour)
    return hours


def _add_known(view: LakeView, names: dict[str, set[str]], first_ms: int) -> None:
    """Add the names in the small tables, which have all of them, also those of rare messages."""
    sources = (
        ("topic", "topic", "lag", "sampled_ms"),
        ("group", "group_name", "lag", "sampled_ms"),
        ("broker", "broker_name", "lag", "sampled_ms"),
        ("topic", "topic", "latency_minute", "minute_ms"),
        ("group", "group_name", "latency_minute", "minute_ms"),
        ("host", "host", "clock_bounds", "window_ms"),
    )
    for name, column, table, at in sources:
        rows = fetch(
            view.connection,
            f"SELECT DISTINCT {column} AS value FROM {table} WHERE {at} >= ? AND {column} <> '' "
            f"AND NOT starts_with({column}, '%') ORDER BY value LIMIT {VALUES_MAX + 1}",
            [first_ms],
        )
        names[name] |= {row["value"] for row in rows}
