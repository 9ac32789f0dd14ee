"""A MariaDB with a binlog, for `mqtrail binlog`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Self

import pymysql
import trustme

from .servers import PASSWORD, USER, MariaDB


class BinlogMariaDB(MariaDB):
    """It writes rows, with the names of their columns. It also takes TLS: ca.pem in its folder has signed for it."""

    def make(self) -> None:
        """Make the certificate too."""
        super().make()
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.folder / "ca.pem")
        made = authority.issue_cert("127.0.0.1")
        made.cert_chain_pems[0].write_to_path(self.folder / "server.pem")
        made.private_key_pem.write_to_path(self.folder / "server.key")

    def command(self) -> list[str]:
        """As MariaDB's, with a binlog."""
        return [
            *super().command(),
            *(f"--ssl-cert={self.folder}/server.pem", f"--ssl-key={self.folder}/server.key"),
            *("--log-bin=bin", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--server-id=7"),
            "--sync-binlog=0",
        ]

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """A server that ends with the block. AssertionError: it does not start; its text has the remedy or the log."""
        server = cls()
        try:
            yield server
        finally:
            server.remove()

    @contextmanager
    def connected(self, database: str = "") -> Iterator[Any]:
        """A cursor of a connection whose statements commit by themselves."""
        with closing(
            pymysql.connect(
                host="127.0.0.1",
                port=self.port,
                user=USER,
                password=PASSWORD,
                database=database or None,
                autocommit=True,
                charset="utf8mb4",
            )
        ) as connection:
            yield connection.cursor()

    def do(self, *statements: str, database: str = "") -> None:
        """Run statements of one session."""
        with self.connected(database) as cursor:
            for statement in statements:
                cursor.execute(statement)
