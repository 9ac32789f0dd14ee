"""Statistics of topics, groups, clients and the broker: 202, 208, 317, 203, 204, 328, 315, 28.

Source: AdminBrokerProcessor, apache/rocketmq broker/processor/; BrokerController, StoreStatsService for 28.
"""

from collections.abc import Generator

from mqtrail.wire import (
    DELAY_PROGRESS_PREFIX,
    FRAME_SIZE_MAX,
    MQ_VERSION,
    BrokerConsumeStats,
    BrokerConsumeStatsHeader,
    BrokerStatsData,
    ClientConnection,
    ConsumerConnections,
    ConsumerGroupHeader,
    ConsumerNotOnline,
    ConsumeStats,
    ConsumeStatsHeader,
    KvTable,
    MessageQueue,
    OffsetWrapper,
    Peer,
    ProducerConnections,
    ProducerGroupHeader,
    ProducerInfo,
    ProducerTable,
    QueryNotFound,
    RemotingCommand,
    Send,
    StatsItem,
    SystemError_,
    TopicHeader,
    TopicNotExist,
    TopicOffset,
    TopicStatsTable,
    ViewBrokerStatsHeader,
    Work,
    answer,
    decode_head,
    dumps,
    dumps_in_slices,
    encode_in_slices,
    encode_list_in_slices,
    version_text,
)

from ..jobs import ENTRIES_A_SLICE, QUEUES_A_SLICE, SliceCounter
from ..state import BrokerState
from ..tables import Client
from ..telemetry import Window
from ..timing import DelayedMessages


