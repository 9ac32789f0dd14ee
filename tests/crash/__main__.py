"""`python -m tests.crash [--rounds N]`: kill -9 under load in each flush mode, then a full disk."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from .full_disk import fill_disk, run_full_disk
from .rounds import kill_rounds

ROUNDS = 4


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"kills in each flush mode [{ROUNDS}]")
    parser.add_argument("--mode", choices=("async", "sync"), help="only this flush mode [both, and a full disk]")
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
        for sync_flush in (False, True) if given.mode is None else (given.mode == "sync",):
            mode = "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"
            began_s = time.monotonic()
            history, problems = asyncio.run(
                kill_rounds(Path(name) / mode, sync_flush=sync_flush, rounds=given.rounds, seed=given.seed)
            )
            acked = sum(sent.acked_ms is not None for sent in history.sent.values())
            print(
                f"{mode}: {given.rounds} kills, {acked} of {len(history.sent)} sends acknowledged, "
                f"{len(history.reads)} reads, {len(problems)} broken promises, {time.monotonic() - began_s:.0f} s",
                flush=True,
            )
            print("".join(f"    {problem}\n" for problem in problems[:10]), end="", flush=True)
            kept &= not problems
        if given.mode is None:
            kept &= run_full_disk(Path(name) / "disk") == 0
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
