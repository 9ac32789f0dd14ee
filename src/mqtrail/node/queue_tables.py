"""The queues of a broker on tables, for its HTTP door.

Import it late: SQLAlchemy is an extra, and takes long to import.
"""

import asyncio
from typing import Final

from mqtrail.store.sql import SqlStore, look_at, set_node

from .broker_node import BrokerNode

SAVED_S: Final = 5.0  # how long a change waits for its commit
LOOK_S: Final = 0.02


class BrokerTables:
    """See `QueueKeeper` of the door. All of it runs on the broker's event loop."""

    def __init__(self, broker: BrokerNode, url: str) -> None:
        """url: of the home."""
        assert isinstance(broker.store, SqlStore)
        self._url = url
        self._store = broker.store
        self._broker = broker

    @property
    def node_names(self) -> list[str]:
        """The names of all databases, the home first."""
        return self._store.node_names

    def node_of(self, topic: str, queue: int) -> str | None:
        """Return the name of the database of a queue; None: there is no such queue."""
        return self._store.node_of(topic, queue)

    def tables_of(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the queues with a table: where each begins and ends."""
        store = self._store
        return {
            queue: (store.min_offset(topic, queue), store.max_offset(topic, queue))
            for queue in store.queue_ids(topic)
            if store.has_table(topic, queue)
        }

    def end_of(self, topic: str, queue: int) -> int:
        """Return where a queue ends."""
        return self._store.max_offset(topic, queue)

    def is_closed(self, topic: str, queue: int) -> bool:
        """Return whether `close_queue` closed a queue."""
        return self._store.is_closed(topic, queue)

    def close_queue(self, topic: str, queue: int, why: str | None) -> None:
        """Let publishers not use a queue; why None: let them."""
        self._store.close_queue(topic, queue, why)

    async def release_table(self, topic: str, queue: int, end: int, to: str | None) -> bool:
        """Take its table from a queue; return whether that is committed. ServiceNotAvailable: it was not done."""
        is_saved = self._store.release_table(topic, queue, end, to)
        for _ in range(int(SAVED_S / LOOK_S)):
            self._broker.flush_soon()
            if is_saved():
                return True
            await asyncio.sleep(LOOK_S)
        return is_saved()

    async def nodes(self) -> dict[str, tuple[str, str]]:
        """Return kind and state of each database by name, as the home has them. StoreError."""
        found = await asyncio.to_thread(look_at, self._url)
        return {one.name: (one.kind, one.state) for one in found.nodes}

    async def set_node(self, name: str, kind: str | None, state: str | None, *, force: bool) -> tuple[str, str]:
        """Change kind or state of a database. StoreError, InvalidParameter: it was not done."""
        found = await asyncio.to_thread(set_node, self._url, name, kind=kind, state=state, force=force)
        return found.kind, found.state
