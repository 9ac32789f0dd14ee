"""HandlerLimits: the messages that wait for handlers, and which of them may start now.

    member   rate_max; a number of handlers that follows their latency (adaptive.py)
    topic    topic_rate_max, topic_concurrency_max, for topics that have them; the others have only the member's
    key      key_concurrency_max for each key of each topic

Of the messages that may start, the one that arrived first does. Messages of one topic and key start as they arrived.
A limited topic or key does not hold back another one. A batch has the topic of its first message, and all keys of its
messages. Times are seconds of any clock that does not go back.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from mqtrail.wire import PROPERTY_SHARDING_KEY, MessageExt

from ..core import ConsumerConfig, report
from .adaptive import AdaptiveLimit
from .batch import Batch
from .delivery import Delivery, Source

Item = Delivery | Batch
Key = tuple[str, str]  # topic and key
Keys = tuple[Key, ...]
_ROUNDING: Final = 1e-9  # of a message


class LimitsNow(NamedTuple):
    """The handlers of a consumer now. concurrency: how many may run at once.

    running: messages in handlers. waiting: messages that wait for a handler. throttled: messages that had to wait for a
    limit since the start, by the limit's setting; each is counted once.
    """

    concurrency: int
    running: int
    waiting: int
    throttled: Mapping[str, int]


class RateBucket:
    """A token bucket: over any time t, at most burst + rate * t messages. It starts full.

    burst: at least the messages of a batch, which is not split.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left = burst
        self._counted_at: float | None = None

    def wait_s(self, count: int, now: float) -> float:
        """Return the seconds until count messages may start; 0: now."""
        if self._counted_at is not None and now > self._counted_at:
            self._left = min(self._burst, self._left + (now - self._counted_at) * self._rate)
        self._counted_at = now if self._counted_at is None else max(now, self._counted_at)
        missing = min(count, self._burst) - self._left
        return missing / self._rate if missing > _ROUNDING else 0.0

    def take(self, count: int, now: float) -> None:
        """Count messages that start."""
        self.wait_s(count, now)
        self._left -= count


class _Waiting:
    """An item that waits. number: by arrival."""

    __slots__ = ("item", "number", "throttled")

    def __init__(self, number: int, item: Item) -> None:
        self.number = number
        self.item = item
        self.throttled = False  # counted as such


class _TopicItems:
    """The waiting items of a topic with limits of its own, or of all other topics.

    open: a heap of (number of the first item, keys) without the keys that are waited for.
    """

    def __init__(self, bucket: RateBucket | None, concurrency_max: int | None) -> None:
        self.bucket = bucket
        self.concurrency_max = concurrency_max
        self.running = 0
        self.by_keys: dict[Keys, deque[_Waiting]] = {}
        self.open: list[tuple[int, Keys]] = []
        self.parked: dict[Key, list[Keys]] = {}  # key that is at its limit -> keys of items that wait for it
        self.busy: Counter[Key] = Counter()  # key -> its running handlers

    def put(self, waiting: _Waiting, keys: Keys) -> None:
        items = self.by_keys.get(keys)
        if items is None:
            items = self.by_keys[keys] = deque()
            heapq.heappush(self.open, (waiting.number, keys))
        items.append(waiting)

    def pop(self) -> Keys:
        """Remove the first open item; return its keys."""
        _, keys = heapq.heappop(self.open)
        items = self.by_keys[keys]
        items.popleft()
        if items:
            heapq.heappush(self.open, (items[0].number, keys))
        else:
            del self.by_keys[keys]
        return keys

    def discard(self, source: Source) -> int:
        """Remove the items of a queue; return their messages."""
        count = 0
        for keys, items in list(self.by_keys.items()):
            kept = deque(one for one in items if _source(one.item) is not source)
            if len(kept) < len(items):
                count += sum(_count(one.item) for one in items if _source(one.item) is source)
                self.by_keys[keys] = kept
                if not kept:
                    del self.by_keys[keys]
        if count:
            parked = {key: [keys for keys in lines if keys in self.by_keys] for key, lines in self.parked.items()}
            self.parked = {key: lines for key, lines in parked.items() if lines}
            hidden = {keys for lines in self.parked.values() for keys in lines}
            self.open = [(items[0].number, keys) for keys, items in self.by_keys.items() if keys not in hidden]
            heapq.heapify(self.open)
        return count

    def free(self, keys: Keys) -> None:
        """A handler of these keys has ended."""
        self.running -= 1
        for key in keys:
            self.busy[key] -= 1
            if not self.busy[key]:
                del self.busy[key]
            for others in self.parked.pop(key, ()):
                heapq.heappush(self.open, (self.by_keys[others][0].number, others))


