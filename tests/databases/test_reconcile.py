"""From a MariaDB by messages to a Delta table, and whether both agree: each fault in between is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.binlog import BinlogConfig, BinlogRun, source_of
from mqtrail.cli.exits import Exit
from mqtrail.client import ProducerConfig, SyncAdmin, SyncProducer
from mqtrail.tables import (
    CompareConfig,
    RowFault,
    TableComparison,
    TableConfig,
    TableError,
    TableJob,
    TableReport,
    compare,
)
from mqtrail.testing import Embedded
from mqtrail.trail import ProofResult
from mqtrail.wire import Message, TopicConfig
from tests.cli.conftest import commands

from .binlog_server import BinlogMariaDB
from .servers import PASSWORD, USER
from .test_binlog import COLUMNS, EVERY_TYPE, FULL

pytestmark = [pytest.mark.databases, pytest.mark.usefixtures("soon")]


Tamper = Callable[[list[Message]], list[Message]]


@dataclass
class Copy:
    """A source table, its topic, and its copy."""

    mariadb: BinlogMariaDB
    broker: Embedded
    binlog: BinlogConfig
    table: TableConfig

    def send(self) -> None:
        """Send what is new in the binlog."""
        asyncio.run(BinlogRun(self.binlog, self.broker.namesrv_address, ProducerConfig()).run())

    def merge(self) -> TableReport:
        with TableJob(self.table) as job:
            return job.once()

    def compare(self, **further: Any) -> TableComparison:
        table, state = self.table.table, self.binlog.state
        config = CompareConfig(table=table, source=self.binlog.source, namesrv=self.table.namesrv, state=state)
        return compare(replace(config, **further))

    def do(self, *statements: str) -> None:
        self.mariadb.do(f"USE {self.table.topic}", *statements)


@pytest.fixture
def copy(request: pytest.FixtureRequest, mariadb: BinlogMariaDB, broker: Embedded, tmp_path: Path) -> Copy:
    """Of the table `orders` in a database named as the test."""
    name: str = request.node.originalname.removeprefix("test_")[:40]
    mariadb.do(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    with SyncAdmin(broker.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig(name, 3, 3)).complete
    source = source_of(f"mysql://{USER}@127.0.0.1:{mariadb.port}", PASSWORD)
    tables = (f"{name}.*",)
    binlog = BinlogConfig(source=source, topic=name, state=tmp_path / "state.json", tables=tables, is_once=True)
    address = broker.namesrv_address
    table = TableConfig(namesrv=address, topic=name, table=tmp_path / "orders", source=f"{name}.orders")
    return Copy(mariadb, broker, binlog, table)


def test_every_type_agrees(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """By checksums alone, except for FLOAT and DOUBLE; from the snapshot and from the binlog; after changes too, and
    with columns whose defaults the rows get without changes."""
    session = "SET sql_mode='', time_zone='+05:00'"
    created = EVERY_TYPE.replace("kinds", "orders")
    copy.do(session, created, f"INSERT INTO orders {COLUMNS} VALUES (18446744073709551615,{FULL})")
    copy.do(session, "INSERT INTO orders (id, e, st, c) VALUES (2, 'wrong', '', '')")
    copy.send()
    copy.do(session, f"INSERT INTO orders {COLUMNS} VALUES (3,{FULL})", "INSERT INTO orders (id) VALUES (4)")
    copy.send()
    copy.merge()
    found = copy.compare()
    assert (found.outcome, found.source_rows, found.table_rows) == (ProofResult.NONE, 4, 4), found
    exact_only = copy.compare(excluded=("f", "db"))
    assert (exact_only.outcome, exact_only.parts_different, exact_only.notes) == (ProofResult.NONE, 0, ())
    copy.do("UPDATE orders SET f=0.25 WHERE id=3", "ALTER TABLE orders ADD COLUMN more INT")
    copy.do("UPDATE orders SET more=7 WHERE id=4", "DELETE FROM orders WHERE id=2")
    copy.do(
        "ALTER TABLE orders ADD price DECIMAL(9,2) NOT NULL DEFAULT 5, ADD (k INT NOT NULL, tx TEXT NOT NULL)",
        "ALTER TABLE orders ADD name VARCHAR(9) DEFAULT 'it''s é', ADD more_at DATETIME DEFAULT '2026-01-02'",
        "ALTER TABLE orders ADD whole BIGINT UNSIGNED DEFAULT '18446744073709551615', ADD yes BOOL DEFAULT TRUE",
        "ALTER TABLE orders ADD fc CHAR(5) DEFAULT 'x ', ADD fl FLOAT DEFAULT 0.1, ADD en ENUM('a','b') DEFAULT 'b'",
        "ALTER TABLE orders ADD dy DATE DEFAULT '2026-01-02', ADD mo DATETIME(3) DEFAULT '2026-01-02 03:04:05.5'",
        "ALTER TABLE orders ADD de DECIMAL(5,1) DEFAULT -1.25",
        "UPDATE orders SET price=9 WHERE id=3",
    )
    copy.send()
    copy.merge()
    assert copy.compare().outcome is ProofResult.NONE


def test_rows_that_differ(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, extra and different rows by ranges and by buckets; late ones in the topic and in the binlog."""
    monkeypatch.setattr("mqtrail.tables.comparing.PART_ROWS", 10)
    rows = ",".join(f"({number},'x{number}')" for number in range(-50, 50))
    copy.do("CREATE TABLE orders (id INT PRIMARY KEY, v VARCHAR(9))", f"INSERT INTO orders VALUES {rows}")
    copy.send()
    copy.merge()
    found = copy.compare()
    assert (found.outcome, found.parts, found.parts_different) == (ProofResult.NONE, 10, 0)
    # Not in the binlog, as a fault of the copy is.
    unlogged = "SET sql_log_bin=0"
    copy.do(unlogged, "INSERT INTO orders VALUES (1000,'new')", "DELETE FROM orders WHERE id IN (-50,7)")
    copy.do(unlogged, "UPDATE orders SET v='other' WHERE id=-3")
    found = copy.compare()
    names = {(row.sort, row.key.rpartition(":")[2]) for row in found.rows}
    expected = {
        (RowFault.MISSING, "1000"),
        (RowFault.EXTRA, "-50"),
        (RowFault.EXTRA, "7"),
        (RowFault.DIFFERENT, "-3"),
    }
    assert (found.outcome, names) == (ProofResult.FOUND, expected)
    different = next(row for row in found.rows if row.sort is RowFault.DIFFERENT)
    assert different.columns == {"v": ("other", "x-3")}
    assert different.msg_id in different.messages
    # Late: one in the topic, one that is not sent.
    copy.do(unlogged, "DELETE FROM orders WHERE id=1000", "UPDATE orders SET v='x-3' WHERE id=-3")
    copy.do(unlogged, "INSERT INTO orders VALUES (-50,'x-50'),(7,'x7')")
    copy.do("UPDATE orders SET v='sent' WHERE id=1")
    copy.send()
    copy.do("UPDATE orders SET v='unsent' WHERE id=2", "INSERT INTO orders VALUES (2000,'unsent')")
    read_to = found.read_to
    found = copy.compare()
    assert found.read_to == read_to, "by the table, which is behind the state"
    assert (found.outcome, found.counts["late"], sum(found.counts.values())) == (ProofResult.CANNOT_TELL, 3, 3)
    assert found.lag_ms > 0
    copy.do(unlogged, "UPDATE orders SET v='wrong' WHERE id=5")
    found = copy.compare()
    assert (found.outcome, found.counts["late"], found.counts["different"]) == (ProofResult.FOUND, 3, 1)
    copy.mariadb.do("FLUSH BINARY LOGS")
    for state in (copy.binlog.state, None):  # without it by what the queues have
        found = copy.compare(state=state)
        assert (found.counts["late"], found.counts["different"]) == (3, 1), "also over the end of a file"


