"""Small pieces of Spark SQL as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame

from mqtrail.trail import Relation


def literal(text: str) -> str:
    """A text as a literal, with quotes and backslashes escaped."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def one_of(column: str, numbers: Iterable[int]) -> str:
    """Whether a column is one of numbers."""
    wanted = sorted(set(numbers))
    return f"{column} = {wanted[0]}" if len(wanted) == 1 else f"{column} IN ({', '.join(map(str, wanted))})"


def select(rows: DataFrame, expressions: Mapping[str, str]) -> DataFrame:
    """The select whose columns are the names of expressions."""
    return rows.selectExpr(*(f"{text} AS {name}" for name, text in expressions.items()))


def relation_columns(relation: Relation, expressions: Mapping[str, str]) -> list[str]:
    """The select list of a relation: every column by its expression, otherwise by its name, cast to its type."""
    return [
        f"CAST({expressions.get(column.name, column.name)} AS {column.type}) AS {column.name}" for column in relation
    ]


def select_relation(rows: DataFrame, relation: Relation, expressions: Mapping[str, str]) -> DataFrame:
    """The rows with the columns of a relation."""
    return rows.selectExpr(*relation_columns(relation, expressions))
