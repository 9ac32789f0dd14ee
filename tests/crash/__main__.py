"""`python -m tests.crash [--rounds N]`: kill -9 under load in each mode, on tables, of slaves, and of the leaders of a
DLedger group, full disks, alone and in a group, and cut links between the members of a group.

Each mode is a process of its own; most run at once, since they wait more than they work. `--mode NAME` runs one of
them: `--mode postgresql` and `--mode mariadb` kill a broker and its database server in turn, `--mode nodes` a broker
whose store has databases on both, and the two servers."""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.databases.servers import SERVERS, end_servers, server
from tests.sim.history import History

from .full_disk import fill_disk, run_full_disk
from .full_groups import full_rounds
from .ledgers import ledger_rounds
from .links import MODES as LINK_MODES
from .links import link_rounds
from .machines import inside
from .rounds import kill_rounds
from .slaves import slave_rounds

ROUNDS = 4
DISK = "disk"
NODES = "nodes"
DLEDGER = "dledger"
LINKS = {f"links-{mode}": mode for mode in LINK_MODES}
FULL = {f"full-{mode}": mode for mode in LINK_MODES}
AT_ONCE = ("async", "sync", "tables", "slave", DLEDGER, DISK)
IN_TURN = ("links-dledger", "links-controller", "full-dledger")  # `make links` runs all of LINKS and FULL
MODES = (*AT_ONCE, *LINKS, *FULL)
DOWN_S = 1.0  # a killed database, before it starts again


def _rounds(
    mode: str, folder: Path, rounds: int, seed: int, down_s: float
) -> Coroutine[Any, Any, tuple[History, list[str]]]:
    if mode == "slave":
        return slave_rounds(folder, rounds=rounds, seed=seed)
    names = sorted(SERVERS, reverse=True) if mode == NODES else [mode] if mode in SERVERS else []
    databases = [server(name) for name in names]
    url, *others = [one.new_database() for one in databases] or [""]
    if mode == "tables":
        url = f"sqlite:///{folder / 'messages.db'}"
    elif mode == NODES:  # a second database on the server of the home, too
        others.append(databases[0].new_database())
    return kill_rounds(
        folder,
        sync_flush=mode != "async",
        rounds=rounds,
        seed=seed,
        stores=" ".join([url, *(f"n{number}={other}" for number, other in enumerate(others, 1))]),
        databases=databases,
        down_s=down_s,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"kills in each mode [{ROUNDS}]")
    parser.add_argument(
        "--mode", choices=(*MODES, *SERVERS, NODES), help="only this mode [all but servers, and some of the groups]"
    )
    parser.add_argument("--down", type=float, default=DOWN_S, help=f"seconds that a killed database is down [{DOWN_S}]")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the clients' choices [from the time]"
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--inside-links", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        asyncio.run(fill_disk(given.inside, sync_flush=given.seed % 2 == 0))
        return 0
    if given.mode is None:
        return _all_modes(given.rounds, given.seed)
    if given.mode in (*LINKS, *FULL) and not given.inside_links:
        return subprocess.run(inside([*sys.argv[1:], "--seed", str(given.seed)]), check=False).returncode
    with tempfile.TemporaryDirectory(prefix="mqtrail-crash-") as name:
        folder = Path(name) / given.mode
        if given.mode == DISK:
            return run_full_disk(folder)
        if given.mode in LINKS:
            return asyncio.run(link_rounds(folder, LINKS[given.mode], rounds=given.rounds, seed=given.seed))
        if given.mode in FULL:
            return asyncio.run(full_rounds(folder, FULL[given.mode], seed=given.seed))
        if given.mode == DLEDGER:
            return asyncio.run(ledger_rounds(folder, rounds=given.rounds, seed=given.seed))
        began_s = time.monotonic()
        history, problems = asyncio.run(_rounds(given.mode, folder, given.rounds, given.seed, given.down))
        end_servers()
    acked = sum(sent.acked_ms is not None for sent in history.sent.values())
    print(
        f"{given.mode}: {given.rounds} kills, {acked} of {len(history.sent)} sends acknowledged, "
        f"{len(history.reads)} reads, {len(problems)} broken promises, {time.monotonic() - began_s:.0f} s"
    )
    print("".join(f"    {problem}\n" for problem in problems[:10]), end="")
    return 1 if problems else 0


def _all_modes(rounds: int, seed: int) -> int:
    """Run each mode in a process of its own, and print its output when it ends: all at once, but groups with machines
    of their own in turn, since each has many processes."""

    def run(mode: str) -> int:
        count = max(1, rounds // 2) if mode in LINKS else rounds  # each waits until the whole group is in sync again
        command = [sys.executable, "-m", "tests.crash", "--mode", mode, "--rounds", str(count), "--seed", str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout + (f"{mode}: FAILED with status {done.returncode}\n" if done.returncode else ""), end="")
        return done.returncode

    def run_in_turn(modes: tuple[str, ...]) -> int:
        return max([run(mode) for mode in modes])

    with ThreadPoolExecutor(len(AT_ONCE) + 1) as pool:
        return 1 if any(list(pool.map(run_in_turn, (*((mode,) for mode in AT_ONCE), IN_TURN)))) else 0


if __name__ == "__main__":
    sys.exit(main())
