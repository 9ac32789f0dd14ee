"""Trace records of the broker: stored, delivered, sent back, dead-lettered.

The records are written to the trace topic beside those of clients (docs/design/trace-text.md), in messages without
KEYS, so that Apache's viewers do not find them by message id. They are collected for broker_trace_delay_ms. Records
above broker_trace_records_max are dropped, and a TraceLoss record states how many and when.

The trace topic, system topics and system groups are not traced: each trace message would cause another one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from mqtrail.store import Appended, PendingRecord, ReadResult
from mqtrail.wire import (
    DLQ_PREFIX,
    FIELD_SEPARATOR,
    NULL_TEXT,
    QUEUE_OFFSET_AT,
    RAW_KEYS,
    RAW_UNIQ_KEY,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRACE_LAYOUTS,
    DeadLetterCause,
    DeadLettered,
    Delivered,
    Host,
    MQError,
    Peer,
    PullHeader,
    SentBack,
    Stored,
    StoredKind,
    TraceLoss,
    encode_record_text,
    encode_trace,
    find_property,
    is_system_group,
    is_system_topic,
    offset_msg_id,
)

from ..config import BrokerConfig
from ..tables import ClientTable
from .trace_messages import TraceMessages

HEADS_MAX: Final = 10_000  # queues, and addresses of clients, whose part of a record is cached

_WAITING_KINDS: Final = (StoredKind.DELAY, StoredKind.HALF, StoredKind.RECALL)  # messages of clients in system topics

_STORED_SEPARATORS: Final = len(TRACE_LAYOUTS["Stored"][0].fields)  # separators in a record: one before each field

Write = Callable[[Sequence[PendingRecord]], object]
TraceRecord = Delivered | SentBack | DeadLettered


class BrokerTrace:
    """Collects records into trace messages, which the broker writes. start_id: id of this run."""

    def __init__(
        self,
        config: BrokerConfig,
        clients: ClientTable,
        messages: TraceMessages,
        start_id: str,
    ) -> None:
        self._config = config
        self._clients = clients
        self._messages_of = messages
        self._start_id = start_id
        self._name = f"broker:{config.broker_name}"
        self._store_host = str(config.address)
        self._address = config.address
        self._records_max = config.broker_trace_records_max
        self._batch_size = config.broker_trace_batch_size
        self._delay_ms = config.broker_trace_delay_ms
        self._heads: dict[tuple[str, int, StoredKind | None], tuple[str, str] | None] = {}
        self._hosts: dict[bytes, str] = {}
        self._texts: list[str] = []
        self._size = 0
        self._due_ms: int | None = None
        self._lost_count = 0
        self._lost_from_ms = 0
        self._lost_to_ms = 0

    # Events, reported by the concerns. These methods are cheap and never fail.

    def stored(self, record: PendingRecord, place: Appended, kind: StoredKind | None, now_ms: int) -> None:
        """Record a stored message: a PendingRecord, or a tuple of its fields. kind None: derived from its topic.

        This runs for every send, so the text is built directly, with the part that messages of a queue share cached.
        """
        topic, queue_id, _, properties, _, born_ms, born_host, *_ = record
        try:
            heads = self._heads[topic, queue_id, kind]
        except KeyError:
            heads = self._learn_head(topic, queue_id, kind)
        if heads is None:
            return
        if len(self._texts) >= self._records_max:
            self._lose(1, now_ms)
            return
        head, tail = heads
        host = self._hosts.get(born_host) or self._learn_host(born_host)
        unique_id = find_property(properties, RAW_UNIQ_KEY)
        keys = find_property(properties, RAW_KEYS) if RAW_KEYS in properties else None
        physical_offset, size, queue_offset, _ = place
        msg_id = unique_id.decode("utf-8", "replace") if unique_id else offset_msg_id(self._address, physical_offset)
        key_text = NULL_TEXT if keys is None else keys.decode("utf-8", "replace")
        text = (
            f"Stored\x01{now_ms}\x01{head}\x01{queue_offset}\x01{physical_offset}\x01{size}\x01{msg_id}\x01{key_text}"
            f"\x01{born_ms}\x01{host}\x01{now_ms}\x01{tail}"
        )
        if text.count(FIELD_SEPARATOR) != _STORED_SEPARATORS:  # the value of a property may contain the separator
            text = encode_record_text(
                Stored(
                    time_stamp=now_ms,
                    broker_name=self._config.broker_name,
                    store_host=self._store_host,
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=queue_offset,
                    physical_offset=physical_offset,
                    size=size,
                    msg_id=msg_id,
                    keys=key_text,
                    born_timestamp=born_ms,
                    born_host=host,
                    store_timestamp=now_ms,
                    kind=kind or _kind_of(topic),
                )
            )
        self._texts.append(text)
        self._size += len(text)
        if self._due_ms is None:
            self._due_ms = now_ms + self._delay_ms

    def _learn_head(self, topic: str, queue_id: int, kind: StoredKind | None) -> tuple[str, str] | None:
        """Return the parts of a Stored record that messages of a queue share; None: the queue is not traced."""
        heads = None
        if not self._is_own(topic) or kind in _WAITING_KINDS:
            whole = encode_record_text(
                Stored(
                    broker_name=self._config.broker_name,
                    store_host=self._store_host,
                    topic=topic,
                    queue_id=queue_id,
                    kind=kind or _kind_of(topic),
                )
            )
            fields = whole.split(FIELD_SEPARATOR)
            heads = FIELD_SEPARATOR.join(fields[2:6]), fields[-1]
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[topic, queue_id, kind] = heads
        return heads

    def _learn_host(self, packed: bytes) -> str:
        if len(self._hosts) >= HEADS_MAX:
            self._hosts.clear()
        host = self._hosts[packed] = str(Host.unpack(packed))
        return host

    def delivered(self, peer: Peer, header: PullHeader, found: ReadResult, now_ms: int) -> None:
        """Record the messages delivered by a pull. Offsets are read from the records, since filters leave gaps."""
        offsets = (int.from_bytes(record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big") for record in found.records)
        self.handed_out(peer, header.consumer_group, header.topic, header.queue_id, offsets, now_ms)

    def handed_out(
        self, peer: Peer, group: str, topic: str, queue_id: int, queue_offsets: Iterable[int], now_ms: int
    ) -> None:
        """Record messages of a queue delivered to a client of the group."""
        if self._is_own(topic) or is_system_group(group):
            return
        self._add(
            Delivered(
                time_stamp=now_ms,
                broker_name=self._config.broker_name,
                group_name=group,
                topic=topic,
                queue_id=queue_id,
                offsets=",".join(map(str, queue_offsets)),
                client_id=self.client_id(peer, group),
            ),
            now_ms,
        )

    def sent_back(
        self,
        peer: Peer,
        group: str,
        *,
        topic: str,
        msg_id: str,
        origin_msg_id: str | None,
        reconsume_times: int,
        delay_level: int,
        due_ms: int,
        cause: DeadLetterCause | None,
        now_ms: int,
    ) -> None:
        """Record that a message of topic is delivered to a group again at due_ms or, with a cause, is dead-lettered.

        reconsume_times: of the copy, which is the number of deliveries that failed.
        """
        common: dict[str, Any] = {
            "time_stamp": now_ms,
            "broker_name": self._config.broker_name,
            "group_name": group,
            "topic": topic,
            "msg_id": msg_id,
            "origin_msg_id": origin_msg_id,
            "reconsume_times": reconsume_times,
            "client_id": self.client_id(peer, group),
        }
        if cause is not None:
            self._add(DeadLettered(**common, cause=cause), now_ms)
        else:
            self._add(SentBack(**common, delay_level=delay_level, due_ms=due_ms), now_ms)

    def client_id(self, peer: Peer, group: str) -> str | None:
        """Return the client id of the connection in the group; None: it is not a member."""
        members = self._clients.consumer_group(group)
        member = None if members is None else members.members.get(peer.id)
        return None if member is None else member.client_id

    def _is_own(self, topic: str) -> bool:
        return topic == self._config.trace_topic or (topic != SCHEDULE_TOPIC and is_system_topic(topic))

    def _add(self, record: TraceRecord, now_ms: int) -> None:
        if len(self._texts) >= self._config.broker_trace_records_max:
            self._lose(1, now_ms)
            return
        text = encode_record_text(record)
        self._texts.append(text)
        self._size += len(text)
        if self._due_ms is None:
            self._due_ms = now_ms + self._config.broker_trace_delay_ms

    def _lose(self, count: int, now_ms: int) -> None:
        if not self._lost_count:
            self._lost_from_ms = now_ms
        self._lost_to_ms = now_ms
        self._lost_count += count

    # Writing.

    def set_back(self, by_ms: int) -> None:
        """Continue without waiting, after the clock was set back."""
        if self._due_ms is not None:
            self._due_ms -= by_ms

    def next_due_ms(self) -> int | None:
        """Return when `flush` has something to write; None: nothing waits."""
        return self._due_ms

    def is_due(self, now_ms: int) -> bool:
        """Return whether `flush` would write now: the delay is over, or a message is full."""
        return self._due_ms is not None and (now_ms >= self._due_ms or self._size >= self._batch_size)

    def flush(
        self, write: Callable[[Sequence[PendingRecord]], object], now_ms: int, *, all_of_it: bool = False
    ) -> None:
        """Write records whose delay is over, or that fill a message. Records that the store refuses are counted as
        lost."""
        if self._due_ms is None or not (all_of_it or self.is_due(now_ms)):
            return
        texts, self._texts, self._size, self._due_ms = self._texts, [], 0, None
        count, lost_count = len(texts), self._lost_count
        if lost_count:
            loss = TraceLoss(
                client_id=self._name,
                start_id=self._start_id,
                from_ms=self._lost_from_ms,
                to_ms=self._lost_to_ms,
                count=lost_count,
                reason="broker trace buffer full",
            )
            texts.insert(0, encode_trace([loss]))
            self._lost_count = 0
        try:
            write(self._messages(texts, now_ms))
        except MQError:
            self._lost_count = lost_count
            self._lose(count, now_ms)
            self._due_ms = now_ms + self._config.broker_trace_delay_ms

    def _messages(self, texts: list[str], now_ms: int) -> list[PendingRecord]:
        """Return trace messages of about broker_trace_batch_size bytes at most."""
        bodies: list[bytes] = []
        part: list[str] = []
        size = 0
        for text in texts:
            part.append(text)
            size += len(text)
            if size >= self._config.broker_trace_batch_size:
                bodies.append("".join(part).encode())
                part, size = [], 0
        if part:
            bodies.append("".join(part).encode())
        return [self._messages_of.message(body, now_ms) for body in bodies]


def _kind_of(topic: str) -> StoredKind:
    if topic == SCHEDULE_TOPIC:
        return StoredKind.DELAY
    if topic.startswith(RETRY_PREFIX):
        return StoredKind.RETRY
    if topic.startswith(DLQ_PREFIX):
        return StoredKind.DLQ
    return StoredKind.NORMAL
