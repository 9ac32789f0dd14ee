"""Stages as relations of DuckDB."""

from __future__ import annotations

import duckdb
import pytest

from mqtrail.lake import connect
from mqtrail.lake.duck import ParsedStatements, define
from mqtrail.trail import Stage


class Counting:
    """A connection that counts what it parses."""

    def __init__(self, inner: duckdb.DuckDBPyConnection) -> None:
        self.inner = inner
        self.parsed: list[str] = []

    def extract_statements(self, query: str) -> list[duckdb.Statement]:
        self.parsed.append(query)
        return list(self.inner.extract_statements(query))


def test_statements_are_parsed_once() -> None:
    """The same text in another connection is not parsed again, and reads that connection's relations."""
    statements = ParsedStatements(2)
    found = []
    duck = Counting(connect(threads=1))
    for value in (3, 9):
        other = connect(threads=1)
        other.execute(f"CREATE TABLE rows_ AS SELECT {value} AS a")
        found.append(other.execute(statements.parsed(duck, "SELECT a FROM rows_")).fetchall())
    assert found == [[(3,)], [(9,)]]
    assert duck.parsed == ["SELECT a FROM rows_"]


def test_the_least_recently_used_statement_is_dropped() -> None:
    """The number of kept statements is limited."""
    statements = ParsedStatements(2)
    duck = Counting(connect(threads=1))
    for number in (1, 2, 1, 3, 1, 2):
        statements.parsed(duck, f"SELECT {number}")
    assert duck.parsed == ["SELECT 1", "SELECT 2", "SELECT 3", "SELECT 2"]
    assert len(statements) == 2


@pytest.mark.parametrize("recurs", [False, True])
def test_a_stage_replaces_what_has_its_name(recurs: bool) -> None:
    """A view becomes a table and a table a view; a table has its number of rows."""
    duck = connect(threads=1)
    for table in (False, True, True, False):
        assert define(duck, Stage("one", "SELECT 1 AS a", ()), table=table, recurs=recurs) == table
        assert duck.sql("SELECT * FROM one").fetchall() == [(1,)]
    with pytest.raises(duckdb.CatalogException, match="absent"):
        define(duck, Stage("two", "SELECT * FROM absent", ()), recurs=recurs)
