"""Counts of sends and pulls, in the windows that RocketMQ's tools show.

The request paths add to one counter per queue and one per (queue, group). Topics, groups and the broker are sums of
them, computed when a window is sampled or requested.

    minute   7 samples, one every 10 s        sum = last - first, tps = sum / time between, avgpt = sum / times
    hour     7 samples, one every 10 min
    day     25 samples, one every hour

Source: BrokerStatsManager, StatsItem, StatsItemSet, StoreStatsService, apache/rocketmq store/stats/ and common/stats/.
"""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Final, Generic, NamedTuple, TypeVar

from mqtrail.wire import is_system_topic

SAMPLE_MS: Final = 10_000
Key = TypeVar("Key")  # of a counter of a topic
_HOUR_EVERY: Final = 60  # samples of the minute window per sample of the hour window
_DAY_EVERY: Final = 360
COUNTERS_MAX: Final = 100_000  # of each kind; further ones are counted together under OTHERS
ITEMS_MAX: Final = 50_000  # figures with windows, those of single queues last: one has up to 5 KB after a day
COUNTERS_A_SLICE: Final = 1_000  # added up by one tick
ITEMS_A_SLICE: Final = 1_500  # sampled by one tick; a new one costs several times as much as a known one
OTHERS: Final = "%OTHERS%"  # in the place of a topic or group; no name of one


@dataclass(slots=True)
class Counter:
    """Messages, their bytes and their requests, since the start of the broker."""

    count: int = 0
    size: int = 0
    times: int = 0

    def add(self, count: int = 1, size: int = 0) -> None:
        """Count a request and its messages. The lane does the same inline for sends."""
        self.count += count
        self.size += size
        self.times += 1


class _Sample(NamedTuple):
    time_ms: int
    value: int
    times: int


