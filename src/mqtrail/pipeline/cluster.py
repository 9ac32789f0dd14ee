"""The source's requests to a cluster: queues, their bounds, and messages from an offset on. It writes nothing.

`connect` returns a `Cluster` over mqtrail.client; tests pass their own. Every call can raise MQError. An error that the
source raises ends the query, so `Retrying` repeats requests whose error can be temporary (a name server that restarts,
a broker that is being replaced) for a limited time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from mqtrail.client import Credentials, QueueReader, ReaderConfig, RouteNotFound, TlsClientConfig
from mqtrail.wire import MessageQueue, MQError, Refusal

T = TypeVar("T")

RETRY_WAIT_FIRST_S = 0.1
RETRY_WAIT_MAX_S = 2.0


class BrokerUnreachable(MQError):
    """A request failed repeatedly until its timeout. Its answer is unknown."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to one pull.

    records: stored records at or after the requested offset, in order; possibly none. next_offset: where to continue.
    [first, end): what the queue held when the broker answered; offsets outside have no message.
    """

    records: Sequence[bytes]
    next_offset: int
    first: int
    end: int


class Cluster(Protocol):
    """The requests of the source."""

    def topics(self) -> list[str]:
        """Return the names of all topics."""

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted; none if no name server knows the topic."""

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return [first, end): the first offset that the broker still has, and the next one it will write."""

    def topic_bounds(self, topic: str, broker_name: str) -> dict[MessageQueue, tuple[int, int]]:
        """Return the bounds of a topic's queues on a broker, by one request; {} if the broker does not return them."""

    def offset_by_time(self, queue: MessageQueue, at_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, else the queue's end; about."""

    def pull(self, queue: MessageQueue, queue_offset: int, count_max: int) -> Pulled:
        """Read at most count_max messages from queue_offset on. Nothing is committed or registered."""

    def close(self) -> None:
        """Close connections and threads."""


class Retrying:
    """Repeats requests that fail with an error that can be temporary, for at most timeout_ms each."""

    def __init__(
        self,
        timeout_ms: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._sleep = sleep

    def __call__(self, what: str, request: Callable[[], T]) -> T:
        """Return the result of request(). what: names the request in errors.

        Raises a refusal that is not retryable immediately; BrokerUnreachable, from the last failure, after the timeout.
        """
        deadline = self._clock() + self._timeout_ms / 1000
        wait_s = RETRY_WAIT_FIRST_S
        while True:
            try:
                return request()
            except (MQError, OSError) as error:
                if isinstance(error, Refusal) and not error.retryable:
                    raise
                if self._clock() + wait_s > deadline:
                    raise BrokerUnreachable(
                        f"{what} failed for {self._timeout_ms} ms, last with: {error}. "
                        "Check that the broker is up and that its advertised address is reachable from this machine"
                    ) from error
            self._sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_WAIT_MAX_S)


def connect(
    name_server: str,
    read_rate_max: float | None = None,
    credentials: Credentials | None = None,
    tls: TlsClientConfig | None = None,
) -> Cluster:
    """Return the cluster of the name servers. The first request connects."""
    # The reader retries once, quickly, with a new route; Retrying waits and repeats.
    return _ReaderCluster(
        QueueReader(
            ReaderConfig(
                namesrv=name_server,
                retry_count=1,
                retry_ms=50,
                rate_max=read_rate_max or 0.0,
                credentials=credentials,
                tls=tls or TlsClientConfig(),
            )
        )
    )


class _ReaderCluster:
    """A Cluster over mqtrail.client's QueueReader, which reads without committing offsets or registering."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader

    def topics(self) -> list[str]:
        return self._reader.topics()

    def queues(self, topic: str) -> list[MessageQueue]:
        try:
            return self._reader.queues(topic)
        except RouteNotFound:
            return []

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        return self._reader.range(queue)

    def topic_bounds(self, topic: str, broker_name: str) -> dict[MessageQueue, tuple[int, int]]:
        try:
            return self._reader.ranges(topic, broker_name)
        except Refusal as refusal:
            if refusal.retryable:
                raise
            return {}  # not allowed, or not supported: it may answer for single queues

    def offset_by_time(self, queue: MessageQueue, at_ms: int) -> int:
        return self._reader.offset_by_time(queue, at_ms)

    def pull(self, queue: MessageQueue, queue_offset: int, count_max: int) -> Pulled:
        result = self._reader.read(queue, queue_offset, count_max)
        return Pulled(result.records, result.next_offset, result.min_offset, result.max_offset)

    def close(self) -> None:
        self._reader.close()


def all_queues(cluster: Cluster, topics: Iterable[str], retrying: Retrying) -> list[MessageQueue]:
    """Return the queues of all topics, sorted."""
    found: list[MessageQueue] = []
    for topic in topics:
        found += retrying(f"route of topic {topic}", partial(cluster.queues, topic))
    return sorted(found)
