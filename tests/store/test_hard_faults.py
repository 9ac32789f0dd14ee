"""A few lives of a store on the worst of disks; `make sim` has thousands."""

import pytest

from tests.store.hard_life import HardLife


@pytest.mark.parametrize("seed", range(80))
def test_promises_hold(seed: int) -> None:
    """Whatever the disk does, nothing acknowledged is lost, nothing refused comes back, and the index knows it all."""
    life = HardLife(seed)
    life.live(60)
    life.check_index()
