"""`sql`: query the documented views of a lake; print the rows or write them to a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqtrail.clock import now_ms

from .answers import exit_of, lake_answers
from .config import load
from .exits import Exit, UsageError, lake_in_use
from .options import ConfigFile, Json, LakeCluster, LakeFolder, RowFile, check_row_file
from .output import progress, say, show_answer, show_json, warn

if TYPE_CHECKING:
    from mqtrail.answers import QueryAnswer


def sql(
    text: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT in DuckDB's SQL; '-': read stdin.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of rows to print.")] = 1_000,
    output: RowFile = None,
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Query a lake with SQL. Without a query, list the views and their columns."""
    from mqtrail.answers import save_rows

    if not text:
        _list_views(json)
        return Exit.OK
    if output is not None:
        check_row_file(output)
    if text == "-":
        text = typer.get_text_stream("stdin").read()
    with (
        lake_in_use(),
        _query_as_option(),
        progress("running the query", enabled=not json),
        lake_answers(load(config), lake, cluster).query(text, now_ms()) as answer,
    ):
        if output is None:
            _print(answer, limit, json)
        else:
            warn(f"{save_rows(answer, output)} rows written to {output}")
        return exit_of(answer.scope, Exit.OK)


@contextmanager
def _query_as_option() -> Iterator[None]:
    """Convert QueryError to UsageError: the query is an argument."""
    from mqtrail.answers import QueryError

    try:
        yield
    except QueryError as error:
        raise UsageError(str(error)) from error


def _list_views(json: bool) -> None:
    from mqtrail.answers import VIEWS

    for view in VIEWS.values():
        if json:
            columns = {column.name: column.meaning for column in view.columns}
            show_json({"view": view.name, "row": view.row, "columns": columns})
        else:
            say(f"{view.name}: {view.row}")
            for column in view.columns:
                say(f"  {column.name:<20} {column.meaning}")


def _print(answer: QueryAnswer, limit: int, json: bool) -> None:
    from mqtrail.answers import rows_of

    rows = rows_of(answer)
    shown = list(islice(rows, limit))
    is_cut = next(rows, None) is not None
    if json:
        for row in shown:
            show_json(dict(zip(answer.schema.names, row, strict=True)))
    else:
        from .draw import Cells, cells_table

        texts = tuple(tuple(_text(value) for value in row) for row in shown)
        show_answer(cells_table, Cells(tuple(answer.schema.names), texts, answer.scope))
    if is_cut:
        warn(f"the query has more than {limit} rows, the first {limit} were printed: raise --limit, or use --output")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(one) for one in value)
    return "NULL" if value is None else str(value)
