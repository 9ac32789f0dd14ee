"""A few lives of a replicated group, and proof that the checker finds planted bugs. `make sim` runs more."""

import pytest

from .member_group import MemberGroup, MemberHistory, check_members
from .member_planted import PLANTED_MEMBERS, PlantedMember
from .member_restarts import QuickRestarts


def test_promises_of_a_group_hold() -> None:
    """No history breaks a promise, whatever happens to members, disks and links."""
    assert check_members(MemberGroup(1).live()) == []


def test_promises_hold_when_masters_lose_power() -> None:
    """A master that comes back lacks bytes that its slaves have."""
    assert check_members(QuickRestarts(6).live()) == []


def test_a_queue_that_is_empty_at_the_end_lost_all() -> None:
    """Logs that were all lost are equal, and their last master has nothing that would differ."""
    problems = check_members(MemberHistory(acknowledged={b"m1": 0}, reads={0: b"m1"}))
    assert [problem.partition(":")[0] for problem in problems] == [
        "acknowledged messages are lost",
        "a read was rolled back",
    ]


@pytest.mark.slow
def test_lives_have_what_they_are_for() -> None:
    """Some lives together change the master, acknowledge, read, and replace a disk; a seed lives one life twice."""
    lives = [MemberGroup(seed).live() for seed in (23, 3, 3)]
    assert [problem for life in lives for problem in check_members(life)] == []
    assert lives[1] == lives[2]
    assert all(life.acknowledged and life.reads and len(life.masters) > 1 for life in lives)
    assert sum(life.counts.get("emptied", 0) for life in lives)


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED_MEMBERS, ids=lambda planted: planted.name)
def test_planted_bugs_of_a_group_are_caught(planted: PlantedMember) -> None:
    """Each planted bug is found within some lives, and reported by its name."""
    problems_seen: list[str] = []
    with planted.planted():
        for seed in range(planted.lives_max):
            problems = check_members(planted.group(seed).live())
            if any(planted.problem in problem for problem in problems):
                return
            problems_seen += problems
    pytest.fail(f"{planted.lives_max} lives did not show the bug; reported: {problems_seen[:3]}")
