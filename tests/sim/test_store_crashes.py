"""Thousands of seeded lives of a store on the worst of disks."""

import pytest
from tests.store.hard_life import HardLife

SEEDS_A_TEST = 100


@pytest.mark.sim
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, 5_000, SEEDS_A_TEST))
def test_promises_hold(first: int) -> None:
    """Whatever the disk does, nothing acknowledged is lost, nothing refused comes back, and the index knows it all."""
    for seed in range(first, first + SEEDS_A_TEST):
        life = HardLife(seed)
        life.live(60)
        life.check_index()