class Window(NamedTuple):
    """A statistic over a time span, for request 315."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


def _window(samples: deque[_Sample]) -> Window:
    if len(samples) < 2:
        return Window()
    first, last = samples[0], samples[-1]
    total, times, span_ms = last.value - first.value, last.times - first.times, last.time_ms - first.time_ms
    return Window(total, total * 1000 / span_ms if span_ms else 0.0, total / times if times else 0.0)


@dataclass(slots=True)
class _Item:
    minute: deque[_Sample] = field(default_factory=lambda: deque(maxlen=7))
    hour: deque[_Sample] = field(default_factory=lambda: deque(maxlen=7))
    day: deque[_Sample] = field(default_factory=lambda: deque(maxlen=25))


StatKey = tuple[str, str]  # name such as TOPIC_PUT_NUMS, key such as the topic
Sums = dict[StatKey, list[int]]  # value, times
_SAMPLED: Final = object()


class CounterTable(Generic[Key]):
    """Counters by topic and key. Above COUNTERS_MAX, further ones are one counter, of `others` in OTHERS."""

    def __init__(self, others: Key) -> None:
        self.by_topic: dict[str, dict[Key, Counter]] = {}
        self._others = others
        self._count = 0

    def __iter__(self) -> Iterator[tuple[str, Key, Counter]]:
        for topic, counters in self.by_topic.items():
            for key, counter in counters.items():
                yield topic, key, counter

    def counter(self, topic: str, key: Key) -> Counter:
        """Return a counter; create it if it is new."""
        known = self.by_topic.get(topic, {}).get(key)
        if known is not None:
            return known
        if self._count >= COUNTERS_MAX:
            return self.by_topic.setdefault(OTHERS, {}).setdefault(self._others, Counter())
        self._count += 1
        made = self.by_topic.setdefault(topic, {})[key] = Counter()
        return made

    def forget(self, topic: str) -> None:
        """Remove the counters of a topic."""
        self._count -= len(self.by_topic.pop(topic, ()))


class Statistics:
    """The counters of a broker and their windows. cluster: key of the counters of the whole broker."""

    def __init__(self, cluster: str, now_ms: int) -> None:
        self._cluster = cluster
        self.boot_ms = now_ms
        # By topic, so that a topic is forgotten without a scan of all.
        self._puts = CounterTable[int](0)
        self._gets = CounterTable[tuple[int, str]]((0, OTHERS))
        self._send_backs = CounterTable[str](OTHERS)
        self._acks = CounterTable[str](OTHERS)
        self._check_points = CounterTable[str](OTHERS)
        self._items: dict[str, dict[StatKey, _Item]] = {}
        self._item_count = 0
        self._sampling: Generator[None, None, None] | None = None  # a sample that takes several ticks
        self._totals: deque[tuple[int, int, int, int, int]] = deque(maxlen=61)  # time, put, get, hit, miss
        self.pull_hits = 0
        self.pull_misses = 0
        self._samples = 0
        self._next_sample_ms = now_ms + SAMPLE_MS
        self._midnight_ms = _midnight_after(now_ms)
        self.morning = {"Yesterday": (0, 0), "Today": (0, 0)}

    # For the request paths. They keep the counter and add to it: three additions per request.

    def put_counter(self, topic: str, queue_id: int) -> Counter:
        """Return the counter of messages stored in the queue."""
        try:
            return self._puts.by_topic[topic][queue_id]
        except KeyError:
            return self._puts.counter(topic, queue_id)

    def get_counter(self, topic: str, queue_id: int, group: str) -> Counter:
        """Return the counter of messages of the queue delivered to the group."""
        try:
            return self._gets.by_topic[topic][queue_id, group]
        except KeyError:
            return self._gets.counter(topic, (queue_id, group))

    def send_back(self, topic: str, group: str) -> None:
        self._send_backs.counter(topic, group).add()

    def ack(self, topic: str, group: str, count: int) -> None:
        """Count acknowledged popped messages."""
        self._acks.counter(topic, group).add(count)

    def check_point(self, topic: str, group: str) -> None:
        """Count a check point of popped messages."""
        self._check_points.counter(topic, group).add()

    # For the timer.

    def set_back(self, by_ms: int) -> None:
        """Continue without waiting, after the clock was set back."""
        self._next_sample_ms -= by_ms

    def next_tick_ms(self) -> int:
        return self._next_sample_ms if self._sampling is None else 0

    def tick(self, now_ms: int) -> None:
        """Take a sample when one is due, or a part of it if there are many counters."""
        if self._sampling is None:
            if now_ms < self._next_sample_ms:
                return
            self._next_sample_ms = now_ms + SAMPLE_MS
            self._sampling = self._sample(now_ms)
        if next(self._sampling, _SAMPLED) is _SAMPLED:
            self._sampling = None

    def _sample(self, now_ms: int) -> Generator[None, None, None]:
        of_broker, *others = yield from self._sums()
        for number, (key, (value, times)) in enumerate(chain.from_iterable(map(dict.items, (of_broker, *others))), 1):
            self._add_sample(key, _Sample(now_ms, value, times))
            if number % ITEMS_A_SLICE == 0:
                yield
        self._samples += 1
        put, got = (of_broker.get((name, self._cluster), (0, 0))[0] for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"))
        self._totals.append((now_ms, put, got, self.pull_hits, self.pull_misses))
        if now_ms >= self._midnight_ms:
            self._midnight_ms = _midnight_after(now_ms)
            self.morning["Yesterday"] = self.morning["Today"]
            self.morning["Today"] = (put, got)

    def _add_sample(self, key: StatKey, sample: _Sample) -> None:
        item = self._item(key)
        if item is None:
            if self._item_count >= ITEMS_MAX:
                return
            self._item_count += 1
            item = self._items.setdefault(_topic_of(key), {})[key] = _Item()
            start = _Sample(sample.time_ms - SAMPLE_MS, 0, 0)
            for window in (item.minute, item.hour, item.day):
                window.append(start)
        item.minute.append(sample)
        if self._samples % _HOUR_EVERY == 0:
            item.hour.append(sample)
        if self._samples % _DAY_EVERY == 0:
            item.day.append(sample)

    def _item(self, key: StatKey) -> _Item | None:
        items = self._items.get(_topic_of(key))
        return None if items is None else items.get(key)

    def _sums(self) -> Generator[None, None, tuple[Sums, Sums, Sums]]:
        """Return the sums of the broker, of topics and groups, and of single queues."""
        of_broker: Sums = {}
        sums: Sums = {}
        of_queues: Sums = {}

        def add(name: str, key: str, value: int, times: int, to: Sums = sums) -> None:
            entry = to.setdefault((name, key), [0, 0])
            entry[0] += value
            entry[1] += times

        for number, (topic, queue_id, counter) in enumerate(list(self._puts), 1):
            add("QUEUE_PUT_NUMS", f"{topic}@{queue_id}", counter.count, counter.times, of_queues)
            add("QUEUE_PUT_SIZE", f"{topic}@{queue_id}", counter.size, counter.times, of_queues)
            add("TOPIC_PUT_NUMS", topic, counter.count, counter.times)
            add("TOPIC_PUT_SIZE", topic, counter.size, counter.times)
            add("BROKER_PUT_NUMS", self._cluster, counter.count, counter.times, of_broker)
            if not is_system_topic(topic):
                add("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", self._cluster, counter.count, counter.times, of_broker)
            if number % COUNTERS_A_SLICE == 0:
                yield
        for number, (topic, (queue_id, group), counter) in enumerate(list(self._gets), 1):
            add("QUEUE_GET_NUMS", f"{topic}@{queue_id}@{group}", counter.count, counter.times, of_queues)
            add("QUEUE_GET_SIZE", f"{topic}@{queue_id}@{group}", counter.size, counter.times, of_queues)
            add("GROUP_GET_NUMS", f"{topic}@{group}", counter.count, counter.times)
            add("GROUP_GET_SIZE", f"{topic}@{group}", counter.size, counter.times)
            add("BROKER_GET_NUMS", self._cluster, counter.count, counter.times, of_broker)
            if not is_system_topic(topic):
                add("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", self._cluster, counter.count, counter.times, of_broker)
            if number % COUNTERS_A_SLICE == 0:
                yield
        for name, table in (("SNDBCK_PUT", self._send_backs), ("ACK", self._acks), ("CK", self._check_points)):
            for number, (topic, group, counter) in enumerate(list(table), 1):
                of_group = f"{name}_NUMS" if table is self._send_backs else f"GROUP_{name}_NUMS"
                add(of_group, f"{topic}@{group}", counter.count, counter.times)
                if table is not self._send_backs:
                    add(f"BROKER_{name}_NUMS", self._cluster, counter.count, counter.times, of_broker)
                if number % COUNTERS_A_SLICE == 0:
                    yield
        return of_broker, sums, of_queues

    # For requests.

    def windows(self, name: str, key: str) -> tuple[Window, Window, Window] | None:
        """Return (minute, hour, day) of a statistic; None: no counter, or no windows (ITEMS_MAX)."""
        item = self._item((name, key))
        if item is None:
            is_new = self._item_count < ITEMS_MAX and self._is_counted(name, key)
            return (Window(), Window(), Window()) if is_new else None
        return _window(item.minute), _window(item.hour), _window(item.day)

    def _is_counted(self, name: str, key: str) -> bool:
        """Return whether a statistic that was not sampled yet has a counter."""
        topic, _, rest = key.partition("@")
        match name.removesuffix("_NUMS").removesuffix("_SIZE"):
            case "TOPIC_PUT":
                return key in self._puts.by_topic
            case "QUEUE_PUT":
                return any(rest == str(queue_id) for queue_id in self._puts.by_topic.get(topic, ()))
            case "QUEUE_GET":
                return any(rest == f"{queue_id}@{group}" for queue_id, group in self._gets.by_topic.get(topic, ()))
            case "GROUP_GET":
                return any(rest == group for _, group in self._gets.by_topic.get(topic, ()))
            case "SNDBCK_PUT":
                return rest in self._send_backs.by_topic.get(topic, ())
            case "GROUP_ACK":
                return rest in self._acks.by_topic.get(topic, ())
            case "GROUP_CK":
                return rest in self._check_points.by_topic.get(topic, ())
        return key == self._cluster and name.startswith("BROKER_")

    def put_tps(self, topic: str) -> float:
        """Messages per second sent to the topic in the last minute."""
        item = self._item(("TOPIC_PUT_NUMS", topic))
        return _window(item.minute).tps if item else 0.0

    def get_tps(self, topic: str, group: str) -> float:
        """Messages per second of the topic delivered to the group in the last minute."""
        item = self._item(("GROUP_GET_NUMS", f"{topic}@{group}"))
        return _window(item.minute).tps if item else 0.0

    def puts_by_topic(self) -> dict[str, tuple[int, int]]:
        """Return (messages, bytes) stored since the broker started, by topic."""
        found: dict[str, tuple[int, int]] = {}
        for topic, _, counter in self._puts:
            count, size = found.get(topic, (0, 0))
            found[topic] = (count + counter.count, size + counter.size)
        return found

    def gets_by_topic_group(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return (messages, bytes) delivered since the start of the broker, by topic and group."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for topic, (_, group), counter in self._gets:
            count, size = found.get((topic, group), (0, 0))
            found[topic, group] = (count + counter.count, size + counter.size)
        return found

    def put_total(self) -> int:
        """Messages stored since the broker started."""
        return sum(counter.count for _, _, counter in self._puts)

    def put_size_total(self) -> int:
        return sum(counter.size for _, _, counter in self._puts)

    def get_total(self) -> int:
        """Messages delivered to consumers since the start of the broker."""
        return sum(counter.count for _, _, counter in self._gets)

    def rates(self, now_ms: int) -> dict[str, tuple[float, float, float]]:
        """Return put, get (transferred), hit, miss and all pulls per second over the last 10, 60 and 600 s."""
        current = (now_ms, self.put_total(), self.get_total(), self.pull_hits, self.pull_misses)
        spans = [self._rates_since(current, seconds) for seconds in (10, 60, 600)]
        put, got, hit, miss = zip(*spans, strict=True)
        total = (hit[0] + miss[0], hit[1] + miss[1], hit[2] + miss[2])
        return {"put": put, "transferred": got, "found": hit, "miss": miss, "total": total}

    def _rates_since(self, current: tuple[int, int, int, int, int], seconds: int) -> tuple[float, ...]:
        start = (self.boot_ms, 0, 0, 0, 0)
        for sample in self._totals:
            if sample[0] <= current[0] - seconds * 1000:
                start = sample
        span_ms = max(current[0] - start[0], 1)
        return tuple((now - then) * 1000 / span_ms for now, then in zip(current[1:], start[1:], strict=True))

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic. A sample that is being taken is dropped: it has the topic too."""
        self._sampling = None
        for table in (self._puts, self._gets, self._send_backs, self._acks, self._check_points):
            table.forget(topic)
        self._item_count -= len(self._items.pop(topic, ()))


def _topic_of(key: StatKey) -> str:
    return key[1].partition("@")[0]


def _midnight_after(now_ms: int) -> int:
    today = datetime.fromtimestamp(now_ms / 1000).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((today + timedelta(days=1)).timestamp() * 1000)
