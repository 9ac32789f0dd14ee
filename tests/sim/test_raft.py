"""A few lives of a group of consensus, and proof that the checker finds planted bugs. `make sim` runs thousands."""

import pytest

from .raft_group import RaftGroup, check_group
from .raft_planted import PLANTED_RAFTS, PlantedRaft

SEEDS_MAX = 30  # lives in which a planted bug must be found


@pytest.mark.parametrize("seed", range(2))
def test_promises_of_consensus_hold(seed: int) -> None:
    """No history breaks a promise, whatever happens to members, disks, links and clocks."""
    assert check_group(RaftGroup(seed).live()) == []


@pytest.mark.slow
def test_lives_have_what_they_are_for() -> None:
    """Some lives together elect, acknowledge, read, install snapshots and refuse old disks."""
    lives = [RaftGroup(seed).live() for seed in range(8)]
    assert [problem for life in lives for problem in check_group(life)] == []
    assert min(len(life.leaders) for life in lives) >= 1
    assert sum(life.elections for life in lives) > len(lives)
    assert all(sum(getattr(life, name) for life in lives) for name in ("reads", "snapshots", "refused_disks"))


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED_RAFTS, ids=lambda planted: planted.name)
def test_planted_bugs_of_consensus_are_caught(planted: PlantedRaft) -> None:
    """Each planted bug is found within some lives, and reported by its name."""
    problems_seen: list[str] = []
    for seed in range(planted.first_seed, planted.first_seed + SEEDS_MAX):
        problems = check_group(planted.group(seed).live())
        if any(planted.problem in problem for problem in problems):
            return
        problems_seen += problems
    pytest.fail(f"{SEEDS_MAX} lives did not show the bug; reported: {problems_seen[:3]}")
