"""`mqtrail binlog` with a real MariaDB and our broker, verified by reading the topic back."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from mqtrail.binlog import BinlogConfig, BinlogError, BinlogRun, BinlogState, SourceAway, read_state, source_of
from mqtrail.binlog.source import BinlogSource, ReadTable, Snapshot, TableFilter
from mqtrail.client import MessageExt, ProducerConfig, SyncAdmin
from mqtrail.feed import Lanes
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import TopicConfig
from tests.waiting import until, wait_until

from .binlog_server import BinlogMariaDB
from .servers import PASSWORD, USER

pytestmark = [pytest.mark.databases, pytest.mark.usefixtures("soon")]

END_S = 60.0
EVERY_TYPE = """CREATE TABLE kinds (
    id BIGINT UNSIGNED PRIMARY KEY, y YEAR, ub TINYINT UNSIGNED, f FLOAT, db DOUBLE, dz DECIMAL(10,2) ZEROFILL,
    dn DECIMAL(30,10), t3 TIME(3), dt DATETIME(2), d DATE, ts TIMESTAMP(6) NULL, b BINARY(4), vb VARBINARY(9),
    e ENUM('a','é'), st SET('x','y'), v INT AS (ub+1) VIRTUAL, j JSON, bt BIT(10), u UUID, ip INET6, ip4 INET4,
    c CHAR(3) CHARACTER SET utf8mb4, g TEXT CHARACTER SET gbk, l VARCHAR(9), inv INT INVISIBLE, p POINT,
    ci VARCHAR(300) COLLATE utf8mb4_uca1400_ai_ci)"""
COLUMNS = "(id,y,ub,f,db,dz,dn,t3,dt,d,ts,b,vb,e,st,j,bt,u,ip,ip4,c,g,l,inv,p,ci)"
FULL = (
    "2024,255,0.1,0.1,1.5,-123456789.0123456789,'-01:00:00.250','9999-12-31 23:59:59.99','0000-00-00',"
    "'2026-01-01 05:00:00.123456',x'01',x'00ff','é','x,y','{\"a\": 1}',513,'6ccd780c-baba-1026-9564-5b8c656024db',"
    "'::1','10.0.0.1','中','中文','é€ ',5,POINT(1,2),'é'"
)
VALUES = {
    "y": 2024,
    "ub": 255,
    "f": 0.10000000149011612,
    "db": 0.1,
    "dz": "1.50",
    "dn": "-123456789.0123456789",
    "t3": "-01:00:00.250",
    "dt": "9999-12-31T23:59:59.99",
    "d": "0000-00-00",
    "ts": "2026-01-01T00:00:00.123456Z",
    "b": "AQAAAA==",
    "vb": "AP8=",
    "e": "é",
    "st": ["x", "y"],
    "v": 256,
    "j": '{"a": 1}',
    "bt": 513,
    "u": "bM14DLq6ECaVZFuMZWAk2w==",
    "ip": "AAAAAAAAAAAAAAAAAAAAAQ==",
    "ip4": "CgAAAQ==",
    "c": "中",
    "g": "中文",
    "l": "é€ ",
    "inv": 5,
    "p": "AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA==",
    "ci": "é",
}


@pytest.fixture
def admin(broker: Embedded) -> Iterator[SyncAdmin]:
    with SyncAdmin(broker.namesrv_address) as one:
        yield one


@pytest.fixture
def database(request: pytest.FixtureRequest, mariadb: BinlogMariaDB) -> str:
    """A database named as the test."""
    name: str = request.node.originalname.removeprefix("test_")
    mariadb.do(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name} CHARACTER SET latin1")
    return name


@pytest.fixture
def config(database: str, mariadb: BinlogMariaDB, admin: SyncAdmin, tmp_path: Path) -> BinlogConfig:
    """Reads that database into a topic of three queues, to the end of the binlog."""
    assert admin.create_topic(TopicConfig(database, 3, 3)).complete
    source = source_of(f"mysql://{USER}@127.0.0.1:{mariadb.port}", PASSWORD)
    tables = (f"{database}.*",)
    return BinlogConfig(source=source, topic=database, state=tmp_path / "state.json", tables=tables, is_once=True)


def run(config: BinlogConfig, broker: Embedded, producer: ProducerConfig | None = None) -> BinlogState:
    """Run it to its end."""
    return asyncio.run(BinlogRun(config, broker.namesrv_address, producer or ProducerConfig()).run())


def read(admin: SyncAdmin, topic: str) -> list[list[MessageExt]]:
    """All messages, by queue."""
    return [list(admin.messages_of_queue(queue, 0, admin.max_offset(queue))) for queue in admin.queues(topic)]


def bodies(admin: SyncAdmin, topic: str) -> list[dict[str, Any]]:
    """All messages' bodies, in the binlog's order; those for all queues once."""
    found = {message.body: json.loads(message.body) for queue in read(admin, topic) for message in queue}
    return sorted(found.values(), key=lambda body: body["order"])


def replayed(admin: SyncAdmin, topic: str, *, is_stale_ok: bool = False) -> tuple[dict[tuple[str, str], Any], int]:
    """Apply the queues one after the other, each in its order; return the rows by table and key, and the repeats.

    A message whose order a key has already seen is a repeat. Everything else must be a step forward, or is_stale_ok.
    """
    rows: dict[tuple[str, str], Any] = {}
    repeats = 0
    for queue in read(admin, topic):
        seen: dict[str, dict[str, None]] = defaultdict(dict)
        for message in queue:
            body = json.loads(message.body)
            if body["op"] == "schema":
                continue
            (key,) = message.keys
            order = message.properties["BINLOG_ORDER"]
            if order in seen[key]:
                repeats += 1
                continue
            is_stale = any(order < before for before in seen[key])
            assert is_stale_ok or not is_stale, (key, order)
            seen[key][order] = None
            if is_stale:
                continue
            rows.pop((body["table"], key), None)
            if body["after"] is not None:
                rows[body["table"], key] = body["after"]
    return rows, repeats


def test_each_type_is_the_same_in_snapshot_and_stream(
    database: str, config: BinlogConfig, mariadb: BinlogMariaDB, broker: Embedded, admin: SyncAdmin
) -> None:
    """Exactly, to the last digit; NULL too."""
    session = ("SET sql_mode='', time_zone='+05:00'", f"USE {database}")
    mariadb.do(*session, EVERY_TYPE, f"INSERT INTO kinds {COLUMNS} VALUES (18446744073709551615,{FULL})")
    mariadb.do(*session, "INSERT INTO kinds (id, e, st) VALUES (2, 'wrong', '')")
    run(config, broker)
    mariadb.do(*session, f"INSERT INTO kinds {COLUMNS} VALUES (3,{FULL})", "INSERT INTO kinds (id) VALUES (4)")
    mariadb.do(*session, "UPDATE kinds SET e='wrong', st='' WHERE id=4")
    run(config, broker)
    rows = {body["key"]["id"]: body["after"] for body in bodies(admin, config.topic)}
    nulls = dict.fromkeys(VALUES) | {"e": "", "st": []}
    assert rows == {
        18446744073709551615: {"id": 18446744073709551615, **VALUES},
        2: {"id": 2, **nulls},
        3: {"id": 3, **VALUES},
        4: {"id": 4, **nulls},
    }


def test_changes_of_keys_tables_and_transactions(
    database: str, config: BinlogConfig, mariadb: BinlogMariaDB, broker: Embedded, admin: SyncAdmin
) -> None:
    """A row keeps to its queue; a changed key is two linked messages; a new column is in the rows after it."""
    use = f"USE {database}"
    mariadb.do(use, "CREATE TABLE parts (a INT, b VARCHAR(9), n INT, secret INT, PRIMARY KEY (a, b))")
    mariadb.do(use, "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO parts VALUES (1, 'x y', 0, 9)")
    config = replace(config, columns=(f"{database}.parts.secret",), excluded=(f"{database}.oth*",))
    assert run(config, broker).counts == {"snapshot": 1}
    mariadb.do(
        use,
        *("BEGIN", "INSERT INTO parts VALUES (2,'z',0,9),(3,'z',0,9)", "INSERT INTO other VALUES (1)"),
        *("UPDATE parts SET n=1 WHERE a=1", "UPDATE parts SET a=7 WHERE a=2", "DELETE FROM parts WHERE a=3", "COMMIT"),
        *("ALTER TABLE parts ADD COLUMN late INT DEFAULT 5", "UPDATE parts SET n=2 WHERE a=7", "FLUSH BINARY LOGS"),
        *("BEGIN", "DELETE FROM parts", "ROLLBACK", "CREATE TABLE made (PRIMARY KEY (a)) SELECT a FROM parts"),
        *("TRUNCATE TABLE made", "DROP TABLE made", "DROP TABLE other"),
    )
    state = run(config, broker)
    found = [
        (one["op"], one["key"], one["transaction"] and (one["transaction"]["index"], one["transaction"]["last"]))
        for one in bodies(admin, config.topic)
        if one["op"] != "schema"
    ]
    assert found == [
        ("snapshot", {"a": 1, "b": "x y"}, None),
        ("insert", {"a": 2, "b": "z"}, (0, False)),
        ("insert", {"a": 3, "b": "z"}, (1, False)),
        ("update", {"a": 1, "b": "x y"}, (2, False)),
        ("delete", {"a": 2, "b": "z"}, (3, False)),
        ("insert", {"a": 7, "b": "z"}, (4, False)),
        ("delete", {"a": 3, "b": "z"}, (5, True)),
        ("update", {"a": 7, "b": "z"}, (0, True)),
        ("insert", {"a": 1}, (1, False)),
        ("insert", {"a": 7}, (2, True)),
    ]
    kinds = ["ALTER TABLE", "CREATE TABLE", "TRUNCATE TABLE", "DROP TABLE"]
    for queue in read(admin, config.topic):
        own = [json.loads(one.body)["schema"] for one in queue if one.properties["BINLOG_OP"] == "schema"]
        assert [one["kind"] for one in own] == kinds, "each queue has each schema change"
    rows, repeats = replayed(admin, config.topic)
    assert repeats == 0
    assert rows["parts", f"{database}.parts:7,z"] == {"a": 7, "b": "z", "n": 2, "late": 5}
    moved = [one for queue in read(admin, config.topic) for one in queue if "BINLOG_FENCE" in one.properties]
    assert len({one.properties["BINLOG_FENCE"] for one in moved}) == 1
    assert len(moved) == 2
    again = run(config, broker)
    assert (again.place, again.counts) == (state.place, state.counts), "nothing is sent twice"
    mariadb.do("FLUSH BINARY LOGS")
    rotated = run(config, broker)
    assert rotated.place.partition(":")[0] > again.place.partition(":")[0], "old files may be purged"
    assert run(config, broker).counts == state.counts


@contextmanager
def process(config: BinlogConfig, broker: Embedded, *further: str) -> Iterator[subprocess.Popen[bytes]]:
    """`mqtrail binlog run` in a process of its own."""
    command = [sys.executable, "-m", "mqtrail", "binlog", "run", config.source.shown, "--topic", config.topic]
    command += ["--state", str(config.state), "--table", config.tables[0], *further]
    environment = os.environ | {"NAMESRV_ADDR": broker.namesrv_address, "MQTRAIL_BINLOG_PASSWORD": PASSWORD}
    started = subprocess.Popen(command, env=environment, cwd=config.state.parent, stderr=subprocess.PIPE)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def change_rows(mariadb: BinlogMariaDB, database: str, chance: random.Random, count: int) -> None:
    """Change rows as an application does, keys among them."""
    with mariadb.connected(database) as cursor:
        for _ in range(count):
            key, other = chance.randrange(40), chance.randrange(40)
            cursor.execute("BEGIN")
            cursor.execute(f"INSERT INTO orders VALUES ({key}, 1) ON DUPLICATE KEY UPDATE n = n + 1")
            cursor.execute(f"UPDATE IGNORE orders SET id = {other} WHERE id = {chance.randrange(40)}")
            cursor.execute(f"DELETE FROM orders WHERE id = {chance.randrange(40)}")
            cursor.execute("COMMIT")


def is_streaming(config: BinlogConfig, started: int) -> bool:
    """Whether another run than the one that started then has sent the rows that were there."""
    state = read_state(config.state)
    return state is not None and state.is_snapshot_done and state.started_ms != started


def has_begun(config: BinlogConfig, started: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether the run is_streaming, or its process has ended."""
    return process.poll() is not None or is_streaming(config, started)


