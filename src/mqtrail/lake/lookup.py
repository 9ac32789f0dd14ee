"""Look-up of one message by id or by key over the committed files.

An id tells its hour but not its month, so one hour a month is asked; statistics in the Delta log then leave the files
that can hold it, footers and bloom filters leave the row group. A key goes through key_index, one file an hour.
Every answer names the files it opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from mqtrail.trail import publish_hours

from .duck import connect
from .edge import lake_errors
from .maintenance import parquet_of
from .schemas import ddl
from .tables import DataFile, Lake, LakeTable


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of one table, the files that were opened for them (below the lake's folder), and how many there are."""

    rows: list[dict[str, Any]]
    opened: tuple[str, ...]
    file_count: int


class LookUp:
    """Look-ups over one lake. Not for several threads at once; `lake.refresh()` shows what was committed since."""

    def __init__(self, lake: Lake, connection: duckdb.DuckDBPyConnection | None = None) -> None:
        self.lake = lake
        self.connection = connection or connect()

    def trajectories(self, msg_id: str) -> Answer:
        """The trajectory of an id (rows of TRAJECTORIES, one a cluster that knows it)."""
        return self._by_id("trajectories", msg_id)

    def verdicts(self, msg_id: str) -> Answer:
        """The verdicts of an id, one a group."""
        return self._by_id("verdicts", msg_id)

    def attempts(self, msg_id: str) -> Answer:
        """The silver rows of an id, merged no further than its files are."""
        return self._by_id("attempts", msg_id)

    def ids_of_key(self, key: str, limit: int = 1000) -> Answer:
        """Rows of KEY_INDEX with this token of KEYS, latest hours first, at most `limit`."""
        table = self.lake["key_index"]
        files = [f for f in table.files() if f.may_hold("key_token", key)]
        return self._select(
            table, files, "key_token = ? ORDER BY publish_hour DESC, msg_id LIMIT " + str(int(limit)), [key]
        )

    def define_views(self) -> None:
        """Make every table a view of its committed files in `connection`; an empty table is an empty view."""
        for table in self.lake:
            with lake_errors(table.path):
                self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {table.table.name} AS {relation_of(table)}")

    def _by_id(self, name: str, msg_id: str) -> Answer:
        table = self.lake[name]
        hours = table.hours()
        wanted = publish_hours(msg_id, hours[0], hours[-1] + 1) if hours else []
        files = [f for f in table.files(wanted) if f.may_hold("msg_id", msg_id)]
        return self._select(table, files, "msg_id = ?", [msg_id])

    def _select(self, table: LakeTable, files: Sequence[DataFile], where: str, values: list[Any]) -> Answer:
        rows: list[dict[str, Any]] = []
        files = table.readable(files)
        if files:
            query = f"SELECT * FROM {parquet_of(table.paths(files))} WHERE {where}"
            with lake_errors(table.path):
                cursor = self.connection.execute(query, values)
                names = [column[0] for column in cursor.description or ()]
                rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        opened = tuple(f"{table.table.name}/{f.path}" for f in files)
        return Answer(rows, opened, len(table.files()))


def relation_of(table: LakeTable, files: Sequence[DataFile] | None = None) -> str:
    """SQL: the rows of `files` (all committed ones if not given); typed and empty without any."""
    chosen = table.readable(table.files() if files is None else files)
    if chosen:
        return f"SELECT {', '.join(table.table.relation.names)} FROM {parquet_of(table.paths(chosen))}"
    columns = ", ".join(
        f"cast(NULL AS {part.split(' ')[1]}) AS {part.split(' ')[0]}" for part in ddl(table.table.relation).split(", ")
    )
    return f"SELECT {columns} WHERE false"
