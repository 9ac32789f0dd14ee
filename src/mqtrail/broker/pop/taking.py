"""Collects the messages of one pop, with its check points and offsets.

Reading queues changes only the first offsets of new groups, and invalid offsets. The `check_points` are then written in
one append, and `settle` moves the offsets. If the append is refused, the messages stay where they are.

Source: PopMessageProcessor.popMsgFromQueue, ExtraInfoUtil, apache/rocketmq 5.3.3 broker/ and remoting/.
"""

from typing import Final, NamedTuple

from mqtrail.store import GetStatus, NodeClosed, ReadResult, StoreAway, StoreError
from mqtrail.wire import (
    PROPERTY_POP_CK,
    RAW_POP_CK,
    Buffer,
    PopCheckPoint,
    PopHandle,
    PopHeader,
    RecordError,
    RecordHead,
    decode_head,
    encode_message_offsets,
    encode_order_counts,
    encode_record,
    encode_start_offsets,
    find_property,
    marker_of,
)

from ..filter import MessageFilter
from ..state import BrokerState
from .state import PopState

# The offset of the group is not in the queue: continue at the offset that the store returns.
_LOST: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
# No message for the group in the entries that were read.
_PASSED: Final = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
)


class TakenQueue(NamedTuple):
    """Messages of one queue. next_offset: of the group, after them."""

    topic: str
    queue_id: int
    start_offset: int
    queue_offsets: tuple[int, ...]
    next_offset: int
    size: int


