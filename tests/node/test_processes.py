"""Brokers in separate processes: ports, crashes, stops, names and folders."""

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mqtrail.broker import BrokerConfig
from mqtrail.net import ConnectionPool
from mqtrail.node import DataFolderError, Node, NodeConfig, ProcessNode, WorkerEnded
from mqtrail.store import CommitLogConfig
from mqtrail.wire import InvalidParameter, RemotingCommand, RequestCode
from tests.loops import run
from tests.waiting import wait_until

from .helpers import NodeProcess, read_all, running, send_command

TWO: dict[str, Any] = {"broker_names": ("broker-a", "broker-b"), "namesrv_port": 0, "broker_port": 0}
SMALL = CommitLogConfig(segment_size=1 << 24)


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return b") Z " not in Path(f"/proc/{process_id}/stat").read_bytes()


def children(process_id: int) -> list[int]:
    text = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    return [int(part) for part in text.split()]


@pytest.mark.slow
def test_crash_of_one_leaves_the_others(tmp_path: Path) -> None:
    """It is logged; the name server removes it; the other continues; after a restart its messages exist."""
    config = NodeConfig(data=tmp_path, store=SMALL, **TWO)

    async def names(pool: ConnectionPool, node: ProcessNode) -> set[str]:
        reply = await pool.request(node.namesrv_address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), 30_000)
        return {name for name in node.reports if name.encode() in reply.body}

    async def main() -> None:
        node, pool = ProcessNode(config), ConnectionPool()
        await node.start()
        try:
            first, second = node.broker_addresses
            assert (await pool.request(first, send_command("orders", b"kept"), 30_000)).code == 0
            assert len(set(node.process_ids.values()) | {os.getpid()}) == 3
            with capture_logs() as logs:
                os.kill(node.process_ids["broker-a"], signal.SIGKILL)
                async with asyncio.timeout(60):
                    while await names(pool, node) != {"broker-b"} or "broker-a" in node.process_ids:
                        await asyncio.sleep(0.02)
            (reported,) = [entry for entry in logs if entry["event"] == "broker.ended"]
            assert (reported["broker"], reported["found"]) == ("broker-a", "was killed by signal 9")
            assert (await pool.request(second, send_command("orders", b"x"), 30_000)).code == 0
            assert isinstance(node.failure, WorkerEnded)
            assert not node.failed.is_set()
        finally:
            await pool.close()
            await node.stop()

    async def again() -> None:
        node, pool = ProcessNode(config), ConnectionPool()
        await node.start()
        try:
            [message] = await read_all(pool, node.broker_addresses[0], "orders", [0])
            assert message.body == b"kept"
        finally:
            await pool.close()
            await node.stop()
        assert node.failure is None

    run(main())
    run(again())


@pytest.mark.slow
async def test_the_last_crash_ends_the_node() -> None:
    """Without any broker left, the node stops, with exit code 1."""
    node = ProcessNode(NodeConfig(**TWO))
    await node.start()
    try:
        for process_id in node.process_ids.values():
            os.kill(process_id, signal.SIGKILL)
        async with asyncio.timeout(60):
            await node.failed.wait()
    finally:
        await node.stop()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_brokers_end_with_their_node(tmp_path: Path, number: int) -> None:
    """Workers end cleanly, also when the node is killed: no process keeps a port."""
    with NodeProcess(tmp_path, broker_names=["broker-a", "broker-b"]) as process:
        workers = children(process.process.pid)
        assert len(workers) == 2
        assert all(map(is_alive, workers))
        process.end(number)
        wait_until(lambda: not any(map(is_alive, workers)), 20)
    for name in ("broker-a", "broker-b"):
        assert not (tmp_path / name / "abort").exists()


@pytest.mark.slow
async def test_a_broker_that_cannot_start_stops_the_start(tmp_path: Path) -> None:
    """The error has the broker's text; the other brokers are stopped, and the folder is free."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text("accounts: 3")
    data = tmp_path / "data"
    broken = NodeConfig(data=data, acl_home=tmp_path, broker=BrokerConfig(acl=True), store=SMALL, **TWO)
    with pytest.raises(WorkerEnded, match=r"broker broker-[ab]: .*plain_acl.yml"):
        await ProcessNode(broken).start()

    node = ProcessNode(NodeConfig(data=data, store=SMALL, **TWO))
    await node.start()
    await node.stop()


async def test_two_brokers_of_one_name_are_refused() -> None:
    """Within a node the settings are checked; at a name server, whether a running broker has the name."""
    with pytest.raises(InvalidParameter, match="expected each once"):
        await ProcessNode(NodeConfig(broker_names=("a", "a"))).start()

    async with running() as (node, pool):
        joined: dict[str, Any] = {"namesrv_port": None, "namesrv_addresses": (node.namesrv_address,)}
        with pytest.raises(InvalidParameter, match=f"'broker-a' in use by {node.broker_addresses[0]}"):
            async with running(**joined):
                pass
        # The refused broker did not change the routes.
        command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        reply = await pool.request(node.namesrv_address, command, 30_000)
        assert node.broker_addresses[0].encode() in reply.body
        async with running(**joined, broker_names=("broker-x",)):
            pass
        # A registered broker that does not run does not block the name.
        body = json.dumps({"topicConfigSerializeWrapper": {}, "filterServerList": []}).encode()
        ghost = {"brokerName": "ghost", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster",
                 "haServerAddr": "127.0.0.1:2", "brokerId": "0"}  # fmt: skip
        await pool.request(node.namesrv_address, RemotingCommand(RequestCode.REGISTER_BROKER, ghost, body), 30_000)
        async with running(**joined, broker_names=("ghost",)) as (second, _):
            assert second.broker_addresses


@pytest.mark.slow
async def test_two_nodes_on_one_folder_are_refused(tmp_path: Path) -> None:
    """The second node's error names the first one's process, also if only one broker's folder is in use."""
    node = ProcessNode(NodeConfig(data=tmp_path, store=SMALL, **TWO))
    await node.start()
    try:
        with pytest.raises(DataFolderError, match=f"in use by process {os.getpid()}"):
            await Node(NodeConfig(data=tmp_path, store=SMALL, namesrv_port=0, broker_port=0)).start()
    finally:
        await node.stop()


@pytest.mark.slow
async def test_each_process_has_its_metrics() -> None:
    """Each broker reports its own port and serves only its own metrics."""
    node = ProcessNode(NodeConfig(metrics_port=0, **TWO))
    await node.start()
    try:
        urls = [report.metrics for report in node.reports.values()]
        texts = await asyncio.gather(*(asyncio.to_thread(fetch, url) for url in urls))
        assert ['node_id="broker-a"' in text for text in texts] == [True, False]
        assert node._metrics is not None
        assert b'node_type="namesrv"' in await node._metrics.text()
    finally:
        await node.stop()


@pytest.mark.slow
async def test_a_process_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of ours stay with the program that a user started; a broker gets its settings from it."""
    monkeypatch.setenv("MQTRAIL_INIT_USER", "a secret")
    monkeypatch.setenv("OF_ANOTHER_PROGRAM", "kept")
    node = ProcessNode(NodeConfig(**TWO))
    await node.start()
    try:
        for process in node._processes.values():
            inherited = Path(f"/proc/{process.process_id}/environ").read_bytes()
            assert b"OF_ANOTHER_PROGRAM=kept" in inherited
            assert b"a secret" not in inherited
    finally:
        await node.stop()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return str(reply.read(), "utf-8")
