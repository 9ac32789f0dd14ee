"""Messages that groups had not read and a queue no longer has, because other messages have their offsets now.

`Rewinds` finds such a queue, when its broker has already forgotten the messages, and often the offsets of groups. So
the greatest offset of each group comes from the samples in the lake, and so does whether it had a client since the
first of these messages was stored. If no sampler was running for a while before they were lost, that is not known.

A topic that is deleted and created again gets new messages behind all others of the CommitLog. If a new message has the
place of a lost one in the CommitLog, or is before it, the broker lost the end of its CommitLog, or all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mqtrail import trail
from mqtrail.lake import Lake, connect, lake_errors, of_cluster, relation_of, sample_files
from mqtrail.wire import RecordError, decode_head

from .changes import JOINED
from .cluster import Cluster, Retrying
from .config import NOT_RUNNING
from .offsets import QueueOffsets, QueueRange
from .positions import Position

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Truncated:
    """Messages that were read of a queue and are gone. stored_ms, physical_offset: of the first one at these offsets
    now. is_tail: the queue still has the messages before them.
    """

    range: QueueRange
    stored_ms: int
    physical_offset: int
    is_tail: bool


def truncated_of(
    connection: Cluster, position: Position, found: QueueOffsets, firsts: QueueOffsets, retrying: Retrying
) -> list[Truncated]:
    """Return what is gone. found: the first offset with another message of each queue. firsts: their first offsets."""
    gone = []
    for queue, first in sorted(found.items()):
        pulled = retrying(f"pull of {queue} at {first}", partial(connection.pull, queue, first, 1))
        try:
            head = decode_head(pulled.records[0])
        except (IndexError, RecordError):
            continue  # without its time a new message looks like an old one
        if first < position.offsets[queue]:
            lost = QueueRange(queue, first, position.offsets[queue])
            gone.append(Truncated(lost, head.store_timestamp_ms, head.physical_offset, first > firsts[queue]))
    return gone


def rows_of_truncated(lake: Lake, cluster: str, gone: list[Truncated]) -> list[Row]:
    """Return the rows of trail.UNREAD_RANGES of what is gone."""
    lake.refresh()
    duck = connect(threads=1)
    try:
        with lake_errors(lake.path):
            return [row for each in gone for row in _of_one(lake, duck, cluster, each)]
    finally:
        duck.close()


def _of_one(lake: Lake, duck: duckdb.DuckDBPyConnection, cluster: str, gone: Truncated) -> Iterator[Row]:
    queue, at_ms = gone.range.queue, gone.stored_ms - 1
    place = "cluster = ? AND topic = ? AND broker_name = ? AND queue_id = ?"
    values = [cluster, queue.topic, queue.broker_name, queue.queue_id]
    metas = lake[trail.MESSAGE_META.name]
    files = [file for file in of_cluster(metas.files(), cluster) if file.may_hold("topic", queue.topic)]
    [(since_ms, log_offset)] = duck.execute(
        f"SELECT min(store_ms), min(physical_offset) FROM ({relation_of(metas, files)}) AS metas WHERE {place} "
        "AND store_ms <= ? AND queue_offset >= ? AND queue_offset < ?",
        [*values, at_ms, gone.range.start, gone.range.end],
    ).fetchall()
    if since_ms is None:
        return  # no message of it was read
    samples = {name: relation_of(lake[name], found) for name, found in sample_files(lake, since_ms, cluster).items()}
    offsets = duck.execute(
        f"SELECT group_name, max(consumer_offset) FROM ({samples[trail.GROUP_OFFSETS.name]}) AS offsets WHERE {place} "
        "AND sampled_ms <= ? GROUP BY group_name ORDER BY group_name",
        [*values, at_ms],
    ).fetchall()
    clients = dict(
        duck.execute(
            f"""SELECT group_name,
              CASE WHEN bool_or(status = 'ERROR') THEN NULL ELSE count(*) FILTER (status = 'OK') END
            FROM (SELECT group_name, status, client_id,
                max_by(struct_pack(change := change, seen_ms := seen_ms), sampled_ms) AS state
              FROM ({samples[trail.CLIENTS.name]}) AS clients WHERE cluster = ?
              GROUP BY group_name, status, client_id) AS latest
            WHERE state.change <> 'GONE' OR state.seen_ms >= ? GROUP BY group_name""",
            [cluster, since_ms],
        ).fetchall()
    )
    if _is_unwatched(duck, samples[trail.SAMPLES.name], cluster, queue.broker_name, at_ms):
        clients = {group: count or None for group, count in clients.items()}
    own = {
        "cluster": cluster,
        "sampled_ms": at_ms,
        "kind": "TRUNCATED" if gone.is_tail or gone.physical_offset <= log_offset else "RECREATED",
        "topic": queue.topic,
        "broker_name": queue.broker_name,
        "queue_id": queue.queue_id,
        "end_offset": gone.range.end,
    }
    yield {**own, "group_name": "", "first_offset": gone.range.start, "live_count": None}
    for group, offset in offsets:
        first = max(offset, gone.range.start)
        if first < gone.range.end:
            yield {**own, "group_name": group, "first_offset": first, "live_count": clients.get(group)}


def _is_unwatched(duck: duckdb.DuckDBPyConnection, samples: str, cluster: str, broker_name: str, at_ms: int) -> bool:
    """Return whether no sampler was running for a while between the last sample with offsets of a broker and a time.

    Groups may have had clients then. The offsets of that sample show what they read before it.
    """
    [(count,)] = duck.execute(
        f"""WITH known AS (SELECT what, broker_name, sampled_ms, status, seen_ms, reason
          FROM ({samples}) AS samples WHERE cluster = $cluster),
        asked AS (SELECT max_by(struct_pack(status := status, seen_ms := seen_ms), sampled_ms) AS state
          FROM known WHERE what = 'OFFSETS' AND broker_name = $broker AND sampled_ms <= $at),
        answered AS (SELECT CASE state.status WHEN 'OK' THEN (SELECT max(sampled_ms) FROM known
            WHERE what = 'SAMPLE' AND sampled_ms <= $at) ELSE state.seen_ms END AS last_ms FROM asked)
        SELECT count(*) FROM known WHERE what = 'GAP' AND reason IN ($stopped, $joined)
          AND coalesce(seen_ms, 0) < $at AND sampled_ms > coalesce((SELECT last_ms FROM answered), 0)""",
        {"cluster": cluster, "broker": broker_name, "at": at_ms, "stopped": NOT_RUNNING, "joined": JOINED},
    ).fetchall()
    return bool(count)
