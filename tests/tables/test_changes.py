"""Messages as changes of one table, in any order and any division into parts."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import pytest

from mqtrail.binlog.source import TableFilter
from mqtrail.binlog.statements import parse_statement
from mqtrail.tables.changes import Digest
from mqtrail.tables.kinds import ColumnKind, array_of, fitting
from mqtrail.tables.model import TableError
from mqtrail.wire import Message

from .making import SOURCE, changed, digested, schema

STORY = [
    *changed(1, None, {"id": 1, "n": 1}),
    *changed(2, None, {"id": 2, "n": 1}),
    *changed(3, {"id": 1, "n": 1}, {"id": 1, "n": 2}),
    *changed(4, {"id": 2, "n": 1}, None),
    *changed(5, {"id": 1, "n": 2}, {"id": 3, "n": 2}),
]


def test_the_newest_change_of_each_key_wins_in_any_order_and_division() -> None:
    """Swapped, repeated and divided messages give the same rows."""
    chance = random.Random(3)
    for story in itertools.islice(itertools.permutations(STORY), 0, None, 40):
        told = [*story, *chance.choices(story, k=3)]
        cut = chance.randrange(len(told))
        found = digested(told[:cut], told[cut:])
        states = {row.key: (row.deleted, row.values) for row in found.settled()}
        assert states == {
            "shop.orders:1": (True, {"id": 1}),
            "shop.orders:2": (True, {"id": 2}),
            "shop.orders:3": (False, {"id": 3, "n": 2}),
        }
        assert found.counts["changes"] == len(told)
        assert found.last_position == "bin.000001:5"


def test_repeats_and_late_changes_are_counted() -> None:
    """A repeat has an order that its key had before; a late change has a lower one."""
    first, _, third, *_ = STORY
    found = digested([first, third, third, first])
    assert (found.counts["repeated"], found.counts["late"]) == (2, 0)
    assert digested([third, first]).counts["late"] == 1


def test_a_statement_empties_the_table_at_its_place() -> None:
    """Rows from before it are deleted, rows after it stay, wherever they are read. Other tables' statements do not."""
    truncate = schema(3, "TRUNCATE TABLE", "TRUNCATE TABLE orders")
    before, after = changed(2, None, {"id": 1, "n": 1}), changed(4, None, {"id": 2, "n": 2})
    for parts in ([[*before, *truncate, *after]], [after, truncate, before]):
        found = {row.key: row.deleted for row in digested(*parts).settled()}
        assert found == {"shop.orders:1": True, "shop.orders:2": False}
    for kind, statement, names, clears in (
        ("DROP TABLE", "DROP TABLE orders", ("shop.lines", "shop.orders"), True),
        ("DROP DATABASE", "DROP DATABASE shop", ("shop",), True),
        ("CREATE TABLE", "create or replace table orders (id INT)", ("shop.orders",), True),
        ("CREATE TABLE", "CREATE TABLE IF NOT EXISTS orders (id INT)", ("shop.orders",), False),
        ("TRUNCATE TABLE", "TRUNCATE TABLE lines", ("shop.lines",), False),
        ("ALTER TABLE", "ALTER TABLE orders RENAME COLUMN a TO b", ("shop.orders",), False),
        ("ALTER TABLE", "ALTER TABLE orders ADD n INT", ("shop.orders",), False),
    ):
        assert (digested(schema(3, kind, statement, names)).clear is not None) is clears, statement


def told(statement: str, filtered: str = SOURCE) -> Digest:
    """What a statement of a session in shop does to the table, by the names that `binlog run` reads from it."""
    parsed, chosen = parse_statement(statement, "shop"), TableFilter([filtered], [], [])
    names = tuple(name for name in parsed.names if chosen.may_mean(name))
    return digested(schema(3, parsed.kind, statement, names) if names else [])


