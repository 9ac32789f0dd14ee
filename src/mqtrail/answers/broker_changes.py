"""Changes of masters that may explain what happened to a message, and those of a time: rows of `broker_events`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mqtrail import trail
from mqtrail.lake import connect, fetch, relation_of

from .lakeview import LakeView
from .live import Row
from .model import BrokerChange, BrokerChanges, Trajectory

if TYPE_CHECKING:
    import duckdb

OF_MESSAGE_MAX: Final = 20  # changes shown of one message
OF_REPORT_MAX: Final = 20  # changes that a report shows
OF_TIME_MAX: Final = 200  # changes of a time that are shown
LATER_MS: Final = 60_000  # the new master of a send without a result may begin so long after the last try
CLOCKS_MS: Final = 100  # how far the clocks of brokers and clients may differ
_SHOWN: Final = ("BECAME_MASTER", "MASTER_CHANGED", "MASTER_GONE", "STOPPED", "TRUNCATED")
_COLUMNS: Final = (
    "source, event_ms, event_broker_name, event, broker_id, address, epoch, reason, before_id, before_address, "
    "before_epoch, before_until_ms, from_offset, to_offset, detail, broker_name, queue_id, queue_offset, record_no"
)


def with_broker_changes(
    view: LakeView | None, found: Sequence[Trajectory], live: Sequence[Row] = ()
) -> list[Trajectory]:
    """Return trajectories, each with the changes of the masters of its brokers during its time.

    live: rows of BROKER_EVENTS that the cluster has; the lake may have them too.
    """
    has_some = bool(live) or (view is not None and bool(view.lookup.lake[trail.BROKER_EVENTS.name].files()))
    if not found or not has_some:
        return list(found)
    duck = connect() if view is None else view.connection
    _define(duck, view, live)
    return [replace(one, broker_changes=tuple(_of_message(duck, one))) for one in found]


def broker_changes(
    view: LakeView, now_ms: int, first_ms: int | None, end_ms: int | None, broker: str = ""
) -> BrokerChanges:
    """Return the events of brokers of [first_ms, end_ms), the latest first; None: without a bound. broker: its name;
    '': all."""
    _define(view.connection, view)
    rows = fetch(
        view.connection,
        f"""SELECT {_COLUMNS}, count(*) OVER () AS matched FROM broker_changes
        WHERE event_ms >= ? AND event_ms < ? AND (? = '' OR event_broker_name = ?) AND (? = '' OR cluster = ?)
        ORDER BY event_ms DESC, event_broker_name, event, address LIMIT {OF_TIME_MAX}""",
        [first_ms or 0, 2**62 if end_ms is None else end_ms, broker, broker, view.cluster, view.cluster],
    )
    scope = view.scope(now_ms, first_ms=first_ms, end_ms=end_ms)
    return BrokerChanges(scope, rows[0]["matched"] if rows else 0, tuple(_change(row) for row in rows))


def changes_of_masters(view: LakeView, first_ms: int | None, end_ms: int | None) -> tuple[BrokerChange, ...]:
    """Return the latest changes of masters, stops and removed ends of logs in [first_ms, end_ms), the latest first."""
    _define(view.connection, view)
    rows = fetch(
        view.connection,
        f"""SELECT {_COLUMNS} FROM broker_changes
        WHERE event IN ({trail.quoted(_SHOWN)}) AND event_ms >= ? AND event_ms < ?
        ORDER BY event_ms DESC, event_broker_name, event, address LIMIT {OF_REPORT_MAX}""",
        [first_ms or 0, 2**62 if end_ms is None else end_ms],
    )
    return tuple(_change(row) for row in rows)


def _define(duck: duckdb.DuckDBPyConnection, view: LakeView | None, live: Sequence[Row] = ()) -> None:
    """Define the table broker_changes: of the lake, and of the cluster."""
    sources = []
    if view is not None:
        sources.append(relation_of(view.lookup.lake[trail.BROKER_EVENTS.name], cluster=view.cluster))
    if live:
        from mqtrail.lake import arrow_rows  # with Arrow

        duck.register("live_broker_events", arrow_rows(trail.BROKER_EVENTS, live))
        sources.append(f"SELECT {', '.join(trail.BROKER_EVENTS.names)} FROM live_broker_events")
    columns = ", ".join(trail.BROKER_EVENTS.names)
    rows = " UNION ALL ".join(f"SELECT {columns} FROM ({source}) AS events" for source in sources)
    duck.execute(f"CREATE OR REPLACE TEMP TABLE read_broker_events AS {rows}")
    duck.execute(f"CREATE OR REPLACE TEMP TABLE broker_changes AS {trail.distinct_events_sql('read_broker_events')}")


def _of_message(duck: duckdb.DuckDBPyConnection, one: Trajectory) -> Iterator[BrokerChange]:
    span = _span(one)
    if span is None:
        return
    places = sorted({one.place, one.producer_host, *(event.place for event in one.events)} - {""})
    rows = fetch(
        duck,
        f"""SELECT {_COLUMNS} FROM broker_changes
        WHERE cluster = ? AND event IN ({trail.quoted(_SHOWN)})
          AND coalesce(before_until_ms, event_ms) <= ? AND event_ms >= ?
          AND event_broker_name IN (SELECT unnest(?) UNION SELECT event_broker_name FROM broker_changes
            WHERE cluster = ? AND (list_contains(?, address) OR list_contains(?, before_address)))
        ORDER BY event_ms, address LIMIT {OF_MESSAGE_MAX}""",
        [
            one.cluster,
            span[1] + CLOCKS_MS,
            span[0] - CLOCKS_MS,
            [place.partition("/")[0] for place in places],
            one.cluster,
            places,
            places,
        ],
    )
    for row in rows:
        yield _change(row)


def _span(one: Trajectory) -> tuple[int, int] | None:
    """Return the first and the last time of what happened to the message; None: no time is known."""
    known = [at_ms for at_ms in (one.send_start_ms, one.stored_ms, one.visible_ms) if at_ms is not None]
    known += [event.at_ms + (event.duration_ms or 0) for event in one.events if event.at_ms]
    if not known:
        return None
    first_ms, last_ms = min([*known, *(event.at_ms for event in one.events if event.at_ms)]), max(known)
    is_plain = set(one.send_codes) <= {"SEND_OK"} and one.stored_ms is not None
    return first_ms, last_ms if is_plain else last_ms + LATER_MS


def _change(row: Mapping[str, Any]) -> BrokerChange:
    is_sampled = row["source"] == trail.FROM_SAMPLE
    place = f"{row['broker_name']}/{row['queue_id']}@{row['queue_offset']}#{row['record_no']}"
    return BrokerChange(
        at_ms=row["event_ms"],
        broker=row["event_broker_name"],
        event=row["event"],
        broker_id=row["broker_id"],
        address=row["address"],
        epoch=row["epoch"],
        reason=row["reason"],
        before_id=row["before_id"],
        before_address=row["before_address"],
        before_epoch=row["before_epoch"],
        before_until_ms=row["before_until_ms"],
        from_offset=row["from_offset"],
        to_offset=row["to_offset"],
        detail=row["detail"],
        evidence=f"sample:{row['event_ms']}" if is_sampled else f"trace:{place}",
    )