class _Running:
    """A handler that runs. left: its messages that are not settled."""

    __slots__ = ("count", "keys", "left", "since", "topic")

    def __init__(self, topic: _TopicItems, keys: Keys, count: int, since: float) -> None:
        self.topic = topic
        self.keys = keys
        self.count = self.left = count
        self.since = since


class Picked(NamedTuple):
    """An item that may start, and what it counts for."""

    item: Item
    topic: _TopicItems
    keys: Keys


class HandlerLimits:
    """The limits of one consumer, and the items that wait for them.

    on_throttled: called with the topic and number of messages that have to wait for a limit, once for each item.
    """

    def __init__(self, config: ConsumerConfig, on_throttled: Callable[[str, int], None]) -> None:
        self._config = config
        self._on_throttled = on_throttled
        self._bucket = self._bucket_of(config.rate_max)
        least = config.concurrency_min
        self._adaptive = None if least is None else AdaptiveLimit(least, config.concurrency)
        rates, bounds = config.topic_rate_max or {}, config.topic_concurrency_max or {}
        self._topics = {
            topic: _TopicItems(self._bucket_of(rates.get(topic, 0)), bounds.get(topic)) for topic in {**rates, **bounds}
        }
        self._rest = _TopicItems(None, None)
        self._all = (*self._topics.values(), self._rest)
        self._number = 0
        self._running: dict[Delivery, _Running] = {}
        self._handlers = 0
        self._waiting = 0
        self._throttled: Counter[str] = Counter()
        self.wait_s: float | None = None  # after `take` found none: seconds until a rate lets one start; None: unknown

    def _bucket_of(self, rate: float) -> RateBucket | None:
        burst = max(1.0, float(self._config.batch_count_max), rate * self._config.rate_burst_s)
        return RateBucket(rate, burst) if rate else None

    @property
    def now(self) -> LimitsNow:
        """The state, for operators."""
        concurrency = self._config.concurrency if self._adaptive is None else self._adaptive.limit
        return LimitsNow(concurrency, len(self._running), self._waiting, dict(self._throttled))

    def put(self, item: Item) -> None:
        """Add an item that waits."""
        self._number += 1
        self._waiting += _count(item)
        topic = self._topics.get(item.topic, self._rest)
        topic.put(_Waiting(self._number, item), self._keys(item))

    def _keys(self, item: Item) -> Keys:
        if self._config.key_concurrency_max is None:
            return ()
        if isinstance(item, Delivery):
            key = self._key(item.message)
            return () if key is None else ((item.topic, key),)
        found = {(one.topic, key) for one in item if (key := self._key(one.message)) is not None}
        return tuple(sorted(found))

    def _key(self, message: MessageExt) -> str | None:
        if self._config.limit_key is None:
            return message.properties.get(PROPERTY_SHARDING_KEY) or next(iter(message.keys), None)
        try:
            key = self._config.limit_key(message)
        except Exception as error:  # the application's; the message must not get lost
            report("consumer.limit_key_failed", error, topic=message.topic, msg_id=message.msg_id)
            return None
        return None if key is None else str(key)

    def take(self, now: float) -> Picked | None:
        """Return the next item that may start, removed; None: see `wait_s`.

        The caller calls `started`, or drops the item.
        """
        self.wait_s = None
        best: _TopicItems | None = None
        first: _Waiting | None = None
        for topic in self._all:
            waiting = self._first(topic)
            if waiting is None or (first is not None and waiting.number > first.number):
                continue
            if not self._is_held(waiting, topic, now):
                best, first = topic, waiting
        if best is None or first is None:
            return None
        if self._adaptive is not None and self._handlers >= self._adaptive.limit:
            self._throttle(first, "concurrency_min")
            return None
        if self._bucket is not None and (wait_s := self._bucket.wait_s(_count(first.item), now)):
            self._throttle(first, "rate_max")
            self.wait_s = wait_s
            return None
        self._waiting -= _count(first.item)
        return Picked(first.item, best, best.pop())

    def _is_held(self, waiting: _Waiting, topic: _TopicItems, now: float) -> bool:
        """Whether an item has to wait for a limit of its topic."""
        if topic.concurrency_max is not None and topic.running >= topic.concurrency_max:
            self._throttle(waiting, "topic_concurrency_max")
            return True
        if topic.bucket is None or not (wait_s := topic.bucket.wait_s(_count(waiting.item), now)):
            return False
        self._throttle(waiting, "topic_rate_max")
        self.wait_s = wait_s if self.wait_s is None else min(wait_s, self.wait_s)
        return True

    def _first(self, topic: _TopicItems) -> _Waiting | None:
        """Return the topic's first item whose keys are below their limit; park those before it."""
        key_max = self._config.key_concurrency_max
        while topic.open:
            _, keys = topic.open[0]
            first = topic.by_keys[keys][0]
            full = None if key_max is None else next((key for key in keys if topic.busy[key] >= key_max), None)
            if full is None:
                return first
            heapq.heappop(topic.open)
            topic.parked.setdefault(full, []).append(keys)
            self._throttle(first, "key_concurrency_max")
        return None

    def _throttle(self, waiting: _Waiting, setting: str) -> None:
        if not waiting.throttled:
            waiting.throttled = True
            count = _count(waiting.item)
            self._throttled[setting] += count
            self._on_throttled(waiting.item.topic, count)

    def discard(self, source: Source) -> None:
        """Remove the items of a queue that is no longer consumed."""
        self._waiting -= sum(topic.discard(source) for topic in self._all)

    def started(self, picked: Picked, item: Item, now: float) -> None:
        """Count the handler of an item that `take` returned, or of those of its messages that are still wanted."""
        count = _count(item)
        running = _Running(picked.topic, picked.keys, count, now)
        for delivery in (item,) if isinstance(item, Delivery) else item:
            self._running[delivery] = running
        for bucket in (self._bucket, picked.topic.bucket):
            if bucket is not None:
                bucket.take(count, now)
        picked.topic.running += 1
        picked.topic.busy.update(picked.keys)
        self._handlers += 1

    def ended(self, deliveries: Iterable[Delivery], now: float, *, succeeded: bool | None) -> None:
        """Note that the application has settled messages. succeeded: of the handler; None: it was cancelled.

        Messages that were not started here are ignored: the consumer settled them without the application.
        """
        for delivery in deliveries:
            running = self._running.pop(delivery, None)
            if running is None:
                continue
            running.left -= 1
            if running.left:
                continue
            if self._adaptive is not None and succeeded is not None:
                self._adaptive.observe((now - running.since) / running.count, self._handlers, succeeded=succeeded)
            self._handlers -= 1
            running.topic.free(running.keys)

    def found(self, source: Source, queue_offset: int) -> list[Delivery]:
        """Return the messages at an offset of a queue that were started and are not settled."""
        return [
            delivery
            for delivery in self._running
            if delivery.process_queue is source and delivery.message.queue_offset == queue_offset
        ]


def _count(item: Item) -> int:
    return 1 if isinstance(item, Delivery) else len(item)


def _source(item: Item) -> Source:
    return item.process_queue if isinstance(item, Delivery) else item[0].process_queue
