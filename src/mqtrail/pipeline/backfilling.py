"""Reads the ranges that were left out, in pieces: the lake's writer reads one after each cycle that is caught up.

A piece is a batch of the ingest. Its notes have the position after it, from which the piece was taken, so a crash
at any point neither loses nor duplicates a message. The messages of a time are read before its trace, so that trace
records find their stored copies. Ranges that the brokers no longer have become gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from mqtrail import trail
from mqtrail.lake import Lake
from mqtrail.wire import MessageQueue

from .backfills import CANCELLED, DONE, RUNNING, Backfill, BackfillFiles
from .begin import BORDER_MS, MESSAGES_LEAD_MS
from .bounds import Bounds
from .cluster import Cluster, Retrying
from .config import JobConfig, JobFailed
from .ingest import Counts, Ingest, ReadCluster, count_of
from .notread import filled_gaps
from .offsets import QueueRange, advance
from .positions import unread_in, without


class Backfiller:
    """Works on the backfills of one lake, the oldest first."""

    def __init__(self, ingest: Ingest, lake: Lake, config: JobConfig) -> None:
        self._ingest = ingest
        self._lake = lake
        self._retry_timeout_ms = config.retry_timeout_ms
        self._driver_messages_max = config.driver_messages_max
        self.files = BackfillFiles(config.lake)
        self._windows: dict[str, dict[MessageQueue, tuple[int, int]]] = {}

    def piece(self, cluster: ReadCluster, count_max: int) -> Backfill | None:
        """Read a piece of at most count_max messages; return its backfill, None if none is open. LakeError.

        Those of other clusters wait. A backfill with nothing left to read is ended. One with a problem lets the next
        ones pass.
        """
        worked: Backfill | None = None
        for one in self.files.all():
            if not one.is_open or one.cluster not in ("", cluster.name):
                continue
            if self.files.is_cancelled(one.id):
                self._end(one, cluster, CANCELLED)
                continue
            try:
                worked = self._piece(one, cluster, count_max)
            except JobFailed as error:
                worked = self._noted(one, replace(one, state=RUNNING, problem=str(error)))
            if worked.is_open and not worked.problem:
                return worked
        return worked

    def _piece(self, one: Backfill, cluster: ReadCluster, count_max: int) -> Backfill:
        # A piece of one topic proves nothing of another.
        work = replace(self._ingest.work(cluster, fail_on_data_loss=False), message_topics=())
        with self._ingest.sure(), self._ingest.connected(work) as connection:
            position = self._ingest.position(cluster.name)
            bounds = self._ingest.bounds(connection, cluster.topics)
            ends = {queue: bounds[queue] for queue in position.unread if queue in bounds}
            windows = self._window(connection, one, cluster, ends)
            due = unread_in(position.unread, windows)
            if not due:
                silent = sum(queue.topic in cluster.topics and queue not in bounds for queue in position.unread)
                if silent:
                    problem = f"{silent} queues have no broker that answers now"
                    return self._noted(one, replace(one, state=RUNNING, left=None, problem=problem))
                return self._end(one, cluster, DONE)
            taken, is_small = next_piece(due, bounds, cluster.trace_topics, count_max, self._driver_messages_max)
            counts = Counts()
            after = replace(position, unread=without(position.unread, taken))
            self._ingest.batch(work, taken, after, counts, by_driver=is_small)
        worked = replace(
            one,
            state=RUNNING,
            read=one.read + counts.trace_messages + counts.of(trail.MESSAGE_META),
            gaps=one.gaps + counts.of(trail.GAPS),
            left=_stored(unread_in(after.unread, windows), bounds),
            problem="",
        )
        return self._noted(one, worked)

    def _window(
        self, connection: Cluster, one: Backfill, cluster: ReadCluster, bounds: Bounds
    ) -> Mapping[MessageQueue, tuple[int, int]]:
        """The offsets of each queue that were stored in the times of a backfill, and BORDER_MS before and after.

        What a broker no longer has was stored before what it has, so it belongs to times before its first message.
        """
        known = self._windows.setdefault(one.id, {})
        retrying = Retrying(self._retry_timeout_ms)

        def offset(queue: MessageQueue, at_ms: int) -> int:
            ask = partial(connection.offset_by_time, queue, max(at_ms, 0))
            return retrying(f"offset of {queue} by time", ask)

        for queue, (first, _) in bounds.items():
            if queue in known:
                continue
            lead_ms = BORDER_MS + (0 if queue.topic in cluster.trace_topics else MESSAGES_LEAD_MS)
            start = offset(queue, one.from_ms - lead_ms)
            known[queue] = (0 if start <= first else start, offset(queue, one.to_ms + BORDER_MS) + 1)
        return known

    def _end(self, one: Backfill, cluster: ReadCluster, state: str) -> Backfill:
        """End a backfill: what it has read is no gap any more."""
        position = self._ingest.position(cluster.name)
        work = self._ingest.work(cluster, fail_on_data_loss=False)
        with self._ingest.sure():
            changed = partial(filled_gaps, self._lake, cluster.name, position.unread)
            self._ingest.batch(work, [], position, Counts(), gaps=changed)
        self._windows.pop(one.id, None)
        left = one.left if state == CANCELLED else 0
        ended = self._noted(one, replace(one, state=state, left=left, problem=""))
        self.files.tidy()
        return ended

    def _noted(self, before: Backfill, now: Backfill) -> Backfill:
        if now != before:
            self.files.note(now)
        return now


def next_piece(
    due: Sequence[QueueRange], bounds: Bounds, trace_topics: Sequence[str], count_max: int, small_max: int
) -> tuple[list[QueueRange], bool]:
    """Return ranges with at most count_max messages, and whether they have to be read by one reader.

    Messages come before trace, each queue in proportion. What a broker no longer has costs nothing. It is read together
    with the range after it, so that its gap gets the time of the next message.
    """
    of_messages = [each for each in due if each.queue.topic not in trace_topics]
    firsts: dict[MessageQueue, QueueRange] = {}
    for each in of_messages or due:
        firsts.setdefault(each.queue, each)
    stored = {queue: _kept(each, bounds) for queue, each in firsts.items()}
    is_gone = any(stored[queue].count < each.count for queue, each in firsts.items())
    start = {queue: kept.start for queue, kept in stored.items()}
    target = {queue: kept.end for queue, kept in stored.items()}
    ends = advance(start, target, min(count_max, small_max) if is_gone else count_max)
    piece = []
    for queue, each in firsts.items():
        end = each.end if ends[queue] == target[queue] else ends[queue]
        if end > start[queue] or start[queue] == target[queue]:
            piece.append(QueueRange(queue, each.start, end))
    return piece, is_gone


def _kept(each: QueueRange, bounds: Bounds) -> QueueRange:
    """The part of a range that its broker has; an empty one if it has nothing of it."""
    first, end = bounds[each.queue]
    start = min(max(each.start, first), each.end)
    return QueueRange(each.queue, start, max(start, min(each.end, end)))


def _stored(ranges: Sequence[QueueRange], bounds: Bounds) -> int:
    return count_of([_kept(each, bounds) for each in ranges if each.queue in bounds])