@pytest.mark.parametrize(
    "statement",
    [
        "/* ApplicationName=DBeaver 24 */ CREATE OR REPLACE TABLE orders (id INT)",
        "-- x\nCREATE OR REPLACE TABLE orders (id INT)",
        "TRUNCATE /*c*/ TABLE orders",
        "TRUNCATE `orders`",
        "DROP TABLE lines/**/,`orders`",
        "CREATE OR REPLACE DATABASE shop",
        "DROP SCHEMA `shop`",
    ],
)
def test_a_statement_that_empties_the_table_in_any_spelling(statement: str) -> None:
    """With comments and quotes wherever a client writes them."""
    assert told(statement).clear is not None


@pytest.mark.parametrize(
    "statement",
    [
        "RENAME TABLE orders TO old",
        "ALTER TABLE orders RENAME TO old",
        "ALTER TABLE orders RENAME=o2",
        "ALTER TABLE orders RENAME/**/TO o2",
        "ALTER TABLE orders RENAME`o2`",
        "ALTER TABLE orders_new RENAME TO orders",
        "ALTER TABLE orders_new RENAME AS shop.orders",
        "ALTER TABLE orders_new ENGINE=InnoDB, RENAME=orders",
        "ALTER TABLE orders DROP PARTITION p0",
        "ALTER TABLE orders TRUNCATE PARTITION p0",
        "ALTER TABLE arch EXCHANGE PARTITION p0 WITH TABLE orders",
        "ALTER TABLE arch CONVERT TABLE orders TO PARTITION p0 VALUES LESS THAN (9)",
        "ALTER TABLE orders CONVERT TABLE o2 TO PARTITION p0 VALUES LESS THAN (9)",
        "ALTER TABLE arch CONVERT PARTITION p0 TO TABLE orders",
        "ALTER TABLE orders DISCARD TABLESPACE",
        "ALTER TABLE orders IMPORT /*c*/ TABLESPACE",
        "ALTER TABLE orders DISCARD PARTITION p0 TABLESPACE",
        "ALTER IGNORE TABLE orders ADD UNIQUE (n)",
        "alter online /*c*/ ignore table orders MODIFY n TINYINT",
        "TRUNCATE TABLE Orders",
        "DROP DATABASE SHOP",
        "ALTER TABLE old RENAME TO ORDERS",
        "ALTER TABLE orders ADD at DATETIME DEFAULT now()",
        "ALTER TABLE Orders ADD n INT DEFAULT 5",
    ],
)
def test_a_statement_that_changes_rows_without_their_changes_is_refused(statement: str) -> None:
    """The message names it and its place. A name in another case is the table's own on some servers."""
    with pytest.raises(TableError, match=r"found the statement .*offset 0 .*expected.*new snapshot"):
        told(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE orders COMMENT 'please rename this'",
        "ALTER TABLE orders ADD COLUMN n INT COMMENT 'rename of m'",
        'ALTER TABLE orders ADD n INT COMMENT "it\'s a \\" rename to lines"',
        "ALTER TABLE orders ADD `rename it` INT, DROP `drop partition`",
        "ALTER TABLE orders ADD n INT /* RENAME TO o2 */",
        "ALTER TABLE orders RENAME COLUMN a TO b, RENAME INDEX c TO d, RENAME/**/KEY e TO f",
        "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4",
        "ALTER TABLE Orders ADD n INT",
        "ALTER TABLE orders ADD `ignore` INT",
        "ALTER TABLE lines ADD at DATETIME DEFAULT now()",
        "ALTER IGNORE TABLE lines ADD UNIQUE (n)",
        "CREATE TABLE orders (a TEXT COMMENT 'CREATE OR REPLACE')",
        "CREATE DATABASE shop",
        "ALTER TABLE lines RENAME TO old_lines",
        "TRUNCATE TABLE shop",
    ],
)
def test_a_statement_that_moves_no_rows_of_the_table(statement: str) -> None:
    """Whatever its texts and comments say."""
    assert told(statement, "shop.*").clear is None


def test_another_primary_key_is_refused() -> None:
    """Also between the parts of a batch."""
    first, [made] = changed(1, None, {"id": 1}), changed(2, None, {"id": 2})
    second = [replace(made, body=made.body.replace(b'"key":{"id":2}', b'"key":{"id":2,"n":1}'))]
    for parts in ([[*first, *second]], [first, second]):
        with pytest.raises(TableError, match=r"found changes with the primary key \(id, n\), expected \(id\)"):
            digested(*parts)


