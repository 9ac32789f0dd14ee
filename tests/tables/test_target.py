"""The Delta table: merges, offsets, types, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from mqtrail.tables import DeltaTarget, TableError, TableUnreadable
from mqtrail.tables.model import FILES_MAX
from mqtrail.wire import MessageQueue

from .making import QUEUE, SOURCE, TOPIC, changed, digested, merge, rows, schema


@pytest.fixture
def target(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget.create(tmp_path / "orders", TOPIC, SOURCE)


def test_rows_and_offsets_are_one_commit(target: DeltaTarget) -> None:
    """Older changes that come later, or again, change nothing; the offset goes on."""
    merge(target, changed(1, None, {"id": 1, "n": 1}), changed(2, None, {"id": 2, "n": 2}), offset=2)
    merge(target, changed(4, {"id": 1, "n": 1}, {"id": 1, "n": 4}), changed(5, {"id": 2, "n": 2}, None), offset=4)
    merge(target, changed(3, {"id": 1, "n": 1}, {"id": 1, "n": 3}), changed(2, None, {"id": 2, "n": 2}), offset=6)
    version = target.version
    merge(target, offset=9)
    again = DeltaTarget.open(target.path)
    assert again is not None
    assert rows(again) == [(1, 4)]
    assert (again.offset(QUEUE), again.read_to()[1], again.key_columns) == (9, "bin.000001:5", ("id",))
    assert again.version == version + 1, "offsets without rows are a commit too"
    assert again.rows("SELECT _mq_deleted, n FROM t WHERE id = 2") == [(True, None)]


def test_notes_are_those_of_the_version(target: DeltaTarget) -> None:
    """A reader says what its version has, whatever is committed meanwhile; commits of other programs have no notes."""
    merge(target, changed(1, None, {"id": 1, "n": 1}), offset=1)
    reader = DeltaTarget.open(target.path)
    assert reader is not None
    old = DeltaTable(str(target.path), version=target.version)
    merge(target, changed(2, None, {"id": 2, "n": 2}), offset=2)
    for one in (reader, DeltaTarget(target.path, old)):
        assert (one.read_to()[1], set(one.queues), rows(one)) == ("bin.000001:1", {QUEUE}, [(1, 1)])
    other = MessageQueue(TOPIC, "broker-b", 3)
    target.apply(digested(changed(9, None, {"id": 1, "n": 1}, table="lines")), {other: 1})
    DeltaTable(str(target.path)).optimize.compact()
    again = DeltaTarget.open(target.path)
    assert again is not None
    assert again.version == target.version + 1
    assert (again.read_to()[1], set(again.queues)) == ("bin.000001:9", {QUEUE, other})


def test_a_cleared_table(target: DeltaTarget) -> None:
    """Rows that the batch does not have are deleted as well, and none comes back by a repeat."""
    old = changed(1, None, {"id": 1, "n": 1}), changed(2, None, {"id": 2, "n": 2})
    merge(target, *old)
    merge(target, schema(3, "TRUNCATE TABLE", "TRUNCATE orders"), old[0], changed(4, None, {"id": 3, "n": 3}))
    assert rows(target) == [(3, 3)]
    merge(target, *old)
    assert rows(target) == [(3, 3)]


def test_a_column_with_a_default(target: DeltaTarget) -> None:
    """Rows from before the statement get it, in the batch and in the table; rows after it have their own value."""
    merge(target, changed(1, None, {"id": 1, "n": 1}), changed(2, None, {"id": 2, "n": 2}), offset=2)
    added = schema(
        4, "ALTER TABLE", "ALTER TABLE orders ADD `Größe` INT NOT NULL DEFAULT 5, ADD t TEXT DEFAULT 'it''s'"
    )
    merge(
        target,
        *(
            changed(3, None, {"id": 3, "n": 3}),
            added,
            changed(5, {"id": 2, "n": 2}, {"id": 2, "n": 5, "Größe": 7, "t": None}),
        ),
        *(changed(6, None, {"id": 6, "n": 6, "Größe": 0, "t": ""}), changed(2, None, {"id": 2, "n": 2})),
        offset=6,
    )
    expected = [(1, 5, "it's"), (2, 7, None), (3, 5, "it's"), (6, 0, "")]
    assert rows(target, 'id, "Größe", t') == expected
    merge(target, added, changed(1, None, {"id": 1, "n": 1}), offset=8)  # again, by another queue
    assert rows(target, 'id, "Größe", t') == expected
    assert (target.offset(QUEUE), target.read_to()[1]) == (8, "bin.000001:6")
    merge(target, schema(7, "ALTER TABLE", "ALTER TABLE orders DROP t, DROP `Größe`"))
    merge(
        target, schema(8, "ALTER TABLE", "ALTER TABLE orders ADD `Größe` BIGINT UNSIGNED DEFAULT 18446744073709551615")
    )
    assert rows(target, '"Größe"') == [(Decimal(2**64 - 1),)] * 4


@pytest.mark.parametrize(("gtid", "shown"), [("0-7-3", "0-7-3"), (None, None), ("it's", "it's")])
def test_the_statement_that_cleared_a_row(target: DeltaTarget, gtid: str | None, shown: str | None) -> None:
    """All of `_mq_...` is of that statement, also in rows that the batch does not have."""
    merge(target, changed(1, None, {"id": 1, "n": 1}))
    made = digested(schema(3, "TRUNCATE TABLE", "TRUNCATE orders"))
    assert made.clear is not None
    made.clear = replace(made.clear, gtid=gtid)
    target.apply(made, {QUEUE: 2})
    columns = "_mq_op, _mq_deleted, _mq_order, _mq_position, _mq_gtid, _mq_time_ms, _mq_msg_id"
    order = "0000000001.000000000003.00000000.0"
    assert target.rows(f"SELECT {columns} FROM t") == [
        ("schema", True, order, "bin.000001:3", shown, 3000, made.clear.msg_id)
    ]


def test_texts_never_become_sql_or_another_error(target: DeltaTarget) -> None:
    """Even of a digest that no message can make."""
    merge(target, changed(1, None, {"id": 1, "n": "x"}))
    made = digested(schema(3, "TRUNCATE TABLE", "TRUNCATE orders"))
    assert made.clear is not None
    made.clear = replace(made.clear, order="0' OR '1'='1")
    target.apply(made, {QUEUE: 2})
    assert rows(target) == [(1, "x")], "it is an order below that of the row"
    made = digested(changed(4, None, {"id": 1, "n": "x"}))
    made.rows = {key: replace(row, values={"id": 1, "n": "\ud800"}) for key, row in made.rows.items()}
    with pytest.raises(TableError, match="found a text that cannot be written"):
        target.apply(made, {QUEUE: 3})
    assert target.offset(QUEUE) == 2


def test_columns_are_added_and_widened(target: DeltaTarget) -> None:
    """Each value stays exact; earlier versions can still be read."""
    merge(target, changed(1, None, {"id": 1, "a": None, "Größe": 5}))
    first = target.version
    merge(target, changed(2, None, {"id": 2, "a": "x", "Größe": 0.5, "late": ["s", "t"]}))
    merge(target, changed(3, None, {"id": 2**64 - 1, "a": None, "Größe": 3, "late": None}))
    assert rows(target, 'id, a, "Größe", late') == [
        (1, None, 5.0, None),
        (2, "x", 0.5, ["s", "t"]),
        (Decimal(2**64 - 1), None, 3.0, None),
    ]
    merge(target, changed(4, None, {"id": "four", "a": None}), offset=4)
    assert sorted(row[0] for row in rows(target, "id")) == ["1", str(2**64 - 1), "2", "four"]
    assert target.offset(QUEUE) == 4, "a rewrite keeps it"
    old = DeltaTable(str(target.path), version=first).to_pyarrow_table()
    assert old.column("Größe").to_pylist() == [5]


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (0.5, "x", "found string"),
        ("x", 0.5, "found double"),
        (["a"], 1, "found long"),
        (0.5, 2**53 + 1, "which no double has exactly"),
        (2**53 + 1, 0.5, "since shop.orders has fractions"),
    ],
)
def test_a_type_that_cannot_be_merged_is_refused(target: DeltaTarget, first: Any, second: Any, found: str) -> None:
    """Nothing is committed: the run can be taken up there."""
    merge(target, changed(1, None, {"id": 1, "n": first}), offset=1)
    version = target.version
    with pytest.raises(TableError, match=rf"{found}.*new snapshot"):
        merge(target, changed(2, None, {"id": 2, "n": second}), offset=2)
    again = DeltaTarget.open(target.path)
    assert again is not None
    assert (again.version, again.offset(QUEUE), len(rows(again))) == (version, 1, 1)


def test_a_run_that_ends_in_the_middle_of_a_batch(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the columns were widened, before the merge: the table has the old rows and offset, and takes it again."""
    merge(target, changed(1, None, {"id": 1, "n": 1}), offset=1)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTarget, "_merge", lambda *further: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            merge(target, changed(2, {"id": 1, "n": 1}, {"id": 1, "n": 0.5}), offset=2)
    again = DeltaTarget.open(target.path)
    assert again is not None
    assert (rows(again), again.offset(QUEUE), again.read_to()[1]) == ([(1, 1.0)], 1, "bin.000001:1")
    merge(again, changed(2, {"id": 1, "n": 1}, {"id": 1, "n": 0.5}), offset=2)
    assert (rows(again), again.offset(QUEUE)) == ([(1, 0.5)], 2)


