"""The fuzzer finds planted bugs, and none in what it serves as it is. `make fuzz` runs for longer."""

import pytest

from .__main__ import confirmed
from .limits import Bug
from .planted import PLANTED, Planted
from .targets import TARGETS, Target

LIVES_MAX = 60  # of one target; `make fuzz` lives more of each


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS, ids=lambda kind: kind.__name__)
def test_no_bug_is_found(kind: type[Target]) -> None:
    """A life of each target."""
    frames, longest_s = confirmed(kind, 1)
    assert frames > 0
    assert longest_s > 0


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_bugs_are_found(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few lives, and reported by what it breaks."""
    planted.plant(monkeypatch)
    with pytest.raises(Bug, match=planted.message):
        _live(planted.target, LIVES_MAX)


def _live(kind: type[Target], count: int) -> None:
    for seed in range(count):
        confirmed(kind, seed)
