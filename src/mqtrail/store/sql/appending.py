"""Appending: records get their places in memory at once, in the log and in their queues.

A ticket is given before the commit, and the reply waits for it as it waits for a flush of the CommitLog. The log is one
for all databases of a store: a physical offset is given once. Records of no queue belong to the home.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from mqtrail.wire import LONG_MAX, MessageIllegal, MessageSysFlag, RecordError, ServiceNotAvailable

from ..base import Appended, PendingRecord
from ..commitlog.append import too_large
from ..errors import StoreBroken, StoreFull
from .queues import TableQueue, WaitingRecord
from .schema import HOME
from .writing import RowWriter, TablesEnd

WAITING_SIZE_MAX = 256 * 1024 * 1024  # bytes of records of a database that are in memory


class TableAppender:
    """Appends to one store. writers: by node. by_key: the queues that exist. open_queue: makes one."""

    def __init__(
        self,
        log: TablesEnd,
        writers: Mapping[int, RowWriter],
        by_key: dict[tuple[str, int], TableQueue],
        open_queue: Callable[[str, int], TableQueue],
        store_host: bytes,
        record_size_max: int,
    ) -> None:
        self._log = log
        self._writers = writers
        self._by_key = by_key
        self._open_queue = open_queue
        self._store_host = store_host
        self._record_size_max = record_size_max

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Give all of records their places, or none. MessageIllegal, StoreBroken, StoreFull.

        ServiceNotAvailable: a node has not answered since the start, so places in its queues are unknown.
        """
        log = self._log
        for writer in self._writers.values():
            if writer.fault is not None:
                raise StoreBroken(writer.fault)
        store_ms, position = max(log.store_ms, now_ms), log.end_offset
        offsets: dict[TableQueue, int] = {}  # their next ones, if all goes well
        written: defaultdict[int, list[WaitingRecord]] = defaultdict(list)  # by node
        tickets: list[Appended] = []
        opened: list[TableQueue] = []
        try:
            for record in map(PendingRecord._make, records):
                queue = self._by_key.get((record.topic, record.queue_id))
                if queue is None:
                    queue = self._open_queue(record.topic, record.queue_id)
                    opened.append(queue)
                target = queue if _is_queued(record.sys_flag) else None
                queue_offset = 0 if target is None else offsets.get(queue, queue.next_offset)
                data = self._encode(record, queue_offset, position, store_ms)
                position += len(data)
                if target is not None:
                    offsets[queue] = queue_offset + 1
                node = HOME if target is None else queue.node
                written[node].append(WaitingRecord(target, data, record.tags_code, position))
                tickets.append(Appended(position - len(data), len(data), queue_offset, position))
            for node in written:
                self._check_room(self._writers[node])
        except BaseException:
            for queue in opened:
                self._by_key.pop((queue.topic, queue.queue_id), None)
            raise
        for node, some in written.items():
            self._writers[node].take(some)
        if tickets:
            log.store_ms, log.end_offset, log.last_offset = store_ms, position, tickets[-1].physical_offset
        return tickets

    def _check_room(self, writer: RowWriter) -> None:
        if writer.unready is not None:
            raise ServiceNotAvailable(writer.unready)
        writer.forget_committed()
        if writer.waiting_size > WAITING_SIZE_MAX:
            raise StoreFull(
                f"found more than {WAITING_SIZE_MAX} bytes that wait for a commit, expected fewer: check the database; "
                "nothing of this request was stored"
            )

    def check_size(self, record: PendingRecord) -> None:
        """MessageIllegal: the record cannot be stored."""
        self._encode(record, 0, 0, 0)

    def _encode(self, record: PendingRecord, queue_offset: int, physical_offset: int, store_ms: int) -> bytes:
        """Return the bytes of a record. MessageIllegal: it cannot be stored."""
        try:
            data = record.encoded(
                queue_offset, physical_offset, store_timestamp_ms=store_ms, store_host=self._store_host
            )
        except RecordError as error:
            raise MessageIllegal(f"found a record that cannot be stored: {error}") from error
        if not -LONG_MAX - 1 <= record.tags_code <= LONG_MAX:
            raise MessageIllegal(f"found the tags code {record.tags_code}, expected a number of 64 bits")
        if len(data) > self._record_size_max:
            raise too_large(len(data), self._record_size_max, len(record.body), len(record.properties))
        return data


def _is_queued(sys_flag: int) -> bool:
    """Return whether a record has a place in its queue: prepared and rolled back messages have none."""
    state = sys_flag & MessageSysFlag.TRANSACTION_MASK
    return state in (0, MessageSysFlag.TRANSACTION_COMMIT)
