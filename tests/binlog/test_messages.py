"""Changes as messages: keys, order, transactions, changed keys; statements; filters."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mqtrail.binlog import BinlogError, TagBy, source_of
from mqtrail.binlog.messages import ChangeComposer, Checkpoint, Outbound, key_text
from mqtrail.binlog.model import (
    BinlogItem,
    BinlogPlace,
    NothingNew,
    RowChange,
    SchemaChange,
    TransactionBegin,
    TransactionEnd,
    order_text,
)
from mqtrail.binlog.source import SourceConfig, TableFilter
from mqtrail.binlog.statements import Sort, empties, moves_rows, parse_statement
from mqtrail.binlog.stream import BinlogStream

PLACE = BinlogPlace("bin.000002", 100)


def change(before: int | None, after: int | None, row: int = 0) -> RowChange:
    """A change of a row whose key is its only column."""
    old, new = (None if key is None else {"id": key} for key in (before, after))
    return RowChange("shop", "orders", ("id",), old, new, BinlogPlace("bin.000002", 150), row, 7_000)


def composed(*items: BinlogItem) -> list[Outbound | Checkpoint]:
    """What a composer makes of a transaction."""
    composer = ChangeComposer("cdc")
    found: list[Outbound | Checkpoint] = []
    for item in (TransactionBegin(PLACE, "0-7-1", 7_000), *items, TransactionEnd(BinlogPlace("bin.000002", 200))):
        found += composer.feed(item)
    return found


def bodies(found: list[Outbound | Checkpoint]) -> list[dict[str, Any]]:
    """The bodies of messages."""
    return [json.loads(one.message.body) for one in found if isinstance(one, Outbound)]


def test_a_transaction_is_numbered_and_its_last_message_marked() -> None:
    """A checkpoint follows it."""
    found = composed(change(None, 1), change(1, 1, row=1), change(2, None, row=2))
    shown = [(one["op"], one["key"], one["transaction"]) for one in bodies(found)]
    assert shown == [
        ("insert", {"id": 1}, {"id": "0-7-1", "index": 0, "last": False}),
        ("update", {"id": 1}, {"id": "0-7-1", "index": 1, "last": False}),
        ("delete", {"id": 2}, {"id": "0-7-1", "index": 2, "last": True}),
    ]
    assert found[-1] == Checkpoint(BinlogPlace("bin.000002", 200), "0-7-1", 7_000)
    assert composed() == [found[-1]]


def test_a_changed_key_becomes_two_linked_messages() -> None:
    """The delete is before the insert in order, in its own queue; both have one fence."""
    delete, insert = (one for one in composed(change(1, 2)) if isinstance(one, Outbound))
    assert (delete.key, insert.key) == ("shop.orders:1", "shop.orders:2")
    assert delete.order < insert.order
    assert delete.message.properties["BINLOG_FENCE"] == insert.message.properties["BINLOG_FENCE"]
    for one in bodies([delete, insert]):
        assert one["moved"] == {"from": {"id": 1}, "to": {"id": 2}}
    assert [one["op"] for one in bodies([delete, insert])] == ["delete", "insert"]


def test_a_schema_change_goes_to_every_queue() -> None:
    """It has no key."""
    item = SchemaChange("ALTER TABLE", ("shop.orders",), "ALTER TABLE …", "shop", PLACE, 7_000)
    first, _ = composed(item)
    assert isinstance(first, Outbound)
    assert (first.key, first.message.tags) == (None, "shop.orders")
    (body,) = bodies([first])
    assert body["schema"] == {"kind": "ALTER TABLE", "names": ["shop.orders"], "statement": "ALTER TABLE …"}


def test_tags_and_properties() -> None:
    """Of the table or the operation; positions make a repeat recognizable."""
    composer = ChangeComposer("cdc", TagBy.OP)
    made = composer.snapshot("shop.orders", ("id",), {"id": 1}, PLACE, 3, 9_000)
    assert made.message.tags == "snapshot"
    assert made.message.keys == ("shop.orders:1",)
    assert made.message.properties == {
        "BINLOG_OP": "snapshot",
        "BINLOG_TABLE": "shop.orders",
        "BINLOG_POSITION": "bin.000002:100",
        "BINLOG_ROW": "3",
        "BINLOG_ORDER": "0000000002.000000000100.00000000.0",
    }
    (idle,) = composer.feed(NothingNew(PLACE))
    assert idle == Checkpoint(PLACE, "", 0, is_idle=True)


@given(
    rows=some.lists(some.tuples(some.text(), some.integers()), min_size=2, max_size=2, unique=True),
    table=some.text(min_size=1),
)
def test_different_keys_have_different_texts(rows: list[tuple[str, int]], table: str) -> None:
    """Each is one word without a character that RocketMQ takes for its own."""
    texts = [key_text(f"d.{table}", {"a": a, "b": b}, ("a", "b")) for a, b in rows]
    assert len(set(texts)) == 2
    for text in texts:
        assert not {" ", "\x01", "\x02", "|"} & set(text)
        assert text.isascii()
        assert len(text) <= 200 + 12 * len(table)


@given(
    one=some.tuples(some.integers(1, 2_000_000), some.integers(4, 1 << 32), some.integers(0, 10**6)),
    two=some.tuples(some.integers(1, 2_000_000), some.integers(4, 1 << 32), some.integers(0, 10**6)),
)
def test_order_compares_as_text(one: tuple[int, int, int], two: tuple[int, int, int]) -> None:
    """Also over the file 999999."""
    texts = [order_text(BinlogPlace(f"bin.{file:06}", place), row) for file, place, row in (one, two)]
    assert (texts[0] < texts[1]) == (one < two)


@pytest.mark.parametrize("part", ["/* ", "\\'", '\\"', "`a", "DISCARD PARTITION ", "RENAME  ", "SET STATEMENT FOR"])
def test_a_long_statement_is_read_once(part: str) -> None:
    """Messages have statements, too: a reader must not search what is left of a text from each place in it."""
    began_s = time.thread_time()
    for start in ("ALTER TABLE t ", "'", '"', ""):
        text = start + part * (400_000 // len(part))
        parse_statement(text, "d")
        moves_rows("ALTER TABLE", text)
        empties("CREATE TABLE", text)
    assert time.thread_time() - began_s < 10


def test_what_moves_rows() -> None:
    """Partitions and tablespaces that come and go; not a column with such a name."""
    moving = ("DISCARD TABLESPACE", "IMPORT PARTITION p TABLESPACE", "DISCARD PARTITION ALL TABLESPACE")
    assert all(moves_rows("ALTER TABLE", f"ALTER TABLE t {one}") for one in moving)
    assert not moves_rows("ALTER TABLE", "ALTER TABLE t DROP COLUMN import PARTITION BY HASH(id)")


@pytest.mark.parametrize(
    ("statement", "sort", "kind", "names"),
    [
        ("BEGIN", Sort.BEGIN, "", ()),
        ("COMMIT", Sort.COMMIT, "", ()),
        ("ROLLBACK TO `a`", Sort.ROLLBACK, "", ()),
        ("ALTER TABLE t ADD a INT", Sort.SCHEMA, "ALTER TABLE", ("d.t",)),
        ("alter online ignore table if exists `a.b`.`c``d` add x int", Sort.SCHEMA, "ALTER TABLE", ("a.b.c`d",)),
        ("/* x */ CREATE OR REPLACE TABLE IF NOT EXISTS t(a int)", Sort.SCHEMA, "CREATE TABLE", ("d.t",)),
        ("DROP TABLE IF EXISTS `t`,o.u /* generated by server */", Sort.SCHEMA, "DROP TABLE", ("d.t", "o.u")),
        ("TRUNCATE t", Sort.SCHEMA, "TRUNCATE TABLE", ("d.t",)),
        ("truncate table o.t", Sort.SCHEMA, "TRUNCATE TABLE", ("o.t",)),
        ("RENAME TABLE a TO b, o.c TO d", Sort.SCHEMA, "RENAME TABLE", ("d.a", "d.b", "o.c", "d.d")),
        ("CREATE UNIQUE INDEX i ON t (a)", Sort.SCHEMA, "CREATE INDEX", ("d.t",)),
        ("DROP SCHEMA o", Sort.SCHEMA, "DROP DATABASE", ("o",)),
        ("DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `t`", Sort.OTHER, "DROP", ()),
        ("CREATE TEMPORARY TABLE t (a int)", Sort.OTHER, "CREATE", ()),
        ("CREATE USER a", Sort.OTHER, "CREATE", ()),
        ("/* a */ CREATE OR REPLACE TABLE t (a INT)", Sort.SCHEMA, "CREATE TABLE", ("d.t",)),
        ("TRUNCATE /*c*/ TABLE t", Sort.SCHEMA, "TRUNCATE TABLE", ("d.t",)),
        ("TRUNCATE`t`", Sort.SCHEMA, "TRUNCATE TABLE", ("d.t",)),
        ("DROP TABLE`a,b`,`o` . `u`", Sort.SCHEMA, "DROP TABLE", ("d.a,b", "o.u")),
        ('RENAME TABLE "a TO b"TO`c`', Sort.SCHEMA, "RENAME TABLE", ("d.a TO b", "d.c")),
        ("ALTER TABLE t_new RENAME TO t", Sort.SCHEMA, "ALTER TABLE", ("d.t_new", "d.t")),
        ("ALTER TABLE n RENAME AS o.t", Sort.SCHEMA, "ALTER TABLE", ("d.n", "o.t")),
        ("ALTER TABLE n ADD a INT, RENAME=`t`", Sort.SCHEMA, "ALTER TABLE", ("d.n", "d.t")),
        ("ALTER TABLE n RENAME/**/t", Sort.SCHEMA, "ALTER TABLE", ("d.n", "d.t")),
        ("ALTER TABLE n RENAME COLUMN a TO t, RENAME KEY b TO c", Sort.SCHEMA, "ALTER TABLE", ("d.n",)),
        ("ALTER TABLE n COMMENT 'RENAME TO t', ADD `rename to t` INT", Sort.SCHEMA, "ALTER TABLE", ("d.n",)),
        ("ALTER TABLE n EXCHANGE PARTITION p WITH TABLE o.t", Sort.SCHEMA, "ALTER TABLE", ("d.n", "o.t")),
        ("ALTER TABLE n CONVERT TABLE t TO PARTITION p", Sort.SCHEMA, "ALTER TABLE", ("d.n", "d.t")),
        ("ALTER TABLE n CONVERT PARTITION p TO TABLE t", Sort.SCHEMA, "ALTER TABLE", ("d.n", "d.t")),
        ("/*!50100 ALTER TABLE t */ ADD a INT", Sort.SCHEMA, "ALTER TABLE", ("d.t",)),
        ("SET STATEMENT lock_wait_timeout=1 FOR TRUNCATE t", Sort.SCHEMA, "TRUNCATE TABLE", ("d.t",)),
        ("-- x\n# y\ninsert into t values (1)", Sort.ROWS, "INSERT", ()),
        ("", Sort.OTHER, "", ()),
    ],
)
def test_statements(statement: str, sort: Sort, kind: str, names: tuple[str, ...]) -> None:
    """What they are, and the tables that they name."""
    assert parse_statement(statement, "d") == (sort, kind, names)


@given(some.text())
def test_any_text_is_some_statement(text: str) -> None:
    """A statement is whatever a client sent."""
    assert parse_statement(text, "d").sort in Sort


def test_filters() -> None:
    """Patterns of tables, exact columns; never the server's own databases."""
    chosen = TableFilter(["shop.*"], ["shop.tmp_*"], ["shop.orders.note"])
    assert [chosen.has(name) for name in ("shop.orders", "shop.tmp_1", "other.orders")] == [True, False, False]
    assert (chosen.may_mean("shop"), chosen.may_mean("other")) == (True, False)
    names = ("shop.orders", "SHOP.Orders", "shop.tmp_1", "other.orders", "Shop", "MySQL", "MySQL.user")
    assert [chosen.may_mean(name) for name in names] == [True, True, False, False, True, False, False]
    assert (chosen.left_out("shop.orders"), chosen.left_out("shop.x")) == (frozenset({"note"}), frozenset())
    assert TableFilter([], [], []).has("any.table")
    assert not TableFilter([], [], []).has("mysql.user")
    wrongs: list[tuple[list[str], list[str], list[str]]]
    wrongs = [([], ["tmp"], []), (["orders"], [], []), ([], [], ["orders.note"])]
    for wrong in wrongs:
        with pytest.raises(BinlogError, match=r"expected database\.table"):
            TableFilter(*wrong)