def test_keys_of_text(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """In buckets: keys that a collation holds equal, parts of a key, and a second table of the topic."""
    monkeypatch.setattr("mqtrail.tables.comparing.PART_ROWS", 5)
    created = "CREATE TABLE orders (a VARCHAR(20) COLLATE utf8mb4_bin, b INT, v TEXT, PRIMARY KEY (a, b))"
    rows = ",".join(f"('k {number}é',{number % 3},'v')" for number in range(40))
    copy.do(created, f"INSERT INTO orders VALUES {rows},('K 1é',1,NULL)", "CREATE TABLE other (id INT PRIMARY KEY)")
    copy.do("INSERT INTO other VALUES (1)")
    copy.send()
    report = copy.merge()
    assert (report.changes, report.elsewhere) == (41, 1)
    found = copy.compare()
    assert (found.outcome, found.parts, found.parts_different) == (ProofResult.NONE, 8, 0)
    copy.do("SET sql_log_bin=0", "UPDATE orders SET v='' WHERE a='K 1é'", "DELETE FROM orders WHERE a='k 5é'")
    found = copy.compare()
    assert {(row.sort, row.columns.get("v")) for row in found.rows} == {
        (RowFault.DIFFERENT, ("", None)),
        (RowFault.EXTRA, None),
    }


NOON = "'2026-01-01 12:00:00'"
Add = Callable[[BinlogRun, Any, Any], Awaitable[None]]


def holding(held: list[Message]) -> Add:
    """A `BinlogRun._add` that keeps messages of rows, and lets all else pass."""
    add = BinlogRun._add

    async def kept(run: BinlogRun, lanes: Any, item: Any) -> None:
        if getattr(item, "key", None) is None:
            await add(run, lanes, item)
        else:
            held.append(item.message)

    return kept


def drop(messages: list[Message]) -> list[Message]:
    return [one for one in messages if b'"two"' not in one.body]


def double(messages: list[Message]) -> list[Message]:
    return [*messages, *messages]


def swap(messages: list[Message]) -> list[Message]:
    return messages[::-1]


def swap_rows(messages: list[Message]) -> list[Message]:
    """The row of each of two changes with the place of the other."""
    first, second = (json.loads(one.body) for one in messages)
    first["after"], second["after"] = second["after"], first["after"]
    return [replace(one, body=json.dumps(body).encode()) for one, body in zip(messages, (first, second), strict=True)]


def cut(messages: list[Message]) -> list[Message]:
    return [replace(one, body=one.body.replace(b'"two"', b'"tw"')) for one in messages]


def zone(messages: list[Message]) -> list[Message]:
    return [replace(one, body=one.body.replace(b"T12:00:00Z", b"T07:00:00Z")) for one in messages]


FAULTS: dict[int, tuple[Tamper, dict[str, Any] | None, str]] = {
    1: (list, None, ""),
    2: (double, None, ""),
    3: (swap, None, ""),
    4: (drop, {"v": ("two", "one")}, ""),
    5: (swap_rows, {"v": ("two", "one")}, ""),
    6: (cut, {"v": ("two", "tw")}, "cut after 2 of 3 characters"),
    7: (zone, {"at": ("2026-01-01T12:00:00Z", "2026-01-01T07:00:00Z")}, "-05:00, as of another time zone"),
}
"""Key -> what happens to the messages of its two changes, the columns that then differ, and what may have happened."""


def test_faults(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Between database and topic, one for each key. A double, and a swap of a key's messages, change nothing."""
    values = ",".join(f"({key},'zero',NULL)" for key in FAULTS)
    copy.do("CREATE TABLE orders (id INT PRIMARY KEY, v VARCHAR(9), at TIMESTAMP(0) NULL)")
    copy.do(f"INSERT INTO orders VALUES {values}")
    copy.send()
    copy.merge()
    copy.do("SET time_zone='+00:00'", f"UPDATE orders SET v='one', at={NOON}", "UPDATE orders SET v='two'")
    with monkeypatch.context() as patched:
        held: list[Message] = []
        patched.setattr(BinlogRun, "_add", holding(held))
        copy.send()
    with SyncProducer("g", copy.table.namesrv) as producer:
        for key, (tamper, _, _) in FAULTS.items():
            for message in tamper([one for one in held if one.keys[0].endswith(f":{key}")]):
                producer.send(message, order_key=message.keys[0])
    copy.do("INSERT INTO orders VALUES (8,'last',NULL)")
    copy.send()
    report = copy.merge()
    assert (report.repeated, report.late) == (2, 1)
    found = copy.compare()
    wrong = {int(row.key.rpartition(":")[2]): (row.columns, row.hint) for row in found.rows}
    assert wrong == {key: (columns, hint) for key, (_, columns, hint) in FAULTS.items() if columns is not None}
    assert (found.outcome, found.counts["different"], found.columns) == (ProofResult.FOUND, 4, {"v": 3, "at": 1})
    assert found.out_of_order == 1
    assert all(row.msg_id in row.messages for row in found.rows)
    # The command says the same.
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    where = (copy.binlog.source.shown, "--table", str(copy.table.table), "--namesrv", copy.table.namesrv)
    state = ("--state", str(copy.binlog.state))
    shown = commands(capsys)("reconcile", "table", *where, "--password-file", str(password), "--rows", "3", *state)
    assert shown.code == Exit.FAILED, shown
    for text in (
        "0 missing, 0 extra, 4 different, 0 late, 0 unknown; 1 of 1 parts differ",
        "columns that differ: v in 3 rows, at in 1 rows",
        "1 messages came after a newer one",
        "orders:6 (cut after 2 of 3 characters)\n  v: source 'two', table 'tw'\n  the table has the change at ",
        f"mqtrail trace {found.rows[0].msg_id}",
        "1 further different rows are not named",
    ):
        assert text in shown.out, shown.out


def test_what_cannot_be_compared(copy: Copy) -> None:
    """A table that is ahead, another key, no table at all."""
    copy.do("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 1)")
    with pytest.raises(TableError, match="found no table"):
        copy.compare()
    copy.send()
    copy.merge()
    copy.do("SET sql_log_bin=0", "ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)")
    with pytest.raises(TableError, match=r"found the primary key \(id, v\) in the source, expected \(id\)"):
        copy.compare()
    copy.do("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (id)")
    copy.mariadb.do("RESET MASTER")
    with pytest.raises(TableError, match="the table is ahead of this server"):
        copy.compare()
