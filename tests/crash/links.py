"""kill -9, SIGSTOP and cut links of members of a group under load, in each mode: what was acknowledged stays.

    kill, stop     the process of a broker; it is started, or continued, once sends go on
    isolated       the machine reaches nobody, and nobody reaches it
    peers          the machine and the other members lose each other; clients and name server reach it still
    out, in        the others lose what it sends; it loses what they send

Most rounds hit the master, the others a member that is none. In controller mode and in a DLedger group sends go on
meanwhile. A classic SYNC_MASTER acknowledges nothing without its slave: sends go on afterwards.
"""

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from mqtrail.net import ConnectionPool, NetError
from mqtrail.node.namesrv_node import NameServerNode
from mqtrail.wire import RemotingCommand, RequestCode, TopicRouteData
from tests.node.helpers import read_all
from tests.node.test_failover import NAME, QUEUES, TOPIC, Load, whole
from tests.waiting import until

from .ledgers import LATE_S, LOAD_S, ROUND_S_MAX, HastyLoad, errors_to
from .machines import HUB, Machine, machines

CLASSIC, CONTROLLER, DLEDGER = MODES = ("classic", "controller", "dledger")
FAULTS = ("isolated", "kill", "peers", "out", "stop", "in")
BROKER_PORT, HA_PORT, CONTROLLER_PORT, MEMBER_PORT = 10911, 10912, 9878, 40911
CLASSIC_CUT_S = 2.0  # for which a classic slave or its master is away
MASTER_SHARE = 0.75  # of the rounds, in which the master is hit
SHOWN_PROBLEMS = 10
ALL_THERE_S = 60.0


class LinkRounds:
    """Rounds of one group. problems: broken promises.

    times_ms: fault -> from each one that hit the master to the next acknowledged send.
    """

    stored: ClassVar[dict[str, str]] = {"store.segment_size": str(1 << 24)}

    def __init__(self, mode: str, chance: random.Random, found: list[Machine], namesrv: str) -> None:
        self.mode, self._chance, self.machines, self._namesrv = mode, chance, found, namesrv
        self.pool = ConnectionPool()
        self.controllers = [f"{one.ip}:{CONTROLLER_PORT}" for one in found] if mode == CONTROLLER else []
        self.times_ms: dict[str, list[float]] = {}
        self.problems: list[str] = []

    # Members.

    def start(self) -> None:
        """Start all members."""
        for machine in self.machines:
            if self.mode == CONTROLLER:
                peers = ";".join(f"n{number}-{address}" for number, address in enumerate(self.controllers))
                machine.run("controller", "controller", "--peers", peers, "--self-id", f"n{machine.number - 1}")
            self.start_broker(machine)

    def start_broker(self, machine: Machine) -> None:
        """Start the broker of a machine."""
        settings = {"node.fast_port": "false", **self.stored, **self._settings(machine)}
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        where = ["--join", self._namesrv, "--host", machine.ip, "--broker-port", str(BROKER_PORT)]
        machine.run("broker", "up", "--broker-name", NAME, *where, *sets)

    def _settings(self, machine: Machine) -> dict[str, str]:
        number = machine.number - 1
        if self.mode == DLEDGER:
            peers = ";".join(f"n{place}-{one.ip}:{MEMBER_PORT}" for place, one in enumerate(self.machines))
            return {"ledger_mode": "true", "ledger_self_id": f"n{number}", "ledger_peers": peers}
        if self.mode == CONTROLLER:
            together = ";".join(self.controllers)
            return {
                "node.ha_port": str(HA_PORT),
                "controller_mode": "true",
                "controller_addresses": together,
                "all_in_sync": "true",
            }
        role = (
            {"broker_role": "SLAVE", "broker_id": "1", "register_ms": "300"}
            if number
            else {"broker_role": "SYNC_MASTER"}
        )
        return {"node.ha_port": str(HA_PORT), "slave_read": "true", "slave_timeout_ms": "20000", **role}

    async def master(self) -> Machine:
        """Return the machine of the master that the name server shows; in controller mode, once all are in sync."""
        async with asyncio.timeout(ROUND_S_MAX):
            while True:
                address = await whole(self.pool, self.controllers) if self.controllers else await self._shown()
                for machine in self.machines:
                    if address == f"{machine.ip}:{BROKER_PORT}":
                        return machine
                await asyncio.sleep(0.02)

    async def _shown(self) -> str:
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        with suppress(NetError):
            reply = await self.pool.request(self._namesrv, command, 10_000)
            if reply.code == 0:
                (group,) = TopicRouteData.decode(reply.body).broker_datas
                return group.broker_addrs.get(0, "")
        return ""

    # Faults.

    async def run(self, fault: str, load: Load) -> None:
        """Cause a fault, wait until sends go on, end it; wait until sends go on then."""
        master = machine = await self.master()
        if self._chance.random() >= MASTER_SHARE:
            machine = self._chance.choice([one for one in self.machines if one is not machine])
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._cause, fault, machine)
        since_s = loop.time() + LATE_S
        try:
            if self.mode == CLASSIC:
                await asyncio.sleep(CLASSIC_CUT_S)
            else:
                await self._acknowledged(load, since_s)
        finally:
            await asyncio.to_thread(self._end, fault, machine)
        await self._acknowledged(load, since_s)
        first_s = min(acked_s for _, acked_s in load.times if acked_s > since_s)
        if machine is master:
            self.times_ms.setdefault(fault, []).append((first_s - since_s + LATE_S) * 1000)
        await load.more()

    async def _acknowledged(self, load: Load, since_s: float) -> None:
        await until(lambda: any(acked_s > since_s for _, acked_s in load.times), within_s=ROUND_S_MAX)

    def _cause(self, fault: str, machine: Machine) -> None:
        others = [one for one in self.machines if one is not machine]
        if fault == "kill":
            machine.kill("broker")
        elif fault == "stop":
            os.kill(machine.running["broker"].pid, signal.SIGSTOP)
        if fault in ("isolated", "peers", "out"):
            for target in (*(one.ip for one in others), *([HUB] if fault == "isolated" else [])):
                machine.lose_to(target)
        if fault in ("isolated", "peers", "in"):
            for other in others:
                other.lose_to(machine.ip)

    def _end(self, fault: str, machine: Machine) -> None:
        if fault == "kill":
            self.start_broker(machine)
        elif fault == "stop":
            os.kill(machine.running["broker"].pid, signal.SIGCONT)
        for one in self.machines:
            one.heal()

    # Judgement.

    async def check(self, acknowledged: Sequence[bytes]) -> None:
        """Compare what the last master has with what was acknowledged; of a classic group also what the slave has."""
        master = await self.master()
        readers = self.machines if self.mode == CLASSIC else [master]
        for machine in readers:
            deadline_s = time.monotonic() + ALL_THERE_S
            while lost := await self._lost(machine, acknowledged):
                if time.monotonic() > deadline_s or machine is master:
                    break
                await asyncio.sleep(0.2)
            self.problems += [f"acknowledged message {body!r} is lost at machine {machine.number}" for body in lost]

    async def _lost(self, machine: Machine, acknowledged: Sequence[bytes]) -> list[bytes]:
        stored = {one.body for one in await read_all(self.pool, f"{machine.ip}:{BROKER_PORT}", TOPIC, QUEUES)}
        return sorted(set(acknowledged) - stored)