def test_killed_and_continued(
    database: str, config: BinlogConfig, mariadb: BinlogMariaDB, broker: Embedded, admin: SyncAdmin
) -> None:
    """kill -9 in the middle of changes, a restart of the server, then SIGTERM: no row lost, repeats recognizable."""
    mariadb.do(f"USE {database}", "CREATE TABLE orders (id INT PRIMARY KEY, n INT)")
    chance = random.Random(7)
    change_rows(mariadb, database, chance, 60)
    for number, last in ((1, signal.SIGKILL), (2, signal.SIGTERM)):
        before = read_state(config.state)
        started = before.started_ms if before else 0
        with process(config, broker) as running:
            wait_until(partial(has_begun, config, started, running))
            assert running.poll() is None, running.communicate()[1].decode()
            change_rows(mariadb, database, chance, 150)
            if number == 2:
                mariadb.kill()
                mariadb.start()
                change_rows(mariadb, database, chance, 20)
            running.send_signal(last)
            code = running.wait(END_S)
            assert code == (0 if last is signal.SIGTERM else -signal.SIGKILL)
            change_rows(mariadb, database, chance, 40)
    state = run(config, broker)
    rows, repeats = replayed(admin, config.topic)
    with mariadb.connected(database) as cursor:
        cursor.execute("SELECT id, n FROM orders")
        expected = {("orders", f"{database}.orders:{key}"): {"id": key, "n": n} for key, n in cursor.fetchall()}
    assert rows == expected
    assert repeats < 2 * 4096, "at most what was in flight"
    assert state.lag_ms(state.saved_ms) == 0


