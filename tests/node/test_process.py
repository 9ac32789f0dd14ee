"""A real process: ready soon, stopped by signals, killed without loss, restarted."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mqtrail.net import ConnectionPool, NetError
from mqtrail.wire import RemotingCommand, RequestCode, ResponseCode
from tests.loops import run

from .helpers import NodeProcess, read_all, send_command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_it_cleanly(tmp_path: Path, number: int) -> None:
    """Exit code 0, no warnings, no abort file, and the store opens as after a clean stop."""
    with NodeProcess(tmp_path / "data") as node:
        assert node.end(number) == (0, "")
    assert not (tmp_path / "data" / "broker-a" / "abort").exists()
    assert (tmp_path / "data" / "lock").read_text() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sync_flush", "uvloop", "on_tables"),
    [(False, True, False), (True, True, False), (False, False, False), (True, True, True)],
)
async def test_kill_9_loses_no_acknowledged_message(
    tmp_path: Path, sync_flush: bool, uvloop: bool, on_tables: bool
) -> None:
    """Every send acknowledged before kill -9 exists completely and once after the next start."""
    acknowledged: list[bytes] = []
    url = f"sqlite:///{tmp_path / 'messages.db'}" if on_tables else ""
    settings = {"sync_flush": sync_flush, "uvloop": uvloop, "store_url": url}

    async def sender(number: int, pool: ConnectionPool, broker: str) -> None:
        for count in range(100_000):
            body = b"%d-%d" % (number, count)
            try:
                reply = await pool.request(broker, send_command("orders", body, queue_id=number % 4), 30_000)
            except NetError:
                return
            if reply.code == ResponseCode.SYSTEM_BUSY:
                continue  # on a busy machine it waited for longer than wait_send_ms: refused, and not acknowledged
            assert reply.code == 0
            acknowledged.append(body)

    with NodeProcess(tmp_path / "data", **settings) as node:
        pool = ConnectionPool()
        senders = [asyncio.create_task(sender(number, pool, node.brokers[0])) for number in range(16)]
        while len(acknowledged) < 1_500:
            await asyncio.sleep(0.01)
        os.kill(node.process.pid, signal.SIGKILL)
        await asyncio.gather(*senders)
        await pool.close()
        node.end()
    with NodeProcess(tmp_path / "data", **settings) as node:
        pool = ConnectionPool()
        found = [message.body for message in await read_all(pool, node.brokers[0], "orders", range(4))]
        assert len(found) == len(set(found))
        assert set(acknowledged) <= set(found)
        reply = await pool.request(node.brokers[0], send_command("orders", b"after"), 30_000)
        assert reply.code == 0
        await pool.close()
        code, complaints = node.end()
    assert code == 0
    assert "store.recovered" in complaints


@pytest.mark.slow
def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    """Messages, topics, groups, offsets and the index are unchanged; the second start is clean."""

    async def fill(broker: str) -> None:
        pool = ConnectionPool()
        for number in range(10):
            reply = await pool.request(broker, send_command("orders", b"m%d" % number, key=f"key{number}"), 30_000)
            assert reply.code == 0
        ext = {"consumerGroup": "reader", "topic": "orders", "queueId": "0", "commitOffset": "7"}
        await read_all(pool, broker, "orders", [0])
        reply = await pool.request(broker, RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext), 30_000)
        assert reply.code == 0
        await pool.close()

    async def look(broker: str) -> None:
        pool = ConnectionPool()
        messages = await read_all(pool, broker, "orders", [0])
        assert [message.body for message in messages] == [b"m%d" % number for number in range(10)]
        ext = {"consumerGroup": "reader", "topic": "orders", "queueId": "0"}
        reply = await pool.request(broker, RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext), 30_000)
        assert reply.ext["offset"] == "7"
        query = {"topic": "orders", "key": "key3", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 50)}
        reply = await pool.request(broker, RemotingCommand(RequestCode.QUERY_MESSAGE, query), 30_000)
        assert reply.code == 0
        assert b"m3" in reply.body
        await pool.close()

    with NodeProcess(tmp_path / "data") as node:
        run(fill(node.brokers[0]))
        assert node.end() == (0, "")
    with NodeProcess(tmp_path / "data") as node:
        run(look(node.brokers[0]))
        assert node.end() == (0, "")


def test_what_a_start_imports() -> None:
    """A node loads no module of Spark, DuckDB, SQLAlchemy, YAML, the CLI or rich: start time and memory stay small."""
    program = (
        "import sys, mqtrail.node, mqtrail.testing.plugin\n"
        "heavy = set('pyspark duckdb deltalake pyarrow pandas numpy typer rich structlog yaml sqlalchemy'.split())\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_what_a_running_node_imports() -> None:
    """A plain node saves the memory of modules for TLS, SQL92 filters, DLedger, host names and random numbers."""
    program = (
        "import asyncio, sys\n"
        "from mqtrail.node import Node, NodeConfig\n"
        "async def main():\n"
        "    node = Node(NodeConfig(data=None, namesrv_port=0, broker_port=0))\n"
        "    await node.start()\n"
        "    print(sorted(late & sys.modules.keys()))\n"
        "    await node.stop()\n"
        "late = {'stringprep', 'tempfile', 'random', 'cryptography'}\n"
        "late |= {'mqtrail.wire.sql92', 'mqtrail.wire.ledger_requests'}\n"
        "asyncio.run(main())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_data_folder_as_designed(tmp_path: Path) -> None:
    """mqtrail.json with the format, and a folder for the name server and each broker, only for this user."""
    with NodeProcess(tmp_path / "data", broker_names=["broker-a", "broker-b"]) as node:
        assert len(node.brokers) == 2
        data = tmp_path / "data"
        assert json.loads((data / "mqtrail.json").read_text())["format"] == 1
        assert sorted(entry.name for entry in data.iterdir()) == [
            "broker-a",
            "broker-b",
            "lock",
            "mqtrail.json",
            "namesrv",
        ]
        assert data.stat().st_mode & 0o777 == 0o700
        assert (data / "lock").read_text().strip() == str(node.process.pid)
        assert node.end() == (0, "")
