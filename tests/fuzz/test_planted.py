"""The fuzzer finds planted bugs, and none in the real code. `make fuzz` runs for longer."""

import pytest

from . import targets
from .__main__ import confirmed
from .all_targets import ALL_TARGETS
from .limits import Bug
from .planted import PLANTED, Planted
from .targets import Target

pytestmark = [pytest.mark.slow, pytest.mark.timed]

LIVES_MAX = 60  # of one target; `make fuzz` lives more of each
HANG_S = 0.2  # CPU time after which a turn is interrupted: a planted hang is waited for in each try


@pytest.mark.parametrize("kind", ALL_TARGETS, ids=lambda kind: kind.__name__)
def test_no_bug_is_found(kind: type[Target]) -> None:
    """One life of each target finds no bug."""
    frames, longest_s = confirmed(kind, 1)
    assert frames > 0
    assert longest_s > 0


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_bugs_are_found(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each planted bug is found within a few lives, and reported with its message."""
    monkeypatch.setattr(targets, "HANG_S", HANG_S)
    planted.plant(monkeypatch)
    with pytest.raises(Bug, match=planted.message):
        _live(planted.target, range(planted.seed, planted.seed + LIVES_MAX))


def _live(kind: type[Target], seeds: range) -> None:
    for seed in seeds:
        confirmed(kind, seed)
