"""Fail-over of a group of three brokers under load: from the fault of the master to the next acknowledged send.

The master is killed (kill -9) and stopped (SIGSTOP) in turns, in controller mode and in a DLedger group; the member
comes back afterwards. Both sides get the load of our client with its defaults. One group runs after the other: both at
once would need more than two cores. Ours has three controllers, Apache's has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from interop.apache import ApacheBroker, ApacheController, ApacheLedgerBroker, ApacheNameServer, free_port

from bench.broker import PEER
from bench.registry import figure
from bench.rows import Bar, Row
from bench.session import APACHE_VERSION, Session
from mqtrail.broker import BrokerConfig
from mqtrail.client import Producer
from mqtrail.net import ConnectionPool, NetError
from mqtrail.node import GroupConfig, GroupMode, GroupNode, NodeConfig
from mqtrail.store import CommitLogConfig
from mqtrail.wire import Message, MQError, RemotingCommand, RequestCode, TopicRouteData

NAME, TOPIC = "broker-a", "Failover"
MEMBERS = 3
THERE_LEAST = 2  # members in the route, and in sync, before the next fault: Apache's third one may need minutes
SENDERS = 4
SEGMENT_SIZE = 16 << 20
MORE = 200  # acknowledged sends before a fault
LATE_S = 0.05  # an acknowledgement that comes sooner was on its way when the fault came
WAIT_S = 180.0
POLL_S = 0.02
KILLED, STOPPED = signal.SIGKILL, signal.SIGSTOP


class MeasuredGroup(Protocol):
    """Three brokers. Addresses are host:port."""

    namesrv: str
    controllers: list[str]

    def process_id(self, address: str) -> int:
        """Return the process of a broker."""

    def kill(self, address: str) -> None:
        """kill -9."""

    def start_again(self, address: str) -> None:
        """Start a broker that was killed."""


class OurGroup:
    """`mqtrail up --ha 3`, which starts members again by itself."""

    def __init__(self, node: GroupNode) -> None:
        self._node = node
        self.namesrv = node.namesrv_address
        self.controllers = list(node.controller_addresses)

    def process_id(self, address: str) -> int:
        return next(self._node.process_ids[name] for name, one in self._node.reports.items() if one.address == address)

    def kill(self, address: str) -> None:
        os.kill(self.process_id(address), KILLED)

    def start_again(self, address: str) -> None:
        pass


class ApacheGroup:
    """Three brokers of Apache's, a name server and, in controller mode, a controller."""

    def __init__(self, namesrv: ApacheNameServer, controllers: list[str], brokers: list[ApacheBroker]) -> None:
        self.namesrv, self.controllers = namesrv.address, controllers
        self._brokers = {broker.address: broker for broker in brokers}

    def process_id(self, address: str) -> int:
        return self._brokers[address].pid

    def kill(self, address: str) -> None:
        self._brokers[address].kill()

    def start_again(self, address: str) -> None:
        self._brokers[address].launch()


@asynccontextmanager
async def our_group(folder: Path, mode: GroupMode) -> AsyncIterator[MeasuredGroup]:
    config = NodeConfig(
        data=folder,
        namesrv_port=0,
        broker_port=0,
        group=GroupConfig(size=MEMBERS, mode=mode, controller_port=0),
        store=CommitLogConfig(segment_size=SEGMENT_SIZE),
        broker=BrokerConfig(all_in_sync=True),
    )
    node = GroupNode(config)
    await node.start()
    try:
        yield OurGroup(node)
    finally:
        await node.stop()


@asynccontextmanager
async def apache_group(folder: Path, mode: GroupMode) -> AsyncIterator[MeasuredGroup]:
    namesrv = ApacheNameServer(APACHE_VERSION, folder / "namesrv")
    properties = {"mappedFileSizeCommitLog": str(SEGMENT_SIZE), "slaveReadEnable": "true"}
    controller = ApacheController(folder / "controller") if mode is GroupMode.CONTROLLER else None
    brokers: list[ApacheBroker] = []
    servers = [namesrv] if controller is None else [namesrv, controller]
    try:
        for server in servers:
            await asyncio.to_thread(server.start)
        peers = {f"n{number}": f"127.0.0.1:{free_port()}" for number in range(MEMBERS)}
        for number, self_id in enumerate(peers):
            where = APACHE_VERSION, folder / f"broker{number}", namesrv.address
            if controller is None:
                brokers.append(ApacheLedgerBroker(*where, self_id, peers, properties=properties))
            else:
                given = {**properties, **controller.broker_properties, "allAckInSyncStateSet": "true"}
                brokers.append(ApacheBroker(*where, name=NAME, properties=given))
            brokers[-1].launch()
        for broker in brokers:
            await asyncio.to_thread(broker.wait_ready)
        yield ApacheGroup(namesrv, [] if controller is None else [controller.address], brokers)
    finally:
        for one in (*brokers, *servers):
            one.kill()


