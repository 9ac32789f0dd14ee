"""kill -9 and SIGSTOP of the leader of a DLedger group under load: what was acknowledged stays, and sends go on soon.

A send waits its whole time-out for a leader that is stopped, and fails then; that breaks no promise.
"""

import asyncio
import os
import random
import signal
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mqtrail.client import Producer, ProducerConfig
from mqtrail.net import ConnectionPool, NetError
from mqtrail.node import GroupMode, GroupNode
from tests.node.helpers import read_all
from tests.node.test_failover import NAME, QUEUES, Load
from tests.node.test_group_node import config_of, running
from tests.node.test_ledger_group import master_of
from tests.waiting import until

LOAD_S = (0.1, 1.0)  # between two rounds
SEND_MS = 1_000
LATE_S = 0.05  # an answer that comes sooner was on its way when its leader was killed
ROUND_S_MAX = 120.0


class HastyLoad(Load):
    """Its sends wait for a silent broker for a second."""

    def __init__(self, namesrv: str) -> None:
        super().__init__(namesrv)
        self._producer = Producer("Shop", namesrv, config=ProducerConfig(send_timeout_ms=SEND_MS, retry_count=10))


class LedgerRounds:
    """Rounds of one group. times_ms: from each signal to the next acknowledged send. problems: broken promises."""

    def __init__(self, node: GroupNode, pool: ConnectionPool, load: Load) -> None:
        self._node, self._pool, self._load = node, pool, load
        self._members = {report.address: name for name, report in node.reports.items()}
        self.times_ms: list[float] = []
        self.problems: list[str] = []

    async def run(self, number: signal.Signals) -> None:
        """Send a signal to the leader's process; wait until sends go on, and until the member is back."""
        loop, node = asyncio.get_running_loop(), self._node
        member = self._members[await self._master()]
        process_id = node.process_ids[member]
        os.kill(process_id, number)
        since_s = loop.time() + LATE_S
        try:
            await until(lambda: any(acked_s > since_s for _, acked_s in self._load.times), within_s=ROUND_S_MAX)
        finally:
            if number == signal.SIGSTOP:
                os.kill(process_id, signal.SIGCONT)
        first_s = min(acked_s for _, acked_s in self._load.times if acked_s > since_s)
        self.times_ms.append((first_s - since_s + LATE_S) * 1000)
        if number == signal.SIGKILL:
            await until(lambda: node.process_ids.get(member, process_id) != process_id, within_s=ROUND_S_MAX)
        await self._load.more()

    async def _master(self) -> str:
        async with asyncio.timeout(ROUND_S_MAX):
            while True:
                with suppress(NetError):
                    if found := await master_of(self._node, self._pool):
                        return found
                await asyncio.sleep(0.02)

    async def check(self) -> None:
        """Compare what the last leader has with what was acknowledged."""
        stored = {one.body for one in await read_all(self._pool, await self._master(), "Orders", QUEUES)}
        lost = sorted(set(self._load.acknowledged) - stored)
        self.problems += [f"acknowledged message {body!r} is lost" for body in lost]


async def ledger_rounds(folder: Path, *, rounds: int, seed: int) -> int:
    """Kill and stop leaders so many times; print what was found; return the exit code."""
    chance = random.Random(seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with errors_to(folder.parent / "dledger.log"):
        found, load = await _rounds(folder, rounds, chance)
    killed, stopped = found.times_ms[::2], found.times_ms[1::2]
    print(
        f"dledger: {len(killed)} kills and {len(stopped)} stops of the leader, {len(load.acknowledged)} sends "
        f"acknowledged, {len(found.problems)} broken promises; first acknowledged send after {_of(killed)} (killed), "
        f"{_of(stopped)} (stopped)"
    )
    print("".join(f"    {problem}\n" for problem in found.problems[:10]), end="")
    return 1 if found.problems else 0


async def _rounds(folder: Path, rounds: int, chance: random.Random) -> tuple[LedgerRounds, Load]:
    async with running(config_of(folder, GroupMode.DLEDGER)) as (node, pool):
        assert f"{NAME}-1" in node.process_ids
        async with HastyLoad(node.namesrv_address) as load:
            await load.more()
            found = LedgerRounds(node, pool, load)
            for number in range(rounds):
                await asyncio.sleep(chance.uniform(*LOAD_S))
                await found.run((signal.SIGKILL, signal.SIGSTOP)[number % 2])
        await found.check()
        return found, load


@contextmanager
def errors_to(path: Path) -> Iterator[None]:
    """Let this process and those that it starts write their logs to a file; show its end after an error."""
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(kept, path.read_bytes()[-4_000:])
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _of(times_ms: list[float]) -> str:
    """Return the median and the maximum."""
    return f"{statistics.median(times_ms):.0f} ms, at most {max(times_ms):.0f} ms" if times_ms else "no time"