class Taking:
    """The messages of one pop."""

    def __init__(
        self,
        state: BrokerState,
        pop: PopState,
        header: PopHeader,
        wanted: MessageFilter | None,
        revive_queue_id: int,
        now_ms: int,
    ) -> None:
        self._config = state.config
        self._store = state.store
        self._offsets = state.offsets
        self._positions = pop.positions
        self._orders = pop.orders
        self._header = header
        self._wanted = wanted
        self._revive_queue_id = revive_queue_id
        self._now_ms = now_ms
        self._size_left = state.config.pull_size_max
        self._order_counts: list[str] = []
        self._end_offset = 0
        self.records: list[Buffer] = []
        self.queues: list[TakenQueue] = []
        self.rest_count = 0
        self.seen_count = 0  # queues that were read
        self.unseen_count = 0  # queues left for the next turn, of a topic with many queues
        self.group = header.consumer_group
        self.passed = False
        """Whether an offset moved although no message was found: there may be more."""
        self.damage = ""
        """Why a queue could not be read: the others are popped."""

    @property
    def is_full(self) -> bool:
        return len(self.records) >= self._header.max_msg_nums or self._size_left <= 0

    def take(self, topic: str, queue_id: int) -> None:
        """Read messages for the pop from a queue of the topic or its retry topic, within its limits."""
        header = self._header
        group = self.group
        self.seen_count += 1
        start = self._positions.begin(group, topic, queue_id, header.init_mode)
        if header.order and self._orders.is_closed(
            (topic, group, queue_id), header.attempt_id, header.invisible_time, self._now_ms
        ):
            return  # messages behind it do not wake other pops either
        end = self._store.max_offset(topic, queue_id)
        if start == end:
            return
        if self.is_full:
            self.rest_count += max(0, end - start)
            return
        try:
            found = self._read(topic, queue_id, start)
            if found.status in _LOST:
                start = found.next_queue_offset
                self._offsets.move(group, topic, queue_id, start)
                found = self._read(topic, queue_id, start)
            if found.records:
                found = self._keep(topic, queue_id, start, found)
        except (StoreAway, NodeClosed):
            if self._store.away is not None:
                raise
            return  # only this queue's node is away: the others are popped, and the pop is held if they have nothing
        except StoreError as error:
            self.damage = str(error)
            return
        if not found.records and found.status in _PASSED and found.next_queue_offset > start:
            self._offsets.move(group, topic, queue_id, found.next_queue_offset)
            self.passed = True
        self.rest_count += max(0, found.max_offset - found.next_queue_offset)

    def _read(self, topic: str, queue_id: int, start: int, count_max: int | None = None) -> ReadResult:
        wanted = self._wanted
        return self._store.read(
            topic,
            queue_id,
            start,
            self._header.max_msg_nums - len(self.records) if count_max is None else count_max,
            self._size_left,
            None if wanted is None else wanted.tags_codes,
            accepts=None if wanted is None else wanted.accepts,
            scan_max=None if wanted is None else wanted.scan_max,
        )

    def _keep(self, topic: str, queue_id: int, start: int, found: ReadResult) -> ReadResult:
        """Keep the records up to the first damaged one, or that one alone; return what was kept."""
        heads = _heads(found, start)
        if not heads:  # alone, a damaged record has the offset before the next one; the consumer settles it
            found = self._read(topic, queue_id, start, 1)
            offsets: tuple[int, ...] = (found.next_queue_offset - 1,)
        else:
            offsets = tuple(head.queue_offset for head in heads)
            self._end_offset = max(self._end_offset, *(head.physical_offset + head.size for head in heads))
            if len(heads) < len(found.records):
                found = found._replace(records=found.records[: len(heads)], next_queue_offset=offsets[-1] + 1)
        records = found.records
        size = sum(map(len, records))
        self.queues.append(TakenQueue(topic, queue_id, start, offsets, found.next_queue_offset, size))
        self._size_left -= size
        if not heads or topic == self._header.topic or self._config.pop_actual_retry_topic:
            self.records += records
        else:
            self.records += [self._renamed(record, topic, queue_id, start) for record in records]
        return found

    def _renamed(self, record: Buffer, topic: str, queue_id: int, start: int) -> Buffer:
        """Return a retried message under its original topic, with the handle for its own queue."""
        head = decode_head(record)
        properties = bytes(record[head.properties_start : head.properties_end])
        if find_property(properties, RAW_POP_CK) is None:
            handle = PopHandle(
                start,
                self._now_ms,
                self._header.invisible_time,
                self._revive_queue_id,
                marker_of(topic),
                self._config.broker_name,
                queue_id,
                head.queue_offset,
            )
            separator = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
            properties += separator + f"{PROPERTY_POP_CK}\x01{handle.encode()}\x02".encode()
        try:
            return encode_record(
                self._header.topic,
                bytes(record[head.body_start : head.body_end]),
                properties,
                queue_id=head.queue_id,
                queue_offset=head.queue_offset,
                physical_offset=head.physical_offset,
                born_timestamp_ms=head.born_timestamp_ms,
                born_host=head.born_host,
                store_timestamp_ms=head.store_timestamp_ms,
                store_host=head.store_host,
                sys_flag=head.sys_flag,
                flag=head.flag,
                reconsume_times=head.reconsume_times,
                prepared_transaction_offset=head.prepared_transaction_offset,
                crc=head.body_crc,
            )
        except RecordError:
            return record  # no room for the handle: the client builds it from the header of the answer

    # Check points and offsets.

    def check_points(self) -> list[tuple[PopCheckPoint, int]]:
        """Return the check point of each queue, with the next offset of the group."""
        return [
            (
                PopCheckPoint(
                    start_offset=queue.start_offset,
                    pop_time_ms=self._now_ms,
                    invisible_ms=self._header.invisible_time,
                    count=len(queue.queue_offsets),
                    queue_id=queue.queue_id,
                    topic=queue.topic,
                    group=self._header.consumer_group,
                    diffs=tuple(offset - queue.start_offset for offset in queue.queue_offsets),
                    broker_name=self._config.broker_name,
                ),
                queue.next_offset,
            )
            for queue in self.queues
        ]

    def settle(self) -> None:
        """Move the offsets of the group; for a pop in order to its first message, and close its queues until
        acknowledged."""
        header = self._header
        group = header.consumer_group
        for queue in self.queues:
            if not header.order:
                self._offsets.move(group, queue.topic, queue.queue_id, queue.next_offset)
                continue
            self._offsets.move(group, queue.topic, queue.queue_id, queue.start_offset)
            counts, least = self._orders.popped(
                (queue.topic, group, queue.queue_id),
                header.attempt_id,
                header.invisible_time,
                queue.queue_offsets,
                self._now_ms,
            )
            self._order_counts.append(encode_order_counts(marker_of(queue.topic), queue.queue_id, counts, least))

    # The answer.

    @property
    def end_offset(self) -> int:
        """Physical offset after the newest message."""
        return self._end_offset

    def start_offset_info(self) -> str:
        return encode_start_offsets(
            (marker_of(queue.topic), queue.queue_id, queue.start_offset) for queue in self.queues
        )

    def message_offset_info(self) -> str:
        return encode_message_offsets(
            (marker_of(queue.topic), queue.queue_id, queue.queue_offsets) for queue in self.queues
        )

    def order_count_info(self) -> str | None:
        return ";".join(self._order_counts) if self._header.order else None


def _heads(found: ReadResult, start: int) -> list[RecordHead]:
    """Return the heads of the records before the first damaged one, whose numbers must be of this read."""
    heads: list[RecordHead] = []
    least = start
    for record in found.records:
        try:
            head = decode_head(record)
        except RecordError:
            break
        if head.size != len(record) or not least <= head.queue_offset < found.next_queue_offset:
            break
        heads.append(head)
        least = head.queue_offset + 1
    return heads
