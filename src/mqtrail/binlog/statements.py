"""Statements in the binlog: which of them change tables, and which tables they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

_COMMENT: Final = re.compile(r"\s+|/\*(?![!M]).*?\*/|--[ \t][^\n]*(?:\n|$)|#[^\n]*(?:\n|$)", re.DOTALL)
_NAME: Final = r"(?:`(?:[^`]|``)+`|[^\s`.,;()]+)"
_TABLE: Final = re.compile(rf"({_NAME})(?:\s*\.\s*({_NAME}))?")
_DDL: Final = re.compile(
    r"(CREATE|ALTER|DROP|TRUNCATE|RENAME)\s+"
    r"(?:(?:OR\s+REPLACE|ONLINE|OFFLINE|IGNORE|UNIQUE|FULLTEXT|SPATIAL)\s+)*"
    r"(TABLES?|INDEX|DATABASE|SCHEMA)\b\s*"
    r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?",
    re.IGNORECASE,
)
_TRUNCATE: Final = re.compile(r"(TRUNCATE)\s+()", re.IGNORECASE)
_ON: Final = re.compile(r"\bON\s+", re.IGNORECASE)
_CHANGES_ROWS: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD"})


class Sort(Enum):
    """What a statement is for the reader of rows."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SCHEMA = "schema"
    ROWS = "rows"  # it changes rows, which only the statement says
    OTHER = "other"


class Parsed(NamedTuple):
    """A statement. kind: for example "ALTER TABLE". names: database.table, or database, of what it names."""

    sort: Sort
    kind: str = ""
    names: tuple[str, ...] = ()


def parse_statement(statement: str, database: str) -> Parsed:
    """Return what a statement is. database: the default of its session."""
    text = _without_comments(statement)
    words = text[:80].split(None, 2)
    first = words[0].upper().rstrip(";") if words else ""
    if first in ("BEGIN", "COMMIT"):
        return Parsed(Sort[first])
    if first == "ROLLBACK":
        return Parsed(Sort.ROLLBACK)
    if first in _CHANGES_ROWS:
        return Parsed(Sort.ROWS, first)
    found = _DDL.match(text) or _TRUNCATE.match(text)
    if found is None:
        return Parsed(Sort.OTHER, first)
    verb, what = found[1].upper(), (found[2] or "TABLE").upper()
    what = {"SCHEMA": "DATABASE", "TABLES": "TABLE"}.get(what, what)
    return Parsed(Sort.SCHEMA, f"{verb} {what}", tuple(_names(verb, what, text[found.end() :], database)))


def _without_comments(text: str) -> str:
    place = 0
    while (found := _COMMENT.match(text, place)) is not None and found.end() > place:
        place = found.end()
    return text[place:]


def _names(verb: str, what: str, rest: str, database: str) -> Sequence[str]:
    if what == "DATABASE":
        found = _TABLE.match(rest)
        return [_plain(found[1])] if found else [database]
    if what == "INDEX":
        on = _ON.search(rest)
        rest = rest[on.end() :] if on else ""
    names = []
    for part in rest.split(",") if verb in ("DROP", "RENAME") and what == "TABLE" else [rest]:
        for text in re.split(r"\s+TO\s+", part.strip(), flags=re.IGNORECASE) if verb == "RENAME" else [part.strip()]:
            if (found := _TABLE.match(_without_comments(text))) is not None:
                one, two = _plain(found[1]), found[2]
                names.append(f"{one}.{_plain(two)}" if two else f"{database}.{one}")
    return names


def _plain(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
