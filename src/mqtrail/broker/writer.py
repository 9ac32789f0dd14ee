"""The only path into the store: appends records, counts them, and notes arrivals at queues with held pulls.

All writers use it: sends, send-backs, delivered delays, broker trace. So statistics, held pulls and delay levels see
every message. The fast lane appends by itself and reports with `arrived`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mqtrail.store import Appended, BatchPlaces, MessageStore, PendingRecord, RecordBatch
from mqtrail.wire import SCHEDULE_TOPIC, ServiceNotAvailable, StoredKind, SystemError_

from .ha import Replicas
from .tables import Arrived, HeldPopCounts, HeldPulls, QueueKey
from .telemetry import BrokerTrace, Statistics

WatchedArrival = tuple[str, int, Arrived | None]  # topic, queue id, the new messages; None when they are not known


class Arrival(NamedTuple):
    """A queue that has grown, up to next_offset. arrived: its new messages, None when they are not known."""

    queue: QueueKey
    next_offset: int
    arrived: Arrived | None


class MessageWriter:
    """Appends to the store on behalf of the broker's concerns."""

    def __init__(
        self,
        store: MessageStore,
        held: HeldPulls,
        stats: Statistics | None,
        trace: BrokerTrace | None,
        replicas: Replicas,
    ) -> None:
        self._replicas = replicas
        self._is_read_later = replicas.config.ledger_mode  # `appeared` says when
        self._store = store
        self._held = held
        self._stats = stats
        self._trace = trace
        self._arrivals: list[Arrival] = []
        self.watched = HeldPopCounts()
        self._watched_arrivals: list[WatchedArrival] = []
        self._revive_log: str | None = None
        self._on_revive_log: Callable[[int, int], None] = lambda queue_id, now_ms: None
        self.on_scheduled: Callable[[int], None] = lambda level: None  # called with the level of a new waiting message

    def write(self, records: Sequence[PendingRecord], now_ms: int, kind: StoredKind | None = None) -> list[Appended]:
        """Append records, all or none; return their places. kind: for the trace. Refusal: the store rejects them."""
        self._check_role()
        appended = self._store.append(records, now_ms)
        grown: dict[QueueKey, tuple[int, list[tuple[int, bytes]]]] = {}
        for record, place in zip(records, appended, strict=True):
            queue = (record.topic, record.queue_id)
            if self._is_read_later:
                pass
            elif record.topic == SCHEDULE_TOPIC:
                self.on_scheduled(record.queue_id + 1)
            elif record.topic == self._revive_log:
                self._on_revive_log(record.queue_id, now_ms)
            elif record.topic in self.watched:
                self._watched_arrivals.append((*queue, ((record.tags_code, record.properties),)))
            if queue in self._held and not self._is_read_later:
                arrived = grown[queue][1] if queue in grown else []
                arrived.append((record.tags_code, record.properties))
                grown[queue] = (place.queue_offset + 1, arrived)
            if self._stats is not None:
                counter = self._stats.put_counter(record.topic, record.queue_id)
                counter.add(1, place.size)
            if self._trace is not None:
                self._trace.stored(record, place, kind, now_ms)
        self._arrivals += [Arrival(queue, next_offset, arrived) for queue, (next_offset, arrived) in grown.items()]
        return appended

    def append_batch(self, batch: RecordBatch, now_ms: int) -> BatchPlaces:
        """Append a batch, all or none; return its places. Held pulls get one notice for it; it is not traced.

        Refusal: the store takes none now.
        """
        self._check_role()
        places = batch.append(now_ms)
        topic, queue_id, count = batch.topic, batch.queue_id, len(batch)
        if not self._is_read_later:
            self.appeared(topic, queue_id, places.queue_offset + count, now_ms)
        if self._stats is not None:
            counter = self._stats.put_counter(topic, queue_id)
            counter.add(count, sum(places.sizes))
            counter.times += count - 1  # as if they came one by one
        return places

    def _check_role(self) -> None:
        """ServiceNotAvailable: a slave's log has only what its master sent. SystemError_: too few in-sync replicas."""
        replicas = self._replicas
        if replicas.config.is_slave:
            raise ServiceNotAvailable(
                "message store is slave mode, so putMessage is forbidden: found a slave, expected the master "
                "(brokerRole)"
            )
        if replicas.in_sync is not None and not replicas.has_enough:
            raise SystemError_(
                f"in-sync replicas not enough: found {len(replicas.in_sync.ids)}, expected "
                f"{replicas.config.min_in_sync_replicas} (minInSyncReplicas): wait until more slaves are in sync"
            )

    def arrived(self, topic: str, queue_id: int, next_offset: int, arrived: Arrived | None) -> None:
        """Note messages that were appended without `write`. Cheap if no pull of the queue is held."""
        if not self._is_read_later:
            self.wake(topic, queue_id, next_offset, arrived)

    def wake(self, topic: str, queue_id: int, next_offset: int, arrived: Arrived | None) -> None:
        """Have held pulls and pops of a queue served that wait for messages below next_offset."""
        if (topic, queue_id) in self._held:
            self._arrivals.append(Arrival((topic, queue_id), next_offset, arrived))
        if topic in self.watched:
            self._watched_arrivals.append((topic, queue_id, arrived))

    def appeared(self, topic: str, queue_id: int, next_offset: int, now_ms: int) -> None:
        """Note messages that can be read now: in a DLedger group once a majority has them, else after the append."""
        if topic == SCHEDULE_TOPIC:
            self.on_scheduled(queue_id + 1)
        elif topic == self._revive_log:
            self._on_revive_log(queue_id, now_ms)
        self.wake(topic, queue_id, next_offset, None)

    def take_arrivals(self) -> list[Arrival]:
        """Return what arrived at queues with held pulls since the last call."""
        arrivals = self._arrivals
        if arrivals:
            self._arrivals = []
        return arrivals

    # For POP.

    def on_revive_log(self, topic: str, notify: Callable[[int, int], None]) -> None:
        """Call notify(queue id, now_ms) for each record that is written to topic."""
        self._revive_log, self._on_revive_log = topic, notify

    def take_watched(self) -> list[WatchedArrival]:
        """Return what arrived in watched topics since the last call."""
        arrivals = self._watched_arrivals
        if arrivals:
            self._watched_arrivals = []
        return arrivals
