"""The figures of `mqtrail binlog run` with `mqtrail pipeline table`: rows/s, and the lag at a steady rate.

Both commands run with their defaults beside MariaDB and our broker, on the same cores. Half of the changes are inserts,
half are updates of rows that were there, each of another row, so the rows of a round can be counted in the table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from deltalake import DeltaTable

from bench.commands import BenchMariaDB, Command, mariadb, running, wait_for
from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from mqtrail.client import SyncAdmin
from mqtrail.tables import DeltaTarget
from mqtrail.wire import TopicConfig

DATABASE, TOPIC, QUEUES = "shop", "ShopChanges", 8
CHANGES, CHANGES_QUICK = 200_000, 30_000  # of a round; above HERE_COUNT of mqtrail.tables, so Spark reads them
TRANSACTION_ROWS = 50  # inserted, and as many updated, by one transaction
ROUNDS_MAX = 3
PER_S = 1_000
LAG_S, LAG_QUICK_S = 60.0, 8.0
LAG_WARM_S = 10.0
LAG_BAR_S = 15.0
BEGIN_S_MAX, MERGED_S_MAX = 180.0, 300.0
STRIDE = 7_919  # updated rows are so far apart, and all different: no round has more updates than rows at the start
CREATE = """CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT NOT NULL, amount DECIMAL(10,2) NOT NULL,
    note VARCHAR(200) NOT NULL, at DATETIME(3) NOT NULL, round INT NOT NULL, sent_ms BIGINT NOT NULL)"""
COLUMNS = "(id, customer, amount, note, at, round, sent_ms)"


@figure("binlog", "MariaDB's binlog → messages → Delta table: rows/s, and lag at 1 000 rows/s", seconds=230)
def binlog(session: Session) -> Iterator[Row]:
    """One run of both commands: first rounds of catching up, then the steady rate."""
    session.alone()
    folder = session.fresh_folder("binlog")
    count = CHANGES_QUICK if session.quick else CHANGES
    with mariadb() as server, OurPeer(folder / "broker") as broker:
        orders = Orders(server, rows=count // 2)
        with SyncAdmin(broker.namesrv_address) as admin:
            admin.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
        with chain(folder, server, broker.namesrv_address) as copy:
            copy.wait(orders.rows, round_number=0, seconds_max=BEGIN_S_MAX)
            rates = [caught_up(copy, orders, count, 1 + number) for number in range(min(session.rounds, ROUNDS_MAX))]
            yield Row(
                "binlog/rows",
                "changes of rows from MariaDB's binlog by messages into a Delta table, half inserts, half updates",
                "rows/s",
                rates,
                more={"changes": count, "rows_at_start": orders.rows},
            )
            lags, late_s = steady(copy, orders, LAG_QUICK_S if session.quick else LAG_S)
            parts = quantiles(lags, n=20)
            yield Row(
                "binlog/lag",
                f"commit in MariaDB → commit in the Delta table at {PER_S:,} rows/s, p95",
                "s",
                [parts[18]],
                bar=Bar("<=", LAG_BAR_S, of="ours"),
                more={"p50": round(parts[9], 2), "max": round(max(lags), 2), "rows": len(lags), "load_late_s": late_s},
            )


class Orders:
    """The source table. Each call of `change` is a transaction."""

    def __init__(self, server: BenchMariaDB, rows: int) -> None:
        self._server = server
        self.rows = self._next = rows
        self._updated = 0
        values = "seq, seq % 1000, seq % 1000000 / 100, CONCAT('order ', seq), '2026-01-01', 0, 0"
        server.do(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4", f"USE {DATABASE}", CREATE)
        server.do(f"INSERT INTO orders SELECT {values} FROM seq_0_to_{rows - 1}", database=DATABASE)

    @contextmanager
    def writer(self) -> Iterator[Any]:
        """A cursor."""
        with self._server.connected(DATABASE) as cursor:
            yield cursor

    def begin_round(self) -> None:
        """Let updates begin at the first row again."""
        self._updated = 0

    def change(self, cursor: Any, round_number: int) -> int:
        """Insert and update TRANSACTION_ROWS rows each; return how many were changed."""
        assert self._updated + TRANSACTION_ROWS <= self.rows, "a row would be updated twice in a round"
        new = range(self._next, self._next + TRANSACTION_ROWS)
        old = [(self._updated + number) * STRIDE % self.rows for number in range(TRANSACTION_ROWS)]
        self._next, self._updated = new.stop, self._updated + TRANSACTION_ROWS
        sent_ms = time.time_ns() // 1_000_000
        tail = f"'2026-11-01 12:00:00.250', {round_number}, {sent_ms}"
        rows = ",".join(f"({one},{one % 1000},{one % 10_000}.25,'order {one} {'x' * 60}',{tail})" for one in new)
        changed = ",".join(f"({one},{one % 1000},{one % 10_000}.75,'changed {'y' * 60}',{tail})" for one in old)
        update = "customer=VALUES(customer), amount=VALUES(amount), note=VALUES(note), at=VALUES(at)"
        update += ", round=VALUES(round), sent_ms=VALUES(sent_ms)"
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO orders {COLUMNS} VALUES {rows}")
        cursor.execute(f"INSERT INTO orders {COLUMNS} VALUES {changed} ON DUPLICATE KEY UPDATE {update}")
        cursor.execute("COMMIT")
        return 2 * TRANSACTION_ROWS


@dataclass(frozen=True)
class Chain:
    """Both commands, and the table that they fill."""

    table: Path
    commands: tuple[Command, ...]

    def wait(self, count: int, round_number: int, seconds_max: float) -> float:
        """Wait until the table has all rows of a round; return the seconds it took."""
        seen = -1

        def has_all() -> bool:
            nonlocal seen
            for command in self.commands:
                command.check()
            version = self.version()
            if version == seen:
                return False
            seen = version
            return len(self.sent_ms(version, round_number)) >= count

        return wait_for(has_all, seconds_max, f"{count} rows of round {round_number} in the table")

    def version(self) -> int:
        """The newest version; -1: there is no table yet."""
        names = [int(path.stem) for path in (self.table / "_delta_log").glob("*.json")]
        return max(names, default=-1)

    def sent_ms(self, version: int, round_number: int) -> dict[int, int]:
        """Return id -> time of sending of a round's rows in a version."""
        if version < 0:
            return {}
        target = DeltaTarget(self.table, DeltaTable(str(self.table), version=version))
        if "round" not in target.kinds:
            return {}
        return dict(target.rows(f"SELECT id, sent_ms FROM t WHERE round = {round_number}"))

    def committed_s(self, version: int) -> float:
        """When a version was committed."""
        return (self.table / "_delta_log" / f"{version:020}.json").stat().st_mtime


