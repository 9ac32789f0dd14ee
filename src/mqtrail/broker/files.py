"""Where the broker keeps its tables: a handful of JSON documents, loaded once and saved whole.

Source: ConfigManager, apache/rocketmq common/; shapes in store.md §14 of the references.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from mqtrail.store import ConfigFileStore
from mqtrail.wire import Body, BodyError, DataVersion, InvalidParameter, dumps_fastjson

Table = TypeVar("Table", bound=Body)

TOPICS_FILE: Final = "topics.json"
GROUPS_FILE: Final = "subscriptionGroup.json"
OFFSETS_FILE: Final = "consumerOffset.json"
DELAYS_FILE: Final = "delayOffset.json"
TIMER_METRICS_FILE: Final = "timermetrics"
FILTERS_FILE: Final = "consumerFilter.json"


def load_table(files: ConfigFileStore, name: str, kind: type[Table]) -> Table | None:
    """Return a document as its body class, or None where there is none. InvalidParameter: it is not of that shape."""
    document = files.load(name)
    if document is None:
        return None
    try:
        return kind.read(document)
    except BodyError as error:
        raise InvalidParameter(f"{name}: {error}: restore {name}.bak or repair it by hand") from error


class EncodedEntries:
    """The entries of a table by name, each as the JSON it has in the table's file: a change encodes what changed."""

    def __init__(self, entries: Mapping[str, Body]) -> None:
        self._members: dict[str, bytes] = {}
        for name, entry in entries.items():
            self.put(name, entry)

    def put(self, name: str, entry: Body | None) -> None:
        """Take an entry's new value; None: there is none any more."""
        if entry is None:
            self._members.pop(name, None)
        else:
            self._members[name] = dumps_fastjson({name: entry.members()})[1:-1]

    def snapshot(self) -> Callable[[], msgspec.Raw]:
        """Return what gives the JSON object of all entries as they are now, in any thread."""
        members = self._members.copy()
        return lambda: msgspec.Raw(b"{%b}" % b",".join([members[name] for name in sorted(members)]))


class Unsaved:
    """Names in a table whose last change is not durable yet."""

    def __init__(self, files: ConfigFileStore) -> None:
        self._files = files
        self._numbers: dict[str, int] = {}
        self._last = 0

    def note(self, name: str, number: int) -> None:
        """A name's entry came, changed or went with the change of this number."""
        if self._last <= self._files.settled:
            self._numbers.clear()
        self._numbers[name] = self._last = number

    def look(self, name: str) -> None:
        """What is being answered follows from this entry, or from its absence."""
        if self._numbers and (number := self._numbers.get(name)) is not None:
            self._files.look(number)

    def __contains__(self, name: str) -> bool:
        return self._numbers.get(name, 0) > self._files.settled


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """Return the version of a table that has just changed once more."""
    return DataVersion(now_ms, version.counter + 1, version.state_version)
