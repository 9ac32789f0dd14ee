"""Rows in Parquet files, for DuckDB: SQL that reads them, and files in the layout of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import duckdb

from mqtrail.trail import Relation, literal

from .places import LakePath
from .schemas import Table
from .tables import DataFile, LakeTable, cluster_of

ROW_GROUP_ROWS = 65_536
"""Rows per row group of a compacted file: about 4 MiB in memory. A look-up reads one group."""


def rows_of(table: LakeTable, files: Sequence[DataFile], cluster: str | None = None) -> str:
    """Return SQL for the rows of files as they are; without files, for an empty typed relation.

    cluster: only its rows. Files that have rows of no other one are not filtered.
    """
    names = ", ".join(table.table.relation.names)
    chosen = files if cluster is None else of_cluster(files, cluster)
    whole = [file for file in chosen if cluster is None or cluster_of(file) == cluster]
    parts = [f"SELECT {names} FROM {source_of(table, whole)}"] if whole else []
    if cluster is not None and (mixed := [file for file in chosen if file not in whole]):
        parts.append(f"SELECT {names} FROM {source_of(table, mixed)} WHERE cluster = {literal(cluster)}")
    return " UNION ALL ".join(parts) or empty_rows(table.table.relation)


def source_of(table: LakeTable, files: Sequence[DataFile]) -> str:
    """Return SQL, for a FROM: all columns of a table's files. A column that a file lacks has no values: '' or NULL."""
    later = table.later_columns
    if not later:
        return parquet_of(table.paths(files))
    types = {column.name: column.type for column in table.table.relation}
    nothing = ", ".join(f"NULL::{types[name]} AS {name}" for name in later)
    columns = ", ".join(
        f"coalesce({name}, '') AS {name}" if name in later and types[name] == "string" else name for name in types
    )
    found = (
        f"SELECT * FROM {parquet_of(table.paths(files), by_name=True)} UNION ALL BY NAME SELECT {nothing} WHERE false"
    )
    return f"(SELECT {columns} FROM ({found}) AS found)"


def of_cluster(files: Iterable[DataFile], cluster: str) -> list[DataFile]:
    """Return the files that may have rows of a cluster."""
    return [file for file in files if file.may_hold("cluster", cluster)]


def empty_rows(relation: Relation) -> str:
    """Return SQL for no rows of a relation without nested columns, with its columns typed."""
    return f"SELECT {relation.typed(dict.fromkeys(relation.names, 'NULL'))} WHERE false"


def parquet_of(paths: Sequence[str], *, by_name: bool = False) -> str:
    """Return SQL for the rows of Parquet files. Folder names are not read as partition columns.

    by_name: files may lack columns, or have them in another order. DuckDB reads all footers then, before any row.
    """
    names = ", ".join(map(literal, paths))
    return f"read_parquet([{names}], hive_partitioning = false, union_by_name = {str(by_name).lower()})"


def copy(
    duck: duckdb.DuckDBPyConnection, rows: str, target: LakePath, table: Table, row_count_max: int = ROW_GROUP_ROWS
) -> None:
    """Write the rows of a query to a file of `table`, in the layout for look-ups.

    row_count_max: a bound on the rows, if one is known. A file of one row group gets bloom filters for ids: an hour can
    have many such files, with overlapping ids. DuckDB writes filters only for dictionary-encoded columns, and uses a
    dictionary only below a limit, which is raised for this. In larger files the least and greatest ids of sorted row
    groups exclude the others, and dictionaries of ids would nearly double the bytes.
    """
    order = f" ORDER BY {', '.join(table.sort_by)}" if table.sort_by else ""
    duck.execute(f"COPY ({rows}{order}) TO {literal(str(target))} ({_layout(table, row_count_max)})")


def copy_hours(
    duck: duckdb.DuckDBPyConnection, rows: str, folder: LakePath, table: Table, row_count_max: int = ROW_GROUP_ROWS
) -> list[LakePath]:
    """Write the rows of a query as `copy` does, each publish hour to its own folder `hour=<publish_hour>`.

    Return the files. The query is not materialized first: DuckDB's sort spills to disk if memory is short.
    """
    columns = ", ".join(table.relation.names)
    order = ", ".join(("hour", *table.sort_by))
    folder.mkdir(parents=True, exist_ok=True)
    duck.execute(
        f"COPY (SELECT {columns}, publish_hour AS hour FROM ({rows}) AS made ORDER BY {order}) TO "
        f"{literal(str(folder))} ({_layout(table, row_count_max)}, PARTITION_BY (hour), OVERWRITE_OR_IGNORE)"
    )
    return sorted(folder.rglob("*.parquet"), key=str)


def _layout(table: Table, row_count_max: int) -> str:
    has_filters = table.bloom and row_count_max < ROW_GROUP_ROWS
    bloom = f", DICTIONARY_SIZE_LIMIT {max(1, row_count_max)}" if has_filters else ""
    return f"FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS}{bloom}"
