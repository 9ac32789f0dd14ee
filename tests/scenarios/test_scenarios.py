"""Runs the scripts of this folder. `pytest tests/scenarios --rewrite -m ""` updates their outputs: read the diff."""

from pathlib import Path

import pytest

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


def run(text: str) -> str:
    """Return the script with the present output of its commands.

    Blocks are separated by blank lines: commands, "----", output. A block that has only comments is kept.
    """
    world = World()
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