class StatsRequests:
    """Serves requests for statistics. Values for parts that this broker lacks (thread pools, page cache) are 0."""

    def __init__(self, state: BrokerState, delays: DelayedMessages) -> None:
        self._config = state.config
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._clients = state.clients
        self._offsets = state.offsets
        self._delays = delays
        self._stats = state.stats
        self._boot_ms = state.boot_ms

    # Topics and groups.

    def topic(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """202: range and last write of each queue. TopicNotExist."""
        name = TopicHeader.from_ext(request.ext).topic
        config = self._topics.get(name)
        if config is None:
            raise TopicNotExist(f"topic[{name}] not exist")
        table: dict[MessageQueue, TopicOffset] = {}
        counter = SliceCounter()
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            if counter.queue_done():
                yield
            end = self._store.max_offset(name, queue_id)
            written_ms = self._store.store_time(name, queue_id, end - 1) if end > 0 else 0
            table[self._queue(name, queue_id)] = TopicOffset(
                self._store.min_offset(name, queue_id), end, max(0, written_ms)
            )
        tps = 0.0 if self._stats is None else self._stats.put_tps(name)
        bare = TopicStatsTable({}, tps)
        body = yield from encode_in_slices(bare, "offsetTable", table.items(), QUEUES_A_SLICE, strict=False)
        return answer(peer, request, body=body)

    def group(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """208: offsets of a group in one topic, in several, or in all topics that it committed to."""
        header = ConsumeStatsHeader.from_ext(request.ext)
        if header.topic_list:
            topics = list(dict.fromkeys(header.topic_list.split(";")))
        else:
            topics = [header.topic] if header.topic else (yield from self._offsets.topics_of(header.consumer_group))
        online = self._clients.consumer_group(header.consumer_group)
        table: dict[MessageQueue, OffsetWrapper] = {}
        tps = 0.0
        counter = SliceCounter()
        for topic in topics:
            if counter.topic_done():
                yield
            if online is not None and online.subscriptions and topic not in online.subscriptions:
                continue  # offsets of an earlier subscription
            stats = yield from self._consume_stats(topic, header.consumer_group, counter)
            if stats is not None:
                table |= stats.offset_table
                tps += stats.consume_tps
        bare = ConsumeStats({}, tps)
        body = yield from encode_in_slices(bare, "offsetTable", table.items(), QUEUES_A_SLICE, strict=False)
        return answer(peer, request, body=body)

    def _consume_stats(
        self, topic: str, group: str, counter: SliceCounter
    ) -> Generator[None, None, ConsumeStats | None]:
        config = self._topics.get(topic)
        if config is None:
            return None
        table: dict[MessageQueue, OffsetWrapper] = {}
        for queue_id in range(config.read_queue_nums):
            if counter.queue_done():
                yield
            consumed = self._offsets.get(group, topic, queue_id) or 0
            pulled = self._offsets.pulled(group, topic, queue_id)
            consumed_ms = self._store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else 0
            table[self._queue(topic, queue_id)] = OffsetWrapper(
                broker_offset=self._store.max_offset(topic, queue_id),
                consumer_offset=consumed,
                pull_offset=consumed if pulled is None else max(pulled, consumed),
                last_timestamp=max(0, consumed_ms),
            )
        return ConsumeStats(table, 0.0 if self._stats is None else self._stats.get_tps(topic, group))

    def broker_groups(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """317: offsets of all groups in all topics that they committed to."""
        ordered_only = BrokerConsumeStatsHeader.from_ext(request.ext).is_order
        groups: list[bytes] = []
        size = behind = in_flight = 0
        counter = SliceCounter()
        for name in sorted(self._groups.all()):
            found: list[bytes] = []
            for topic in (yield from self._offsets.topics_of(name)):
                if counter.topic_done():
                    yield
                config = self._topics.get(topic)
                stats = yield from self._consume_stats(topic, name, counter)
                if config is None or stats is None or (ordered_only and not config.order):
                    continue
                bare_stats = ConsumeStats({}, stats.consume_tps)
                offsets = stats.offset_table.items()
                body = yield from encode_in_slices(bare_stats, "offsetTable", offsets, QUEUES_A_SLICE, strict=False)
                found.append(body)
                size += len(body)
                _check_size(size)
                for offset in stats.offset_table.values():
                    behind += offset.broker_offset - offset.consumer_offset
                    in_flight += (offset.pull_offset or offset.consumer_offset) - offset.consumer_offset
            groups.append(b"{%b:[%b]}" % (dumps(name), b",".join(found)))
            size += len(name)
            _check_size(size)
        bare = BrokerConsumeStats({}, str(self._config.address), behind, in_flight).encode(strict=False)
        before, mark, after = bare.partition(b'"consumeStatsList":[')
        return answer(peer, request, body=b"".join((before, mark, b",".join(groups), after)))

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._config.broker_name, queue_id)

    # Clients.

    def consumers(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """203. ConsumerNotOnline: no live client of the group."""
        name = ConsumerGroupHeader.from_ext(request.ext).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise ConsumerNotOnline(f"the consumer group[{name}] not online")
        bare = ConsumerConnections(
            (),
            dict(sorted(group.subscriptions.items())),
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        found = map(_connection, list(group.members.values()))
        return answer(
            peer, request, body=(yield from encode_list_in_slices(bare, "connectionSet", found, ENTRIES_A_SLICE))
        )

    def producers(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """204. SystemError_: no live client of the group (the code of 5.3.3)."""
        name = ProducerGroupHeader.from_ext(request.ext).producer_group
        members = self._clients.producers(name)
        if not members:
            raise SystemError_(f"the producer group[{name}] not exist")
        found, bare = map(_connection, members), ProducerConnections(())
        return answer(
            peer, request, body=(yield from encode_list_in_slices(bare, "connectionSet", found, ENTRIES_A_SLICE))
        )

    def all_producers(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """328."""
        groups = []
        weight = size = 0
        for name in sorted(self._clients.producer_group_names()):
            members = self._clients.producers(name)
            if not members:
                continue  # they left meanwhile
            infos = yield from dumps_in_slices(map(_producer, members), ENTRIES_A_SLICE)
            groups.append(b"%b:%b" % (dumps(name), infos))
            size += len(groups[-1])
            _check_size(size)
            weight += 1 + len(members)
            if weight >= ENTRIES_A_SLICE:
                weight = 0
                yield
        before, empty, after = ProducerTable().encode().partition(b"{}")
        assert empty, "its only member is empty"
        return answer(peer, request, body=b"".join((before, b"{", b",".join(groups), b"}", after)))

    # The broker.

    def windows(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """315. SystemError_: no counter with this name and key (the code of 5.3.3)."""
        header = ViewBrokerStatsHeader.from_ext(request.ext)
        found = None if self._stats is None else self._stats.windows(header.stats_name, header.stats_key)
        if found is None:
            raise SystemError_(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        return answer(peer, request, body=BrokerStatsData(*map(_item, found)).encode())

    def runtime(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """28."""
        return answer(peer, request, body=KvTable(self._runtime(now_ms)).encode())

    def _runtime(self, now_ms: int) -> dict[str, str]:
        store, stats = self._store, self._stats
        table: dict[str, object] = {
            "bootTimestamp": self._boot_ms,
            "brokerActive": "true",
            "brokerVersion": MQ_VERSION,
            "brokerVersionDesc": version_text(MQ_VERSION),
            "commitLogMaxOffset": store.end_offset,
            "commitLogMinOffset": store.min_physical_offset,
            "commitLogDirCapacity": _capacity_text(*store.disk_capacity),
            "commitLogDiskRatio": round(store.disk_ratio, 4),
            "consumeQueueDiskRatio": round(store.disk_ratio, 4),
            "remainHowManyDataToFlush": f"{store.end_offset - store.flushed_offset} B",
            "runtime": _runtime_text(now_ms - self._boot_ms),
            "startAcceptSendRequestTimeStamp": self._config.start_accept_ms,
            "earliestMessageTimeStamp": self._earliest_ms(),
            "dispatchBehindBytes": store.behind_size,
        }
        table |= dict.fromkeys(_ALWAYS_ZERO, 0)
        for level, (delivered, end) in self._delays.positions().items():
            table[f"{DELAY_PROGRESS_PREFIX}{level}"] = f"{delivered},{end}"
        if stats is not None:
            put, size = stats.put_total(), stats.put_size_total()
            table |= {
                "msgPutTotalTodayNow": put,
                "msgPutTotalTodayMorning": stats.morning["Today"][0],
                "msgPutTotalYesterdayMorning": stats.morning["Yesterday"][0],
                "msgGetTotalTodayNow": stats.get_total(),
                "msgGetTotalTodayMorning": stats.morning["Today"][1],
                "msgGetTotalYesterdayMorning": stats.morning["Yesterday"][1],
                "putMessageTimesTotal": put,
                "putMessageSizeTotal": size,
                "putMessageAverageSize": size / put if put else 0.0,
            }
            names = {"put": "putTps", "transferred": "getTransferredTps", "found": "getFoundTps"}
            names |= {"miss": "getMissTps", "total": "getTotalTps"}
            for name, rates in stats.rates(now_ms).items():
                table[names[name]] = " ".join(map(str, rates))
            # mqadmin 4.9 reads the older spelling: without it clusterList shows no rates and exportMetrics fails
            table["getTransferedTps"] = table["getTransferredTps"]
        return {key: str(value) for key, value in sorted(table.items())}

    def _earliest_ms(self) -> int:
        """Return the store time of the first kept record of the log; -1: none."""
        try:
            return decode_head(self._store.read_at(self._store.min_physical_offset)).store_timestamp_ms
        except QueryNotFound:
            return -1


# Keys that tools read, about Java's thread pools and page cache.
_ALWAYS_ZERO = (
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "ackThreadPoolQueueCapacity",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueSize",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "litePullThreadPoolQueueCapacity",
    "litePullThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueSize",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "putMessageEntireTimeMax",
    "putMessageFailedTimes",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "remainTransientStoreBufferNumbs",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
)


def _capacity_text(total_size: int, free_size: int) -> str:
    return f"Total : {_size_text(total_size)}, Free : {_size_text(free_size)}."


def _size_text(size: int) -> str:
    """Return a size in the format of Java's tools: 252.0 GiB."""
    number, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"


def _runtime_text(span_ms: int) -> str:
    minutes, seconds = divmod(span_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _check_size(size: int) -> None:
    if size > FRAME_SIZE_MAX:
        raise SystemError_(
            f"found statistics of more than {FRAME_SIZE_MAX} bytes, expected fewer: ask for one group (208)"
        )


def _connection(client: Client) -> ClientConnection:
    return ClientConnection(client.client_id, str(client.peer.address), client.language, client.version)


def _producer(client: Client) -> ProducerInfo:
    return ProducerInfo(client.client_id, f"/{client.peer.address}", client.language, client.version, client.seen_ms)


def _item(window: Window) -> StatsItem:
    return StatsItem(window.sum, window.tps, window.avgpt)
