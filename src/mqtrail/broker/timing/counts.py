"""Number of messages in the timer by topic: config/timermetrics, request 61.

Messages are counted when they enter and leave the timer. The counts are not corrected after a crash, since nothing
depends on them. Messages in and out since the start are counted for Prometheus.

Source: TimerMetrics, DefaultStoreMetricsManager, apache/rocketmq store/.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from mqtrail.store import ConfigFileStore
from mqtrail.wire import DataVersion, TimerMetric, TimerMetrics, dumps_fastjson

from ..files import TIMER_METRICS_FILE, load_table, next_version
from ..telemetry import Histogram

SAVE_MS: Final = 60_000
DELAY_BOUNDS_S: Final = (60.0, 600.0, 3_600.0, 43_200.0, 86_400.0, 259_200.0)


class TimerCounts:
    """Topic -> number of waiting messages, and time of the last change."""

    def __init__(self, files: ConfigFileStore, now_ms: int) -> None:
        self._files = files
        table = load_table(files, TIMER_METRICS_FILE, TimerMetrics) or TimerMetrics()
        self._counts = {topic: metric.count for topic, metric in table.timing_count.items()}
        self._counted_ms = {topic: metric.time_stamp for topic, metric in table.timing_count.items()}
        self._version = table.data_version or DataVersion(now_ms)
        self._is_dirty = False
        self._save_ms = now_ms + SAVE_MS
        self.taken_in: Counter[str] = Counter()
        self.handed_out: Counter[str] = Counter()
        self.delays_s: dict[str, Histogram] = {}
        """Topic -> time from birth to delivery time of the messages added."""

    def took_in(self, topic: str, delay_ms: int) -> None:
        """Count a message, or a recall, that was added to the wheel."""
        self.taken_in[topic] += 1
        delays_s = self.delays_s.get(topic)
        if delays_s is None:
            delays_s = self.delays_s[topic] = Histogram(DELAY_BOUNDS_S)
        delays_s.add(max(0, delay_ms) // 1_000)

    def waiting(self) -> dict[str, int]:
        """Return topic -> number of waiting messages."""
        return self._counts

    def add(self, topic: str, change: int, now_ms: int) -> None:
        self._counts[topic] = self._counts.get(topic, 0) + change
        self._counted_ms[topic] = now_ms
        self._is_dirty = True

    def table(self) -> TimerMetrics:
        """Return the counts as one body: the content of the file, and the answer to request 61."""
        return _table(self._counts, self._counted_ms, self._version)

    def save(self, now_ms: int, *, final: bool = False) -> None:
        """Write the counts if they changed, once a minute."""
        if self._is_dirty and (final or now_ms >= self._save_ms):
            self._is_dirty = False
            self._save_ms = now_ms + SAVE_MS
            self._version = next_version(self._version, now_ms)
            self._files.note(TIMER_METRICS_FILE, self._document)

    def _document(self) -> Callable[[], bytes]:
        counts, counted_ms, version = self._counts.copy(), self._counted_ms.copy(), self._version
        return lambda: dumps_fastjson(_table(counts, counted_ms, version).members())


def _table(counts: dict[str, int], counted_ms: dict[str, int], version: DataVersion) -> TimerMetrics:
    metrics = {topic: TimerMetric(count, counted_ms[topic]) for topic, count in sorted(counts.items())}
    return TimerMetrics(metrics, version)
