"""kill -9 under load, round after round on one folder; the simulator's checker examines the clients' history."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from mqtrail.net import ConnectionPool
from mqtrail.wire import (
    CreateTopicHeader,
    Perm,
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_records,
    dlq_topic,
    retry_topic,
)
from tests.databases.servers import DatabaseServer
from tests.ports import free_ports
from tests.sim.checker import check
from tests.sim.clients import note_read, place_of
from tests.sim.cluster import CONCURRENT, TOPIC
from tests.sim.consumers import Consumer
from tests.sim.history import Ended, History
from tests.sim.network import Network
from tests.sim.producers import Producer
from tests.sim.servers import DELAY_LEVELS

from .real import RealEngine, RealNetwork

BROKER = "broker-a"
SEGMENT_SIZE = 16 << 20
QUEUES = 4
PRODUCERS = 16
LOAD_S = (0.15, 0.8)  # between two kills
CALM_S_MAX = 90.0
FOUND_S_MAX = 60.0  # for the clients to find a broker that has started
QUIET_S = 12.0  # longer than the longest delay: no event follows after this time without one
REQUEST_MS = 5_000

PROGRAM = """
import json, sys
from pathlib import Path
from mqtrail.broker import BrokerConfig
from mqtrail.node import NodeConfig, run_up
from mqtrail.store import CommitLogConfig

given = json.loads(sys.argv[1])
config = NodeConfig(
    data=Path(given["data"]),
    namesrv_port=given["namesrv_port"],
    namesrv_addresses=tuple(given["join"]),
    broker_port=given["broker_port"],
    ha_port=given["ha_port"],
    broker=BrokerConfig(**given["broker"]),
    store=CommitLogConfig(**given["store"]),
    store_url=given["store_url"],
    store_nodes=given["store_nodes"],
    expire_interval_ms=500,
)

def ready(node):
    recovery = node.brokers["broker-a"].store.recovery
    print(json.dumps({"recovery": str(recovery)}), flush=True)

