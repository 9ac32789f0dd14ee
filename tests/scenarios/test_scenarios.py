"""Runs the scripts of this folder. `pytest tests/scenarios --rewrite` renews what they say; then read the diff."""

from pathlib import Path

import pytest

from .world import World

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scenario(path: Path, pytestconfig: pytest.Config) -> None:
    """A script's commands bring about what it says, line by line."""
    text = path.read_text()
    found = run(text)
    if pytestconfig.getoption("--rewrite"):
        path.write_text(found)
    else:
        assert found == text


def run(text: str) -> str:
    """Return the script with the output that its commands have now.

    Blocks are parted by blank lines: commands, "----", output. A block of comments alone stays as it is.
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
