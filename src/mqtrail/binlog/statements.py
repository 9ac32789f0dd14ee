"""Statements in the binlog: which of them change tables, and which tables they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

_PIECE: Final = re.compile(  # what lacks its end goes to the end, so that no text is searched more than once
    r"(/\*(?!M?!).*?(?:\*/|\Z)|--(?=\s|$)[^\n]*|#[^\n]*|/\*M?!\d*|\*/)"  # of /*!50000 x */, x is executed
    r"|(`(?:[^`]++|``)*+(?:`|\Z)|'(?:[^'\\]++|\\.?|'')*+(?:'|\Z)|\"(?:[^\"\\]++|\\.?|\"\")*+(?:\"|\Z))",
    re.DOTALL,
)
_NAME: Final = r"(?:`\d+`|\"\d+\"|[^\s`'\".,;()=]+)"
_TABLE: Final = re.compile(rf"\s*({_NAME})(?:\s*\.\s*({_NAME}))?")
_SET: Final = re.compile(r"SET\s+STATEMENT\b.*?\sFOR\s+", re.IGNORECASE | re.DOTALL)
_DDL: Final = re.compile(
    r"(CREATE|ALTER|DROP|TRUNCATE|RENAME)\s+"
    r"(?:(?:OR\s+REPLACE|ONLINE|OFFLINE|IGNORE|UNIQUE|FULLTEXT|SPATIAL)\s+)*"
    r"(TABLES?|INDEX|DATABASE|SCHEMA)\b\s*"
    r"(?:IF\s+(?:NOT\s+)?EXISTS\b\s*)?",
    re.IGNORECASE,
)
_TRUNCATE: Final = re.compile(r"(TRUNCATE)\b()", re.IGNORECASE)
_ON: Final = re.compile(r"\bON\b", re.IGNORECASE)
_BEGIN, _END = r"(?<![\w$.])", r"(?![\w$])"  # of a word that is no name
_TO: Final = re.compile(rf"{_BEGIN}TO{_END}", re.IGNORECASE)
_OTHER: Final = re.compile(  # the second table of an ALTER
    rf"{_BEGIN}(?:RENAME{_END}(?!\s*(?:COLUMN|INDEX|KEY){_END})\s*(?:(?:TO|AS){_END}|=)?"
    rf"|(?:WITH|CONVERT|TO)\s+TABLE{_END})",
    re.IGNORECASE,
)
_MOVES: Final = re.compile(
    rf"{_BEGIN}(?:RENAME{_END}(?!\s*(?:COLUMN|INDEX|KEY){_END})"
    rf"|(?:TRUNCATE|DROP|EXCHANGE|CONVERT)\s+PARTITION{_END}|CONVERT\s+TABLE{_END}"
    rf"|(?:DISCARD|IMPORT)\s+(?:TABLESPACE{_END}|PARTITION{_END}(?!\s+BY{_END})))",
    re.IGNORECASE,
)
_IGNORE: Final = re.compile(r"ALTER\s+(?:(?:ONLINE|OFFLINE)\s+)*IGNORE\b", re.IGNORECASE)
_WAIT: Final = re.compile(r"\s*(?:NOWAIT|WAIT\s+\d+)\b", re.IGNORECASE)
_ADD: Final = re.compile(r"\s*ADD\b\s*(COLUMN\b\s*)?(IF\s+NOT\s+EXISTS\b\s*)?", re.IGNORECASE)
_NO_COLUMN: Final = re.compile(
    r"(?:INDEX|KEY|UNIQUE|PRIMARY|FULLTEXT|SPATIAL|CONSTRAINT|FOREIGN|PARTITION)\b"
    r"|CHECK\s*\(|PERIOD\s+FOR\b|SYSTEM\s+VERSIONING\b",
    re.IGNORECASE,
)
_COLUMN: Final = re.compile(rf"\s*({_NAME})\s+(\w+)\s*(?:\(([^()]*)\))?", re.IGNORECASE)
_OR_REPLACE: Final = re.compile(r"CREATE\s+OR\s+REPLACE\b", re.IGNORECASE)
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


class AddedColumn(NamedTuple):
    """A column that an ALTER TABLE adds. kind: its type, in lower case. arguments: of the type. definition: what
    follows, with the number of each text in quotes; quoted has them. may_exist: IF NOT EXISTS."""

    name: str
    kind: str
    arguments: str
    definition: str
    quoted: list[str]
    may_exist: bool


def parse_statement(statement: str, database: str) -> Parsed:
    """Return what a statement is. database: the default of its session."""
    text, quoted = _plain(statement)
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
    rest = text[found.end() :]
    if what == "DATABASE":
        one = _TABLE.match(rest)
        names = [_unquoted(one[1], quoted) if one is not None else database]
    else:
        names = [_full(each, quoted, database) for each in _tables(verb, what, rest)]
    return Parsed(Sort.SCHEMA, f"{verb} {what}", tuple(dict.fromkeys(names)))


def moves_rows(kind: str, statement: str) -> bool:
    """Return whether a statement of a kind moves rows between tables. The binlog has no changes of these rows."""
    return kind == "RENAME TABLE" or (kind == "ALTER TABLE" and _MOVES.search(_plain(statement)[0]) is not None)


def removes_rows(kind: str, statement: str) -> bool:
    """Return whether a statement of a kind may remove rows, such as duplicates. The binlog does not say which."""
    return kind == "ALTER TABLE" and _IGNORE.match(_plain(statement)[0]) is not None


def empties(kind: str, statement: str) -> bool:
    """Return whether the tables that a statement of a kind names have no rows after it."""
    if kind in ("CREATE TABLE", "CREATE DATABASE"):
        return _OR_REPLACE.match(_plain(statement)[0]) is not None
    return kind in ("TRUNCATE TABLE", "DROP TABLE", "DROP DATABASE")


def added_columns(kind: str, statement: str) -> list[AddedColumn]:
    """Return the columns that a statement of a kind adds."""
    text, quoted = _plain(statement)
    found = _DDL.match(text) if kind == "ALTER TABLE" else None
    table = _TABLE.match(text, found.end()) if found is not None else None
    if table is None:
        return []
    wait = _WAIT.match(text, table.end())
    made = []
    for part in _split(text[(wait or table).end() :]):
        add = _ADD.match(part)
        if add is None or (add[1] is None and _NO_COLUMN.match(part, add.end())):
            continue
        body = part[add.end() :].strip()
        for one in _split(body[1:-1]) if body.startswith("(") else [body]:
            column = _COLUMN.match(one)
            if column is None:
                made.append(AddedColumn(one.strip(), "", "", one, quoted, may_exist=False))
            elif not _NO_COLUMN.match(one.strip()):
                name, rest = _unquoted(column[1], quoted), one[column.end() :]
                made.append(AddedColumn(name, column[2].lower(), column[3] or "", rest, quoted, add[2] is not None))
    return made


def _split(text: str) -> list[str]:
    """Return the parts of a plain text between commas that are in no brackets."""
    parts, depth, begin = [], 0, 0
    for place, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if mark == "," and not depth:
            parts.append(text[begin:place])
            begin = place + 1
    return [*parts, text[begin:]]


def _plain(statement: str) -> tuple[str, list[str]]:
    """Return a statement without comments, with the number of each name or text that is quoted, and these."""
    quoted: list[str] = []

    def piece(found: re.Match[str]) -> str:
        if found[1] is not None:
            return " "
        quoted.append(found[2])
        mark = found[2][0]
        return f" {mark}{len(quoted) - 1}{mark} "

    text = _PIECE.sub(piece, statement).strip()
    return (text[found.end() :] if (found := _SET.match(text)) is not None else text), quoted


def _tables(verb: str, what: str, rest: str) -> Iterator[re.Match[str]]:
    """Yield the tables that the rest of a plain statement names."""
    if what == "INDEX":
        on = _ON.search(rest)
        rest = rest[on.end() :] if on else ""
    parts = [rest]
    if what == "TABLE" and verb in ("DROP", "RENAME"):
        parts = [one for part in rest.split(",") for one in (_TO.split(part) if verb == "RENAME" else [part])]
    for part in parts:
        if (found := _TABLE.match(part)) is not None:
            yield found
    if verb == "ALTER" and what == "TABLE":
        for before in _OTHER.finditer(rest):
            if (found := _TABLE.match(rest, before.end())) is not None:
                yield found


def _full(found: re.Match[str], quoted: list[str], database: str) -> str:
    names = [_unquoted(one, quoted) for one in found.groups() if one is not None]
    return ".".join(names) if len(names) > 1 else f"{database}.{names[0]}"


def _unquoted(name: str, quoted: list[str]) -> str:
    if name[0] not in '`"':
        return name
    text, mark = quoted[int(name[1:-1])], name[0]
    return text[1:].removesuffix(mark).replace(mark * 2, mark)