@pytest.mark.parametrize(
    "body", [b"hello", b"[1]", b"{}", b'{"op":"insert","database":"shop","order":"1","position":"a:1","time_ms":1}']
)
def test_other_messages_are_refused_or_left_out(body: bytes) -> None:
    """With their place, and what to do."""
    other = Message("cdc", body, keys=("k",))
    with pytest.raises(
        TableError, match=r"found a message that is not a change .*broker-a/0, offset 1.*--ignore-other"
    ):
        digested([STORY[0], other])
    found = digested([STORY[0], other], ignores_other=True)
    assert (found.counts["other"], len(found.rows)) == (1, 1)


@pytest.mark.parametrize(
    ("one", "two", "found"),
    [
        (b'"order":"0000000001', b"\"order\":\"0' OR '1'='1", "its order is \"0' OR '1'='1."),
        (b'"order":"0000000001', b'"order":"zzz', "its order is 'zzz."),
        (b'"order":"0000000001', b'"order":"\xd9\xa1000000001', "its order is"),
        (b"bin.000001:1", b"bin.000001", "its position is 'bin.000001'"),
        (b'"time_ms":1000', b'"time_ms":9223372036854775808', "it lacks database or time_ms"),
        (b'"gtid":"0-7-1"', b'"gtid":7', "its gtid is not text"),
        (b'"op":"insert"', b'"op":{}', "its op is '{}'"),
        (b'"op":"insert"', b'"op":["insert"]', "its op is"),
        (b'"n":"x"', b'"n":"\\ud800"', "its body is no JSON"),
        (b'"n":"x"', b'"n":"\\uDfff"', "its body is no JSON"),
        (b'"n":"x"', b'"n":"\xed\xa0\x80"', "its body is no JSON"),
        (b'"names":["shop.orders"]', b'"names":[1]', "it lacks schema"),
        (b'"kind":"TRUNCATE TABLE"', b'"kind":null', "it lacks schema"),
    ],
)
def test_values_that_binlog_run_does_not_write(one: bytes, two: bytes, found: str) -> None:
    """A message with one is no change: it would stay the newest for good, or stop each run."""
    story = [*changed(1, None, {"id": 1, "n": "x"}), *schema(1, "TRUNCATE TABLE", "TRUNCATE orders")]
    [real] = [message for message in story if one in message.body][:1]
    other = replace(real, body=real.body.replace(one, two))
    with pytest.raises(TableError, match=re.escape(found)):
        digested([other])
    made = digested([other], ignores_other=True)
    assert (made.counts["other"], made.rows, made.clear, made.last_order) == (1, {}, None, "")


def test_a_pair_of_surrogates_is_a_text() -> None:
    """Any program may write JSON with escapes."""
    [real] = changed(1, None, {"id": 1, "n": "x"})
    found = digested([replace(real, body=real.body.replace(b'"n":"x"', b'"n":"\\uD83D\\ude00"'))])
    assert [row.values["n"] for row in found.settled()] == ["\U0001f600"]


def test_changes_of_other_tables_are_counted() -> None:
    """They are no part of the table, and count as read."""
    found = digested([*changed(9, None, {"id": 1}, table="lines"), STORY[0]])
    assert (found.counts["elsewhere"], len(found.rows), found.last_position) == (1, 1, "bin.000001:9")


def test_a_number_that_no_column_has_is_refused_by_name() -> None:
    """The largest one that a decimal has is taken; a longer one would fail as a damaged disk."""
    largest = 10**20 - 1
    assert fitting({}, [{"n": largest}], SOURCE) == {"n": ColumnKind.DECIMAL}
    assert array_of(ColumnKind.DECIMAL, [largest, -largest]).to_pylist() == [largest, -largest]
    with pytest.raises(TableError, match=f"column n of {SOURCE}: found a whole number of more than 20 digits"):
        fitting({}, [{"n": largest + 1}], SOURCE)
