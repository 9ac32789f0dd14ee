"""Every command of mqadmin 5.3.3 for a master and a name server, on both servers: its output and its errors."""

from __future__ import annotations

import re

import pytest
from interop.commands import COMMANDS, How, comparable, has_exception, missing
from interop.driver import Json
from interop.stage import Stage
from interop.typed import typed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def outputs(stage: Stage) -> tuple[Json, Json]:
    """What every command printed, on ours and on Apache's."""
    return stage.play(typed(COMMANDS), "5.3.3-json")


def test_every_command_is_here(stage: Stage) -> None:
    """Every command in mqadmin's help is run, or left out for a reason."""
    assert missing(stage.help()) == []


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[command.line for command in COMMANDS])
def test_command(outputs: tuple[Json, Json], number: int) -> None:
    """mqadmin prints the same on both servers, or fails in the same way."""
    ours, apache = (output[str(number)] for output in outputs)
    how = COMMANDS[number].how
    assert re.search(COMMANDS[number].shows, ours)
    if how is How.REFUSED:
        assert "CODE: 3 " in ours
        return
    assert comparable(ours, how) == comparable(apache, how), f"{ours}\n--- Apache:\n{apache}"
    assert how is not How.SOME or not has_exception(ours)
