"""The statements that compare a source table, and the changes since a place, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mqtrail.binlog import BinlogSource, SourceConfig, SourceTable, TextForm, changes_since, order_text
from mqtrail.binlog.model import BinlogItem, BinlogPlace, NothingNew, RowChange, SchemaChange, TransactionBegin
from mqtrail.binlog.source import ReadColumn, ReadTable
from mqtrail.binlog.stream import BinlogStream

CONFIG = SourceConfig(host="db", port=3306, user="u", password="p")


class Asked:
    """A snapshot that notes what it is asked."""

    place = BinlogPlace("bin.000001", 4)

    def __init__(self, answer: list[tuple[Any, ...]]) -> None:
        self.answer = answer
        self.statements: list[str] = []

    def ask(self, statement: str, doing: str) -> list[tuple[Any, ...]]:
        self.statements.append(statement)
        return self.answer

    def chunks(self, table: ReadTable, where: str = "") -> Iterator[list[dict[str, Any]]]:
        self.statements.append(where)
        yield [{"id": 1}]


def asked(answer: list[tuple[Any, ...]], **kinds: str) -> tuple[Asked, SourceTable]:
    snapshot: Any = Asked(answer)
    columns = tuple(ReadColumn(name, kind) for name, kind in kinds.items())
    return snapshot, SourceTable(snapshot, ReadTable("shop", "or`ders", columns, (columns[0].name,)))


def test_statements() -> None:
    """Names are quoted, and columns without an exact text have no checksum."""
    snapshot, table = asked([("2", "77")], id="int", f="float", at="timestamp", b="blob", e="enum")
    assert (table.has_ranges, table.inexact) == (True, ("f",))
    assert table.range_checksum(-5, 5) == (2, 77)
    assert list(table.range_rows(0, 9)) == [{"id": 1}]
    (checksum, where) = snapshot.statements
    assert checksum.endswith("FROM `shop`.`or``ders` WHERE `id` >= -5 AND `id` < 5")
    assert (
        "MD5(CONCAT(IFNULL(`id` + 0, 'N'), '|', IFNULL(`at`, 'N'), '|', "
        "IFNULL(REPLACE(TO_BASE64(`b`), '\\n', ''), 'N'), '|', "
        "IFNULL(CONCAT(CHAR_LENGTH(`e`), ':', CONVERT(`e` USING utf8mb4)), 'N')))"
    ) in checksum
    assert [table.form(name) for name in ("id", "at", "e")] == [TextForm.BAR, TextForm.MOMENT, TextForm.LENGTH]
    assert "`f`" not in checksum
    assert where == "`id` >= 0 AND `id` < 9"
    snapshot, table = asked([("3", "2", "77")], k="varchar", d="date")
    assert table.bucket_checksums(8) == {3: (2, 77)}
    assert list(table.bucket_rows([1, 3], 8)) == [{"id": 1}]
    assert snapshot.statements[1].endswith("MOD 8 IN (1, 3)")
    assert (table.has_ranges, table.key_text({"k": "a b"})) == (False, "shop.or`ders:a%20b")
    assert asked([("3", "-1", "9")], id="int")[1].bounds() == (3, -1, 9)
    assert asked([("0", None, None)], id="int")[1].bounds() == (0, 0, 0)


def row(at: int, before: int | None, after: int | None) -> RowChange:
    rows = [None if one is None else {"id": one} for one in (before, after)]
    return RowChange("shop", "orders", ("id",), rows[0], rows[1], BinlogPlace("bin.000001", at), 0, at)


STATEMENT = SchemaChange("ALTER TABLE", ("shop.orders",), "ALTER", "shop", BinlogPlace("bin.000001", 40), 40)
ITEMS: list[BinlogItem] = [
    TransactionBegin(BinlogPlace("bin.000001", 10), "0-1-1", 10),
    row(20, None, 1),
    row(30, 1, 2),
    STATEMENT,
    row(50, 5, None),
    row(60, 6, None),
    NothingNew(BinlogPlace("bin.000001", 70)),
    row(80, 8, None),
]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[BinlogPlace]:
    """Where streams of ITEMS were begun."""
    begun: list[BinlogPlace] = []

    def items(stream: BinlogStream) -> Iterator[BinlogItem]:
        begun.append(stream._start)
        yield from ITEMS

    monkeypatch.setattr(BinlogSource, "charsets", lambda source: {})
    monkeypatch.setattr(BinlogStream, "items", items)
    return begun


START, END = BinlogPlace("bin.000001", 4), BinlogPlace("bin.000001", 60)


def test_changes_since_a_place(starts: list[BinlogPlace]) -> None:
    """From that very place on, up to another place, the server's end, or a bound."""
    found = changes_since(CONFIG, "shop.orders", START, END, 10)
    assert {key.rpartition(":")[2]: time_ms for key, (_, time_ms) in found.keys.items()} == {"1": 20, "2": 30, "5": 50}
    assert (found.statement, found.problem) == (order_text(STATEMENT.place, 0), "")
    assert starts == [START]
    assert len(changes_since(CONFIG, "shop.orders", START, BinlogPlace("bin.000002", 4), 10).keys) == 4
    assert "more than 1 changes" in changes_since(CONFIG, "shop.orders", START, END, 1).problem
    assert changes_since(CONFIG, "shop.orders", END, END, 10).keys == {}
    assert len(starts) == 3


def test_changes_after_an_order(starts: list[BinlogPlace]) -> None:
    """The rest of a transaction, of an event, and of a change of a key, which is two messages."""

    def after(at: int, part: int = 0) -> set[str]:
        order = order_text(BinlogPlace("bin.000001", at), 0, part)
        return {key[-1] for key in changes_since(CONFIG, "shop.orders", START, END, 10, order).keys}

    assert after(20) == {"1", "2", "5"}, "the key 1 is changed once more"
    assert after(30) == {"2", "5"}, "its delete is sent, the insert of 2 is not"
    assert after(30, 1) == {"5"}
    assert changes_since(CONFIG, "shop.orders", START, END, 10, order_text(STATEMENT.place, 0)).statement == ""


def test_an_update_is_one_change(monkeypatch: pytest.MonkeyPatch, starts: list[BinlogPlace]) -> None:
    """Of a row that keeps its key: nothing of it is left once it is sent."""
    monkeypatch.setattr(BinlogStream, "items", lambda stream: iter([row(20, 1, 1)]))
    assert changes_since(CONFIG, "shop.orders", START, END, 10, order_text(BinlogPlace("bin.000001", 20), 0)).keys == {}
    assert len(changes_since(CONFIG, "shop.orders", START, END, 1).keys) == 1
