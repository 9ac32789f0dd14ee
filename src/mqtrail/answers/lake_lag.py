"""The lag of the groups of one cluster as of the last sample in a lake, by the rules of `mqtrail.client`.

Nothing is asked of the cluster. What the lake lacks is unknown, with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mqtrail import trail
from mqtrail.client import (
    OFFSETS_AT_MEMBERS,
    ClusterLag,
    GroupLag,
    QueueLag,
    QueueReading,
    WaitingMessage,
    group_lag,
    queue_lag,
    ranked_lags,
    reasons_of,
    with_age,
)
from mqtrail.lake import connect, define, fetch, rows_of, run_stages, sample_files
from mqtrail.trail import Stage
from mqtrail.wire import RETRY_PREFIX

from .lag_sql import OVER_MS, LagSql
from .lakeview import LakeView
from .live import Row

NOT_SAMPLED: Final = "not in the last sample: its broker did not answer, or the group's offset is gone"
NOT_READ: Final = "the first waiting message is not in the lake: its topic is not read, or not so far"
DELAYED_NOT_READ: Final = "delayed copies are unknown: the topics in which they wait were not read up to the sample"
_MEMBERS = (trail.CLIENTS.name, trail.SUBSCRIPTIONS.name, trail.SAMPLES.name)
_Place = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class _Members:
    """What a sample says about the members of a group. count: None: unknown."""

    count: int | None = None
    is_broadcasting: bool = False


def lake_lag(
    view: LakeView, cluster: str, now_ms: int, group: str | None = None, over_ms: int = OVER_MS, oldest_count: int = 0
) -> ClusterLag:
    """Return the lag of the groups, or of one, with its oldest_count messages that have waited longest.

    over_ms: the trend is since the latest sample that is older than the last one by this, or since the first one.
    """
    view.lookup.define_views(cluster=cluster)
    sql = LagSql(over_ms=over_ms)
    samples = fetch(view.connection, sql.samples)
    if not samples:
        return ClusterLag(now_ms, (), (f"the lake has no sample of the offsets of cluster {cluster}",))
    [taken] = samples
    where, values = ("WHERE group_name = ?", [group]) if group is not None else ("", [])
    rows: dict[str, list[Row]] = defaultdict(list)
    order = "is_retry, topic, broker_name, queue_id"
    for row in fetch(view.connection, f"SELECT * FROM ({sql.queues}) AS queues {where} ORDER BY {order}", values):
        rows[row["group_name"]].append(row)
    members = _members(view, cluster, taken["last_ms"])
    delayed = {row["group_name"]: row["delayed_count"] for row in fetch(view.connection, sql.delayed)}
    is_read = any(row["is_read"] for row in fetch(view.connection, sql.delayed_read))
    groups = [
        _group(name, rows[name], members.get(name, _Members()), delayed.get(name, 0) if is_read else None)
        for name in sorted(rows)
    ]
    over = None if taken["earlier_ms"] is None else taken["last_ms"] - taken["earlier_ms"]
    oldest: tuple[WaitingMessage, ...] = ()
    if group is not None and oldest_count:
        oldest = tuple(_oldest(view, groups, taken["last_ms"], oldest_count))
    waiting = sum(lag.lag_count or 0 for one in groups for lag in one.queues)
    looked_at_count = waiting if oldest else 0
    return ClusterLag(
        taken["last_ms"],
        tuple(ranked_lags(groups)),
        over_ms=over,
        oldest=oldest,
        looked_at_count=looked_at_count,
    )


def _group(name: str, rows: Iterable[Row], members: _Members, delayed_count: int | None) -> GroupLag:
    readings: list[QueueReading] = []
    earlier: dict[_Place, QueueReading] = {}
    lags: list[QueueLag] = []
    for row in rows:
        reading = _reading(row, members)
        lag = queue_lag(reading)
        if lag.waits:
            lag = with_age(lag, row["lag_ms"], NOT_READ)
        readings.append(reading)
        lags.append(lag)
        if row["earlier_ms"] is not None:
            earlier[reading.place] = _reading(row, members, "earlier_", row["earlier_ms"])
    why = [*reasons_of(lags), *([DELAYED_NOT_READ] if delayed_count is None else [])]
    return group_lag(name, lags, readings, earlier, member_count=members.count, delayed_count=delayed_count, why=why)


def _reading(row: Row, members: _Members, prefix: str = "", at_ms: int | None = None) -> QueueReading:
    sampled_ms = row["last_ms"] if at_ms is None else at_ms
    why = NOT_SAMPLED if not prefix and not row["is_sampled"] else OFFSETS_AT_MEMBERS if members.is_broadcasting else ""
    return QueueReading(
        row["topic"],
        row["broker_name"],
        row["queue_id"],
        row[f"{prefix}consumer_offset"],
        row[f"{prefix}min_offset"],
        row[f"{prefix}max_offset"],
        offset_ms=sampled_ms,
        range_ms=sampled_ms,
        starts_at_first=row["topic"].startswith(RETRY_PREFIX),
        why=why,
    )


def _members(view: LakeView, cluster: str, sampled_ms: int) -> Mapping[str, _Members]:
    """The members of the groups of a sample; a group that could not be asked is absent."""
    duck, lake = connect(threads=1), view.lookup.lake
    try:
        files = sample_files(lake, sampled_ms, cluster)
        for name in _MEMBERS:
            define(duck, Stage(name, rows_of(lake[name], files[name], cluster), ()))
        run_stages(duck, trail.member_stages(sampled_ms))
        counts = fetch(
            duck,
            "SELECT group_name, bool_or(status = 'ERROR') AS failed, count(*) FILTER (status = 'OK') AS members "
            "FROM client_states WHERE sampled_ms = ? GROUP BY group_name",
            [sampled_ms],
        )
        models = fetch(
            duck,
            "SELECT DISTINCT group_name FROM subscription_states WHERE sampled_ms = ? "
            "AND message_model = 'BROADCASTING'",
            [sampled_ms],
        )
    finally:
        duck.close()
    broadcasting = {row["group_name"] for row in models}
    found = {name: _Members(None, is_broadcasting=True) for name in broadcasting}
    return found | {
        row["group_name"]: _Members(None if row["failed"] else row["members"], row["group_name"] in broadcasting)
        for row in counts
    }


def _oldest(view: LakeView, groups: Iterable[GroupLag], last_ms: int, count: int) -> Iterator[WaitingMessage]:
    """Yield the messages of a group that have waited longest, of the queues whose first one is in the lake."""
    waiting = [lag for one in groups for lag in one.queues if lag.waits and lag.lag_ms is not None]
    if not waiting:
        return
    since_ms = last_ms - max(lag.lag_ms or 0 for lag in waiting)
    queues = ", ".join(["(?, ?, ?, ?, ?)"] * len(waiting))
    values = [
        value
        for lag in waiting
        for value in (lag.topic, lag.broker_name, lag.queue_id, lag.next_offset, lag.max_offset)
    ]
    rows = fetch(
        view.connection,
        f"""SELECT topic, broker_name, queue_id, queue_offset, coalesce(nullif(own_unique_key, ''),
          nullif(last_unique_key, ''), offset_msg_id) AS msg_id, keys, max(store_ms) AS store_ms
        FROM message_meta SEMI JOIN (VALUES {queues}) AS q(topic, broker_name, queue_id, first, past)
          ON message_meta.topic = q.topic AND message_meta.broker_name = q.broker_name
          AND message_meta.queue_id = q.queue_id AND queue_offset >= first AND queue_offset < past
        WHERE store_ms >= ? AND store_ms <= ? GROUP BY ALL ORDER BY store_ms, topic, broker_name, queue_id, queue_offset
        LIMIT ?""",
        [*values, since_ms, last_ms, count],
    )
    for row in rows:
        place = (row["topic"], row["broker_name"], row["queue_id"], row["queue_offset"])
        yield WaitingMessage(*place, row["msg_id"], row["keys"], row["store_ms"], last_ms - row["store_ms"], None)
