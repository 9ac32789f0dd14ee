"""How far a stream of the source is behind its queues: in messages and in seconds.

Spark's Python data sources cannot report metrics of their own, so a listener computes them on the driver after each
micro-batch: the offsets come from Spark's progress, the ends of the queues and the age of the oldest message that is
not read yet from the brokers.

    spark.streams.addListener(BehindListener({"nameServer": "host:9876", "topic": "orders"}, print))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from mqtrail.clock import now_ms
from mqtrail.wire import MessageQueue, RecordError, decode_head

from .bounds import bounds_of
from .cluster import Cluster, Retrying, connect
from .offsets import QueueOffsets, offsets_from_json
from .options import parse_options


@dataclass(frozen=True, slots=True)
class QueueBehind:
    """The part of a queue that a stream has not read. seconds: age of its oldest message; None: unknown."""

    queue: MessageQueue
    next_offset: int
    messages: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class SourceBehind:
    """How far a source is behind, after a micro-batch of a query."""

    query_id: str
    batch_id: int
    queues: tuple[QueueBehind, ...]

    @property
    def messages(self) -> int:
        """Messages not read yet, of all queues."""
        return sum(one.messages for one in self.queues)

    @property
    def messages_max(self) -> int:
        """Messages not read yet, of the queue that has the most."""
        return max((one.messages for one in self.queues), default=0)

    @property
    def seconds(self) -> float | None:
        """Age of the oldest message that is not read yet; 0 if there is none; None: unknown for some queue."""
        ages = [one.seconds for one in self.queues]
        return None if None in ages else max((age for age in ages if age is not None), default=0.0)


def queues_behind(cluster: Cluster, at: QueueOffsets, retry_timeout_ms: int, now_ms: int) -> tuple[QueueBehind, ...]:
    """Ask the brokers how far the queues are past these offsets. A broker that does not answer is left out."""
    retrying = Retrying(retry_timeout_ms)
    topics = sorted({queue.topic for queue in at})
    bounds = bounds_of(cluster, topics, retry_timeout_ms, hold_unreachable=True)
    found: list[QueueBehind] = []
    for queue in sorted(set(at) & set(bounds)):
        first, end = bounds[queue]
        due = max(at[queue], first)
        seconds: float | None = 0.0
        if due < end:
            pulled = retrying(f"pull of {queue} at {due}", partial(cluster.pull, queue, due, 1))
            seconds = _age_s(pulled.records, now_ms)
        found.append(QueueBehind(queue, at[queue], max(end - at[queue], 0), seconds))
    return tuple(found)


def _age_s(records: Iterable[bytes], now_ms: int) -> float | None:
    for record in records:
        try:
            return max(now_ms - decode_head(record).store_timestamp_ms, 0) / 1000
        except RecordError:
            return None
    return None


class BehindListener(StreamingQueryListener):
    """Calls `report` with a SourceBehind after each micro-batch of a query that reads the options' cluster and topics.

    options: those of the source. report: a function, for example one that sets gauges. An error of a request is
    logged by Spark and does not disturb the query. Clocks of brokers and driver must agree.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        report: Callable[[SourceBehind], None],
        *,
        connected: Callable[[], Cluster] | None = None,
    ) -> None:
        self._options = parse_options(options)
        self._report = report
        given = self._options
        self._connect = connected or (lambda: connect(given.name_server, None, given.credentials, given.tls))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report each source of the query whose offsets are queues of the options' topics."""
        progress = event.progress
        for source in progress.sources:
            at = self._offsets(source.endOffset)
            if at:
                cluster = self._connect()
                try:
                    queues = queues_behind(cluster, at, self._options.retry_timeout_ms, now_ms())
                finally:
                    cluster.close()
                self._report(SourceBehind(str(progress.id), progress.batchId, queues))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: a query that waits for messages has read all."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing."""

    def _offsets(self, text: str | None) -> QueueOffsets:
        try:
            found = offsets_from_json(json.loads(text or "{}"))
        except ValueError:
            return {}  # of another kind of source
        topics = self._options.topics
        return {queue: at for queue, at in found.items() if not topics or queue.topic in topics}
