"""Inbox: the key of each handled message in a table, written in the transaction of the effect.

    inbox = Inbox("billing", engine.connect, key=lambda m: m.keys[0])

    @consumer.handler("orders")
    @inbox
    def bill(m: Delivery, connection: Connection) -> None:
        connection.execute(insert(bills).values(...))

The key's row is inserted first. A second delivery waits for the first one's transaction at that row (in SQLite: at the
database), and finds the key taken or free. If the wait ends in an error of the database, the message is delivered
again. Effect and row are committed together, or not at all.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import validate_group

from ..core import Connect, RetryLater, SqlConnection, SqlDialect, delete_in_pieces, table_name, transaction
from ..delivery import Delivery
from .keys import KeyFunction, digest, key_of, message_id
from .once import DAY_MS, Once
from .retrying import RetryReturned

log = Log()

TABLE: Final = "mqtrail_inbox"
PRUNED_AT_ONCE: Final = 1_000  # rows that are deleted in one transaction
SHOWN_MAX: Final = 255  # characters of a key that are kept for people

_INSERT: Final = {
    SqlDialect.SQLITE: "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING",
    SqlDialect.POSTGRESQL: "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING",
    SqlDialect.MYSQL: "INSERT IGNORE INTO {} ({}) VALUES ({})",
}

InboxHandler = Callable[[Delivery, Any], bytes | RetryLater | None]


def inbox_ddl(dialect: SqlDialect | str, table: str = TABLE) -> list[str]:
    """Return the statements that make the table of an inbox. dialect: sqlite, postgresql, or mysql for MariaDB too."""
    dialect = SqlDialect(dialect)
    table_name(table)
    blob = {SqlDialect.SQLITE: "BLOB", SqlDialect.POSTGRESQL: "BYTEA", SqlDialect.MYSQL: "LONGBLOB"}[dialect]
    columns = (
        "id CHAR(64) NOT NULL PRIMARY KEY, group_name VARCHAR(255) NOT NULL, message_key VARCHAR(255) NOT NULL, "
        f"done_ms BIGINT NOT NULL, result {blob}"
    )
    index = f"{table.replace('.', '_')}_done"
    if dialect is SqlDialect.MYSQL:
        return [
            f"CREATE TABLE IF NOT EXISTS {table} ({columns}, KEY {index} (group_name, done_ms)) "
            "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
        ]
    return [
        f"CREATE TABLE IF NOT EXISTS {table} ({columns})",
        f"CREATE INDEX IF NOT EXISTS {index} ON {table} (group_name, done_ms)",
    ]


class Inbox:
    """Lets the effect of each key happen exactly once in a database, whatever crashes. Thread safe.

    group: the namespace of the keys, usually the consumer's group. connect: opens a connection with commit, rollback
    and close; it is closed after each message, so a pool (SQLAlchemy's `engine.connect`) saves time. key: of a message
    (default: its id). keep_ms: how long keys are remembered; longer than any repeat of a message takes. prune_ms:
    interval at which older rows of the group are deleted, at most 1,000 each time; 0: only `prune` deletes. on_repeat:
    called with the message and the result of the first time when a message is repeated.
    """

    def __init__(
        self,
        group: str,
        connect: Connect,
        *,
        key: KeyFunction = message_id,
        table: str = TABLE,
        keep_ms: int = 7 * DAY_MS,
        prune_ms: int = 60_000,
        on_repeat: Callable[[Delivery, bytes], None] | None = None,
    ) -> None:
        validate_group(group)
        self.group = group
        self._connect = connect
        self._key = key
        self._table = table_name(table)
        self._keep_ms = keep_ms
        self._prune_ms = prune_ms
        self._on_repeat = on_repeat
        self._pruning = threading.Lock()
        self._next_prune_s = time.monotonic() + prune_ms / 1000

    def create(self) -> None:
        """Create the table if it does not exist; `inbox_ddl` has the statements."""
        with transaction(self._connect) as connection:
            sql = SqlConnection(connection)
            for statement in inbox_ddl(sql.dialect, self._table):
                sql.run(statement)

    def __call__(self, handler: InboxHandler) -> Callable[[Delivery], RetryLater | None]:
        """Return a handler that runs this one once for each key. A decorator for plain functions.

        handler gets the message and the connection, and neither commits nor rolls back. It may return bytes, which are
        kept as its result, None, or RetryLater. Whatever it or the database raises rolls back, and means a retry.
        """

        @functools.wraps(handler)
        def handle(delivery: Delivery) -> RetryLater | None:
            def effect(connection: Any) -> bytes | None:
                answer = handler(delivery, connection)
                if isinstance(answer, RetryLater):
                    raise RetryReturned(answer)
                return answer

            try:
                once = self.run(key_of(self._key, delivery), effect)
            except RetryReturned as retry:
                return retry.later
            if not once.fresh and self._on_repeat is not None:
                self._on_repeat(delivery, once.result)
            return None

        return handle

    def run(self, key: str, effect: Callable[[Any], bytes | None]) -> Once:
        """Call effect with a connection, and commit, unless that was done for this key; return its result.

        Raises what effect and the database raise; then nothing is committed, unless the database did not answer the
        commit itself. The next call finds out.
        """
        with transaction(self._connect) as connection:
            if self.first(connection, key):
                result = effect(connection)
                if result:
                    SqlConnection(connection).run(
                        f"UPDATE {self._table} SET result = ? WHERE id = ?", (result, digest(self.group, key))
                    )
                once = Once(True, result or b"")
            else:
                once = Once(False, self.result(connection, key))
        if self._prune_ms and time.monotonic() >= self._next_prune_s:
            self._prune_now()
        return once

    def first(self, connection: Any, key: str) -> bool:
        """Record the key in the transaction of a connection of yours; return whether it is new.

        If it is not, the effect has been committed: end the transaction without it.
        """
        sql = SqlConnection(connection)
        columns = ("id", "group_name", "message_key", "done_ms")
        insert = _INSERT[sql.dialect].format(self._table, ", ".join(columns), ", ".join("?" * len(columns)))
        shown = key[:SHOWN_MAX].encode("utf-8", "replace").decode().replace("\0", "?")
        return sql.run(insert, (digest(self.group, key), self.group, shown, now_ms())) == 1

    def result(self, connection: Any, key: str) -> bytes:
        """Return the result that was kept for a key; empty if there is none."""
        found = SqlConnection(connection).rows(
            f"SELECT result FROM {self._table} WHERE id = ?", (digest(self.group, key),)
        )
        return bytes(found[0][0]) if found and found[0][0] is not None else b""

    def prune(self) -> int:
        """Delete the group's rows older than keep_ms, 1,000 in each transaction; return how many."""
        count = 0
        while (deleted := self._prune_once()) > 0:
            count += deleted
            if deleted < PRUNED_AT_ONCE:
                break
        return count

    def _prune_once(self) -> int:
        with transaction(self._connect) as connection:
            values = (self.group, now_ms() - self._keep_ms)
            condition = "group_name = ? AND done_ms < ?"
            return delete_in_pieces(SqlConnection(connection), self._table, condition, values, PRUNED_AT_ONCE)

    def _prune_now(self) -> None:
        """Delete some old rows, in one thread at a time. A failure is logged: the message is done."""
        if not self._pruning.acquire(blocking=False):
            return
        try:
            self._next_prune_s = time.monotonic() + self._prune_ms / 1000
            self._prune_once()
        except Exception as error:
            log.sparse.warning("idempotency.prune_failed", table=self._table, error=repr(error))
        finally:
            self._pruning.release()
