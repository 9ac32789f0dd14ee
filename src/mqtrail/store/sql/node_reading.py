"""Reading from the nodes of a store: a queue is on one of them, a physical offset or a key may be on any."""

from __future__ import annotations

from collections.abc import Callable, Generator

from mqtrail.wire import decode_head

from ..base import IndexQueryResult, ReadResult
from ..errors import NodeClosed, StoreAway
from .nodes import NodeGroup, TableNode
from .queues import TableQueue
from .reading import TableReader
from .schema import HOME


class NodesReader:
    """Reads one store."""

    def __init__(self, nodes: NodeGroup) -> None:
        self._nodes = nodes

    def _of(self, queue: TableQueue | None) -> TableReader:
        """Return the reader of a queue. NodeClosed: an operator has closed its node."""
        node = self._nodes.home if queue is None else self._nodes.node_of(queue)
        node.refuse_read()
        node.writer.forget_committed()
        return node.reader

    def _loaded(self, node: TableNode) -> TableReader:
        """Return the reader of a node. StoreAway: it has not answered since the start."""
        if not node.queues.is_loaded:
            raise StoreAway(f"node {node.name}: {node.away}")
        return node.reader

    def begin_fetch(
        self, queue: TableQueue, queue_offset: int, count_max: int, tags_codes: frozenset[int] | None
    ) -> Callable[[], None] | None:
        """See TableReader."""
        return self._of(queue).begin_fetch(queue, queue_offset, count_max, tags_codes)

    def read(
        self,
        queue: TableQueue | None,
        queue_offset: int,
        count_max: int,
        size_max: int,
        tags_codes: frozenset[int] | None,
        end_offset: int | None,
        accepts: Callable[[bytes], bool] | None,
        scan_max: int | None,
    ) -> ReadResult:
        """Return records from queue_offset on; see the contract."""
        return self._of(queue).read(queue, queue_offset, count_max, size_max, tags_codes, end_offset, accepts, scan_max)

    def entries(self, queue: TableQueue, queue_offset: int, count_max: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of entries from queue_offset on."""
        return self._of(queue).entries(queue, queue_offset, count_max)

    def offset_by_time(self, queue: TableQueue | None, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after timestamp_ms (upper: the last at or before)."""
        return self._of(queue).offset_by_time(queue, timestamp_ms, upper=upper)

    def store_time(self, queue: TableQueue | None, queue_offset: int) -> int:
        """Return the store time of a queue's record, -1 when it is not there, or its node is away or closed: figures of
        a topic show its other queues."""
        if queue is None:
            return -1
        try:
            return self._of(queue).store_time(queue, queue_offset)
        except (StoreAway, NodeClosed):
            if self._nodes.home.away is not None:
                raise
            return -1

    def read_at(self, physical_offset: int) -> bytes | None:
        """Return the record that starts there; None: there is none. StoreAway: it may be on a node that is away."""
        away: StoreAway | None = None
        for node in self._nodes.nodes.values():
            try:
                record = self._loaded(node).read_at(physical_offset)
            except StoreAway as error:
                away = error
                continue
            if record is not None:
                return record
        if away is not None:
            raise away
        return None

    def queue_offset_at(self, physical_offset: int) -> int | None:
        """Return the queue offset of a record of the home that starts there; None: there is none."""
        return self._nodes.home.reader.queue_offset_at(physical_offset)

    def query_in_slices(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, store_ms: int, last_offset: int
    ) -> Generator[None, None, IndexQueryResult]:
        """Return records under topic and key; see the contract. StoreAway: a node with queues of the topic is away."""
        found: list[tuple[int, bytes]] = []
        is_cut = False
        for node in self._with_queues_of(topic):
            result = yield from self._loaded(node).query_in_slices(
                topic, key, count_max, begin_ms, end_ms, store_ms, last_offset
            )
            found += [(decode_head(record).physical_offset, record) for record in result.records]
            is_cut |= result.is_cut
        found.sort()
        return IndexQueryResult([record for _, record in found[-count_max:]], store_ms, max(0, last_offset), is_cut)

    def _with_queues_of(self, topic: str) -> list[TableNode]:
        """Return the nodes with queues of a topic, and the home: it has the records of no queue."""
        numbers = {HOME} | {queue.node for queue in list(self._nodes.by_key.values()) if queue.topic == topic}
        return [node for node in self._nodes.nodes.values() if node.number in numbers]
