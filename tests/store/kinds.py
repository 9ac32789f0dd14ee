"""Stores that differ in all that the contract leaves open: where files are, how large, when they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from mqtrail.store import (
    Appended,
    CommitLogConfig,
    CommitLogStore,
    MemoryStore,
    MessageStore,
    PendingRecord,
    RealDisk,
)
from mqtrail.store.dledger import LedgerStore
from mqtrail.store.sql import NodeDatabase, SqlStore
from tests.databases.servers import SERVERS, server

CONFIG = CommitLogConfig(
    segment_size=128 * 1024, queue_entries=60, index_slots=32, index_entries=500, message_size_max=32 * 1024
)
SMALLEST = CommitLogConfig(
    segment_size=97 * 1024, queue_entries=1, index_slots=1, index_entries=2, message_size_max=32 * 1024
)


class SyncedStore(CommitLogStore):
    """Each append is durable, indexed and noted when it returns, as under SYNC_FLUSH with the shortest intervals."""

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Append, and at once do all work that is usually done later."""
        tickets = super().append(records, now_ms)
        self.flush()
        while self.dispatch_index(1_000):
            pass
        self.write_queues(sync=True)
        return tickets


class ReopenedStore:
    """A store that is closed and opened again after each append: it knows only what its files contain."""

    def __init__(
        self, folder: Path, leave: Callable[[MessageStore], None], make: Callable[[Path], MessageStore]
    ) -> None:
        self._folder, self._leave, self._make = folder, leave, make
        self._store = make(folder)

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Append, then open the store again."""
        tickets = self._store.append(records, now_ms)
        self._leave(self._store)
        self._store = self._make(self._folder)
        return tickets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class LoneMember:
    """The leader of a group of one: what it appends is committed and visible at once."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        if store.ledger.term == 0:
            store.ledger.set_term(1, "n0")
        self._commit()
        store.lead(self)

    def check(self, count: int) -> None:
        """Refuse nothing."""

    def appended(self) -> None:
        """Commit."""
        self._commit()

    def _commit(self) -> None:
        ledger = self._store.ledger
        ledger.committed_index = ledger.end_index
        while not self._store.is_current:
            self._store.advance()


def _ledger(config: CommitLogConfig, folder: Path) -> MessageStore:
    store = LedgerStore(RealDisk(folder), config, self_id="n0", index_units=50)
    LoneMember(store)
    return store


def sqlite_url(folder: Path) -> str:
    """Return the URL of a database in a folder."""
    return f"sqlite:///{folder / 'messages.db'}"


def _commit_log(folder: Path) -> MessageStore:
    return CommitLogStore(RealDisk(folder), CONFIG)


def _sqlite(folder: Path) -> MessageStore:
    return SqlStore(RealDisk(folder), sqlite_url(folder), CONFIG)


def _sqlite_nodes(folder: Path) -> MessageStore:
    """A store on three files."""
    nodes = [NodeDatabase(name, f"sqlite:///{folder / name}.db") for name in ("n1", "n2")]
    return SqlStore(RealDisk(folder), sqlite_url(folder), CONFIG, nodes=nodes)


def _nodes_on_server(name: str, folder: Path) -> MessageStore:
    """Open three databases of a folder; the first call makes them."""
    note = folder / "urls"
    if not note.exists():
        note.write_text("\n".join(server(name).new_database() for _ in range(3)))
    home, *others = note.read_text().split()
    nodes = [NodeDatabase(f"n{number}", url) for number, url in enumerate(others)]
    return SqlStore(RealDisk(folder), home, CONFIG, nodes=nodes)


def _on_server(name: str, folder: Path) -> MessageStore:
    """Open the database of a folder; the first call makes it."""
    note = folder / "url"
    if not note.exists():
        note.write_text(server(name).new_database())
    return SqlStore(RealDisk(folder), note.read_text(), CONFIG)


def _killed_on_server(name: str, folder: Path) -> MessageStore:
    return cast(MessageStore, ReopenedStore(folder, _crash, partial(_on_server, name)))


def _crash(store: MessageStore) -> None:
    """End as a killed process does: the kernel keeps what was written, and the queue entries in memory are gone."""
    store.flush()
    store.abandon()


KINDS: dict[str, Callable[[Path], MessageStore]] = {
    "memory": lambda folder: MemoryStore(CONFIG),
    "disk": _commit_log,
    "smallest files": lambda folder: CommitLogStore(RealDisk(folder), SMALLEST),
    "synced": lambda folder: SyncedStore(RealDisk(folder), CONFIG),
    "reopened": lambda folder: cast(MessageStore, ReopenedStore(folder, lambda store: store.close(), _commit_log)),
    "sqlite": _sqlite,
    "sqlite, killed": lambda folder: cast(MessageStore, ReopenedStore(folder, _crash, _sqlite)),
    "sqlite, nodes": _sqlite_nodes,
    "sqlite, nodes, killed": lambda folder: cast(MessageStore, ReopenedStore(folder, _crash, _sqlite_nodes)),
    "ledger": partial(_ledger, CONFIG),
    "ledger, smallest files": partial(_ledger, SMALLEST),
    "ledger, reopened": lambda folder: cast(
        MessageStore, ReopenedStore(folder, lambda store: store.close(), partial(_ledger, CONFIG))
    ),
    "ledger, killed": lambda folder: cast(MessageStore, ReopenedStore(folder, _crash, partial(_ledger, CONFIG))),
    "killed": lambda folder: cast(MessageStore, ReopenedStore(folder, _crash, _commit_log)),
}
ON_SERVERS: dict[str, Callable[[Path], MessageStore]] = {
    name + end: partial(make, name)
    for name in SERVERS
    for end, make in (("", _on_server), (", killed", _killed_on_server), (", nodes", _nodes_on_server))
}
"""The same on database servers, for `make databases`."""