sys.exit(run_up(config, on_ready=ready))
"""


class KilledNode:
    """A name server and a broker in one process, on fixed ports, to be killed and restarted."""

    def __init__(
        self,
        data: Path,
        log: Path,
        *,
        sync_flush: bool,
        store: dict[str, Any] | None = None,
        broker: dict[str, Any] | None = None,
        join: str = "",
        namesrv_port: int = 0,
        stores: str = "",
    ) -> None:
        """log: file for its output. join: address of the name server to use instead of an own one. broker: further
        settings; with a role it also gets a port for slaves. stores: URL of the database that keeps messages in tables,
        then NAME=URL of further ones, with spaces between; empty: a CommitLog."""
        store_url, _, store_nodes = stores.partition(" ")
        self.data, self.log = data, log
        own_namesrv_port, self.broker_port, ha_port = free_ports(3)
        self.namesrv_port = namesrv_port or own_namesrv_port
        self.namesrv, self.broker = f"127.0.0.1:{self.namesrv_port}", f"127.0.0.1:{self.broker_port}"
        self._settings = {
            "data": str(data),
            "namesrv_port": None if join else self.namesrv_port,
            "join": [join] if join else [],
            "broker_port": self.broker_port,
            "ha_port": ha_port if broker else None,
            "store_url": store_url,
            "store_nodes": store_nodes,
            "store": {"segment_size": SEGMENT_SIZE, **(store or {})},
            "broker": {
                "sync_flush": sync_flush,
                "message_delay_level": DELAY_LEVELS,
                "offsets_save_ms": 500,
                "transaction_timeout_ms": 2_000,
                "transaction_check_ms": 2_000,
                **(broker or {}),
            },
        }
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> str:
        """Start it; return the store's recovery report once it serves."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PROGRAM, json.dumps(self._settings), stdout=subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            text = self.log.read_text()
            raise AssertionError(f"the node ended with {await self.process.wait()}; its log ends in\n{text[-2000:]}")
        return str(json.loads(line)["recovery"])

    async def end(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end; return the exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            os.kill(self.process.pid, number)
        return await self.process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process is not None:
            await self.end(signal.SIGKILL)


class FastProducer(Producer):
    PACE_MS = (0.0, 2.0)


async def kill_rounds(
    folder: Path,
    *,
    sync_flush: bool,
    rounds: int,
    seed: int,
    stores: str = "",
    databases: Sequence[DatabaseServer] = (),
    down_s: float = 0.0,
) -> tuple[History, list[str]]:
    """Kill a broker under load this many times; return the clients' history, and the broken promises.

    stores: see KilledNode. databases: their servers; the broker and they are killed in turn, and a server stays down
    for down_s. Afterwards the folder is as after a clean stop.
    """
    folder.mkdir(parents=True, exist_ok=True)
    engine, network = RealEngine(seed), cast(Network, RealNetwork())
    history = History(sync_flush=sync_flush, groups={TOPIC: CONCURRENT})
    async with KilledNode(folder / "data", folder / "node.log", sync_flush=sync_flush, stores=stores) as node:
        await node.start()
        await create_topic(node.broker, TOPIC)
        producers = [
            FastProducer(engine, network, history, f"producer-{number}", node.namesrv, TOPIC)
            for number in range(PRODUCERS)
        ]
        consumers = [
            Consumer(engine, network, history, f"{group}-{number}", node.namesrv, group, TOPIC)
            for group in CONCURRENT
            for number in range(2)
        ]
        for number in range(rounds):
            await sending(history)
            await asyncio.sleep(engine.between(*LOAD_S))
            if turn := number % (1 + len(databases)):
                database = databases[turn - 1]
                database.kill()
                await asyncio.sleep(down_s)
                database.launch()
                await asyncio.to_thread(database.wait_ready)
                continue
            await node.end(signal.SIGKILL)
            history.ends.append(Ended(engine.now_ms, BROKER))
            await node.start()
        for producer in producers:
            producer.stopped = True
        await calm(history)
        await audit(node.broker, history, engine)
        for client in (*producers, *consumers):
            client.kill()
        assert await node.end(signal.SIGTERM) == 0, (folder / "node.log").read_text()[-2000:]
    return history, check(history)


async def sending(history: History) -> None:
    """Wait until the clients have found the broker, and send again."""
    before = len(history.sent)
    async with asyncio.timeout(FOUND_S_MAX):
        while len(history.sent) < before + PRODUCERS:
            await asyncio.sleep(0.02)


async def calm(history: History) -> None:
    """Wait until the clients have finished all work."""
    seen, quiet_s, waited_s = (0, 0), 0.0, 0.0
    while quiet_s < QUIET_S and waited_s < CALM_S_MAX:
        await asyncio.sleep(0.5)
        waited_s += 0.5
        now = len(history.reads), len(history.handled)
        quiet_s = quiet_s + 0.5 if now == seen else 0.0
        seen = now


async def create_topic(broker: str, topic: str) -> None:
    """Create a topic on a broker."""
    ext = CreateTopicHeader(topic, QUEUES, QUEUES, int(Perm.READ | Perm.WRITE)).to_ext()
    pool = ConnectionPool()
    reply = await pool.request(broker, RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext), REQUEST_MS)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    await pool.close()


async def audit(broker: str, history: History, engine: RealEngine) -> None:
    pool = ConnectionPool()
    for topic in (TOPIC, *(name for group in CONCURRENT for name in (retry_topic(group), dlq_topic(group)))):
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                header = PullHeader("audit", topic, queue_id, offset, 32, int(PullSysFlag.SUBSCRIPTION), 0, 0, "*")
                command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
                reply = await pool.request(broker, command, REQUEST_MS)
                if reply.code != ResponseCode.SUCCESS:
                    break
                for message in decode_records(reply.body):
                    note_read(history, engine.now_ms, "audit", place_of(BROKER, message), message)
                offset = int(reply.ext["nextBeginOffset"])
    await pool.close()
