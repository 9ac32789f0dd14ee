"""The figure of `mqtrail reconcile table`: a table and its source without differences, from fork to exit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
from deltalake import CommitProperties, write_deltalake

from bench.commands import BenchMariaDB, finished, mariadb
from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from mqtrail.tables import DeltaTarget
from mqtrail.tables.target import COLUMNS_KEY, QUEUES, READ_ORDER, READ_POSITION

ROWS_ENV = "BENCH_RECONCILE_ROWS"
ROWS, ROWS_QUICK = 10_000_000, 200_000
BAR_ROWS, BAR_S = 10_000_000, 60.0
ROUNDS_MAX = 3
CHUNK = 1_000_000  # rows of one statement
READ_ROWS = 100_000
DATABASE, TOPIC = "shop", "ShopChanges"
CREATE = """CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT NOT NULL, amount DECIMAL(10,2) NOT NULL,
    note VARCHAR(200) NULL, at DATETIME NOT NULL)"""
SOURCE_ROW = """seq, seq % 100003, seq % 1000000 / 100, IF(seq % 10, CONCAT('order ', seq, ' of ', seq % 100003), NULL),
    TIMESTAMP'2026-01-01 00:00:00' + INTERVAL seq SECOND"""
TABLE_ROW = """i AS id, i % 100003 AS customer, printf('%d.%02d', i % 1000000 // 100, i % 100) AS amount,
    CASE WHEN i % 10 <> 0 THEN 'order ' || i || ' of ' || i % 100003 END AS note,
    strftime(TIMESTAMP '2026-01-01 00:00:00' + to_seconds(i), '%Y-%m-%dT%H:%M:%S') AS at"""


@figure("reconcile", "mqtrail reconcile table: 10 M rows of MariaDB and of a Delta table that agree", seconds=300)
def reconcile(session: Session) -> Iterator[Row]:
    """Both sides are made once, without messages; each round is a process."""
    session.alone()
    rows = int(os.environ.get(ROWS_ENV, ROWS_QUICK if session.quick else ROWS))
    folder = session.fresh_folder("reconcile")
    with mariadb() as server, OurPeer(folder / "broker") as broker:
        make_source(server, rows)
        make_table(folder / "orders", *_place(server), rows)
        seconds, inside = [], []
        where = ("--table", str(folder / "orders"), "--namesrv", broker.namesrv_address, "--json")
        for _ in range(min(session.rounds, ROUNDS_MAX)):
            began_s = time.monotonic()
            found = json.loads(finished("reconcile", "table", server.source, *where))
            seconds.append(time.monotonic() - began_s)
            inside.append(found["seconds"])
            if (found["outcome"], found["source_rows"], found["table_rows"]) != ("NONE", rows, rows):
                raise CannotMeasure(f"the sides of the figure differ: {found}")
    yield Row(
        "reconcile/table",
        f"mqtrail reconcile table, {rows / 1e6:g} M rows of MariaDB and of a Delta table that agree, fork to exit",
        "s",
        seconds,
        bar=Bar("<=", BAR_S, of="ours") if rows >= BAR_ROWS else None,
        more={"rows": rows, "parts": found["parts"], "comparing_s": inside},
    )


def make_source(server: BenchMariaDB, rows: int) -> None:
    """Make the table; its rows are not in the binlog."""
    server.do(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4", f"USE {DATABASE}", CREATE)
    for first in range(0, rows, CHUNK):
        numbers = f"seq_{first}_to_{min(first + CHUNK, rows) - 1}"
        statement = f"INSERT INTO orders SELECT {SOURCE_ROW} FROM {numbers}"
        server.do("SET sql_log_bin=0, unique_checks=0", statement, database=DATABASE)


def _place(server: BenchMariaDB) -> tuple[str, int]:
    with server.connected() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, position, *_ = cursor.fetchone()
        return str(file), int(position)


def make_table(path: Path, file: str, position: int, rows: int) -> None:
    """Make the table as `pipeline table` makes it of a snapshot at that place, in one commit."""
    number = int(file.rpartition(".")[2])
    place = f"{number:010}.{position:012}"
    meta = f"""'{DATABASE}.orders:' || i AS _mq_key, '{place}.00000000.0' AS _mq_order, 'snapshot' AS _mq_op,
        false AS _mq_deleted, '{file}:{position}' AS _mq_position, NULL::VARCHAR AS _mq_gtid,
        {time.time_ns() // 1_000_000}::BIGINT AS _mq_time_ms, upper(md5(i::VARCHAR)) AS _mq_msg_id"""
    target = DeltaTarget.create(path, TOPIC, f"{DATABASE}.orders")
    target.delta.alter.set_table_properties({COLUMNS_KEY: "id"}, raise_if_not_exists=False)
    notes = {READ_ORDER: f"{place}.00000000.0", READ_POSITION: f"{file}:{position}", QUEUES: "[]"}
    with duckdb.connect() as connection:
        made = connection.sql(f"SELECT {meta}, {TABLE_ROW} FROM range({rows}) numbers(i)")
        write_deltalake(
            target.delta,
            made.to_arrow_reader(READ_ROWS),
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(custom_metadata=notes),
        )
