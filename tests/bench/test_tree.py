"""The CPU time of a tree of processes."""

from __future__ import annotations

import os

import pytest
from bench.tree import Key, ProcessTree, Spent

ROOT: Key = (os.getpid(), 1)
CHILD, GRANDCHILD = (10_000_001, 2), (10_000_002, 3)


def tree(
    root: tuple[float, float], child: tuple[float, float] | None = None, grandchild: tuple[float, float] | None = None
) -> dict[Key, Spent]:
    """A reading: own and waited seconds of each process that there is."""
    every = {ROOT: (0, root), CHILD: (ROOT[0], child), GRANDCHILD: (CHILD[0], grandchild)}
    return {key: Spent(parent, *spent) for key, (parent, spent) in every.items() if spent is not None}


@pytest.mark.parametrize(
    ("later", "seconds"),
    [
        (tree((2, 0), (5, 1)), 8 + 1),  # the grandchild ended, and its parent waited for a second of it
        (tree((2, 0), (5, 3)), 10),  # and for more than was seen
        (tree((2, 10)), 12),  # both ended, and the root waited for both
        (tree((2, 5)), 2 + 5 + 2),  # the child was killed, so the grandchild was not waited for
        (tree((2, 0)), 2 + 5 + 2),  # neither was waited for
        (tree((2, 0), (5, 0), (3, 0)), 10),
    ],
)
def test_ended_processes_count(monkeypatch: pytest.MonkeyPatch, later: dict[Key, Spent], seconds: float) -> None:
    """What a process had used when it was last seen counts, whether or not its parent waited for it."""
    now = tree((1, 0), (5, 0), (2, 0))
    monkeypatch.setattr("bench.tree.every_process", lambda: now)
    found = ProcessTree(but_pid=-1)
    assert found.seconds() == 8
    now = later
    assert found.seconds() == seconds
    assert found.seconds() == seconds


def test_the_tree_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child is left out with what it started; an orphan that was seen before stays."""
    now = tree((1, 0), (5, 0), (2, 0))
    monkeypatch.setattr("bench.tree.every_process", lambda: now)
    assert ProcessTree(but_pid=CHILD[0]).pids() == [ROOT[0]]
    found = ProcessTree(but_pid=-1)
    assert found.seconds() == 8
    now = {ROOT: Spent(0, 1, 5), GRANDCHILD: Spent(1, 4, 0)}
    assert found.seconds() == 10
    assert len(found.pids()) == 2