@pytest.mark.parametrize("name", ["_mq_key", "a b", "a.b", 'a"b', ""])
def test_names_of_columns_that_a_table_cannot_have(target: DeltaTarget, name: str) -> None:
    """The error says how to leave the column out."""
    with pytest.raises(TableError, match="--exclude-column"):
        merge(target, changed(1, None, {"id": 1, name: 1}))


def test_folders_that_are_no_such_table(target: DeltaTarget, tmp_path: Path) -> None:
    """Another program's, another topic's, files, and a damaged log."""
    assert DeltaTarget.open(tmp_path / "new") is None
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x").touch()
    with pytest.raises(TableError, match="found files that are not a Delta table"):
        DeltaTarget.open(tmp_path / "files")
    write_deltalake(str(tmp_path / "other"), target.delta.to_pyarrow_table())
    with pytest.raises(TableError, match="of another program"):
        DeltaTarget.open(tmp_path / "other")
    with pytest.raises(TableError, match=r"the table of shop.orders by the topic cdc, expected shop.lines by cdc"):
        target.check(TOPIC, "shop.lines")
    (target.path / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(TableUnreadable, match="found a Delta log that cannot be read"):
        DeltaTarget.open(target.path)


def test_one_writer(target: DeltaTarget) -> None:
    """A second one is refused; without the lock, by its commit, and nothing is merged twice."""
    with DeltaTarget.alone(target.path):
        other_run = DeltaTarget.alone(target.path)
        with pytest.raises(TableError, match="found another run"):
            other_run.__enter__()
    other = DeltaTarget.open(target.path)
    assert other is not None
    merge(target, changed(1, None, {"id": 1, "n": 1}), offset=1)
    with pytest.raises(TableError, match="found another writer"):
        merge(other, changed(1, None, {"id": 1, "n": 1}), offset=1)
    assert rows(target) == [(1, 1)]


def test_many_small_files_become_one(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the last commit still says how far the topic was read."""
    monkeypatch.setattr("mqtrail.tables.target.FILES_MAX", 3)
    assert FILES_MAX > 3
    for at in range(1, 6):
        merge(target, changed(at, None, {"id": at, "n": at}), offset=at)
    assert len(target.delta.file_uris()) <= 3
    assert len(rows(target)) == 5
    assert target.read_to()[1] == "bin.000001:5"
    (last,) = target.delta.history(1)
    assert json.loads(json.dumps(last))["mqtrail.binlog.position"] == "bin.000001:5"