def test_an_interrupted_snapshot(
    database: str,
    config: BinlogConfig,
    mariadb: BinlogMariaDB,
    broker: Embedded,
    admin: SyncAdmin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A complete table is not read again; the other one is; changes meanwhile are neither lost nor undone."""
    mariadb.do(
        f"USE {database}",
        *(f"CREATE TABLE {one} (id INT PRIMARY KEY, n INT)" for one in "abc"),
        "INSERT INTO c VALUES (1,0)",
        *("INSERT INTO a VALUES (1,0),(2,0),(3,0)", "INSERT INTO b VALUES (1,0),(2,0),(3,0),(4,0)"),
    )
    monkeypatch.setattr("mqtrail.binlog.source.CHUNK_COUNT", 2)
    chunks = Snapshot.chunks

    def cut(snapshot: Snapshot, table: ReadTable) -> Generator[list[Any]]:
        for number, chunk in enumerate(chunks(snapshot, table)):
            if number and table.table == "b":
                raise SourceAway("lost the connection")
            yield chunk

    with monkeypatch.context() as patched:
        patched.setattr(Snapshot, "chunks", cut)
        assert "lost the connection; no progress for 0 s" in refused(replace(config, retry_ms=0), broker)
    state = read_state(config.state)
    assert state is not None
    assert (list(state.tables), list(state.begun), state.counts) == (
        [f"{database}.a"],
        [f"{database}.b"],
        {"snapshot": 5},
    )
    changes = [f"UPDATE {one} SET n = n + 1 WHERE id = {key}" for one in "ab" for key in (1, 4)]
    changes += ["DELETE FROM b WHERE id = 2", "INSERT INTO a VALUES (5,0)", "UPDATE c SET n = 1"]
    mariadb.do(f"USE {database}", *changes)
    assert run(config, broker).is_snapshot_done
    rows, _ = replayed(admin, config.topic, is_stale_ok=True)
    ops = [(one["op"], one["table"], one["key"]["id"]) for one in bodies(admin, config.topic)]
    expected = {"a:1": 1, "a:2": 0, "a:3": 0, "a:5": 0, "b:1": 1, "b:3": 0, "b:4": 1, "c:1": 1}
    assert {key.rpartition(".")[2]: row["n"] for (_, key), row in rows.items()} == expected
    changed = [("update", "a", 1), ("update", "b", 1), ("update", "b", 4), ("delete", "b", 2), ("insert", "a", 5)]
    assert [one for one in ops if one[0] != "snapshot"] == changed, "the rows of c have its change"
    assert sum(one[:2] == ("snapshot", "a") for one in ops) == 3, "a was complete"


def test_stopped_while_the_brokers_are_away(
    database: str, config: BinlogConfig, mariadb: BinlogMariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends within a bound, and the next run sends what was not acknowledged."""
    monkeypatch.setattr("mqtrail.feed.run.STOP_S", 0.1)
    monkeypatch.setattr("mqtrail.feed.lanes.CLOSE_S", 0.1)
    mariadb.do(f"USE {database}", "CREATE TABLE t (id INT PRIMARY KEY)")
    sending = asyncio.Event()
    send = Lanes._send

    async def noted(lanes: Lanes[Any], *further: Any) -> None:
        sending.set()
        await send(lanes, *further)

    monkeypatch.setattr(Lanes, "_send", noted)

    async def stopped(broker: Embedded) -> BinlogState:
        one = BinlogRun(replace(config, is_once=False), broker.namesrv_address, ProducerConfig())
        running = asyncio.create_task(one.run())
        await until(lambda: running.done() or (one._state is not None and one.state.is_snapshot_done))
        await asyncio.to_thread(broker.stop_broker)
        await asyncio.to_thread(mariadb.do, f"INSERT INTO {database}.t VALUES (1)")
        await sending.wait()
        one.stop()
        return await running

    with embedded(tmp_path / "data") as own, SyncAdmin(own.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig(database, 1, 1)).complete
        assert asyncio.run(stopped(own)).counts == {}
        own.start_broker()
        assert run(config, own).counts == {"insert": 1}


def refused(config: BinlogConfig, broker: Embedded, producer: ProducerConfig | None = None) -> str:
    """The words of a refusal."""
    with pytest.raises(BinlogError) as caught:
        run(config, broker, producer)
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_read_is_refused_before_anything_is_sent(
    database: str, config: BinlogConfig, mariadb: BinlogMariaDB, broker: Embedded, admin: SyncAdmin
) -> None:
    """Settings of the server, rights, tables, columns, the topic: each with what to do."""
    for name, value, good in (
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
        ("log_bin_compress", "ON", "OFF"),
    ):
        mariadb.do(f"SET GLOBAL {name}={value}")
        try:
            with pytest.raises(BinlogError, match=f"found {name}={value}"):
                BinlogSource(config.source).identity()
        finally:
            mariadb.do(f"SET GLOBAL {name}={good}")
    mariadb.do("CREATE OR REPLACE USER weak@'%' IDENTIFIED BY 'x'")
    weak = replace(config.source, user="weak", password="x")
    mariadb.do(f"GRANT SELECT ON {database}.* TO weak@'%'", f"CREATE TABLE {database}.z (id INT PRIMARY KEY)")
    assert "GRANT REPLICATION SLAVE" in refused(replace(config, source=weak), broker)
    assert not config.state.exists()
    mariadb.do("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO weak@'%'")
    mariadb.do(f"CREATE DATABASE hidden_{database}", f"CREATE TABLE hidden_{database}.t (id INT PRIMARY KEY)")
    hidden = replace(config, source=weak, tables=("*.*",), excluded=(f"{database}.*",))
    assert run(hidden, broker).counts == {}
    mariadb.do(f"INSERT INTO hidden_{database}.t VALUES (1)")
    assert "SELECT command denied" in refused(hidden, broker)
    config.state.unlink()
    assert "check user and password" in refused(replace(config, source=replace(weak, password="y")), broker)
    assert "mqtrail topic create missing" in refused(replace(config, topic="missing"), broker)
    for columns, found in (
        ("a INT", "without a primary key"),
        ("id INT PRIMARY KEY, c VARCHAR(9) CHARACTER SET dec8", "the character set dec8"),
        ("id INT PRIMARY KEY) ENGINE=MyISAM", "the engine MyISAM"),
    ):
        mariadb.do(f"CREATE TABLE {database}.t ({columns}{'' if 'ENGINE' in columns else ')'}")
        with pytest.raises(BinlogError, match=found):
            BinlogSource(config.source).tables(TableFilter(config.tables, (), ()))
        mariadb.do(f"DROP TABLE {database}.t")
    assert all(not queue for queue in read(admin, config.topic))


def test_a_binlog_that_cannot_be_continued_is_refused(
    database: str, config: BinlogConfig, mariadb: BinlogMariaDB, broker: Embedded, admin: SyncAdmin
) -> None:
    """Other options, queues or servers, purged files, statements, XA, too large rows. What came before is sent once."""
    use = f"USE {database}"
    mariadb.do(use, "CREATE TABLE t (id INT PRIMARY KEY, x LONGTEXT)", "INSERT INTO t VALUES (0, '')")
    run(config, broker)
    kept = config.state.read_text()
    assert "found the options {'tables': []}" in refused(replace(config, tables=()), broker)
    for change, found in (
        ({"queues": ["broker-a/0"]}, "--new-queues"),
        ({"source": "8 x"}, "expected 8 x"),
        ({"gtids": "0-9-9"}, "expected the GTIDs 0-9-9"),
        ({"place": "bin.000000:4"}, "are purged"),
    ):
        config.state.write_text(json.dumps(json.loads(kept) | change))
        assert found in refused(config, broker)
    config.state.write_text(kept)
    mariadb.do(use, "BEGIN", "INSERT INTO t VALUES (1, '')", "INSERT INTO t VALUES (2, REPEAT('x', 70000))", "COMMIT")
    small = ProducerConfig(body_size_max=60_000)
    assert f"of {database}.t, key {database}.t:2" in refused(config, broker, small)
    mariadb.do(use, "DELETE FROM t", "SET binlog_format=STATEMENT", "INSERT INTO t VALUES (3, '')")
    assert "found the statement" in refused(config, broker)
    assert "found the statement" in refused(config, broker)
    assert [one["op"] for one in bodies(admin, config.topic)] == ["snapshot", *["insert"] * 2, *["delete"] * 3]
    assert sum(map(len, read(admin, config.topic))) == 6, "nothing is sent twice"
    config.state.unlink()
    mariadb.do(use, "XA START 'a'", "INSERT INTO t VALUES (4, '')", "XA END 'a'", "XA PREPARE 'a'", "XA ROLLBACK 'a'")
    config.state.write_text(json.dumps(json.loads(kept) | _end(mariadb, before_xa=2)))
    assert "found an XA transaction" in refused(config, broker)


def _end(mariadb: BinlogMariaDB, before_xa: int) -> dict[str, Any]:
    """The place before the last transactions of the binlog, for a state."""
    with mariadb.connected() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file = cursor.fetchone()[0]
        cursor.execute(f"SHOW BINLOG EVENTS IN '{file}'")
        place = [row[1] for row in cursor.fetchall() if row[2] == "Gtid"][-before_xa]
        cursor.execute("SELECT BINLOG_GTID_POS(%s, %s)", (file, place))
        return {"place": f"{file}:{place}", "done": 0, "gtids": cursor.fetchone()[0]}


def test_tls(
    database: str, config: BinlogConfig, mariadb: BinlogMariaDB, broker: Embedded, admin: SyncAdmin, tmp_path: Path
) -> None:
    """A user who must use TLS is read, snapshot and stream; a certificate that another authority signed is refused."""
    mariadb.do(
        f"CREATE TABLE {database}.orders (id INT PRIMARY KEY)",
        f"INSERT INTO {database}.orders VALUES (1)",
        f"CREATE OR REPLACE USER secure@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE SSL",
        "GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO secure@'%'",
    )
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    url = f"mysql://secure@127.0.0.1:{mariadb.port}"
    with pytest.raises(BinlogError, match="CERTIFICATE_VERIFY_FAILED"):
        run(replace(config, source=source_of(url, PASSWORD, str(other)), retry_ms=100), broker)
    with_tls = replace(config, source=source_of(url, PASSWORD, f"{mariadb.folder}/ca.pem"))
    run(with_tls, broker)
    mariadb.do(f"INSERT INTO {database}.orders VALUES (2)")
    run(with_tls, broker)
    assert [(one["op"], one["after"]) for one in bodies(admin, database)] == [
        ("snapshot", {"id": 1}),
        ("insert", {"id": 2}),
    ]
