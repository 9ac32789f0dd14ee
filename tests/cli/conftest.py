"""One command line, and the lake and the cluster of the answers' tests."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqtrail.cli import run
from mqtrail.testing import Embedded
from tests.answers.collectors import collector
from tests.answers.conftest import lake_path, shop

STALLED = re.compile(r".*\bloop\.stalled\b.*\n")  # what a broker in this process logs on a busy machine

__all__ = ["Command", "CommandResult", "collector", "commands", "commands_at", "lake_path", "mqtrail", "shop"]


class CommandResult(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., CommandResult]


def commands(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command line and returns its result."""

    def run_command(*arguments: str) -> CommandResult:
        code = run(arguments)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return CommandResult(code, printed.out, STALLED.sub("", printed.err))

    return run_command


def commands_at(
    server: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Command:
    """The same with a cluster, without any settings of this machine and without a terminal."""
    monkeypatch.setenv("NAMESRV_ADDR", server.namesrv_address)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    return commands(capsys)


@pytest.fixture
def mqtrail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs one command line without any settings of this machine."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.chdir(tmp_path)

    return commands(capsys)