@contextmanager
def chain(folder: Path, server: BenchMariaDB, namesrv: str) -> Iterator[Chain]:
    """Run both commands."""
    own = ("--topic", TOPIC, "--namesrv", namesrv)
    state = ("--state", str(folder / "state.json"), "--table", f"{DATABASE}.*")
    table = ("--table", str(folder / "orders"), "--source", f"{DATABASE}.orders", "--follow")
    with (
        running(folder / "binlog.log", "binlog", "run", server.source, *own, *state) as binlog_run,
        running(folder / "table.log", "pipeline", "table", *own, *table) as pipeline_table,
    ):
        yield Chain(folder / "orders", (binlog_run, pipeline_table))


def caught_up(copy: Chain, orders: Orders, count: int, round_number: int) -> float:
    """Write changes while both commands are stopped; return how many a second they then merge."""
    for command in copy.commands:
        command.suspend()
    orders.begin_round()
    written = 0
    with orders.writer() as cursor:
        while written < count:
            written += orders.change(cursor, round_number)
    for command in copy.commands:
        command.resume()
    return written / copy.wait(written, round_number, MERGED_S_MAX)


def steady(copy: Chain, orders: Orders, seconds: float) -> tuple[list[float], float]:
    """Write at a steady rate; return the lag of each row after the warm-up, and how late the load was at its end."""
    round_number = -1
    orders.begin_round()
    first = copy.version()
    written, began_s = 0, time.monotonic()
    counted_ms = time.time_ns() // 1_000_000 + round(LAG_WARM_S * 1000)
    with orders.writer() as cursor:
        while (due_s := began_s + written / PER_S) < began_s + LAG_WARM_S + seconds:
            time.sleep(max(0.0, due_s - time.monotonic()))
            written += orders.change(cursor, round_number)
    late_s = time.monotonic() - began_s - written / PER_S
    copy.wait(written, round_number, MERGED_S_MAX)
    lags: list[float] = []
    known: dict[int, int] = {}
    for version in range(first + 1, copy.version() + 1):
        found, at_s = copy.sent_ms(version, round_number), copy.committed_s(version)
        lags += [at_s - found[one] / 1000 for one in found.keys() - known.keys() if found[one] >= counted_ms]
        known = found
    if not lags:
        raise CannotMeasure("no row was sent after the warm-up")
    return lags, round(max(late_s, 0.0), 2)