def folders_of(folder: Path, mode: str) -> list[Path]:
    """Make a folder for each machine of a group."""
    folders = [folder / f"machine{number}" for number in range(1, 3 if mode == CLASSIC else 4)]
    for one in folders:
        one.mkdir(parents=True)
    return folders


async def link_rounds(folder: Path, mode: str, *, rounds: int, seed: int) -> int:
    """Cause so many faults; print what was found; return the exit code."""
    chance = random.Random(seed)
    folders = folders_of(folder, mode)
    began_s = time.monotonic()
    with errors_to(folder / "hub.log"), machines(folders) as found:
        namesrv = NameServerNode()
        namesrv.bind(HUB, 0)
        await namesrv.start()
        group = LinkRounds(mode, chance, found, f"{HUB}:{namesrv.port}")
        try:
            group.start()
            async with HastyLoad(f"{HUB}:{namesrv.port}") as load:
                await load.more()
                first = chance.randrange(len(FAULTS))
                for number in range(rounds):
                    await asyncio.sleep(chance.uniform(*LOAD_S))
                    await group.run(FAULTS[(first + number) % len(FAULTS)], load)
            await group.check(load.acknowledged)
        finally:
            await group.pool.close()
            await namesrv.stop()
    times = ", ".join(f"{_of(group.times_ms[fault])} ({fault})" for fault in FAULTS if fault in group.times_ms)
    print(
        f"links of {mode}: {rounds} faults, {len(load.acknowledged)} sends acknowledged, {len(group.problems)} broken "
        f"promises, {time.monotonic() - began_s:.0f} s; first acknowledged send after a fault of the master: "
        f"{times or 'none'}"
    )
    print("".join(f"    {problem}\n" for problem in group.problems[:SHOWN_PROBLEMS]), end="")
    return 1 if group.problems else 0


def _of(times_ms: list[float]) -> str:
    """Return the median and the maximum."""
    return f"{statistics.median(times_ms):.0f} ms, at most {max(times_ms):.0f} ms"
