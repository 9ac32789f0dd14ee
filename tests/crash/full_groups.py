"""A full disk at the master, then at a slave, of a group in each mode, and kill -9 and a start on the full disk.

    dledger      a member with space leads instead of the master; a slave costs nothing
    controller   the master refuses sends with the reason; a slave leaves the in-sync replicas, and sends go on
    classic      the master refuses sends with the reason; a SYNC_MASTER without its slave acknowledges nothing

Once there is space, sends go on everywhere, and no acknowledged message is missing. Each machine has a small tmpfs.
"""

import asyncio
import random
import subprocess
import time
from pathlib import Path
from typing import ClassVar

from mqtrail.node.namesrv_node import NameServerNode
from tests.node.test_failover import Load
from tests.waiting import until

from .full_disk import fill
from .ledgers import ROUND_S_MAX, HastyLoad, errors_to
from .links import BROKER_PORT, CLASSIC, DLEDGER, SHOWN_PROBLEMS, LinkRounds, folders_of
from .machines import HUB, Machine, machines

DISK_SIZE = 160 << 20
BODY_SIZE = 3_500  # bytes, so that a file of the log is soon full
REASON = "free space"


class FullRounds(LinkRounds):
    """Disks that are full, instead of links that are cut."""

    stored: ClassVar[dict[str, str]] = {
        "store.segment_size": str(1 << 21),
        "store.force_ratio": "1.0",  # no message is removed to make space
        "node.expire_interval_ms": "500",
        "message_size_max": str(64 << 10),
    }

    async def fill_one(self, load: Load, *, of_master: bool) -> None:
        """Fill a disk, and see what the module says; kill that broker and start it on the full disk; make space."""
        master = await self.master()
        machine = master if of_master else next(one for one in self.machines if one is not master)
        ballast = machine.folder / "ballast"
        failed, unsafe = len(load.failures), load.unsafe_count
        fill(ballast)
        if of_master and self.mode == DLEDGER:
            await self._another_leads(machine)
            await load.more()
        elif of_master:
            await until(lambda: any(REASON in str(error) for error in load.failures[failed:]), within_s=ROUND_S_MAX)
        elif self.mode == CLASSIC:
            await until(lambda: load.unsafe_count > unsafe, within_s=ROUND_S_MAX)
        else:
            await load.more(2_000)
        machine.kill("broker")
        self.start_broker(machine)
        if self.mode != CLASSIC:
            await load.more()
        ballast.unlink()
        await load.more()

    async def _another_leads(self, machine: Machine) -> None:
        async with asyncio.timeout(ROUND_S_MAX):
            while await self._shown() in ("", f"{machine.ip}:{BROKER_PORT}"):
                await asyncio.sleep(0.05)


async def full_rounds(folder: Path, mode: str, *, seed: int) -> int:
    """Fill the disks of a group in turn; print what was found; return the exit code."""
    folders = folders_of(folder, mode)
    for one in folders:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(one)], check=True)
    began_s = time.monotonic()
    with errors_to(folder / "hub.log"), machines(folders) as found:
        namesrv = NameServerNode()
        namesrv.bind(HUB, 0)
        await namesrv.start()
        group = FullRounds(mode, random.Random(seed), found, f"{HUB}:{namesrv.port}")
        try:
            group.start()
            async with HastyLoad(f"{HUB}:{namesrv.port}") as load:
                load.padding = random.Random(seed).randbytes(BODY_SIZE)
                await load.more()
                for of_master in (True, False):
                    await group.fill_one(load, of_master=of_master)
            await group.check(load.acknowledged)
        finally:
            await group.pool.close()
            await namesrv.stop()
            for machine in found:
                machine.end()
                subprocess.run(["umount", str(machine.folder)], check=True)
    print(
        f"full disks of {mode}: {len(load.acknowledged)} sends acknowledged, {len(group.problems)} broken promises, "
        f"{time.monotonic() - began_s:.0f} s"
    )
    print("".join(f"    {problem}\n" for problem in group.problems[:SHOWN_PROBLEMS]), end="")
    return 1 if group.problems else 0
