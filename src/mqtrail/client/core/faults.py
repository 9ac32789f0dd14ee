"""The fault table: brokers that were slow or failed are avoided for a while.

Used when `latency_fault` is on. A table maps the latency of each attempt to the time for which its broker is avoided; a
failure counts as ten seconds. A broker that refused a message counts as unreachable until it stores one again or, if
`latency_detect` is on, answers a probe. With `latency_detect`, a broken connection makes a broker unreachable too.
Source: MQFaultStrategy and LatencyFaultToleranceImpl, RocketMQ 5.x client.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mqtrail.wire import MessageQueue

# (latency at least, avoid for), milliseconds, the slowest first.
_AVOID: tuple[tuple[int, int], ...] = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
)
ISOLATION_LATENCY_MS = 10_000


@dataclass(slots=True)
class _Fault:
    until_ms: int
    reachable: bool
    ask_ms: int = 0  # when it may be probed next


class FaultTable:
    """Which brokers to avoid, and until when."""

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}

    def update(self, broker_name: str, latency_ms: int, now_ms: int, *, isolate: bool, reachable: bool) -> None:
        """Note one attempt. isolate: count it as ISOLATION_LATENCY_MS. Never shortens the time a broker is avoided."""
        latency_ms = ISOLATION_LATENCY_MS if isolate else latency_ms
        avoid_ms = next((avoid for least, avoid in _AVOID if latency_ms >= least), 0)
        fault = self._faults.get(broker_name)
        if fault is None:
            self._faults[broker_name] = _Fault(now_ms + avoid_ms if avoid_ms else 0, reachable)
            return
        fault.reachable = reachable
        if avoid_ms:
            fault.until_ms = max(fault.until_ms, now_ms + avoid_ms)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Whether the broker is not being avoided."""
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault.until_ms

    def is_reachable(self, broker_name: str) -> bool:
        """Whether the broker may be tried if no other is available."""
        fault = self._faults.get(broker_name)
        return fault is None or fault.reachable

    def forget(self, broker_name: str) -> None:
        """Drop a broker that is no longer in any route."""
        self._faults.pop(broker_name, None)

    def to_ask(self, now_ms: int, interval_ms: int) -> list[str]:
        """Return the names of the brokers to probe now; each is returned at most once per interval_ms."""
        due = [name for name, fault in self._faults.items() if now_ms >= fault.ask_ms]
        for name in due:
            self._faults[name].ask_ms = now_ms + interval_ms
        return due

    def answered(self, broker_name: str) -> None:
        """A probed broker answered: it is reachable."""
        fault = self._faults.get(broker_name)
        if fault is not None:
            fault.reachable = True


class QueueChooser:
    """Round robin over the queues of one topic, from a random start.

    A retry avoids the broker of the attempt before; with a fault table, brokers that are being avoided too.
    Source: TopicPublishInfo.selectOneMessageQueue, RocketMQ 5.x client.
    """

    __slots__ = ("_index",)

    def __init__(self, start: int) -> None:
        self._index = start

    def next(
        self,
        queues: Sequence[MessageQueue],
        last_broker: str | None = None,
        faults: FaultTable | None = None,
        now_ms: int = 0,
    ) -> MessageQueue:
        """Return the queue for one attempt. queues must not be empty. last_broker: that of the attempt before."""
        count = len(queues)
        if last_broker is None and faults is None:
            self._index = index = self._index + 1
            return queues[index % count]
        if faults is not None:
            if last_broker is not None:
                self._index = random.randrange(1 << 20)
            found = self._scan(queues, lambda name: name != last_broker and faults.is_available(name, now_ms))
            found = found or self._scan(queues, lambda name: name != last_broker and faults.is_reachable(name))
        else:
            found = self._scan(queues, lambda name: name != last_broker)
        return found or self.next(queues)

    def _scan(self, queues: Sequence[MessageQueue], accept: Callable[[str], bool]) -> MessageQueue | None:
        for _ in range(len(queues)):
            queue = self.next(queues)
            if accept(queue.broker_name):
                return queue
        return None
