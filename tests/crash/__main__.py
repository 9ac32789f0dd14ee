"""`python -m tests.crash [--rounds N]`: kill -9 under load in each mode, on tables, and of slaves, then a full disk.

`--mode postgresql` and `--mode mariadb` kill a broker and its database server in turn."""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.databases.servers import SERVERS, end_servers, server
from tests.sim.history import History

from .full_disk import fill_disk, run_full_disk
from .rounds import kill_rounds
from .slaves import slave_rounds

ROUNDS = 4
MODES = ("async", "sync", "tables", "slave")
DOWN_S = 1.0  # a killed database, before it starts again


def _rounds(
    mode: str, folder: Path, rounds: int, seed: int, down_s: float
) -> Coroutine[Any, Any, tuple[History, list[str]]]:
    if mode == "slave":
        return slave_rounds(folder, rounds=rounds, seed=seed)
    database = server(mode) if mode in SERVERS else None
    url = f"sqlite:///{folder / 'messages.db'}" if mode == "tables" else ""
    if database is not None:
        url = database.new_database()
    return kill_rounds(
        folder,
        sync_flush=mode != "async",
        rounds=rounds,
        seed=seed,
        store_url=url,
        database=database,
        down_s=down_s,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"kills in each mode [{ROUNDS}]")
    parser.add_argument("--mode", choices=(*MODES, *SERVERS), help="only this mode [all but servers, and a full disk]")
    parser.add_argument("--down", type=float, default=DOWN_S, help=f"seconds that a killed database is down [{DOWN_S}]")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the clients' choices [from the time]"
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        asyncio.run(fill_disk(given.inside, sync_flush=given.seed % 2 == 0))
        return 0
    kept = True
    with tempfile.TemporaryDirectory(prefix="mqtrail-crash-") as name:
        for mode in MODES if given.mode is None else (given.mode,):
            began_s = time.monotonic()
            rounds = _rounds(mode, Path(name) / mode, given.rounds, given.seed, given.down)
            history, problems = asyncio.run(rounds)
            acked = sum(sent.acked_ms is not None for sent in history.sent.values())
            print(
                f"{mode}: {given.rounds} kills, {acked} of {len(history.sent)} sends acknowledged, "
                f"{len(history.reads)} reads, {len(problems)} broken promises, {time.monotonic() - began_s:.0f} s",
                flush=True,
            )
            print("".join(f"    {problem}\n" for problem in problems[:10]), end="", flush=True)
            kept &= not problems
        end_servers()
        if given.mode is None:
            kept &= run_full_disk(Path(name) / "disk") == 0
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
