"""Freshness of answers: the time from storing a message at a broker to the commit of the answers that contain it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from mqtrail import trail
from mqtrail.lake import LakePath, parquet_source

WINDOW_MS: Final = 300_000  # percentiles are of rows answered in this time
FILES_MAX: Final = 10_000  # files that wait for a judgement; beyond that the oldest are not counted
SOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "trace": (trail.TRACE_EVENTS.name, "trace_store_ms"),
    "messages": (trail.MESSAGE_META.name, "store_ms"),
}
"""Source -> the table that it is read into, and the column with the time at which the broker stored a row."""
_STEPS: Final = 8  # buckets each time that a delay doubles: a percentile is at most 9 % too high


@dataclass(frozen=True, slots=True)
class SourceFreshness:
    """Freshness of one source. None: unknown, because no answer contains it (p50_ms, p95_ms: none in WINDOW_MS)."""

    newest_ms: int | None = None  # when the broker stored the newest row that answers contain
    p50_ms: int | None = None
    p95_ms: int | None = None


class Freshness:
    """Tracks rows from reading to judgement. Times are epoch ms, of this machine and of the brokers."""

    def __init__(self, newest_ms: Mapping[str, int] | None = None) -> None:
        """newest_ms: of each source, as it was known before."""
        self._newest: dict[str, int] = dict(newest_ms or {})
        self._waiting: dict[str, deque[LakePath]] = {source: deque(maxlen=FILES_MAX) for source in SOURCES}
        self._answered: deque[tuple[int, str, Counter[int]]] = deque()

    def read(self, files: Mapping[str, Iterable[LakePath]]) -> None:
        """Note files that were read and are not judged yet, by table."""
        for source, (table, _) in SOURCES.items():
            self._waiting[source].extend(files.get(table, ()))

    def answered(self, at_ms: int) -> None:
        """Note that answers now contain all rows read."""
        for source, (_, column) in SOURCES.items():
            counts: Counter[int] = Counter()
            while self._waiting[source]:
                counts += self._counts(source, self._waiting[source].popleft(), column, at_ms)
            if counts:
                self._answered.append((at_ms, source, counts))
        while self._answered and self._answered[0][0] < at_ms - WINDOW_MS:
            self._answered.popleft()

    def _counts(self, source: str, path: LakePath, column: str, at_ms: int) -> Counter[int]:
        """The rows of a file by bucket of their delay."""
        stored = pq.read_table(parquet_source(path), columns=[column])[column].drop_null()
        if not len(stored):
            return Counter()
        newest = pc.max(stored).as_py()
        self._newest[source] = max(self._newest.get(source, newest), newest)
        delays = pc.max_element_wise(pc.subtract(at_ms, stored), 0)
        buckets = pc.floor(pc.multiply(pc.log2(pc.add(delays, 1)), _STEPS))
        return Counter({int(each["values"].as_py()): each["counts"].as_py() for each in pc.value_counts(buckets)})

    def of(self) -> dict[str, SourceFreshness]:
        """The freshness of each source."""
        found = {}
        for source in SOURCES:
            counts: Counter[int] = Counter()
            for _, name, some in self._answered:
                if name == source:
                    counts += some
            found[source] = SourceFreshness(
                self._newest.get(source), _percentile(counts, 0.5), _percentile(counts, 0.95)
            )
        return found


def _percentile(counts: Counter[int], part: float) -> int | None:
    """The upper end of the bucket that holds this part of the rows; None without rows."""
    rows, wanted = 0, part * counts.total()
    for bucket in sorted(counts):
        rows += counts[bucket]
        if rows >= wanted:
            return int(2 ** ((bucket + 1) / _STEPS) - 1)
    return None
