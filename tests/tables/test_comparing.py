"""A table beside a source that is a list of rows: which rows differ, by ranges, buckets and one by one."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from mqtrail.binlog import BinlogPlace, BinlogState, ChangesSince, SourceConfig, TextForm, order_text
from mqtrail.binlog.source import ReadColumn, ReadTable
from mqtrail.binlog.state import save_state
from mqtrail.tables import CompareConfig, DeltaTarget, RowFault, TableError
from mqtrail.tables.agreement import _check_ahead, _state
from mqtrail.tables.comparing import RowComparison
from mqtrail.tables.differences import FoundRow, hint_of
from mqtrail.tables.lateness import LateRows, _Newest, _ReadSoFar
from mqtrail.tables.model import TableUnreadable
from mqtrail.wire import Message, MessageQueue

from .making import QUEUE, SOURCE, TOPIC, batch, changed, merge, schema

Rows = list[dict[str, Any]]


class ListedSource:
    """Rows as a source table. Its checksums are those of binlog/compared.py, by a third engine."""

    def __init__(self, rows: Rows, kinds: dict[str, str], key: str = "id") -> None:
        self.table = ReadTable("shop", "orders", tuple(ReadColumn(*one) for one in kinds.items()), (key,))
        self.has_ranges = kinds[key] == "int"
        self.inexact = tuple(name for name, kind in kinds.items() if kind == "double")
        self._listed = sorted(rows, key=lambda row: row[key])
        self._key = key

    def key_text(self, row: dict[str, Any]) -> str:
        return f"shop.orders:{row[self._key]}"

    def bounds(self) -> tuple[int, int, int]:
        keys = [row[self._key] for row in self._listed] or [0]
        return len(self._listed), keys[0], keys[-1]

    def count(self) -> int:
        return len(self._listed)

    def range_checksum(self, first: int, end: int) -> tuple[int, int]:
        return self._checksum(list(self.range_rows(first, end)))

    def range_rows(self, first: int, end: int) -> Generator[dict[str, Any]]:
        yield from (row for row in self._listed if first <= row[self._key] < end)

    def bucket_checksums(self, buckets: int) -> dict[int, tuple[int, int]]:
        found = {one: list(self.bucket_rows([one], buckets)) for one in range(buckets)}
        return {one: self._checksum(rows) for one, rows in found.items() if rows}

    def bucket_rows(self, chosen: Sequence[int], buckets: int) -> Generator[dict[str, Any]]:
        for row in self._listed:
            if int(hashlib.md5(self._text(row, [self._key])).hexdigest()[:8], 16) % buckets in chosen:
                yield row

    def _checksum(self, rows: Rows) -> tuple[int, int]:
        names = [column.name for column in self.table.columns if column.kind != "double"]
        numbers = (int(hashlib.md5(self._text(row, names)).hexdigest()[:16], 16) for row in rows)
        return len(rows), reduce(int.__xor__, numbers, 0)

    def form(self, name: str) -> TextForm:
        kinds = {column.name: column.kind for column in self.table.columns}
        return FORMS.get(kinds[name], TextForm.BAR)

    def _text(self, row: dict[str, Any], names: Sequence[str]) -> bytes:
        parts = []
        for name in names:
            form, value = self.form(name), row[name]
            text = ",".join(value) if isinstance(value, list) else str(value)
            if form is TextForm.LENGTH:
                parts.append("N" if value is None else f"{len(text)}:{text}")
            else:
                text = text.replace("T", " ").rstrip("Z") if form is TextForm.MOMENT else text
                parts.append("N|" if value is None else f"{text}|")
        return "".join(parts).encode()


FORMS = {"varchar": TextForm.LENGTH, "set": TextForm.LENGTH, "timestamp": TextForm.MOMENT}


@pytest.fixture
def target(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget.create(tmp_path / "orders", TOPIC, SOURCE)


def compared(target: DeltaTarget, source: Any) -> RowComparison:
    with closing(target.connected()) as connection:
        found = RowComparison(source, connection, target)
        found.run(lambda text: None)
    return found


def fill(target: DeltaTarget, rows: Rows) -> None:
    merge(target, *(changed(at, None, row) for at, row in enumerate(rows, 1)))


KINDS = {"id": "int", "v": "varchar", "big": "bigint", "s": "set", "at": "timestamp"}
ROWS: Rows = [
    {"id": -3, "v": "é€😀", "big": 2**64 - 1, "s": [], "at": "2026-01-01T12:00:00.50Z"},
    {"id": 0, "v": "", "big": None, "s": ["a", "b"], "at": None},
    {"id": 2**40, "v": None, "big": 5, "s": None, "at": "0000-00-00T00:00:00Z"},
]


@pytest.mark.parametrize("key", ["id", "v"])
def test_equal_rows_have_equal_checksums(target: DeltaTarget, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every type, by ranges and by buckets: no row is read."""
    monkeypatch.setattr("mqtrail.tables.comparing.PART_ROWS", 1)
    rows = [row | {"v": row["v"] or "x"} for row in ROWS]
    fill(target, rows)
    source = ListedSource(rows, KINDS, "id")
    if key == "v":
        source.has_ranges = False
    found = compared(target, source)
    assert (found.found, found.parts, found.parts_different) == ([], 3, 0)
    assert (found.source_rows, found.table_rows) == (3, 3)