def test_statements_of_other_tables_that_name_a_chosen_one() -> None:
    """They are passed on, by that name; in another case too, since some servers do not tell cases apart."""
    config = SourceConfig(host="db", port=3306, user="u", password="")
    stream = BinlogStream(config, BinlogPlace("bin.000001", 4), TableFilter(["shop.orders"], [], []), {})

    def names(statement: str) -> list[tuple[str, ...]]:
        event = SimpleNamespace(schema=b"shop", query=statement)
        found = stream._statement(event, BinlogPlace("bin.000001", 4), BinlogPlace("bin.000001", 9), 0)
        return [item.names for item in found if isinstance(item, SchemaChange)]

    assert names("ALTER TABLE orders_new RENAME TO orders") == [("shop.orders",)]
    assert names("TRUNCATE Orders") == [("shop.Orders",)]
    assert names("TRUNCATE lines") == []


def test_urls_of_sources() -> None:
    """A server, a user; nothing else."""
    found = source_of("mysql://re%40der@db:3307", "secret")
    assert (found.host, found.port, found.user, found.shown) == ("db", 3307, "re@der", "mysql://re@der@db:3307")
    assert source_of("mariadb://a@[::1]", "").port == 3306
    for wrong in (
        "db:3306",
        "mysql://db",
        "postgresql://a@db",
        "mysql://a:b@db",
        "mysql://a@db/shop",
        "mysql://a@db:x",
    ):
        with pytest.raises(BinlogError, match="expected mysql://user@host:port"):
            source_of(wrong, "")
