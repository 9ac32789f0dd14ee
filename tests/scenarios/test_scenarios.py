"""Runs the scripts of this folder. `pytest tests/scenarios --rewrite -m ""` updates their outputs: read the diff."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from mqtrail.store import MemoryDisk, MemoryStore, MessageStore
from mqtrail.store.sql import SqlStore
from tests.databases.servers import SERVERS, server

from .world import World

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
SLOW = {"timers"}  # days pass in it, second by second


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW)) for path in SCRIPTS]
)
def test_scenario(path: Path, pytestconfig: pytest.Config) -> None:
    """A script's commands have its outputs, line by line."""
    text = path.read_text()
    found = run(text)
    if pytestconfig.getoption("--rewrite"):
        path.write_text(found)
    else:
        assert found == text


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_scenario_on_tables(path: Path, tmp_path: Path) -> None:
    """A broker on tables gives the same outputs as one on a CommitLog."""
    numbers = count()

    def tables() -> MessageStore:
        return SqlStore(MemoryDisk(), f"sqlite:///{tmp_path}/{next(numbers)}.db")

    text = path.read_text()
    assert run(text, tables) == text


@pytest.mark.databases
@pytest.mark.parametrize("name", sorted(SERVERS))
@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_scenario_on_a_server(path: Path, name: str) -> None:
    """So does one on tables of a database server."""
    stores: list[SqlStore] = []

    def tables() -> MessageStore:
        stores.append(SqlStore(MemoryDisk(), server(name).new_database()))
        return stores[-1]

    text = path.read_text()
    try:
        assert run(text, tables) == text
    finally:
        for store in stores:
            store.abandon()


def run(text: str, make_store: Callable[[], MessageStore] = MemoryStore) -> str:
    """Return the script with the present output of its commands.

    Blocks are separated by blank lines: commands, "----", output. A block that has only comments is kept.
    """
    world = World(make_store)
    blocks = []
    for block in text.strip().split("\n\n"):
        commands = block.split("\n----")[0]
        if all(line.startswith("#") for line in commands.splitlines()):
            blocks.append(block)
            continue
        output: list[str] = []
        for line in commands.splitlines():
            if not line.startswith("#"):
                output += world.do(line)
        blocks.append("\n".join([commands, "----", *output]))
    return "\n\n".join(blocks) + "\n"
