"""Times with missing trace that may explain what a message lacks: the rows of the view `coverage` of its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mqtrail import trail
from mqtrail.lake import fetch, relation_of

from .lakeview import LakeView
from .model import CoverageTime, Trajectory

SHOWN_MAX: Final = 5  # of one message
LATER_MS: Final = 600_000  # a record can be lost until so long after the last event that is known
_OF_SENDS: Final = ("NO_SEND_RECORD", "PRODUCER_NOT_TRACED", "SEND_")
_LIKELIEST: Final = ", ".join(f"'{kind}'" for kind in trail.COVERAGE_LACKS)


def with_coverage(view: LakeView, found: Sequence[Trajectory]) -> list[Trajectory]:
    """Return trajectories; those that are not COMPLETE with the times in which their records can have been lost."""
    if all(one.knowledge == "COMPLETE" for one in found):
        return list(found)
    for name in trail.COVERAGE_TABLES:
        rows = relation_of(view.lookup.lake[name], cluster=view.cluster)
        view.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {rows}")
    view.connection.execute(f"CREATE OR REPLACE TEMP TABLE coverage AS {trail.coverage_sql()}")
    return [one if one.knowledge == "COMPLETE" else replace(one, coverage=tuple(_times(view, one))) for one in found]


def _times(view: LakeView, one: Trajectory) -> Iterator[CoverageTime]:
    known = [at_ms for at_ms in (one.send_start_ms, one.stored_ms, one.visible_ms) if at_ms is not None]
    known += [event.at_ms for event in one.events if event.at_ms]
    if not known:
        return
    groups = [group.group_name for group in one.groups if group.reasons or group.state == "UNKNOWN"]
    hosts = [one.producer_host.rpartition(":")[0]] if any(map(_is_of_send, one.reasons)) else []
    rows = fetch(
        view.connection,
        f"""SELECT kind, client_id, nullif(from_ms, 0) AS from_ms, to_ms, lost_count, reason FROM coverage
        WHERE cluster = ? AND kind IN ({_LIKELIEST}) AND from_ms <= ? AND (to_ms IS NULL OR to_ms >= ?)
          AND (client_id = '' OR list_has_any(string_split(groups, ','), ?::VARCHAR[])
            OR list_contains(?::VARCHAR[], host))
        ORDER BY list_position([{_LIKELIEST}], kind), from_ms DESC, client_id LIMIT {SHOWN_MAX}""",
        [one.cluster, min(max(known) + LATER_MS, one.as_of_ms), min(known), groups, hosts],
    )
    for row in rows:
        yield CoverageTime(**row)


def _is_of_send(reason: str) -> bool:
    return reason.startswith(_OF_SENDS)
