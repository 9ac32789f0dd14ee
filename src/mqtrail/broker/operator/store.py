"""Requests about the store: 306, 316, 329 cleaning, 321 queue entries, 2001 to 2004 cold data.

354 and 355 concern a store in RocksDB and are refused.

Source: AdminBrokerProcessor, DefaultMessageStore, ColdDataCgCtrService, apache/rocketmq broker/ and store/.
"""

from typing import Final

from mqtrail.wire import (
    ColdDataInfo,
    ConsumeQueueEntries,
    ConsumeQueueEntry,
    InvalidParameter,
    Peer,
    QueryConsumeQueueHeader,
    RemotingCommand,
    RequestCodeNotSupported,
    Send,
    SubscriptionParseFailed,
    SystemError_,
    Work,
    answer,
    dumps,
    properties_of,
)

from ..filter import MessageFilter, compile_filter
from ..jobs import TOPICS_A_SLICE
from ..state import BrokerState

ENTRIES_MAX: Final = 10_000  # in one answer to 321
THRESHOLDS_MAX: Final = 10_000  # groups with a cold read threshold of their own
THRESHOLD_DIGITS_MAX: Final = 18
GROUP_COLD_READ: Final = 3 * 1024 * 1024  # cgColdReadThreshold
GLOBAL_COLD_READ: Final = 100 * 1024 * 1024  # globalColdReadThreshold
READ_AHEAD_NORMAL: Final = 0  # madvise
LITE_TOPIC_PREFIX: Final = "%LMQ%"  # their queues need no topic
RESPONSE_CODE_UNSET: Final = "not set any response code"  # remark of answers of 5.3.3 that set no code


class StoreAdmin:
    """Serves requests about the store."""

    def __init__(self, state: BrokerState) -> None:
        self._topics = state.topics
        self._clients = state.clients
        self._filters = state.filters
        self._store = state.store
        self._cold_thresholds: dict[str, int] = {}

    def clean_expired_queues(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """306: delete queue entries whose records are deleted. Queue offsets continue, also in an empty queue."""
        yield from self._store.clean_queues()
        return answer(peer, request)

    def clean_unused_topics(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """316: delete the queues of topics without a configuration."""
        for number, topic in enumerate(self._store.topics(), 1):
            if number % TOPICS_A_SLICE == 0:
                yield
            if topic in self._topics or self._topics.is_system(topic) or topic.startswith(LITE_TOPIC_PREFIX):
                continue
            if not self._topics.is_saved(topic):
                continue  # its deletion is in progress and may be undone
            self._store.delete_topic(topic)
        return answer(peer, request)

    def delete_expired_log(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """329: delete expired files now, at any hour."""
        yield from self._store.expire_in_slices(now_ms, at_any_hour=True)
        return answer(peer, request)

    def queue_entries(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """321: entries of a ConsumeQueue, and whether the filter of a group accepts them. SystemError_: no such
        queue."""
        header = QueryConsumeQueueHeader.from_ext(request.ext)
        topic, queue_id, store = header.topic, header.queue_id, self._store
        if queue_id not in store.queue_ids(topic):
            raise SystemError_(f"{queue_id}@{topic} is not exist!")
        subscription = filter_data = wanted = None
        if header.consumer_group is not None:
            group = self._clients.consumer_group(header.consumer_group)
            subscription = None if group is None else group.subscriptions.get(topic)
            if subscription is None:
                filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                kept = self._filters.get(topic, header.consumer_group)
                filter_data = "null" if kept is None else dumps(kept.data.members()).decode()
                try:
                    wanted = compile_filter(subscription)
                except SubscriptionParseFailed:
                    wanted = None
        entries = store.entries(topic, queue_id, header.index, max(0, min(header.count, ENTRIES_MAX)))
        end = store.max_offset(topic, queue_id)
        remark = RESPONSE_CODE_UNSET
        if not entries and not store.min_offset(topic, queue_id) <= header.index < end:
            remark = f"Index {header.index} of {queue_id}@{topic} is not exist!"
        body = ConsumeQueueEntries(
            tuple(_entry(*entry, wanted, subscription is not None) for entry in entries),
            store.min_offset(topic, queue_id),
            end,
            subscription,
            filter_data,
        )
        return answer(peer, request, remark=remark, body=body.encode())

    # Cold data: thresholds are stored and shown, but do not limit reads (coldDataFlowControlEnable is off).

    def set_cold_thresholds(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """2001: lines of group=bytes. InvalidParameter: not a number, or too many groups."""
        found = {}
        for group, text in properties_of(str(request.body, "utf-8", "replace")).items():
            if not text.isascii() or not text.isdigit() or len(text) > THRESHOLD_DIGITS_MAX:
                raise InvalidParameter(
                    f"found threshold {text!r:.40} of group {group:.120}, expected a number of bytes"
                )
            found[group] = int(text)
        if len(self._cold_thresholds.keys() | found.keys()) > THRESHOLDS_MAX:
            raise InvalidParameter(
                f"found more than {THRESHOLDS_MAX} groups with a threshold, expected fewer: remove some (2002)"
            )
        self._cold_thresholds |= found
        return answer(peer, request)

    def drop_cold_threshold(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """2002: the body is the name of the group."""
        self._cold_thresholds.pop(str(request.body, "utf-8", "replace"), None)
        return answer(peer, request)

    def cold_data(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """2003."""
        info = ColdDataInfo({}, dict(self._cold_thresholds), GROUP_COLD_READ, GLOBAL_COLD_READ, 0)
        return answer(peer, request, body=info.encode())

    def set_read_ahead(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """2004: only 0, the read-ahead of the kernel, is supported. InvalidParameter: another value."""
        mode = request.ext.get("READ_AHEAD_MODE") or ""
        if mode != str(READ_AHEAD_NORMAL):
            raise InvalidParameter(
                f"set commitlog readahead mode param value error: found {mode!r:.20}, expected {READ_AHEAD_NORMAL}: "
                "this store uses the read-ahead of the kernel"
            )
        return answer(peer, request, remark=f"set commitlog readahead mode success, mode: {mode}")

    def refuse_rocksdb(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """354, 355."""
        raise RequestCodeNotSupported(
            f" request type {request.code} not supported: this broker keeps queues and tables in files, not RocksDB"
        )


def _entry(
    physical_offset: int, size: int, tags_code: int, wanted: MessageFilter | None, is_online: bool
) -> ConsumeQueueEntry:
    takes = is_online and (wanted is None or wanted.matches_code(tags_code))
    return ConsumeQueueEntry(physical_offset, size, tags_code, takes)
