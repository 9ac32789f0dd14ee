"""Pops in order: a queue is closed to a group while popped messages are not acknowledged.

The last popped messages of a queue are kept until all are acknowledged or their invisible time is over. Then the queue
opens, from the first message that is not acknowledged. The client may repeat its pop (attempt_id) and gets the same
messages. Saved with the consumer offsets in consumerOrderInfo.json; entries unused for a day are removed.

Source: ConsumerOrderInfoManager, ConsumerOrderInfoLockManager, apache/rocketmq 5.3.3 broker/offset/.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Final

from mqtrail.store import ConfigFileStore
from mqtrail.wire import OrderInfoTable, QueueOrderInfo, dumps, dumps_fastjson

from ..encoded import EncodedEntries, Handover
from ..files import load_table
from ..tables import GroupTable, TopicTable

ORDERS_FILE: Final = "consumerOrderInfo.json"
KEPT_MS: Final = 24 * 3_600_000
ORDERS_MAX: Final = 200_000  # queues and groups; above it only known ones are popped in order
OPENED_A_SLICE: Final = 256  # maximum number of queues that one call of take_open returns
SWEPT_A_SAVE: Final = 1_000  # unchanged entries checked for outdated ones at each save

PoppedQueue = tuple[str, str, int]  # topic, group, queue id


@dataclass(slots=True)
class Order:
    """State of a QueueOrderInfo. queue_offsets: of the popped messages; acked: the acknowledged ones."""

    attempt_id: str | None
    pop_time_ms: int
    invisible_ms: int
    queue_offsets: list[int]
    consumed_ms: int
    acked: set[int] = field(default_factory=set)
    visible_ms: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def free_ms(self) -> int:
        """Return when the queue opens if no acknowledgement arrives, epoch ms; 0: all messages are acknowledged."""
        invisible_until_ms = self.pop_time_ms + self.invisible_ms
        return max(
            (
                self.visible_ms.get(offset, invisible_until_ms)
                for offset in self.queue_offsets
                if offset not in self.acked
            ),
            default=0,
        )

    def next_offset(self) -> int:
        """Return the first queue offset that is not acknowledged; else the offset after the last."""
        for queue_offset in self.queue_offsets:
            if queue_offset not in self.acked:
                return queue_offset
        return self.queue_offsets[-1] + 1

    def copy(self) -> "Order":
        """Return a copy that does not change with this one."""
        return replace(self, acked=set(self.acked), visible_ms=dict(self.visible_ms), counts=dict(self.counts))

    def info(self) -> QueueOrderInfo:
        """Return the entry to save."""
        first, *others = self.queue_offsets
        bits = sum(1 << place for place, offset in enumerate(self.queue_offsets) if offset in self.acked)
        return QueueOrderInfo(
            self.pop_time_ms,
            self.invisible_ms,
            (first, *(offset - first for offset in others)),
            dict(self.visible_ms) or None,
            dict(self.counts) or None,
            self.consumed_ms,
            bits,
            self.attempt_id,
        )


def _order(info: QueueOrderInfo) -> Order | None:
    if not info.offsets:
        return None
    first, *others = info.offsets
    offsets = [first, *(first + diff for diff in others)]
    acked = {offset for place, offset in enumerate(offsets) if info.acked >> place & 1}
    return Order(
        info.attempt_id,
        info.pop_time_ms,
        info.invisible_ms or 0,
        offsets,
        info.consumed_ms,
        acked,
        dict(info.visible_ms or {}),
        dict(info.counts or {}),
    )


class OrderTable:
    """The last pop in order of each group and queue."""

    def __init__(self, files: ConfigFileStore) -> None:
        self._files = files
        self._orders: dict[PoppedQueue, Order] = {}
        self._opens: list[tuple[int, PoppedQueue]] = []
        self._changed: dict[PoppedQueue, None] = {}  # since the last save
        self._sweep: Iterator[PoppedQueue] = iter(())
        self._saved = Handover[PoppedQueue, Order]()
        # Of the thread that saves: encoded entries by topic@group and queue id, and those that changed.
        self._rows: dict[str, dict[int, bytes]] = {}
        self._touched: set[str] = set()
        self._encoded = EncodedEntries({})
        table = load_table(files, ORDERS_FILE, OrderInfoTable) or OrderInfoTable()
        for key, queues in table.table.items():
            topic, _, group = key.partition("@")
            for queue_id, info in queues.items():
                order = _order(info)
                if order is not None:
                    self._orders[topic, group, queue_id] = order
                    self._saved.note((topic, group, queue_id), order.copy())
                    self._watch((topic, group, queue_id), order)

    @property
    def is_full(self) -> bool:
        """Whether no further queue can be popped in order: it counts as closed."""
        return len(self._orders) >= ORDERS_MAX

    def catch_up(self, committed: Callable[[str, str, int], int | None]) -> None:
        """Treat messages below the committed offset of a group as acknowledged: after a crash, offsets are newer.

        committed: of a group, topic and queue. Call it before any request.
        """
        for queue, order in self._orders.items():
            topic, group, queue_id = queue
            end = committed(group, topic, queue_id) or 0
            if passed := {offset for offset in order.queue_offsets if offset < end} - order.acked:
                order.acked |= passed
                self._watch(queue, order)
                self._changed[queue] = None

    def is_closed(self, queue: PoppedQueue, attempt_id: str | None, invisible_ms: int, now_ms: int) -> bool:
        """Return whether the queue is closed to the group. attempt_id: of the pop; a repeated pop is allowed."""
        order = self._orders.get(queue)
        if order is None:
            return self.is_full
        if order.attempt_id is not None and order.attempt_id == attempt_id:
            return False
        if order.invisible_ms <= 0:
            order.invisible_ms = invisible_ms
        return now_ms < order.free_ms()

    def popped(
        self,
        queue: PoppedQueue,
        attempt_id: str | None,
        invisible_ms: int,
        queue_offsets: Sequence[int],
        now_ms: int,
    ) -> tuple[dict[int, int], int]:
        """Close the queue; return how often each message was popped before, and the minimum."""
        order = Order(attempt_id, now_ms, invisible_ms, list(queue_offsets), now_ms)
        before = self._orders.get(queue)
        if before is not None:
            if before.attempt_id is not None and before.attempt_id == attempt_id:
                order.counts = before.counts
            else:
                again = set(before.queue_offsets)
                order.counts = {offset: before.counts.get(offset, 0) + 1 for offset in queue_offsets if offset in again}
        self._orders[queue] = order
        self._watch(queue, order)
        self._changed[queue] = None
        least = min(order.counts.values()) if len(order.counts) == len(order.queue_offsets) else 0
        return order.counts, least

    def ack(self, queue: PoppedQueue, queue_offset: int, pop_time_ms: int) -> int | None:
        """Store an acknowledgement; return the new offset of the group. None: of an earlier pop, nothing changes.

        Nothing changes either if a crash lost the pop: other messages of it may be open, and after a power failure
        another message may have this offset. Apache's broker moves past the message. KeyError: it was not popped.
        """
        order = self._orders.get(queue)
        if order is None or order.pop_time_ms != pop_time_ms:
            return None
        if queue_offset not in order.queue_offsets:
            raise KeyError(queue_offset)
        order.acked.add(queue_offset)
        self._watch(queue, order)
        self._changed[queue] = None
        return order.next_offset()

    def hide(self, queue: PoppedQueue, queue_offset: int, pop_time_ms: int, visible_ms: int) -> None:
        """Change the time at which a message is visible again. Ignored for an earlier pop."""
        order = self._orders.get(queue)
        if order is not None and order.pop_time_ms == pop_time_ms:
            order.visible_ms[queue_offset] = visible_ms
            self._watch(queue, order)
            self._changed[queue] = None

    def clear(self, queue: PoppedQueue) -> None:
        """Open the queue: the offset of the group was reset."""
        if self._orders.pop(queue, None) is not None:
            self._changed[queue] = None

    def _watch(self, queue: PoppedQueue, order: Order) -> None:
        heapq.heappush(self._opens, (order.free_ms(), queue))
        if len(self._opens) > 4 * len(self._orders) + 64:  # most entries are outdated
            self._opens = [(known.free_ms(), key) for key, known in self._orders.items() if known.free_ms()]
            heapq.heapify(self._opens)

    def next_open_ms(self) -> int | None:
        """Return when the next queue may open without acknowledgements."""
        return self._opens[0][0] if self._opens else None

    def take_open(self, now_ms: int) -> list[PoppedQueue]:
        """Return the queues that opened since the last call, including fully acknowledged ones: some of them, if there
        are many."""
        opened: dict[PoppedQueue, None] = {}
        while self._opens and self._opens[0][0] <= now_ms and len(opened) < OPENED_A_SLICE:
            _, queue = heapq.heappop(self._opens)
            order = self._orders.get(queue)
            if order is not None and order.free_ms() <= now_ms:
                opened[queue] = None
        return list(opened)

    def save(self, topics: TopicTable, groups: GroupTable, now_ms: int) -> None:
        """Save what changed, without entries of deleted topics, queues and groups, or unused for a day.

        The loop copies the changed entries; the thread that saves tables encodes them.
        """
        changed, self._changed = self._changed, {}
        outdated = [
            queue for queue in chain(changed, self._swept()) if self._is_outdated(queue, topics, groups, now_ms)
        ]
        for queue in outdated:
            self._orders.pop(queue, None)
        changed |= dict.fromkeys(outdated)
        for queue in changed:
            order = self._orders.get(queue)
            self._saved.note(queue, None if order is None else order.copy())
        if changed:
            self._files.note(ORDERS_FILE, self._document)

    def _is_outdated(self, queue: PoppedQueue, topics: TopicTable, groups: GroupTable, now_ms: int) -> bool:
        topic, group, queue_id = queue
        order, config = self._orders.get(queue), topics.all().get(topic)
        return order is not None and (
            config is None
            or queue_id >= config.read_queue_nums
            or group not in groups.all()
            or now_ms - order.consumed_ms > KEPT_MS
        )

    def _swept(self) -> Iterable[PoppedQueue]:
        """Return the next queues in turn, to find outdated entries that do not change."""
        queues = list(islice(self._sweep, SWEPT_A_SAVE))
        if len(queues) < SWEPT_A_SAVE:
            self._sweep = iter(list(self._orders))
        return queues

    def _document(self) -> Callable[[], bytes]:
        self._saved.take()

        def content() -> bytes:
            self._saved.apply(self._encode)
            while self._touched:
                name = self._touched.pop()
                queues = self._rows[name]
                row = b",".join([b"%d:%b" % (queue_id, queues[queue_id]) for queue_id in sorted(queues)])
                self._encoded.put(name, b"%b:{%b}" % (dumps(name), row) if queues else None)
                if not queues:
                    del self._rows[name]
            return b"".join([b'{"table":', *self._encoded.snapshot(), b"}"])

        return content

    def _encode(self, queue: PoppedQueue, order: Order | None) -> None:
        topic, group, queue_id = queue
        name = f"{topic}@{group}"
        queues = self._rows.setdefault(name, {})
        self._touched.add(name)
        if order is None:
            queues.pop(queue_id, None)
        else:
            queues[queue_id] = dumps_fastjson(order.info().members())
