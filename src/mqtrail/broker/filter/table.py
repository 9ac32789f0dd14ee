"""SQL92 filters from heartbeats, by topic and group: consumerFilter.json.

A pull without an expression of its own uses the filter kept here. An expression is compiled at its first use, so that a
heartbeat or a start with many expressions is cheap. An invalid expression is removed, and the pulls that need it are
refused. A group without members keeps its filters for a day, as in Apache's file.

Source: ConsumerFilterManager, ConsumerFilterData, apache/rocketmq broker/filter/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

from mqtrail.store import ConfigFileStore
from mqtrail.wire import Body, SubscriptionData, SubscriptionParseFailed, dumps_fastjson

from ..files import FILTERS_FILE, load_table
from .bloom import BloomPlaces, bloom_places
from .filters import SqlFilter, compile_expression, is_tag_type

if TYPE_CHECKING:
    from mqtrail.wire import SqlExpression

DEAD_KEPT_MS: Final = 24 * 3_600_000  # filterDataCleanTimeSpan
DEAD_AT_LOAD_MS: Final = 30_000  # at load, filters that were in use at the stop count as dead for this time
FILTERS_SIZE_MAX: Final = 8 * 1024 * 1024  # maximum characters of all expressions, since they are saved in one write
FILTERS_MAX: Final = 50_000  # maximum number of filters; pulls that need a further one are refused


class FilterData(Body, frozen=True):
    """The filter of a group for a topic. client_version: of the subscription. Dead if dead_time is not before
    born_time."""

    topic: str = ""
    consumer_group: str = ""
    expression: str = ""
    expression_type: str = ""
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: BloomPlaces | None = None

    @property
    def is_dead(self) -> bool:
        return self.dead_time >= self.born_time


class TopicFilters(Body, frozen=True):
    """The filters of a topic, by group."""

    topic: str = ""
    group_filter_data: dict[str, FilterData] = msgspec.field(default_factory=dict)


class FilterDocument(Body, frozen=True):
    """consumerFilter.json."""

    filter_data_by_topic: dict[str, TopicFilters] = msgspec.field(default_factory=dict)


class CompiledFilter:
    """A filter with its compiled expression; None: the expression is invalid."""

    __slots__ = ("_compiled", "data")

    def __init__(self, data: FilterData, before: CompiledFilter | None = None) -> None:
        """before: the earlier filter with the same expression."""
        self.data = data
        self._compiled: SqlFilter | Literal[False] | None = (
            None if before is None else before._compiled
        )  # None: not compiled yet

    @property
    def filter(self) -> SqlFilter | None:
        """The filter, compiled at its first use."""
        if self._compiled is None:
            expression = _compiled(self.data)
            self._compiled = False if expression is None else SqlFilter(expression)
        return self._compiled or None

    @property
    def expression(self) -> SqlExpression | None:
        """The expression, compiled at its first use."""
        found = self.filter
        return None if found is None else found.expression


class FilterTable:
    """(topic, group) -> filter."""

    def __init__(self, files: ConfigFileStore, now_ms: int) -> None:
        self._files = files
        self._kept: dict[tuple[str, str], CompiledFilter] = {}
        self._topics: dict[str, set[str]] = {}  # group -> topics in which it has a filter
        self._size = 0
        self._dirty = False
        document = load_table(files, FILTERS_FILE, FilterDocument) or FilterDocument()
        for topic, filters in document.filter_data_by_topic.items():
            for group, data in filters.group_filter_data.items():
                if not data.is_dead:
                    data = replace(data, dead_time=max(data.born_time, now_ms - DEAD_AT_LOAD_MS))
                self._put((topic, group), CompiledFilter(data))
        self._dirty = False

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, topic: str, group: str) -> CompiledFilter | None:
        """Return the filter of the group for the topic; None: no filter, or an invalid expression."""
        kept = self._kept.get((topic, group)) if self._kept else None
        if kept is None or kept.filter is not None:
            return kept
        self._drop((topic, group))
        return None

    def register(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> None:
        """Store the newer subscriptions of a heartbeat; filters of other topics of the group become dead."""
        named = set()
        for subscription in subscriptions:
            named.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register(group, subscription, now_ms)
        self._bury(group, self._topics.get(group, set()) - named, now_ms)

    def _register(self, group: str, subscription: SubscriptionData, now_ms: int) -> None:
        key = (subscription.topic, group)
        old = self._kept.get(key)
        if old is None and len(self._kept) >= FILTERS_MAX:
            return
        if len(subscription.sub_string) > FILTERS_SIZE_MAX - self._size + (
            0 if old is None else len(old.data.expression)
        ):
            return
        if old is not None:
            if subscription.sub_version < old.data.client_version:
                return
            if subscription.sub_version == old.data.client_version:
                if old.data.is_dead:
                    self._put(key, CompiledFilter(replace(old.data, dead_time=0), old))
                return
            same = (old.data.expression_type, old.data.expression)
            if same == (subscription.expression_type, subscription.sub_string):
                data = replace(old.data, client_version=subscription.sub_version, dead_time=0)
                self._put(key, CompiledFilter(data, old))
                return
        data = FilterData(
            topic=subscription.topic,
            consumer_group=group,
            expression=subscription.sub_string,
            expression_type=subscription.expression_type,
            born_time=now_ms,
            client_version=subscription.sub_version,
            bloom_filter_data=bloom_places(group, subscription.topic),
        )
        self._put(key, CompiledFilter(data))

    def _put(self, key: tuple[str, str], kept: CompiledFilter) -> None:
        old = self._kept.get(key)
        self._size += len(kept.data.expression) - (0 if old is None else len(old.data.expression))
        self._kept[key] = kept
        self._topics.setdefault(key[1], set()).add(key[0])
        self._dirty = True

    def _drop(self, key: tuple[str, str]) -> None:
        topic, group = key
        self._size -= len(self._kept.pop(key).data.expression)
        self._topics[group].discard(topic)
        if not self._topics[group]:
            del self._topics[group]
        self._dirty = True

    def unregister(self, group: str, now_ms: int) -> None:
        """Mark the filters of a group without members as dead."""
        self._bury(group, self._topics.get(group, ()), now_ms)

    def _bury(self, group: str, topics: Iterable[str], now_ms: int) -> None:
        for topic in tuple(topics):
            kept = self._kept[topic, group]
            if not kept.data.is_dead:
                self._put((topic, group), CompiledFilter(replace(kept.data, dead_time=now_ms), kept))

    def save(self, now_ms: int) -> None:
        """Remove filters that have been dead for long; write the table if it changed."""
        for key, kept in list(self._kept.items()):
            if kept.data.is_dead and now_ms - kept.data.dead_time >= DEAD_KEPT_MS:
                self._drop(key)
        if self._dirty:
            self._dirty = False
            self._files.note(FILTERS_FILE, self._document)

    def _document(self) -> Callable[[], bytes]:
        kept = self._kept.copy()

        def content() -> bytes:
            topics: dict[str, dict[str, FilterData]] = {}
            for topic, group in sorted(kept):
                topics.setdefault(topic, {})[group] = kept[topic, group].data
            filters = {topic: TopicFilters(topic, of_topic) for topic, of_topic in topics.items()}
            return dumps_fastjson(FilterDocument(filters).members())

        return content


def _compiled(data: FilterData) -> SqlExpression | None:
    try:
        return compile_expression(data.expression_type, data.expression)
    except SubscriptionParseFailed:
        return None
