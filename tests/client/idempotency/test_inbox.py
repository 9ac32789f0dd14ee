"""Inbox: the key and the effect are one transaction. SQLite here; the other databases in tests/databases."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from structlog.testing import capture_logs

from mqtrail.client import ClientError, Delivery, Inbox, RetryLater, inbox_ddl
from mqtrail.client.core import SqlConnection
from mqtrail.client.idempotency import inbox as module

from .helpers import delivered

Connect = Callable[[], Any]


@pytest.fixture(params=["sqlite3", "sqlalchemy"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Connections to a database with a table of bills."""
    path = tmp_path / "bills.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bills (msg_id TEXT)")
    connection.close()
    if request.param == "sqlalchemy":
        engine = create_engine(f"sqlite:///{path}")
        yield engine.connect
        engine.dispose()
    else:
        yield lambda: sqlite3.connect(path)


def write(connection: Any, msg_id: str) -> None:
    """The business write."""
    SqlConnection(connection).run("INSERT INTO bills VALUES (?)", (msg_id,))


def bills(connect: Connect) -> list[str]:
    """Return what was written, by any connection."""
    connection = connect()
    try:
        return [row[0] for row in SqlConnection(connection).rows("SELECT msg_id FROM bills ORDER BY msg_id")]
    finally:
        connection.close()


def test_a_repeat_writes_nothing_and_gets_the_result(connect: Connect) -> None:
    """The second delivery is a success without a call of the handler."""
    again: list[tuple[str, bytes]] = []
    inbox = Inbox("CG", connect, on_repeat=lambda m, result: again.append((m.msg_id, result)))
    inbox.create()
    inbox.create()

    @inbox
    def handle(m: Delivery, connection: Any) -> bytes:
        write(connection, m.msg_id)
        return m.body.upper()

    for msg_id in ("1", "2", "1"):
        assert handle(delivered(msg_id)) is None
    assert bills(connect) == ["1", "2"]
    assert again == [("1", b"BODY")]


@pytest.mark.parametrize("how", ["raises", "returns RetryLater", "commit fails"])
def test_a_failed_handler_leaves_neither_effect_nor_key(connect: Connect, how: str) -> None:
    """Both are rolled back, and the next delivery runs."""
    broken = how == "commit fails"

    class Broken:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def commit(self) -> None:
            if broken:
                raise OSError("the connection broke")
            self._connection.commit()

    Broken.__module__ = "sqlite3"
    inbox = Inbox("CG", lambda: Broken(connect()))
    Inbox("CG", connect).create()
    calls = 0

    @inbox
    def handle(m: Delivery, connection: Any) -> RetryLater | None:
        nonlocal calls
        calls += 1
        write(connection, m.msg_id)
        if calls == 1 and how == "raises":
            raise OSError("no")
        return RetryLater(3) if calls == 1 and how == "returns RetryLater" else None

    if how == "returns RetryLater":
        assert isinstance(handle(delivered("1")), RetryLater)
    else:
        with pytest.raises(OSError):
            handle(delivered("1"))
    assert bills(connect) == []
    broken = False
    assert handle(delivered("1")) is None
    assert handle(delivered("1")) is None
    assert bills(connect) == ["1"]
    assert calls == 2


def test_many_deliveries_at_once_write_once(connect: Connect) -> None:
    """Threads that deliver the same messages at the same time: some wait, some fail and retry, one writes."""
    inbox = Inbox("CG", connect, prune_ms=0)
    inbox.create()

    @inbox
    def handle(m: Delivery, connection: Any) -> None:
        write(connection, m.msg_id)

    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait(30)
        for number in range(10):
            while True:
                try:
                    handle(delivered(str(number)))
                    break
                except Exception as error:  # retried, as a consumer would
                    if "locked" not in str(error):
                        raise

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert bills(connect) == [str(number) for number in range(10)]


def test_keys_are_compared_exactly(connect: Connect) -> None:
    """Case, trailing blanks, length, NUL and the group matter; the table's columns limit none of them."""
    keys = ["a", "A", "a ", "ä", "a\0", "x" * 10_000, "x" * 10_000 + "y", "\ud800"]
    inboxes = [Inbox(group, connect) for group in ("CG", "CG1")]
    inboxes[0].create()
    for inbox in inboxes:
        for key in keys:
            assert inbox.run(key, lambda connection: b"new") == (True, b"new")
        for key in keys:
            assert inbox.run(key, lambda connection: b"again") == (False, b"new")


