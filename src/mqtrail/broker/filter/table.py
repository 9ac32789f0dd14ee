"""The SQL92 filters that heartbeats brought, by topic and group: consumerFilter.json.

A pull that names no expression of its own is served by what is kept here. An expression is compiled when a pull first
asks for it, so that a heartbeat, and a start, with many of them costs little. One that cannot be compiled is then
forgotten, and its pulls are told. A group without members keeps its filters for a day, for the sake of Apache's file.

Source: ConsumerFilterManager, ConsumerFilterData, apache/rocketmq broker/filter/.
"""

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from mqtrail.store import ConfigFileStore
from mqtrail.wire import Body, SubscriptionData, SubscriptionParseFailed

from ..files import FILTERS_FILE, load_table
from .bloom import BloomPlaces, bloom_places
from .filters import SqlFilter, compile_expression, is_tag_type
from .sql import SqlExpression

DEAD_KEPT_MS: Final = 24 * 3_600_000  # filterDataCleanTimeSpan
DEAD_AT_LOAD_MS: Final = 30_000  # a filter that was in use when the broker stopped is taken for dead since then
FILTERS_SIZE_MAX: Final = 8 * 1024 * 1024  # characters of all expressions, written at one go; and
FILTERS_MAX: Final = 50_000  # filters: further ones are not kept: their pulls are told that there is none


class FilterData(Body, frozen=True):
    """One group's filter of one topic. client_version: the subscription's. dead_time: not before born_time: dead."""

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


class KeptFilter:
    """A filter with its compiled expression; None where this broker cannot compile it."""

    __slots__ = ("_compiled", "data")

    def __init__(self, data: FilterData, before: "KeptFilter | None" = None) -> None:
        """before: of the same expression."""
        self.data = data
        self._compiled: SqlFilter | Literal[False] | None = (
            None if before is None else before._compiled
        )  # None: not yet

    @property
    def filter(self) -> SqlFilter | None:
        """The filter, compiled when it is first asked for."""
        if self._compiled is None:
            expression = _compiled(self.data)
            self._compiled = False if expression is None else SqlFilter(expression)
        return self._compiled or None

    @property
    def expression(self) -> SqlExpression | None:
        """The expression, compiled when it is first asked for."""
        found = self.filter
        return None if found is None else found.expression


class FilterTable:
    """(topic, group) -> filter."""

    def __init__(self, files: ConfigFileStore, now_ms: int) -> None:
        self._files = files
        self._kept: dict[tuple[str, str], KeptFilter] = {}
        self._topics: dict[str, set[str]] = {}  # group -> topics in which it has a filter
        self._size = 0
        self._dirty = False
        document = load_table(files, FILTERS_FILE, FilterDocument) or FilterDocument()
        for topic, filters in document.filter_data_by_topic.items():
            for group, data in filters.group_filter_data.items():
                if not data.is_dead:
                    data = replace(data, dead_time=max(data.born_time, now_ms - DEAD_AT_LOAD_MS))
                self._put((topic, group), KeptFilter(data))
        self._dirty = False

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, topic: str, group: str) -> KeptFilter | None:
        """Return the group's filter of the topic, None: there is none, or it cannot be compiled."""
        kept = self._kept.get((topic, group)) if self._kept else None
        if kept is None or kept.filter is not None:
            return kept
        self._drop((topic, group))
        return None

    def register(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> None:
        """Take over a heartbeat's subscriptions, where they are newer; filters of topics not named are dead."""
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
                    self._put(key, KeptFilter(replace(old.data, dead_time=0), old))
                return
            same = (old.data.expression_type, old.data.expression)
            if same == (subscription.expression_type, subscription.sub_string):
                data = replace(old.data, client_version=subscription.sub_version, dead_time=0)
                self._put(key, KeptFilter(data, old))
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
        self._put(key, KeptFilter(data))

    def _put(self, key: tuple[str, str], kept: KeptFilter) -> None:
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
        """Note that a group has no members any more."""
        self._bury(group, self._topics.get(group, ()), now_ms)

    def _bury(self, group: str, topics: Iterable[str], now_ms: int) -> None:
        for topic in tuple(topics):
            kept = self._kept[topic, group]
            if not kept.data.is_dead:
                self._put((topic, group), KeptFilter(replace(kept.data, dead_time=now_ms), kept))

    def save(self, now_ms: int) -> None:
        """Forget what is long dead; write the table if it changed since it was last written."""
        for key, kept in list(self._kept.items()):
            if kept.data.is_dead and now_ms - kept.data.dead_time >= DEAD_KEPT_MS:
                self._drop(key)
        if self._dirty:
            self._dirty = False
            self._files.save(FILTERS_FILE, self._document())

    def _document(self) -> dict[str, Any]:
        topics: dict[str, dict[str, FilterData]] = {}
        for (topic, group), kept in sorted(self._kept.items()):
            topics.setdefault(topic, {})[group] = kept.data
        return FilterDocument({topic: TopicFilters(topic, filters) for topic, filters in topics.items()}).members()


def _compiled(data: FilterData) -> SqlExpression | None:
    try:
        return compile_expression(data.expression_type, data.expression)
    except SubscriptionParseFailed:
        return None
