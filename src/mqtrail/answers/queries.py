"""SQL by the user over a lake's documented views. A query reads; it cannot write, and cannot read other files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import duckdb

from mqtrail.lake import LakeDamaged, lake_errors
from mqtrail.wire import MQError

from .lakeview import LakeView
from .model import Scope
from .views import TABLES_SCHEMA, VIEWS, definitions

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 10_000  # rows fetched at once
MEMORY_LIMIT: Final = "2GB"  # of a query; DuckDB spills what is larger to the folder for temporary files
SPILL_LIMIT: Final = "20GB"
_OF_THE_QUERY: Final = (
    duckdb.ParserException,
    duckdb.SyntaxException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.PermissionException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.NotImplementedException,
    duckdb.OutOfMemoryException,
)


class QueryError(MQError):
    """The query is invalid, does something else than read, or failed on its own values."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The rows of a query, in batches of Arrow. LakeError or QueryError: reading failed halfway."""

    scope: Scope
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@contextmanager
def query(view: LakeView, text: str, now_ms: int) -> Iterator[QueryAnswer]:
    """Run a checked SELECT over the views while the block reads its rows. QueryError, LakeError."""
    with TemporaryDirectory(prefix="mqtrail-sql-") as spill:  # with nothing else in it: DuckDB lets queries read it
        _restrict(view, spill)
        try:
            reader = view.read(lambda read: _reader(read, text))
        except LakeDamaged as error:
            raise _whose_fault(view, error, len(view.damage)) from error
        scope = replace(view.scope(now_ms), is_damaged=bool(view.damage))  # a query may read any table
        with closing(_batches(view, reader)) as batches:
            yield QueryAnswer(scope, reader.schema, batches)


def check(text: str) -> None:
    """Raise QueryError unless the text is one statement that only reads."""
    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    kinds = [statement.type.name for statement in statements]
    if kinds != ["SELECT"]:
        found = " and ".join(kinds) or "no statement"
        raise QueryError(f"found {found}, expected one SELECT: `mqtrail sql` only reads, one statement at a time")


def _reader(view: LakeView, text: str) -> pa.RecordBatchReader:
    """Return the rows of a query, which has run when this returns."""
    duck = view.connection
    duck.execute(f"CREATE SCHEMA IF NOT EXISTS {TABLES_SCHEMA}")
    view.lookup.define_views(TABLES_SCHEMA, view.cluster)
    for definition in definitions():
        duck.execute(definition)
    try:
        rows: pa.RecordBatchReader = duck.cursor().sql(text).to_arrow_reader(BATCH_ROWS)  # `duck` stays usable
    except _OF_THE_QUERY as error:
        raise _query_error(error) from error
    return rows


def _restrict(view: LakeView, spill: str) -> None:
    """Let queries of this connection open no files but the lake's and their own, and bound their memory."""
    duck = view.connection
    duck.execute("SET memory_limit = ?", [MEMORY_LIMIT])
    duck.execute("SET temp_directory = ?", [spill])
    duck.execute("SET max_temp_directory_size = ?", [SPILL_LIMIT])
    duck.execute("SET allowed_directories = ?", [[f"{view.path}/"]])
    duck.execute("SET python_enable_replacements = false")
    duck.execute("SET enable_external_access = false")
    duck.execute("SET lock_configuration = true")


def _batches(view: LakeView, reader: pa.RecordBatchReader) -> Generator[pa.RecordBatch]:
    while True:
        try:
            with lake_errors(view.path):
                batch = reader.read_next_batch()
        except StopIteration:
            return
        except LakeDamaged as error:
            known = len(view.damage)
            view.lookup.lake.probe()
            raise _whose_fault(view, error, known) from error
        yield batch


def _whose_fault(view: LakeView, error: LakeDamaged, known_damage: int) -> MQError:
    """Return the error to raise: DuckDB reports damaged files and invalid values in a query alike."""
    if len(view.damage) > known_damage or not isinstance(error.__cause__, duckdb.Error):
        return error
    return QueryError(str(error.__cause__))


def _query_error(error: duckdb.Error) -> QueryError:
    views = ", ".join(VIEWS)
    hint = f"; the views are {views}, the lake's tables {TABLES_SCHEMA}.*" if "does not exist" in str(error) else ""
    return QueryError(f"{error}{hint}")
