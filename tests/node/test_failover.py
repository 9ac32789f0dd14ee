"""Groups of controllers and brokers as processes: the master is killed while producers send."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mqtrail.client import Producer, ProducerConfig
from mqtrail.net import ConnectionPool, NetError
from mqtrail.node.namesrv_node import NameServerNode
from mqtrail.wire import Message, MQError, RemotingCommand, RequestCode
from tests.ports import free_ports

from .helpers import read_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DEADLINE_S = 120.0
NAME = "broker-a"
TOPIC = "Orders"
QUEUES = range(4)


async def state(pool: ConnectionPool, controllers: Sequence[str]) -> tuple[str, list[int]]:
    """Return the address of the master, and the ids of the in-sync replicas; "" without a master."""
    for address in controllers:
        command = RemotingCommand(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([NAME]).encode())
        try:
            reply = await pool.request(address, command, 1_000)
        except NetError:
            continue
        found = json.loads(reply.body)["replicasInfoTable"].get(NAME) if reply.code == 0 else None
        if found is not None:
            return found.get("masterAddress", ""), [one["brokerId"] for one in found["inSyncReplicas"]]
    return "", []


async def whole(pool: ConnectionPool, controllers: Sequence[str]) -> str:
    """Wait until all three brokers are in sync; return the master's address."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            master, ids = await state(pool, controllers)
            if master and ids == [1, 2, 3]:
                return master
            await asyncio.sleep(0.05)


class Group:
    """Three brokers and their controllers; brokers have the ids 1 to 3."""

    def __init__(self, folder: Path, controllers: int) -> None:
        self.folder = folder
        ports = free_ports(controllers + 6)
        self.controllers = [f"127.0.0.1:{port}" for port in ports[:controllers]]
        self._ports = list(zip(ports[controllers::2], ports[controllers + 1 :: 2], strict=True))
        self.namesrv = NameServerNode()
        self.namesrv.bind("127.0.0.1", 0)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.pool = ConnectionPool()

    @property
    def namesrv_address(self) -> str:
        return f"127.0.0.1:{self.namesrv.port}"

    def start_controller(self, place: int) -> None:
        peers = ";".join(f"n{number}-{address}" for number, address in enumerate(self.controllers))
        self._run(f"controller{place}", "controller", "--peers", peers, "--self-id", f"n{place}")

    def start_broker(self, place: int) -> None:
        port, ha_port = self._ports[place]
        settings = {
            "controller_mode": "true",
            "controller_addresses": ";".join(self.controllers),
            "all_in_sync": "true",
            "node.ha_port": str(ha_port),
            "node.fast_port": "false",
            "store.segment_size": str(1 << 24),
        }
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        where = ["--join", self.namesrv_address, "--broker-port", str(port)]
        self._run(f"broker{place}", "up", *where, *sets)

    def _run(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "mqtrail", *arguments, "--json", "--data", str(self.folder / name)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, cwd=self.folder)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def place_of(self, address: str) -> int:
        return [port for port, _ in self._ports].index(int(address.rpartition(":")[2]))

    async def whole(self) -> str:
        """Wait until all brokers are in sync; return the master's address."""
        return await whole(self.pool, self.controllers)


@asynccontextmanager
async def group(folder: Path, controllers: int) -> AsyncIterator[Group]:
    found = Group(folder, controllers)
    await found.namesrv.start()
    try:
        for place in range(controllers):
            found.start_controller(place)
        for place in range(3):
            found.start_broker(place)
        await found.whole()
        yield found
    finally:
        for name in list(found.running):
            found.kill(name)
        await found.pool.close()
        await found.namesrv.stop()


class Load:
    """Producers that send one after another, with time for a fail-over on a busy machine.

    acknowledged: the bodies. times: when each was sent and acknowledged, by the loop's clock. failures: of sends.
    unsafe_count: sends that were answered, and that a slave lacks.
    """

    def __init__(self, namesrv: str, count: int = 4) -> None:
        self._producer = Producer("Shop", namesrv, config=ProducerConfig(send_timeout_ms=60_000, retry_count=10))
        self._count = count
        self.padding = b""  # of each body
        self._tasks: list[asyncio.Task[None]] = []
        self.acknowledged: list[bytes] = []
        self.times: list[tuple[float, float]] = []
        self.failures: list[Exception] = []
        self.unsafe_count = 0

    async def __aenter__(self) -> "Load":
        await self._producer.__aenter__()
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(self._count)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._producer.__aexit__(None, None, None)

    async def _send(self, number: int) -> None:
        turn = 0
        while True:
            body = b"%d-%d" % (number, turn) + self.padding
            turn += 1
            sent_s = asyncio.get_running_loop().time()
            try:
                result = await self._producer.send(Message(TOPIC, body))
            except (NetError, MQError, OSError, TimeoutError) as error:
                self.failures.append(error)
                await asyncio.sleep(0.01)
                continue
            if result.status.name == "SEND_OK":
                self.acknowledged.append(body)
                self.times.append((sent_s, asyncio.get_running_loop().time()))
            else:
                self.unsafe_count += 1
                await asyncio.sleep(0.05)

    async def more(self, count: int = 200) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(DEADLINE_S):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.02)


async def kill_masters(found: Group, load: Load, rounds: int) -> list[float]:
    """Kill the master, wait for further sends, start it again; return the seconds until the first acknowledged send."""
    waits = []
    for _ in range(rounds):
        await load.more()
        place = found.place_of(await found.whole())
        found.kill(f"broker{place}")
        killed_s = asyncio.get_running_loop().time()
        known = len(load.times)
        await load.more()
        waits.append(next(done_s for sent_s, done_s in load.times[known:] if sent_s > killed_s) - killed_s)
        found.start_broker(place)
    return waits


@pytest.mark.parametrize(("controllers", "rounds"), [(1, 2), (3, 1)])
async def test_no_acknowledged_message_is_lost_when_masters_are_killed(
    controllers: int, rounds: int, tmp_path: Path
) -> None:
    """kill -9 under load: the next master has every message that was acknowledged, and so has each broker."""
    async with group(tmp_path, controllers) as found:
        async with Load(found.namesrv_address) as load:
            await kill_masters(found, load, rounds)
            await found.whole()
        master = await found.whole()
        stored = {one.body for one in await read_all(found.pool, master, TOPIC, QUEUES)}
        assert not set(load.acknowledged) - stored