GROUPS: dict[str, Callable[[Path, GroupMode], contextlib.AbstractAsyncContextManager[MeasuredGroup]]] = {
    "ours": our_group,
    "apache": apache_group,
}


@dataclass
class Senders:
    """Producers that send one after another. times_s: when each send was acknowledged, by the loop's clock."""

    namesrv: str
    times_s: list[float] = field(default_factory=list)

    async def __aenter__(self) -> Senders:
        self._producer = Producer("Bench", self.namesrv)
        await self._producer.__aenter__()
        self._tasks = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._producer.__aexit__(None, None, None)

    async def _send(self) -> None:
        while True:
            try:
                result = await self._producer.send(Message(TOPIC, bytes(100)))
            except (NetError, MQError, OSError, TimeoutError):
                await asyncio.sleep(0.01)
                continue
            if result.status.name == "SEND_OK":
                self.times_s.append(asyncio.get_running_loop().time())

    async def more(self) -> None:
        """Wait until MORE sends are acknowledged."""
        wanted = len(self.times_s) + MORE
        await _until(_now(lambda: len(self.times_s) >= wanted))

    async def acknowledged(self, since_s: float) -> None:
        """Wait until a send is acknowledged after a time."""
        await _until(_now(lambda: self.times_s[-1] > since_s))


def _now(condition: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def look() -> object:
        return condition()

    return look


async def _until(look: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await look():
            await asyncio.sleep(POLL_S)


async def master_of(pool: ConnectionPool, group: MeasuredGroup) -> str:
    """Return the address of the master once THERE_LEAST members are there, in controller mode in sync; else empty."""
    try:
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        reply = await pool.request(group.namesrv, command, 3_000)
        addresses = TopicRouteData.decode(reply.body).broker_datas[0].broker_addrs if reply.code == 0 else {}
        if len(addresses) < THERE_LEAST or 0 not in addresses:
            return ""
        for controller in group.controllers:
            command = RemotingCommand(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([NAME]).encode())
            reply = await pool.request(controller, command, 3_000)
            if reply.code == 0:
                found = json.loads(reply.body)["replicasInfoTable"].get(NAME) or {}
                is_whole = len(found.get("inSyncReplicas", ())) >= THERE_LEAST
                return str(found["masterAddress"]) if is_whole and found["masterAddress"] == addresses[0] else ""
    except (NetError, MQError):
        return ""
    return "" if group.controllers else addresses[0]


async def fail_over(group: MeasuredGroup, rounds: int) -> dict[signal.Signals, list[float]]:
    """Return the seconds from each fault of the master to the next acknowledged send."""
    loop = asyncio.get_running_loop()
    found: dict[signal.Signals, list[float]] = {KILLED: [], STOPPED: []}
    pool = ConnectionPool()
    try:
        async with Senders(group.namesrv) as load:
            await load.more()
            for _ in range(rounds):
                for fault in (KILLED, STOPPED):
                    await _until(lambda: master_of(pool, group))
                    await load.more()
                    master = await master_of(pool, group)
                    process_id = group.process_id(master)
                    began_s = loop.time()
                    if fault is KILLED:
                        group.kill(master)
                    else:
                        os.kill(process_id, STOPPED)
                    try:
                        await load.acknowledged(began_s + LATE_S)
                    finally:
                        if fault is STOPPED:
                            os.kill(process_id, signal.SIGCONT)
                    first_s = next(at_s for at_s in load.times_s if at_s > began_s + LATE_S)
                    found[fault].append(first_s - began_s)
                    if fault is KILLED:
                        group.start_again(master)
    finally:
        await pool.close()
    return found


async def _measured(side: str, mode: GroupMode, folder: Path, rounds: int) -> dict[signal.Signals, list[float]]:
    async with GROUPS[side](folder, mode) as group:
        return await fail_over(group, rounds)


@figure("failover", "fault of the master of three brokers to the next acknowledged send, beside Apache", seconds=1_200)
def failover(session: Session) -> Iterator[Row]:
    """Both modes, both faults."""
    session.alone()
    limits = {GroupMode.DLEDGER: 1.0, GroupMode.CONTROLLER: 0.5}
    for mode, limit_s in limits.items():
        found = {}
        for side in GROUPS:
            found[side] = asyncio.run(_measured(side, mode, session.fresh_folder(f"failover-{side}"), session.rounds))
        for fault, name, bar in (
            (KILLED, "killed", Bar("<=", limit_s, of="ours")),
            (STOPPED, "stopped", Bar("<=", 0.5)),
        ):
            ours, apache = found["ours"][fault], found["apache"][fault]
            yield Row(
                f"failover/{mode.value}-{name}",
                f"{mode.value}: master {name} under load to the next acknowledged send, our client with its defaults",
                "s",
                ours,
                apache,
                PEER,
                bar,
                more={"ours_max": max(ours), "peer_max": max(apache)},
            )
