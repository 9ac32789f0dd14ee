"""A broker on tables: its replies wait for commits; what it refuses."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.net import ConnectionPool
from mqtrail.node import Node, NodeConfig
from mqtrail.store import StoreError
from mqtrail.testing import embedded_async, embedded_config
from mqtrail.wire import InvalidParameter, ResponseCode
from tests.waiting import until

from .helpers import read_all, send_command

UNTIL_S = 60.0


async def test_no_reply_leaves_before_the_commit(tmp_path: Path) -> None:
    """While another program has the database locked, neither a send nor a pull of its message is answered; afterwards
    both are. The settings of the broker do not ask for SYNC_FLUSH."""
    url = f"sqlite:///{tmp_path / 'messages.db'}"
    async with embedded_async(tmp_path / "data", store_url=url) as cluster:
        (broker,) = cluster.broker_addresses
        store = cluster.node.brokers["broker-a"].store
        assert store is not None
        pool = ConnectionPool()
        assert (await pool.request(broker, send_command("orders", b"first"), 30_000)).code == 0
        with closing(sqlite3.connect(tmp_path / "messages.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            committed = store.flushed_offset
            sending = asyncio.create_task(pool.request(broker, send_command("orders", b"second"), 30_000))
            await until(lambda: store.max_offset("orders", 0) == 2)
            reading = asyncio.create_task(read_all(pool, broker, "orders", [0]))
            later = send_command("orders", b"x", queue_id=99)  # refused at once, on the same connection
            assert (await pool.request(broker, later, 30_000)).code != ResponseCode.SUCCESS
            assert (sending.done(), reading.done()) == (False, False)
            assert store.flushed_offset == committed
            other.execute("ROLLBACK")
        reply = await sending
        assert reply.code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)
        assert [message.body for message in await reading] == [b"first", b"second"]
        await pool.close()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"broker_names": ("a", "b")}, "found 2 brokers on one database"),
        ({"broker": BrokerConfig(broker_role="SYNC_MASTER")}, "with slaves, a master or a controller"),
        ({"ha_port": 0}, "with slaves, a master or a controller"),
        ({"store_url": "oracle://host/db"}, "expected sqlite:///"),
    ],
)
async def test_settings_that_do_not_go_together(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    """They are refused before anything serves."""
    config = embedded_config(tmp_path / "data", store_url=f"sqlite:///{tmp_path / 'messages.db'}")
    with pytest.raises(InvalidParameter, match=found):
        await started(replace(config, **changes))


async def started(config: NodeConfig) -> None:
    node = Node(config)
    await node.start()
    await node.stop()


async def test_a_folder_keeps_its_kind_of_store(tmp_path: Path) -> None:
    """Groups' offsets in the folder belong to one store: the other kind is refused, both ways."""
    url = f"sqlite:///{tmp_path / 'messages.db'}"
    await started(embedded_config(tmp_path / "tables", store_url=url))
    with pytest.raises(StoreError, match="pass --store"):
        await started(embedded_config(tmp_path / "tables"))
    await started(embedded_config(tmp_path / "tables", store_url=url))
    async with embedded_async(tmp_path / "log") as cluster:
        pool = ConnectionPool()
        assert (await pool.request(cluster.broker_addresses[0], send_command("orders", b"x"), 30_000)).code == 0
        await pool.close()
    with pytest.raises(StoreError, match="found a CommitLog in the folder"):
        await started(embedded_config(tmp_path / "log", store_url=url))