def test_any_differences_are_found(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random rows on both sides, in parts of different sizes."""
    chance = random.Random(5)
    rows: Rows = [{"id": number, "n": chance.randrange(3)} for number in chance.sample(range(-99, 99), 60)]
    fill(target, rows)
    theirs = {row["id"]: row for row in rows}
    for key in chance.sample(sorted(theirs), 5):
        del theirs[key]
    for key in chance.sample(sorted(theirs), 5):
        theirs[key] = {"id": key, "n": 7}
    theirs |= {key: {"id": key, "n": 0} for key in (-200, 200)}
    own = {row["id"]: row for row in rows}
    expected = {f"shop.orders:{key}" for key in own.keys() | theirs.keys() if own.get(key) != theirs.get(key)}
    for size, is_range in ((1, True), (7, True), (1_000, True), (1, False), (7, False)):
        monkeypatch.setattr("mqtrail.tables.comparing.PART_ROWS", size)
        source = ListedSource(list(theirs.values()), {"id": "int", "n": "int"})
        source.has_ranges = is_range
        found = compared(target, source)
        assert {row.key for row in found.found} == expected
        assert all(row.columns.get("n", (7,))[0] == 7 for row in found.found)


def test_empty_sides(target: DeltaTarget) -> None:
    """No row on one side, or on both."""
    assert compared(target, ListedSource([], {"id": "int"})).found == []
    assert [row.in_table for row in compared(target, ListedSource([{"id": 5}], {"id": "int"})).found] == [False]
    fill(target, [{"id": 5}])
    assert [row.in_source for row in compared(target, ListedSource([], {"id": "int"})).found] == [False]


def test_fractions_are_compared_row_by_row(target: DeltaTarget) -> None:
    """No checksum has them; a column that the table lacks is NULL in it. Both are noted."""
    fill(target, [{"id": 1, "f": 0.5}, {"id": 2, "f": 0.25}])
    kinds = {"id": "int", "f": "double", "later": "int"}
    source = ListedSource([{"id": 1, "f": 0.5, "later": None}, {"id": 2, "f": 0.75, "later": 3}], kinds)
    found = compared(target, source)
    assert [row.columns for row in found.found] == [{"f": (0.75, 0.25), "later": (3, None)}]
    assert len(found.notes) == 2


def test_a_type_that_changed_since(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are compared as checksums are: 5 and '5' are the same, whatever else is in their part."""
    fill(target, [{"id": 1, "v": 5, "s": ["a", "b"]}, {"id": 2, "v": 6, "s": []}])
    kinds = {"id": "int", "v": "varchar", "s": "varchar"}
    same: Rows = [{"id": 1, "v": "5", "s": "a,b"}, {"id": 2, "v": "6", "s": ""}]
    assert compared(target, ListedSource(same, kinds)).found == []
    other = [same[0], same[1] | {"v": "7"}]
    assert [row.key for row in compared(target, ListedSource(other, kinds)).found] == ["shop.orders:2"]


@pytest.mark.parametrize("is_range", [True, False])
def test_columns_with_the_names_of_parts(target: DeltaTarget, is_range: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of the source hides no name of the comparison."""
    monkeypatch.setattr("mqtrail.tables.comparing.PART_ROWS", 1)
    rows: Rows = [{"id": number, "part": 7, "bucket": 7} for number in range(4)]
    fill(target, rows)
    source = ListedSource(rows, {"id": "int", "part": "int", "bucket": "int"})
    source.has_ranges = is_range
    found = compared(target, source)
    assert (found.found, found.parts_different) == ([], 0)


def test_ranges_of_a_key_with_few_first_values(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with one value of a key's first column are in memory at once: if there are many, buckets are compared."""
    fill(target, [{"id": number} for number in range(8)])
    source: Any = ListedSource([{"id": number} for number in range(8)], {"id": "int"})
    with closing(target.connected()) as connection:
        comparing = RowComparison(source, connection, target)
        comparing._key = ("id", "more")
        assert comparing._has_small_groups()
        monkeypatch.setattr("mqtrail.tables.comparing.GROUP_MAX", 0)
        assert not comparing._has_small_groups()


def test_a_file_that_vanishes_meanwhile(target: DeltaTarget) -> None:
    """The error is one of the table, in words: not a traceback, whose exit code would say that rows differ."""
    fill(target, [{"id": 1}])
    with closing(target.connected()) as connection:
        for file in Path(target.path).rglob("*.parquet"):
            file.unlink()
        source: Any = ListedSource([{"id": 2}], {"id": "int"})
        with pytest.raises(TableUnreadable, match="found data that cannot be read"):
            RowComparison(source, connection, target).run(lambda text: None)


def test_the_number_of_differences_is_bounded(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison ends there, and says so."""
    monkeypatch.setattr("mqtrail.tables.comparing.DIFFERENCES_MAX", 2)
    found = compared(target, ListedSource([{"id": number} for number in range(9)], {"id": "int"}))
    assert (len(found.found), found.is_cut) == (2, True)


def test_sides_that_cannot_be_compared(target: DeltaTarget) -> None:
    """Another key, and a table that is ahead of its source."""
    fill(target, [{"id": 1, "n": 1}])
    with pytest.raises(TableError, match=r"found the primary key \(n\) in the source, expected \(id\)"):
        compared(target, ListedSource([], {"n": "int"}, "n"))
    _check_ahead(target, BinlogPlace("bin.000001", 1))
    with pytest.raises(TableError, match="the table is ahead of this server"):
        _check_ahead(target, BinlogPlace("bin.000001", 0))


def config_of(target: DeltaTarget) -> CompareConfig:
    return CompareConfig(table=target.path, source=SourceConfig(host="h", port=1, user="u", password="p"), namesrv="n")


def sent_to(at: int, **further: Any) -> BinlogState:
    place = f"bin.000001:{at}"
    wanted: dict[str, Any] = {"is_snapshot_done": True, "place": place} | further
    return BinlogState(source="7 uid", wish={"topic": TOPIC}, queues=[], **wanted)


def at(position: int, op: str = "update") -> _Newest:
    place = BinlogPlace("bin.000001", position)
    return _Newest(order=order_text(place, 0), position=str(place), op=op)


def queues(*newest: _Newest | None) -> dict[MessageQueue, _Newest | None]:
    return {MessageQueue(TOPIC, "broker-a", number): one for number, one in enumerate(newest)}


Asked = tuple[BinlogPlace, str]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Where the binlog was read from, and after which order. It has a change of the key 1 at 50, and of 2 at 70."""
    found: list[Asked] = []

    def changes_since(
        config: SourceConfig, name: str, start: BinlogPlace, until: BinlogPlace, count_max: int, after: str
    ) -> ChangesSince:
        found.append((start, after))
        changes = {"shop.orders:1": at(50).order, "shop.orders:2": at(70).order}
        return ChangesSince({key: (order, 1) for key, order in changes.items() if order > after})

    monkeypatch.setattr("mqtrail.tables.lateness.changes_since", changes_since)
    return found


DIFFERING = [FoundRow(f"shop.orders:{key}", {}, True, False) for key in (1, 2, 3)]


def sorts(
    target: DeltaTarget, state: BinlogState | None, *newest: _Newest | None, read: _ReadSoFar | None = None
) -> tuple[str, str]:
    """How the rows 1, 2 and 3 of the source differ, and the notes."""
    late = LateRows(config_of(target), target, BinlogPlace("bin.000001", 90), state)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LateRows, "_read", lambda late: read or _ReadSoFar(queues=queues(*newest)))
        found = late.sorts(DIFFERING)
    return " ".join(found.values()), "; ".join(late.notes)


def test_no_row_is_missing_before_the_snapshot_is_complete(target: DeltaTarget, asked: list[Asked]) -> None:
    """By the state; without one as long as the topic ends with it."""
    unknown = "unknown unknown unknown"
    found, note = sorts(target, sent_to(40, is_snapshot_done=False, tables={"shop.other": "bin.000001:40"}))
    assert (found, note) == (unknown, "the snapshot of shop.orders is not complete: `mqtrail binlog run` sends it")
    found, note = sorts(target, sent_to(0, is_snapshot_done=False, place=""))
    assert found == unknown
    found, note = sorts(target, None, at(40, "snapshot"), at(40, "snapshot"))
    assert (found, note) == (
        unknown,
        "the topic cdc ends with rows of the snapshot, so it is not known what was sent: pass --state",
    )
    assert asked == []
    found, _ = sorts(target, sent_to(40, is_snapshot_done=False, tables={SOURCE: "bin.000001:40"}))
    assert found == "late late missing"
    found, _ = sorts(target, None, at(40, "snapshot"), at(45))
    assert found == "late late missing"
    assert asked == [(BinlogPlace("bin.000001", 40), ""), (BinlogPlace("bin.000001", 40), at(40).order)]


def test_what_is_sent_by_the_state(target: DeltaTarget, asked: list[Asked]) -> None:
    """All before its place, and what queues have says no more."""
    assert sorts(target, sent_to(40), at(80), at(80)) == ("late late missing", "")
    assert sorts(target, sent_to(40), None) == ("late late missing", "")
    assert asked == [(BinlogPlace("bin.000001", 40), "")] * 2


def test_what_is_sent_by_the_queues(target: DeltaTarget, asked: list[Asked]) -> None:
    """All up to the newest change of the queue that is behind the others. In between nobody knows."""
    found, note = sorts(target, None, at(60), at(45))
    assert (found, note) == (
        "unknown late missing",
        "changes of 1 rows may be lost or still on their way to the topic: pass --state, which says what was sent",
    )
    assert sorts(target, None, at(60), at(50)) == ("missing late missing", "")
    found, note = sorts(target, None, at(60), None)
    assert (found, note) == (
        "unknown unknown unknown",
        "1 of 2 queues of cdc end without a change, so it is not known what was sent: pass --state",
    )
    start = BinlogPlace("bin.000001", 4)
    assert asked == [(start, at(45).order), (start, at(50).order)], "from before the transaction of that change on"


def test_messages_of_the_topic(target: DeltaTarget) -> None:
    """The newest of each queue; changes that the table has not read; statements of the table or its database."""
    late = LateRows(config_of(target), target, BinlogPlace("bin.000001", 90), None)

    def read(*messages: Message, is_new: bool = True) -> _ReadSoFar:
        made = _ReadSoFar(queues=queues(None))
        for one in batch(messages).to_pylist():
            late._note(one, QUEUE, made, is_new=is_new)
        return made

    update = changed(50, {"id": 1}, {"id": 1})
    found = read(*update)
    assert (list(found.pending.keys), found.queues) == (["shop.orders:1"], {QUEUE: at(50)})
    assert read(*update, is_new=False).pending.keys == {}
    assert read(*schema(60, "DROP DATABASE", "DROP DATABASE shop", ("shop",))).pending.statement == at(60).order
    assert read(*schema(60, "DROP TABLE", "DROP TABLE other", ("shop.other",))).pending.statement == ""
    body = json.dumps(json.loads(update[0].body) | {"position": "elsewhere"}).encode()
    found = read(replace(update[0], body=body), replace(update[0], body=b"other"))
    assert (found.pending.keys, found.queues) == ({}, {QUEUE: None}), "of another program"


def test_the_state_is_that_of_the_run(tmp_path: Path) -> None:
    """Of another server, or another topic: refused."""
    path = tmp_path / "state.json"
    with pytest.raises(TableError, match="found no state"):
        _state(path, "7 uid", TOPIC)
    save_state(path, sent_to(40))
    assert _state(path, "7 uid", TOPIC) == sent_to(40)
    for identity, topic in (("8 uid", TOPIC), ("7 uid", "elsewhere")):
        with pytest.raises(
            TableError, match=f"from the server 7 uid to the topic cdc, expected one from {identity} to"
        ):
            _state(path, identity, topic)


@pytest.mark.parametrize(
    ("pending", "unsent", "sort"),
    [
        (ChangesSince(), ChangesSince(), RowFault.DIFFERENT),
        (ChangesSince({"shop.orders:1": ("2", 1)}), ChangesSince(), RowFault.LATE),
        (ChangesSince(), ChangesSince({"shop.orders:1": ("2", 1)}), RowFault.LATE),
        (ChangesSince({"shop.orders:2": ("2", 1)}), ChangesSince(), RowFault.DIFFERENT),
        (ChangesSince(statement="2"), ChangesSince(), RowFault.LATE),
        (ChangesSince(problem="away"), ChangesSince(), RowFault.UNKNOWN),
        (ChangesSince(), ChangesSince(problem="purged"), RowFault.UNKNOWN),
    ],
)
def test_why_a_row_differs(
    target: DeltaTarget,
    pending: ChangesSince,
    unsent: ChangesSince,
    sort: RowFault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change that the table has not read makes it late; if that cannot be known, it is unknown."""
    fill(target, [{"id": 1, "n": 1}])
    monkeypatch.setattr(LateRows, "_read", lambda late: _ReadSoFar(pending))
    monkeypatch.setattr("mqtrail.tables.lateness.changes_since", lambda *further: unsent)
    found = compared(target, ListedSource([{"id": 1, "n": 2}], {"id": "int", "n": "int"})).found
    late = LateRows(config_of(target), target, BinlogPlace("bin.000001", 9), sent_to(5))
    assert late.sorts(found) == {"shop.orders:1": sort}
    assert late.notes == [one for one in (pending.problem, unsent.problem) if one]
    assert (late.lag_ms > 0) == (sort is RowFault.LATE and not pending.statement)


@pytest.mark.parametrize(
    ("expected", "found", "hint"),
    [
        ("abc", "ab", "cut after 2 of 3 characters"),
        ("abc", "", ""),
        ("ab", "abc", ""),
        ("2026-01-01T12:00:00Z", "2026-01-01T17:30:00Z", "+05:30, as of another time zone"),
        ("2026-01-01T12:00:00.5", "2026-01-01T12:00:01.5", ""),
        ("2026-01-01", "2026-03-01", ""),
        ("2026-01-01T12:00:00Z", "2026-01-01T13:00:00", "+01:00, as of another time zone"),
        ("2026-01-01T12:00:00Z", "2026-01-01T12:00:00", ""),
        ("2026-01-01T12:00:00+02:00", "2026-01-01T12:00:00Z", ""),
        (1, 2, ""),
    ],
)
def test_hints(expected: Any, found: Any, hint: str) -> None:
    """What may have happened to a value."""
    assert hint_of(expected, found) == hint
