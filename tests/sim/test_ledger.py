"""A few lives of a DLedger group, and proof that the checker finds planted bugs. `make sim` runs thousands."""

import pytest

from .ledger_full import FullLedgerGroup
from .ledger_group import LedgerGroup
from .ledger_mixed import MixedLedgerGroup
from .ledger_planted import PLANTED_LEDGERS, PlantedLedger
from .raft_group import check_group

SEEDS_MAX = 40  # lives in which a planted bug must be found


@pytest.mark.parametrize("seed", range(2))
def test_promises_of_a_dledger_group_hold(seed: int) -> None:
    """No history breaks a promise, whatever happens to members, disks, links and clocks."""
    assert check_group(LedgerGroup(seed).live()) == []


def test_promises_of_a_mixed_group_hold() -> None:
    """One member keeps Apache's rules: ours show and lose nothing that they should not."""
    assert check_group(MixedLedgerGroup(1).live()) == []


@pytest.mark.slow
def test_lives_of_mixed_groups_have_what_they_are_for() -> None:
    """Ours and Apache's lead; the group recovers whoever did."""
    groups = [MixedLedgerGroup(seed) for seed in range(8)]
    lives = [group.live() for group in groups]
    assert [problem for life in lives for problem in check_group(life)] == []
    ours = sum(group.leaders_of_ours for group in groups)
    assert 0 < ours < sum(len(life.leaders) for life in lives)


def test_promises_hold_with_full_disks() -> None:
    """Disks fill up and have space again."""
    assert check_group(FullLedgerGroup(2).live()) == []


@pytest.mark.slow
def test_lives_with_full_disks_have_what_they_are_for() -> None:
    """Leaders hand over because their disk is full, and leaders lead on because the others could not commit."""
    groups = [FullLedgerGroup(seed, keeps_log=True) for seed in range(8)]
    assert [problem for group in groups for problem in check_group(group.live())] == []
    told = "\n".join(line for group in groups for line in group.engine.log_lines)
    assert "is asked to lead" in told
    assert "it leads on and refuses messages" in told


@pytest.mark.slow
def test_lives_of_dledger_groups_have_what_they_are_for() -> None:
    """Some lives together elect, acknowledge, lose power, cut off tails and hand over."""
    groups = [LedgerGroup(seed) for seed in range(12)]
    lives = [group.live() for group in groups]
    assert [problem for life in lives for problem in check_group(life)] == []
    assert min(len(life.acknowledged) for life in lives) > 10
    assert {group.loses_power for group in groups} == {True, False}
    assert any(member.disk.list("truncated") for group in groups for member in group.members.values())


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED_LEDGERS, ids=lambda planted: planted.name)
def test_planted_bugs_of_dledger_groups_are_caught(planted: PlantedLedger) -> None:
    """Each planted bug is found within some lives, and reported by its name."""
    problems_seen: list[str] = []
    for seed in range(planted.first_seed, planted.first_seed + SEEDS_MAX):
        problems = check_group(planted.group(seed).live())
        if any(part in problem for problem in problems for part in planted.problems):
            return
        problems_seen += problems
    pytest.fail(f"{SEEDS_MAX} lives did not show the bug; reported: {problems_seen[:3]}")
