"""Searches that people of a console save under a name: a JSON file that only its owner can read.

    {"version": 1, "searches": {"ann": {"late orders": "topic:orders verdict:HUNG"}}}

Without accounts there is one list, of the person ''. Times such as `from:2h` are kept as text, so they stay relative.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from mqtrail.net import replace_file, wait_for_lock
from mqtrail.wire import MQError, visible

from ..query_text import TEXT_SIZE_MAX, QueryTextError, parse_query

SEARCHES_FILE: Final = "console-searches.json"  # in the data folder
SEARCH_NAME_SIZE_MAX: Final = 80  # characters
SAVED_MAX: Final = 100  # searches of a person
SAVED_OF_ALL_MAX: Final = 10_000
FILE_SIZE_MAX: Final = 64 << 20  # bytes, above what SAVED_OF_ALL_MAX searches can need
Searches = dict[str, dict[str, str]]


class SearchesFailed(MQError):
    """The file of the saved searches cannot be read or written."""


class NotSaved(StrEnum):
    """Why a search is not saved."""

    NAME = "name"  # it is empty, too long, or has invisible characters
    QUERY = "query"  # it is empty, too long, or no search
    FULL = "full"
    UNKNOWN = "unknown"  # there is none of this name to remove


class InvalidSearch(MQError):
    """A search cannot be saved, or there is none of this name."""

    def __init__(self, why: NotSaved, text: str) -> None:
        super().__init__(text)
        self.why = why


@dataclass(frozen=True, slots=True)
class SavedSearch:
    """A search under its name."""

    name: str
    query: str


class SavedSearches:
    """Reads and changes the file, also beside other processes that do. Each method raises SearchesFailed."""

    def __init__(self, path: Path) -> None:
        """path: nothing is read yet."""
        self.path = path

    def of(self, person: str) -> tuple[SavedSearch, ...]:
        """Return the searches of a person, by name."""
        with self._errors("read"):
            own = self._load().get(person, {})
        return tuple(SavedSearch(name, own[name]) for name in sorted(own, key=lambda one: (one.lower(), one)))

    def save(self, person: str, name: str, query: str, now_ms: int) -> None:
        """Save a search, in place of the person's one of this name. InvalidSearch."""
        name, query = name.strip(), query.strip()
        if not 1 <= len(name) <= SEARCH_NAME_SIZE_MAX or visible(name) != name:
            found = f"a name of {len(name)} characters"
            raise InvalidSearch(NotSaved.NAME, f"found {found}, expected 1 to {SEARCH_NAME_SIZE_MAX} visible ones")
        if not query or len(query) > TEXT_SIZE_MAX:
            raise InvalidSearch(NotSaved.QUERY, f"found {len(query)} characters, expected 1 to {TEXT_SIZE_MAX}")
        try:
            parse_query(query, now_ms)
        except QueryTextError as error:
            raise InvalidSearch(NotSaved.QUERY, str(error)) from None

        def change(known: Searches) -> None:
            own = known.setdefault(person, {})
            if name not in own and len(own) >= SAVED_MAX:
                raise InvalidSearch(NotSaved.FULL, f"found {SAVED_MAX} saved searches, expected fewer: delete one")
            if name not in own and sum(map(len, known.values())) >= SAVED_OF_ALL_MAX:
                found = f"found {SAVED_OF_ALL_MAX} saved searches of all people"
                raise InvalidSearch(NotSaved.FULL, f"{found}, expected fewer: delete some")
            own[name] = query

        self._change(change)

    def remove(self, person: str, name: str) -> None:
        """Remove a search of a person. InvalidSearch: there is none."""

        def change(known: Searches) -> None:
            own = known.get(person, {})
            if own.pop(name, None) is None:
                raise InvalidSearch(NotSaved.UNKNOWN, f"found no saved search {name[:SEARCH_NAME_SIZE_MAX]!r}")
            if not own:
                del known[person]

        self._change(change)

    def _change(self, change: Callable[[Searches], None]) -> None:
        with self._errors("write"), wait_for_lock(Path(f"{self.path}.lock")):
            known = self._load()
            change(known)
            document = {"version": 1, "searches": known}
            replace_file(self.path, json.dumps(document, indent=1).encode())

    def _load(self) -> Searches:
        try:
            with self.path.open("rb") as file:
                text = file.read(FILE_SIZE_MAX + 1)
        except FileNotFoundError:
            return {}
        if len(text) > FILE_SIZE_MAX:
            raise ValueError("too large")
        return _searches_in(json.loads(text))

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SearchesFailed(
                f"cannot {verb} the file of saved searches {str(self.path)!r}: {error.strerror}"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise SearchesFailed(
                f"{self.path}: found damage, expected a file of saved searches: restore it from a copy, or remove it"
            ) from None


def _searches_in(found: Any) -> Searches:
    if found["version"] != 1:
        raise ValueError("another version")
    return {
        str(person): {str(name): str(query) for name, query in own.items()} for person, own in found["searches"].items()
    }
