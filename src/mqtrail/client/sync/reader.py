"""QueueReader: reads ranges of queues with blocking sockets, without changing anything on the cluster.

Made for Spark's Python workers and for look-ups: no event loop, no thread, a picklable configuration. Why it changes
nothing on the broker (according to RocketMQ's sources, tested against 4.9.7 and 5.3.3):

- It pulls as `TOOLS_CONSUMER`, a group that every broker has. A pull of an unknown group would create that group in
  subscriptionGroup.json (autoCreateSubscriptionGroup).
- Its pulls contain their subscription (bit SUBSCRIPTION) and no offset to commit. It sends no heartbeat, so it joins no
  group, and brokers create no %RETRY% topic for it.
- It never pulls outside [min, max): a 4.x broker would store a message in OFFSET_MOVED_EVENT. It requests the range
  before it pulls, and again when the known range is older than `range_check_ms`.
- It requests routes from name servers, which create nothing.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from mqtrail.net import NAMESRV_DEFAULT, TlsClientConfig, parse_namesrv
from mqtrail.wire import (
    TOOLS_CONSUMER_GROUP,
    Credentials,
    MessageQueue,
    MQError,
    PullSysFlag,
    Refusal,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
    refusal_for,
    setting,
)

from ..consumer import PullResult, PullStatus, read_pull_reply
from ..core import (
    BrokerUnknown,
    InstanceConfig,
    NoNameServer,
    ReadFailed,
    RouteNotFound,
    TopicRoute,
    ask_addresses,
    endpoint_url,
    queue_name,
    read_body,
    read_route,
    reply_number,
)
from .blocking import BlockingConnection

T = TypeVar("T")

Pace = Callable[[int, int], None]
"""Called after each pull with (records, bytes); it sleeps when reading is too fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig:
    """A reader's settings. Picklable, so that a driver can pass them to its workers."""

    namesrv: str = setting(NAMESRV_DEFAULT, "name servers", like="namesrvAddr")
    group: str = setting(
        TOOLS_CONSUMER_GROUP, "group that every broker has; a pull of an unknown group would create it"
    )
    timeout_ms: int = setting(10_000, "timeout of one request")
    retry_count: int = setting(5, "maximum number of retries of a request after a temporary failure")
    retry_ms: int = setting(200, "delay before the first retry; doubles each time")
    pull_count_max: int = setting(
        32, "maximum number of records per pull; brokers return at most 32 from memory and 8 from disk"
    )
    range_check_ms: int = setting(5_000, "time that a known range of a queue is used without a new request")
    rate_max: float = setting(0.0, "maximum records per second; 0: no limit")
    credentials: Credentials | None = None  # every request is signed with them
    tls: TlsClientConfig = field(default_factory=TlsClientConfig)


