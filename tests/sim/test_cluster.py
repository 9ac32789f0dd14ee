"""A few lives of a cluster, and proof that the checker finds planted bugs. `make sim` runs thousands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqtrail.net import Log

from .__main__ import run
from .checker import check
from .cluster import Cluster
from .planted import PLANTED, Planted

ROOT = Path(__file__).parents[2]
SEEDS_MAX = 60  # lives in which a planted bug must be found
DIGEST = """
import hashlib, sys
from tests.sim.cluster import Cluster
cluster = Cluster(int(sys.argv[1]), keeps_log=True)
print(hashlib.sha256(repr((cluster.live(), cluster.engine.log_lines)).encode()).hexdigest())
"""


@pytest.mark.parametrize("seed", range(4))
def test_promises_hold(seed: int) -> None:
    """No history breaks a promise, whatever happens to brokers, disks, connections and clocks."""
    assert check(Cluster(seed).live()) == []


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_bugs_are_caught(planted: Planted) -> None:
    """Each planted bug is found within some lives, and reported by its name."""
    reported: list[str] = []
    for seed in range(planted.first_seed, planted.first_seed + SEEDS_MAX):
        problems = check(planted.cluster(seed).live())
        if any(planted.message in problem for problem in problems):
            return
        reported += problems
    pytest.fail(f"{SEEDS_MAX} lives did not show the bug; reported: {reported[:3]}")


def noisy_life(seed: int) -> list[str]:
    Log().warning("clock.jumped", seed=seed)
    return []


def test_warnings_of_lives_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Lives cause warnings on purpose, such as clock jumps; a run prints only its seeds and its failures."""
    assert run("noisy", noisy_life, iter([7]), None, 1)
    assert capfd.readouterr() == ("noisy: seeds 7 to 7, 1 lives, 0 failed\n", "")


@pytest.mark.slow
def test_a_seed_replays_exactly() -> None:
    """Two processes with different hash seeds run the same life, to the last event."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, "3"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
