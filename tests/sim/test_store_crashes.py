"""Thousands of seeded lives of a store on a disk that forgets."""

import pytest
from tests.store.history import Life

SEEDS_A_TEST = 100


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, 5_000, SEEDS_A_TEST))
def test_no_acknowledged_message_is_lost(first: int) -> None:
    """After any power cut a queue holds a prefix of what was appended, all that was acknowledged in it."""
    for seed in range(first, first + SEEDS_A_TEST):
        life = Life(seed)
        life.live(60)
        life.check_index()
