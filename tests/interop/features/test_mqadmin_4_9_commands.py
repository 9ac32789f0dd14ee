"""Every command of mqadmin 4.9.8 on our servers and on Apache's 4.9.7: its output and its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from interop.commands import How, comparable, has_exception, missing
from interop.commands_4_9 import ACCOUNTS, COMMANDS, as_4_9
from interop.driver import Json
from interop.stage import Stage
from interop.typed import typed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def stage_4_9(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Our server and Apache's 4.9.7, mqadmin 4.9.8 at each."""
    with Stage(tmp_path_factory.mktemp("stage-4.9"), apache="4.9.7", tool="4.9.8", acl=ACCOUNTS) as stage:
        yield stage


@pytest.fixture(scope="module")
def outputs(stage_4_9: Stage) -> tuple[Json, Json]:
    """What every command printed, on ours and on Apache's."""
    return stage_4_9.play(typed(COMMANDS), "4.9.8-json")


def test_every_command_is_here(stage_4_9: Stage) -> None:
    """Every command in mqadmin's help is run."""
    assert missing(stage_4_9.help(), COMMANDS, frozenset()) == []


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[command.line for command in COMMANDS])
def test_command(outputs: tuple[Json, Json], number: int) -> None:
    """mqadmin prints the same on both servers, or fails in the same way; it fails only where a failure is expected."""
    command = COMMANDS[number]
    ours, apache = (as_4_9(output[str(number)]) for output in outputs)
    assert re.search(command.shows, ours, re.MULTILINE), ours
    assert command.shows.startswith("CODE: ") or not has_exception(ours), ours
    if command.how is How.OURS:
        assert command.note
        return
    assert re.search(command.shows, apache, re.MULTILINE), apache
    assert comparable(ours, command.how) == comparable(apache, command.how), f"{ours}\n--- Apache:\n{apache}"