def test_old_keys_are_deleted_in_pieces(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of the group, only beyond keep_ms; while messages are handled, at most one piece at a time."""
    monkeypatch.setattr(module, "PRUNED_AT_ONCE", 4)
    now = 1_000_000
    monkeypatch.setattr(module, "now_ms", lambda: now)
    inbox, other = (Inbox(group, connect, keep_ms=1_000, prune_ms=0) for group in ("CG", "other"))
    inbox.create()
    for number in range(10):
        inbox.run(str(number), lambda connection: None)
    other.run("0", lambda connection: None)
    now += 1_001
    inbox.run("young", lambda connection: None)
    busy = Inbox("CG", connect, keep_ms=1_000, prune_ms=1)
    monkeypatch.setattr(busy, "_next_prune_s", 0.0)
    busy.run("young", lambda connection: None)
    assert inbox.prune() == 6
    assert inbox.prune() == 0
    assert not inbox.run("young", lambda connection: None).fresh
    assert not other.run("0", lambda connection: None).fresh


def test_a_failed_deletion_does_not_fail_the_message(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and tried again later."""
    inbox = Inbox("CG", connect)
    inbox.create()
    monkeypatch.setattr(inbox, "_next_prune_s", 0.0)
    monkeypatch.setattr(module, "delete_in_pieces", lambda *args: 1 / 0)
    with capture_logs() as logs:
        assert inbox.run("1", lambda connection: None).fresh
    assert [entry["event"] for entry in logs] == ["idempotency.prune_failed"]


def test_the_key_can_join_a_transaction_of_yours(connect: Connect) -> None:
    """first and result, without run."""
    inbox = Inbox("CG", connect)
    inbox.create()
    connection = connect()
    assert inbox.first(connection, "1")
    assert not inbox.first(connection, "1")
    connection.rollback()
    assert inbox.first(connection, "1")
    assert inbox.result(connection, "1") == b""
    connection.commit()
    assert not inbox.first(connection, "1")
    connection.close()


def test_a_database_that_is_down_means_a_retry(tmp_path: Path) -> None:
    """No table, no connection: the message is never skipped."""
    inbox = Inbox("CG", lambda: sqlite3.connect(tmp_path / "none" / "bills.db"))

    @inbox
    def handle(m: Delivery, connection: Any) -> None:
        raise AssertionError

    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        handle(delivered("1"))
    (tmp_path / "none").mkdir()
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        handle(delivered("1"))


@pytest.mark.parametrize(
    ("connection", "match"),
    [
        (lambda: sqlite3.connect(":memory:", isolation_level=None), "autocommit"),
        (lambda: create_engine("sqlite://", isolation_level="AUTOCOMMIT").connect(), "autocommit"),
        (lambda: threading.Lock(), "expected SQLite, PostgreSQL"),
    ],
)
def test_unfit_connections_are_refused(connection: Connect, match: str) -> None:
    """Autocommit would part the key from the effect."""
    opened = connection()
    with pytest.raises(ClientError, match=match):
        SqlConnection(opened)
    if hasattr(opened, "close"):
        opened.close()


def test_names_of_tables() -> None:
    """They go into statements, so they are only names."""
    for name in ("a b", "x;--", "", "a.b.c", "é"):
        with pytest.raises(ClientError, match="table name"):
            Inbox("CG", lambda: None, table=name)
    assert "sales.inbox" in inbox_ddl("postgresql", "sales.inbox")[0]


def test_sqlalchemy_statements_and_keys_share_the_transaction(tmp_path: Path) -> None:
    """The handler's own statements of SQLAlchemy are rolled back with the key."""
    engine = create_engine(f"sqlite:///{tmp_path}/a.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bills (msg_id TEXT)"))
    inbox = Inbox("CG", engine.connect)
    inbox.create()

    @inbox
    def handle(m: Delivery, connection: Any) -> None:
        connection.execute(text("INSERT INTO bills VALUES (:id)"), {"id": m.msg_id})
        if m.attempt == 1 and m.body == b"fails":
            raise OSError

    with pytest.raises(OSError):
        handle(delivered("1", b"fails"))
    handle(delivered("2"))
    assert bills(engine.connect) == ["2"]
    engine.dispose()
