"""Where the broker keeps its tables: a handful of JSON documents, loaded once and saved whole.

Source: ConfigManager, apache/rocketmq common/; shapes in store.md §14 of the references.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from mqtrail.store import ConfigFileStore
from mqtrail.wire import Body, BodyError, DataVersion, InvalidParameter

Table = TypeVar("Table", bound=Body)
Entry = TypeVar("Entry")

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


def put_saved(table: dict[str, Entry], name: str, entry: Entry, save: Callable[[], None]) -> None:
    """Put an entry into a table and save that; where it cannot be saved the table is as before, and the error raised.

    What a restart would not know must not be there before it either: messages would get into it, or be owed by it.
    """
    before = table.get(name)
    table[name] = entry
    try:
        save()
    except Exception:
        del table[name]
        if before is not None:
            table[name] = before
        raise


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """Return the version of a table that has just changed once more."""
    return DataVersion(now_ms, version.counter + 1, version.state_version)