class RateLimit:
    """Limits reading to a number of records per second, counted over the life of one reader."""

    def __init__(self, rate_max: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_max = rate_max
        self._clock = clock
        self._free_at = clock()

    def __call__(self, count: int, size: int) -> None:
        """Sleep until count more records are within the rate. size is ignored."""
        if (wait := self.wait_s(count)) > 0:
            time.sleep(wait)

    def wait_s(self, count: int) -> float:
        """Add count records and return the seconds to wait."""
        if self._rate_max <= 0:
            return 0.0
        now = self._clock()
        self._free_at = max(self._free_at, now) + count / self._rate_max
        return self._free_at - now


@dataclass(slots=True)
class _Range:
    first: int
    end: int
    known_at: float


class QueueReader:
    """Reads queues by offset. Not thread safe: use one per worker.

    Every method raises NoNameServer, RouteNotFound, BrokerUnknown, a Refusal, or ReadFailed after its retries.
    """

    def __init__(self, config: ReaderConfig | str | None = None, pace: Pace | None = None) -> None:
        self.config = ReaderConfig(namesrv=config) if isinstance(config, str) else config or ReaderConfig()
        self._url = endpoint_url(self.config.namesrv, InstanceConfig())
        self._namesrv = parse_namesrv(self.config.namesrv) if self._url is None else ()
        self._current = random.randrange(len(self._namesrv)) if self._namesrv else 0
        self._pace: Pace = pace or RateLimit(self.config.rate_max)
        self._tls = self.config.tls.context()
        self._connections: dict[str, BlockingConnection] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._ranges: dict[MessageQueue, _Range] = {}

    def __enter__(self) -> "QueueReader":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted, from a name server."""
        command = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        found = self._ask_name_server(command, lambda reply, _: read_body(reply, TopicList.decode))
        return sorted(found.topic_list)

    def queues(self, topic: str, *, refresh: bool = True) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted. refresh: ask a name server even if the route is known."""
        return list(self._route(topic, refresh=refresh).subscribe_queues)

    def range(self, queue: MessageQueue) -> tuple[int, int]:
        """Return (first offset kept, offset of the next message) from the broker."""
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}
        first = self._offset(queue, RequestCode.GET_MIN_OFFSET, ext)
        end = self._offset(queue, RequestCode.GET_MAX_OFFSET, ext)
        self._ranges[queue] = _Range(max(first, 0), max(end, 0), time.monotonic())
        return max(first, 0), max(end, 0)

    def ranges(self, topic: str, broker_name: str) -> dict[MessageQueue, tuple[int, int]]:
        """Return `range` of every queue of a topic on a broker, by one request."""
        at = MessageQueue(topic, broker_name, 0)
        stats = self._ask(
            at,
            RequestCode.GET_TOPIC_STATS_INFO,
            {"topic": topic},
            lambda reply: read_body(reply, TopicStatsTable.decode),
        )
        found: dict[MessageQueue, tuple[int, int]] = {}
        for reported, ends in stats.offset_table.items():
            queue = MessageQueue(topic, broker_name, reported.queue_id)
            found[queue] = max(ends.min_offset, 0), max(ends.max_offset, 0)
            self._ranges[queue] = _Range(*found[queue], time.monotonic())
        return found

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after the time (epoch ms); else the queue's end."""
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "timestamp": str(timestamp_ms)}
        return self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext | {"bname": queue.broker_name})

    def read(
        self, queue: MessageQueue, offset: int, count_max: int = 32, bytes_max: int = 4 * 1024 * 1024
    ) -> PullResult:
        """Return the records of [offset, offset + n), n <= count_max, as many as fit into bytes_max but at least one.

        Status NO_NEW_MESSAGE at the queue's end (next_offset is offset). OFFSET_MOVED if offset is below the first
        offset kept or past the end: continue at next_offset; no pull that the broker would record was sent.
        """
        known = self._ranges.get(queue)
        now = time.monotonic()
        fresh = known is not None and now - known.known_at < self.config.range_check_ms / 1000
        if known is None or not fresh or not known.first <= offset < known.end:
            self.range(queue)
            known = self._ranges[queue]
        if not known.first <= offset <= known.end:
            edge = known.first if offset < known.first else known.end
            return PullResult(PullStatus.OFFSET_MOVED, (), edge, known.first, known.end)
        if offset == known.end:
            return PullResult(PullStatus.NO_NEW_MESSAGE, (), offset, known.first, known.end)
        return self._read_within(queue, offset, count_max, bytes_max, known)

    def read_range(
        self, queue: MessageQueue, first: int, end: int, count_max: int = 1_024, bytes_max: int = 4 * 1024 * 1024
    ) -> Iterator[PullResult]:
        """Yield results until end is reached, or the queue's end if that comes first.

        A result OFFSET_MOVED reports a gap [requested offset, next_offset); reading continues after it.
        """
        while first < end:
            result = self.read(queue, first, min(count_max, end - first), bytes_max)
            stays = result.next_offset <= first
            if result.status is PullStatus.NO_NEW_MESSAGE or (stays and result.status is PullStatus.OFFSET_MOVED):
                return
            if stays:
                raise ReadFailed(
                    f"found no progress at offset {first} of {queue_name(queue)}, expected records: its broker reports "
                    f"the queue's end as {result.max_offset}. Check that broker"
                )
            yield result
            first = result.next_offset

    # -- inside ----------------------------------------------------------------------------------------------------

    def _read_within(
        self, queue: MessageQueue, offset: int, count_max: int, bytes_max: int, known: _Range
    ) -> PullResult:
        records: list[bytes] = []
        size = 0
        status = PullStatus.NO_NEW_MESSAGE
        while len(records) < count_max and offset < known.end:
            count = min(count_max - len(records), self.config.pull_count_max, known.end - offset)
            result = self._pull(queue, offset, count, max(1, bytes_max - size))
            if result.status is PullStatus.OFFSET_MOVED:
                if not records:
                    return result
                break  # return the records read so far; the next call reports the gap
            if result.next_offset <= offset:
                break
            offset = result.next_offset
            if result.records:
                status = PullStatus.FOUND
                records += result.records
                pulled = sum(map(len, result.records))
                size += pulled
                self._pace(len(result.records), pulled)
                if size >= bytes_max:
                    break
        if status is PullStatus.NO_NEW_MESSAGE and offset < known.end:
            status = PullStatus.NO_MATCHED_MESSAGE
        return PullResult(status, tuple(records), offset, known.first, known.end)

    def _pull(self, queue: MessageQueue, offset: int, count: int, size_max: int) -> PullResult:
        ext = {
            "consumerGroup": self.config.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": str(PullSysFlag.SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
            "maxMsgBytes": str(size_max),
            "bname": queue.broker_name,
        }
        result = self._ask(
            queue, RequestCode.PULL_MESSAGE, ext, lambda reply: read_pull_reply(reply, queue, offset, count)
        )
        known = self._ranges[queue]
        known.first, known.end = result.min_offset, max(known.end, result.max_offset)
        return result

    def _offset(self, queue: MessageQueue, code: RequestCode, ext: dict[str, str]) -> int:
        def read(reply: RemotingCommand) -> int:
            if reply.code != ResponseCode.SUCCESS:
                raise refusal_for(reply.code, reply.remark)
            return reply_number(reply, "offset")

        return self._ask(queue, code, ext, read)

    def _ask(
        self, queue: MessageQueue, code: RequestCode, ext: dict[str, str], read: Callable[[RemotingCommand], T]
    ) -> T:
        """Return read(reply) of the queue's broker. Retries temporary failures, with a refreshed route."""
        failure: Exception | None = None
        for attempt in range(self.config.retry_count + 1):
            if attempt:
                time.sleep(self.config.retry_ms / 1000 * 2 ** (attempt - 1))
            try:
                route = self._route(queue.topic, refresh=attempt > 0)
                address = route.address(queue.broker_name)
                if address is None:
                    raise BrokerUnknown(
                        f"found no address of broker {queue.broker_name!r} in the route of {queue.topic!r}; check that "
                        "it is up"
                    )
                return read(self._request(address, RemotingCommand(code, dict(ext))))
            except Refusal as refusal:
                if not refusal.retryable:
                    raise
                failure = refusal
            except RouteNotFound:
                raise
            except (MQError, KeyError, ValueError) as error:
                failure = error
        raise ReadFailed(
            f"{code.name} of {queue.topic}/{queue.broker_name}/{queue.queue_id} failed {attempt + 1} times; "
            f"the last failure: {failure}"
        ) from failure

    def _request(self, address: str, command: RemotingCommand) -> RemotingCommand:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = BlockingConnection(
                address, credentials=self.config.credentials, tls=self._tls
            )
        return connection.request(command, self.config.timeout_ms)

    def _route(self, topic: str, *, refresh: bool) -> TopicRoute:
        route = self._routes.get(topic)
        if route is None or refresh:
            route = self._routes[topic] = TopicRoute.build(topic, self._ask_route(topic))
        return route

    def _ask_route(self, topic: str) -> TopicRouteData:
        def read(reply: RemotingCommand, address: str) -> TopicRouteData:
            if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                raise RouteNotFound(
                    f"no broker has the topic {topic!r}, according to the name server {address}: create it"
                )
            return read_body(reply, read_route)

        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        return self._ask_name_server(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext), read)

    def _ask_name_server(self, command: RemotingCommand, read: Callable[[RemotingCommand, str], T]) -> T:
        """Return read(reply, address) of the first name server that answers; its RouteNotFound is an answer."""
        failures: list[str] = []
        if self._url is not None and not self._namesrv:
            self._namesrv = ask_addresses(self._url)
        for turn in range(len(self._namesrv)):
            address = self._namesrv[(self._current + turn) % len(self._namesrv)]
            try:
                found = read(self._request(address, RemotingCommand(command.code, dict(command.ext))), address)
            except RouteNotFound:
                raise
            except MQError as error:
                failures.append(f"{address}: {error}")
            else:
                self._current = (self._current + turn) % len(self._namesrv)
                return found
        if self._url is not None:
            self._namesrv = ()  # they may have moved: the next attempt fetches their addresses again
        raise NoNameServer(
            "no name server answered; check the address, and that a name server is running there. "
            + "; ".join(failures)
        )
