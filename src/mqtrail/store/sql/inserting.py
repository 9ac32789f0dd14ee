"""Many rows at once: INSERT by the driver's own executemany, and the ends of many queues in one UPDATE.

Core composes the parameters of each row column by column, which takes longer than the driver and the database do for
it. The statements are Core's own, with its names and casts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Table, insert

from .schema import QUEUE, message_table

ENDS_A_STATEMENT: Final = 64
_PATTERN: Final = message_table("message_of_any_queue")  # all message tables have its columns


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have a value for each column."""
    _insert(connection, table, table.name, rows)


def insert_messages(connection: Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows into the message table of this name."""
    _insert(connection, _PATTERN, table, rows)


def _insert(connection: Connection, pattern: Table, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    statement, parameters_of = _compiled(connection.dialect, pattern)
    connection.exec_driver_sql(statement.replace(pattern.name, name, 1), [parameters_of(row) for row in rows])


@lru_cache(maxsize=64)
def _compiled(dialect: Dialect, table: Table) -> tuple[str, Callable[[Mapping[str, Any]], Any]]:
    """Return the statement of a table, and what makes the parameters of a row as the driver wants them."""
    compiled = insert(table).compile(dialect=dialect)
    names = getattr(compiled, "positiontup", None)
    return str(compiled), dict if names is None else itemgetter(*names)


def note_ends(connection: Connection, ends: Mapping[int, int]) -> None:
    """Note where queues end, by the numbers of their tables."""
    found = list(ends.items())
    for start in range(0, len(found), ENDS_A_STATEMENT):
        some = found[start : start + ENDS_A_STATEMENT]
        cases = " ".join(f"WHEN {number} THEN {end}" for number, end in some)
        numbers = ", ".join(str(number) for number, _ in some)
        connection.exec_driver_sql(f"UPDATE {QUEUE.name} SET next_offset = CASE id {cases} END WHERE id IN ({numbers})")
