"""The files of the broker's tables: JSON documents, loaded once and saved whole.

Source: ConfigManager, apache/rocketmq common/.
"""

from typing import Any, Final, TypeVar

from mqtrail.store import ConfigFileStore
from mqtrail.wire import LONG_MAX, Body, BodyError, DataVersion

Table = TypeVar("Table", bound=Body)


TOPICS_FILE: Final = "topics.json"
GROUPS_FILE: Final = "subscriptionGroup.json"
OFFSETS_FILE: Final = "consumerOffset.json"
DELAYS_FILE: Final = "delayOffset.json"
TIMER_METRICS_FILE: Final = "timermetrics"
FILTERS_FILE: Final = "consumerFilter.json"


def load_table(files: ConfigFileStore, name: str, kind: type[Table]) -> Table | None:
    """Return a document as its body class; None: no such document. StoreError: neither it nor its .bak has that shape.

    The first member of kind is the table itself. Every save writes it, so a document without it is damaged, not empty.
    """
    member = kind.__struct_encode_fields__[0]

    def read(document: dict[str, Any]) -> Table:
        if document.get(member) is None:
            raise BodyError(f"found no {member}, expected the table")
        return kind.read(document)

    return files.load_as(name, read)


class Unsaved:
    """Names in a table whose last change is not durable yet."""

    def __init__(self, files: ConfigFileStore) -> None:
        self._files = files
        self._numbers: dict[str, int] = {}
        self._last = 0

    def note(self, name: str, number: int) -> None:
        """Record that change `number` added, replaced or removed the entry of name."""
        if self._last <= self._files.settled:
            self._numbers.clear()
        self._numbers[name] = self._last = number

    def depend_on(self, name: str) -> None:
        """Record that the current answer depends on this entry, or on its absence."""
        if self._numbers and (number := self._numbers.get(name)) is not None:
            self._files.depend_on(number)

    def __contains__(self, name: str) -> bool:
        return self._numbers.get(name, 0) > self._files.settled


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """Return the version of a table after one more change."""
    return DataVersion(now_ms, next_count(version.counter), version.state_version)


def next_count(counter: int) -> int:
    """Return counter + 1, or 0 above Java's long: a larger count would make the table's file unreadable."""
    return counter + 1 & LONG_MAX
