"""`python -m tests.sim`: lives of clusters, stores, groups of consensus and replicated groups, until the time is up.

    python -m tests.sim                             a range of seeds of its own, from the time of day, for a minute
    python -m tests.sim --first 7000                from this seed on, for a minute: what CI runs, the same each time
    python -m tests.sim --first 7000 --count 500    these seeds, however long it takes
    python -m tests.sim --cluster 7012              one life again, with every event; the others:
                                                    --store, --raft, --dledger, --members

A seed's life is the same each time, on every machine: it uses no real time and no other randomness.
"""

import argparse
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count

import structlog

from tests.store.hard_life import HardLife

from .checker import check
from .cluster import Cluster
from .ledger_full import FullLedgerGroup
from .ledger_group import LedgerGroup
from .ledger_mixed import MixedLedgerGroup
from .member_group import MemberGroup, check_members
from .raft_group import RaftGroup, check_group

EPOCH_S = 1_767_225_600  # 2026-01-01
SEEDS_A_MINUTE = 10_000  # more than one minute can run, so that two runs do not share any
STORE_STEPS = 60


def cluster_life(seed: int) -> list[str]:
    """Return the promises that one cluster's life broke."""
    return _problems(lambda: check(Cluster(seed).live()))


def store_life(seed: int) -> list[str]:
    """Return the promises that one store's life broke."""
    return _problems(lambda: _live(seed))


def raft_life(seed: int) -> list[str]:
    """Return the promises that the life of one group of consensus broke."""
    return _problems(lambda: check_group(RaftGroup(seed).live()))


def dledger_life(seed: int) -> list[str]:
    """Return the promises that the life of one DLedger group broke."""
    return _problems(lambda: check_group(dledger_group(seed).live()))


def dledger_group(seed: int, *, keeps_log: bool = False) -> LedgerGroup:
    """Return a group of ours; for one seed in four one with members that keep Apache's rules, for another one in four
    one whose disks fill up."""
    kind = (MixedLedgerGroup, LedgerGroup, FullLedgerGroup, LedgerGroup)[seed % 4]
    return kind(seed, keeps_log=keeps_log)


def member_life(seed: int) -> list[str]:
    """Return the promises that the life of one replicated group broke."""
    return _problems(lambda: check_members(MemberGroup(seed).live()))


def _live(seed: int) -> list[str]:
    life = HardLife(seed)
    life.live(STORE_STEPS)
    life.check_index()
    return []


def _problems(live: Callable[[], list[str]]) -> list[str]:
    try:
        return live()
    except Exception as error:
        return [f"{type(error).__name__}: {error}", *traceback.format_tb(error.__traceback__)[-4:]]


LIVES = (
    ("cluster", cluster_life, 0.45),
    ("store", store_life, 0.15),
    ("raft", raft_life, 0.1),
    ("dledger", dledger_life, 0.05),
    ("members", member_life, 0.25),
)
"""Kind, life, and its share of the time."""


def quiet() -> None:
    """Log only errors: lives cause warnings on purpose, for example by clock jumps."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def run(kind: str, life: Callable[[int], list[str]], seeds: Iterator[int], seconds: float | None, jobs: int) -> bool:
    """Run seeds until none are left or the time is up; print the range and the failures. Return whether all passed."""
    first, last, lived, failed = -1, -1, 0, 0
    deadline_s = None if seconds is None else time.monotonic() + seconds
    with ProcessPoolExecutor(jobs, initializer=quiet) as pool:
        pending: dict[Future[list[str]], int] = {}
        while True:
            while len(pending) < 2 * jobs and (deadline_s is None or time.monotonic() < deadline_s):
                seed = next(seeds, None)
                if seed is None:
                    break
                first, last = seed if first < 0 else first, seed
                pending[pool.submit(life, seed)] = seed
            if not pending:
                break
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                seed, problems = pending.pop(future), future.result()
                lived += 1
                if problems:
                    failed += 1
                    print(f"{kind} {seed} failed; again: python -m tests.sim --{kind} {seed}", flush=True)
                    print("".join(f"    {problem}\n" for problem in problems[:5]), end="", flush=True)
    print(f"{kind}: seeds {first} to {last}, {lived} lives, {failed} failed", flush=True)
    return not failed


def replay(kind: str, seed: int) -> int:
    """Run one seed again, and print every event."""
    if kind == "store":
        problems = store_life(seed)
    elif kind in ("raft", "dledger"):
        group = (RaftGroup if kind == "raft" else dledger_group)(seed, keeps_log=True)
        problems = _problems(lambda: check_group(group.live()))
        print("\n".join(group.engine.log_lines))
    elif kind == "members":
        members = MemberGroup(seed, keeps_log=True)
        problems = _problems(lambda: check_members(members.live()))
        print("\n".join(members.engine.log_lines))
    else:
        cluster = Cluster(seed, keeps_log=True)
        problems = _problems(lambda: check(cluster.live()))
        print("\n".join(cluster.engine.log_lines))
    print("\n".join(problems) or "every promise was kept")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds to run, for all kinds together [60]")
    parser.add_argument("--first", type=int, help="the first seed [from the time of day]")
    parser.add_argument("--count", type=int, help="how many seeds of each kind, instead of a time")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="number of processes [one per core]"
    )
    parser.add_argument(
        "--cluster", type=int, metavar="SEED", help="run this cluster's life again and print every event"
    )
    parser.add_argument("--store", type=int, metavar="SEED", help="run this store's life again")
    parser.add_argument("--raft", type=int, metavar="SEED", help="run the life of this group of consensus again")
    parser.add_argument("--dledger", type=int, metavar="SEED", help="run the life of this DLedger group again")
    parser.add_argument("--members", type=int, metavar="SEED", help="run the life of this replicated group again")
    given = parser.parse_args()
    for kind in ("cluster", "store", "raft", "dledger", "members"):
        if (seed := getattr(given, kind)) is not None:
            return replay(kind, seed)
    minutes = (int(time.time()) - EPOCH_S) // 60
    first = minutes * SEEDS_A_MINUTE if given.first is None else given.first
    kept = True
    for kind, life, share in LIVES:
        seeds = count(first) if given.count is None else iter(range(first, first + given.count))
        kept &= run(kind, life, seeds, None if given.count is not None else given.seconds * share, given.jobs)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
